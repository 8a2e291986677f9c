/* One JPEG → one sample of a batch: choose the window, decode it, resize, flip, normalise. */
#ifndef TOPOUT_IMAGE_H
#define TOPOUT_IMAGE_H
#include <stddef.h>
#include <stdint.h>

#include "jpeg.h"
#include "resample.h"

/* Kinds of transform. */
enum { RANDOM_RESIZED_CROP = 0, RESIZE_AND_CENTRE_CROP = 1, RESIZE_TO = 2 };
/* Types of output; PIXELS_16 looks up any 16-bit type. */
enum { PIXELS_U8 = 0, PIXELS_F32 = 1, PIXELS_16 = 2 };

/* The same for all samples of a loader. Mirrored by ctypes in native/bindings.py. */
typedef struct {
    int32_t kind, out_width, out_height, short_side;
    double area_low, area_high, ratio_low, ratio_high, log_ratio_low, log_ratio_high, flip_probability;
    int32_t pixels, channels_last;
    const void *values[3]; /* by channel: what each of the 256 grey levels becomes; not for PIXELS_U8 */
    int64_t most_pixels;   /* larger images are refused */
} image_transform;

/* What was chosen for a sample: the window in the image, then whether it was mirrored. */
typedef struct {
    int32_t left, top, width, height, is_flipped;
} image_choice;

/* Memory of one thread. */
typedef struct {
    jpeg_header header;
    scratch stream, planes, rows, narrow, work;
    resample_axis horizontal, vertical;
} image_worker;

image_worker *image_worker_new(void);
void image_worker_free(image_worker *worker);

jpeg_result image_to_sample(
    image_worker *worker, const image_transform *transform, const uint8_t *jpeg, size_t length, uint64_t key, void *out,
    image_choice *choice);

#endif
