/* unpickle.h: Python's pickle format, read as plain values: numbers, texts, lists and dictionaries.
 *
 * A pickle is a program for a small machine with a stack, which may call any function of Python.
 * This machine has only the opcodes that build plain values (protocols 2 to 5, CPython's
 * Lib/pickletools.py); any other is refused by name, so no file makes it run anything. What it
 * takes of memory is at most proportional to the file: a length within the file is compared with
 * what is left of it, and nothing is made before its bytes have been seen. */
#ifndef MTI_COMPARE_UNPICKLE_H
#define MTI_COMPARE_UNPICKLE_H

#include "base/base.h"

typedef enum mti_py_kind {
    MTI_PY_NONE,
    MTI_PY_BOOL,
    MTI_PY_INT,
    MTI_PY_REAL,
    MTI_PY_TEXT,
    MTI_PY_LIST, /* or a tuple */
    MTI_PY_DICT,
} mti_py_kind;

typedef struct mti_py_value {
    mti_py_kind kind;
    uint32_t n; /* MTI_PY_TEXT: bytes */
    union {
        int64_t i; /* MTI_PY_BOOL, too */
        double real;
        const char *text; /* n bytes of the file, without a zero byte at their end */
        size_t list;      /* a number of mti_unpickled.lists */
    };
} mti_py_value;

/* A dictionary is a list of keys and values in turns. A list that is referred to several times is
 * there once; it may hold itself. */
typedef MTI_VEC(mti_py_value) mti_py_list;

typedef struct mti_unpickled {
    MTI_VEC(mti_py_list) lists;
    mti_py_value root;
} mti_unpickled;

/* name: for messages. `bytes` must outlive *out. False with MT_ERR_FORMAT, or if memory ran out.
 * Free in any case. */
bool mti_unpickle(mti_unpickled *out, const char *name, const void *bytes, size_t n);
void mti_unpickled_free(mti_unpickled *u);

/* The items of a list; an empty list for any other value. */
const mti_py_list *mti_py_items(const mti_unpickled *u, const mti_py_value *list);
/* The value of a key; NULL if there is none, or no dictionary. */
const mti_py_value *mti_py_get(const mti_unpickled *u, const mti_py_value *dict, const char *key);
bool mti_py_is(const mti_py_value *value, const char *text);

#endif
