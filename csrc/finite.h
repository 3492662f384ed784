/* Where the first NaN or infinity of an array is. Elements are little-endian, at any alignment. */
#ifndef MPICKPT_FINITE_H
#define MPICKPT_FINITE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;      /* the dtype's name */
    unsigned itemsize;     /* bytes an element; a complex one counts as one */
    unsigned width;        /* bytes of the floating-point number in it; 0: it cannot be other than finite */
    uint64_t exponent;     /* the bits that are all set in a NaN or an infinity, and in nothing else */
} mpickpt_dtype;

/* The dtype of that name, or NULL. */
const mpickpt_dtype *mpickpt_dtype_of(const char *name);

/* A dtype's number, and back: -1 where its elements are always finite, NULL for a number that is none. */
int64_t mpickpt_dtype_number(const mpickpt_dtype *dtype);
const mpickpt_dtype *mpickpt_dtype_numbered(int64_t number);

/* Choose the kernels; may be called from several threads, and must come before the next. */
void mpickpt_finite_init(void);

/* The index of the first element that is not finite, or -1. `size` in bytes, a multiple of the item size. */
int64_t mpickpt_first_nonfinite(const void *data, size_t size, const mpickpt_dtype *dtype);

/* The same by the kernels that every processor of the architecture runs. */
int64_t mpickpt_first_nonfinite_portable(const void *data, size_t size, const mpickpt_dtype *dtype);

#endif
