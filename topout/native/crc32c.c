/* Three ways, by what the processor has.
 *
 * Wide multiplication without carries: 64 bytes are folded onto those that follow, which costs no more than copying them.
 * The checksum's instruction: three lanes at once, since one takes three cycles but starts every cycle. The lanes' values
 * are joined by shifting: appending L zero bytes to a message multiplies its value by x^(8L) modulo the polynomial, which
 * is linear in the value's four bytes and so four look-ups. Neither: eight tables, a word a turn.
 */
#include "crc32c.h"

#include <string.h>

#if defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__VPCLMULQDQ__)
#define HAS_FOLDING 1
#include <immintrin.h>
#endif

#define POLYNOMIAL 0x82F63B78u /* bit-reversed */

static uint32_t tables[8][256];

#ifdef CRC32C_STEP64
/* Multiples of a line; the long one no power of two, so that the lanes do not compete for one set of the cache. */
enum { LONG_LANE = 5440, SHORT_LANE = 256, LINE = 64, AHEAD = 2048 };
static uint32_t long_shift[4][256], short_shift[4][256];

static uint32_t shifted(const uint32_t table[4][256], uint32_t crc)
{
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24];
}

/* Shifting is linear: what it makes of the 32 single bits gives all the rest. */
static void fill_shift(uint32_t table[4][256], int num_bytes)
{
    uint32_t of_bit[32];
    for (int bit = 0; bit < 32; bit++) {
        of_bit[bit] = 1u << bit;
        for (int i = 0; i < num_bytes; i++)
            of_bit[bit] = of_bit[bit] >> 8 ^ tables[0][of_bit[bit] & 255];
    }
    for (int byte = 0; byte < 4; byte++)
        for (uint32_t value = 0; value < 256; value++) {
            table[byte][value] = 0;
            for (int bit = 0; bit < 8; bit++)
                table[byte][value] ^= value >> bit & 1 ? of_bit[8 * byte + bit] : 0;
        }
}
#endif

#ifdef HAS_FOLDING
enum { BLOCK = 64, FOUR_BLOCKS = 4 * BLOCK };
/* What takes each 16 bytes of a block one, two, three or four blocks on; and, within a block, to its last 16 bytes. */
static __m512i over_one, over_two, over_three, over_four, to_last;

/* x^num_bits modulo the polynomial, bit-reversed, in the upper half and one up, as products of reversed numbers need it. */
static uint64_t factor(int num_bits)
{
    uint32_t power = 0x80000000u;
    for (int bit = 0; bit < num_bits; bit++)
        power = power >> 1 ^ (power & 1 ? POLYNOMIAL : 0);
    return (uint64_t)power << 1;
}

/* The two halves of 16 bytes lie 64 bits apart. */
static __m128i factors_over(int num_bytes)
{
    return _mm_set_epi64x((long long)factor(8 * num_bytes - 32), (long long)factor(8 * num_bytes + 32));
}

static void fill_factors(void)
{
    over_one = _mm512_broadcast_i64x2(factors_over(BLOCK));
    over_two = _mm512_broadcast_i64x2(factors_over(2 * BLOCK));
    over_three = _mm512_broadcast_i64x2(factors_over(3 * BLOCK));
    over_four = _mm512_broadcast_i64x2(factors_over(FOUR_BLOCKS));
    to_last = _mm512_zextsi128_si512(factors_over(48));
    to_last = _mm512_inserti64x2(to_last, factors_over(32), 1);
    to_last = _mm512_inserti64x2(to_last, factors_over(16), 2);
}
#endif

__attribute__((constructor)) static void fill_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++)
            tables[table][byte] = tables[table - 1][byte] >> 8 ^ tables[0][tables[table - 1][byte] & 255];
#ifdef CRC32C_STEP64
    fill_shift(long_shift, LONG_LANE);
    fill_shift(short_shift, SHORT_LANE);
#endif
#ifdef HAS_FOLDING
    fill_factors();
#endif
}

static uint64_t load64(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

#ifdef CRC32C_STEP64
/* `out` is known to the compiler to be NULL, or not to be. */
static inline __attribute__((always_inline)) uint32_t step(uint32_t crc, const uint8_t *data, uint8_t *out)
{
    uint64_t word = load64(data);
    if (out)
        memcpy(out, &word, 8);
    return CRC32C_STEP64(crc, word);
}

static inline __attribute__((always_inline)) uint32_t
three_lanes(uint32_t crc, const uint8_t *data, int lane, const uint32_t shift[4][256], uint8_t *out)
{
    uint32_t second = 0, third = 0;
    for (int line = 0; line < lane; line += LINE) {
        /* the processor's own prefetching stops at the end of every page, and there are three lanes */
        for (int i = 0; i < 3 && lane == LONG_LANE; i++)
            __builtin_prefetch(data + i * lane + line + AHEAD);
#pragma GCC unroll 8
        for (int i = line; i < line + LINE; i += 8) {
            crc = step(crc, data + i, out ? out + i : NULL);
            second = step(second, data + lane + i, out ? out + lane + i : NULL);
            third = step(third, data + 2 * lane + i, out ? out + 2 * lane + i : NULL);
        }
    }
    return shifted(shift, shifted(shift, crc) ^ second) ^ third;
}

#ifdef HAS_FOLDING
static inline __attribute__((always_inline)) __m512i folded(__m512i block, __m512i factors, __m512i onto)
{
    __m512i low = _mm512_clmulepi64_epi128(block, factors, 0x00), high = _mm512_clmulepi64_epi128(block, factors, 0x11);
    return _mm512_ternarylogic_epi64(low, high, onto, 0x96 /* exclusive or of all three */);
}

static inline __attribute__((always_inline)) __m512i block_at(const uint8_t *data, uint8_t *out)
{
    __m512i block = _mm512_loadu_si512(data);
    if (out)
        _mm512_storeu_si512(out, block);
    return block;
}

/* Of a whole number of blocks, four at least. */
static inline __attribute__((always_inline)) uint32_t
blocks(uint32_t crc, const uint8_t *data, size_t length, uint8_t *out)
{
    __m512i sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sum[i] = block_at(data + i * BLOCK, out ? out + i * BLOCK : NULL);
    sum[0] = _mm512_xor_si512(sum[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    size_t at = FOUR_BLOCKS;
    for (; at + FOUR_BLOCKS <= length; at += FOUR_BLOCKS)
#pragma GCC unroll 4
        for (size_t i = at; i < at + FOUR_BLOCKS; i += BLOCK) {
            if (at + AHEAD < length)
                __builtin_prefetch(data + i + AHEAD);
            sum[(i - at) / BLOCK] = folded(sum[(i - at) / BLOCK], over_four, block_at(data + i, out ? out + i : NULL));
        }
    __m512i last = folded(sum[2], over_one, folded(sum[1], over_two, folded(sum[0], over_three, sum[3])));
    for (; at < length; at += BLOCK)
        last = folded(last, over_one, block_at(data + at, out ? out + at : NULL));
    last = folded(last, to_last, _mm512_zextsi128_si512(_mm512_extracti64x2_epi64(last, 3)));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(last), _mm512_extracti64x4_epi64(last, 1));
    __m128i quarter = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    crc = CRC32C_STEP64(0, (uint64_t)_mm_cvtsi128_si64(quarter));
    return CRC32C_STEP64(crc, (uint64_t)_mm_extract_epi64(quarter, 1));
}
#endif

static inline __attribute__((always_inline)) uint32_t
whole(uint32_t crc, const uint8_t *data, size_t length, uint8_t *out)
{
    crc = ~crc;
#ifdef HAS_FOLDING
    if (length >= FOUR_BLOCKS) {
        size_t in_blocks = length - length % BLOCK;
        crc = blocks(crc, data, in_blocks, out);
        data += in_blocks, length -= in_blocks, out += out ? in_blocks : 0;
    }
#endif
    for (; length >= 3 * LONG_LANE; data += 3 * LONG_LANE, length -= 3 * LONG_LANE, out += out ? 3 * LONG_LANE : 0)
        crc = three_lanes(crc, data, LONG_LANE, long_shift, out);
    for (; length >= 3 * SHORT_LANE; data += 3 * SHORT_LANE, length -= 3 * SHORT_LANE, out += out ? 3 * SHORT_LANE : 0)
        crc = three_lanes(crc, data, SHORT_LANE, short_shift, out);
    for (; length >= 8; data += 8, length -= 8, out += out ? 8 : 0)
        crc = step(crc, data, out);
    if (out)
        memcpy(out, data, length);
    for (; length; data++, length--)
        crc = CRC32C_STEP8(crc, *data);
    return ~crc;
}

uint32_t topout_crc32c(uint32_t crc, const uint8_t *data, size_t length) { return whole(crc, data, length, NULL); }

uint32_t topout_crc32c_copy(uint32_t crc, const uint8_t *data, size_t length, uint8_t *out)
{
    return length ? whole(crc, data, length, out) : crc;
}
#else
uint32_t topout_crc32c(uint32_t crc, const uint8_t *data, size_t length)
{
    crc = ~crc;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word = load64(data) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= tables[7 - byte][word >> (8 * byte) & 255];
    }
#endif
    for (; length; data++, length--)
        crc = crc >> 8 ^ tables[0][(crc ^ *data) & 255];
    return ~crc;
}

uint32_t topout_crc32c_copy(uint32_t crc, const uint8_t *data, size_t length, uint8_t *out)
{
    memcpy(out, data, length);
    return topout_crc32c(crc, data, length);
}
#endif
