/* CRC-32C (Castagnoli, reflected 0x82F63B78): the processor's instruction where there is one, a table elsewhere. */
#ifndef MPICKPT_CRC32C_H
#define MPICKPT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Fill the tables and choose the kernel; may be called from several threads, and must come before the others. */
void mpickpt_crc32c_init(void);

/* "sse4.2", "armv8" or "table": what mpickpt_crc32c runs on here. */
const char *mpickpt_crc32c_kind(void);

/* Continue `crc` (0 at the start) over `size` bytes. crc(b, crc(a, 0)) equals crc(a b, 0). */
uint32_t mpickpt_crc32c(const void *data, size_t size, uint32_t crc);
uint32_t mpickpt_crc32c_table(const void *data, size_t size, uint32_t crc);

#endif
