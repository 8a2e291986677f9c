/* Batches of images by a pool of threads that hold no lock of Python's.
 *
 * Several batches may be under way: threads take samples of the oldest one first, and go on with the next while its
 * last samples are being decoded, so that no core waits at the end of a batch.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"
#include "records.h"

typedef struct batch {
    const pack_view *packs;
    const int32_t *which; /* by sample: its pack */
    const image_transform *transform;
    const int64_t *numbers; /* by sample: its number in that pack */
    const uint64_t *keys;
    int64_t num, next, num_done, num_bytes;
    uint8_t *out, *status;
    uint64_t sample_bytes;
    struct batch *later;
} batch;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_finished;
    batch *oldest;
    pthread_t *threads;
    int num_threads, is_closing;
} pool;

/* Which of the variable fields the image is, inside a verified record. */
static const uint8_t *image_bytes(const pack_view *pack, const uint8_t *record, uint32_t length, uint32_t *num_bytes)
{
    uint64_t at = 4ull * pack->num_variable + pack->fixed_bytes;
    if (at > length)
        return NULL;
    for (uint32_t field = 0;; field++) {
        memcpy(num_bytes, record + 4ull * field, 4);
        if (at + *num_bytes > length)
            return NULL;
        if (field == pack->image_field)
            return record + at;
        at += *num_bytes;
    }
}

static uint8_t make_sample(image_worker *worker, scratch *memory, const batch *work, int64_t i, uint32_t *num_bytes)
{
    uint32_t length;
    const pack_view *pack = &work->packs[work->which[i]];
    const uint8_t *record = record_find(pack, work->numbers[i], memory, &length);
    const uint8_t *jpeg = record ? image_bytes(pack, record, length, num_bytes) : NULL;
    if (!jpeg)
        return SAMPLE_DAMAGED;
    return (uint8_t)image_to_sample(
        worker, work->transform, jpeg, *num_bytes, work->keys[i], work->out + (uint64_t)i * work->sample_bytes, NULL);
}

/* The oldest batch that still has samples to give away. */
static batch *find_work(const pool *threads)
{
    batch *work = threads->oldest;
    while (work && work->next >= work->num)
        work = work->later;
    return work;
}

static void *run_thread(void *argument)
{
    pool *threads = argument;
    image_worker *worker = image_worker_new();
    scratch memory = {0};
    pthread_mutex_lock(&threads->lock);
    for (;;) {
        batch *work;
        while (!(work = find_work(threads)) && !threads->is_closing)
            pthread_cond_wait(&threads->has_work, &threads->lock);
        if (!work)
            break;
        int64_t i = work->next++;
        pthread_mutex_unlock(&threads->lock);
        uint32_t num_bytes = 0;
        uint8_t status = JPEG_NO_MEMORY;
        if (worker)
            status = make_sample(worker, &memory, work, i, &num_bytes);
        work->status[i] = status;
        pthread_mutex_lock(&threads->lock);
        work->num_bytes += num_bytes;
        if (++work->num_done == work->num)
            pthread_cond_broadcast(&threads->has_finished);
    }
    pthread_mutex_unlock(&threads->lock);
    image_worker_free(worker);
    free(memory.bytes);
    return NULL;
}

void pool_close(pool *threads)
{
    pthread_mutex_lock(&threads->lock);
    threads->is_closing = 1;
    pthread_cond_broadcast(&threads->has_work);
    pthread_mutex_unlock(&threads->lock);
    for (int i = 0; i < threads->num_threads; i++)
        pthread_join(threads->threads[i], NULL);
    pthread_mutex_destroy(&threads->lock);
    pthread_cond_destroy(&threads->has_work);
    pthread_cond_destroy(&threads->has_finished);
    free(threads->threads);
    free(threads);
}

/* NULL when not even one thread can be had. */
pool *pool_open(int num_threads)
{
    pool *threads = calloc(1, sizeof *threads);
    if (!threads)
        return NULL;
    threads->threads = calloc((size_t)num_threads, sizeof *threads->threads);
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->has_work, NULL);
    pthread_cond_init(&threads->has_finished, NULL);
    while (threads->threads && threads->num_threads < num_threads &&
           !pthread_create(&threads->threads[threads->num_threads], NULL, run_thread, threads))
        threads->num_threads++;
    if (threads->num_threads)
        return threads;
    pool_close(threads);
    return NULL;
}

/* Queues a batch; what it points at must stay until `pool_end`. Batches are made in the order of the calls. */
batch *pool_begin(
    pool *threads, const pack_view *packs, const int32_t *which, const image_transform *transform,
    const int64_t *numbers, const uint64_t *keys, int64_t num, uint8_t *out, uint64_t sample_bytes, uint8_t *status)
{
    batch *work = calloc(1, sizeof *work);
    if (!work)
        return NULL;
    *work = (batch){
        .packs = packs,
        .which = which,
        .transform = transform,
        .numbers = numbers,
        .keys = keys,
        .num = num,
        .out = out,
        .sample_bytes = sample_bytes,
        .status = status,
    };
    pthread_mutex_lock(&threads->lock);
    batch **last = &threads->oldest;
    while (*last)
        last = &(*last)->later;
    *last = work;
    pthread_cond_broadcast(&threads->has_work);
    pthread_mutex_unlock(&threads->lock);
    return work;
}

/* Waits for a batch and forgets it; returns how many bytes of images were read. */
int64_t pool_end(pool *threads, batch *work)
{
    pthread_mutex_lock(&threads->lock);
    while (work->num_done < work->num)
        pthread_cond_wait(&threads->has_finished, &threads->lock);
    batch **link = &threads->oldest;
    while (*link != work)
        link = &(*link)->later;
    *link = work->later;
    pthread_mutex_unlock(&threads->lock);
    int64_t num_bytes = work->num_bytes;
    free(work);
    return num_bytes;
}
