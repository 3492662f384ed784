/* The system calls of a commit, one each, with errors as negative errno. No policy: who calls decides what an error
   means. */
#ifndef MPICKPT_PUBLISH_H
#define MPICKPT_PUBLISH_H

#include <stddef.h>
#include <stdint.h>

/* 1 where the kernel knows renameat2; whether a file system honours RENAME_NOREPLACE is for a probe to find out. */
int mpickpt_have_renameat2(void);

/* Give `source` the name `target` in one step, and fail with -EEXIST where that name is taken. */
int mpickpt_rename_noreplace(const char *source, const char *target);

/* Give the file `source` the second name `target`; a symbolic link is linked itself, not followed. */
int mpickpt_link(const char *source, const char *target);

/* One fsync. It is never repeated, not after EINTR either: after a failed one the next says ok and the data is gone. */
int mpickpt_fsync(int fd);

/* Start the write-back of [offset, offset + size), or, with `wait`, see it through. A hint: it makes nothing durable,
   but an error that it reports is as final as one of fsync. A kernel without the call is no error. */
int mpickpt_sync_range(int fd, int64_t offset, int64_t size, int wait);

/* Write all of `data` at `offset`; short writes and EINTR are resumed. */
int mpickpt_pwrite_all(int fd, const void *data, size_t size, int64_t offset);

/* Read until `into` is full or the file ends: bytes read, or negative errno. */
int64_t mpickpt_pread_full(int fd, void *into, size_t size, int64_t offset);

/* The f_type of the file system at `path`, cut to 32 bits. */
int mpickpt_statfs_type(const char *path, uint32_t *type);

/* Reserve room for the first `size` bytes of a file, which grows to that size. Not being able to is no error;
   -ENOSPC is. */
int mpickpt_preallocate(int fd, int64_t size);

/* Add a line to a file, which is made if need be, in one write; a line that a crash has cut is ended first. Nothing is
   done where the directory `within` (or NULL) is not there. */
int mpickpt_append_line(const char *path, const char *within, const void *line, size_t size);

#endif
