/* mpickpt._native: the commit primitives and byte kernels for Python. The only file here that knows Python; every call
   gives up the interpreter lock while it works. The signatures for readers are in mpickpt/_native.pyi. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>

#include "crc32c.h"
#include "finite.h"
#include "publish.h"

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
    {"statfs_type", statfs_type, METH_VARARGS, statfs_type_doc},
    {"preallocate", preallocate, METH_VARARGS, preallocate_doc},
    {NULL, NULL, 0, NULL},
};

static int
exec_module(PyObject *module)
{
    mpickpt_crc32c_init();
    mpickpt_finite_init();
    if (PyModule_AddObjectRef(module, "have_renameat2", mpickpt_have_renameat2() ? Py_True : Py_False) < 0) {
        return -1;
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
