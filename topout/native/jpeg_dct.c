/* The inverse cosine transform in 32-bit fixed point, eight columns or rows at once.
 *
 * Loeffler, Ligtenberg and Moschytz (1989) with 12 multiplications a pass, 13 bits of constants and 2 bits kept between
 * the passes: rounding is that of libjpeg's "islow", which decoders are expected to have.
 */
#include "jpeg.h"
#include "vectors.h"

enum { CONSTANT_BITS = 13, KEPT_BITS = 2 };

/* One dimension; `shift` bits are rounded away. */
INLINE void transform(lanes x[8], int shift)
{
    lanes z1 = (x[2] + x[6]) * 4433;
    lanes even2 = z1 - x[6] * 15137, even3 = z1 + x[2] * 6270;
    lanes even0 = (x[0] + x[4]) << CONSTANT_BITS, even1 = (x[0] - x[4]) << CONSTANT_BITS;
    lanes half = {0};
    half += 1 << (shift - 1);
    lanes t0 = even0 + even3 + half, t3 = even0 - even3 + half, t1 = even1 + even2 + half, t2 = even1 - even2 + half;

    lanes z5 = (x[7] + x[3] + x[5] + x[1]) * 9633;
    lanes z3 = z5 - (x[7] + x[3]) * 16069, z4 = z5 - (x[5] + x[1]) * 3196;
    lanes a = (x[7] + x[1]) * 7373, b = (x[5] + x[3]) * 20995;
    lanes odd0 = x[7] * 2446 - a + z3, odd1 = x[5] * 16819 - b + z4;
    lanes odd2 = x[3] * 25172 - b + z3, odd3 = x[1] * 12299 - a + z4;

    x[0] = (t0 + odd3) >> shift;
    x[7] = (t0 - odd3) >> shift;
    x[1] = (t1 + odd2) >> shift;
    x[6] = (t1 - odd2) >> shift;
    x[2] = (t2 + odd1) >> shift;
    x[5] = (t2 - odd1) >> shift;
    x[3] = (t3 + odd0) >> shift;
    x[4] = (t3 - odd0) >> shift;
}

void jpeg_inverse_dct(const int16_t coefficients[64], uint8_t *samples, size_t stride)
{
    typedef int16_t short_lanes __attribute__((vector_size(16)));
    lanes rows[8];
    for (int i = 0; i < 8; i++) {
        short_lanes narrow;
        memcpy(&narrow, coefficients + 8 * i, 16);
        rows[i] = __builtin_convertvector(narrow, lanes);
    }
    transform(rows, CONSTANT_BITS - KEPT_BITS);
    transpose(rows);
    transform(rows, CONSTANT_BITS + KEPT_BITS + 3);
    transpose(rows);
    for (int i = 0; i < 8; i++) {
        rows[i] += 128;
        store_bytes(samples + (size_t)i * stride, &rows[i]);
    }
}
