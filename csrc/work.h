/* Steps: system calls of a save that follow each other, done in one go, so that nobody waits for the interpreter between
   two of them; in the thread that asks, or in one of their own that no interpreter knows. No policy: who made the list
   says what is done, and in which order, and decides what an error means. */
#ifndef MPICKPT_WORK_H
#define MPICKPT_WORK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "pass.h"

#define MPICKPT_SLOTS 8

enum {
    MPICKPT_CREATE = 0,     /* a new file, open for writing in `slot`; where its folder `target` is missing, that first;
                               `number` 1: where a folder is missing the slot stays empty, and a SYNC of it with 1 is none */
    MPICKPT_DIRECT,         /* in `slot` the file of slot `number` once more, past the page cache, if its kind of file
                               system is one of the int64 in `data`; that this is not possible is no error */
    MPICKPT_IDENTIFY,       /* device and inode of `slot` */
    MPICKPT_RESERVE,        /* room for `number` bytes */
    MPICKPT_WRITE,          /* `data` at `number` */
    MPICKPT_CHUNKS,         /* chunks of a payload, past the cache by slot `number`, in several threads */
    MPICKPT_CHECK,          /* go on only if nobody has asked to stop: -ECANCELED */
    MPICKPT_SYNC,           /* once */
    MPICKPT_CLOSE,          /* the slot is empty after an error, too */
    MPICKPT_LET_GO,         /* close, of which nothing is expected any more */
    MPICKPT_RENAME,         /* `path` to `target`, never replacing */
    MPICKPT_LINK,           /* the same by a second name */
    MPICKPT_REMOVE,         /* what is of no more use; that it stays is no error */
    MPICKPT_SYNC_DIRECTORY, /* one that cannot be synced at all (EINVAL) is no error; `number` 1: nor one that is absent */
    MPICKPT_LIST,           /* the names in it */
    MPICKPT_APPEND,         /* the line `data` to a file, see mpickpt_append_line; `target`: within which directory */
    MPICKPT_KINDS
};

/* The chunks of a step, and how many threads they are for. */
typedef struct {
    mpickpt_shard shard; /* fd, direct and block are filled in as the step is done */
    const int64_t *list;
    size_t count;
    const mpickpt_piece *pieces;
    size_t piece_count;
    int64_t threads;
} mpickpt_chunks;

typedef struct {
    int kind;
    int slot;
    int slow; /* whoever watches is to take it for a sync, which may last long */
    int64_t number;
    const char *path, *target;
    const void *data;
    size_t size;
    mpickpt_chunks *chunks;
    /* what came of it */
    int64_t took;          /* nanoseconds */
    int64_t first, second; /* IDENTIFY: device and inode; CHUNKS: where in the payload something is not finite;
                              DIRECT: 1 where it was possible */
    char *names;           /* LIST: one after the other, each ended by a null character */
    size_t names_size;
} mpickpt_step;

typedef struct {
    mpickpt_step *steps;
    size_t count;
    size_t next;   /* the step that comes, or has failed */
    int error;     /* of that: below 0 a negative errno, above 0 what mpickpt_write_chunks says */
    int slots[MPICKPT_SLOTS];
    const mpickpt_watch *watch; /* whose `cancel` a CHECK looks at */
    int64_t *syncing; /* how many slow steps are in flight, for whoever watches; NULL: nobody does */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int begun, ended;    /* of the thread of its own */
    int64_t ended_at;    /* by the monotonic clock: when the last step had been done */
} mpickpt_work;

/* Make ready what is zeroed but for steps, count, watch and syncing: 0 or negative errno. */
int mpickpt_work_init(mpickpt_work *work);

/* Close what is open, in the order of the slots. */
void mpickpt_work_close(mpickpt_work *work);

/* Close what is open, and let go of all but the steps' own memory. */
void mpickpt_work_free(mpickpt_work *work);

/* Do the steps before `upto` that are not done, up to the first that fails; what is open then is closed. It also ends after
   as many chunks as their step asks for, and goes on with that step when it is called again. */
void mpickpt_work_run(mpickpt_work *work, size_t upto);

/* Do all of them in a thread of its own, to which no signal of others goes: negative errno if there is none. */
int mpickpt_work_begin(mpickpt_work *work);

/* Wait for that thread's end, whether it has begun or not, at most so many nanoseconds; tells whether it has ended. */
int mpickpt_work_wait(mpickpt_work *work, int64_t nanoseconds);

#endif
