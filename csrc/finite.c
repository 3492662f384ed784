/* A block is tested as a whole, by a loop without a branch that the compiler turns into vector code; only where a block
   fails is the element looked for. The test needs no comparison, which SSE2 lacks for 64 bits: with `exponent` the mask
   of the bits below the sign that are all set in what is not finite, (bits & exponent) + lowest bit of exponent carries
   into the sign bit exactly then. */

#include "finite.h"

#include <pthread.h>
#include <string.h>

#define BLOCK 16384

typedef int (*block_test)(const unsigned char *at, size_t size, uint64_t exponent);

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LITTLE8(x) (x)
#define LITTLE16(x) __builtin_bswap16(x)
#define LITTLE32(x) __builtin_bswap32(x)
#define LITTLE64(x) __builtin_bswap64(x)
#else
#define LITTLE8(x) (x)
#define LITTLE16(x) (x)
#define LITTLE32(x) (x)
#define LITTLE64(x) (x)
#endif

#define TEST(name, bits, attributes)                                                                                  \
    attributes static int name(const unsigned char *at, size_t size, uint64_t exponent)                               \
    {                                                                                                                 \
        const uint##bits##_t mask = (uint##bits##_t)exponent;                                                         \
        const uint##bits##_t lowest = (uint##bits##_t)(exponent & (~exponent + 1));                                   \
        uint##bits##_t seen = 0;                                                                                      \
        for (size_t i = 0; i < size / (bits / 8); i++) {                                                              \
            uint##bits##_t element;                                                                                   \
            memcpy(&element, at + i * (bits / 8), sizeof element);                                                    \
            seen |= (uint##bits##_t)((uint##bits##_t)(LITTLE##bits(element) & mask) + lowest);                        \
        }                                                                                                             \
        return (int)(seen >> (bits - 1));                                                                             \
    }

#define TESTS(suffix, attributes)                                                                                     \
    TEST(test8##suffix, 8, attributes)                                                                                \
    TEST(test16##suffix, 16, attributes)                                                                              \
    TEST(test32##suffix, 32, attributes)                                                                              \
    TEST(test64##suffix, 64, attributes)                                                                              \
    static const block_test tests##suffix[9] = {                                                                      \
        [1] = test8##suffix, [2] = test16##suffix, [4] = test32##suffix, [8] = test64##suffix};

TESTS(_any, )
#if defined(__x86_64__)
TESTS(_avx2, __attribute__((target("avx2"))))
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const block_test *tests = tests_any;

static void
choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) {
        tests = tests_avx2;
    }
#endif
}

void
mpickpt_finite_init(void)
{
    pthread_once(&once, choose);
}

static const mpickpt_dtype dtypes[] = {
    {"float32", 4, 4, 0x7f800000},
    {"float64", 8, 8, 0x7ff0000000000000},
    {"bfloat16", 2, 2, 0x7f80},
    {"float16", 2, 2, 0x7c00},
    {"float8_e4m3fn", 1, 1, 0x7f}, /* no infinity; the one NaN has all bits set below the sign */
    {"float8_e5m2", 1, 1, 0x7c},
    {"complex64", 8, 4, 0x7f800000},
    {"complex128", 16, 8, 0x7ff0000000000000},
    {"bool", 1, 0, 0},
    {"int8", 1, 0, 0},
    {"int16", 2, 0, 0},
    {"int32", 4, 0, 0},
    {"int64", 8, 0, 0},
    {"uint8", 1, 0, 0},
    {"uint16", 2, 0, 0},
    {"uint32", 4, 0, 0},
    {"uint64", 8, 0, 0},
};

const mpickpt_dtype *
mpickpt_dtype_of(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

int64_t
mpickpt_dtype_number(const mpickpt_dtype *dtype)
{
    return dtype->width == 0 ? -1 : dtype - dtypes;
}

const mpickpt_dtype *
mpickpt_dtype_numbered(int64_t number)
{
    return number < 0 || number >= (int64_t)(sizeof dtypes / sizeof *dtypes) ? NULL : &dtypes[number];
}

static int64_t
first(const block_test *kernels, const unsigned char *start, size_t size, const mpickpt_dtype *dtype)
{
    if (dtype->width == 0) {
        return -1;
    }
    block_test test = kernels[dtype->width];
    for (size_t at = 0; at < size; at += BLOCK) {
        size_t length = size - at < BLOCK ? size - at : BLOCK;
        if (test(start + at, length, dtype->exponent)) {
            while (!test(start + at, dtype->width, dtype->exponent)) {
                at += dtype->width;
            }
            return (int64_t)(at / dtype->itemsize);
        }
    }
    return -1;
}

int64_t
mpickpt_first_nonfinite(const void *data, size_t size, const mpickpt_dtype *dtype)
{
    return first(tests, data, size, dtype);
}

int64_t
mpickpt_first_nonfinite_portable(const void *data, size_t size, const mpickpt_dtype *dtype)
{
    return first(tests_any, data, size, dtype);
}
