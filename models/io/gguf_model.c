/* gguf_model.c: a model from a GGUF file. Of a llama the rows of queries and keys lie there by
 * turns, in the pairs that its rotary positions turn; here, as in Transformers, in halves. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "files/files.h"
#include "io/gguf.h"
#include "memtape/ops.h"
#include "nn/model.h"

#define MAX_HALF 512 /* pairs of a head whose angles are in a file */

/* ---- the configuration ---- */

typedef struct reader {
    const mti_gguf *f;
    char arch[32];
    bool ok;
} reader;

static const mti_gguf_value *of_arch(const reader *r, const char *key)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", r->arch, key);
    return mti_gguf_find(r->f, name);
}

/* least 0: it may be missing */
static int64_t extent(reader *r, const char *key, int64_t least, int64_t most)
{
    const mti_gguf_value *v = of_arch(r, key);
    const int64_t n = v && v->n == 1 ? mti_gguf_integer(v, 0) : v ? -1 : 0;
    if (r->ok && (n < least || n > most))
        r->ok = mti_fail_bool(
            MT_ERR_FORMAT, "%s: %s.%s is %s; need a whole number from %lld to %lld", r->f->path,
            r->arch, key, v ? "not one in range" : "missing", (long long)least, (long long)most);
    return n;
}

static double real(reader *r, const char *key)
{
    const mti_gguf_value *v = of_arch(r, key);
    const double x = v ? mti_gguf_real(v) : 0;
    if (r->ok && !(x >= 0 && isfinite(x)))
        r->ok = mti_fail_bool(MT_ERR_FORMAT, "%s: %s.%s is not a number from 0", r->f->path,
                              r->arch, key);
    return x;
}

static bool read_arch(reader *r)
{
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    mti_gguf_text text = {"", 0};
    const mti_gguf_value *v = mti_gguf_find(r->f, "general.architecture");
    if (v && v->n == 1) mti_gguf_texts(v, &text);
    mti_format(r->arch, sizeof r->arch, "%.*s", text.n < 30 ? (int)text.n : 30, text.at);
    mti_make_printable(r->arch);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(r->arch, known[i])) return true;
    return mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "%s: the architecture is \"%s\"; need llama, qwen2 or qwen3", r->f->path,
                         r->arch);
}

/* What would make other values than the model here. */
static bool check_plain(const reader *r)
{
    static const char *const off[] = {
        "expert_count",       "attention.sliding_window",        "attention.key_length_mla",
        "rope.scale_linear",  "rope.scaling.yarn_ext_factor",    "rope.scaling.yarn_attn_factor",
        "rope.scaling.alpha", "rope.scaling.yarn_log_multiplier"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        const mti_gguf_value *v = of_arch(r, off[i]);
        if (v && !(v->n == 1 && mti_gguf_integer(v, 0) == 0))
            return mti_fail_bool(MT_ERR_UNSUPPORTED, "%s: has %s.%s, which the model here has not",
                                 r->f->path, r->arch, off[i]);
    }
    return true;
}

/* ---- scaled angles ---- */

/* What the file divides the frequency of each pair by are Llama 3.1's numbers, and of these the
 * largest alone differs among models. */
static bool read_freqs(const mti_gguf *f, mt_model_config *c)
{
    const mti_gguf_tensor *t = mti_gguf_tensor_of(f, "rope_freqs.weight");
    float divisor[MAX_HALF];
    const int64_t half = c->head_dim / 2;
    if (!t) return true;
    bool ok = t->type == MTI_GGUF_F32 && t->rank == 1 && t->shape[0] == half && half <= MAX_HALF;
    if (ok && !mti_read_at(f->fd, f->path, t->at, divisor, (size_t)half * sizeof *divisor))
        return false;
    double most = 1;
    for (int64_t i = 0; ok && i < half; i++) most = fmax(most, (double)divisor[i]);
    for (int64_t i = 0; ok && i < half; i++) {
        const double turns =
            8192 / 6.283185307179586 * pow(c->rope_theta, -(double)i / (double)half);
        const double part = fmin(fmax((4 - turns) / 3, 0), 1);
        ok = fabs((double)divisor[i] * (1 - part + part / most) - 1) < 1e-5;
    }
    c->yarn_factor = most, c->yarn_ramp = MT_RAMP_TURNS;
    c->yarn_context = 8192, c->yarn_fast = 4, c->yarn_slow = 1;
    return ok || mti_fail_bool(MT_ERR_UNSUPPORTED,
                               "%s: rope_freqs.weight are not the %lld numbers of Llama 3.1; other "
                               "angles are not modelled",
                               f->path, (long long)half);
}

/* As llama.cpp has them: rope.scaling.type, or rope_freqs.weight without one. */
static bool read_scaling(reader *r, mt_model_config *c)
{
    const mti_gguf_value *v = of_arch(r, "rope.scaling.type");
    mti_gguf_text type = {"none", 4};
    if (v && v->n == 1) mti_gguf_texts(v, &type);
    const bool linear = mti_gguf_is(type, "linear"), yarn = mti_gguf_is(type, "yarn");
    if (!linear && !yarn && !mti_gguf_is(type, "none"))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "%s: has a %s.rope.scaling.type that is not none, linear or yarn",
                             r->f->path, r->arch);
    if (!linear && !yarn) return read_freqs(r->f, c);
    c->yarn_factor = real(r, "rope.scaling.factor");
    if (r->ok && c->yarn_factor == 0)
        return mti_fail_bool(MT_ERR_FORMAT, "%s: %s.rope.scaling.factor is missing", r->f->path,
                             r->arch);
    if (linear) {
        c->yarn_ramp = MT_RAMP_FLAT;
        return r->ok;
    }
    const double part = real(r, "rope.scaling.attn_factor");
    c->yarn_context = extent(r, "rope.scaling.original_context_length", 1, MTI_MAX_EXTENT);
    c->yarn_fast = real(r, "rope.scaling.yarn_beta_fast");
    c->yarn_slow = real(r, "rope.scaling.yarn_beta_slow");
    c->yarn_scale = (part > 0 ? part : 1) * (1 + 0.1 * log(fmax(c->yarn_factor, 1)));
    return r->ok;
}

static bool config_of(const mti_gguf *f, mt_model_config *out)
{
    reader r = {.f = f, .ok = true};
    if (!read_arch(&r) || !check_plain(&r)) return false;
    mt_model_config c = {.kind = MT_MODEL_LLAMA, .dtype = MT_F32};
    c.layers = extent(&r, "block_count", 1, MTI_MAX_LAYERS);
    c.hidden = extent(&r, "embedding_length", 1, MTI_MAX_EXTENT);
    c.ffn = extent(&r, "feed_forward_length", 1, MTI_MAX_EXTENT);
    c.heads = extent(&r, "attention.head_count", 1, MTI_MAX_EXTENT);
    c.kv_heads = extent(&r, "attention.head_count_kv", 0, MTI_MAX_EXTENT);
    c.head_dim = extent(&r, "attention.key_length", 0, MTI_MAX_EXTENT);
    c.context = extent(&r, "context_length", 1, MTI_MAX_EXTENT);
    const int64_t turned = extent(&r, "rope.dimension_count", 0, MTI_MAX_EXTENT);
    c.rope_theta = real(&r, "rope.freq_base");
    c.norm_eps = real(&r, "attention.layer_norm_rms_epsilon");
    const mti_gguf_tensor *wte = mti_gguf_tensor_of(f, "token_embd.weight");
    if (r.ok && (!wte || wte->rank != 2))
        r.ok = mti_fail_bool(MT_ERR_FORMAT, "%s: has no matrix token_embd.weight", f->path);
    if (!r.ok) return false;
    c.vocab = wte->shape[0];
    c.tied = !mti_gguf_tensor_of(f, "output.weight");
    c.qkv_bias = !strcmp(r.arch, "qwen2");
    c.qk_norm = !strcmp(r.arch, "qwen3") ? MT_QK_NORM_HEAD : MT_QK_NORM_NONE;
    if (mt_model_config_resolve(&c, &c) != MT_OK) return false;
    if (!read_scaling(&r, &c) || mt_model_config_check(&c) != MT_OK) return false;
    if (turned && turned != c.head_dim)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "%s: %lld of each head's %lld elements are turned; need all", f->path,
                             (long long)turned, (long long)c.head_dim);
    *out = c;
    return true;
}

bool mti_gguf_config(const char *path, mt_model_config *out)
{
    mti_gguf *f = mti_gguf_open(path);
    bool ok = f && config_of(f, out);
    mti_gguf_free(f);
    return ok;
}

/* ---- the weights ---- */

static const mti_gguf_tensor *tensor_of(const mti_gguf *f, const char *ours, char name[128])
{
    static const char *const names[][2] = {
        {"wte.", "token_embd."},          {"ln_f.", "output_norm."},
        {"lm_head.", "output."},          {"ln_1.", "attn_norm."},
        {"ln_2.", "ffn_norm."},           {"attn.q.", "attn_q."},
        {"attn.k.", "attn_k."},           {"attn.v.", "attn_v."},
        {"attn.proj.", "attn_output."},   {"attn.q_norm.", "attn_q_norm."},
        {"attn.k_norm.", "attn_k_norm."}, {"mlp.gate.", "ffn_gate."},
        {"mlp.up.", "ffn_up."},           {"mlp.down.", "ffn_down."}};
    long long layer = -1;
    int behind = 0;
    if (sscanf(ours, "h.%lld.%n", &layer, &behind) < 1) behind = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i][0]);
        if (strncmp(ours + behind, names[i][0], n) != 0) continue;
        char block[32] = "";
        if (behind) snprintf(block, sizeof block, "blk.%lld.", layer);
        snprintf(name, 128, "%s%s%.60s", block, names[i][1], ours + behind + n);
        return mti_gguf_tensor_of(f, name);
    }
    snprintf(name, 128, "%.100s", ours);
    return NULL;
}

static bool fits(const mti_gguf *f, const mti_gguf_tensor *t, const mt_tensor *w, const char *name)
{
    char has[MTI_SHAPE_TEXT], need[MTI_SHAPE_TEXT];
    if (t && t->rank == mt_rank(w) &&
        !memcmp(t->shape, mt_shape(w), sizeof(int64_t) * (size_t)t->rank))
        return true;
    mti_shape_text(need, mt_rank(w), mt_shape(w));
    if (!t)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: does not fit the model; missing \"%s\" %s",
                             f->path, name, need);
    return mti_fail_bool(MT_ERR_ARGUMENT, "%s: tensor \"%s\" is %s; need %s", f->path, name,
                         mti_shape_text(has, t->rank, t->shape), need);
}

/* Whether the file has m's parameters and no others. */
static bool check(const mti_gguf *f, const mt_named_tensor *list, size_t n)
{
    char name[128];
    for (size_t i = 0; i < n; i++)
        if (!fits(f, tensor_of(f, list[i].name, name), list[i].tensor, name)) return false;
    const mti_gguf_tensor *freqs = mti_gguf_tensor_of(f, "rope_freqs.weight"); /* read already */
    if (n + !!freqs == f->tensors.n) return true;
    bool *wanted = mti_calloc(f->tensors.n + 1, sizeof *wanted);
    for (size_t i = 0; wanted && i < n; i++)
        wanted[tensor_of(f, list[i].name, name) - f->tensors.at] = true;
    if (wanted && freqs) wanted[freqs - f->tensors.at] = true;
    size_t at = 0;
    while (wanted && at < f->tensors.n && wanted[at]) at++;
    const bool ok = wanted && at == f->tensors.n;
    if (wanted && !ok) {
        mti_fail(MT_ERR_ARGUMENT, "%s: does not fit the model; superfluous \"%s\"", f->path,
                 mti_gguf_shown(name, f->tensors.at[at].name));
    }
    mti_free(wanted);
    return ok;
}

/* From pairs to halves, of each head by itself: row 2 i + j becomes row j w / 2 + i. */
static void sort_rows(const float *from, float *to, int64_t rows, int64_t columns, int64_t width)
{
    for (int64_t r = 0; r < rows; r++) {
        const int64_t head = r / width, in = r % width;
        memcpy(to + (head * width + in % 2 * (width / 2) + in / 2) * columns, from + r * columns,
               (size_t)columns * sizeof *to);
    }
}

/* A matrix is read in pieces of rows, so that it is not there twice; anything else at once. */
#define PIECE ((size_t)1 << 20)
typedef struct pieces {
    const mti_gguf *f;
    const mti_gguf_tensor *t;
    int64_t rows, most; /* of a piece: at most */
    size_t n, bytes;    /* values of a row; their bytes in the file */
    int64_t width;      /* of heads, whose rows are sorted; 0: they are not */
    void *blocks;       /* a piece */
    float *values, *sorted;
} pieces;

static bool load_piece(const pieces *p, mt_tensor *w, int64_t at)
{
    const int64_t left = p->rows - at, count = left < p->most ? left : p->most;
    const size_t n = (size_t)count * p->n, bytes = n * sizeof(float);
    MT_AUTO mt_tensor *part = count < p->rows ? mt_slice(w, 0, at, count) : mt_retain(w);
    if (!part || !mti_read_at(p->f->fd, p->f->path, p->t->at + (uint64_t)at * p->bytes, p->blocks,
                              (size_t)count * p->bytes))
        return false;
    mti_gguf_widen(p->t->type, p->blocks, n, p->values);
    if (p->width) {
        const int64_t sorted = mt_shape(part)[0];
        sort_rows(p->values, p->sorted, sorted, (int64_t)n / sorted, p->width);
    }
    const float *values = p->width ? p->sorted : p->values;
    if (mt_dtype_of(part) == MT_F32) return mt_copy_from_host(part, values, bytes) == MT_OK;
    MT_AUTO mt_tensor *wide =
        mt_from_data(mt_device_of(w), MT_F32, mt_rank(part), mt_shape(part), values, bytes);
    return wide && mt_copy(part, wide) == MT_OK;
}

static bool load(const mti_gguf *f, const mt_named_tensor *param, const mt_model_config *c,
                 bool pairs)
{
    char name[128];
    const mti_gguf_tensor *t = tensor_of(f, param->name, name);
    const bool sorts = pairs && (strstr(name, ".attn_q.") || strstr(name, ".attn_k."));
    pieces p = {.f = f, .t = t, .rows = t->rank == 2 ? t->shape[0] : 1};
    p.n = (size_t)(mt_numel(param->tensor) / p.rows), p.bytes = (size_t)t->bytes / (size_t)p.rows;
    p.width = sorts ? c->head_dim : 0;
    const int64_t unit = sorts ? c->head_dim : 1; /* whole heads */
    p.most = (int64_t)(PIECE / sizeof(float) / p.n) / unit * unit;
    if (p.most < unit) p.most = unit;
    if (p.most > p.rows) p.most = p.rows;
    const size_t n = (size_t)p.most * p.n;
    p.blocks = mti_malloc((size_t)p.most * p.bytes);
    p.values = mti_malloc(n * sizeof *p.values * (sorts ? 2 : 1));
    p.sorted = p.values ? p.values + (sorts ? n : 0) : NULL;
    const bool grad = mt_set_grad_mode(false);
    bool ok = p.blocks && p.values;
    for (int64_t at = 0; ok && at < p.rows; at += p.most) ok = load_piece(&p, param->tensor, at);
    mt_set_grad_mode(grad);
    mti_free(p.values);
    mti_free(p.blocks);
    return ok;
}

static mt_module *model_of(const mti_gguf *f, mt_device *device, const mt_model_config *config)
{
    const mt_named_tensor *list;
    size_t n;
    mt_model_config c;
    mti_gguf_text arch = {"", 0};
    if (mt_model_config_resolve(config, &c) != MT_OK) return NULL;
    mti_gguf_texts(mti_gguf_find(f, "general.architecture"), &arch);
    const bool pairs = mti_gguf_is(arch, "llama");
    const bool has_data = mt_device_has_data(device);
    mt_device *meta = has_data ? mt_device_open("meta") : NULL;
    mt_module *m = meta || !has_data ? mt_model_new(has_data ? meta : device, &c) : NULL;
    bool ok = m && mt_module_params(m, &list, &n) == MT_OK && check(f, list, n);
    if (ok && has_data)
        ok = mti_module_materialize(m, device) && mt_module_params(m, &list, &n) == MT_OK;
    for (size_t i = 0; ok && has_data && i < n; i++) ok = load(f, &list[i], &c, pairs);
    mt_device_release(meta);
    return mti_module_complete(m, ok);
}

mt_module *mti_gguf_model(mt_device *device, const char *path, const mt_model_config *config)
{
    mt_model_config c;
    mti_gguf *f = mti_gguf_open(path);
    mt_module *m = f && config_of(f, &c) ? model_of(f, device, config ? config : &c) : NULL;
    mti_gguf_free(f);
    return m;
}
