/* A decoder for the JPEG files that training sets are made of, which decodes only the window that is asked for.
 *
 * Baseline and extended sequential Huffman files of 8 bits, grey or three components, one scan. Its samples are those of
 * libjpeg's accurate path (integer "islow" transform, triangle upsampling, 16-bit fixed-point colour), so that what is
 * trained on does not depend on which decoder ran. Everything else (progressive, CMYK, arithmetic, 12 bits, odd
 * sampling) is refused with JPEG_UNSUPPORTED; the caller has a general decoder for it.
 */
#ifndef TOPOUT_JPEG_H
#define TOPOUT_JPEG_H
#include <stddef.h>
#include <stdint.h>

typedef enum { JPEG_FINE = 0, JPEG_UNSUPPORTED = 2, JPEG_DAMAGED = 3, JPEG_NO_MEMORY = 4 } jpeg_result;

/* A run that no code can have stands for the end of a block. */
enum { LOOKUP_BITS = 10, SKIP_BITS = 12, END_OF_BLOCK = 128 };

/* One Huffman table, ready for decoding. */
typedef struct {
    uint8_t counts[17];
    uint8_t symbols[256];
    int num_symbols;
    int has_skip;
    /* By the next LOOKUP_BITS bits: 0 for a longer code; else symbol << 8 | length of the code. */
    uint16_t code[1 << LOOKUP_BITS];
    /* AC only: value << 16 | run << 8 | bits of code and value together; 0 where they do not fit. */
    int32_t coefficient[1 << LOOKUP_BITS];
    /* AC only: several symbols at once, for blocks nobody looks at. End of block << 24 | coefficients << 8 | bits. */
    uint32_t skip[1 << SKIP_BITS];
    /* For codes longer than LOOKUP_BITS: the first code of each length, left-aligned to 16 bits, and its symbol. */
    int32_t last_code[18];
    int32_t symbol_offset[17];
} huffman_table;

typedef struct {
    int horizontal, vertical; /* sampling factors */
    int quant_table, dc_table, ac_table;
    int width, height; /* in samples */
} jpeg_component;

typedef enum { JPEG_GREY, JPEG_YCBCR, JPEG_RGB } jpeg_colours;

/* What stands before the entropy-coded data. Tables live here, so one of these is kept by each thread and reused. */
typedef struct {
    int width, height, num_components;
    int max_horizontal, max_vertical;
    jpeg_colours colours;
    jpeg_component component[3];
    uint16_t quant[4][64]; /* in zigzag order */
    uint8_t has_quant[4], has_dc[4], has_ac[4];
    huffman_table dc[4], ac[4];
    int restart_interval;
    const uint8_t *scan, *end;
} jpeg_header;

/* A rectangle of the image, in pixels. */
typedef struct {
    int left, top, width, height;
} jpeg_window;

/* Memory that grows and is kept by a thread from image to image. */
typedef struct {
    uint8_t *bytes;
    size_t capacity;
} scratch;

uint8_t *scratch_reserve(scratch *memory, size_t num_bytes);

/* Samples of one component around a window. `left` and `top` say where the plane begins in the component. */
typedef struct {
    uint8_t *samples;
    size_t stride;
    int left, top, width, height;
} jpeg_plane;

jpeg_result jpeg_read_header(jpeg_header *header, const uint8_t *data, size_t length);

/* Decodes the samples of all components that the window needs into planes of `memory`. */
jpeg_result jpeg_decode_window(
    const jpeg_header *header, jpeg_window window, scratch *stream, scratch *memory, jpeg_plane planes[3]);

/* One row of the window as three rows of red, green and blue. `row` counts from the image's top; `work` holds two rows. */
void jpeg_row_to_rgb(
    const jpeg_header *header, const jpeg_plane planes[3], jpeg_window window, int row, uint8_t *work, uint8_t *rgb[3]);

/* Building of tables; `is_ac` fills what coefficients need. */
jpeg_result huffman_build(huffman_table *table, const uint8_t *counts, const uint8_t *symbols, int num, int is_ac);
void huffman_build_skip(huffman_table *table);

/* Inverse transform of a block of dequantised coefficients in natural order, to eight rows of samples. */
void jpeg_inverse_dct(const int16_t coefficients[64], uint8_t *samples, size_t stride);

#endif
