#include "many.h"

#include <errno.h>
#include <string.h>

#include "finite.h"

#define STRETCH ((size_t)MPICKPT_BLAKE3_STRETCH)

static void
add(uint8_t sum[MPICKPT_BLAKE3_SIZE], const uint8_t digest[MPICKPT_BLAKE3_SIZE])
{
    unsigned carry = 0;
    for (int i = 0; i < MPICKPT_BLAKE3_SIZE; i++) {
        carry += (unsigned)sum[i] + digest[i];
        sum[i] = (uint8_t)carry;
        carry >>= 8;
    }
}

void
mpickpt_digest_sum(const uint32_t key[8], const uint8_t *heads, const mpickpt_input *inputs, size_t count,
                   uint8_t *stretch, uint8_t sum[MPICKPT_BLAKE3_SIZE])
{
    memset(sum, 0, MPICKPT_BLAKE3_SIZE);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *memory = (const uint8_t *)(uintptr_t)inputs[i].address;
        size_t head = (size_t)inputs[i].head, left = (size_t)inputs[i].size;
        size_t first = left < STRETCH - head ? left : STRETCH - head;
        uint8_t digest[MPICKPT_BLAKE3_SIZE];
        memcpy(stretch, heads, head);
        if (first > 0) {
            memcpy(stretch + head, memory, first);
        }
        heads += head;
        memory += first;
        left -= first;
        if (left == 0) {
            mpickpt_blake3_digest(key, stretch, head + first, digest);
        } else {
            mpickpt_blake3 hash;
            mpickpt_blake3_begin(&hash, key);
            mpickpt_blake3_stretch(&hash, stretch);
            for (; left > STRETCH; left -= STRETCH, memory += STRETCH) {
                mpickpt_blake3_stretch(&hash, memory);
            }
            mpickpt_blake3_end(&hash, memory, left, digest);
        }
        add(sum, digest);
    }
}

int
mpickpt_scatter(const uint8_t *data, int64_t start, int64_t size, const mpickpt_piece *pieces, size_t count,
                int64_t *where)
{
    for (size_t i = 0; i < count; i++) {
        const mpickpt_piece *piece = &pieces[i];
        int64_t from = piece->offset > start ? piece->offset : start;
        int64_t end = piece->offset + piece->size;
        int64_t stop = end < start + size ? end : start + size;
        if (from >= stop) {
            continue;
        }
        const uint8_t *bytes = data + (from - start);
        if (piece->scan >= 0) {
            const mpickpt_dtype *dtype = mpickpt_dtype_numbered(piece->scan);
            if (dtype == NULL || (stop - from) % dtype->itemsize != 0) {
                return -EINVAL;
            }
            int64_t index = mpickpt_first_nonfinite(bytes, (size_t)(stop - from), dtype);
            if (index >= 0) {
                *where = from + index * dtype->itemsize;
                return MPICKPT_NONFINITE;
            }
        }
        memcpy((uint8_t *)(uintptr_t)piece->address + (from - piece->offset), bytes, (size_t)(stop - from));
    }
    return MPICKPT_DONE;
}

void
mpickpt_copy_all(const mpickpt_copy *copies, size_t count, int64_t *next)
{
    for (;;) {
        size_t i = (size_t)__atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
        if (i >= count) {
            return;
        }
        memcpy((void *)(uintptr_t)copies[i].to, (const void *)(uintptr_t)copies[i].from, (size_t)copies[i].size);
    }
}
