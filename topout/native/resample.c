/* Across first, rounded to bytes, then down: as Pillow does, so that native and plain pipelines train alike. */
#include "resample.h"

#include <math.h>
#include <stdlib.h>

#include "vectors.h"

enum { FRACTION_BITS = 22 };

static int reserve(resample_axis *axis, int num, int stride)
{
    if (num > axis->room) {
        free(axis->first);
        free(axis->count);
        axis->first = malloc(sizeof(int) * (size_t)num);
        axis->count = malloc(sizeof(int) * (size_t)num);
        axis->room = axis->first && axis->count ? num : 0;
    }
    if (num * stride > axis->capacity) {
        free(axis->weights);
        axis->weights = malloc(sizeof(int32_t) * (size_t)(num * stride));
        axis->capacity = axis->weights ? num * stride : 0;
    }
    return axis->room >= num && axis->capacity >= num * stride;
}

void resample_free(resample_axis *axis)
{
    free(axis->first);
    free(axis->count);
    free(axis->weights);
}

int resample_prepare(resample_axis *axis, int in_size, int out_size, int begin, int num)
{
    double scale = (double)in_size / out_size, filter_scale = scale < 1 ? 1 : scale;
    double support = filter_scale, inverse = 1.0 / filter_scale;
    int most = (int)ceil(support) * 2 + 1;
    int stride = (most + 7) / 8 * 8;
    if ((long)num * stride > 1 << 28 || !reserve(axis, num, stride))
        return 0;
    double *weights = malloc(sizeof(double) * (size_t)most);
    if (!weights)
        return 0;
    axis->num = num;
    axis->stride = stride;
    memset(axis->weights, 0, sizeof(int32_t) * (size_t)(num * stride));
    for (int i = 0; i < num; i++) {
        double centre = (begin + i + 0.5) * scale, total = 0;
        int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > in_size ? in_size : end;
        for (int j = first; j < end; j++) {
            double distance = fabs((j - centre + 0.5) * inverse);
            weights[j - first] = distance < 1 ? 1 - distance : 0;
            total += weights[j - first];
        }
        for (int j = 0; j < end - first; j++) {
            double weight = total != 0 ? weights[j] / total : weights[j];
            axis->weights[i * stride + j] = (int32_t)(0.5 + weight * (1 << FRACTION_BITS));
        }
        axis->first[i] = first;
        axis->count[i] = end - first;
    }
    free(weights);
    return 1;
}

void resample_span(const resample_axis *axis, int *from, int *to)
{
    *from = axis->first[0];
    *to = axis->first[axis->num - 1] + axis->count[axis->num - 1];
}

/* One output of any number of weights, as eight partial sums. */
INLINE void partial_sums(lanes *total, const uint8_t *in, const int32_t *weights, int num_weights)
{
    *total = (lanes){0};
    for (int j = 0; j < num_weights; j += 8) {
        lanes samples, factors;
        load_bytes(&samples, in + j);
        memcpy(&factors, weights + j, sizeof factors);
        *total += samples * factors;
    }
}

/* `num_weights` is known to the compiler where all outputs have eight; 0 asks each output. */
INLINE void across(const resample_axis *axis, const uint8_t *in, uint8_t *out, int num_weights)
{
    int i = 0;
    for (; i + 8 <= axis->num; i += 8) {
        lanes partial[8], total;
        for (int k = 0; k < 8; k++)
            partial_sums(
                &partial[k], in + axis->first[i + k], axis->weights + (i + k) * axis->stride,
                num_weights ? num_weights : axis->count[i + k]);
        sums(&total, partial);
        total = (total + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS;
        store_bytes(out + i, &total);
    }
    for (; i < axis->num; i++) {
        int32_t total = 1 << (FRACTION_BITS - 1);
        for (int j = 0; j < axis->count[i]; j++)
            total += in[axis->first[i] + j] * axis->weights[i * axis->stride + j];
        total >>= FRACTION_BITS;
        out[i] = (uint8_t)(total > 255 ? 255 : total < 0 ? 0 : total);
    }
}

void resample_across(const resample_axis *axis, const uint8_t *in, int offset, uint8_t *out)
{
    in -= offset;
    if (axis->stride == 8)
        across(axis, in, out, 8);
    else
        across(axis, in, out, 0);
}

void resample_down(
    const resample_axis *axis, int output, const uint8_t *rows, int offset, int width, int stride, uint8_t *out)
{
    const int32_t *weights = axis->weights + output * axis->stride;
    int num = axis->count[output];
    const uint8_t *top = rows + (long)(axis->first[output] - offset) * stride;
    for (int i = 0; i < width; i += 32) {
        lanes total[4];
        for (int k = 0; k < 4; k++)
            total[k] = (lanes){0} + (1 << (FRACTION_BITS - 1));
        for (int j = 0; j < num; j++)
            for (int k = 0; k < 4; k++) {
                lanes samples;
                load_bytes(&samples, top + (long)j * stride + i + 8 * k);
                total[k] += samples * weights[j];
            }
        for (int k = 0; k < 4; k++) {
            total[k] >>= FRACTION_BITS;
            store_bytes(out + i + 8 * k, &total[k]);
        }
    }
}
