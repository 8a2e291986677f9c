/* A record is verified where it lies, then copied while it is still in the cache. */
#define _GNU_SOURCE
#include "records.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "crc32c.h"

enum { HEADER_BYTES = 4096, CRC_AT = 16, SCALARS_AT = 24, AHEAD = 8, MOST_THREADS = 16 };
#define BYTES_WORTH_A_THREAD (1u << 20)

typedef struct {
    uint32_t shard, length;
    uint64_t offset;
    uint32_t crc;
} place;

/* 0 where the row points at nothing. */
static int find_place(const pack_view *pack, int64_t number, place *found)
{
    if (number < 0 || (uint64_t)number >= pack->num_rows)
        return 0;
    const uint8_t *row = pack->rows + (uint64_t)number * pack->row_bytes;
    memcpy(&found->shard, row, 4);
    memcpy(&found->length, row + 4, 4);
    memcpy(&found->offset, row + 8, 8);
    memcpy(&found->crc, row + CRC_AT, 4);
    return found->shard < pack->num_shards && found->offset >= HEADER_BYTES &&
           found->offset <= pack->data_ends[found->shard] &&
           found->length <= pack->data_ends[found->shard] - found->offset;
}

/* `crc` is the record's. */
static int is_whole(const pack_view *pack, int64_t number, const place *found, uint32_t crc)
{
    const uint8_t *row = pack->rows + (uint64_t)number * pack->row_bytes;
    crc = topout_crc32c_words(crc, row, CRC_AT / 8);
    crc = topout_crc32c_words(crc, row + SCALARS_AT, (pack->row_bytes - SCALARS_AT) / 8);
    return topout_crc32c_words(crc, (const uint8_t *)&number, 1) == found->crc;
}

static int read_fully(int descriptor, uint8_t *out, uint32_t length, uint64_t offset)
{
    while (length) {
        ssize_t num = pread(descriptor, out, length, (off_t)offset);
        if (num < 0 && errno == EINTR)
            continue;
        if (num <= 0)
            return 0;
        out += num;
        offset += (uint64_t)num;
        length -= (uint32_t)num;
    }
    return 1;
}

const uint8_t *record_find(const pack_view *pack, int64_t number, scratch *memory, uint32_t *length)
{
    place found;
    if (!find_place(pack, number, &found))
        return NULL;
    const uint8_t *record;
    if (pack->maps[found.shard]) {
        record = pack->maps[found.shard] + found.offset;
    } else {
        uint8_t *room = scratch_reserve(memory, (size_t)found.length + 8);
        if (!room || !read_fully(pack->descriptors[found.shard], room, found.length, found.offset))
            return NULL;
        record = room;
    }
    *length = found.length;
    return is_whole(pack, number, &found, topout_crc32c(0, record, found.length)) ? record : NULL;
}

/* Rows twice as far ahead as records, since a record is found through its row. Inline, since GCC takes a function that
 * does nothing else for one without effect and drops it. */
static inline __attribute__((always_inline)) void prefetch(const pack_view *pack, const int64_t *numbers, int64_t num, int64_t i)
{
    if (i + 2 * AHEAD < num && numbers[i + 2 * AHEAD] >= 0)
        __builtin_prefetch(pack->rows + (uint64_t)numbers[i + 2 * AHEAD] * pack->row_bytes);
    place found;
    if (i + AHEAD < num && find_place(pack, numbers[i + AHEAD], &found) && pack->maps[found.shard]) {
        const uint8_t *record = pack->maps[found.shard] + found.offset;
        for (uint32_t at = 0; at < found.length && at < 1024; at += 64)
            __builtin_prefetch(record + at);
    }
}

/* The fields of one sample to row `i` of their arrays. */
static int gather_one(
    const pack_view *pack, int64_t number, int64_t i, const field_copy *fields, int32_t num_fields, scratch *memory)
{
    uint32_t length = 0;
    const uint8_t *record = record_find(pack, number, memory, &length);
    if (!record)
        return SAMPLE_DAMAGED;
    for (int32_t f = 0; f < num_fields; f++) {
        const field_copy *field = &fields[f];
        const uint8_t *from = field->is_in_row ? pack->rows + (uint64_t)number * pack->row_bytes : record;
        if (!field->is_in_row && (uint64_t)field->offset + field->num_bytes > length)
            return SAMPLE_DAMAGED;
        memcpy(field->out + (uint64_t)i * field->num_bytes, from + field->offset, field->num_bytes);
    }
    return SAMPLE_FINE;
}

/* The same where the first field is the whole record and all others are in the row: verified while it is copied. */
static int gather_whole(const pack_view *pack, int64_t number, int64_t i, const field_copy *fields, int32_t num_fields)
{
    place found;
    if (!find_place(pack, number, &found) || found.length != fields[0].num_bytes)
        return SAMPLE_DAMAGED;
    uint8_t *out = fields[0].out + (uint64_t)i * fields[0].num_bytes;
    uint32_t crc = topout_crc32c_copy(0, pack->maps[found.shard] + found.offset, found.length, out);
    if (!is_whole(pack, number, &found, crc))
        return SAMPLE_DAMAGED;
    const uint8_t *row = pack->rows + (uint64_t)number * pack->row_bytes;
    for (int32_t f = 1; f < num_fields; f++)
        memcpy(fields[f].out + (uint64_t)i * fields[f].num_bytes, row + fields[f].offset, fields[f].num_bytes);
    return SAMPLE_FINE;
}

static int can_take_whole(const pack_view *pack, const field_copy *fields, int32_t num_fields)
{
    int is_whole_record = num_fields > 0 && !fields[0].is_in_row && !pack->num_variable && fields[0].offset == 0 &&
                          fields[0].num_bytes == pack->fixed_bytes;
    for (int32_t f = 1; f < num_fields; f++)
        is_whole_record &= fields[f].is_in_row;
    for (uint64_t shard = 0; shard < pack->num_shards; shard++)
        is_whole_record &= pack->maps[shard] != NULL;
    return is_whole_record;
}

int64_t records_gather(
    const pack_view *pack, const int64_t *numbers, int64_t num, const field_copy *fields, int32_t num_fields)
{
    int64_t num_damaged = 0;
    scratch memory = {0};
    int takes_whole = can_take_whole(pack, fields, num_fields);
    for (int64_t i = 0; i < num; i++) {
        prefetch(pack, numbers, num, i);
        int became = takes_whole ? gather_whole(pack, numbers[i], i, fields, num_fields)
                                 : gather_one(pack, numbers[i], i, fields, num_fields, &memory);
        num_damaged += became != SAMPLE_FINE;
    }
    free(memory.bytes);
    return num_damaged;
}

typedef struct {
    const pack_view *pack;
    const int64_t *numbers;
    const uint64_t *offsets;
    int64_t num, next;
    uint8_t *out, *status;
} reading;

static uint8_t read_one(const pack_view *pack, int64_t number, uint8_t *out)
{
    place found;
    if (!find_place(pack, number, &found))
        return SAMPLE_DAMAGED;
    const uint8_t *map = pack->maps[found.shard];
    uint32_t crc;
    if (map) {
        crc = topout_crc32c_copy(0, map + found.offset, found.length, out);
    } else {
        if (!read_fully(pack->descriptors[found.shard], out, found.length, found.offset))
            return SAMPLE_DAMAGED;
        crc = topout_crc32c(0, out, found.length);
    }
    return is_whole(pack, number, &found, crc) ? SAMPLE_FINE : SAMPLE_DAMAGED;
}

static void *read_some(void *argument)
{
    reading *work = argument;
    for (;;) {
        int64_t i = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
        if (i >= work->num)
            return NULL;
        if (work->status[i] == SAMPLE_FINE)
            work->status[i] = read_one(work->pack, work->numbers[i], work->out + work->offsets[i]);
    }
}

int64_t records_read(
    const pack_view *pack, const int64_t *numbers, int64_t num, uint8_t *out, uint64_t room, uint64_t *offsets,
    uint8_t *status, int32_t num_threads)
{
    uint64_t at = 0;
    for (int64_t i = 0; i < num; i++) {
        place found;
        offsets[i] = at;
        int is_there = find_place(pack, numbers[i], &found);
        status[i] = !is_there ? SAMPLE_DAMAGED : found.length > room - at ? SAMPLE_TOO_LARGE : SAMPLE_FINE;
        at += status[i] == SAMPLE_FINE ? found.length : 0;
    }
    offsets[num] = at;
    reading work = {pack, numbers, offsets, num, 0, out, status};
    pthread_t threads[MOST_THREADS];
    int num_started = 0;
    /* starting a thread takes as long as reading some 200 KB */
    int num_worth = (int)(at / BYTES_WORTH_A_THREAD), num_asked = num_threads < num_worth ? num_threads : num_worth;
    while (num_started < num_asked - 1 && num_started < MOST_THREADS &&
           !pthread_create(&threads[num_started], NULL, read_some, &work))
        num_started++;
    read_some(&work);
    for (int i = 0; i < num_started; i++)
        pthread_join(threads[i], NULL);
    int64_t num_bad = 0;
    for (int64_t i = 0; i < num; i++)
        num_bad += status[i] != SAMPLE_FINE;
    return num_bad;
}
