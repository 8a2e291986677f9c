/* Samples of three components → rows of red, green and blue, with the rounding of libjpeg.
 *
 * Chroma of half the size is interpolated with weights 3/4 and 1/4 towards the nearer neighbour in each direction; at
 * the image's edge the neighbour is the sample itself.
 */
#include "jpeg.h"
#include "vectors.h"

static int within(int value, int limit) { return value < 0 ? 0 : value >= limit ? limit - 1 : value; }

static const uint8_t *row_of(const jpeg_plane *plane, int row)
{
    return plane->samples + (size_t)(row - plane->top) * plane->stride - plane->left;
}

/* Twice as many samples as in `sums`, which has its neighbours at -1 and num. `scale` is what sums hold of each sample. */
static void widen(const uint16_t *restrict sums, int num, int scale, uint8_t *restrict out)
{
    if (scale == 4)
        for (int i = 0; i < num; i++) {
            out[2 * i] = (uint8_t)((3 * sums[i] + sums[i - 1] + 8) >> 4);
            out[2 * i + 1] = (uint8_t)((3 * sums[i] + sums[i + 1] + 7) >> 4);
        }
    else
        for (int i = 0; i < num; i++) {
            out[2 * i] = (uint8_t)((3 * sums[i] + sums[i - 1] + 1) >> 2);
            out[2 * i + 1] = (uint8_t)((3 * sums[i] + sums[i + 1] + 2) >> 2);
        }
}

/* One row of a component at full size, from the window's first column on; `work` has room for 4 * width + 64 bytes. */
static const uint8_t *full_row(
    const jpeg_header *header, const jpeg_plane *plane, int which, jpeg_window window, int row, uint8_t *work)
{
    const jpeg_component *component = &header->component[which];
    int across = header->max_horizontal / component->horizontal, down = header->max_vertical / component->vertical;
    /* libjpeg repeats samples instead when there are too few to interpolate across */
    int is_smooth = across == 1 || component->width > 2;
    int centre = row / down;
    const uint8_t *near = row_of(plane, centre), *far = near;
    if (down == 2 && is_smooth)
        far = row_of(plane, within(centre + (row & 1 ? 1 : -1), component->height));
    if (across == 1) {
        if (down == 1)
            return near + window.left;
        int bias = row & 1 ? 2 : 1;
        for (int i = 0; i < window.width; i++)
            work[i] = (uint8_t)((3 * near[window.left + i] + far[window.left + i] + bias) >> 2);
        return work;
    }
    int first = window.left / 2, num = (window.left + window.width - 1) / 2 - first + 1;
    if (!is_smooth) {
        for (int i = 0; i < 2 * num; i++)
            work[i] = near[first + i / 2];
        return work + window.left % 2;
    }
    uint16_t *sums = (uint16_t *)(void *)(work + 2 * ((size_t)num + 16)) + 1;
    int begin = within(first - 1, component->width), end = within(first + num, component->width);
    if (down == 2)
        for (int i = begin; i <= end; i++)
            sums[i - first] = (uint16_t)(3 * near[i] + far[i]);
    else
        for (int i = begin; i <= end; i++)
            sums[i - first] = near[i];
    if (begin == first)
        sums[-1] = sums[0];
    if (end == first + num - 1)
        sums[num] = sums[num - 1];
    widen(sums, num, down == 2 ? 4 : 1, work);
    return work + window.left % 2;
}

/* 16 bits of fraction; chroma is centred at 128. */
static void to_rgb(
    const uint8_t *restrict luma, const uint8_t *restrict blue_chroma, const uint8_t *restrict red_chroma, int width,
    uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue)
{
    enum { HALF = 1 << 15, TO_RED = 91881, TO_BLUE = 116130, RED_TO_GREEN = 46802, BLUE_TO_GREEN = 22554 };
    for (int i = 0; i < width; i += 8) {
        lanes y, cb, cr;
        load_bytes(&y, luma + i);
        load_bytes(&cb, blue_chroma + i);
        load_bytes(&cr, red_chroma + i);
        cb -= 128;
        cr -= 128;
        lanes r = y + ((cr * TO_RED + HALF) >> 16);
        lanes g = y + ((HALF - cb * BLUE_TO_GREEN - cr * RED_TO_GREEN) >> 16);
        lanes b = y + ((cb * TO_BLUE + HALF) >> 16);
        store_bytes(red + i, &r);
        store_bytes(green + i, &g);
        store_bytes(blue + i, &b);
    }
}

void jpeg_row_to_rgb(
    const jpeg_header *header, const jpeg_plane planes[3], jpeg_window window, int row, uint8_t *work, uint8_t *rgb[3])
{
    const uint8_t *first = full_row(header, &planes[0], 0, window, row, work);
    if (header->num_components == 1) {
        for (int i = 0; i < 3; i++)
            memcpy(rgb[i], first, (size_t)window.width);
        return;
    }
    size_t room = 4 * (size_t)window.width + 256;
    const uint8_t *second = full_row(header, &planes[1], 1, window, row, work);
    const uint8_t *third = full_row(header, &planes[2], 2, window, row, work + room);
    if (header->colours == JPEG_RGB) {
        memcpy(rgb[0], first, (size_t)window.width);
        memcpy(rgb[1], second, (size_t)window.width);
        memcpy(rgb[2], third, (size_t)window.width);
        return;
    }
    to_rgb(first, second, third, window.width, rgb[0], rgb[1], rgb[2]);
}
