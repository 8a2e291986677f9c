/* Antialiased bilinear resizing with Pillow's arithmetic: the same bytes as `image.crop(...).resize(..., BILINEAR)`. */
#ifndef TOPOUT_RESAMPLE_H
#define TOPOUT_RESAMPLE_H
#include <stdint.h>

/* Weights of one direction: output i is the weighted mean of `count[i]` inputs from `first[i]` on. */
typedef struct {
    int num, stride; /* stride: room for the weights of one output, a multiple of 8, zero-filled */
    int *first, *count;
    int32_t *weights; /* 22 bits of fraction */
    int capacity;     /* in weights */
    int room;         /* in outputs */
} resample_axis;

/* Outputs [begin, begin + num) of a resize of `in_size` samples to `out_size`; 0 when memory is short. */
int resample_prepare(resample_axis *axis, int in_size, int out_size, int begin, int num);
void resample_free(resample_axis *axis);

/* Inputs that the axis looks at: [*from, *to). */
void resample_span(const resample_axis *axis, int *from, int *to);

/* One row across. `in` begins at input `offset` and may be read 8 bytes beyond its end; `out` has room for 8 more. */
void resample_across(const resample_axis *axis, const uint8_t *in, int offset, uint8_t *out);

/* One output row from `rows`, whose first one is input `offset`; `width` samples, `stride` apart. */
void resample_down(
    const resample_axis *axis, int output, const uint8_t *rows, int offset, int width, int stride, uint8_t *out);

#endif
