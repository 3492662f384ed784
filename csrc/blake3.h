/* BLAKE3 in its key derivation mode (https://github.com/BLAKE3-team/BLAKE3-specs), for long inputs that pass through in
   stretches: so a chunk is digested while it is copied, summed and written, and stays in the processor's cache. */
#ifndef MPICKPT_BLAKE3_H
#define MPICKPT_BLAKE3_H

#include <stddef.h>
#include <stdint.h>

#define MPICKPT_BLAKE3_SIZE 32

/* Bytes of a stretch: a power of two, and one whole subtree of the hash. */
#define MPICKPT_BLAKE3_STRETCH ((size_t)128 << 10)

/* One digest in the making. */
typedef struct {
    uint32_t key[8];
    uint32_t stack[64][8]; /* subtrees that wait for their right neighbour, the greatest first */
    unsigned depth;
    uint64_t stretches;
} mpickpt_blake3;

/* Choose the kernels; may be called from several threads, and must come before the others. */
void mpickpt_blake3_init(void);

/* "avx512", "avx2", "vector" or "scalar": the widest kernel that is used here. */
const char *mpickpt_blake3_kind(void);

/* Use kernels of at most so many lanes from now on (1, 4, 8, 16); for tests. */
void mpickpt_blake3_limit(unsigned lanes);

/* The key that stands for a context string of at most 1024 bytes. */
void mpickpt_blake3_derive(const void *context, size_t size, uint32_t key[8]);

void mpickpt_blake3_begin(mpickpt_blake3 *hash, const uint32_t key[8]);

/* Take in one whole stretch, which is not the last of the input. */
void mpickpt_blake3_stretch(mpickpt_blake3 *hash, const void *data);

/* Take in the last bytes of the input, at most a stretch, and give the digest. */
void mpickpt_blake3_end(mpickpt_blake3 *hash, const void *data, size_t size, uint8_t digest[MPICKPT_BLAKE3_SIZE]);

/* The digest of one input. */
void mpickpt_blake3_digest(const uint32_t key[8], const void *data, size_t size, uint8_t digest[MPICKPT_BLAKE3_SIZE]);

#endif
