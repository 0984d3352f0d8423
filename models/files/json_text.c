/* json_text.c: JSON as text and back. jansson takes the decimal point from the locale, and aborts
 * where that is more than a byte. */
#include "files/json_text.h"
#include <stdlib.h>
#include <string.h>
#include "files/files.h"

static _Thread_local bool reading;

void *mti_json_malloc(size_t n_bytes)
{
    void *p = mti_malloc(n_bytes);
    return p || !reading ? p : malloc(n_bytes);
}

static json_t *read(const char *text, size_t n, size_t flags, json_error_t *error)
{
    static const char order_mark[] = "\xef\xbb\xbf";
    uint64_t failures = mti_failures();
    void *before = mti_point_begin();
    if (n >= 3 && !memcmp(text, order_mark, 3)) text += 3, n -= 3;
    reading = true;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES | flags, error);
    reading = false;
    mti_point_end(before);
    if (!root || !mti_failed_since(failures)) return root;
    json_decref(root);
    return NULL;
}

json_t *mti_json_read(const char *text, size_t n, json_error_t *error)
{
    return read(text, n, 0, error);
}

json_t *mti_json_read_reals(const char *text, size_t n, json_error_t *error)
{
    return read(text, n, JSON_DECODE_INT_AS_REAL, error);
}

json_t *mti_json_named(const char *name, const char *text, size_t n)
{
    json_error_t error;
    const uint64_t failures = mti_failures();
    json_t *root = mti_json_read(text, n, &error);
    if (root) return root;
    const char *other = mti_stand_in(text, n);
    if (other) {
        mti_fail_around(failures, MT_ERR_FORMAT, "%s: is %s", name, other);
        return NULL;
    }
    mti_make_printable(error.text); /* it quotes the text */
    mti_fail_around(failures, MT_ERR_FORMAT, "%s: not JSON: line %d, column %d: %s", name,
                    error.line, error.column, error.text);
    return NULL;
}

json_t *mti_json_file(const char *path, size_t limit)
{
    size_t n;
    char *text = mti_file_read(path, limit, &n);
    json_t *root = text ? mti_json_named(path, text, n) : NULL;
    mti_free(text);
    return root;
}

static size_t dump(const json_t *root, char *buf, size_t n, size_t flags)
{
    void *before = mti_point_begin();
    size_t needed = json_dumpb(root, buf, n, flags);
    mti_point_end(before);
    return needed;
}

typedef struct beginning {
    char *text;
    size_t n, most; /* bytes in it, and how many it may have */
} beginning;

/* json_dumpb leaves out each part of a text that does not fit, and goes on behind the gap. */
static int add(const char *part, size_t n, void *user)
{
    beginning *b = user;
    size_t fits = b->most - b->n < n ? b->most - b->n : n;
    memcpy(b->text + b->n, part, fits);
    b->n += fits;
    return fits == n ? 0 : -1; /* which ends it */
}

const char *mti_json_begin(const json_t *value, char text[MTI_JSON_BEGIN])
{
    beginning b = {.text = text, .most = MTI_JSON_BEGIN - sizeof "..."};
    void *before = mti_point_begin();
    bool cut = json_dump_callback(value, add, &b, JSON_ENCODE_ANY | JSON_COMPACT) != 0;
    mti_point_end(before);
    size_t whole = 0, length = 0;
    const unsigned char *s = (const unsigned char *)text, *end = s + b.n;
    for (; cut && whole < b.n; whole += length)
        if (mti_next_char(s + whole, end, &length) == UINT32_MAX) break;
    strcpy(text + (cut ? whole : b.n), cut ? "..." : "");
    return text;
}

/* json_dumps silently leaves keys out if its buffer cannot grow: asks for the size first, and
 * checks it after writing. */
char *mti_json_text(const json_t *root, size_t flags)
{
    uint64_t failures = mti_failures();
    size_t n = root ? dump(root, NULL, 0, flags) : 0;
    char *text = n ? mti_malloc(n + 1) : NULL;
    if (text && dump(root, text, n, flags) == n) {
        text[n] = 0;
        return text;
    }
    mti_free(text);
    mti_fail_around(failures, MT_ERR_MEMORY, "json: no memory for the text");
    return NULL;
}
