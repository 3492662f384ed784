/* The rounds of BLAKE3's compression on sixteen words of state `v` and of message `m`: numbers, or vectors of them. The
   compiler has to see which message word each step takes, so the permuted orders are spelt out. */
#ifndef MPICKPT_BLAKE3_ROUNDS_H
#define MPICKPT_BLAKE3_ROUNDS_H

#define MIX(ROTATE, a, b, c, d, x, y)                                                                                 \
    v[a] = v[a] + m[x] + v[b];                                                                                        \
    v[d] = ROTATE(v[d] ^ v[a], 16);                                                                                   \
    v[c] = v[c] + v[d];                                                                                               \
    v[b] = ROTATE(v[b] ^ v[c], 12);                                                                                   \
    v[a] = v[a] + m[y] + v[b];                                                                                        \
    v[d] = ROTATE(v[d] ^ v[a], 8);                                                                                    \
    v[c] = v[c] + v[d];                                                                                               \
    v[b] = ROTATE(v[b] ^ v[c], 7);

#define ROUND(ROTATE, m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15)                           \
    MIX(ROTATE, 0, 4, 8, 12, m0, m1)                                                                                  \
    MIX(ROTATE, 1, 5, 9, 13, m2, m3)                                                                                  \
    MIX(ROTATE, 2, 6, 10, 14, m4, m5)                                                                                 \
    MIX(ROTATE, 3, 7, 11, 15, m6, m7)                                                                                 \
    MIX(ROTATE, 0, 5, 10, 15, m8, m9)                                                                                 \
    MIX(ROTATE, 1, 6, 11, 12, m10, m11)                                                                               \
    MIX(ROTATE, 2, 7, 8, 13, m12, m13)                                                                                \
    MIX(ROTATE, 3, 4, 9, 14, m14, m15)

#define ROUNDS(ROTATE)                                                                                                \
    ROUND(ROTATE, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)                                               \
    ROUND(ROTATE, 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)                                               \
    ROUND(ROTATE, 3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1)                                               \
    ROUND(ROTATE, 10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6)                                               \
    ROUND(ROTATE, 12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4)                                               \
    ROUND(ROTATE, 9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7)                                               \
    ROUND(ROTATE, 11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13)

#endif
