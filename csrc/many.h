/* Many small things in one call: what thousands of small arrays would otherwise each cost in the interpreter. */
#ifndef MPICKPT_MANY_H
#define MPICKPT_MANY_H

#include <stddef.h>
#include <stdint.h>

#include "blake3.h"
#include "pass.h"

/* An input that is hashed: the next `head` bytes of the heads, then `size` bytes of memory. */
typedef struct {
    int64_t head; /* at most MPICKPT_MOST_HEAD */
    int64_t address;
    int64_t size;
} mpickpt_input;

#define MPICKPT_MOST_HEAD 4096

/* The sum of the digests of all inputs, each read as a little-endian number, modulo 2**256. `stretch` is room for
   MPICKPT_BLAKE3_STRETCH bytes. */
void mpickpt_digest_sum(const uint32_t key[8], const uint8_t *heads, const mpickpt_input *inputs, size_t count,
                        uint8_t *stretch, uint8_t sum[MPICKPT_BLAKE3_SIZE]);

/* Bring bytes [start, start + size) of a payload, which lie at `data`, to the pieces that they belong to; pieces may lie
   anywhere, and reach beyond them. MPICKPT_NONFINITE: `*where` is the place of the element in the payload, and nothing of
   that piece was copied. -EINVAL: a piece of which elements are cut. */
int mpickpt_scatter(const uint8_t *data, int64_t start, int64_t size, const mpickpt_piece *pieces, size_t count,
                    int64_t *where);

/* A stretch of memory that is copied to another place; the two do not overlap. */
typedef struct {
    int64_t to, from, size;
} mpickpt_copy;

/* Make the copies of a list that are still to be made. Threads may share it: `*next` is the place that is taken next. */
void mpickpt_copy_all(const mpickpt_copy *copies, size_t count, int64_t *next);

#endif
