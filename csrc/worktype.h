/* `Work`, the Python type of csrc/work.h: included by the two files that know Python. */
#ifndef MPICKPT_WORKTYPE_H
#define MPICKPT_WORKTYPE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Add the type and the numbers of its steps to the module; -1 with an exception set if that fails. */
int mpickpt_add_work(PyObject *module);

#endif
