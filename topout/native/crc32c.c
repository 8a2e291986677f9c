/* Three lanes at once where the processor has the instruction: one takes three cycles but starts every cycle.
 *
 * The lanes' values are joined by shifting: appending L zero bytes to a message multiplies its value by x^(8L) modulo
 * the polynomial, which is linear in the value's four bytes and so four look-ups. Elsewhere eight tables, a word a turn.
 */
#include "crc32c.h"

#include <string.h>

#define POLYNOMIAL 0x82F63B78u /* bit-reversed */

#if defined(__SSE4_2__)
#define HAS_INSTRUCTION 1
#define STEP64(crc, word) ((uint32_t)__builtin_ia32_crc32di((crc), (word)))
#define STEP8(crc, byte) __builtin_ia32_crc32qi((crc), (byte))
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HAS_INSTRUCTION 1
#define STEP64(crc, word) __crc32cd((crc), (word))
#define STEP8(crc, byte) __crc32cb((crc), (byte))
#endif

static uint32_t tables[8][256];

#ifdef HAS_INSTRUCTION
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
#ifdef HAS_INSTRUCTION
    fill_shift(long_shift, LONG_LANE);
    fill_shift(short_shift, SHORT_LANE);
#endif
}

static uint64_t load64(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

#ifdef HAS_INSTRUCTION
/* `out` is known to the compiler to be NULL, or not to be. */
static inline __attribute__((always_inline)) uint32_t step(uint32_t crc, const uint8_t *data, uint8_t *out)
{
    uint64_t word = load64(data);
    if (out)
        memcpy(out, &word, 8);
    return STEP64(crc, word);
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

static inline __attribute__((always_inline)) uint32_t
whole(uint32_t crc, const uint8_t *data, size_t length, uint8_t *out)
{
    crc = ~crc;
    for (; length >= 3 * LONG_LANE; data += 3 * LONG_LANE, length -= 3 * LONG_LANE, out += out ? 3 * LONG_LANE : 0)
        crc = three_lanes(crc, data, LONG_LANE, long_shift, out);
    for (; length >= 3 * SHORT_LANE; data += 3 * SHORT_LANE, length -= 3 * SHORT_LANE, out += out ? 3 * SHORT_LANE : 0)
        crc = three_lanes(crc, data, SHORT_LANE, short_shift, out);
    for (; length >= 8; data += 8, length -= 8, out += out ? 8 : 0)
        crc = step(crc, data, out);
    if (out)
        memcpy(out, data, length);
    for (; length; data++, length--)
        crc = STEP8(crc, *data);
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
