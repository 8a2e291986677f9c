/* What the machine can do at most: libjpeg-turbo's decode of whole JPEGs in threads, and a gather of rows, both bare.
 *
 * Built by limits.py with the system's compiler and headers; nothing of topout is in it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h> /* needs stdio.h before it */

enum { ROWS_A_CALL = 16, MOST_THREADS = 64 };

struct failure {
    struct jpeg_error_mgr manager;
    jmp_buf back;
};

struct batch {
    const uint8_t *data;
    const int64_t *offsets, *numbers;
    int num_images, is_entropy_only;
    atomic_int next, num_failed;
};

static void fail(j_common_ptr info) {
    longjmp(((struct failure *)info->err)->back, 1);
}

static void say_nothing(j_common_ptr info) {
    (void)info;
}

static void decode(struct jpeg_decompress_struct *info, struct batch *batch, int64_t number, uint8_t *pixels) {
    const uint8_t *start = batch->data + batch->offsets[number];
    jpeg_mem_src(info, start, (unsigned long)(batch->offsets[number + 1] - batch->offsets[number]));
    jpeg_read_header(info, TRUE);
    if (batch->is_entropy_only) {
        jpeg_read_coefficients(info);
        jpeg_abort_decompress(info);
        return;
    }
    info->out_color_space = JCS_RGB;
    jpeg_start_decompress(info);
    size_t stride = (size_t)info->output_width * 3;
    while (info->output_scanline < info->output_height) {
        JSAMPROW rows[ROWS_A_CALL];
        for (int i = 0; i < ROWS_A_CALL; i++) rows[i] = pixels + stride * (info->output_scanline + i);
        jpeg_read_scanlines(info, rows, ROWS_A_CALL);
    }
    jpeg_finish_decompress(info);
}

static void *work(void *argument) {
    struct batch *batch = argument;
    struct jpeg_decompress_struct info;
    struct failure failure;
    uint8_t *pixels = malloc(64 << 20);
    info.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
    failure.manager.output_message = say_nothing;
    jpeg_create_decompress(&info);
    for (int i; (i = atomic_fetch_add(&batch->next, 1)) < batch->num_images;) {
        if (setjmp(failure.back)) {
            jpeg_abort_decompress(&info);
            atomic_fetch_add(&batch->num_failed, 1);
            continue;
        }
        decode(&info, batch, batch->numbers[i], pixels);
    }
    jpeg_destroy_decompress(&info);
    free(pixels);
    return NULL;
}

/* Decodes images `numbers` of the concatenated JPEGs; returns how many failed. */
int decode_batch(const uint8_t *data, const int64_t *offsets, const int64_t *numbers, int num_images, int num_threads,
                 int is_entropy_only) {
    struct batch batch = {data, offsets, numbers, num_images, is_entropy_only, 0, 0};
    pthread_t threads[MOST_THREADS];
    for (int i = 1; i < num_threads; i++) pthread_create(&threads[i], NULL, work, &batch);
    work(&batch);
    for (int i = 1; i < num_threads; i++) pthread_join(threads[i], NULL);
    return batch.num_failed;
}

/* Copies rows `numbers` of a table of `row_bytes` wide rows. */
void gather_rows(const uint8_t *table, int64_t row_bytes, const int64_t *numbers, int num_rows, uint8_t *out) {
    for (int i = 0; i < num_rows; i++) {
        if (i + 8 < num_rows) __builtin_prefetch(table + numbers[i + 8] * row_bytes);
        memcpy(out + (int64_t)i * row_bytes, table + numbers[i] * row_bytes, (size_t)row_bytes);
    }
}
