/* Memory for writes past the page cache (O_DIRECT). These cost a core next to nothing, where the kernel copies every byte
   that goes through the cache; their offsets, sizes and addresses are multiples of MPICKPT_ALIGN. */
#ifndef MPICKPT_DIRECT_H
#define MPICKPT_DIRECT_H

#include <stdint.h>

#define MPICKPT_ALIGN ((int64_t)4096)

/* Bytes of one write, and of the memory that `mpickpt_block` gives. */
#define MPICKPT_BLOCK ((int64_t)4 << 20)

/* MPICKPT_BLOCK bytes in huge pages where there are any; NULL where there is no memory. Of small pages the kernel hands the
   disk a thousand places a write, which then takes several times as long. */
uint8_t *mpickpt_block(void);

/* Give it back to the kernel, and not to a heap that might keep one for each thread; NULL is nothing. */
void mpickpt_block_free(uint8_t *block);

#endif
