#define _GNU_SOURCE

#include "publish.h"

#ifndef __linux__
#error "mpickpt is built for Linux: its commit needs renameat2, sync_file_range and what Linux file systems promise"
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* By number, since older C libraries have no wrapper. */
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1u
#endif

/* Linux moves at most 0x7ffff000 bytes a call; a round piece below that keeps later ones aligned. */
#define MOST ((size_t)1 << 30)

static int
checked(long outcome)
{
    return outcome < 0 ? -errno : 0;
}

static int
renameat2_noreplace(const char *source, const char *target)
{
#ifdef SYS_renameat2
    return checked(syscall(SYS_renameat2, AT_FDCWD, source, AT_FDCWD, target, RENAME_NOREPLACE));
#else
    (void)source;
    (void)target;
    return -ENOSYS;
#endif
}

int
mpickpt_have_renameat2(void)
{
    /* Two empty names: refused with ENOENT by every kernel that has the call. */
    return renameat2_noreplace("", "") != -ENOSYS;
}

int
mpickpt_rename_noreplace(const char *source, const char *target)
{
    return renameat2_noreplace(source, target);
}

int
mpickpt_link(const char *source, const char *target)
{
    return checked(linkat(AT_FDCWD, source, AT_FDCWD, target, 0));
}

int
mpickpt_fsync(int fd)
{
    return checked(fsync(fd));
}

int
mpickpt_sync_range(int fd, int64_t offset, int64_t size, int wait)
{
    unsigned flags = SYNC_FILE_RANGE_WRITE;
    if (wait) {
        flags |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
    }
    if (size == 0) {
        return 0; /* to the kernel 0 means "to the end of the file" */
    }
    int error = checked(sync_file_range(fd, offset, size, flags));
    return error == -ENOSYS ? 0 : error;
}

/* Whether [offset, offset + size) is a range that a file can have. */
static int
range_error(size_t size, int64_t offset)
{
    if (offset < 0) {
        return -EINVAL;
    }
    if (size > (uint64_t)(INT64_MAX - offset)) {
        return -EFBIG;
    }
    return 0;
}

int
mpickpt_pwrite_all(int fd, const void *data, size_t size, int64_t offset)
{
    const char *from = data;
    int error = range_error(size, offset);
    while (error == 0 && size > 0) {
        ssize_t done = pwrite(fd, from, size < MOST ? size : MOST, (off_t)offset);
        if (done < 0) {
            error = errno == EINTR ? 0 : -errno;
        } else if (done == 0) {
            error = -EIO; /* no progress and no reason: a loop would not end */
        } else {
            from += done;
            offset += done;
            size -= (size_t)done;
        }
    }
    return error;
}

int64_t
mpickpt_pread_full(int fd, void *into, size_t size, int64_t offset)
{
    char *to = into;
    int64_t total = 0;
    int error = range_error(size, offset);
    while (error == 0 && size > 0) {
        ssize_t done = pread(fd, to, size < MOST ? size : MOST, (off_t)offset);
        if (done < 0) {
            error = errno == EINTR ? 0 : -errno;
        } else if (done == 0) {
            break;
        } else {
            to += done;
            offset += done;
            total += done;
            size -= (size_t)done;
        }
    }
    return error < 0 ? error : total;
}

int
mpickpt_statfs_type(const char *path, uint32_t *type)
{
    struct statfs found;
    int error;
    do {
        error = checked(statfs(path, &found));
    } while (error == -EINTR);
    if (error == 0) {
        *type = (uint32_t)found.f_type;
    }
    return error;
}

int
mpickpt_preallocate(int fd, int64_t size)
{
    int error;
    if (size == 0) {
        return 0; /* fallocate calls it EINVAL */
    }
    do {
        error = checked(fallocate(fd, 0, 0, (off_t)size));
    } while (error == -EINTR);
    return error == -EOPNOTSUPP || error == -ENOSYS ? 0 : error;
}

/* Write a line at the end of a file, which O_APPEND finds again, behind a line that was cut. */
static int
append(int fd, const char *line, size_t size)
{
    off_t end = lseek(fd, 0, SEEK_END); /* a pipe has no end, and is refused so */
    if (end < 0) {
        return -errno;
    }
    char last = '\n';
    int64_t found = end > 0 ? mpickpt_pread_full(fd, &last, 1, end - 1) : 0;
    if (found < 0) {
        return (int)found;
    }
    if (last == '\n') {
        return checked(pwrite(fd, line, size, end));
    }
    char *both = malloc(size + 1);
    if (both == NULL) {
        return -ENOMEM;
    }
    both[0] = '\n';
    memcpy(both + 1, line, size);
    int error = checked(pwrite(fd, both, size + 1, end));
    free(both);
    return error;
}

int
mpickpt_append_line(const char *path, const char *within, const void *line, size_t size)
{
    struct stat found;
    if (within != NULL && (stat(within, &found) < 0 || !S_ISDIR(found.st_mode))) {
        return 0;
    }
    int fd;
    do { /* for reading too, so that opening a pipe without a reader does not wait for one */
        fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return -errno;
    }
    int error = append(fd, line, size);
    close(fd);
    return error;
}
