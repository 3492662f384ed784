#define _GNU_SOURCE

#include "pass.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "crc32c.h"
#include "direct.h"
#include "finite.h"
#include "publish.h"

#define STRETCH ((int64_t)MPICKPT_BLAKE3_STRETCH)

static int64_t
least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What one thread has spent since it last told: see mpickpt_watch. */
typedef struct {
    int64_t copy, digest, file;
    int64_t since; /* the end of what was counted last */
} spent;

static int64_t
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Count the time since the last count as one of the kinds. */
static void
count_as(spent *the, int64_t *kind)
{
    int64_t at = now();
    *kind += at - the->since;
    the->since = at;
}

/* Add what was spent on a chunk to what all see. */
static void
tell(const mpickpt_shard *shard, const spent *the)
{
    __atomic_fetch_add(&shard->watch->copy, the->copy, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shard->watch->digest, the->digest, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shard->watch->file, the->file, __ATOMIC_RELAXED);
}

/* The last piece that begins at or before `offset`, or 0. */
static size_t
piece_at(const mpickpt_piece *pieces, size_t count, int64_t offset)
{
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (pieces[middle].offset <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Copy the payload's bytes [start, start + size) to `into`, and look through those that must be finite. It counts as a
   copy: the scan of a stretch that was just copied takes little beside it, and a clock between small pieces would not. */
static int
collect(const mpickpt_piece *pieces, size_t count, int64_t start, int64_t size, uint8_t *into, int64_t *where)
{
    int64_t stop = start + size;
    for (size_t i = piece_at(pieces, count, start); start < stop; i++) {
        if (i >= count || start < pieces[i].offset) {
            return -EINVAL;
        }
        int64_t inside = start - pieces[i].offset;
        if (inside > pieces[i].size) {
            return -EINVAL;
        }
        int64_t length = least(stop - start, pieces[i].size - inside);
        memcpy(into, (const uint8_t *)(uintptr_t)pieces[i].address + inside, (size_t)length);
        if (pieces[i].scan >= 0) {
            const mpickpt_dtype *dtype = mpickpt_dtype_numbered(pieces[i].scan);
            if (dtype == NULL || length % dtype->itemsize != 0) {
                return -EINVAL;
            }
            int64_t index = mpickpt_first_nonfinite(into, (size_t)length, dtype);
            if (index >= 0) {
                *where = start + index * dtype->itemsize;
                return MPICKPT_NONFINITE;
            }
        }
        into += length;
        start += length;
    }
    return MPICKPT_DONE;
}

/* Write `size` bytes: past the page cache as far as their place allows it, the rest through it. */
static int
put(const mpickpt_shard *shard, const uint8_t *from, int64_t size, int64_t offset)
{
    int64_t past = shard->direct < 0 || offset % MPICKPT_ALIGN ? 0 : size - size % MPICKPT_ALIGN;
    if (past > 0) {
        int error = mpickpt_pwrite_all(shard->direct, from, (size_t)past, offset);
        if (error == -EINVAL) {
            past = 0; /* another alignment is asked for here */
        } else if (error < 0) {
            return error;
        }
    }
    return mpickpt_pwrite_all(shard->fd, from + past, (size_t)(size - past), offset + past);
}

static int
write_chunk(const mpickpt_shard *shard, int64_t index, const mpickpt_piece *pieces, size_t count, uint8_t *stretch,
            int64_t *where)
{
    int64_t start = index * shard->chunk;
    int64_t stop = least(start + shard->chunk, shard->payload);
    uint32_t crc = 0;
    mpickpt_blake3 hash;
    spent the = {.since = now()};
    mpickpt_blake3_begin(&hash, shard->key);
    uint8_t *unit = shard->direct < 0 ? stretch : shard->block; /* what is written in one call */
    int64_t most = shard->direct < 0 ? STRETCH : MPICKPT_BLOCK;
    for (int64_t at = start, filled = 0; at < stop;) {
        int64_t size = least(STRETCH, stop - at);
        uint8_t *here = unit + filled;
        int outcome = collect(pieces, count, at, size, here, where);
        if (outcome != MPICKPT_DONE) {
            return outcome;
        }
        count_as(&the, &the.copy);
        at += size;
        filled += size;
        if (at < stop) {
            mpickpt_blake3_stretch(&hash, here);
        } else {
            mpickpt_blake3_end(&hash, here, (size_t)size, shard->digests + MPICKPT_BLAKE3_SIZE * index);
        }
        crc = mpickpt_crc32c(here, (size_t)size, crc);
        count_as(&the, &the.digest);
        if (at == stop || filled == most) {
            outcome = put(shard, unit, filled, shard->data_offset + at - filled);
            if (outcome < 0) {
                return outcome;
            }
            filled = 0;
        }
        count_as(&the, &the.file);
    }
    for (int i = 0; i < 4; i++) {
        shard->crcs[4 * index + i] = (uint8_t)(crc >> 8 * i);
    }
    /* Of what went through the cache; its error is as final as fsync's. */
    int outcome = mpickpt_sync_range(shard->fd, shard->data_offset + start, stop - start, 0);
    count_as(&the, &the.file);
    tell(shard, &the);
    return outcome;
}

/* Take the next place of a list of `count`; `count` where there is nothing more to do, and why in `*outcome`. */
static size_t
take(const mpickpt_shard *shard, size_t count, int *outcome)
{
    if (__atomic_load_n(&shard->watch->cancel, __ATOMIC_RELAXED) || __atomic_load_n(&shard->turn->stopped, __ATOMIC_RELAXED)) {
        *outcome = MPICKPT_STOPPED;
        return count;
    }
    int64_t place = __atomic_fetch_add(&shard->turn->next, 1, __ATOMIC_RELAXED);
    *outcome = MPICKPT_DONE;
    return place < (int64_t)count ? (size_t)place : count;
}

/* Note how the work on a chunk ended; tell whether to go on. */
static int
go_on(const mpickpt_shard *shard, int64_t index, int *outcome, int64_t *done)
{
    if (*outcome != MPICKPT_DONE) {
        __atomic_store_n(&shard->turn->stopped, 1, __ATOMIC_RELAXED);
        return 0;
    }
    int64_t size = least(shard->chunk, shard->payload - index * shard->chunk);
    __atomic_fetch_add(&shard->watch->done, size, __ATOMIC_RELAXED);
    if (++*done == shard->most) {
        *outcome = MPICKPT_MORE;
        return 0;
    }
    return 1;
}

int
mpickpt_write_chunks(const mpickpt_shard *shard, const int64_t *chunks, size_t count, const mpickpt_piece *pieces,
                     size_t piece_count, uint8_t *stretch, int64_t *where)
{
    int outcome;
    int64_t done = 0;
    for (size_t i = take(shard, count, &outcome); i < count; i = take(shard, count, &outcome)) {
        outcome = write_chunk(shard, chunks[i], pieces, piece_count, stretch, where);
        if (!go_on(shard, chunks[i], &outcome, &done)) {
            break;
        }
    }
    return outcome;
}

static int
read_chunk(const mpickpt_shard *shard, const mpickpt_target *target, uint8_t *stretch, int by, int64_t *where,
           uint8_t digest[MPICKPT_BLAKE3_SIZE], uint32_t *crc)
{
    uint8_t *into = target->address == 0 ? stretch : (uint8_t *)(uintptr_t)target->address;
    int64_t step = target->address == 0 ? 0 : STRETCH;
    const mpickpt_dtype *dtype = target->scan < 0 ? NULL : mpickpt_dtype_numbered(target->scan);
    int64_t odd = -1; /* where the first element that is not finite lies; told only of bytes that are verified */
    int64_t index = target->index;
    int64_t start = index * shard->chunk;
    int64_t stop = least(start + shard->chunk, shard->payload);
    mpickpt_blake3 hash;
    spent the = {.since = now()};
    mpickpt_blake3_begin(&hash, shard->key);
    *crc = 0;
    *where = index;
    if (target->scan >= 0 && (dtype == NULL || (stop - start) % dtype->itemsize != 0)) {
        return -EINVAL;
    }
    for (int64_t at = start; at < stop; at += STRETCH, into += step) {
        int64_t size = least(STRETCH, stop - at);
        int64_t found = mpickpt_pread_full(shard->fd, into, (size_t)size, shard->data_offset + at);
        if (found < size) {
            return found < 0 ? (int)found : MPICKPT_CUT;
        }
        count_as(&the, &the.file);
        if (by & MPICKPT_BY_DIGEST) {
            if (at + size < stop) {
                mpickpt_blake3_stretch(&hash, into);
            } else {
                mpickpt_blake3_end(&hash, into, (size_t)size, digest);
            }
        }
        if (by & MPICKPT_BY_CRC) {
            *crc = mpickpt_crc32c(into, (size_t)size, *crc);
        }
        if (dtype != NULL && odd < 0) {
            int64_t element = mpickpt_first_nonfinite(into, (size_t)size, dtype);
            odd = element < 0 ? -1 : at + element * dtype->itemsize;
        }
        count_as(&the, &the.digest);
    }
    tell(shard, &the);
    if ((by & MPICKPT_BY_DIGEST) && memcmp(digest, shard->digests + MPICKPT_BLAKE3_SIZE * index, MPICKPT_BLAKE3_SIZE)) {
        return MPICKPT_DIFFERS;
    }
    const uint8_t *expected = shard->crcs + 4 * index;
    uint32_t sum = (uint32_t)expected[0] | (uint32_t)expected[1] << 8 | (uint32_t)expected[2] << 16 |
                   (uint32_t)expected[3] << 24;
    if ((by & MPICKPT_BY_CRC) && *crc != sum) {
        return MPICKPT_DIFFERS;
    }
    if (odd >= 0) {
        *where = odd;
        return MPICKPT_NONFINITE;
    }
    return MPICKPT_DONE;
}

int
mpickpt_read_chunks(const mpickpt_shard *shard, const mpickpt_target *targets, size_t count, uint8_t *stretch, int by,
                    int64_t *where, uint8_t digest[MPICKPT_BLAKE3_SIZE], uint32_t *crc)
{
    int outcome;
    int64_t done = 0;
    for (size_t i = take(shard, count, &outcome); i < count; i = take(shard, count, &outcome)) {
        outcome = read_chunk(shard, &targets[i], stretch, by, where, digest, crc);
        if (!go_on(shard, targets[i].index, &outcome, &done)) {
            break;
        }
    }
    return outcome;
}
