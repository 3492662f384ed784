/* Chunks of a shard's payload, from memory to file and back: all that is done to the bytes is done in one pass, stretch by
   stretch, while they are in the processor's cache, and many chunks in one call. */
#ifndef MPICKPT_PASS_H
#define MPICKPT_PASS_H

#include <stddef.h>
#include <stdint.h>

#include "blake3.h"

/* One piece of a payload in memory; pieces follow each other without a gap. */
typedef struct {
    int64_t offset;  /* in the payload */
    int64_t size;    /* bytes */
    int64_t address; /* of its first byte */
    int64_t scan;    /* its number by mpickpt_dtype_number where NaN and infinities are refused, else -1 */
} mpickpt_piece;

/* What the threads that share a work, and who watches them, see of each other; all 0 at first. */
typedef struct {
    int64_t done;   /* bytes of payload */
    int64_t cancel; /* set by the watcher: end before the next chunk */
    int64_t copy;   /* nanoseconds of all threads together: in copies, and scans of what was copied, */
    int64_t digest; /* in digests and sums, */
    int64_t file;   /* in writes or reads, and in what starts a write-back */
} mpickpt_watch;

typedef struct {
    int64_t next;    /* the place in the list that is taken next */
    int64_t stopped; /* set by the thread that failed: the others end before their next chunk */
} mpickpt_turn;

typedef struct {
    int fd;
    int direct;          /* of a write: a second descriptor, past the page cache; -1: all goes through it */
    uint8_t *block;      /* then: MPICKPT_BLOCK bytes */
    int64_t data_offset; /* where in the file the payload begins */
    int64_t payload;     /* its bytes */
    int64_t chunk;       /* bytes of a chunk */
    const uint32_t *key; /* of the chunk digests */
    uint8_t *digests;    /* tables of all chunks: filled by a write, compared with by a read */
    uint8_t *crcs;
    mpickpt_watch *watch;
    mpickpt_turn *turn;
    int64_t most; /* chunks for this call; 0: until none is left */
} mpickpt_shard;

enum {
    MPICKPT_DONE = 0,
    MPICKPT_MORE = 1,      /* `most` chunks are done, and there may be more */
    MPICKPT_STOPPED = 2,   /* cancelled, or another thread failed */
    MPICKPT_NONFINITE = 3,
    MPICKPT_DIFFERS = 4,   /* of a read: a chunk is not what its table says */
    MPICKPT_CUT = 5,       /* of a read: the file ends within a chunk */
    /* and below 0: -errno; -EINVAL also where the pieces leave a gap */
};

/* Copy, scan, digest, sum and write the chunks of a list, and start their write-back. Threads may share it.
   MPICKPT_NONFINITE: `*where` is the place of the element in the payload. */
int mpickpt_write_chunks(const mpickpt_shard *shard, const int64_t *chunks, size_t count, const mpickpt_piece *pieces,
                         size_t piece_count, uint8_t *stretch, int64_t *where);

enum { MPICKPT_BY_DIGEST = 1, MPICKPT_BY_CRC = 2 };

/* Where a whole chunk goes; to address 0: it is only verified, by way of `stretch`. */
typedef struct {
    int64_t index;
    int64_t address;
    int64_t scan; /* as of a piece */
} mpickpt_target;

/* Read the chunks of a list and verify each, by digest, CRC or both; then tell whether it is finite. Threads may share the
   list. After MPICKPT_NONFINITE `*where` is the place of the element in the payload, after MPICKPT_DIFFERS and MPICKPT_CUT
   the chunk; after MPICKPT_DIFFERS its digest and CRC (of the kinds asked for) are in the last two. */
int mpickpt_read_chunks(const mpickpt_shard *shard, const mpickpt_target *targets, size_t count, uint8_t *stretch, int by,
                        int64_t *where, uint8_t digest[MPICKPT_BLAKE3_SIZE], uint32_t *crc);

#endif
