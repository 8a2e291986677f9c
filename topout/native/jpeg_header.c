/* Markers of a JPEG file up to its scan, and Huffman tables. Every length is checked before it is believed. */
#include "jpeg.h"

#include <stdlib.h>
#include <string.h>

enum { SOF0 = 0xC0, SOF1 = 0xC1, DHT = 0xC4, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD, APP14 = 0xEE };

uint8_t *scratch_reserve(scratch *memory, size_t num_bytes)
{
    if (num_bytes > memory->capacity) {
        /* old content is not kept */
        free(memory->bytes);
        memory->bytes = malloc(num_bytes + num_bytes / 4);
        memory->capacity = memory->bytes ? num_bytes + num_bytes / 4 : 0;
    }
    return memory->bytes;
}

static int read16(const uint8_t *data) { return data[0] << 8 | data[1]; }

static int extended(int bits, int size) { return bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits; }

/* For every prefix: the symbol that it begins with, when its code fits. */
static void fill_lookup(huffman_table *table)
{
    memset(table->code, 0, sizeof table->code);
    int code = 0, next = 0;
    for (int length = 1; length <= LOOKUP_BITS; length++, code <<= 1)
        for (int i = 0; i < table->counts[length]; i++, code++, next++) {
            int first = code << (LOOKUP_BITS - length);
            for (int j = 0; j < 1 << (LOOKUP_BITS - length); j++)
                table->code[first + j] = (uint16_t)(table->symbols[next] << 8 | length);
        }
}

static void fill_coefficients(huffman_table *table)
{
    for (int prefix = 0; prefix < 1 << LOOKUP_BITS; prefix++) {
        int length = table->code[prefix] & 255, symbol = table->code[prefix] >> 8;
        int run = symbol >> 4, size = symbol & 15;
        table->coefficient[prefix] = 0;
        if (!length || length + size > LOOKUP_BITS)
            continue;
        if (!size) {
            /* sixteen zeros, or the end of the block: a step that leaves the block, over a value of zero */
            table->coefficient[prefix] = (run == 15 ? 15 : END_OF_BLOCK) << 8 | length;
            continue;
        }
        int bits = prefix >> (LOOKUP_BITS - length - size) & ((1 << size) - 1);
        table->coefficient[prefix] = (int32_t)((uint32_t)extended(bits, size) << 16) | run << 8 | (length + size);
    }
}

/* As many symbols as begin and end their codes inside the prefix; the last one's value may reach beyond it. */
void huffman_build_skip(huffman_table *table)
{
    if (table->has_skip)
        return;
    for (uint32_t prefix = 0; prefix < 1u << SKIP_BITS; prefix++) {
        int bits = 0, coefficients = 0, is_end = 0;
        while (bits < SKIP_BITS) {
            int left = SKIP_BITS - bits;
            uint32_t rest = prefix << bits & ((1u << SKIP_BITS) - 1);
            uint16_t entry = table->code[rest >> (SKIP_BITS - LOOKUP_BITS)];
            int length = entry & 255, run = entry >> 12, size = entry >> 8 & 15;
            if (!length || length > left)
                break;
            bits += length + size;
            if (!size && run != 15) {
                is_end = 1;
                break;
            }
            coefficients += run + 1;
        }
        table->skip[prefix] = (uint32_t)(is_end << 24 | coefficients << 8 | bits);
    }
    table->has_skip = 1;
}

jpeg_result huffman_build(huffman_table *table, const uint8_t *counts, const uint8_t *symbols, int num, int is_ac)
{
    if (table->num_symbols == num && !memcmp(table->counts + 1, counts, 16) && !memcmp(table->symbols, symbols, num))
        return JPEG_FINE; /* as in the image before: most files share the standard's tables */
    table->num_symbols = 0;
    table->has_skip = 0;
    memset(table->symbols, 0, sizeof table->symbols);
    memcpy(table->symbols, symbols, num);
    table->counts[0] = 0;
    memcpy(table->counts + 1, counts, 16);
    int code = 0, next = 0;
    for (int length = 1; length <= 16; length++) {
        table->symbol_offset[length] = next - code;
        code += counts[length - 1];
        next += counts[length - 1];
        if (code > 1 << length)
            return JPEG_DAMAGED; /* more codes than bits can tell apart */
        table->last_code[length] = counts[length - 1] ? code << (16 - length) : -1;
        code <<= 1;
    }
    table->last_code[17] = 1 << 17;
    fill_lookup(table);
    if (is_ac)
        fill_coefficients(table);
    table->num_symbols = num;
    return JPEG_FINE;
}

static jpeg_result read_huffman(jpeg_header *header, const uint8_t *data, int length)
{
    while (length > 0) {
        if (length < 17)
            return JPEG_DAMAGED;
        int is_ac = data[0] >> 4, number = data[0] & 15, num = 0;
        for (int i = 1; i <= 16; i++)
            num += data[i];
        if (is_ac > 1 || number > 3 || num > 256 || length < 17 + num)
            return JPEG_DAMAGED;
        huffman_table *table = is_ac ? &header->ac[number] : &header->dc[number];
        if (huffman_build(table, data + 1, data + 17, num, is_ac))
            return JPEG_DAMAGED;
        *(is_ac ? &header->has_ac[number] : &header->has_dc[number]) = 1;
        data += 17 + num;
        length -= 17 + num;
    }
    return JPEG_FINE;
}

static jpeg_result read_quantisation(jpeg_header *header, const uint8_t *data, int length)
{
    while (length > 0) {
        int is_wide = data[0] >> 4, number = data[0] & 15, num_bytes = is_wide ? 128 : 64;
        if (is_wide > 1 || number > 3 || length < 1 + num_bytes)
            return JPEG_DAMAGED;
        for (int i = 0; i < 64; i++)
            header->quant[number][i] = (uint16_t)(is_wide ? read16(data + 1 + 2 * i) : data[1 + i]);
        header->has_quant[number] = 1;
        data += 1 + num_bytes;
        length -= 1 + num_bytes;
    }
    return JPEG_FINE;
}

static jpeg_result read_frame(jpeg_header *header, const uint8_t *data, int length, uint8_t ids[3])
{
    if (header->num_components || length < 6)
        return JPEG_DAMAGED;
    header->height = read16(data + 1);
    header->width = read16(data + 3);
    int num = data[5];
    if (data[0] != 8 || (num != 1 && num != 3) || !header->height)
        return JPEG_UNSUPPORTED;
    if (!header->width || length < 6 + 3 * num)
        return JPEG_DAMAGED;
    header->num_components = num;
    for (int i = 0; i < num; i++) {
        jpeg_component *component = &header->component[i];
        ids[i] = data[6 + 3 * i];
        component->horizontal = data[7 + 3 * i] >> 4;
        component->vertical = data[7 + 3 * i] & 15;
        component->quant_table = data[8 + 3 * i];
        if (component->quant_table > 3)
            return JPEG_DAMAGED;
        if (num == 1)
            component->horizontal = component->vertical = 1; /* one component has one block a unit, whatever it says */
        int is_chroma = i > 0;
        if (component->horizontal < 1 || component->horizontal > 2 || component->vertical < 1 ||
            component->vertical > 2 || (is_chroma && component->horizontal * component->vertical != 1))
            return JPEG_UNSUPPORTED;
    }
    header->max_horizontal = header->component[0].horizontal;
    header->max_vertical = header->component[0].vertical;
    for (int i = 0; i < num; i++) {
        jpeg_component *component = &header->component[i];
        int across = header->max_horizontal / component->horizontal, down = header->max_vertical / component->vertical;
        component->width = (header->width + across - 1) / across;
        component->height = (header->height + down - 1) / down;
    }
    return JPEG_FINE;
}

static jpeg_result read_scan_header(jpeg_header *header, const uint8_t *data, int length, const uint8_t ids[3])
{
    int num = header->num_components;
    if (!num || length < 1)
        return JPEG_DAMAGED;
    if (data[0] != num)
        return JPEG_UNSUPPORTED; /* components in scans of their own */
    if (length < 4 + 2 * num)
        return JPEG_DAMAGED;
    for (int i = 0; i < num; i++) {
        jpeg_component *component = &header->component[i];
        if (data[1 + 2 * i] != ids[i])
            return JPEG_UNSUPPORTED;
        component->dc_table = data[2 + 2 * i] >> 4;
        component->ac_table = data[2 + 2 * i] & 15;
        if (component->dc_table > 3 || component->ac_table > 3 || !header->has_dc[component->dc_table] ||
            !header->has_ac[component->ac_table] || !header->has_quant[component->quant_table])
            return JPEG_DAMAGED;
    }
    return JPEG_FINE;
}

/* As libjpeg decides it: JFIF says YCbCr, Adobe's marker says which, else the components' names do. */
static jpeg_colours colours_of(int num, int has_jfif, int adobe, const uint8_t ids[3])
{
    if (num == 1)
        return JPEG_GREY;
    if (has_jfif)
        return JPEG_YCBCR;
    if (adobe >= 0)
        return adobe == 0 ? JPEG_RGB : JPEG_YCBCR;
    return ids[0] == 'R' && ids[1] == 'G' && ids[2] == 'B' ? JPEG_RGB : JPEG_YCBCR;
}

jpeg_result jpeg_read_header(jpeg_header *header, const uint8_t *data, size_t length)
{
    const uint8_t *end = data + length;
    uint8_t ids[3] = {0};
    int has_jfif = 0, adobe = -1;
    header->num_components = 0;
    header->restart_interval = 0;
    memset(header->has_quant, 0, 4);
    memset(header->has_dc, 0, 4);
    memset(header->has_ac, 0, 4);
    if (length < 4 || data[0] != 0xFF || data[1] != SOI)
        return JPEG_DAMAGED;
    for (data += 2;;) {
        while (data < end && *data != 0xFF)
            data++; /* libjpeg skips what stands between segments */
        while (data < end && *data == 0xFF)
            data++;
        if (end - data < 3)
            return JPEG_DAMAGED;
        int marker = *data++;
        if (marker == 0 || marker == 1 || (marker >= 0xD0 && marker <= 0xD7))
            continue;
        int size = read16(data) - 2;
        const uint8_t *segment = data + 2;
        if (marker == EOI || size < 0 || end - segment < size)
            return JPEG_DAMAGED;
        jpeg_result result = JPEG_FINE;
        if (marker == SOF0 || marker == SOF1)
            result = read_frame(header, segment, size, ids);
        else if (marker >= 0xC0 && marker <= 0xCF && marker != DHT && marker != 0xC8)
            result = JPEG_UNSUPPORTED;
        else if (marker == DHT)
            result = read_huffman(header, segment, size);
        else if (marker == DQT)
            result = read_quantisation(header, segment, size);
        else if (marker == DRI && size >= 2)
            header->restart_interval = read16(segment);
        else if (marker == 0xE0 && size >= 5 && !memcmp(segment, "JFIF", 5))
            has_jfif = 1;
        else if (marker == APP14 && size >= 12 && !memcmp(segment, "Adobe", 5))
            adobe = segment[11];
        else if (marker == SOS) {
            result = read_scan_header(header, segment, size, ids);
            header->scan = segment + size;
            header->end = end;
            header->colours = colours_of(header->num_components, has_jfif, adobe, ids);
            return result;
        }
        if (result)
            return result;
        data = segment + size;
    }
}
