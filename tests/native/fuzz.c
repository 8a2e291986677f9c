/* Feeds damaged JPEG files and index rows to the native library, built with the sanitizers: any report ends the process.
 *
 *     fuzz SECONDS SEED FILE...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "image.h"
#include "records.h"

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static size_t below(size_t limit) { return limit ? (size_t)(next_random() % limit) : 0; }

/* Flips, overwrites, cuts, repeats; most often near the beginning, where the headers are. Returns the new length. */
static size_t damage(uint8_t *data, size_t length)
{
    for (size_t times = 1 + below(8); times && length; times--) {
        size_t at = below(next_random() % 3 ? (length < 700 ? length : 700) : length);
        switch (below(6)) {
        case 0: data[at] ^= (uint8_t)(1u << below(8)); break;
        case 1: data[at] = (uint8_t)next_random(); break;
        case 2: data[at] = 0xFF; break;
        case 3: length = at; break;
        case 4: {
            /* a piece is left out */
            size_t from = at + below(length - at);
            memmove(data + at, data + from, length - from);
            length -= from - at;
            break;
        }
        default: memset(data + at, (int)below(256), below(length - at < 16 ? length - at : 16)); break;
        }
    }
    return length;
}

static void decode(image_worker *worker, const uint8_t *data, size_t length, uint8_t *out, size_t counts[8])
{
    image_transform transform = {
        .kind = (int32_t)below(3), .out_width = 1 + (int32_t)below(64), .out_height = 1 + (int32_t)below(64),
        .short_side = 64 + (int32_t)below(32), .area_low = 0.08, .area_high = 1, .ratio_low = 0.75, .ratio_high = 1.33,
        .log_ratio_low = -0.29, .log_ratio_high = 0.29, .flip_probability = 0.5, .channels_last = (int32_t)below(2),
        .most_pixels = 1 << 20,
    };
    image_choice choice;
    counts[image_to_sample(worker, &transform, data, length, next_random(), out, &choice)]++;
}

/* Random rows over a small shard, half of them near the truth: nothing outside of it may be touched. */
static void gather(size_t counts[8])
{
    enum { SHARD = 4096 + 512, ROWS = 4, ROW = 32, WIDTH = 300, SAMPLES = 8 };
    uint8_t *shard = malloc(SHARD), *rows = malloc(ROWS * ROW), *out = malloc(SAMPLES * WIDTH);
    for (int i = 0; i < SHARD; i++)
        shard[i] = (uint8_t)next_random();
    for (int i = 0; i < ROWS * ROW; i++)
        rows[i] = (uint8_t)(next_random() % 3 ? 0 : next_random());
    for (int i = 0; i < ROWS && below(2); i++) {
        uint32_t place[2] = {0, WIDTH};
        uint64_t offset = 4090 + below(WIDTH);
        memcpy(rows + i * ROW, place, 8);
        memcpy(rows + i * ROW + 8, &offset, 8);
    }
    const uint8_t *maps[1] = {shard};
    int32_t descriptors[1] = {-1};
    uint64_t ends[1] = {SHARD};
    pack_view pack = {maps, descriptors, ends, rows, 1, ROWS, ROW, (uint32_t)below(2), WIDTH, 0};
    int64_t numbers[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        numbers[i] = (int64_t)below(ROWS + 2) - 1;
    field_copy whole = {0, WIDTH, 0, out}, part = {4, 16, 0, out};
    counts[records_gather(&pack, numbers, SAMPLES, below(2) ? &whole : &part, 1) > 0]++;
    free(shard);
    free(rows);
    free(out);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    time_t end = time(NULL) + atoi(argv[1]);
    state = (uint64_t)atoll(argv[2]) * 0x9E3779B97F4A7C15u + 1;
    size_t counts[8] = {0}, gathered[8] = {0}, rounds = 0;
    uint8_t *out = malloc(64 * 64 * 3);
    image_worker *worker = image_worker_new();
    do {
        const char *path = argv[3 + below((size_t)argc - 3)];
        FILE *file = fopen(path, "rb");
        if (!file || fseek(file, 0, SEEK_END))
            return 2;
        size_t length = (size_t)ftell(file);
        rewind(file);
        uint8_t *original = malloc(length);
        if (fread(original, 1, length, file) != length)
            return 2;
        fclose(file);
        for (int i = 0; i < 200; i++, rounds++) {
            /* of its exact size, so that a read beyond it is seen */
            uint8_t *copy = malloc(length);
            memcpy(copy, original, length);
            size_t cut = i ? damage(copy, length) : length;
            uint8_t *exact = malloc(cut ? cut : 1);
            memcpy(exact, copy, cut);
            decode(worker, exact, cut, out, counts);
            gather(gathered);
            free(exact);
            free(copy);
        }
        free(original);
    } while (time(NULL) < end);
    image_worker_free(worker);
    free(out);
    printf("%zu files: %zu decoded, %zu unsupported, %zu damaged\n", rounds, counts[0], counts[2], counts[3]);
    return counts[0] && counts[3] ? 0 : 1;
}
