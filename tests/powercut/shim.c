/* Preloaded into a rank: the k-th call of a kind on the files below a folder fails, is done but reported failed, is cut
 * short, reads a changed byte, or is where the process is killed. Armed and asked from inside, through `fault_arm`.
 * With NO_RENAMEAT2 in the environment, renameat2 is refused as by file systems that do not know its flag. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum mode { FAIL, LOST, SHORT, FLIP, KILL };

static char kind_of_fault[16], folder[PATH_MAX];
static enum mode mode_of_fault;
static int error_of_fault, every;
static long nth;
static atomic_int armed;
static atomic_long count, hits;

/* n = 0: every call of the kind. */
void fault_arm(const char *kind, long n, int error, int mode, const char *below)
{
    armed = 0;
    snprintf(kind_of_fault, sizeof kind_of_fault, "%s", kind);
    snprintf(folder, sizeof folder, "%s", below);
    nth = n;
    every = n == 0;
    error_of_fault = error;
    mode_of_fault = (enum mode)mode;
    count = 0;
    hits = 0;
    armed = 1;
}

/* Ends it; gives how many calls it met. */
long fault_disarm(void)
{
    armed = 0;
    return hits;
}

static int inside(int fd, const char *path)
{
    char link[64], found[PATH_MAX];
    if (path != NULL && path[0] == '/') {
        return strncmp(path, folder, strlen(folder)) == 0;
    }
    if (fd < 0) {
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, found, sizeof found - 1);
    if (size < 0) {
        return 0;
    }
    found[size] = 0;
    return strncmp(found, folder, strlen(folder)) == 0;
}

/* Whether this call is the one. */
static int due(const char *kind, int fd, const char *path)
{
    int kept = errno;
    int yes = armed && strcmp(kind, kind_of_fault) == 0 && inside(fd, path) && (++count == nth || every);
    errno = kept;
    if (yes) {
        hits++;
        if (mode_of_fault == KILL) {
            kill(getpid(), SIGKILL);
        }
    }
    return yes;
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define FAULTY(kind, fd, path, call)                        \
    do {                                                    \
        int hit = due(kind, fd, path);                      \
        if (hit && mode_of_fault == FAIL) {                 \
            errno = error_of_fault;                         \
            return -1;                                      \
        }                                                   \
        __typeof__(call) done = call;                       \
        if (hit && mode_of_fault == LOST && done >= 0) {    \
            errno = error_of_fault;                         \
            return -1;                                      \
        }                                                   \
        return done;                                        \
    } while (0)

int fsync(int fd)
{
    FAULTY("fsync", fd, NULL, REAL(fsync)(fd));
}

int close(int fd)
{
    int hit = armed && due("close", fd, NULL);
    int done = REAL(close)(fd); /* also when it fails the descriptor is gone */
    if (hit && done == 0) {
        errno = error_of_fault;
        return -1;
    }
    return done;
}

int mkdir(const char *path, mode_t mode)
{
    FAULTY("mkdir", -1, path, REAL(mkdir)(path, mode));
}

int unlink(const char *path)
{
    FAULTY("unlink", -1, path, REAL(unlink)(path));
}

int rmdir(const char *path)
{
    FAULTY("unlink", -1, path, REAL(rmdir)(path));
}

int unlinkat(int fd, const char *path, int flags)
{
    FAULTY("unlink", fd, path, REAL(unlinkat)(fd, path, flags));
}

int linkat(int from, const char *source, int to, const char *target, int flags)
{
    FAULTY("link", -1, target, REAL(linkat)(from, source, to, target, flags));
}

long syscall(long number, ...)
{
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(list, long);
    }
    va_end(list);
    if (number == SYS_renameat2) {
        const char *source = (const char *)a[1];
        if (getenv("NO_RENAMEAT2") != NULL && source[0] != 0) { /* two empty names ask whether the kernel has the call */
            errno = EINVAL;
            return -1;
        }
        FAULTY("rename", -1, (const char *)a[3], REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]));
    }
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static mode_t mode_in(int flags, va_list list)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

#define OPEN(name)                                                         \
    int name(const char *path, int flags, ...)                             \
    {                                                                      \
        va_list list;                                                      \
        va_start(list, flags);                                             \
        mode_t mode = mode_in(flags, list);                                \
        va_end(list);                                                      \
        FAULTY("open", -1, path, REAL(name)(path, flags, mode));           \
    }
#define OPENAT(name)                                                       \
    int name(int fd, const char *path, int flags, ...)                     \
    {                                                                      \
        va_list list;                                                      \
        va_start(list, flags);                                             \
        mode_t mode = mode_in(flags, list);                                \
        va_end(list);                                                      \
        FAULTY("open", fd, path, REAL(name)(fd, path, flags, mode));       \
    }
#define FALLOCATE(name, offset_type)                                       \
    int name(int fd, int mode, offset_type offset, offset_type size)       \
    {                                                                      \
        FAULTY("fallocate", fd, NULL, REAL(name)(fd, mode, offset, size)); \
    }
#define PWRITE(name, offset_type)                                          \
    ssize_t name(int fd, const void *data, size_t size, offset_type at)    \
    {                                                                      \
        if (armed && mode_of_fault == SHORT && size > 1 && due("write", fd, NULL)) { \
            return REAL(name)(fd, data, size / 3 + 1, at);                 \
        }                                                                  \
        FAULTY("write", fd, NULL, REAL(name)(fd, data, size, at));         \
    }
#define PREAD(name, offset_type)                                           \
    ssize_t name(int fd, void *data, size_t size, offset_type at)          \
    {                                                                      \
        int hit = armed && due("read", fd, NULL);                          \
        if (hit && mode_of_fault == FAIL) {                                \
            errno = error_of_fault;                                        \
            return -1;                                                     \
        }                                                                  \
        if (hit && mode_of_fault == SHORT && size > 1) {                   \
            size = size / 3 + 1;                                           \
        }                                                                  \
        ssize_t done = REAL(name)(fd, data, size, at);                     \
        if (hit && mode_of_fault == FLIP && done > 0) {                    \
            ((char *)data)[done / 2] ^= 0x20;                              \
        }                                                                  \
        return done;                                                       \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
PREAD(pread, off_t)
PREAD(pread64, off64_t)
