/* The input is a row of leaves of 1024 bytes, the hash a binary tree over them. Leaves of a stretch, and then each level
   of parents above them, are hashed many at a time, one in each lane of the processor's vectors. */

#include "blake3.h"

#include <pthread.h>
#include <string.h>

#include "blake3_rounds.h"

#define LEAF 1024
#define BLOCK 64
#define STRETCH MPICKPT_BLAKE3_STRETCH
#define LEAVES (STRETCH / LEAF)
#define WIDEST 16

enum {
    CHUNK_START = 1,
    CHUNK_END = 2,
    PARENT = 4,
    ROOT = 8,
    DERIVE_KEY_CONTEXT = 32,
    DERIVE_KEY_MATERIAL = 64,
};

static const uint32_t IV[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                               0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

/* What is done alike to inputs that lie `stride` bytes apart. */
typedef struct {
    const uint32_t *key;
    size_t stride;
    size_t blocks;
    uint32_t flags; /* of every block */
    uint32_t first; /* and of the first */
    uint32_t last;  /* and of the last */
    int counted;    /* input i has the number counter + i, and not counter */
} job;

typedef void (*kernel)(const uint8_t *data, const job *the, uint64_t counter, uint32_t (*out)[8]);

#define ROTATE_RIGHT(x, n) ((x) >> (n) | (x) << (32 - (n)))

static uint32_t
load32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void
store32(uint8_t *at, uint32_t word)
{
    at[0] = (uint8_t)word;
    at[1] = (uint8_t)(word >> 8);
    at[2] = (uint8_t)(word >> 16);
    at[3] = (uint8_t)(word >> 24);
}

/* One compression; `h` becomes the first eight words of what it gives. */
static void
compress(uint32_t h[8], const uint8_t block[BLOCK], uint32_t size, uint64_t counter, uint32_t flags)
{
    uint32_t v[16], m[16];
    for (int i = 0; i < 16; i++) {
        m[i] = load32(block + 4 * i);
    }
    memcpy(v, h, 32);
    memcpy(v + 8, IV, 16);
    v[12] = (uint32_t)counter;
    v[13] = (uint32_t)(counter >> 32);
    v[14] = size;
    v[15] = flags;
    ROUNDS(ROTATE_RIGHT)
    for (int i = 0; i < 8; i++) {
        h[i] = v[i] ^ v[8 + i];
    }
}

static void
hash_scalar(const uint8_t *data, const job *the, uint64_t counter, uint32_t (*out)[8])
{
    memcpy(out[0], the->key, 32);
    for (size_t block = 0; block < the->blocks; block++) {
        uint32_t flags = the->flags | (block == 0 ? the->first : 0) | (block + 1 == the->blocks ? the->last : 0);
        compress(out[0], data + BLOCK * block, BLOCK, counter, flags);
    }
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define VECTORS

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define PICK(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#ifndef PICK
#define PICK(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif

#define LANES 4
#define KERNEL hash_4
#define TARGET
#include "blake3_lanes.h"

#if defined(__x86_64__)
#define LANES 8
#define KERNEL hash_8
#define TARGET __attribute__((target("avx2")))
#include "blake3_lanes.h"

#define LANES 16
#define KERNEL hash_16
#define TARGET __attribute__((target("avx512f")))
#include "blake3_lanes.h"
#endif
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The widest first; the last has one lane. */
static struct {
    unsigned lanes;
    kernel hash;
    const char *kind;
} kernels[4] = {{1, hash_scalar, "scalar"}};
static unsigned first_kernel = 0;

static void
choose(void)
{
    unsigned count = 0;
#ifdef VECTORS
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        kernels[count].lanes = 16;
        kernels[count].hash = hash_16;
        kernels[count++].kind = "avx512";
    }
    if (__builtin_cpu_supports("avx2")) {
        kernels[count].lanes = 8;
        kernels[count].hash = hash_8;
        kernels[count++].kind = "avx2";
    }
#endif
    kernels[count].lanes = 4;
    kernels[count].hash = hash_4;
    kernels[count++].kind = "vector";
#endif
    kernels[count].lanes = 1;
    kernels[count].hash = hash_scalar;
    kernels[count].kind = "scalar";
}

void
mpickpt_blake3_init(void)
{
    pthread_once(&once, choose);
}

const char *
mpickpt_blake3_kind(void)
{
    return kernels[first_kernel].kind;
}

void
mpickpt_blake3_limit(unsigned lanes)
{
    first_kernel = 0;
    while (kernels[first_kernel].lanes > lanes && kernels[first_kernel].lanes > 1) {
        first_kernel++;
    }
}

/* Hash `count` inputs; those of number i at data + i * stride. */
static void
hash_many(const uint8_t *data, size_t count, const job *the, uint64_t counter, uint32_t (*out)[8])
{
    for (unsigned i = first_kernel; count > 0; i++) {
        size_t lanes = kernels[i].lanes;
        for (; count >= lanes; count -= lanes) {
            kernels[i].hash(data, the, counter, out);
            data += lanes * the->stride;
            counter += the->counted ? lanes : 0;
            out += lanes;
        }
    }
}

static void
hash_leaves(const uint32_t key[8], const uint8_t *data, size_t count, uint64_t counter, uint32_t (*out)[8])
{
    const job leaves = {key, LEAF, LEAF / BLOCK, DERIVE_KEY_MATERIAL, CHUNK_START, CHUNK_END, 1};
    hash_many(data, count, &leaves, counter, out);
}

/* A parent's block: its two children, as bytes. */
static void
parent_block(uint8_t block[BLOCK], const uint32_t left[8], const uint32_t right[8])
{
    for (int i = 0; i < 8; i++) {
        store32(block + 4 * i, left[i]);
        store32(block + 32 + 4 * i, right[i]);
    }
}

/* Put the parents of `count` nodes, an even number, in the place of their children. */
static void
hash_parents(const uint32_t key[8], uint32_t (*nodes)[8], size_t count)
{
    uint8_t blocks[LEAVES / 2][BLOCK];
    for (size_t i = 0; i < count / 2; i++) {
        parent_block(blocks[i], nodes[2 * i], nodes[2 * i + 1]);
    }
    const job parents = {key, BLOCK, 1, DERIVE_KEY_MATERIAL | PARENT, 0, 0, 0};
    hash_many(blocks[0], count / 2, &parents, 0, nodes);
}

/* Bring a whole stretch to the two nodes below its top. */
static void
two_halves(const uint32_t key[8], const uint8_t *data, uint64_t counter, uint32_t nodes[LEAVES][8])
{
    hash_leaves(key, data, LEAVES, counter, nodes);
    for (size_t count = LEAVES; count > 2; count /= 2) {
        hash_parents(key, nodes, count);
    }
}

void
mpickpt_blake3_begin(mpickpt_blake3 *hash, const uint32_t key[8])
{
    memcpy(hash->key, key, sizeof hash->key);
    hash->depth = 0;
    hash->stretches = 0;
}

void
mpickpt_blake3_stretch(mpickpt_blake3 *hash, const void *data)
{
    uint32_t nodes[LEAVES][8];
    uint8_t block[BLOCK];
    two_halves(hash->key, data, hash->stretches * LEAVES, nodes);
    hash_parents(hash->key, nodes, 2);
    hash->stretches++;
    /* Every second subtree completes a greater one, every fourth two, and so on. More input follows, so none is the root. */
    for (uint64_t count = hash->stretches; (count & 1) == 0; count >>= 1) {
        parent_block(block, hash->stack[--hash->depth], nodes[0]);
        memcpy(nodes[0], hash->key, 32);
        compress(nodes[0], block, BLOCK, 0, DERIVE_KEY_MATERIAL | PARENT);
    }
    memcpy(hash->stack[hash->depth++], nodes[0], 32);
}

/* A node that is not yet compressed, since only the root gets the root's flag. */
typedef struct {
    uint32_t h[8];
    uint8_t block[BLOCK];
    uint32_t size;
    uint64_t counter;
    uint32_t flags;
} node;

static void
become_parent(node *the, const uint32_t key[8], const uint32_t left[8], const uint32_t right[8])
{
    memcpy(the->h, key, 32);
    parent_block(the->block, left, right);
    the->size = BLOCK;
    the->counter = 0;
    the->flags = PARENT;
}

static void
become_leaf(node *the, const uint32_t key[8], const uint8_t *data, size_t size, uint64_t counter, uint32_t mode)
{
    memcpy(the->h, key, 32);
    uint32_t start = CHUNK_START;
    for (; size > BLOCK; size -= BLOCK, data += BLOCK) {
        compress(the->h, data, BLOCK, counter, mode | start);
        start = 0;
    }
    memset(the->block, 0, BLOCK);
    if (size > 0) {
        memcpy(the->block, data, size);
    }
    the->size = (uint32_t)size;
    the->counter = counter;
    the->flags = start | CHUNK_END;
}

void
mpickpt_blake3_end(mpickpt_blake3 *hash, const void *data, size_t size, uint8_t digest[MPICKPT_BLAKE3_SIZE])
{
    const uint32_t *key = hash->key;
    uint64_t counter = hash->stretches * LEAVES;
    uint32_t nodes[LEAVES][8];
    node top;
    if (size == STRETCH) {
        two_halves(key, data, counter, nodes);
        become_parent(&top, key, nodes[0], nodes[1]);
    } else {
        /* All leaves but the last, then the levels above them: an odd node at a level's end waits for a later one. */
        size_t count = size == 0 ? 0 : (size - 1) / LEAF;
        hash_leaves(key, data, count, counter, nodes);
        become_leaf(&top, key, (const uint8_t *)data + count * LEAF, size - count * LEAF, counter + count,
                    DERIVE_KEY_MATERIAL);
        uint32_t waiting[8][8];
        unsigned depth = 0;
        while (count > 0) {
            if (count & 1) {
                memcpy(waiting[depth++], nodes[count - 1], 32);
                count--;
            }
            if (count > 0) {
                hash_parents(key, nodes, count);
                count /= 2;
            }
        }
        for (unsigned i = 0; i < depth; i++) {
            compress(top.h, top.block, top.size, top.counter, DERIVE_KEY_MATERIAL | top.flags);
            memcpy(nodes[0], top.h, 32);
            become_parent(&top, key, waiting[i], nodes[0]);
        }
    }
    while (hash->depth > 0) {
        compress(top.h, top.block, top.size, top.counter, DERIVE_KEY_MATERIAL | top.flags);
        memcpy(nodes[0], top.h, 32);
        become_parent(&top, key, hash->stack[--hash->depth], nodes[0]);
    }
    compress(top.h, top.block, top.size, top.counter, DERIVE_KEY_MATERIAL | top.flags | ROOT);
    for (int i = 0; i < 8; i++) {
        store32(digest + 4 * i, top.h[i]);
    }
}

void
mpickpt_blake3_digest(const uint32_t key[8], const void *data, size_t size, uint8_t digest[MPICKPT_BLAKE3_SIZE])
{
    mpickpt_blake3 hash;
    const uint8_t *at = data;
    mpickpt_blake3_begin(&hash, key);
    for (; size > STRETCH; size -= STRETCH, at += STRETCH) {
        mpickpt_blake3_stretch(&hash, at);
    }
    mpickpt_blake3_end(&hash, at, size, digest);
}

void
mpickpt_blake3_derive(const void *context, size_t size, uint32_t key[8])
{
    node only; /* a context is short, and so one leaf */
    become_leaf(&only, IV, context, size, 0, DERIVE_KEY_CONTEXT);
    compress(only.h, only.block, only.size, only.counter, DERIVE_KEY_CONTEXT | only.flags | ROOT);
    memcpy(key, only.h, 32);
}
