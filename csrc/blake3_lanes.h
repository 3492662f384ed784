/* One kernel of blake3.c, included once for each width: LANES inputs of equal size are hashed side by side, input i in
   element i of every vector. Set before: LANES (4, 8 or 16), KERNEL (name of the function), TARGET (its attribute). */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define VECTOR JOIN(KERNEL, _vector)
#define BYTES JOIN(KERNEL, _bytes)
#define TRANSPOSE JOIN(KERNEL, _transpose)

typedef uint32_t VECTOR __attribute__((vector_size(4 * LANES)));

#if LANES == 4
#define EACH(element, s) element(0, s), element(1, s), element(2, s), element(3, s)
#elif LANES == 8
#define EACH(element, s)                                                                                              \
    element(0, s), element(1, s), element(2, s), element(3, s), element(4, s), element(5, s), element(6, s),          \
        element(7, s)
#else
#define EACH(element, s)                                                                                              \
    element(0, s), element(1, s), element(2, s), element(3, s), element(4, s), element(5, s), element(6, s),          \
        element(7, s), element(8, s), element(9, s), element(10, s), element(11, s), element(12, s), element(13, s),  \
        element(14, s), element(15, s)
#endif

/* Rotations by whole bytes are one instruction where there is one that moves bytes. */
#if LANES == 8
typedef uint8_t BYTES __attribute__((vector_size(4 * LANES)));
#define SHIFTED(j, bytes) ((j) & ~3) + (((j) + (bytes)) & 3)
#define FOUR(i, bytes) SHIFTED(i, bytes), SHIFTED((i) + 1, bytes), SHIFTED((i) + 2, bytes), SHIFTED((i) + 3, bytes)
#define ROTATE_BYTES(x, bytes)                                                                                        \
    (VECTOR) PICK(BYTES, (BYTES)(x), (BYTES)(x), FOUR(0, bytes), FOUR(4, bytes), FOUR(8, bytes), FOUR(12, bytes),      \
                  FOUR(16, bytes), FOUR(20, bytes), FOUR(24, bytes), FOUR(28, bytes))
#define ROTATE_16(x) ROTATE_BYTES(x, 2)
#define ROTATE_8(x) ROTATE_BYTES(x, 1)
#else
#define ROTATE_16(x) ROTATE_RIGHT(x, 16)
#define ROTATE_8(x) ROTATE_RIGHT(x, 8)
#endif
#define ROTATE_12(x) ROTATE_RIGHT(x, 12)
#define ROTATE_7(x) ROTATE_RIGHT(x, 7)
#define ROTATE(x, bits) ROTATE_##bits(x)

/* Element j of the two rows that take the place of rows i and i + s. */
#define LOWER(j, s) ((j) & (s) ? (j) - (s) + LANES : (j))
#define UPPER(j, s) ((j) & (s) ? (j) + LANES : (j) + (s))

#define EXCHANGE(s)                                                                                                   \
    for (int i = 0; i < LANES; i++) {                                                                                 \
        if ((i & (s)) == 0) {                                                                                         \
            VECTOR lower = PICK(VECTOR, row[i], row[i + (s)], EACH(LOWER, s));                                        \
            row[i + (s)] = PICK(VECTOR, row[i], row[i + (s)], EACH(UPPER, s));                                        \
            row[i] = lower;                                                                                           \
        }                                                                                                             \
    }

/* Exchange rows and columns of a square of words. */
TARGET static inline __attribute__((always_inline)) void
TRANSPOSE(VECTOR row[LANES])
{
    EXCHANGE(1)
    EXCHANGE(2)
#if LANES >= 8
    EXCHANGE(4)
#endif
#if LANES >= 16
    EXCHANGE(8)
#endif
}

TARGET static void
KERNEL(const uint8_t *data, const job *the, uint64_t counter, uint32_t (*out)[8])
{
    VECTOR h[8], v[16], m[16], low, high;
    for (int i = 0; i < 8; i++) {
        h[i] = the->key[i] - (VECTOR){0};
    }
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t number = counter + (the->counted ? (uint64_t)lane : 0);
        low[lane] = (uint32_t)number;
        high[lane] = (uint32_t)(number >> 32);
    }
    for (size_t block = 0; block < the->blocks; block++) {
        for (int part = 0; part < 16; part += LANES) {
            for (int lane = 0; lane < LANES; lane++) {
                memcpy(&m[part + lane], data + (size_t)lane * the->stride + 64 * block + 4 * part, sizeof *m);
            }
            TRANSPOSE(m + part);
        }
        uint32_t flags = the->flags;
        if (block == 0) {
            flags |= the->first;
        }
        if (block + 1 == the->blocks) {
            flags |= the->last;
        }
        for (int i = 0; i < 8; i++) {
            v[i] = h[i];
        }
        for (int i = 0; i < 4; i++) {
            v[8 + i] = IV[i] - (VECTOR){0};
        }
        v[12] = low;
        v[13] = high;
        v[14] = 64 - (VECTOR){0};
        v[15] = flags - (VECTOR){0};
        ROUNDS(ROTATE)
        for (int i = 0; i < 8; i++) {
            h[i] = v[i] ^ v[8 + i];
        }
    }
#if LANES == 16
    for (int i = 0; i < 8; i++) {
        m[i] = h[i];
        m[8 + i] = (VECTOR){0};
    }
    TRANSPOSE(m);
    for (int lane = 0; lane < LANES; lane++) {
        memcpy(out[lane], &m[lane], 32);
    }
#else
    for (int part = 0; part < 8; part += LANES) {
        TRANSPOSE(h + part);
        for (int lane = 0; lane < LANES; lane++) {
            memcpy(out[lane] + part, &h[part + lane], sizeof *h);
        }
    }
#endif
}

#undef JOIN_
#undef JOIN
#undef VECTOR
#undef BYTES
#undef TRANSPOSE
#undef ROTATE
#undef ROTATE_16
#undef ROTATE_12
#undef ROTATE_8
#undef ROTATE_7
#undef ROTATE_BYTES
#undef SHIFTED
#undef FOUR
#undef EACH
#undef LOWER
#undef UPPER
#undef EXCHANGE
#undef LANES
#undef KERNEL
#undef TARGET
