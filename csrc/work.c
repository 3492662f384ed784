#define _GNU_SOURCE

#include "work.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "direct.h"
#include "publish.h"

#define BILLION INT64_C(1000000000)

static int64_t
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * BILLION + time.tv_nsec;
}

static int
opened(const char *path, int flags)
{
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

static int
create(const mpickpt_step *step, int *slot)
{
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    int fd = opened(step->path, flags);
    if (fd == -ENOENT && step->target != NULL) {
        if (mkdir(step->target, 0777) < 0 && errno != EEXIST) {
            return -errno;
        }
        fd = opened(step->path, flags);
    }
    *slot = fd < 0 ? -1 : fd;
    return fd >= 0 || (fd == -ENOENT && step->number) ? 0 : fd;
}

/* Only where the same file is met again: a name can be another's by now. */
static int
again(const mpickpt_step *step, int fd)
{
    struct statfs system;
    struct stat first, second;
    const int64_t *kinds = step->data;
    int known = 0;
    if (fstatfs(fd, &system) < 0) {
        return -1;
    }
    for (size_t i = 0; i < step->size / sizeof *kinds; i++) {
        known |= kinds[i] == (int64_t)(uint32_t)system.f_type;
    }
    int other = known ? opened(step->path, O_WRONLY | O_DIRECT | O_NOFOLLOW) : -1;
    if (other >= 0 && (fstat(fd, &first) < 0 || fstat(other, &second) < 0 || first.st_dev != second.st_dev ||
                       first.st_ino != second.st_ino)) {
        close(other);
        other = -1;
    }
    return other < 0 ? -1 : other;
}

static int
identify(mpickpt_step *step, int fd)
{
    struct stat found;
    if (fstat(fd, &found) < 0) {
        return -errno;
    }
    step->first = (int64_t)found.st_dev;
    step->second = (int64_t)found.st_ino;
    return 0;
}

static int
sync_directory(const mpickpt_step *step)
{
    int fd = opened(step->path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        return fd == -ENOENT && step->number ? 0 : fd;
    }
    int error = mpickpt_fsync(fd);
    int closed = close(fd) < 0 ? -errno : 0;
    return error < 0 && error != -EINVAL ? error : closed;
}

static int
list(mpickpt_step *step)
{
    DIR *directory = opendir(step->path);
    if (directory == NULL) {
        return -errno;
    }
    int error = 0;
    size_t room = 0;
    step->names_size = 0;
    while (error == 0) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) {
            error = -errno;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        size_t size = strlen(entry->d_name) + 1;
        if (step->names_size + size > room) {
            room = 2 * (room + size) + 1024;
            char *more = realloc(step->names, room);
            if (more == NULL) {
                error = -ENOMEM;
                break;
            }
            step->names = more;
        }
        memcpy(step->names + step->names_size, entry->d_name, size);
        step->names_size += size;
    }
    closedir(directory);
    return error;
}

/* One thread's part in the chunks of a step. */
typedef struct {
    const mpickpt_chunks *chunks;
    mpickpt_shard shard;
    uint8_t *stretch;
    int outcome;
    int64_t where;
    pthread_t thread;
} part;

static int
part_init(part *the, const mpickpt_chunks *chunks, int fd, int direct)
{
    *the = (part){.chunks = chunks, .shard = chunks->shard, .outcome = MPICKPT_DONE, .where = -1};
    the->shard.fd = fd;
    the->shard.direct = direct;
    the->stretch = malloc(MPICKPT_BLAKE3_STRETCH);
    the->shard.block = direct < 0 ? NULL : mpickpt_block();
    return the->stretch != NULL && (direct < 0 || the->shard.block != NULL);
}

static void *
part_run(void *given)
{
    part *the = given;
    const mpickpt_chunks *chunks = the->chunks;
    the->outcome = mpickpt_write_chunks(&the->shard, chunks->list, chunks->count, chunks->pieces, chunks->piece_count,
                                        the->stretch, &the->where);
    return NULL;
}

static void
part_free(part *the)
{
    free(the->stretch);
    mpickpt_block_free(the->shard.block);
}

/* The failure of the first place in the payload counts, whichever thread met it; what stopped because of another's does not
   count beside that. Threads that cannot be had are done without. */
static int
write_chunks(mpickpt_step *step, int fd, int direct)
{
    const mpickpt_chunks *chunks = step->chunks;
    size_t most = chunks->threads > 1 ? (size_t)chunks->threads : 1, made = 0;
    most = most < chunks->count ? most : chunks->count;
    most = most > 0 ? most : 1;
    part *parts = calloc(most, sizeof *parts);
    if (parts == NULL) {
        return -ENOMEM;
    }
    while (made < most) {
        part *the = &parts[made];
        if (!part_init(the, chunks, fd, direct) || (made > 0 && pthread_create(&the->thread, NULL, part_run, the) != 0)) {
            part_free(the);
            break;
        }
        made++;
    }
    if (made == 0) {
        free(parts);
        return -ENOMEM;
    }
    part_run(&parts[0]);
    int outcome = MPICKPT_DONE;
    for (size_t i = 0; i < made; i++) {
        if (i > 0) {
            pthread_join(parts[i].thread, NULL);
        }
        int failed = parts[i].outcome != MPICKPT_DONE && parts[i].outcome != MPICKPT_STOPPED;
        if (failed && (outcome == MPICKPT_DONE || outcome == MPICKPT_MORE || parts[i].where < step->first)) {
            outcome = parts[i].outcome;
            step->first = parts[i].where;
        }
        part_free(&parts[i]);
    }
    free(parts);
    if (outcome == MPICKPT_DONE && __atomic_load_n(&chunks->shard.watch->cancel, __ATOMIC_RELAXED)) {
        return -ECANCELED;
    }
    return outcome;
}

/* Close the file of a slot; the descriptor is gone after an error, too. */
static int
let_go(int *slot)
{
    int fd = *slot;
    *slot = -1;
    return fd >= 0 && close(fd) < 0 ? -errno : 0;
}

static int
do_step(mpickpt_work *work, mpickpt_step *step)
{
    int *slot = &work->slots[step->slot];
    switch (step->kind) {
    case MPICKPT_CREATE:
        return create(step, slot);
    case MPICKPT_DIRECT:
        *slot = again(step, work->slots[step->number]);
        step->first = *slot >= 0;
        return 0;
    case MPICKPT_IDENTIFY:
        return identify(step, *slot);
    case MPICKPT_RESERVE:
        return mpickpt_preallocate(*slot, step->number);
    case MPICKPT_WRITE:
        return mpickpt_pwrite_all(*slot, step->data, step->size, step->number);
    case MPICKPT_CHUNKS:
        return write_chunks(step, *slot, work->slots[step->number]);
    case MPICKPT_CHECK:
        return work->watch != NULL && __atomic_load_n(&work->watch->cancel, __ATOMIC_RELAXED) ? -ECANCELED : 0;
    case MPICKPT_SYNC:
        return *slot < 0 && step->number ? 0 : mpickpt_fsync(*slot);
    case MPICKPT_CLOSE:
        return let_go(slot);
    case MPICKPT_LET_GO:
        let_go(slot);
        return 0;
    case MPICKPT_RENAME:
        return mpickpt_rename_noreplace(step->path, step->target);
    case MPICKPT_LINK:
        return mpickpt_link(step->path, step->target);
    case MPICKPT_REMOVE:
        unlink(step->path);
        return 0;
    case MPICKPT_SYNC_DIRECTORY:
        return sync_directory(step);
    case MPICKPT_LIST:
        return list(step);
    case MPICKPT_APPEND:
        return mpickpt_append_line(step->path, step->target, step->data, step->size);
    default:
        return -EINVAL;
    }
}

void
mpickpt_work_close(mpickpt_work *work)
{
    for (int i = 0; i < MPICKPT_SLOTS; i++) {
        let_go(&work->slots[i]);
    }
}

void
mpickpt_work_run(mpickpt_work *work, size_t upto)
{
    for (; work->error == 0 && work->next < upto && work->next < work->count;) {
        mpickpt_step *step = &work->steps[work->next];
        int64_t began = now();
        if (step->slow && work->syncing != NULL) {
            __atomic_fetch_add(work->syncing, 1, __ATOMIC_RELAXED);
        }
        work->error = do_step(work, step);
        if (step->slow && work->syncing != NULL) {
            __atomic_fetch_sub(work->syncing, 1, __ATOMIC_RELAXED);
        }
        step->took += now() - began;
        if (work->error == MPICKPT_MORE) { /* as many chunks as were asked for: the same step goes on */
            work->error = 0;
            break;
        }
        if (work->error == 0) {
            work->next++;
        }
    }
    if (work->error != 0) {
        mpickpt_work_close(work);
    }
    work->ended_at = now();
}

static void *
run_all(void *given)
{
    mpickpt_work *work = given;
    mpickpt_work_run(work, work->count);
    pthread_mutex_lock(&work->lock);
    work->ended = 1;
    pthread_cond_broadcast(&work->changed);
    pthread_mutex_unlock(&work->lock);
    return NULL;
}

int
mpickpt_work_init(mpickpt_work *work)
{
    pthread_condattr_t monotonic;
    for (int i = 0; i < MPICKPT_SLOTS; i++) {
        work->slots[i] = -1;
    }
    int error = pthread_mutex_init(&work->lock, NULL);
    if (error != 0) {
        return -error;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    error = pthread_cond_init(&work->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (error != 0) {
        pthread_mutex_destroy(&work->lock);
    }
    return -error;
}

void
mpickpt_work_free(mpickpt_work *work)
{
    mpickpt_work_close(work);
    for (size_t i = 0; i < work->count; i++) {
        free(work->steps[i].names);
    }
    pthread_cond_destroy(&work->changed);
    pthread_mutex_destroy(&work->lock);
}

int
mpickpt_work_begin(mpickpt_work *work)
{
    const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL}; /* of which a thread itself is the cause */
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    int error = pthread_attr_init(&detached);
    if (error != 0) {
        return -error;
    }
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        sigdelset(&all, own[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread, and those that it starts, have this mask from the first */
    work->begun = 1;
    error = pthread_create(&thread, &detached, run_all, work);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    if (error != 0) {
        work->begun = 0;
    }
    return -error;
}

int
mpickpt_work_wait(mpickpt_work *work, int64_t nanoseconds)
{
    int64_t until = now() + nanoseconds;
    struct timespec end = {.tv_sec = (time_t)(until / BILLION), .tv_nsec = (long)(until % BILLION)};
    pthread_mutex_lock(&work->lock);
    while (!work->ended && pthread_cond_timedwait(&work->changed, &work->lock, &end) == 0) {
    }
    int ended = work->ended;
    pthread_mutex_unlock(&work->lock);
    return ended;
}
