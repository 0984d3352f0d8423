/* base.h: used by all layers: errors, host memory, names, Philox. */
#ifndef MTI_BASE_H
#define MTI_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "memtape/status.h"
#include "memtape/dtype.h"

/* Marks a static function for what hardly ever happens: it costs its callers no registers. */
#define MTI_COLD __attribute__((noinline, cold))

/* ---- errors: a thread's last failure stays until the next one or until it is cleared ----
 *
 * Record a failure once, where it happens. The calling functions return it and do not record it
 * again. */

/* Record a failure and return its status. */
mt_status mti_fail(mt_status status, const char *fmt, ...) MT_PRINTF(2, 3);
/* The same for functions that return bool (false) or a pointer (NULL). */
#define mti_fail_bool(...) (mti_fail(__VA_ARGS__), false)
#define mti_fail_null(...) ((void *)(mti_fail(__VA_ARGS__), NULL))

/* True if `object` is not NULL. A NULL object is usually one that an earlier call failed to
 * make, so an error that is already recorded stays; without one, this records "relu: x is NULL".
 * For objects that our own functions make; a NULL path or function is a separate error. */
bool mti_given(const void *object, const char *who, const char *what);

/* The number of failures this thread has recorded. Read it before calling code that may fail
 * without recording an error (a user's function, or a library that only uses our mti_malloc). */
uint64_t mti_failures(void);
/* True if an error is recorded that is newer than that reading. */
bool mti_failed_since(uint64_t failures);
/* Records an error unless there is a newer one. Returns the status of the recorded error. */
mt_status mti_fail_around(uint64_t failures, mt_status status, const char *fmt, ...)
    MT_PRINTF(3, 4);

/* For an attempt whose failure is not reported: save the error before it, restore it after. */
typedef struct mti_error {
    mt_status status;
    uint64_t count;
    char text[1024]; /* a longer message is cut */
} mti_error;
void mti_error_get(mti_error *e);
void mti_error_set(const mti_error *e);

/* ---- host memory: all through these functions, so that tests can make any request fail ---- */

void *mti_malloc(size_t n_bytes);        /* NULL and an error on failure; n 0 gives a pointer */
void *mti_alloc_refused(size_t n_bytes); /* NULL, and that error */
void *mti_calloc(size_t count, size_t size);
void *mti_realloc(void *p, size_t n_bytes);
char *mti_strdup(const char *s);
void mti_free(void *p);
/* Makes the n-th request from now fail (1 = the next); 0 turns it off. Per
 * process; the device memory of backends counts too. */
void mti_fail_nth_alloc(uint64_t n);
/* Requests since the last mti_fail_nth_alloc; 0 before its first call. */
uint64_t mti_alloc_count(void);
extern void (*mti_watch_alloc)(uint64_t nth); /* for tests: told of each counted request */
/* True if this request must fail. Backends call it in raw alloc. */
bool mti_alloc_should_fail(void);

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
/* Makes room for one more; false if out of memory. */
#define MTI_RESERVE(v)                                                                             \
    ((v)->n < (v)->cap || mti_grow((void **)&(v)->at, &(v)->cap, sizeof *(v)->at))
#define MTI_PUSH(v, item) (MTI_RESERVE(v) ? ((v)->at[(v)->n++] = (item), true) : false)
bool mti_grow(void **at, size_t *cap, size_t item_size);

/* ---- a hash map from keys to places: a serial, an address or a text's hash to an index ----
 * All zero: empty. Several places may have one key: if keys are hashes, the caller compares. */

typedef struct mti_hashmap {
    struct mti_hashmap_entry *at; /* [n_entries] */
    size_t n, n_used, n_entries;
} mti_hashmap;
#define MTI_NO_PLACE SIZE_MAX
/* place < SIZE_MAX - 1. False if out of memory; the map is then unchanged. */
bool mti_hashmap_add(mti_hashmap *m, uint64_t key, size_t place);
/* The first place that has the key; MTI_NO_PLACE: none. */
size_t mti_hashmap_find(const mti_hashmap *m, uint64_t key);
/* The next place with the key; start with *probe = 0. */
size_t mti_hashmap_next(const mti_hashmap *m, uint64_t key, size_t *probe);
bool mti_hashmap_remove(mti_hashmap *m, uint64_t key, size_t place); /* whether it was there */
/* Visits every place, in no particular order; start with *i = 0. Each place that stays in the
 * map is visited once, even if others are removed meanwhile. */
size_t mti_hashmap_each(const mti_hashmap *m, size_t *i);
void mti_hashmap_free(mti_hashmap *m);

/* FNV-1a of n bytes, continued from `hash`. */
#define MTI_HASH_BEGIN 0xcbf29ce484222325u
uint64_t mti_hash_bytes(uint64_t hash, const void *bytes, size_t n);

/* ---- names: interned strings live as long as the process ---- */

/* The pool of names (module paths) is process-wide and only grows: each path is stored
 * once, however many records point to it. "" and NULL give ""; NULL and an error if
 * out of memory. */
const char *mti_intern(const char *s);

/* Whether two names differ only in case, blanks and - _ . / between. */
bool mti_same_word(const char *a, const char *b);
/* What of b follows on a, which may differ so from how b begins; NULL: b begins otherwise. */
const char *mti_after(const char *a, const char *b);
/* The position of the name, or of the only one that is the same word; -1: there is none. */
int mti_find_word(const char *const *names, int n, const char *name);
/* The position of name among names; -1 and an error that lists them and suggests what begins so, or
 * the most similar one: "act: unknown "gleu", did you mean gelu? choose relu, gelu, ...". */
int mti_choose(const char *what, const char *const *names, int n, const char *name);
/* Those that begin with the word, "a100-40 or a100-80", or the most similar name; "": none. */
const char *mti_meant(char *out, size_t size, const char *const *names, int n, const char *word);
/* The name most similar to `word`; NULL if none is similar. */
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

/* An index from names of a list to their places, in constant time. It borrows the names. All zero:
 * empty. */
typedef struct mti_name_entry {
    const char *name;
    size_t place;
} mti_name_entry;
typedef struct mti_name_index {
    mti_hashmap map; /* hash of a name -> its entry */
    MTI_VEC(mti_name_entry) entries;
} mti_name_index;
/* If a name is added twice, the first place stays. False if out of memory; x is then unchanged. */
bool mti_name_index_add(mti_name_index *x, const char *name, size_t place);
/* The place of the name that is the first n bytes of `name`, or MTI_NO_PLACE. */
size_t mti_name_index_find(const mti_name_index *x, const char *name, size_t n);
void mti_name_index_free(mti_name_index *x);

/* The current op and module, for errors, events and records. Per thread; never NULL. */
typedef struct mti_where {
    const char *op, *module, *phase;
    int in_backward; /* walks back that run, one within another */
} mti_where;
mti_where *mti_where_now(void);

/* mt_dtype_size of one of the types, within the engine: every op asks many times. */
extern const unsigned char mti_dtype_sizes[MT_DTYPE_COUNT];
static inline size_t mti_dtype_size(mt_dtype dtype) { return mti_dtype_sizes[dtype]; }
/* Whether the dtype stores floats: those of mt_dtype_is_float, and the 8-bit ones. */
bool mti_dtype_is_real(mt_dtype dtype);

/* ---- shapes as text: "[2,3]" into buf ---- */
#define MTI_SHAPE_TEXT 192
const char *mti_shape_text(char buf[MTI_SHAPE_TEXT], int rank, const int64_t *shape);

/* ---- text from outside ---- */
/* The character at s (s < end) and its length; an invalid UTF-8 byte is a character of length 1 and
 * value UINT32_MAX. */
uint32_t mti_next_char(const unsigned char *s, const unsigned char *end, size_t *length);
/* True for characters that a terminal would interpret or cannot show; false for newlines and tabs.
 */
bool mti_is_control(uint32_t c);
bool mti_is_utf8(const char *text);
/* Replaces each such character by '?', in place; the text never gets longer. */
void mti_make_printable(char *text);
/* fprintf and vfprintf, with each such character replaced by '?'. */
int mti_print(FILE *out, const char *fmt, ...) MT_PRINTF(2, 3);
int mti_vprint(FILE *out, const char *fmt, va_list args);
void mti_print_bytes(FILE *out, const void *bytes, size_t n_bytes);

/* ---- numbers as text: with a decimal point in every locale ---- */
/* snprintf, vsnprintf and strtod. */
int mti_format(char *buf, size_t n, const char *fmt, ...) MT_PRINTF(3, 4);
/* As snprintf, behind the text that buf[n] has. */
void mti_append(char *buf, size_t n, const char *fmt, ...) MT_PRINTF(3, 4);
int mti_vformat(char *buf, size_t n, const char *fmt, va_list args);
double mti_strtod(const char *text, char **end);
/* Around calls of other libraries that write or read numbers. Per thread. */
void *mti_point_begin(void);
void mti_point_end(void *before);

/* "1.5 GiB", "512 B" into buf (32 bytes are enough). */
const char *mti_bytes_text(char *buf, size_t n, uint64_t bytes);
/* "-83,886,080" into buf. */
#define MTI_NUMBER 40
const char *mti_thousands(char buf[MTI_NUMBER], int64_t value);
/* The same in a text of the calling block. */
#define MTI_BYTES(n)     mti_bytes_text((char[MTI_NUMBER]){0}, MTI_NUMBER, n)
#define MTI_THOUSANDS(n) mti_thousands((char[MTI_NUMBER]){0}, (int64_t)(n))
/* "123", "40GiB", "1.5 GiB", "40GB", "40G" -> bytes, rounded down; false on other text or
 * overflow. Units are B; KiB to EiB, or short K to E: powers of 1024; kB or KB to EB: powers of
 * 1000. All but B may be in small letters as a whole ("40gib"); "Gb" means bits and is refused.
 * A fraction needs a unit above B. */
bool mti_bytes_parse(const char *s, uint64_t *out);

/* Monotonic seconds. */
double mti_now(void);

#endif
