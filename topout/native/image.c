/* Random numbers are a function of the sample's key alone, so that neither threads nor ranks change what is drawn. */
#include "image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

image_worker *image_worker_new(void) { return calloc(1, sizeof(image_worker)); }

void image_worker_free(image_worker *worker)
{
    if (!worker)
        return;
    scratch *all[] = {&worker->stream, &worker->planes, &worker->rows, &worker->narrow, &worker->work};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->bytes);
    resample_free(&worker->horizontal);
    resample_free(&worker->vertical);
    free(worker);
}

/* Numbers of the draws, as in epoch/randomness.py. */
enum { CROP_TRY = 0, CROP_TOP = 20, CROP_LEFT = 21, FLIP = 22 };

/* Draw `number` of a key, in [0, 1): splitmix64 as a counter. */
static double uniform(uint64_t key, int number)
{
    uint64_t z = key + (uint64_t)(number + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* torchvision's RandomResizedCrop: ten tries of area and aspect ratio, then the largest centred window that fits. */
static jpeg_window random_window(const image_transform *transform, int width, int height, uint64_t key)
{
    double area = (double)width * height, log_range = transform->log_ratio_high - transform->log_ratio_low;
    for (int attempt = 0; attempt < 10; attempt++) {
        int draw = CROP_TRY + 2 * attempt;
        double share = transform->area_low + uniform(key, draw) * (transform->area_high - transform->area_low);
        double ratio = exp(transform->log_ratio_low + uniform(key, draw + 1) * log_range);
        double w = rint(sqrt(area * share * ratio)), h = rint(sqrt(area * share / ratio));
        if (w > 0 && w <= width && h > 0 && h <= height) {
            int top = (int)(uniform(key, CROP_TOP) * (height - h + 1));
            int left = (int)(uniform(key, CROP_LEFT) * (width - w + 1));
            return (jpeg_window){left, top, (int)w, (int)h};
        }
    }
    int w = width, h = height;
    if ((double)width / height < transform->ratio_low)
        h = (int)rint(w / transform->ratio_low);
    else if ((double)width / height > transform->ratio_high)
        w = (int)rint(h * transform->ratio_high);
    /* a line of pixels is narrower than any ratio asks for */
    w = w < 1 ? 1 : w;
    h = h < 1 ? 1 : h;
    return (jpeg_window){(width - w) / 2, (height - h) / 2, w, h};
}

/* The part of the resized image that is wanted, and the size it is resized to. */
typedef struct {
    jpeg_window source;
    int target_width, target_height, left, top;
} plan;

static int make_plan(const image_transform *transform, int width, int height, uint64_t key, plan *made)
{
    *made = (plan){{0, 0, width, height}, transform->out_width, transform->out_height, 0, 0};
    if (transform->kind == RANDOM_RESIZED_CROP) {
        made->source = random_window(transform, width, height, key);
    } else if (transform->kind == RESIZE_AND_CENTRE_CROP) {
        int is_wide = width > height, shorter = is_wide ? height : width, longer = is_wide ? width : height;
        long scaled = (long)((double)transform->short_side * longer / shorter);
        if (scaled > 1 << 20)
            return 0;
        made->target_width = is_wide ? (int)scaled : transform->short_side;
        made->target_height = is_wide ? transform->short_side : (int)scaled;
        if (made->target_width < transform->out_width || made->target_height < transform->out_height)
            return 0;
        made->left = (int)rint((made->target_width - transform->out_width) / 2.0);
        made->top = (int)rint((made->target_height - transform->out_height) / 2.0);
    }
    return made->source.width > 0 && made->source.height > 0;
}

static void write_u8(const image_transform *transform, const uint8_t *rgb[3], int row, int is_flipped, uint8_t *out)
{
    int width = transform->out_width, plane = width * transform->out_height;
    if (transform->channels_last) {
        uint8_t *line = out + (size_t)row * width * 3;
        if (is_flipped)
            for (int i = 0; i < width; i++)
                for (int c = 0; c < 3; c++)
                    line[3 * i + c] = rgb[c][width - 1 - i];
        else
            for (int i = 0; i < width; i++) {
                line[3 * i] = rgb[0][i];
                line[3 * i + 1] = rgb[1][i];
                line[3 * i + 2] = rgb[2][i];
            }
        return;
    }
    for (int c = 0; c < 3; c++) {
        uint8_t *line = out + (size_t)c * plane + (size_t)row * width;
        if (is_flipped)
            for (int i = 0; i < width; i++)
                line[i] = rgb[c][width - 1 - i];
        else
            memcpy(line, rgb[c], (size_t)width);
    }
}

/* `step` between the pixels of a channel, backwards when mirrored. */
#define WRITE_VALUES(type)                                                                                             \
    static void write_##type(                                                                                          \
        const image_transform *transform, const uint8_t *rgb[3], int row, int is_flipped, type *out)                   \
    {                                                                                                                  \
        int width = transform->out_width, plane = width * transform->out_height;                                       \
        int step = transform->channels_last ? 3 : 1;                                                                   \
        for (int c = 0; c < 3; c++) {                                                                                  \
            const type *value = transform->values[c];                                                                  \
            type *line = transform->channels_last ? out + (size_t)row * width * 3 + c                                  \
                                                  : out + (size_t)c * plane + (size_t)row * width;                     \
            const uint8_t *from = rgb[c];                                                                              \
            if (is_flipped)                                                                                            \
                for (int i = 0; i < width; i++)                                                                        \
                    line[i * step] = value[from[width - 1 - i]];                                                       \
            else                                                                                                       \
                for (int i = 0; i < width; i++)                                                                        \
                    line[i * step] = value[from[i]];                                                                   \
        }                                                                                                              \
    }
WRITE_VALUES(float)
WRITE_VALUES(uint16_t)

static void write_row(const image_transform *transform, const uint8_t *rgb[3], int row, int is_flipped, void *out)
{
    if (transform->pixels == PIXELS_U8)
        write_u8(transform, rgb, row, is_flipped, out);
    else if (transform->pixels == PIXELS_F32)
        write_float(transform, rgb, row, is_flipped, out);
    else
        write_uint16_t(transform, rgb, row, is_flipped, out);
}

static jpeg_result resize(
    image_worker *worker, const image_transform *transform, const plan *made, jpeg_window window,
    const jpeg_plane planes[3], int is_flipped, void *out)
{
    int out_width = transform->out_width, stride = (3 * out_width + 31) / 32 * 32 + 32;
    size_t row_room = (size_t)window.width + 64;
    uint8_t *rows = scratch_reserve(&worker->rows, 3 * row_room + 64 + (size_t)stride);
    uint8_t *narrow = scratch_reserve(&worker->narrow, (size_t)stride * ((size_t)window.height + 1));
    uint8_t *work = scratch_reserve(&worker->work, 2 * (4 * (size_t)window.width + 256));
    if (!rows || !narrow || !work)
        return JPEG_NO_MEMORY;
    uint8_t *rgb[3] = {rows, rows + row_room, rows + 2 * row_room};
    int offset = window.left - made->source.left;
    for (int i = 0; i < window.height; i++) {
        jpeg_row_to_rgb(&worker->header, planes, window, window.top + i, work, rgb);
        uint8_t *line = narrow + (size_t)i * stride;
        int num_colours = worker->header.num_components;
        for (int c = 0; c < num_colours; c++)
            resample_across(&worker->horizontal, rgb[c], offset, line + c * out_width);
        for (int c = num_colours; c < 3; c++)
            memcpy(line + c * out_width, line, (size_t)out_width);
    }
    uint8_t *line = rows + 3 * row_room + 32;
    const uint8_t *channels[3] = {line, line + out_width, line + 2 * out_width};
    for (int j = 0; j < transform->out_height; j++) {
        resample_down(&worker->vertical, j, narrow, window.top - made->source.top, 3 * out_width, stride, line);
        write_row(transform, channels, j, is_flipped, out);
    }
    return JPEG_FINE;
}

jpeg_result image_to_sample(
    image_worker *worker, const image_transform *transform, const uint8_t *jpeg, size_t length, uint64_t key, void *out,
    image_choice *choice)
{
    jpeg_header *header = &worker->header;
    jpeg_result result = jpeg_read_header(header, jpeg, length);
    if (result)
        return result;
    if ((int64_t)header->width * header->height > transform->most_pixels)
        return JPEG_UNSUPPORTED;
    plan made;
    if (!make_plan(transform, header->width, header->height, key, &made))
        return JPEG_UNSUPPORTED;
    int is_flipped = transform->flip_probability > 0 && uniform(key, FLIP) < transform->flip_probability;
    if (!resample_prepare(
            &worker->horizontal, made.source.width, made.target_width, made.left, transform->out_width) ||
        !resample_prepare(&worker->vertical, made.source.height, made.target_height, made.top, transform->out_height))
        return JPEG_NO_MEMORY;
    int left, right, top, bottom;
    resample_span(&worker->horizontal, &left, &right);
    resample_span(&worker->vertical, &top, &bottom);
    jpeg_window window = {made.source.left + left, made.source.top + top, right - left, bottom - top};
    for (int c = 0; c < header->num_components; c++)
        huffman_build_skip(&header->ac[header->component[c].ac_table]);
    jpeg_plane planes[3];
    result = jpeg_decode_window(header, window, &worker->stream, &worker->planes, planes);
    if (result)
        return result;
    if (choice)
        *choice = (image_choice){made.source.left, made.source.top, made.source.width, made.source.height, is_flipped};
    return resize(worker, transform, &made, window, planes, is_flipped, out);
}
