/* weights.c: a rank's first weights: its shard of those that the whole model would draw from the
 * same seed, bit for bit. Every random number is a function of its position in the whole tensor, so
 * only the shard is made. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "collectives/collectives.h"
#include "nn/lora.h"
#include "parallel/parallel.h"
#include "tensor/tensor.h"

/* ---- names ---- */

static size_t length_of_module(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? (size_t)(dot - path) : strlen(path);
}

/* Whether path[n] ends with the module name[m]. */
static bool ends_with(const char *path, size_t n, const char *name, size_t m)
{
    return n >= m && !strncmp(path + n - m, name, m) && (n == m || path[n - m - 1] == '.');
}

/* Without what an adapter has its base and its own matrices under: "h.0.mlp.fc" of
 * "h.0.mlp.fc.lora_A.weight". */
static size_t length_of_linear(const char *path)
{
    static const char *const children[] = {MTI_LORA_BASE, MTI_LORA_A, MTI_LORA_B};
    size_t n = length_of_module(path);
    for (size_t i = 0; i < sizeof children / sizeof *children; i++)
        if (ends_with(path, n, children[i], strlen(children[i])) && n > strlen(children[i]))
            return n - strlen(children[i]) - 1;
    return n;
}

static bool is_child(const char *path, const char *name)
{
    return ends_with(path, length_of_module(path), name, strlen(name));
}

static bool is_a(const char *path) { return is_child(path, MTI_LORA_A); }
static bool is_b(const char *path) { return is_child(path, MTI_LORA_B); }
bool mti_is_adapter(const char *path) { return is_a(path) || is_b(path); }

const char *mti_plain_path(char plain[MTI_PLAIN_PATH], const char *path)
{
    size_t n = length_of_linear(path);
    snprintf(plain, MTI_PLAIN_PATH, "%.*s%s", (int)n, path, path + length_of_module(path));
    return plain;
}

/* ---- where a rank's shard lies in the whole ---- */

/* Rows that lie side by side here and there. */
typedef struct band {
    int64_t own, whole, length;
} band;

/* A matrix of this rank in the whole one; a vector has one column. Experts' matrices stand one
 * below the other, with the same bands in each: so many rows here and there. */
typedef struct shard_place {
    int64_t cols, whole_rows, whole_cols, first_col;
    int64_t each, whole_each, first; /* first: row of the whole where this rank's experts begin */
    int n_bands;
    band bands[3];
} shard_place;

static void add_band(shard_place *p, int64_t whole, int64_t length)
{
    int64_t own = p->n_bands ? p->bands[p->n_bands - 1].own + p->bands[p->n_bands - 1].length : 0;
    p->bands[p->n_bands++] = (band){own, whole, length};
}

/* modules: names with spaces between them. */
static bool is_one_of(const char *path, const char *modules)
{
    const size_t length = length_of_linear(path);
    for (size_t n; *modules; modules += n + (modules[n] == ' ')) {
        n = strcspn(modules, " ");
        if (ends_with(path, length, modules, n)) return true;
    }
    return false;
}

static bool is_bias(const char *path)
{
    const char *dot = strrchr(path, '.');
    return !strcmp(dot ? dot + 1 : path, "bias");
}

/* Matrices of which a tensor rank has some rows, and some columns. */
static const char by_rows[] = "qkv q q_b kv_b k v fc gate up gate_up wte lm_head decoder "
                              "experts_gate_up experts_fc sinks experts_gate_up_bias";
static const char by_columns[] = "proj down experts_down";
static const char of_experts[] =
    "experts_gate_up experts_fc experts_down experts_gate_up_bias experts_down_bias";
static const char expert_biases[] = "experts_gate_up_bias experts_down_bias";

/* Whether it is an expert's, and ranks that share the layer do not cut experts. */
static bool is_whole(const mt_parallel *h, const char *path)
{
    return mti_folds_experts(h) && is_one_of(path, of_experts);
}

/* Norms of queries and keys see this rank's heads, a router what this rank's part of the sum
 * weighs, the bias behind experts' columns is added in parts, and B beside the columns of experts;
 * what lies between a layer's products sees, with sequence parallelism, this rank's shard of the
 * sequence. So does B beside columns. A beside rows has its gradient through this rank's rows of B.
 */
bool mti_is_partial(const mt_parallel *h, const char *path)
{
    static const char heads[] = "q_norm k_norm router experts_down_bias";
    static const char between[] = "ln ln_1 ln_2 ln_1_out ln_2_out ln_f wpe tte dense q_a q_a_norm "
                                  "kv_a kv_a_norm enorm hnorm eh_proj";
    if (h->tensor == 1 || is_whole(h, path)) return false;
    if (is_a(path) && is_one_of(path, by_rows)) return true;
    if (is_b(path) && is_one_of(path, "experts_down")) return true;
    bool after_sum = (is_bias(path) || is_b(path)) && is_one_of(path, by_columns);
    return is_one_of(path, heads) || (h->sequence && (is_one_of(path, between) || after_sum));
}

bool mti_is_sharded(const mt_parallel *h, const char *path)
{
    if (h->tensor == 1 || is_whole(h, path)) return false;
    if (is_a(path)) return is_one_of(path, by_columns);
    if (is_one_of(path, by_rows)) return true;
    return !is_bias(path) && !is_b(path) && is_one_of(path, by_columns);
}

bool mti_is_divided(const mt_parallel *h, const char *path)
{
    return mti_divides_experts(h) && is_one_of(path, of_experts);
}

mt_group mti_param_group(const mt_parallel *h, const char *path)
{
    return mti_is_divided(h, path) ? mti_expert_data_group(h) : mti_shard_group(h);
}

bool mti_is_vocabulary(const char *path)
{
    return !is_bias(path) && !mti_is_adapter(path) && is_one_of(path, "wte lm_head decoder");
}

bool mti_is_at_both_ends(const mti_model_shard *s, const char *path)
{
    const mt_model_config *c = &s->whole;
    if (!mti_is_end(&s->parallel) || !mti_is_whole(c->kind)) return false;
    return (mti_ties_head(c) && mti_is_vocabulary(path)) ||
           (c->mtp_layers && !mti_is_adapter(path) && is_one_of(path, "wte wpe"));
}

/* Several products side by side: this rank has some rows of each. What they have in common is A.
 * Codes of 4 bits, which have no rows, are whole. */
static void add_bands(shard_place *p, const mti_model_shard *s, const char *path, int64_t rows)
{
    const mt_model_config *own = &s->local, *all = &s->whole;
    int64_t r = s->parallel.tensor_rank;
    if (s->parallel.tensor == 1 || is_a(path) || is_whole(&s->parallel, path)) {
        add_band(p, 0, rows);
    } else if (is_one_of(path, "qkv") && !all->qkv_by_head) {
        int64_t q = own->heads * own->head_dim, k = own->kv_heads * own->head_dim;
        int64_t from = all->heads * all->head_dim, kv = all->kv_heads * all->head_dim;
        add_band(p, r * q, q);
        add_band(p, from + r * k, k);
        add_band(p, from + kv + r * k, k);
    } else if (is_one_of(path, "gate_up experts_gate_up") &&
               all->mlp != MT_MLP_CLAMPED) { /* whose gate and up lie by turns */
        add_band(p, r * own->ffn, own->ffn);
        add_band(p, all->ffn + r * own->ffn, own->ffn);
    } else {
        bool cut = rows != p->whole_rows || is_one_of(path, "decoder") || mti_is_vocabulary(path);
        add_band(p, cut ? r * rows : 0, rows);
    }
}

static int64_t columns_of(const mt_layout *t) { return t->rank > 1 ? t->shape[t->rank - 1] : 1; }

/* own: all that a tensor rank has of it. */
static shard_place place_of(const mti_model_shard *s, const char *path, const mt_layout *own,
                            const mt_layout *whole)
{
    const mt_parallel *h = &s->parallel;
    const bool stand = whole->rank == 3 || is_one_of(path, expert_biases);
    const int64_t n = stand ? whole->shape[0] : 1, cols = columns_of(own);
    shard_place p = {.cols = cols, .whole_cols = columns_of(whole)};
    int64_t rows = cols ? mti_layout_count(own) / cols : 0;
    p.whole_rows = p.whole_cols ? mti_layout_count(whole) / p.whole_cols / n : 0;
    if (n > 1) {
        const int64_t here = n / h->expert;
        rows /= here;
        p.first = mti_expert_group(h).rank * here * p.whole_rows;
    }
    p.each = rows, p.whole_each = p.whole_rows;
    p.first_col = cols == p.whole_cols ? 0 : s->parallel.tensor_rank * cols;
    add_bands(&p, s, path, rows);
    return p;
}

/* Elements from the ith on, of at most n, that lie side by side in the whole, too, and where;
 * *at -1: they are padding. */
static int64_t run_at(const shard_place *p, int64_t i, int64_t n, int64_t *at)
{
    int64_t nth = i / p->cols / p->each, row = i / p->cols % p->each, col = i % p->cols, k = 0;
    while (row >= p->bands[k].own + p->bands[k].length) k++;
    const band *b = &p->bands[k];
    int64_t there = row - b->own + b->whole, rows = b->own + b->length - row;
    bool padding = there >= p->whole_rows;
    if (!padding && there + rows > p->whole_rows) rows = p->whole_rows - there;
    int64_t run = p->cols == p->whole_cols || padding ? rows * p->cols - col : p->cols - col;
    there += p->first + nth * p->whole_each;
    *at = padding ? -1 : there * p->whole_cols + p->first_col + col;
    return run < n ? run : n;
}

bool mti_each_run(const mti_model_shard *s, const char *path, const mt_layout *own,
                  const mt_tensor *whole, int64_t from, int64_t n, mti_each_run_fn *fn, void *user)
{
    const mt_layout all = mt_layout_of(whole);
    const shard_place p = place_of(s, path, own, &all);
    int64_t at;
    for (int64_t i = 0, run; i < n; i += run) {
        run = run_at(&p, from + i, n - i, &at);
        if (!fn(user, i, run, at)) return false;
    }
    return true;
}

/* ---- values ---- */

typedef struct draw {
    mt_tensor *t;
    uint64_t seed, offset; /* of the whole parameter */
    bool uniform;
    double width; /* the bound of uniform numbers, the standard deviation of others */
} draw;

/* n elements of t, which is contiguous, from the ith on. */
static mti_view run_of(const mt_tensor *t, int64_t i, int64_t n)
{
    mti_view v = {.dtype = t->view.dtype, .rank = 1, .shape = {n}, .stride = {1}};
    v.data = (char *)t->view.data + (size_t)i * mt_dtype_size(v.dtype);
    return v;
}

static bool fill_run(mt_tensor *t, int64_t i, int64_t n, double value)
{
    mt_device *d = mt_device_of(t);
    const mti_view v = run_of(t, i, n);
    return d->backend->fill(d->ctx, &v, value);
}

/* v: what one process would draw from the counter of element `at` on. */
static bool draw_view(mt_device *d, const draw *how, uint64_t at, const mti_view *v)
{
    const uint64_t offset = how->offset + at / 4;
    return how->uniform ? d->backend->uniform(d->ctx, -how->width, how->width, how->seed, offset, v)
                        : d->backend->normal(d->ctx, 0, how->width, how->seed, offset, v);
}

/* The same of the n elements from the ith on of the tensor, which are those from `at` on of the
 * whole; -1: padding, zeros. Four elements share a counter. A run that begins between two counters
 * is drawn aside from the first of them on, in memory of the host; so that must be the device's. */
static bool draw_run(void *user, int64_t i, int64_t n, int64_t at)
{
    const draw *how = user;
    mt_device *d = mt_device_of(how->t);
    const mti_view v = run_of(how->t, i, n);
    const int64_t skip = at % 4;
    if (at < 0) return fill_run(how->t, i, n, 0);
    if (!skip) return draw_view(d, how, (uint64_t)at, &v);
    mti_view aside = v;
    size_t size = mt_dtype_size(v.dtype);
    aside.shape[0] = n + skip;
    if (!(aside.data = mti_malloc((size_t)(n + skip) * size))) return false;
    bool ok = draw_view(d, how, (uint64_t)at, &aside) &&
              d->backend->upload(d->ctx, v.data, (char *)aside.data + (size_t)skip * size,
                                 (size_t)n * size);
    mti_free(aside.data);
    return ok;
}

/* ---- all parameters of a part ---- */

bool mti_whole_open(mti_whole *w, const mti_model_shard *s, const mt_lora_options *lora)
{
    mt_model_config config = s->whole;
    config.vocab = s->vocab;
    *w = (mti_whole){.device = mt_device_open("meta")};
    if (!w->device) return false;
    w->model =
        lora ? mt_lora_model_new(w->device, &config, lora) : mt_model_new(w->device, &config);
    return w->model && mt_module_params(w->model, &w->list, &w->n) == MT_OK;
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
    return is_one_of(path, "lm_head decoder")
               ? mti_whole_find(w, is_bias(path) ? "head.bias" : "wte.weight")
               : NULL;
}

/* One process draws the weights in their order, then every A; what is NF4 later, too. */
typedef struct model_draws {
    mti_whole plain,
        adapted; /* without adapters, and with them; .adapted: zero if there are none */
    const mt_lora_options *lora; /* may be NULL */
    uint64_t seed, offset;       /* where it begins */
} model_draws;

static bool open_draws(model_draws *w, const mti_model_shard *s, const mt_lora_options *lora)
{
    w->lora = lora;
    return mti_whole_open(&w->plain, s, NULL) && (!lora || mti_whole_open(&w->adapted, s, lora));
}

static void close_draws(model_draws *w)
{
    mti_whole_close(&w->plain);
    mti_whole_close(&w->adapted);
}

/* Vectors have one value everywhere, and so have experts' biases; matrices are drawn, and sinks and
 * a router's bias that is no buffer. */
static bool is_drawn(const char *path, const mt_tensor *t)
{
    return mt_rank(t) > 1 ? !is_one_of(path, expert_biases)
                          : is_one_of(path, "sinks router") && !mti_is_buffer(t);
}

static uint64_t counters_of(const mt_named_tensor *p)
{
    return is_drawn(p->name, p->tensor) ? ((uint64_t)mt_numel(p->tensor) + 3) / 4 : 0;
}

/* Counts for the weights before `end` of the list; NULL: for all. adapters: for every A alone. */
static uint64_t counters_before(const mti_whole *w, const mt_named_tensor *end, bool adapters)
{
    uint64_t n = 0;
    for (const mt_named_tensor *q = w->list; q < (end ? end : w->list + w->n); q++)
        if (!adapters || is_a(q->name)) n += counters_of(q);
    return n;
}

static double std_of(const mti_model_shard *s, const char *path)
{
    return is_one_of(path, by_columns) ? mti_residual_std(&s->whole) : MTI_INIT_STD;
}

/* A vector's first values: norms begin with 1, biases with 0. */
static double constant_of(const mti_model_shard *s, const char *path)
{
    return !is_bias(path) && !is_one_of(path, expert_biases) &&
           s->whole.norm_kind != MT_NORM_RMS_ONE;
}

/* The whole parameter that `path`, which is drawn, is a part of, and how one process draws it. */
static const mt_named_tensor *find_draw(const model_draws *w, const mti_model_shard *s,
                                        const char *path, draw *d)
{
    char plain[MTI_PLAIN_PATH];
    *d = (draw){.seed = w->seed, .offset = w->offset, .uniform = is_a(path)};
    const mt_named_tensor *all = d->uniform
                                     ? mti_whole_find(&w->adapted, path)
                                     : mti_whole_find(&w->plain, mti_plain_path(plain, path));
    if (!all) return mti_fail_null(MT_ERR_INTERNAL, "rank: the whole model has no %s", path);
    if (d->uniform) {
        d->offset +=
            counters_before(&w->plain, NULL, false) + counters_before(&w->adapted, all, true);
        d->width = 1 / sqrt((double)mt_shape(all->tensor)[mt_rank(all->tensor) - 1]);
    } else {
        d->offset += counters_before(&w->plain, all, false);
        d->width = std_of(s, path);
    }
    return all;
}

bool mti_set_codes(mt_tensor *codes, mt_tensor *dense, const mt_lora_options *lora)
{
    const mt_quant format = mti_lora_format(lora);
    size_t n = (size_t)mt_numel(codes);
    MT_AUTO mt_tensor *packed = mt_quantize(dense, &format);
    void *data = packed ? mti_malloc(n) : NULL;
    bool ok =
        data && mt_to_host(packed, data, n) == MT_OK && mt_copy_from_host(codes, data, n) == MT_OK;
    mti_free(data);
    return ok;
}

/* A weight in 4 bits, all of which this rank has: it is drawn on a separate device. */
static bool draw_codes(mt_tensor *codes, const char *path, const mti_model_shard *s,
                       const model_draws *w)
{
    draw d;
    const mt_named_tensor *all = find_draw(w, s, path, &d);
    mt_device *separate = all ? mt_device_open("cpu") : NULL;
    if (!separate) return false;
    mt_rng_set(separate, d.seed, d.offset);
    mt_tensor *dense = mt_normal(separate, mt_dtype_of(all->tensor), mt_rank(all->tensor),
                                 mt_shape(all->tensor), 0, d.width);
    bool ok = dense && mti_set_codes(codes, dense, w->lora);
    mt_release(dense);
    mt_device_release(separate);
    return ok;
}

/* The first values of a parameter, of which this rank may have a shard. */
static bool draw_param(const mti_sharded *param, const char *path, const mti_model_shard *s,
                       const model_draws *w)
{
    mt_tensor *t = param->shard;
    if (!mt_dtype_is_float(mt_dtype_of(t))) return draw_codes(t, path, s, w);
    const mti_shard_range own = mti_shard_of(mti_layout_count(&param->whole), &param->group);
    if (own.n < own.length && !fill_run(t, own.n, own.length - own.n, 0))
        return false; /* padding */
    if (is_b(path)) return fill_run(t, 0, own.n, 0);
    if (!is_drawn(path, t)) return fill_run(t, 0, own.n, constant_of(s, path));
    draw d;
    const mt_named_tensor *all = find_draw(w, s, path, &d);
    d.t = t;
    return all && mti_each_run(s, path, &param->whole, all->tensor, own.from, own.n, draw_run, &d);
}

static bool draw_all(const mt_named_tensor *list, size_t n, const mti_model_shard *s,
                     const mti_units *units, const model_draws *w)
{
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++) {
        mt_tensor *t = list[i].tensor;
        const mti_sharded whole = {t, mt_layout_of(t), *MT_RANKS(1)},
                          *cut = mti_units_find(units, t);
        ok = draw_param(cut ? cut : &whole, list[i].name, s, w);
    }
    uint64_t end = w->offset + counters_before(&w->plain, NULL, false);
    if (w->lora) end += counters_before(&w->adapted, NULL, true);
    if (ok && n) mt_rng_set(mt_device_of(list[0].tensor), w->seed, end);
    return ok;
}

bool mti_rank_draw(mt_module *m, const mti_model_shard *s, const mti_units *units,
                   const mt_lora_options *lora, uint64_t seed, uint64_t offset)
{
    const mt_named_tensor *list;
    size_t n;
    model_draws w = {.seed = seed, .offset = offset};
    bool ok = open_draws(&w, s, lora) && mt_module_params(m, &list, &n) == MT_OK &&
              draw_all(list, n, s, units, &w);
    close_draws(&w);
    return ok;
}
