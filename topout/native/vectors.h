/* Eight 32-bit lanes, in the compiler's own notation: one source for every processor. */
#ifndef TOPOUT_VECTORS_H
#define TOPOUT_VECTORS_H
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef int32_t lanes __attribute__((vector_size(32)));
typedef uint8_t byte_lanes __attribute__((vector_size(8)));

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector((a), (b), __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle((a), (b), (lanes){__VA_ARGS__})
#endif

INLINE void load_bytes(lanes *out, const uint8_t *bytes)
{
#ifdef __AVX2__
    *out = (lanes)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)bytes));
#else
    byte_lanes narrow;
    memcpy(&narrow, bytes, 8);
    *out = __builtin_convertvector(narrow, lanes);
#endif
}

/* Values below 0 become 0, and those above 255 become 255. */
INLINE void store_bytes(uint8_t *bytes, const lanes *values)
{
#ifdef __AVX2__
    __m128i low = _mm256_castsi256_si128((__m256i)*values), high = _mm256_extracti128_si256((__m256i)*values, 1);
    __m128i words = _mm_packs_epi32(low, high);
    _mm_storel_epi64((__m128i *)(void *)bytes, _mm_packus_epi16(words, words));
#elif defined(__SSE2__)
    __m128i halves[2];
    memcpy(halves, values, 32);
    __m128i words = _mm_packs_epi32(halves[0], halves[1]);
    _mm_storel_epi64((__m128i *)(void *)bytes, _mm_packus_epi16(words, words));
#else
    lanes low = *values & (*values > 0);
    low = (low & (low < 256)) | ((low > 255) & 255);
    byte_lanes narrow = __builtin_convertvector(low, byte_lanes);
    memcpy(bytes, &narrow, 8);
#endif
}

/* Rows become columns. */
INLINE void transpose(lanes m[8])
{
    lanes t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = SHUFFLE(m[i], m[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = SHUFFLE(m[i], m[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            m[i + 2 * j] = SHUFFLE(t[i + j], t[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            m[i + 2 * j + 1] = SHUFFLE(t[i + j], t[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        t[i] = SHUFFLE(m[i], m[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        t[i + 4] = SHUFFLE(m[i], m[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    memcpy(m, t, sizeof t);
}

/* The sums of eight vectors, one in each lane. Spoils its argument. */
INLINE void sums(lanes *out, lanes v[8])
{
    for (int i = 0; i < 4; i++)
        v[i] = SHUFFLE(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
               SHUFFLE(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    for (int i = 0; i < 2; i++)
        v[i] = SHUFFLE(v[2 * i], v[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               SHUFFLE(v[2 * i], v[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    *out = SHUFFLE(v[0], v[1], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(v[0], v[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

#endif
