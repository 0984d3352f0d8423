/* print_tensor.c: prints a tensor, in torch's layout (torch/_tensor_str.py). */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "autograd/autograd.h"
#include "memtape/print.h"

enum { LINE = 80, MAX_FULL = 1000, EDGE = 3, NUMBER = 340, DIGITS = 4 };

typedef enum style { WHOLE, FIXED, SCIENTIFIC, INTEGER, LOGICAL } style;

typedef struct printer {
    FILE *out;
    const mti_view *v;
    bool summary; /* print the first and last EDGE of each dimension */
    mti_number *items;
    size_t n, next; /* items in the order in which they are printed */
    style style;
    int width; /* of the widest item */
} printer;

static bool is_cut(const printer *p, int dim) { return p->summary && p->v->shape[dim] > 2 * EDGE; }

/* The next index to print after i. */
static int64_t next_shown(const printer *p, int dim, int64_t i)
{
    return i == EDGE - 1 && is_cut(p, dim) ? p->v->shape[dim] - EDGE : i + 1;
}

static size_t count_shown(const printer *p)
{
    size_t n = 1;
    for (int d = 0; d < p->v->rank; d++) n *= is_cut(p, d) ? 2 * EDGE : (size_t)p->v->shape[d];
    return n;
}

/* Recurses at most MT_MAX_RANK deep. */
static bool read_items(printer *p, const mt_tensor *t, int dim, int64_t offset)
{
    if (dim == p->v->rank) return mti_read_item(t, offset, &p->items[p->n++]);
    for (int64_t i = 0; i < p->v->shape[dim]; i = next_shown(p, dim, i))
        if (!read_items(p, t, dim + 1, offset + i * p->v->stride[dim])) return false;
    return true;
}

/* ---- numbers ---- */

static int format(const printer *p, const mti_number *item, char text[NUMBER])
{
    double x = item->real;
    bool odd = p->style <= SCIENTIFIC && !isfinite(x);
    if (odd) return snprintf(text, NUMBER, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
    switch (p->style) {
    case WHOLE: return mti_format(text, NUMBER, "%.0f.", x);
    case FIXED: return mti_format(text, NUMBER, "%.*f", DIGITS, x);
    case SCIENTIFIC: return mti_format(text, NUMBER, "%.*e", DIGITS, x);
    case LOGICAL: return snprintf(text, NUMBER, "%s", item->whole ? "true" : "false");
    case INTEGER:
    default: return snprintf(text, NUMBER, "%lld", (long long)item->whole);
    }
}

static style float_style(const printer *p)
{
    double min = INFINITY, max = 0;
    bool whole = true;
    for (size_t i = 0; i < p->n; i++) {
        double x = fabs(p->items[i].real);
        if (!isfinite(x) || x == 0) continue;
        min = fmin(min, x), max = fmax(max, x);
        whole = whole && x == floor(x);
    }
    if (max == 0) return WHOLE;
    if (max / min > 1000 || max > 1e8 || min < 1e-4) return SCIENTIFIC;
    return whole ? WHOLE : FIXED;
}

static void choose_format(printer *p)
{
    char text[NUMBER];
    p->style = mti_dtype_is_real(p->v->dtype) ? float_style(p)
               : p->v->dtype == MT_BOOL       ? LOGICAL
                                              : INTEGER;
    for (size_t i = 0; i < p->n; i++) {
        int n = format(p, &p->items[i], text);
        if (n > p->width) p->width = n;
    }
}

/* ---- writing ---- */

static bool put_break(const printer *p, int n_lines, int n_spaces)
{
    bool ok = true;
    while (ok && n_lines-- > 0) ok = fputc('\n', p->out) != EOF;
    return ok && mti_print(p->out, "%*s", n_spaces, "") >= 0;
}

static bool put_item(printer *p)
{
    char text[NUMBER];
    format(p, &p->items[p->next++], text);
    return mti_print(p->out, "%*s", p->width, text) >= 0;
}

/* The last dimension: as many items on a line as fit. */
static bool put_row(printer *p)
{
    int dim = p->v->rank - 1, on_line = 0;
    int room = (LINE - dim) / (p->width + 2), per_line = room > 1 ? room : 1;
    bool ok = true;
    for (int64_t i = 0; ok && i < p->v->shape[dim]; i = next_shown(p, dim, i)) {
        bool gap = i == p->v->shape[dim] - EDGE && is_cut(p, dim);
        for (int part = !gap; ok && part < 2; part++) { /* " ...", and the item */
            if (i > 0 && on_line == per_line)
                ok = fputc(',', p->out) != EOF && put_break(p, 1, dim + 1), on_line = 0;
            else if (i > 0)
                ok = fputs(", ", p->out) != EOF;
            ok = ok && (part ? put_item(p) : fputs(" ...", p->out) != EOF);
            on_line++;
        }
    }
    return ok;
}

static bool put_block(printer *p, int dim)
{
    int last = p->v->rank - 1;
    if (last < 0) return put_item(p);
    bool ok = fputc('[', p->out) != EOF;
    if (dim == last) ok = ok && put_row(p);
    for (int64_t i = 0; ok && dim < last && i < p->v->shape[dim]; i = next_shown(p, dim, i)) {
        if (i == p->v->shape[dim] - EDGE && is_cut(p, dim))
            ok = fputc(',', p->out) != EOF && put_break(p, last - dim, dim + 1) &&
                 fputs("...", p->out) != EOF;
        if (ok && i > 0) ok = fputc(',', p->out) != EOF && put_break(p, last - dim, dim + 1);
        ok = ok && put_block(p, dim + 1);
    }
    return ok && fputc(']', p->out) != EOF;
}

static bool put_head(FILE *out, const mt_tensor *t)
{
    char shape[MTI_SHAPE_TEXT];
    const mti_view *v = &t->view;
    const char *op = mt_grad_fn_name(t);
    return mti_print(out, "%s %s on %s%s%s%s\n", mt_dtype_name(v->dtype),
                     mti_shape_text(shape, v->rank, v->shape), mt_device_kind(t->storage->device),
                     *op                ? ", made by "
                     : t->requires_grad ? ", requires grad"
                                        : "",
                     op, mt_device_has_data(t->storage->device) ? "" : ", no data") >= 0;
}

static bool put(printer *p, const mt_tensor *t)
{
    if (!put_head(p->out, t)) return false;
    bool values = mt_device_has_data(t->storage->device), empty = mti_view_count(p->v) == 0;
    if (values && !(empty ? fputs("[]", p->out) != EOF : put_block(p, 0))) return false;
    return (!values || fputc('\n', p->out) != EOF) && fflush(p->out) == 0;
}

mt_status mt_print(const mt_tensor *t, FILE *out)
{
    if (!mti_given(t, "print", "the tensor")) return mt_last_status();
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "print: out is NULL");
    int64_t n = mt_numel(t);
    printer p = {.out = out, .v = &t->view, .summary = n > MAX_FULL};
    if (n > 0 && mt_device_has_data(t->storage->device)) {
        size_t n_bytes;
        bool fits = mti_mul_size(count_shown(&p), sizeof *p.items, &n_bytes);
        p.items = fits ? mti_malloc(n_bytes) : NULL;
        if (!p.items || !read_items(&p, t, 0, 0)) {
            mti_free(p.items);
            return mt_last_status();
        }
        choose_format(&p);
    }
    errno = 0;
    bool ok = put(&p, t);
    mti_free(p.items);
    return ok ? MT_OK : mti_fail(MT_ERR_IO, "print: %s", errno ? strerror(errno) : "not written");
}
