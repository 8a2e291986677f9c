/* Entropy decoding: all of the stream down to the window's last block, but only the window's coefficients are kept.
 *
 * The stream's stuffed bytes are taken out first, a thousandth of the time, so that bits are loaded eight bytes at a
 * time without looking at them. A table gives code and value together; another one, for blocks outside the window,
 * passes over several symbols at once. Restart intervals before the window are not decoded at all.
 */
#include "jpeg.h"

#include <string.h>

/* Zeros behind the stream, so that its end is checked once for each unit (MCU): what one that begins at the end can
 * read. The frames that are taken have 2 x 2 + 1 + 1 blocks in a unit at most, a block 64 symbols, a symbol 16 bits of
 * code and 15 of value; and a refill reads up to 16 bytes ahead.
 */
enum { UNIT_BLOCKS = 6, BLOCK_BYTES = 64 * (16 + 15) / 8, PADDING = UNIT_BLOCKS * BLOCK_BYTES + 16 };

/* From zigzag to natural order; what lies beyond the block goes to a place that nobody reads. */
#define BEYOND4 64, 64, 64, 64
#define BEYOND16 BEYOND4, BEYOND4, BEYOND4, BEYOND4
#define BEYOND64 BEYOND16, BEYOND16, BEYOND16, BEYOND16
static const uint8_t natural[64 + 192] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, BEYOND64, BEYOND64, BEYOND64,
};

/* Bits of one restart interval: the next one is the highest of `bits`, and `count` of them are there. */
typedef struct {
    uint64_t bits;
    int count;
    const uint8_t *next, *limit;
} bit_reader;

static inline void refill(bit_reader *reader)
{
    uint64_t word;
    memcpy(&word, reader->next, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    reader->bits |= word >> reader->count;
    reader->next += (63 - reader->count) >> 3;
    reader->count |= 56;
}

static inline void consume(bit_reader *reader, int num)
{
    reader->bits <<= num;
    reader->count -= num;
}

static inline int is_past_end(const bit_reader *reader) { return reader->next - (reader->count >> 3) > reader->limit; }

/* Copies up to the next marker without stuffed bytes; returns where the marker stands. */
static const uint8_t *unstuff(const uint8_t *from, const uint8_t *end, uint8_t *to, uint8_t **limit)
{
    while (from < end) {
        const uint8_t *stop = memchr(from, 0xFF, (size_t)(end - from));
        size_t length = (size_t)((stop ? stop : end) - from);
        memcpy(to, from, length);
        to += length;
        from += length;
        if (!stop || end - from < 2 || from[1] != 0)
            break;
        *to++ = 0xFF;
        from += 2;
    }
    memset(to, 0, PADDING);
    *limit = to;
    return from;
}

/* The next marker, without copying what is before it. */
static const uint8_t *find_marker(const uint8_t *from, const uint8_t *end)
{
    for (; (from = memchr(from, 0xFF, (size_t)(end - from))) && end - from >= 2; from += 2)
        if (from[1] != 0)
            return from;
    return end;
}

/* A code of any length; -1 when there is none. At least 16 bits are there. */
static inline int next_symbol(bit_reader *reader, const huffman_table *table)
{
    int entry = table->code[reader->bits >> (64 - LOOKUP_BITS)];
    if (entry) {
        consume(reader, entry & 255);
        return entry >> 8;
    }
    int32_t prefix = (int32_t)(reader->bits >> 48);
    for (int length = LOOKUP_BITS + 1; length <= 16; length++)
        if (prefix < table->last_code[length]) {
            consume(reader, length);
            return table->symbols[((prefix >> (16 - length)) + table->symbol_offset[length]) & 255];
        }
    return -1;
}

static inline int next_value(bit_reader *reader, int size)
{
    if (!size)
        return 0;
    int bits = (int)(reader->bits >> (64 - size));
    consume(reader, size);
    return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

static inline int read_dc(bit_reader *reader, const huffman_table *table, int *predictor)
{
    refill(reader);
    int size = next_symbol(reader, table);
    if (size < 0 || size > 15)
        return 0;
    /* unsigned, because what a damaged file adds up to may not fit */
    *predictor = (int)((unsigned)*predictor + (unsigned)next_value(reader, size));
    return 1;
}

/* One symbol that the table of coefficients does not hold; the place after it, or -1. */
static int long_coefficient(
    bit_reader *reader, const huffman_table *table, const uint16_t *quant, int16_t *block, int place)
{
    refill(reader);
    int symbol = next_symbol(reader, table);
    if (symbol < 0)
        return -1;
    int run = symbol >> 4, size = symbol & 15;
    if (!size)
        return run == 15 ? place + 16 : place + END_OF_BLOCK + 1;
    place += run;
    int value = next_value(reader, size);
    if (block)
        block[natural[place]] = (int16_t)(value * quant[place & 63]);
    return place + 1;
}

/* Coefficients 1 to 63, dequantised; the place of the last one, or -1 for a stream that is damaged. */
static inline int read_coefficients(
    bit_reader *restrict reader, const huffman_table *restrict table, const uint16_t *restrict quant,
    int16_t *restrict block)
{
    int place = 1;
    bit_reader bits = *reader;
    do {
        refill(&bits);
        /* four short symbols have 40 bits at most */
        for (int i = 0; i < 4; i++) {
            int32_t entry = table->coefficient[bits.bits >> (64 - LOOKUP_BITS)];
            if (__builtin_expect(!entry, 0)) {
                place = long_coefficient(&bits, table, quant, block, place);
                if (place < 0)
                    return -1;
                break;
            }
            place += entry >> 8 & 255;
            block[natural[place]] = (int16_t)((entry >> 16) * quant[place & 63]);
            place++;
            consume(&bits, entry & 255);
            if (place >= 64)
                break;
        }
    } while (place < 64);
    *reader = bits;
    if (place > END_OF_BLOCK)
        return place - END_OF_BLOCK - 2;
    return place == 64 ? 63 : -1;
}

static inline int skip_coefficients(bit_reader *restrict reader, const huffman_table *restrict table)
{
    int place = 1;
    bit_reader bits = *reader;
    do {
        refill(&bits);
        uint32_t entry = table->skip[bits.bits >> (64 - SKIP_BITS)];
        int step = entry >> 8 & 0xFFFF;
        int is_end = (int)(entry >> 24);
        /* near the end of the block, an entry may hold symbols of the next one */
        if (__builtin_expect(!(entry & 255) || place + step + is_end > 64, 0)) {
            place = long_coefficient(&bits, table, NULL, NULL, place);
            if (place < 0)
                return 0;
            continue;
        }
        place += step + is_end * (END_OF_BLOCK + 1);
        consume(&bits, entry & 255);
    } while (place < 64);
    *reader = bits;
    return place > END_OF_BLOCK || place == 64;
}

/* Blocks of a component that a window needs, both ends included. */
typedef struct {
    int left, top, right, bottom;
} block_range;

static void needed_samples(const jpeg_header *header, int which, jpeg_window window, int range[4])
{
    const jpeg_component *component = &header->component[which];
    int across = header->max_horizontal / component->horizontal, down = header->max_vertical / component->vertical;
    /* upsampling looks at one neighbour on each side */
    int left = window.left / across - (across > 1), right = (window.left + window.width - 1) / across + (across > 1);
    int top = window.top / down - (down > 1), bottom = (window.top + window.height - 1) / down + (down > 1);
    range[0] = left < 0 ? 0 : left;
    range[1] = top < 0 ? 0 : top;
    range[2] = right >= component->width ? component->width - 1 : right;
    range[3] = bottom >= component->height ? component->height - 1 : bottom;
}

static jpeg_result lay_out(
    const jpeg_header *header, jpeg_window window, scratch *memory, jpeg_plane planes[3], block_range ranges[3])
{
    size_t sizes[3], total = 0;
    for (int i = 0; i < header->num_components; i++) {
        int samples[4];
        needed_samples(header, i, window, samples);
        ranges[i] = (block_range){samples[0] / 8, samples[1] / 8, samples[2] / 8, samples[3] / 8};
        int columns = (ranges[i].right - ranges[i].left + 1) * 8, rows = (ranges[i].bottom - ranges[i].top + 1) * 8;
        planes[i] = (jpeg_plane){
            .stride = (size_t)columns + 64, /* rows are read in whole vectors */
            .left = ranges[i].left * 8,
            .top = ranges[i].top * 8,
            .width = columns,
            .height = rows,
        };
        sizes[i] = planes[i].stride * (size_t)rows + 64;
        total += sizes[i];
    }
    uint8_t *place = scratch_reserve(memory, total);
    if (!place)
        return JPEG_NO_MEMORY;
    for (int i = 0; i < header->num_components; place += sizes[i], i++)
        planes[i].samples = place;
    return JPEG_FINE;
}

static int decode_block(
    const jpeg_header *header, int which, bit_reader *reader, int *predictor, const jpeg_plane *plane, int column, int row)
{
    const jpeg_component *component = &header->component[which];
    const uint16_t *quant = header->quant[component->quant_table];
    int16_t block[72] __attribute__((aligned(64)));
    memset(block, 0, sizeof block);
    if (!read_dc(reader, &header->dc[component->dc_table], predictor))
        return 0;
    block[0] = (int16_t)(*predictor * quant[0]);
    int last = read_coefficients(reader, &header->ac[component->ac_table], quant, block);
    if (last < 0)
        return 0;
    uint8_t *samples = plane->samples + (size_t)(row * 8 - plane->top) * plane->stride + (column * 8 - plane->left);
    if (last == 0) {
        int grey = ((block[0] + 4) >> 3) + 128;
        grey = grey < 0 ? 0 : grey > 255 ? 255 : grey;
        for (int i = 0; i < 8; i++)
            memset(samples + (size_t)i * plane->stride, grey, 8);
    } else {
        jpeg_inverse_dct(block, samples, plane->stride);
    }
    return 1;
}

static int skip_block(const jpeg_header *header, int which, bit_reader *reader, int *predictor)
{
    const jpeg_component *component = &header->component[which];
    return read_dc(reader, &header->dc[component->dc_table], predictor) &&
           skip_coefficients(reader, &header->ac[component->ac_table]);
}

/* All blocks of one unit (MCU). */
static int decode_unit(
    const jpeg_header *header, bit_reader *reader, int predictors[3], const jpeg_plane planes[3],
    const block_range ranges[3], int unit_column, int unit_row)
{
    for (int i = 0; i < header->num_components; i++) {
        const jpeg_component *component = &header->component[i];
        const block_range *range = &ranges[i];
        for (int v = 0; v < component->vertical; v++)
            for (int h = 0; h < component->horizontal; h++) {
                int column = unit_column * component->horizontal + h, row = unit_row * component->vertical + v;
                int is_wanted = column >= range->left && column <= range->right && row >= range->top &&
                                row <= range->bottom;
                if (!(is_wanted ? decode_block(header, i, reader, &predictors[i], &planes[i], column, row)
                                : skip_block(header, i, reader, &predictors[i])))
                    return 0;
            }
    }
    return !is_past_end(reader);
}

jpeg_result jpeg_decode_window(
    const jpeg_header *header, jpeg_window window, scratch *stream, scratch *memory, jpeg_plane planes[3])
{
    block_range ranges[3];
    jpeg_result result = lay_out(header, window, memory, planes, ranges);
    uint8_t *clean = scratch_reserve(stream, (size_t)(header->end - header->scan) + PADDING);
    if (result || !clean)
        return JPEG_NO_MEMORY;
    int units_across = (header->width + 8 * header->max_horizontal - 1) / (8 * header->max_horizontal);
    int units_down = (header->height + 8 * header->max_vertical - 1) / (8 * header->max_vertical);
    long first = (long)units_across * units_down, last = 0;
    for (int i = 0; i < header->num_components; i++) {
        const jpeg_component *component = &header->component[i];
        const block_range *range = &ranges[i];
        long begin = (long)(range->top / component->vertical) * units_across + range->left / component->horizontal;
        long end = (long)(range->bottom / component->vertical) * units_across + range->right / component->horizontal;
        first = begin < first ? begin : first;
        last = end > last ? end : last;
    }
    long interval = header->restart_interval ? header->restart_interval : (long)units_across * units_down;
    const uint8_t *from = header->scan;
    for (long unit = 0; unit <= last; unit += interval) {
        if (unit) {
            if (header->end - from < 2 || from[1] < 0xD0 || from[1] > 0xD7)
                return JPEG_DAMAGED;
            from += 2;
        }
        if (unit + interval <= first) {
            from = find_marker(from, header->end);
            continue;
        }
        uint8_t *limit;
        from = unstuff(from, header->end, clean, &limit);
        bit_reader reader = {.next = clean, .limit = limit};
        int predictors[3] = {0};
        long stop = unit + interval <= last ? unit + interval : last + 1;
        for (long i = unit; i < stop; i++)
            if (!decode_unit(header, &reader, predictors, planes, ranges, (int)(i % units_across), (int)(i / units_across)))
                return JPEG_DAMAGED;
    }
    return JPEG_FINE;
}
