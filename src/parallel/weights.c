/* weights.c: a rank's first weights: its part of those that the whole model would draw from the
 * same seed, bit for bit. Every random number is a function of its position in the whole tensor, so
 * only the part is made. */
#include <string.h>
#include "parallel/parallel.h"
#include "tensor/tensor.h"

/* ---- where a rank's part lies in the whole ---- */

/* Rows that lie side by side here and there. */
typedef struct band {
    int64_t own, whole, length;
} band;

/* A matrix of this rank in the whole one; a vector has one column. */
typedef struct part {
    int64_t cols, whole_rows, whole_cols, first_col;
    int n_bands;
    band bands[3];
} part;

static void add_band(part *p, int64_t whole, int64_t length)
{
    int64_t own = p->n_bands ? p->bands[p->n_bands - 1].own + p->bands[p->n_bands - 1].length : 0;
    p->bands[p->n_bands++] = (band){own, whole, length};
}

static bool is_called(const char *path, const char *module)
{
    size_t n = strlen(path), m = strlen(module);
    const char *dot = strrchr(path, '.');
    size_t at = dot ? (size_t)(dot - path) : n;
    return at >= m && !strncmp(path + at - m, module, m) && (at == m || path[at - m - 1] == '.');
}

static bool is_one_of(const char *path, const char *const *modules)
{
    for (; *modules; modules++)
        if (is_called(path, *modules)) return true;
    return false;
}

static bool is_bias(const char *path)
{
    const char *dot = strrchr(path, '.');
    return !strcmp(dot ? dot + 1 : path, "bias");
}

/* Norms of queries and keys see this rank's heads; what lies between a layer's products sees, with
 * sequence parallelism, this rank's piece of the sequence. */
bool mti_is_partial(const mt_parallel *h, const char *path)
{
    static const char *const heads[] = {"q_norm", "k_norm", NULL};
    static const char *const between[] = {"ln",   "ln_1", "ln_2", "ln_1_out", "ln_2_out",
                                          "ln_f", "wpe",  "tte",  "dense",    NULL};
    static const char *const last[] = {"proj", "down", NULL};
    if (h->tensor == 1) return false;
    return is_one_of(path, heads) ||
           (h->sequence && (is_one_of(path, between) || (is_bias(path) && is_one_of(path, last))));
}

bool mti_is_cut(const mt_parallel *h, const char *path)
{
    static const char *const rows[] = {"qkv", "q",       "k",   "v",       "fc",      "gate",
                                       "up",  "gate_up", "wte", "lm_head", "decoder", NULL};
    static const char *const columns[] = {"proj", "down", NULL};
    return h->tensor > 1 && (is_one_of(path, rows) || (!is_bias(path) && is_one_of(path, columns)));
}

bool mti_is_vocabulary(const char *path)
{
    static const char *const names[] = {"wte", "lm_head", "decoder", NULL};
    return !is_bias(path) && is_one_of(path, names);
}

/* Several products side by side: this rank has some rows of each. */
static void add_bands(part *p, const mti_share *s, const char *path, int64_t rows)
{
    const mt_model_config *own = &s->local, *all = &s->whole;
    int64_t r = s->parallel.tensor_rank;
    if (is_called(path, "qkv")) {
        int64_t q = own->heads * own->head_dim, k = own->kv_heads * own->head_dim;
        int64_t from = all->heads * all->head_dim, kv = all->kv_heads * all->head_dim;
        add_band(p, r * q, q);
        add_band(p, from + r * k, k);
        add_band(p, from + kv + r * k, k);
    } else if (is_called(path, "gate_up")) {
        add_band(p, r * own->ffn, own->ffn);
        add_band(p, all->ffn + r * own->ffn, own->ffn);
    } else {
        bool cut = rows != p->whole_rows || is_called(path, "decoder") || mti_is_vocabulary(path);
        add_band(p, cut ? r * rows : 0, rows);
    }
}

static part part_of(const mti_share *s, const char *path, int64_t rows, int64_t cols,
                    const mt_tensor *whole)
{
    int64_t whole_cols = mt_rank(whole) > 1 ? mt_shape(whole)[1] : 1;
    part p = {.cols = cols, .whole_rows = mt_shape(whole)[0], .whole_cols = whole_cols};
    p.first_col = cols == p.whole_cols ? 0 : s->parallel.tensor_rank * cols;
    add_bands(&p, s, path, rows);
    return p;
}

/* Elements from the ith on, of at most n, that lie side by side in the whole, too, and where;
 * *at -1: they are padding. */
static int64_t run_at(const part *p, int64_t i, int64_t n, int64_t *at)
{
    int64_t row = i / p->cols, col = i % p->cols, k = 0;
    while (row >= p->bands[k].own + p->bands[k].length) k++;
    const band *b = &p->bands[k];
    int64_t there = row - b->own + b->whole, rows = b->own + b->length - row;
    bool padding = there >= p->whole_rows;
    if (!padding && there + rows > p->whole_rows) rows = p->whole_rows - there;
    int64_t run = p->cols == p->whole_cols || padding ? rows * p->cols - col : p->cols - col;
    *at = padding ? -1 : there * p->whole_cols + p->first_col + col;
    return run < n ? run : n;
}

bool mti_each_run(const mti_share *s, const char *path, const mti_cut_shape *own,
                  const mt_tensor *whole, int64_t from, int64_t n, mti_each_run_fn *fn, void *user)
{
    const part p = part_of(s, path, own->rows, own->cols, whole);
    int64_t at;
    for (int64_t i = 0, run; i < n; i += run) {
        run = run_at(&p, from + i, n - i, &at);
        if (!fn(user, i, run, at)) return false;
    }
    return true;
}

/* ---- values ---- */

typedef struct draw {
    uint64_t seed, offset; /* of the whole parameter */
    double std;
} draw;

/* t's first n elements, which are those from `from` on of this rank's part. */
static bool draw_part(mt_tensor *t, int64_t from, int64_t n, const part *p, const draw *d)
{
    int64_t at;
    for (int64_t i = 0, run; i < n; i += run) {
        run = run_at(p, from + i, n - i, &at);
        bool ok = at < 0 ? mti_fill_run(t, i, run, 0)
                         : mti_normal_run(t, i, run, d->std, d->seed, d->offset, (uint64_t)at);
        if (!ok) return false;
    }
    return true;
}

/* ---- all parameters of a part ---- */

bool mti_whole_open(mti_whole *w, const mti_share *s)
{
    mt_model_config config = s->whole;
    config.vocab = s->vocab;
    *w = (mti_whole){.device = mt_device_open("meta")};
    return w->device && (w->model = mt_model_new(w->device, &config)) &&
           mt_module_params(w->model, &w->list, &w->n) == MT_OK;
}

void mti_whole_close(mti_whole *w)
{
    mt_module_free(w->model);
    mt_device_release(w->device);
}

const mt_named_tensor *mti_whole_find(const mti_whole *w, const char *path)
{
    for (size_t i = 0; i < w->n; i++)
        if (!strcmp(w->list[i].name, path)) return &w->list[i];
    bool tied = is_called(path, "lm_head") || is_called(path, "decoder");
    return tied ? mti_whole_find(w, is_bias(path) ? "head.bias" : "wte.weight") : NULL;
}

/* Vectors have one value everywhere; matrices are drawn. */
static bool is_drawn(const mt_tensor *t) { return mt_rank(t) > 1; }

static uint64_t counters_of(const mt_tensor *t)
{
    return is_drawn(t) ? ((uint64_t)mt_numel(t) + 3) / 4 : 0;
}

/* The counters before a parameter. */
static uint64_t counters_before(const mti_whole *w, const mt_named_tensor *p)
{
    uint64_t n = 0;
    for (const mt_named_tensor *q = w->list; q < p; q++) n += counters_of(q->tensor);
    return n;
}

static double std_of(const mti_share *s, const char *path)
{
    bool last = is_called(path, "proj") || is_called(path, "down");
    return last ? mti_residual_std(&s->whole) : MTI_INIT_STD;
}

/* Of a vector: norms begin with 1, biases with 0. */
static double constant_of(const mti_share *s, const char *path)
{
    return !is_bias(path) && s->whole.norm_kind != MT_NORM_RMS_ONE;
}

/* t's first values. rows and cols of the matrix that it is, or of which it is a piece. */
static bool draw_param(mt_tensor *t, const char *path, int64_t rows, int64_t cols,
                       const mti_share *s, const mti_whole *w, draw d)
{
    int64_t n = mt_numel(t), from = n < rows * cols ? n * mti_data_group(&s->parallel).rank : 0;
    int64_t own = from + n <= rows * cols ? n : rows * cols > from ? rows * cols - from : 0;
    if (own < n && !mti_fill_run(t, own, n - own, 0)) return false; /* a piece's padding */
    if (!is_drawn(t)) return mti_fill_run(t, 0, own, constant_of(s, path));
    const mt_named_tensor *all = mti_whole_find(w, path);
    if (!all) return mti_fail_bool(MT_ERR_INTERNAL, "rank: the whole model has no %s", path);
    const part p = part_of(s, path, rows, cols, all->tensor);
    d.offset += counters_before(w, all);
    d.std = std_of(s, path);
    return draw_part(t, from, own, &p, &d);
}

static const mti_cut_shape *shape_of(const mti_cutter *cutter, const mt_tensor *piece)
{
    for (size_t i = 0; cutter && i < cutter->shapes.n; i++)
        if (cutter->shapes.at[i].piece == piece) return &cutter->shapes.at[i];
    return NULL;
}

bool mti_rank_draw(mt_module *m, const mti_share *s, const mti_cutter *cutter, uint64_t seed,
                   uint64_t offset)
{
    const mt_named_tensor *list;
    size_t n;
    mti_whole w;
    bool ok = mti_whole_open(&w, s) && mt_module_params(m, &list, &n) == MT_OK;
    for (size_t i = 0; ok && i < n; i++) {
        mt_tensor *t = list[i].tensor;
        const mti_cut_shape *cut = shape_of(cutter, t);
        int64_t rows = cut ? cut->rows : mt_shape(t)[0];
        int64_t cols = cut ? cut->cols : mt_rank(t) > 1 ? mt_shape(t)[1] : 1;
        ok = draw_param(t, list[i].name, rows, cols, s, &w, (draw){seed, offset, 0});
    }
    uint64_t counters = 0;
    for (size_t i = 0; ok && i < w.n; i++) counters += counters_of(w.list[i].tensor);
    if (ok && n) mt_rng_set(mt_device_of(list[0].tensor), seed, offset + counters);
    mti_whole_close(&w);
    return ok;
}
