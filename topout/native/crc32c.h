/* CRC-32C (Castagnoli), the checksum of packs: detects every single flipped bit and every burst up to 32 bits. */
#ifndef TOPOUT_CRC32C_H
#define TOPOUT_CRC32C_H
#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) over `data`. */
uint32_t topout_crc32c(uint32_t crc, const uint8_t *data, size_t length);

/* The same while copying to `out`: memory is read once. */
uint32_t topout_crc32c_copy(uint32_t crc, const uint8_t *data, size_t length, uint8_t *out);

#endif
