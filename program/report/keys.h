/* keys.h: the members of a struct as keys of JSON: a row each.
 *
 *   DESCRIBE(describe_time, mt_fit_time, KEY(products), KEY_AS("optimizer", step));
 *
 * A member's type says how it is written: a size is 0 or more, a real that is not finite is null,
 * an array by category is an object. */
#ifndef MTI_KEYS_H
#define MTI_KEYS_H

#include "report/json.h"

typedef enum mti_key_form {
    MTI_KEY_BOOL,
    MTI_KEY_INT,
    MTI_KEY_SIZE,
    MTI_KEY_REAL,
    MTI_KEY_TEXT,  /* a pointer */
    MTI_KEY_CHARS, /* an array */
    MTI_KEY_CATEGORIES,
    MTI_KEY_CHOICE, /* an enum */
    MTI_KEY_OBJECT
} mti_key_form;

typedef struct mti_key {
    const char *name;
    size_t at, size; /* of the member */
    mti_key_form form;
    bool or_null;             /* null where it is 0, empty or not finite ... */
    bool or_absent;           /* ... or no key */
    const mti_choice *choice; /* of MTI_KEY_CHOICE */
    mti_describe *describe;   /* of MTI_KEY_OBJECT */
} mti_key;

void mti_field_keys(mti_fields *f, const mti_key *keys, size_t n, const void *object);

/* Lists the rows' keys of an object. */
#define KEYS(f, type, object, ...)                                                                 \
    do {                                                                                           \
        typedef type owner;                                                                        \
        static const mti_key rows_[] = {__VA_ARGS__};                                              \
        const owner *const object_ = (object);                                                     \
        mti_field_keys(f, rows_, sizeof rows_ / sizeof *rows_, object_);                           \
    } while (0)
/* Defines the function that does it. */
#define DESCRIBE(name, type, ...)                                                                  \
    static void name(mti_fields *f, const void *object) { KEYS(f, type, object, __VA_ARGS__); }    \
    static mti_describe name

#define KEY(member)         KEY_AS(#member, member)
#define KEY_OR_NULL(member) KEY_OR_NULL_AS(#member, member)
#define KEY_AS(key, member)                                                                        \
    {                                                                                              \
        KEY_AT(key, member), .form = KEY_FORM(OWNED(member))                                       \
    }
#define KEY_CHOICE(member, names)                                                                  \
    {                                                                                              \
        KEY_AT(#member, member), .form = MTI_KEY_CHOICE, .choice = names                           \
    }
#define KEY_OBJECT(member, by)                                                                     \
    {                                                                                              \
        KEY_AT(#member, member), .form = MTI_KEY_OBJECT, .describe = by                            \
    }
/* Null where it is 0, empty or not finite. */
#define KEY_OR_NULL_AS(key, member)                                                                \
    {                                                                                              \
        KEY_AT(key, member), .form = KEY_FORM(OWNED(member)), .or_null = true                      \
    }
/* No key there. */
#define KEY_IF_SET(member)                                                                         \
    {                                                                                              \
        KEY_AT(#member, member), .form = KEY_FORM(OWNED(member)), .or_absent = true                \
    }

#define OWNED(member)       (((owner *)0)->member)
#define KEY_AT(key, member) .name = key, .at = offsetof(owner, member), .size = sizeof OWNED(member)
/* A member of another type does not compile. */
#define KEY_FORM(member)                                                                           \
    _Generic((member), bool                                                                        \
             : MTI_KEY_BOOL, int                                                                   \
             : MTI_KEY_INT, long                                                                   \
             : MTI_KEY_INT, long long                                                              \
             : MTI_KEY_INT, unsigned long                                                          \
             : MTI_KEY_SIZE, unsigned long long                                                    \
             : MTI_KEY_SIZE, double                                                                \
             : MTI_KEY_REAL, const char *                                                          \
             : MTI_KEY_TEXT, char *                                                                \
             : _Generic(&(member), char ** : MTI_KEY_TEXT, default : MTI_KEY_CHARS), size_t *      \
             : MTI_KEY_CATEGORIES)

#endif
