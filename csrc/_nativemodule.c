/* mpickpt._native: the commit primitives and byte kernels for Python. Besides _worktype.c the only file here that knows it;
   every call gives up the interpreter lock while it works. The signatures for readers are in mpickpt/_native.pyi. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "blake3.h"
#include "crc32c.h"
#include "direct.h"
#include "finite.h"
#include "many.h"
#include "pass.h"
#include "publish.h"
#include "worktype.h"

/* Bytes that are digested in some ten microseconds: to get the lock back may take longer than that, so it is kept. */
#define SHORT (INT64_C(1) << 14)

/* Raise the OSError of a negative errno, naming the files that were given (or NULL). */
static PyObject *
os_error(int error, PyObject *source, PyObject *target)
{
    errno = -error;
    if (source == NULL) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *first = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(source), PyBytes_GET_SIZE(source));
    PyObject *second = NULL;
    if (first != NULL && target != NULL) {
        second = PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(target), PyBytes_GET_SIZE(target));
    }
    if (first != NULL && (target == NULL || second != NULL)) {
        errno = -error;
        PyErr_SetFromErrnoWithFilenameObjects(PyExc_OSError, first, second);
    }
    Py_XDECREF(first);
    Py_XDECREF(second);
    return NULL;
}

static PyObject *
two_names(PyObject *args, const char *format, int (*call)(const char *, const char *))
{
    PyObject *source = NULL, *target = NULL, *result = NULL;
    if (!PyArg_ParseTuple(args, format, PyUnicode_FSConverter, &source, PyUnicode_FSConverter, &target)) {
        return NULL; /* the converter has released what it converted */
    }
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = call(PyBytes_AS_STRING(source), PyBytes_AS_STRING(target));
    Py_END_ALLOW_THREADS
    result = error < 0 ? os_error(error, source, target) : Py_NewRef(Py_None);
    Py_DECREF(source);
    Py_DECREF(target);
    return result;
}

PyDoc_STRVAR(rename_noreplace_doc,
             "rename_noreplace(source, target, /)\n--\n\n"
             "Rename `source` to `target` in one step. FileExistsError where `target` exists.");

static PyObject *
rename_noreplace(PyObject *module, PyObject *args)
{
    (void)module;
    return two_names(args, "O&O&:rename_noreplace", mpickpt_rename_noreplace);
}

PyDoc_STRVAR(link_doc,
             "link(source, target, /)\n--\n\n"
             "Give the file `source` a second name. FileExistsError where `target` exists.");

static PyObject *
link_(PyObject *module, PyObject *args)
{
    (void)module;
    return two_names(args, "O&O&:link", mpickpt_link);
}

PyDoc_STRVAR(fsync_doc,
             "fsync(fd, /)\n--\n\n"
             "Sync a file or directory, once: it is repeated after no error, EINTR included.");

static PyObject *
fsync_(PyObject *module, PyObject *args)
{
    (void)module;
    int fd, error;
    if (!PyArg_ParseTuple(args, "i:fsync", &fd)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    error = mpickpt_fsync(fd);
    Py_END_ALLOW_THREADS
    return error < 0 ? os_error(error, NULL, NULL) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(sync_range_doc,
             "sync_range(fd, offset, size, wait, /)\n--\n\n"
             "Start the write-back of a range of a file, or wait for it. Makes nothing durable by itself.");

static PyObject *
sync_range(PyObject *module, PyObject *args)
{
    (void)module;
    int fd, wait, error;
    long long offset, size;
    if (!PyArg_ParseTuple(args, "iLLp:sync_range", &fd, &offset, &size, &wait)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    error = mpickpt_sync_range(fd, offset, size, wait);
    Py_END_ALLOW_THREADS
    return error < 0 ? os_error(error, NULL, NULL) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(pwrite_all_doc,
             "pwrite_all(fd, data, offset, /)\n--\n\n"
             "Write all of `data` at `offset`, resuming short and interrupted writes.");

static PyObject *
pwrite_all(PyObject *module, PyObject *args)
{
    (void)module;
    int fd, error;
    long long offset;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "iy*L:pwrite_all", &fd, &data, &offset)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    error = mpickpt_pwrite_all(fd, data.buf, (size_t)data.len, offset);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return error < 0 ? os_error(error, NULL, NULL) : Py_NewRef(Py_None);
}

PyDoc_STRVAR(pread_full_doc,
             "pread_full(fd, into, offset, /)\n--\n\n"
             "Read at `offset` until `into` is full or the file ends. Returns the number of bytes read.");

static PyObject *
pread_full(PyObject *module, PyObject *args)
{
    (void)module;
    int fd;
    int64_t done;
    long long offset;
    Py_buffer into;
    if (!PyArg_ParseTuple(args, "iw*L:pread_full", &fd, &into, &offset)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    done = mpickpt_pread_full(fd, into.buf, (size_t)into.len, offset);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&into);
    return done < 0 ? os_error((int)done, NULL, NULL) : PyLong_FromLongLong(done);
}

static PyObject *
crc(PyObject *args, PyObject *keywords, const char *format, uint32_t (*kernel)(const void *, size_t, uint32_t))
{
    static char *names[] = {"", "crc", NULL};
    Py_buffer data;
    PyObject *start = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, &data, &PyLong_Type, &start)) {
        return NULL;
    }
    unsigned long value = start == NULL ? 0 : PyLong_AsUnsignedLong(start);
    if (value > UINT32_MAX) { /* the error value too, where a long is 64 bits */
        PyBuffer_Release(&data);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_OverflowError, "crc must be below 2**32");
        }
        return NULL;
    }
    uint32_t result;
    Py_BEGIN_ALLOW_THREADS
    result = kernel(data.buf, (size_t)data.len, (uint32_t)value);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(result);
}

PyDoc_STRVAR(crc32c_doc,
             "crc32c(data, /, crc=0)\n--\n\n"
             "CRC-32C of `data`, continuing `crc`; by the processor's instruction where it has one.");

static PyObject *
crc32c(PyObject *module, PyObject *args, PyObject *keywords)
{
    (void)module;
    return crc(args, keywords, "y*|O!:crc32c", mpickpt_crc32c);
}

PyDoc_STRVAR(crc32c_table_doc,
             "crc32c_table(data, /, crc=0)\n--\n\n"
             "CRC-32C of `data`, continuing `crc`; by table.");

static PyObject *
crc32c_table(PyObject *module, PyObject *args, PyObject *keywords)
{
    (void)module;
    return crc(args, keywords, "y*|O!:crc32c_table", mpickpt_crc32c_table);
}

PyDoc_STRVAR(first_nonfinite_doc,
             "first_nonfinite(data, dtype, /)\n--\n\n"
             "Index of the first element of little-endian `data` that is NaN or infinite, or -1.");

PyDoc_STRVAR(first_nonfinite_portable_doc,
             "first_nonfinite_portable(data, dtype, /)\n--\n\n"
             "The same as first_nonfinite, without the instructions that only some processors have.");

static PyObject *
scan(PyObject *args, const char *format, int64_t (*kernel)(const void *, size_t, const mpickpt_dtype *))
{
    Py_buffer data;
    const char *name;
    if (!PyArg_ParseTuple(args, format, &data, &name)) {
        return NULL;
    }
    PyObject *result = NULL;
    const mpickpt_dtype *dtype = mpickpt_dtype_of(name);
    if (dtype == NULL) {
        PyErr_Format(PyExc_ValueError, "unknown dtype '%s'", name);
    } else if (data.len % dtype->itemsize != 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of %s elements", data.len, name);
    } else {
        int64_t index;
        Py_BEGIN_ALLOW_THREADS
        index = kernel(data.buf, (size_t)data.len, dtype);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLongLong(index);
    }
    PyBuffer_Release(&data);
    return result;
}

static PyObject *
first_nonfinite(PyObject *module, PyObject *args)
{
    (void)module;
    return scan(args, "y*s:first_nonfinite", mpickpt_first_nonfinite);
}

static PyObject *
first_nonfinite_portable(PyObject *module, PyObject *args)
{
    (void)module;
    return scan(args, "y*s:first_nonfinite_portable", mpickpt_first_nonfinite_portable);
}

PyDoc_STRVAR(blake3_key_doc,
             "blake3_key(context, /)\n--\n\n"
             "The 32 bytes that stand for a context in BLAKE3's key derivation mode.");

static PyObject *
blake3_key(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer context;
    uint32_t key[8];
    if (!PyArg_ParseTuple(args, "y*:blake3_key", &context)) {
        return NULL;
    }
    Py_ssize_t size = context.len;
    if (size <= 1024) {
        mpickpt_blake3_derive(context.buf, (size_t)size, key);
    }
    PyBuffer_Release(&context);
    if (size > 1024) {
        PyErr_SetString(PyExc_ValueError, "a context has at most 1024 bytes");
        return NULL;
    }
    return PyBytes_FromStringAndSize((const char *)key, sizeof key);
}

PyDoc_STRVAR(blake3_doc,
             "blake3(key, data, /)\n--\n\n"
             "The BLAKE3 digest of `data` under a key of `blake3_key`.");

static PyObject *
blake3(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer key, data;
    if (!PyArg_ParseTuple(args, "y*y*:blake3", &key, &data)) {
        return NULL;
    }
    PyObject *result = NULL;
    uint32_t words[8];
    if (key.len != sizeof words) {
        PyErr_SetString(PyExc_ValueError, "a key has 32 bytes");
    } else {
        uint8_t digest[MPICKPT_BLAKE3_SIZE];
        memcpy(words, key.buf, sizeof words);
        PyThreadState *unlocked = data.len <= SHORT ? NULL : PyEval_SaveThread();
        mpickpt_blake3_digest(words, data.buf, (size_t)data.len, digest);
        if (unlocked != NULL) {
            PyEval_RestoreThread(unlocked);
        }
        result = PyBytes_FromStringAndSize((const char *)digest, sizeof digest);
    }
    PyBuffer_Release(&key);
    PyBuffer_Release(&data);
    return result;
}

PyDoc_STRVAR(digest_sum_doc,
             "digest_sum(key, heads, inputs, /)\n--\n\n"
             "The sum of the BLAKE3 digests of many inputs, modulo 2**256, as 32 bytes, little-endian.");

static PyObject *
digest_sum(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer key, heads, inputs;
    if (!PyArg_ParseTuple(args, "y*y*y*:digest_sum", &key, &heads, &inputs)) {
        return NULL;
    }
    PyObject *result = NULL;
    uint32_t words[8];
    const mpickpt_input *input = inputs.buf;
    size_t count = (size_t)inputs.len / sizeof *input;
    int fit = key.len == sizeof words && (size_t)inputs.len % sizeof *input == 0;
    int64_t all = 0, bytes = 0;
    for (size_t i = 0; fit && i < count; i++) {
        fit = input[i].head >= 0 && input[i].head <= MPICKPT_MOST_HEAD && input[i].size >= 0;
        all += input[i].head;
        bytes = input[i].size <= SHORT && bytes <= SHORT ? bytes + input[i].size : 2 * SHORT;
    }
    if (!fit || all != heads.len) {
        PyErr_SetString(PyExc_ValueError, "key, heads and inputs do not fit each other");
    } else {
        uint8_t *stretch = malloc(MPICKPT_BLAKE3_STRETCH);
        if (stretch == NULL) {
            PyErr_NoMemory();
        } else {
            uint8_t sum[MPICKPT_BLAKE3_SIZE];
            memcpy(words, key.buf, sizeof words);
            /* What takes less long than to get the lock back is done with it. */
            PyThreadState *unlocked = all + bytes <= SHORT ? NULL : PyEval_SaveThread();
            mpickpt_digest_sum(words, heads.buf, input, count, stretch, sum);
            if (unlocked != NULL) {
                PyEval_RestoreThread(unlocked);
            }
            free(stretch);
            result = PyBytes_FromStringAndSize((const char *)sum, sizeof sum);
        }
    }
    PyBuffer_Release(&key);
    PyBuffer_Release(&heads);
    PyBuffer_Release(&inputs);
    return result;
}

PyDoc_STRVAR(scatter_doc,
             "scatter(data, start, pieces, /)\n--\n\n"
             "Bring the bytes of a payload from `start` on to the pieces that they belong to. Returns -1, or where in the\n"
             "payload a value lies that is not finite and must be.");

static PyObject *
scatter(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer data, pieces;
    long long start;
    if (!PyArg_ParseTuple(args, "y*Ly*:scatter", &data, &start, &pieces)) {
        return NULL;
    }
    int outcome = -EINVAL;
    int64_t where = -1;
    if ((size_t)pieces.len % sizeof(mpickpt_piece) == 0) {
        Py_BEGIN_ALLOW_THREADS
        outcome = mpickpt_scatter(data.buf, start, data.len, pieces.buf, (size_t)pieces.len / sizeof(mpickpt_piece),
                                  &where);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&pieces);
    if (outcome < 0) {
        PyErr_SetString(PyExc_ValueError, "pieces do not fit the payload");
        return NULL;
    }
    return PyLong_FromLongLong(where);
}

PyDoc_STRVAR(copy_all_doc,
             "copy_all(copies, next, /)\n--\n\n"
             "Make the copies of a list that are still to be made; threads may share it.");

static PyObject *
copy_all(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer copies, next;
    if (!PyArg_ParseTuple(args, "y*w*:copy_all", &copies, &next)) {
        return NULL;
    }
    const mpickpt_copy *copy = copies.buf;
    size_t count = (size_t)copies.len / sizeof *copy;
    int fit = (size_t)copies.len % sizeof *copy == 0 && next.len == sizeof(int64_t) && *(int64_t *)next.buf >= 0;
    for (size_t i = 0; fit && i < count; i++) {
        fit = copy[i].size >= 0;
    }
    if (fit) {
        Py_BEGIN_ALLOW_THREADS
        mpickpt_copy_all(copy, count, next.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&copies);
    PyBuffer_Release(&next);
    if (!fit) {
        PyErr_SetString(PyExc_ValueError, "these are no copies");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* What NumPy's arrays give as __array_struct__: its array interface, version 3. */
typedef struct {
    int two; /* 2, so that anything else is noticed */
    int axes;
    char kind;
    int itemsize;
    int flags;
    Py_ssize_t *shape, *strides;
    void *data;
} array_struct;

PyDoc_STRVAR(places_doc,
             "places(arrays, /)\n--\n\n"
             "Where each array of a tuple lies: address, bytes of its elements, NumPy's flags; as bytes of int64.");

static int
place_of(PyObject *array, int64_t row[3])
{
    PyObject *capsule = PyObject_GetAttrString(array, "__array_struct__");
    if (capsule == NULL) {
        return -1;
    }
    int outcome = -1;
    const array_struct *found = PyCapsule_GetPointer(capsule, NULL);
    if (found != NULL && (found->two != 2 || found->axes < 0 || found->itemsize < 0)) {
        PyErr_SetString(PyExc_ValueError, "this is no array");
    } else if (found != NULL) {
        int64_t size = found->itemsize;
        for (int axis = 0; axis < found->axes; axis++) {
            size *= (int64_t)found->shape[axis];
        }
        row[0] = (int64_t)(uintptr_t)found->data;
        row[1] = size;
        row[2] = found->flags;
        outcome = 0;
    }
    Py_DECREF(capsule);
    return outcome;
}

static PyObject *
places(PyObject *module, PyObject *arrays)
{
    (void)module;
    if (!PyTuple_CheckExact(arrays)) { /* a list might change meanwhile */
        PyErr_SetString(PyExc_TypeError, "arrays come as a tuple");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(arrays);
    PyObject *result = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)(3 * sizeof(int64_t)));
    if (result == NULL) {
        return NULL;
    }
    char *rows = PyBytes_AS_STRING(result);
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t row[3];
        if (place_of(PyTuple_GET_ITEM(arrays, i), row) < 0) {
            Py_DECREF(result);
            return NULL;
        }
        memcpy(rows + (size_t)i * sizeof row, row, sizeof row);
    }
    return result;
}

PyDoc_STRVAR(blake3_limit_doc,
             "blake3_limit(lanes, /)\n--\n\n"
             "Use BLAKE3 kernels of at most so many lanes from now on, for tests. Returns the kind that is used.");

static PyObject *
blake3_limit(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned lanes;
    if (!PyArg_ParseTuple(args, "I:blake3_limit", &lanes)) {
        return NULL;
    }
    mpickpt_blake3_limit(lanes);
    return PyUnicode_FromString(mpickpt_blake3_kind());
}

PyDoc_STRVAR(scan_number_doc,
             "scan_number(dtype, /)\n--\n\n"
             "The number by which `write_chunks` knows a dtype; -1 where its elements are always finite.");

static PyObject *
scan_number(PyObject *module, PyObject *args)
{
    (void)module;
    const char *name;
    if (!PyArg_ParseTuple(args, "s:scan_number", &name)) {
        return NULL;
    }
    const mpickpt_dtype *dtype = mpickpt_dtype_of(name);
    if (dtype == NULL) {
        return PyErr_Format(PyExc_ValueError, "unknown dtype '%s'", name);
    }
    return PyLong_FromLongLong(mpickpt_dtype_number(dtype));
}

/* What the two passes are given alike. */
typedef struct {
    mpickpt_shard shard;
    uint32_t key[8];
    uint8_t *stretch;
    long long data_offset, payload, chunk, most;
    Py_buffer key_bytes, digests, crcs, watch, turn, list;
} pass;

static void
release(pass *the)
{
    free(the->stretch);
    mpickpt_block_free(the->shard.block);
    PyBuffer_Release(&the->key_bytes);
    PyBuffer_Release(&the->digests);
    PyBuffer_Release(&the->crcs);
    PyBuffer_Release(&the->watch);
    PyBuffer_Release(&the->turn);
    PyBuffer_Release(&the->list);
}

/* Take the arguments over, and look whether sizes and chunk numbers fit each other; `row` is how many numbers make one row
   of the list. */
static int
fits(pass *the, size_t row)
{
    mpickpt_shard *shard = &the->shard;
    shard->data_offset = the->data_offset;
    shard->payload = the->payload;
    shard->chunk = the->chunk;
    shard->most = the->most;
    if (shard->payload < 0 || shard->chunk <= 0 || shard->data_offset < 0 || the->key_bytes.len != sizeof the->key ||
        the->watch.len != sizeof(mpickpt_watch) || the->turn.len != sizeof(mpickpt_turn)) {
        return 0;
    }
    int64_t chunks = shard->payload / shard->chunk + (shard->payload % shard->chunk != 0);
    if (the->digests.len / MPICKPT_BLAKE3_SIZE != chunks || the->digests.len % MPICKPT_BLAKE3_SIZE != 0 ||
        the->crcs.len / 4 != chunks || the->crcs.len % 4 != 0 || the->list.len % (row * sizeof(int64_t)) != 0) {
        return 0;
    }
    const int64_t *number = the->list.buf;
    for (size_t i = 0; i < (size_t)the->list.len / sizeof(int64_t); i += row) {
        if (number[i] < 0 || number[i] >= chunks) {
            return 0;
        }
    }
    memcpy(the->key, the->key_bytes.buf, sizeof the->key);
    shard->key = the->key;
    shard->digests = the->digests.buf;
    shard->crcs = the->crcs.buf;
    shard->watch = the->watch.buf;
    shard->turn = the->turn.buf;
    return 1;
}

/* Make ready, or set an exception. */
static int
begin(pass *the, size_t row, int pieces_fit)
{
    if (!fits(the, row) || !pieces_fit) {
        PyErr_SetString(PyExc_ValueError, "sizes, tables and chunks do not fit each other");
        return 0;
    }
    the->stretch = malloc(MPICKPT_BLAKE3_STRETCH);
    the->shard.block = the->shard.direct < 0 ? NULL : mpickpt_block();
    if (the->stretch == NULL || (the->shard.direct >= 0 && the->shard.block == NULL)) {
        PyErr_NoMemory();
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(write_chunks_doc,
             "write_chunks(fd, direct, data_offset, payload, chunk, key, digests, crcs, watch, turn, most, chunks, pieces, "
             "/)\n--\n\n"
             "Copy, scan, digest, sum and write chunks of a shard's payload. Returns (outcome, where).");

static PyObject *
write_chunks(PyObject *module, PyObject *args)
{
    (void)module;
    pass the = {.shard = {.direct = -1}};
    Py_buffer pieces;
    if (!PyArg_ParseTuple(args, "iiLLLy*w*w*w*w*Ly*y*:write_chunks", &the.shard.fd, &the.shard.direct, &the.data_offset,
                          &the.payload, &the.chunk, &the.key_bytes, &the.digests, &the.crcs, &the.watch, &the.turn, &the.most,
                          &the.list, &pieces)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (begin(&the, 1, pieces.len % sizeof(mpickpt_piece) == 0)) {
        int outcome;
        int64_t where = -1;
        Py_BEGIN_ALLOW_THREADS
        outcome = mpickpt_write_chunks(&the.shard, the.list.buf, (size_t)the.list.len / sizeof(int64_t), pieces.buf,
                                       (size_t)pieces.len / sizeof(mpickpt_piece), the.stretch, &where);
        Py_END_ALLOW_THREADS
        result = outcome < 0 ? os_error(outcome, NULL, NULL) : Py_BuildValue("iL", outcome, (long long)where);
    }
    PyBuffer_Release(&pieces);
    release(&the);
    return result;
}

PyDoc_STRVAR(read_chunks_doc,
             "read_chunks(fd, data_offset, payload, chunk, key, digests, crcs, watch, turn, most, targets, by, /)\n--\n\n"
             "Read and verify chunks of a shard's payload. Returns (outcome, where, digest, crc).");

static PyObject *
read_chunks(PyObject *module, PyObject *args)
{
    (void)module;
    pass the = {.shard = {.direct = -1}};
    int by;
    if (!PyArg_ParseTuple(args, "iLLLy*y*y*w*w*Ly*i:read_chunks", &the.shard.fd, &the.data_offset, &the.payload,
                          &the.chunk, &the.key_bytes, &the.digests, &the.crcs, &the.watch, &the.turn, &the.most, &the.list,
                          &by)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (begin(&the, 3, 1)) {
        int outcome;
        int64_t where = -1;
        uint8_t digest[MPICKPT_BLAKE3_SIZE] = {0};
        uint32_t crc = 0;
        Py_BEGIN_ALLOW_THREADS
        outcome = mpickpt_read_chunks(&the.shard, the.list.buf, (size_t)the.list.len / sizeof(mpickpt_target),
                                      the.stretch, by, &where, digest, &crc);
        Py_END_ALLOW_THREADS
        result = outcome < 0 ? os_error(outcome, NULL, NULL)
                             : Py_BuildValue("iLy#I", outcome, (long long)where, digest, (Py_ssize_t)sizeof digest,
                                             (unsigned)crc);
    }
    release(&the);
    return result;
}

PyDoc_STRVAR(statfs_type_doc,
             "statfs_type(path, /)\n--\n\n"
             "The number by which Linux knows the kind of file system at `path`, as 32 bits.");

static PyObject *
statfs_type(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *path = NULL;
    if (!PyArg_ParseTuple(args, "O&:statfs_type", PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    int error;
    uint32_t type = 0;
    Py_BEGIN_ALLOW_THREADS
    error = mpickpt_statfs_type(PyBytes_AS_STRING(path), &type);
    Py_END_ALLOW_THREADS
    PyObject *result = error < 0 ? os_error(error, path, NULL) : PyLong_FromUnsignedLong(type);
    Py_DECREF(path);
    return result;
}

PyDoc_STRVAR(preallocate_doc,
             "preallocate(fd, size, /)\n--\n\n"
             "Grow a file to `size` bytes that are reserved on disk. Quiet where the file system cannot.");

static PyObject *
preallocate(PyObject *module, PyObject *args)
{
    (void)module;
    int fd, error;
    long long size;
    if (!PyArg_ParseTuple(args, "iL:preallocate", &fd, &size)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    error = mpickpt_preallocate(fd, size);
    Py_END_ALLOW_THREADS
    return error < 0 ? os_error(error, NULL, NULL) : Py_NewRef(Py_None);
}

/* Through void (*)(void), the one function pointer that casts without a warning to every other. */
#define WITH_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function)), METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"rename_noreplace", rename_noreplace, METH_VARARGS, rename_noreplace_doc},
    {"link", link_, METH_VARARGS, link_doc},
    {"fsync", fsync_, METH_VARARGS, fsync_doc},
    {"sync_range", sync_range, METH_VARARGS, sync_range_doc},
    {"pwrite_all", pwrite_all, METH_VARARGS, pwrite_all_doc},
    {"pread_full", pread_full, METH_VARARGS, pread_full_doc},
    {"crc32c", WITH_KEYWORDS(crc32c), crc32c_doc},
    {"crc32c_table", WITH_KEYWORDS(crc32c_table), crc32c_table_doc},
    {"first_nonfinite", first_nonfinite, METH_VARARGS, first_nonfinite_doc},
    {"first_nonfinite_portable", first_nonfinite_portable, METH_VARARGS, first_nonfinite_portable_doc},
    {"blake3_key", blake3_key, METH_VARARGS, blake3_key_doc},
    {"blake3", blake3, METH_VARARGS, blake3_doc},
    {"digest_sum", digest_sum, METH_VARARGS, digest_sum_doc},
    {"scatter", scatter, METH_VARARGS, scatter_doc},
    {"copy_all", copy_all, METH_VARARGS, copy_all_doc},
    {"places", places, METH_O, places_doc},
    {"blake3_limit", blake3_limit, METH_VARARGS, blake3_limit_doc},
    {"scan_number", scan_number, METH_VARARGS, scan_number_doc},
    {"write_chunks", write_chunks, METH_VARARGS, write_chunks_doc},
    {"read_chunks", read_chunks, METH_VARARGS, read_chunks_doc},
    {"statfs_type", statfs_type, METH_VARARGS, statfs_type_doc},
    {"preallocate", preallocate, METH_VARARGS, preallocate_doc},
    {NULL, NULL, 0, NULL},
};

static int
exec_module(PyObject *module)
{
    mpickpt_crc32c_init();
    mpickpt_finite_init();
    mpickpt_blake3_init();
    if (mpickpt_add_work(module) < 0) {
        return -1;
    }
    if (PyModule_AddObjectRef(module, "have_renameat2", mpickpt_have_renameat2() ? Py_True : Py_False) < 0) {
        return -1;
    }
    const struct {
        const char *name;
        long value;
    } outcomes[] = {{"DONE", MPICKPT_DONE},           {"MORE", MPICKPT_MORE},       {"STOPPED", MPICKPT_STOPPED},
                    {"NONFINITE", MPICKPT_NONFINITE}, {"DIFFERS", MPICKPT_DIFFERS}, {"CUT", MPICKPT_CUT},
                    {"BY_DIGEST", MPICKPT_BY_DIGEST}, {"BY_CRC", MPICKPT_BY_CRC}};
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++) {
        if (PyModule_AddIntConstant(module, outcomes[i].name, outcomes[i].value) < 0) {
            return -1;
        }
    }
    return PyModule_AddStringConstant(module, "crc32c_kind", mpickpt_crc32c_kind());
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)exec_module},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Commit primitives and byte kernels, all without the interpreter lock.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void); /* said beforehand, as -Wmissing-prototypes asks */

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
