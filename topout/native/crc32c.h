/* CRC-32C (Castagnoli), the checksum of packs: detects every single flipped bit and every burst up to 32 bits. */
#ifndef TOPOUT_CRC32C_H
#define TOPOUT_CRC32C_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The processor's own instruction, where it has one. */
#if defined(__SSE4_2__)
#define CRC32C_STEP64(crc, word) ((uint32_t)__builtin_ia32_crc32di((crc), (word)))
#define CRC32C_STEP8(crc, byte) __builtin_ia32_crc32qi((crc), (byte))
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC32C_STEP64(crc, word) __crc32cd((crc), (word))
#define CRC32C_STEP8(crc, byte) __crc32cb((crc), (byte))
#endif

/* Continues `crc` (0 at the start) over `data`. */
uint32_t topout_crc32c(uint32_t crc, const uint8_t *data, size_t length);

/* The same while copying to `out`: memory is read once. */
uint32_t topout_crc32c_copy(uint32_t crc, const uint8_t *data, size_t length, uint8_t *out);

/* For a few words of eight bytes, where a call would take as long as the work. */
static inline uint32_t topout_crc32c_words(uint32_t crc, const uint8_t *data, size_t num_words)
{
#ifdef CRC32C_STEP64
    crc = ~crc;
    for (; num_words; num_words--, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = CRC32C_STEP64(crc, word);
    }
    return ~crc;
#else
    return topout_crc32c(crc, data, 8 * num_words);
#endif
}

#endif
