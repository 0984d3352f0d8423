/* gguf.c: opening a GGUF file, by the format's own description. */
#include "io/gguf.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"

#define LARGEST_HEAD ((uint64_t)1 << 30)
#define FIRST_HEAD   ((uint64_t)1 << 20)

/* Types of values. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64, N_TYPES };
static const uint8_t sizes[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* What is left of the bytes that are there. */
typedef struct cursor {
    const unsigned char *at, *end;
    const char *path;
    bool cut; /* something went on behind them */
} cursor;

static const unsigned char *take(cursor *c, uint64_t n)
{
    const unsigned char *at = c->at;
    if (c->cut || n > (uint64_t)(c->end - c->at)) {
        c->cut = true;
        return NULL;
    }
    c->at += n;
    return at;
}

static uint64_t little(const unsigned char *at, int n)
{
    uint64_t value = 0;
    while (n-- > 0) value = value << 8 | at[n];
    return value;
}

/* 0 if it was cut. */
static uint64_t number(cursor *c, int n)
{
    const unsigned char *at = take(c, (uint64_t)n);
    return at ? little(at, n) : 0;
}

static mti_gguf_text text(cursor *c)
{
    const uint64_t n = number(c, 8);
    const unsigned char *at = take(c, n);
    return (mti_gguf_text){(const char *)at, at ? (size_t)n : 0};
}

static bool bad(const cursor *c, const char *fault)
{
    return mti_fail_bool(MT_ERR_FORMAT, "%s: %s", c->path, fault);
}

/* ---- values ---- */

static bool skip_items(cursor *c, uint32_t type, uint64_t n)
{
    if (type >= N_TYPES || type == ARRAY)
        return bad(c, "a value of an unknown type, or an array of arrays");
    for (uint64_t i = 0; type == TEXT && !c->cut && i < n; i++) text(c);
    if (type != TEXT && n > UINT64_MAX / 8)
        c->cut = true;
    else if (type != TEXT)
        take(c, n * sizes[type]);
    return true;
}

static bool read_value(cursor *c, mti_gguf *f)
{
    mti_gguf_value v = {.key = text(c), .n = 1};
    v.type = (uint32_t)number(c, 4);
    if (!c->cut && v.type == ARRAY) v.of = (uint32_t)number(c, 4), v.n = number(c, 8);
    v.data = c->at;
    return c->cut || (skip_items(c, v.type == ARRAY ? v.of : v.type, v.n) &&
                      (c->cut || MTI_PUSH(&f->values, v)));
}

bool mti_gguf_is(mti_gguf_text text, const char *word)
{
    return text.n == strlen(word) && !memcmp(text.at, word, text.n);
}

const mti_gguf_value *mti_gguf_find(const mti_gguf *f, const char *key)
{
    for (size_t i = 0; i < f->values.n; i++)
        if (mti_gguf_is(f->values.at[i].key, key)) return &f->values.at[i];
    return NULL;
}

bool mti_gguf_texts(const mti_gguf_value *v, mti_gguf_text *texts)
{
    if (!v || !(v->type == TEXT || (v->type == ARRAY && v->of == TEXT))) return false;
    const unsigned char *at = v->data;
    for (uint64_t i = 0; i < v->n; i++) {
        texts[i] = (mti_gguf_text){(const char *)at + 8, (size_t)little(at, 8)};
        at += 8 + texts[i].n;
    }
    return true;
}

int64_t mti_gguf_integer(const mti_gguf_value *v, uint64_t i)
{
    if (!v || i >= v->n) return -1;
    const uint32_t type = v->type == ARRAY ? v->of : v->type;
    if (type == F32 || type == TEXT || type == ARRAY || type >= F64) return -1;
    const uint64_t raw = little(v->data + i * sizes[type], sizes[type]);
    const int bits = 64 - 8 * sizes[type];
    const bool has_sign = type == I8 || type == I16 || type == I32 || type == I64;
    const int64_t value = has_sign ? (int64_t)(raw << bits) >> bits : (int64_t)raw;
    return value < 0 ? -1 : value;
}

bool mti_gguf_is_array(const mti_gguf_value *v, bool floats)
{
    return v->type == ARRAY && v->of == (floats ? F32 : I32);
}

double mti_gguf_real(const mti_gguf_value *v)
{
    float narrow;
    double wide = NAN;
    if (!v || (v->type != F32 && v->type != F64)) return NAN;
    memcpy(&narrow, v->data, sizeof narrow);
    if (v->type == F64) memcpy(&wide, v->data, sizeof wide);
    return v->type == F64 ? wide : (double)narrow;
}

/* ---- tensors ---- */

size_t mti_gguf_block(mti_gguf_type type, size_t *bytes)
{
    static const struct {
        mti_gguf_type type;
        uint16_t n, bytes;
    } blocks[] = {{MTI_GGUF_F32, 1, 4},      {MTI_GGUF_F16, 1, 2},     {MTI_GGUF_BF16, 1, 2},
                  {MTI_GGUF_Q4_0, 32, 18},   {MTI_GGUF_Q4_1, 32, 20},  {MTI_GGUF_Q5_0, 32, 22},
                  {MTI_GGUF_Q5_1, 32, 24},   {MTI_GGUF_Q8_0, 32, 34},  {MTI_GGUF_Q4_K, 256, 144},
                  {MTI_GGUF_Q5_K, 256, 176}, {MTI_GGUF_Q6_K, 256, 210}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (blocks[i].type == type) {
            *bytes = blocks[i].bytes;
            return blocks[i].n;
        }
    return 0;
}

const char *mti_gguf_shown(char buf[MTI_SHOWN], mti_gguf_text text)
{
    mti_format(buf, MTI_SHOWN, "%.*s", text.n < 80 ? (int)text.n : 80, text.at);
    mti_make_printable(buf);
    return buf;
}

static bool bad_name(const cursor *c, const char *what, mti_gguf_text name, const char *fault)
{
    char shown[MTI_SHOWN];
    return mti_fail_bool(MT_ERR_FORMAT, "%s: %s \"%s\": %s", c->path, what,
                         mti_gguf_shown(shown, name), fault);
}

static bool bad_tensor(const cursor *c, const mti_gguf_tensor *t, const char *fault)
{
    return bad_name(c, "tensor", t->name, fault);
}

static bool read_tensor(cursor *c, mti_gguf *f)
{
    mti_gguf_tensor t = {.name = text(c)};
    const uint64_t rank = number(c, 4);
    if (c->cut) return true;
    if (rank < 1 || rank > 4) return bad_tensor(c, &t, "need 1 to 4 dimensions");
    t.rank = (int)rank;
    size_t size = 1, bytes = 0;
    for (int d = t.rank - 1; d >= 0; d--) {
        t.shape[d] = (int64_t)number(c, 8);
        if (c->cut) return true;
        if (t.shape[d] < 1 || !mti_mul_size(size, (size_t)t.shape[d], &size) ||
            size > INT64_MAX / 4)
            return bad_tensor(c, &t, "extents from 1 that do not overflow are needed");
    }
    t.type = (mti_gguf_type)number(c, 4);
    t.at = number(c, 8);
    if (c->cut) return true;
    const size_t n = mti_gguf_block(t.type, &bytes);
    if (!n)
        return bad_tensor(c, &t,
                          "its type is not read; need F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
                          "Q5_1, Q8_0, Q4_K, Q5_K or Q6_K");
    if ((size_t)t.shape[t.rank - 1] % n) return bad_tensor(c, &t, "its rows are no whole blocks");
    t.bytes = size / n * bytes;
    return MTI_PUSH(&f->tensors, t);
}

const mti_gguf_tensor *mti_gguf_tensor_of(const mti_gguf *f, const char *name)
{
    for (size_t i = 0; i < f->tensors.n; i++)
        if (mti_gguf_is(f->tensors.at[i].name, name)) return &f->tensors.at[i];
    return NULL;
}

static int by_text(const void *a, const void *b)
{
    const mti_gguf_text *x = a, *y = b;
    const int order = memcmp(x->at, y->at, x->n < y->n ? x->n : y->n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static bool all_differ(const cursor *c, const char *what, mti_gguf_text *names, size_t n)
{
    if (n) qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n; i++)
        if (!by_text(&names[i - 1], &names[i]))
            return bad_name(c, what, names[i], "is there twice");
    return true;
}

static bool check_names(const cursor *c, const mti_gguf *f)
{
    const size_t n = f->values.n + f->tensors.n;
    mti_gguf_text *names = mti_calloc(n + 1, sizeof *names), *of_tensors = names + f->values.n;
    for (size_t i = 0; names && i < f->values.n; i++) names[i] = f->values.at[i].key;
    for (size_t i = 0; names && i < f->tensors.n; i++) of_tensors[i] = f->tensors.at[i].name;
    const bool ok = names && all_differ(c, "key", names, f->values.n) &&
                    all_differ(c, "tensor", of_tensors, f->tensors.n);
    mti_free(names);
    return ok;
}

/* Turns places in the data into places in the file, and checks them: each tensor begins where the
 * one before it ends. */
static bool place_tensors(cursor *c, mti_gguf *f, uint64_t head_bytes, uint64_t file_bytes)
{
    const mti_gguf_value *given = mti_gguf_find(f, "general.alignment");
    const int64_t alignment = given ? mti_gguf_integer(given, 0) : 32;
    if (alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)))
        return bad(c, "general.alignment is not a power of two up to 2^20");
    const uint64_t a = (uint64_t)alignment, begin = (head_bytes + a - 1) / a * a;
    uint64_t next = 0;
    for (size_t i = 0; i < f->tensors.n; i++) {
        mti_gguf_tensor *t = &f->tensors.at[i];
        if (t->at % a) return bad_tensor(c, t, "its data is not aligned");
        if (begin > file_bytes || t->at > file_bytes - begin ||
            t->bytes > file_bytes - begin - t->at)
            return bad_tensor(c, t, "its data ends behind the file (truncated?)");
        if (t->at != next)
            return bad_tensor(c, t, "its data does not begin where the tensor before it ends");
        next = (t->at + t->bytes + a - 1) / a * a;
        t->at += begin;
    }
    return true;
}

/* ---- the whole ---- */

static bool parse(cursor *c, mti_gguf *f, uint64_t file_bytes)
{
    const unsigned char *begin = c->at, *magic = take(c, 4);
    if (magic && memcmp(magic, "GGUF", 4) != 0) {
        const char *other = mti_stand_in(begin, (size_t)(c->end - begin));
        return mti_fail_bool(MT_ERR_FORMAT, "%s: is %s", c->path,
                             other ? other : "not a GGUF file");
    }
    const uint64_t version = number(c, 4), tensors = number(c, 8), values = number(c, 8);
    if (!c->cut && (version < 2 || version > 3))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "%s: GGUF version %" PRIu64 "; need 2 or 3, little-endian", c->path,
                             version);
    for (uint64_t i = 0; !c->cut && i < values; i++)
        if (!read_value(c, f)) return false;
    for (uint64_t i = 0; !c->cut && i < tensors; i++)
        if (!read_tensor(c, f)) return false;
    return c->cut ||
           (check_names(c, f) && place_tensors(c, f, (uint64_t)(c->at - begin), file_bytes));
}

mti_gguf *mti_gguf_parse(const char *path, const void *head, size_t n_head, uint64_t file_bytes,
                         bool *cut)
{
    mti_gguf *f = mti_calloc(1, sizeof *f);
    cursor c = {.path = path};
    *cut = false;
    if (!f) return NULL;
    f->fd = -1;
    f->path = mti_strdup(path), f->head = mti_malloc(n_head + 1);
    if (f->head) memcpy(f->head, head, n_head);
    c.at = (unsigned char *)f->head, c.end = c.at + (f->head ? n_head : 0);
    bool ok = f->path && f->head && parse(&c, f, file_bytes);
    *cut = ok && c.cut;
    if (*cut && n_head == file_bytes)
        mti_fail(MT_ERR_FORMAT, "%s: the header goes on behind the file's end (truncated?)", path);
    if (ok && !c.cut) return f;
    mti_gguf_free(f);
    return NULL;
}

/* Reads more of the header until it is whole. */
static mti_gguf *read_head(int fd, const char *path, uint64_t file_bytes)
{
    mti_gguf *f = NULL;
    bool cut = true;
    const uint64_t most = file_bytes < LARGEST_HEAD ? file_bytes : LARGEST_HEAD;
    for (uint64_t n = FIRST_HEAD; cut; n *= 4) {
        if (n > most) n = most;
        char *head = mti_malloc((size_t)n + 1);
        cut = false;
        if (head && mti_read_at(fd, path, 0, head, (size_t)n))
            f = mti_gguf_parse(path, head, (size_t)n, file_bytes, &cut);
        mti_free(head);
        if (cut && n == most) {
            if (most < file_bytes)
                mti_fail(MT_ERR_FORMAT, "%s: the header is larger than 1 GiB", path);
            break;
        }
    }
    return f;
}

mti_gguf *mti_gguf_open(const char *path)
{
    uint64_t n_bytes;
    const int fd = mti_file_open(path, &n_bytes);
    if (fd < 0) return NULL;
    mti_gguf *f = read_head(fd, path, n_bytes);
    if (f)
        f->fd = fd;
    else
        close(fd);
    return f;
}

void mti_gguf_free(mti_gguf *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    mti_free(f->values.at), mti_free(f->tensors.at);
    mti_free(f->head), mti_free(f->path);
    mti_free(f);
}

bool mti_is_gguf(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf") && !mti_is_folder(path);
}
