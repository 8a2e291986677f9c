/* Records of a pack, each verified against its row's checksum before anybody sees it. */
#ifndef TOPOUT_RECORDS_H
#define TOPOUT_RECORDS_H
#include <stdint.h>

#include "jpeg.h"

/* What became of a sample. 2 to 4 are the decoder's (jpeg_result). */
enum { SAMPLE_FINE = 0, SAMPLE_DAMAGED = 1, SAMPLE_TOO_LARGE = 5 };

/* An open pack. Mirrored by ctypes in native/bindings.py. */
typedef struct {
    const uint8_t *const *maps;   /* by shard: its bytes, or NULL to read them through the descriptor */
    const int32_t *descriptors;   /* by shard */
    const uint64_t *data_ends;    /* by shard: records end here */
    const uint8_t *rows;          /* the index */
    uint64_t num_shards, num_rows;
    uint32_t row_bytes;
    uint32_t num_variable;        /* fields of varying length */
    uint32_t fixed_bytes;         /* of all fixed arrays */
    uint32_t image_field;         /* which of the variable fields is decoded */
} pack_view;

/* One fixed array or scalar to copy out of each sample. */
typedef struct {
    uint32_t offset, num_bytes; /* in the record, or in the row */
    int32_t is_in_row;
    uint8_t *out;
} field_copy;

/* The record of a sample in memory, its length in *length; NULL for one that is not what was packed. */
const uint8_t *record_find(const pack_view *pack, int64_t number, scratch *memory, uint32_t *length);

/* Fixed fields of many samples, one array a field. Returns how many samples are damaged. */
int64_t records_gather(
    const pack_view *pack, const int64_t *numbers, int64_t num, const field_copy *fields, int32_t num_fields);

/* Whole records, one after the other into `out`; offsets[i] is where record i begins, offsets[num] their end. Large
 * batches are read by several threads. */
int64_t records_read(
    const pack_view *pack, const int64_t *numbers, int64_t num, uint8_t *out, uint64_t room, uint64_t *offsets,
    uint8_t *status, int32_t num_threads);

#endif
