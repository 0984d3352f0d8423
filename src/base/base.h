/* base.h: what every room stands on: errors, host memory, names, Philox. */
#ifndef MTI_BASE_H
#define MTI_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "memtape/status.h"
#include "memtape/dtype.h"

/* ---- errors: a thread's last failure stays until the next one or until it is cleared ----
 *
 * Record a failure where it happens, once. The calls around it pass it on: they return, and say
 * nothing more. */

/* Record a failure and return its status. */
mt_status mti_fail(mt_status status, const char *fmt, ...) MT_PRINTF(2, 3);
/* The same for functions that return bool (false) or a pointer (NULL). */
bool mti_fail_bool(mt_status status, const char *fmt, ...) MT_PRINTF(2, 3);
void *mti_fail_null(mt_status status, const char *fmt, ...) MT_PRINTF(2, 3);

/* NULL in, NULL out: whether the object is there. An object that is NULL is as a rule one that an
 * earlier call failed to make, so a failure that is recorded already stays; where there is none
 * this one is: "relu: x is NULL". For what a call of ours makes; a NULL path or function is a
 * failure of its own. */
bool mti_given(const void *object, const char *who, const char *what);

/* Failures that this thread has recorded so far: a mark, taken before calling what may fail without
 * a word (a user's function, a library that only counts on our mti_malloc). */
uint64_t mti_failures(void);
/* Whether there is a failure that was recorded after the mark. */
bool mti_failed_since(uint64_t failures);
/* Record one unless there is one since the mark. Returns the status of the one that stands. */
mt_status mti_fail_around(uint64_t failures, mt_status status, const char *fmt, ...)
    MT_PRINTF(3, 4);

/* For an attempt whose failure is not reported: get the error before it, and set it again after. */
typedef struct mti_error {
    mt_status status;
    uint64_t count;
    char text[1024]; /* a longer message is cut */
} mti_error;
void mti_error_get(mti_error *e);
void mti_error_set(const mti_error *e);

/* ---- host memory: one door, so that tests can make any request fail ---- */

void *mti_malloc(size_t n_bytes); /* NULL and an error on failure; n 0 gives a pointer */
void *mti_calloc(size_t count, size_t size);
void *mti_realloc(void *p, size_t n_bytes);
char *mti_strdup(const char *s);
void mti_free(void *p);
/* Make the n-th request from now fail (1 = the next); 0 turns it off. Per
 * process; the device memory of backends is asked through the same counter. */
void mti_fail_nth_alloc(uint64_t n);
/* Requests seen since the last mti_fail_nth_alloc; before the first call of it none are counted. */
uint64_t mti_alloc_count(void);
/* True if this request is the one to fail. Backends call it in raw alloc. */
bool mti_alloc_should_fail(void);

/* Bytes that this process can still get, as far as the system tells: memory and swap that are
 * available, within the limits of its control groups and of its addresses. SIZE_MAX: nobody says.
 */
size_t mti_host_room(void);

/* Checked size arithmetic: false on overflow. */
static inline bool mti_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool mti_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* ---- growable array: MTI_PUSH(v, item) with v: struct {T *at; size_t n, cap;} ---- */

#define MTI_VEC(T)                                                                                 \
    struct {                                                                                       \
        T *at;                                                                                     \
        size_t n, cap;                                                                             \
    }
/* Room for one more; false when memory ran out. */
#define MTI_RESERVE(v)                                                                             \
    ((v)->n < (v)->cap || mti_grow((void **)&(v)->at, &(v)->cap, sizeof *(v)->at))
#define MTI_PUSH(v, item) (MTI_RESERVE(v) ? ((v)->at[(v)->n++] = (item), true) : false)
bool mti_grow(void **at, size_t *cap, size_t item_size);

/* ---- a hash map, from keys to places: a serial, an address or the hash of a text to an index ----
 * All zero: empty. Several places may have one key: where keys are hashes, the caller compares. */

typedef struct mti_hashmap {
    struct mti_hashmap_entry *at; /* [n_entries] */
    size_t n, n_used, n_entries;
} mti_hashmap;
#define MTI_NO_PLACE SIZE_MAX
/* place < SIZE_MAX - 1. False when memory ran out; then the map is as before. */
bool mti_hashmap_add(mti_hashmap *m, uint64_t key, size_t place);
/* The first place that has the key; MTI_NO_PLACE: none. */
size_t mti_hashmap_find(const mti_hashmap *m, uint64_t key);
/* One after the other; *probe is 0 at first. */
size_t mti_hashmap_next(const mti_hashmap *m, uint64_t key, size_t *probe);
bool mti_hashmap_remove(mti_hashmap *m, uint64_t key, size_t place); /* whether it was there */
/* Every place, in no order that means anything; *i is 0 at first. Places that are there throughout
 * are met once, also where others are removed on the way. */
size_t mti_hashmap_each(const mti_hashmap *m, size_t *i);
void mti_hashmap_free(mti_hashmap *m);

/* FNV-1a of n bytes, going on from `hash`. */
#define MTI_HASH_BEGIN 0xcbf29ce484222325u
uint64_t mti_hash_bytes(uint64_t hash, const void *bytes, size_t n);

/* ---- names: interned strings live as long as the process ---- */

/* The pool of names (module paths) is process-wide and only grows: a path is
 * stored once however many records point to it. "" and NULL give ""; NULL and an
 * error where memory ran out. */
const char *mti_intern(const char *s);

/* The position of name among names; -1 and an error that lists them, and first of all the one that
 * was probably meant: "act: unknown "gleu", did you mean gelu? choose relu, gelu, ...". */
int mti_choose(const char *what, const char *const *names, int n, const char *name);
/* The name that is like `word`; NULL if none is. */
const char *mti_nearest(const char *const *names, size_t n, const char *word);

/* Names in the order of an enum. */
typedef struct mti_choice {
    const char *what; /* for messages */
    int n;
    const char *const *names;
} mti_choice;
#define MTI_NAMES(...)                                                                             \
    (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)), (const char *const[])      \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
const char *mti_choice_name(const mti_choice *c, int i); /* "unknown" past the ends */
/* out: an enum. */
mt_status mti_choice_parse(const mti_choice *c, const char *name, void *out);

/* The index of a name in a list, found in constant time. Names are borrowed from the list. All
 * zero: an empty index. */
typedef struct mti_name_entry {
    const char *name;
    size_t place;
} mti_name_entry;
typedef struct mti_name_index {
    mti_hashmap map; /* hash of a name -> its entry */
    MTI_VEC(mti_name_entry) entries;
} mti_name_index;
/* Of two places with one name the first stays. False when memory ran out; then x is as before. */
bool mti_name_index_add(mti_name_index *x, const char *name, size_t place);
/* The place of the name that is the first n bytes of `name`, or MTI_NO_PLACE. */
size_t mti_name_index_find(const mti_name_index *x, const char *name, size_t n);
void mti_name_index_free(mti_name_index *x);

/* Where we are, for errors, events and records. Per thread; never NULL. */
typedef struct mti_where {
    const char *op, *module, *phase;
} mti_where;
mti_where *mti_where_now(void);

/* ---- shapes as text: "[2,3]" into buf ---- */
#define MTI_SHAPE_TEXT 192
const char *mti_shape_text(char buf[MTI_SHAPE_TEXT], int rank, const int64_t *shape);

/* ---- text from outside ---- */
/* The character at s (s < end) and its length; a byte that is not UTF-8 is a character of length 1
 * and value UINT32_MAX. */
uint32_t mti_next_char(const unsigned char *s, const unsigned char *end, size_t *length);
/* Whether a terminal would obey it instead of showing it, or could not show it; newlines and tabs
 * pass. */
bool mti_is_control(uint32_t c);
/* Puts '?' for each such character; in place, never longer. */
void mti_make_printable(char *text);

/* "1.5 GiB", "512 B" into buf (32 bytes are enough). */
const char *mti_bytes_text(char *buf, size_t n, uint64_t bytes);
/* "-83,886,080" into buf. */
#define MTI_NUMBER 40
const char *mti_thousands(char buf[MTI_NUMBER], int64_t value);
/* "123", "40GiB", "1.5 GiB", "40GB", "40G" -> bytes, rounded down; false if it is none of these or
 * overflows. Units are B; KiB to EiB, for short K to E: powers of 1024; kB or KB to EB: powers of
 * 1000. All but B may be written small ("40gib"), as a whole: Gb, which is bits, is none. A
 * fraction needs a unit above B. */
bool mti_bytes_parse(const char *s, uint64_t *out);

/* Monotonic seconds. */
double mti_now(void);

/* ---- files: written beside the target and renamed, so nothing is half there ----
 * (a device or a pipe, such as /dev/stdout, is written in place; behind a symbolic link what it
 * points to is replaced) */
typedef struct mti_file mti_file;
/* Opens a file beside it, and removes those in its folder that processes left which died on the
 * way. */
mti_file *mti_file_create(const char *path);
bool mti_file_write(mti_file *f, const void *data, size_t n_bytes);
/* A stream that writes into f, to be closed before f is committed. Its ferror means what it says:
 * streams into memory (open_memstream) lose what finds no memory without setting it. */
FILE *mti_file_stream(mti_file *f);
bool mti_file_commit(mti_file *f); /* flush, fsync, rename; frees f either way */
void mti_file_abandon(mti_file *f);
/* The name behind symbolic links, whether there is a file of that name or not; the caller's to
 * mti_free. */
char *mti_path_target(const char *path);
/* A whole file in memory; *n_bytes set. The caller mti_frees it. Refuses more than limit.
 * A zero byte that is not counted follows the last. */
void *mti_file_read(const char *path, size_t limit, size_t *n_bytes);

#endif
