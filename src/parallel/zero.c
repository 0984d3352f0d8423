/* zero.c: a rank's parameters, gradients and optimizer state, and the pieces of them that ZeRO
 * leaves it with (Rajbhandari et al. 2020). */
#include <stdio.h>
#include <string.h>
#include "memtape/ops.h"
#include "parallel/parallel.h"

typedef struct piece {
    mt_tensor *whole, *piece; /* borrowed from parts and pieces */
    int64_t dp;
    int hook; /* on whole; 0: none */
} piece;

struct mti_zero {
    int stage;
    mt_module *const *parts;
    size_t n_parts;
    mt_module *pieces;    /* of stages 1 and 2: views of the parameters; else NULL */
    mt_optimizer **adamw; /* one for `pieces`, or one for each part */
    MTI_VEC(piece) all;
};

/* ---- pieces ---- */

static mt_tensor *flat(mt_tensor *t) { return mt_reshape(t, MT_SHAPE(-1)); }

static int64_t piece_length(const mt_tensor *whole, int64_t dp)
{
    return (mt_numel(whole) + dp - 1) / dp;
}

/* The first of dp pieces, a view. */
static mt_tensor *first_piece(mt_tensor *whole, int64_t dp)
{
    mt_tensor *v = mt_detach(whole);
    mt_set(&v, v ? flat(v) : NULL);
    mt_set(&v, v ? mt_slice(v, 0, 0, piece_length(whole, dp)) : NULL);
    return v;
}

/* Stage 2: as soon as a gradient is complete, keeps only this rank's piece of the sum. */
static mt_status scatter_grad(void *user, mt_tensor *leaf)
{
    const piece *p = user;
    mt_tensor *g = flat(mt_grad(leaf));
    int64_t padding = piece_length(leaf, p->dp) * p->dp - mt_numel(leaf);
    if (g && padding) {
        MT_AUTO mt_tensor *zeros = mt_zeros(mt_device_of(g), mt_dtype_of(g), MT_SHAPE(padding));
        mt_set(&g, zeros ? mt_cat(2, (mt_tensor *[]){g, zeros}, 0) : NULL);
    }
    mt_set(&g, g ? mt_reduce_scatter(g, 0, p->dp) : NULL);
    if (g && mt_grad(p->piece)) mt_set(&g, mt_add(mt_grad(p->piece), g));
    mt_status status = g ? mt_set_grad(p->piece, g) : mt_last_status();
    mt_release(g);
    return status == MT_OK ? mt_set_grad(leaf, NULL) : status;
}

static bool add_piece(mti_zero *z, const mt_named_tensor *param, size_t part, int64_t dp)
{
    char name[256];
    snprintf(name, sizeof name, "%zu.%.200s", part, param->name);
    mt_tensor *v = mt_module_add_param(z->pieces, name, first_piece(param->tensor, dp));
    return v && mt_set_grad_dtype(v, mt_grad_dtype(param->tensor)) == MT_OK &&
           MTI_PUSH(&z->all, ((piece){param->tensor, v, dp, 0}));
}

static bool make_pieces(mti_zero *z, int64_t dp)
{
    for (size_t i = 0; i < z->n_parts; i++) {
        const mt_named_tensor *list;
        size_t n;
        if (mt_module_params(z->parts[i], &list, &n) != MT_OK) return false;
        for (size_t j = 0; j < n; j++)
            if (!add_piece(z, &list[j], i, dp)) return false;
    }
    for (size_t i = 0; z->stage == 2 && i < z->all.n; i++) {
        piece *p = &z->all.at[i];
        if (!(p->hook = mt_add_leaf_hook(p->whole, scatter_grad, p))) return false;
    }
    return true;
}

static mt_tensor *no_forward(mt_module *self, mt_tensor *x)
{
    (void)self;
    return mt_retain(x);
}

/* The modules that the optimizers step: the pieces, or the parts. */
static size_t n_stepped(const mti_zero *z) { return z->pieces ? 1 : z->n_parts; }
static mt_module *stepped(const mti_zero *z, size_t i)
{
    return z->pieces ? z->pieces : z->parts[i];
}

static bool make_adamw(mti_zero *z)
{
    const mt_adamw_options options = {.lr = 1e-4, .master = true};
    bool ok = (z->adamw = mti_calloc(n_stepped(z), sizeof *z->adamw)) != NULL;
    for (size_t i = 0; ok && i < n_stepped(z); i++)
        ok = (z->adamw[i] = mt_adamw_new(stepped(z, i), &options)) != NULL;
    return ok;
}

mti_zero *mti_zero_new(const mt_parallel *parallel, mt_module *const *parts, size_t n_parts)
{
    mti_zero *z = mti_calloc(1, sizeof *z);
    if (!z) return NULL;
    z->stage = parallel->data > 1 ? parallel->zero : 0;
    z->parts = parts;
    z->n_parts = n_parts;
    bool cut = z->stage == 1 || z->stage == 2;
    if (cut) z->pieces = mt_module_new("pieces", no_forward, NULL, NULL);
    if ((!cut || (z->pieces && make_pieces(z, parallel->data))) && make_adamw(z)) return z;
    mti_zero_free(z);
    return NULL;
}

void mti_zero_free(mti_zero *z)
{
    if (!z) return;
    for (size_t i = 0; i < z->all.n; i++)
        if (z->all.at[i].hook) mt_remove_hook(z->all.at[i].whole, z->all.at[i].hook);
    for (size_t i = 0; z->adamw && i < n_stepped(z); i++) mt_optimizer_free(z->adamw[i]);
    mti_free(z->adamw);
    mti_free(z->all.at);
    mt_module_free(z->pieces);
    mti_free(z);
}

/* ---- the step ---- */

static size_t bytes_of(const mt_tensor *t)
{
    return t ? (size_t)mt_numel(t) * mt_dtype_size(mt_dtype_of(t)) : 0;
}

/* Stage 1 keeps whole gradients, and steps with its pieces of them. */
static bool lend_grads(mti_zero *z)
{
    for (size_t i = 0; i < z->all.n; i++) {
        piece *p = &z->all.at[i];
        if (!mt_grad(p->whole)) continue;
        MT_AUTO mt_tensor *g = first_piece(mt_grad(p->whole), p->dp);
        if (!g || mt_set_grad(p->piece, g) != MT_OK) return false;
    }
    return true;
}

static bool count_grads(mt_module *m, size_t *bytes)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(m, &list, &n) != MT_OK) return false;
    for (size_t i = 0; i < n; i++) *bytes += bytes_of(mt_grad(list[i].tensor));
    return true;
}

static bool count_state(const mt_optimizer *o, size_t *bytes)
{
    for (size_t i = 0; i < mt_optimizer_state_count(o); i++) {
        mt_optimizer_entry e;
        if (mt_optimizer_state(o, i, &e) != MT_OK) return false;
        *bytes += bytes_of(e.tensor);
    }
    return true;
}

static bool count(mti_zero *z, mt_rank_report *out)
{
    uint64_t bytes;
    out->param_bytes = out->grad_bytes = out->optimizer_bytes = 0;
    for (size_t i = 0; i < z->n_parts; i++) {
        if (mt_module_size(z->parts[i], NULL, &bytes) != MT_OK) return false;
        out->param_bytes += bytes;
        if (z->stage != 2 && !count_grads(z->parts[i], &out->grad_bytes)) return false;
    }
    if (z->stage == 2 && !count_grads(z->pieces, &out->grad_bytes)) return false;
    bool ok = true;
    for (size_t i = 0; ok && i < n_stepped(z); i++)
        ok = count_state(z->adamw[i], &out->optimizer_bytes);
    return ok;
}

bool mti_zero_step(mti_zero *z, mt_rank_report *out)
{
    bool ok = z->stage != 1 || lend_grads(z);
    for (size_t i = 0; ok && i < n_stepped(z); i++) ok = mt_optimizer_step(z->adamw[i]) == MT_OK;
    ok = ok && (!out || count(z, out));
    for (size_t i = 0; ok && i < n_stepped(z); i++)
        ok = mt_module_zero_grad(stepped(z, i)) == MT_OK;
    for (size_t i = 0; ok && i < z->n_parts; i++) ok = mt_module_zero_grad(z->parts[i]) == MT_OK;
    return ok;
}
