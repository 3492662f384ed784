/* mpickpt._native.Work: steps for Python. Besides _nativemodule.c the only file that knows it. */

#include "worktype.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

/* What one step keeps of Python's while the work may use it. */
typedef struct {
    PyObject *path, *target, *owner;
    Py_buffer data;
    Py_buffer buffers[7];
    uint32_t key[8];
    mpickpt_chunks chunks;
} kept;

typedef struct {
    PyObject_HEAD
    mpickpt_work work;
    mpickpt_step *steps;
    kept *keeps;
    Py_buffer watch, syncing;
    int ready;
} Work;

enum { KEY, DIGESTS, CRCS, WATCH, TURN, LIST, PIECES };

/* (data_offset, payload, chunk, key, digests, crcs, watch, turn, chunks, pieces, owner, threads, most); `owner` is kept for as
   long as the memory may be read whose addresses stand in `pieces` */
static int
take_chunks(PyObject *given, kept *keep)
{
    long long data_offset, payload, size, threads, most;
    PyObject *owner;
    Py_buffer *b = keep->buffers;
    if (!PyArg_ParseTuple(given, "LLLy*w*w*w*w*y*y*OLL:chunks", &data_offset, &payload, &size, &b[KEY], &b[DIGESTS],
                          &b[CRCS], &b[WATCH], &b[TURN], &b[LIST], &b[PIECES], &owner, &threads, &most)) {
        return 0;
    }
    keep->owner = Py_NewRef(owner);
    int64_t count = size > 0 && payload >= 0 ? payload / size + (payload % size != 0) : -1;
    int fit = count >= 0 && data_offset >= 0 && b[KEY].len == sizeof keep->key &&
              b[WATCH].len == sizeof(mpickpt_watch) && b[TURN].len == sizeof(mpickpt_turn) &&
              b[DIGESTS].len == count * MPICKPT_BLAKE3_SIZE && b[CRCS].len == count * 4 &&
              b[LIST].len % (Py_ssize_t)sizeof(int64_t) == 0 && b[PIECES].len % (Py_ssize_t)sizeof(mpickpt_piece) == 0;
    const int64_t *number = b[LIST].buf;
    for (size_t i = 0; fit && i < (size_t)b[LIST].len / sizeof *number; i++) {
        fit = number[i] >= 0 && number[i] < count;
    }
    if (!fit) {
        PyErr_SetString(PyExc_ValueError, "sizes, tables and chunks do not fit each other");
        return 0;
    }
    memcpy(keep->key, b[KEY].buf, sizeof keep->key);
    keep->chunks = (mpickpt_chunks){
        .shard = {.data_offset = data_offset, .payload = payload, .chunk = size, .key = keep->key,
                  .digests = b[DIGESTS].buf, .crcs = b[CRCS].buf, .watch = b[WATCH].buf, .turn = b[TURN].buf,
                  .most = most},
        .list = b[LIST].buf,
        .count = (size_t)b[LIST].len / sizeof(int64_t),
        .pieces = b[PIECES].buf,
        .piece_count = (size_t)b[PIECES].len / sizeof(mpickpt_piece),
        .threads = threads,
    };
    return 1;
}

/* (kind, slot, slow, number, path, target, data, chunks); the last four or None */
static int
take_step(PyObject *given, mpickpt_step *step, kept *keep)
{
    PyObject *path, *target, *data, *chunks;
    int kind, slot, slow;
    long long number;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a step is a tuple");
        return 0;
    }
    if (!PyArg_ParseTuple(given, "iipLOOOO:step", &kind, &slot, &slow, &number, &path, &target, &data, &chunks) ||
        (path != Py_None && !PyUnicode_FSConverter(path, &keep->path)) ||
        (target != Py_None && !PyUnicode_FSConverter(target, &keep->target)) ||
        (data != Py_None && PyObject_GetBuffer(data, &keep->data, PyBUF_SIMPLE) < 0) ||
        (chunks != Py_None && !take_chunks(chunks, keep))) {
        return 0;
    }
    int other = kind == MPICKPT_DIRECT || kind == MPICKPT_CHUNKS;
    int named = kind == MPICKPT_CREATE || kind == MPICKPT_DIRECT || kind >= MPICKPT_RENAME;
    int two = kind == MPICKPT_RENAME || kind == MPICKPT_LINK;
    if (kind < 0 || kind >= MPICKPT_KINDS || slot < 0 || slot >= MPICKPT_SLOTS ||
        (other && (number < 0 || number >= MPICKPT_SLOTS)) || (named && keep->path == NULL) ||
        (two && keep->target == NULL) || (kind == MPICKPT_CHUNKS && chunks == Py_None)) {
        PyErr_SetString(PyExc_ValueError, "a step is not complete");
        return 0;
    }
    step->kind = kind;
    step->slot = slot;
    step->slow = slow;
    step->number = number;
    step->path = keep->path == NULL ? NULL : PyBytes_AS_STRING(keep->path);
    step->target = keep->target == NULL ? NULL : PyBytes_AS_STRING(keep->target);
    step->data = keep->data.buf;
    step->size = (size_t)keep->data.len;
    step->chunks = &keep->chunks;
    step->first = step->second = -1;
    return 1;
}

static void
release(Work *self)
{
    for (size_t i = 0; self->keeps != NULL && i < self->work.count; i++) {
        kept *keep = &self->keeps[i];
        Py_XDECREF(keep->path);
        Py_XDECREF(keep->target);
        Py_XDECREF(keep->owner);
        PyBuffer_Release(&keep->data);
        for (size_t j = 0; j < sizeof keep->buffers / sizeof *keep->buffers; j++) {
            PyBuffer_Release(&keep->buffers[j]);
        }
    }
    PyBuffer_Release(&self->watch);
    PyBuffer_Release(&self->syncing);
    free(self->keeps);
    free(self->steps);
}

static PyObject *
new_work(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *list;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) != 0) {
        PyErr_SetString(PyExc_TypeError, "Work takes no keywords");
        return NULL;
    }
    Work *self = (Work *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!w*w*:Work", &PyList_Type, &list, &self->watch, &self->syncing)) {
        Py_DECREF(self);
        return NULL;
    }
    mpickpt_work *work = &self->work;
    size_t count = (size_t)PyList_GET_SIZE(list);
    if (self->watch.len != sizeof(mpickpt_watch) || self->syncing.len != sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "what is watched has another size");
        Py_DECREF(self);
        return NULL;
    }
    self->steps = calloc(count + 1, sizeof *self->steps);
    self->keeps = calloc(count + 1, sizeof *self->keeps);
    if (self->steps == NULL || self->keeps == NULL) {
        PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    work->count = count;
    work->steps = self->steps;
    work->watch = self->watch.buf;
    work->syncing = self->syncing.buf;
    for (size_t i = 0; i < count; i++) {
        if (!take_step(PyList_GET_ITEM(list, (Py_ssize_t)i), &self->steps[i], &self->keeps[i])) {
            Py_DECREF(self);
            return NULL;
        }
    }
    int error = mpickpt_work_init(work);
    if (error < 0) {
        errno = -error;
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    self->ready = 1;
    return (PyObject *)self;
}

static void
dealloc(PyObject *object)
{
    Work *self = (Work *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->work.begun && !mpickpt_work_wait(&self->work, 0)) {
        return; /* a thread that may never come back uses all of it: it stays for good */
    }
    if (self->ready) {
        mpickpt_work_free(&self->work);
    }
    release(self);
    type->tp_free(object);
    Py_DECREF(type);
}

/* Give (step, error): that comes next, and 0; or that failed, and why. */
static PyObject *
state(Work *self)
{
    return Py_BuildValue("ni", (Py_ssize_t)self->work.next, self->work.error);
}

/* Whether the steps are not in another thread's hands; sets an exception otherwise. */
static int
at_rest(Work *self)
{
    if (self->work.begun && !mpickpt_work_wait(&self->work, 0)) {
        PyErr_SetString(PyExc_RuntimeError, "the work is being done");
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(run_doc, "run(upto, /)\n--\n\n"
                      "Do the steps before `upto` in this thread, without the interpreter lock. Returns (step, error).");

static PyObject *
run(PyObject *object, PyObject *args)
{
    Work *self = (Work *)object;
    Py_ssize_t upto;
    if (!PyArg_ParseTuple(args, "n:run", &upto) || !at_rest(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    mpickpt_work_run(&self->work, upto < 0 ? 0 : (size_t)upto);
    Py_END_ALLOW_THREADS
    return state(self);
}

PyDoc_STRVAR(begin_doc, "begin()\n--\n\n"
                        "Begin to do all steps in a thread that never takes the interpreter lock.");

static PyObject *
begin(PyObject *object, PyObject *unused)
{
    (void)unused;
    Work *self = (Work *)object;
    if (self->work.begun) {
        PyErr_SetString(PyExc_RuntimeError, "the work was begun before");
        return NULL;
    }
    int error = mpickpt_work_begin(&self->work);
    if (error < 0) {
        errno = -error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(wait_doc, "wait(seconds, /)\n--\n\n"
                       "Wait for the end of what `begin` began, without the interpreter lock; tell whether it has come.");

static PyObject *
wait_(PyObject *object, PyObject *args)
{
    Work *self = (Work *)object;
    double seconds;
    if (!PyArg_ParseTuple(args, "d:wait", &seconds)) {
        return NULL;
    }
    int ended;
    int64_t most = seconds > 0 ? (int64_t)((seconds < 1e6 ? seconds : 1e6) * 1e9) : 0;
    if (most == 0) { /* only a look: to get the lock back might take long */
        return PyBool_FromLong(mpickpt_work_wait(&self->work, 0));
    }
    Py_BEGIN_ALLOW_THREADS
    ended = mpickpt_work_wait(&self->work, most);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(ended);
}

PyDoc_STRVAR(go_on_doc, "go_on()\n--\n\n"
                        "Pass over the step that has failed: the next `run` goes on behind it.");

static PyObject *
go_on(PyObject *object, PyObject *unused)
{
    (void)unused;
    Work *self = (Work *)object;
    if (!at_rest(self)) {
        return NULL;
    }
    if (self->work.error != 0) {
        self->work.error = 0;
        self->work.next++;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(found_doc, "found(step, /)\n--\n\n"
                        "What came of a step: (nanoseconds, first, second, names).");

static PyObject *
found(PyObject *object, PyObject *args)
{
    Work *self = (Work *)object;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, "n:found", &index) || !at_rest(self)) {
        return NULL;
    }
    if (index < 0 || (size_t)index >= self->work.count) {
        PyErr_SetString(PyExc_IndexError, "there is no such step");
        return NULL;
    }
    const mpickpt_step *step = &self->steps[index];
    return Py_BuildValue("LLLy#", (long long)step->took, (long long)step->first, (long long)step->second,
                         step->names == NULL ? "" : step->names, (Py_ssize_t)step->names_size);
}

PyDoc_STRVAR(close_doc, "close()\n--\n\nLet go of the files that are open.");

static PyObject *
close_(PyObject *object, PyObject *unused)
{
    (void)unused;
    Work *self = (Work *)object;
    if (!at_rest(self)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    mpickpt_work_close(&self->work);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *
state_(PyObject *object, PyObject *unused)
{
    (void)unused;
    Work *self = (Work *)object;
    return at_rest(self) ? state(self) : NULL;
}

static PyObject *
ended_at(PyObject *object, PyObject *unused)
{
    (void)unused;
    Work *self = (Work *)object;
    return at_rest(self) ? PyFloat_FromDouble((double)self->work.ended_at / 1e9) : NULL;
}

static PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, run_doc},
    {"begin", begin, METH_NOARGS, begin_doc},
    {"wait", wait_, METH_VARARGS, wait_doc},
    {"go_on", go_on, METH_NOARGS, go_on_doc},
    {"found", found, METH_VARARGS, found_doc},
    {"close", close_, METH_NOARGS, close_doc},
    {"state", state_, METH_NOARGS, "state()\n--\n\n(step, error), as `run` gives them."},
    {"ended_at", ended_at, METH_NOARGS, "ended_at()\n--\n\nWhen the last step had been done, by time.monotonic()."},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(work_doc, "Work(steps, watch, syncing, /)\n--\n\n"
                       "Steps of a save, to be done in one go: see csrc/work.h.");

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)new_work},
    {Py_tp_dealloc, (void *)dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, (void *)work_doc},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "mpickpt._native.Work",
    .basicsize = sizeof(Work),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int
mpickpt_add_work(PyObject *module)
{
    const struct {
        const char *name;
        long value;
    } kinds[] = {
        {"CREATE", MPICKPT_CREATE}, {"DIRECT", MPICKPT_DIRECT}, {"IDENTIFY", MPICKPT_IDENTIFY},
        {"RESERVE", MPICKPT_RESERVE}, {"WRITE", MPICKPT_WRITE}, {"CHUNKS", MPICKPT_CHUNKS}, {"CHECK", MPICKPT_CHECK},
        {"SYNC", MPICKPT_SYNC}, {"CLOSE", MPICKPT_CLOSE}, {"LET_GO", MPICKPT_LET_GO}, {"RENAME", MPICKPT_RENAME},
        {"LINK", MPICKPT_LINK}, {"REMOVE", MPICKPT_REMOVE}, {"SYNC_DIRECTORY", MPICKPT_SYNC_DIRECTORY},
        {"LIST", MPICKPT_LIST}, {"APPEND", MPICKPT_APPEND},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (PyModule_AddIntConstant(module, kinds[i].name, kinds[i].value) < 0) {
            return -1;
        }
    }
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int outcome = type == NULL ? -1 : PyModule_AddObjectRef(module, "Work", type);
    Py_XDECREF(type);
    return outcome;
}
