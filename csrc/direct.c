#define _GNU_SOURCE

#include "direct.h"

#include <stddef.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

uint8_t *
mpickpt_block(void)
{
    size_t size = (size_t)MPICKPT_BLOCK, room = size + HUGE_PAGE;
    uint8_t *found = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) {
        return NULL;
    }
    size_t before = (HUGE_PAGE - (uintptr_t)found % HUGE_PAGE) % HUGE_PAGE;
    uint8_t *block = found + before;
    if (before > 0) {
        munmap(found, before);
    }
    munmap(block + size, HUGE_PAGE - before);
    madvise(block, size, MADV_HUGEPAGE); /* only a wish */
    return block;
}

void
mpickpt_block_free(uint8_t *block)
{
    if (block != NULL) {
        munmap(block, (size_t)MPICKPT_BLOCK);
    }
}
