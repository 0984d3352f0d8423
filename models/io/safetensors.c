/* safetensors.c: opening a file. It is not trusted: every size is checked against the file's length
 * before it is used, and tensors must cover the data exactly, without holes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "files/json_text.h"
#include "io/safetensors.h"

#define MAX_HEADER ((uint64_t)100 * 1000 * 1000) /* the format's own limit */

const char *const mti_safetensors_dtypes[MT_DTYPE_COUNT] = {
#define DTYPE(NAME, name, bytes, sign, exponent, mantissa, file) [MT_##NAME] = file,
#include "base/dtypes.def"
#undef DTYPE
};

const char *mti_shown(char buf[MTI_SHOWN], const char *name)
{
    mti_format(buf, MTI_SHOWN, "%s", name);
    if (strlen(name) >= MTI_SHOWN) memcpy(buf + MTI_SHOWN - 4, "...", 3);
    mti_make_printable(buf);
    return buf;
}

/* ---- one tensor's entry ---- */

typedef struct place {
    const char *path, *tensor; /* tensor: printable */
} place;

static bool bad(const place *at, const char *fault)
{
    return mti_fail_bool(MT_ERR_FORMAT, "%s: tensor \"%s\": %s", at->path, at->tensor, fault);
}

/* The names above, each after a comma. */
static const char dtype_list[] =
#define DTYPE(NAME, name, bytes, sign, exponent, mantissa, file) ", " file
#include "base/dtypes.def"
#undef DTYPE
    ;

static bool parse_dtype(const place *at, const json_t *value, mt_dtype *out)
{
    const char *name = json_string_value(value);
    if (!name) return bad(at, "has no dtype");
    for (int d = 0; d < MT_DTYPE_COUNT; d++)
        if (!strcmp(mti_safetensors_dtypes[d], name)) {
            *out = (mt_dtype)d;
            return true;
        }
    char shown[MTI_SHOWN];
    return mti_fail_bool(MT_ERR_FORMAT, "%s: tensor \"%s\": dtype \"%s\"; need one of %s", at->path,
                         at->tensor, mti_shown(shown, name), &dtype_list[2]);
}

/* Fills in shape and bytes. The extents must not overflow even where one of them is 0. */
static bool parse_shape(const place *at, const json_t *value, mt_safetensors_entry *out)
{
    if (!json_is_array(value)) return bad(at, "has no shape");
    if (json_array_size(value) > MT_MAX_RANK)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: tensor \"%s\": %zu dimensions; at most %d are read", at->path,
                             at->tensor, json_array_size(value), MT_MAX_RANK);
    size_t span = mt_dtype_size(out->dtype);
    bool empty = false;
    out->rank = (int)json_array_size(value);
    for (int d = 0; d < out->rank; d++) {
        const json_t *extent = json_array_get(value, (size_t)d);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return bad(at, "the shape has an extent that is not a whole number >= 0");
        out->shape[d] = (int64_t)json_integer_value(extent);
        if (out->shape[d] == 0)
            empty = true;
        else if (!mti_mul_size(span, (size_t)out->shape[d], &span) || span > INT64_MAX)
            return bad(at, "the shape overflows");
    }
    out->bytes = empty ? 0 : span;
    return true;
}

static bool parse_offsets(const place *at, const json_t *value, uint64_t data_bytes,
                          mti_tensor_entry *out)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return bad(at, "data_offsets are not two whole numbers 0 <= begin <= end");
    out->begin = (uint64_t)json_integer_value(begin);
    out->end = (uint64_t)json_integer_value(end);
    if (out->end > data_bytes)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: tensor \"%s\": its data ends at %" PRIu64
                             ", but the file has %" PRIu64 " bytes of data (truncated?)",
                             at->path, at->tensor, out->end, data_bytes);
    if (out->end - out->begin == out->info.bytes) return true;
    return mti_fail_bool(MT_ERR_FORMAT,
                         "%s: tensor \"%s\": shape and dtype make %zu bytes, data_offsets %" PRIu64,
                         at->path, at->tensor, out->info.bytes, out->end - out->begin);
}

static bool parse_tensor(mt_safetensors *f, const char *name, const json_t *value,
                         uint64_t data_bytes)
{
    char shown[MTI_SHOWN];
    place at = {f->path, mti_shown(shown, name)};
    mti_tensor_entry entry = {.info = {.name = name}};
    if (!json_is_object(value)) return bad(&at, "is not an object");
    return parse_dtype(&at, json_object_get(value, "dtype"), &entry.info.dtype) &&
           parse_shape(&at, json_object_get(value, "shape"), &entry.info) &&
           parse_offsets(&at, json_object_get(value, "data_offsets"), data_bytes, &entry) &&
           MTI_PUSH(&f->entries, entry);
}

/* ---- the whole header ---- */

static bool parse_metadata(mt_safetensors *f, json_t *value)
{
    if (!json_is_object(value))
        return mti_fail_bool(MT_ERR_FORMAT, "%s: __metadata__ is not an object", f->path);
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        char shown[MTI_SHOWN];
        if (!json_is_string(json_object_iter_value(at)))
            return mti_fail_bool(MT_ERR_FORMAT, "%s: __metadata__: \"%s\" is not a string", f->path,
                                 mti_shown(shown, json_object_iter_key(at)));
    }
    f->metadata = value;
    return true;
}

static int by_position(const void *a, const void *b)
{
    const mti_tensor_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->info.name, y->info.name);
}

/* Sorts by position; each tensor must begin where the one before it ends. Fills in the index. */
static bool check_cover(mt_safetensors *f, uint64_t data_bytes)
{
    if (f->entries.n) qsort(f->entries.at, f->entries.n, sizeof *f->entries.at, by_position);
    uint64_t covered = 0;
    for (size_t i = 0; i < f->entries.n; i++) {
        const mti_tensor_entry *e = &f->entries.at[i];
        char shown[MTI_SHOWN], before[MTI_SHOWN];
        if (e->begin < covered)
            return mti_fail_bool(MT_ERR_FORMAT, "%s: tensors \"%s\" and \"%s\" overlap", f->path,
                                 mti_shown(before, f->entries.at[i - 1].info.name),
                                 mti_shown(shown, e->info.name));
        if (e->begin > covered)
            return mti_fail_bool(MT_ERR_FORMAT,
                                 "%s: %" PRIu64 " bytes before tensor \"%s\" belong "
                                 "to none",
                                 f->path, e->begin - covered, mti_shown(shown, e->info.name));
        covered = e->end;
        if (!mti_name_index_add(&f->entry_at, e->info.name, i)) return false;
    }
    return covered == data_bytes ||
           mti_fail_bool(MT_ERR_FORMAT,
                         "%s: %" PRIu64 " bytes after the last tensor belong to none", f->path,
                         data_bytes - covered);
}

static bool parse_header(mt_safetensors *f, const char *text, size_t n, uint64_t data_bytes)
{
    json_error_t error;
    if (!n || text[0] != '{')
        return mti_fail_bool(MT_ERR_FORMAT, "%s: the header does not start with '{'", f->path);
    uint64_t failures = mti_failures();
    f->root = mti_json_read(text, n, &error);
    if (!f->root) {
        char shown[MTI_SHOWN]; /* the parser quotes the text */
        mti_fail_around(failures, MT_ERR_FORMAT, "%s: the header is not JSON: %s (byte %d)",
                        f->path, mti_shown(shown, error.text), error.position);
        return false;
    }
    /* If memory ran out jansson may have cut a string short; our allocator has recorded that. */
    if (mti_failed_since(failures)) return false;
    for (void *at = json_object_iter(f->root); at; at = json_object_iter_next(f->root, at)) {
        const char *name = json_object_iter_key(at);
        json_t *value = json_object_iter_value(at);
        bool ok = strcmp(name, "__metadata__") ? parse_tensor(f, name, value, data_bytes)
                                               : parse_metadata(f, value);
        if (!ok) return false;
    }
    return check_cover(f, data_bytes);
}

/* The length of the header, from the first 8 bytes. */
static bool header_length(const char *path, const unsigned char *head, size_t n_head,
                          uint64_t file_bytes, size_t *out)
{
    uint64_t n = 0;
    if (n_head < 8 || file_bytes < n_head)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: %zu bytes are too few for a safetensors file (truncated?)", path,
                             n_head);
    const char *other = mti_stand_in(head, n_head);
    if (other) return mti_fail_bool(MT_ERR_FORMAT, "%s: is %s", path, other);
    for (int i = 7; i >= 0; i--) n = n << 8 | head[i];
    if (n > MAX_HEADER)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: a header of %" PRIu64 " bytes; at most %" PRIu64 " are allowed",
                             path, n, MAX_HEADER);
    if (n > file_bytes - 8)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64
                             " (truncated?)",
                             path, n, file_bytes);
    *out = (size_t)n;
    return true;
}

mt_safetensors *mti_safetensors_parse(const char *path, const void *head, size_t n_head,
                                      uint64_t file_bytes)
{
    size_t n = 0;
    if (!header_length(path, head, n_head, file_bytes, &n)) return NULL;
    if (n > n_head - 8) return mti_fail_null(MT_ERR_FORMAT, "%s: the header is cut short", path);
    mt_safetensors *f = mti_calloc(1, sizeof *f);
    if (!f) return NULL;
    f->fd = -1;
    f->data_at = 8 + (uint64_t)n;
    if ((f->path = mti_strdup(path)) &&
        parse_header(f, (const char *)head + 8, n, file_bytes - f->data_at))
        return f;
    mt_safetensors_free(f);
    return NULL;
}

/* ---- opening ---- */

static mt_safetensors *read_header(int fd, const char *path, uint64_t file_bytes)
{
    unsigned char first[8];
    size_t n = 0, n_first = file_bytes < 8 ? (size_t)file_bytes : 8;
    if (!mti_read_at(fd, path, 0, first, n_first) ||
        !header_length(path, first, n_first, file_bytes, &n))
        return NULL;
    char *head = mti_malloc(8 + n);
    mt_safetensors *f = NULL;
    if (head && mti_read_at(fd, path, 0, head, 8 + n))
        f = mti_safetensors_parse(path, head, 8 + n, file_bytes);
    mti_free(head);
    return f;
}

mt_safetensors *mt_safetensors_open(const char *path)
{
    if (!path) return mti_fail_null(MT_ERR_ARGUMENT, "safetensors_open: the path is NULL");
    uint64_t n_bytes;
    const int fd = mti_file_open(path, &n_bytes);
    if (fd < 0) return NULL;
    mt_safetensors *f = read_header(fd, path, n_bytes);
    if (f)
        f->fd = fd;
    else
        close(fd);
    return f;
}

void mt_safetensors_free(mt_safetensors *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    mti_name_index_free(&f->entry_at);
    json_decref(f->root);
    mti_free(f->entries.at);
    mti_free(f->path);
    mti_free(f);
}

/* ---- entries and metadata ---- */

size_t mt_safetensors_count(const mt_safetensors *f) { return f ? f->entries.n : 0; }

mt_status mt_safetensors_get(const mt_safetensors *f, size_t i, mt_safetensors_entry *out)
{
    if (!mti_given(f, "safetensors_get", "the file")) return mt_last_status();
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "safetensors_get: the result is NULL");
    if (i >= f->entries.n)
        return mti_fail(MT_ERR_ARGUMENT, "safetensors_get: no tensor %zu; there are %zu", i,
                        mt_safetensors_count(f));
    *out = f->entries.at[i].info;
    return MT_OK;
}

const char *mt_safetensors_metadata(const mt_safetensors *f, const char *key)
{
    return f && key ? json_string_value(json_object_get(f->metadata, key)) : NULL;
}
