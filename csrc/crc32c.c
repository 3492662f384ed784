#include "crc32c.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HARDWARE "sse4.2"
#define TARGET __attribute__((target("sse4.2")))
#define STEP8(crc, word) _mm_crc32_u64((crc), (word))
#define STEP1(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#define HARDWARE "armv8"
#ifdef __clang__
#define TARGET __attribute__((target("crc")))
#else
#define TARGET __attribute__((target("+crc")))
#endif
#define STEP8(crc, word) __crc32cd((uint32_t)(crc), (word))
#define STEP1(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#endif

#define POLYNOMIAL 0x82F63B78u

typedef uint32_t (*kernel)(const void *data, size_t size, uint32_t crc);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kernel chosen = mpickpt_crc32c_table;
static const char *chosen_kind = "table";

/* tables[k][b]: the effect of byte b when k zero bytes follow it. */
static uint32_t tables[8][256];

static void
fill_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (POLYNOMIAL & (0u - (crc & 1)));
        }
        tables[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = tables[k - 1][byte];
            tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
        }
    }
}

static uint32_t
load32le(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t
mpickpt_crc32c_table(const void *data, size_t size, uint32_t crc)
{
    const unsigned char *at = data;
    crc = ~crc;
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = load32le(at) ^ crc;
        uint32_t high = load32le(at + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
              tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^
              tables[0][high >> 24];
    }
    for (; size > 0; size--, at++) {
        crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 0xff];
    }
    return ~crc;
}

#ifdef HARDWARE

/* The instruction takes three cycles but starts one each cycle: three neighbouring stretches are run at once, and a
   CRC is moved past the stretch behind it by a linear operator, which is a table of four times 256 words. */
#define LONG 8192
#define SHORT 256

static uint32_t past_long[4][256];
static uint32_t past_short[4][256];

/* The operator that appends `length` zero bytes, on a register (not on the inverted value that callers see). */
static void
fill_past(uint32_t past[4][256], size_t length)
{
    uint32_t image[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = (uint32_t)1 << bit;
        for (size_t i = 0; i < length; i++) {
            crc = (crc >> 8) ^ tables[0][crc & 0xff];
        }
        image[bit] = crc;
    }
    for (int part = 0; part < 4; part++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++) {
                if (byte >> bit & 1) {
                    sum ^= image[8 * part + bit];
                }
            }
            past[part][byte] = sum;
        }
    }
}

static inline uint32_t
move(uint32_t past[4][256], uint32_t crc)
{
    return past[0][crc & 0xff] ^ past[1][crc >> 8 & 0xff] ^ past[2][crc >> 16 & 0xff] ^ past[3][crc >> 24];
}

static inline uint64_t
load64(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

TARGET static inline uint32_t
three_at_once(const unsigned char *at, size_t length, uint32_t past[4][256], uint64_t first)
{
    uint64_t second = 0, third = 0;
    const unsigned char *end = at + length;
    for (; at < end; at += 8) {
        first = STEP8(first, load64(at));
        second = STEP8(second, load64(at + length));
        third = STEP8(third, load64(at + 2 * length));
    }
    return move(past, move(past, (uint32_t)first) ^ (uint32_t)second) ^ (uint32_t)third;
}

TARGET static uint32_t
crc32c_hardware(const void *data, size_t size, uint32_t crc)
{
    const unsigned char *at = data;
    uint64_t running = ~crc;
    for (; size >= 3 * LONG; size -= 3 * LONG, at += 3 * LONG) {
        running = three_at_once(at, LONG, past_long, running);
    }
    for (; size >= 3 * SHORT; size -= 3 * SHORT, at += 3 * SHORT) {
        running = three_at_once(at, SHORT, past_short, running);
    }
    for (; size >= 8; size -= 8, at += 8) {
        running = STEP8(running, load64(at));
    }
    for (; size > 0; size--, at++) {
        running = STEP1(running, *at);
    }
    return ~(uint32_t)running;
}

static int
have_hardware(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") != 0;
#else
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
}

#endif

static void
choose(void)
{
    fill_tables();
#ifdef HARDWARE
    if (have_hardware()) {
        fill_past(past_long, LONG);
        fill_past(past_short, SHORT);
        chosen = crc32c_hardware;
        chosen_kind = HARDWARE;
    }
#endif
}

void
mpickpt_crc32c_init(void)
{
    pthread_once(&once, choose);
}

const char *
mpickpt_crc32c_kind(void)
{
    return chosen_kind;
}

uint32_t
mpickpt_crc32c(const void *data, size_t size, uint32_t crc)
{
    return chosen(data, size, crc);
}
