/* pickle.h: writing Python's pickle format, protocol 2, piece by piece into a file.
 *
 * Opcodes as in CPython's Lib/pickletools.py. A list or a dictionary is opened, filled by batches
 * of items, and closed; so a file of any length needs no more memory than its memo, which is a
 * number for each value that is referred to again. */
#ifndef MTI_REPORT_PICKLE_H
#define MTI_REPORT_PICKLE_H

#include "files/files.h"

typedef struct mti_pickle {
    mti_file *file;
    bool ok; /* false once a write has failed, with an error: the rest is not written */
    uint32_t n_memo;
    mti_name_index keys; /* that were written: their numbers in the memo */
} mti_pickle;

void mti_pickle_begin(mti_pickle *p, mti_file *file);
void mti_pickle_end(mti_pickle *p);
void mti_pickle_free(mti_pickle *p); /* in any case */

void mti_pickle_real(mti_pickle *p, double value);
void mti_pickle_bool(mti_pickle *p, bool value);
void mti_pickle_text(mti_pickle *p, const char *utf8);
/* A text that the file repeats: it is written once. */
void mti_pickle_key(mti_pickle *p, const char *utf8);
void mti_pickle_key_int(mti_pickle *p, const char *utf8, int64_t value);
/* Two integers. */
void mti_pickle_pair(mti_pickle *p, int64_t a, int64_t b);

/* An empty list; values follow between mark and append, any number of times. A dictionary whose
 * keys and values follow, in turns, until set. */
void mti_pickle_list(mti_pickle *p);
void mti_pickle_dict(mti_pickle *p);
void mti_pickle_mark(mti_pickle *p);
void mti_pickle_append(mti_pickle *p);
void mti_pickle_set(mti_pickle *p);

/* Remembers the value written last; its number. */
uint32_t mti_pickle_remember(mti_pickle *p);
/* The value of that number once more: the same object for who reads it. */
void mti_pickle_again(mti_pickle *p, uint32_t number);

#endif
