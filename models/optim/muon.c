/* muon.c: Muon's step of a matrix as torch.optim.Muon makes it (Jordan et al. 2024, "Muon: an
 * optimizer for hidden layers in neural networks"):
 *
 *     m = lerp(m, g, 1 - mu);  u = lerp(g, m, mu)               Nesterov's momentum
 *     x = u in bf16, as wide as high or wider;  x /= norm(x)
 *     five times: s = x x^T, s = b s + c s s, x = a x + s x     Newton-Schulz: towards u v^T of u's
 *     p = p (1 - lr wd) - lr adjusted x                         singular vectors
 *
 * One matrix at a time, of a parameter [experts, rows, columns] each expert's, as of experts that
 * are parameters of their own. What PyTorch holds at once is allocated at once here: u for the
 * whole step, and of the iteration x, the new x, s and the new s, where the last s and its update
 * are still there while a new s is made. */
#include <math.h>
#include "memtape/ops.h"
#include "ops/ops.h"
#include "optim/optim.h"

#define STEPS      5
#define LEAST_NORM 1e-7
static const double A = 3.4445, B = -4.7750, C = 2.0315;

/* Matrices of any shape move alike: as one of AdamW's usual size, or as Muon's first form. */
static double adjusted(const mti_opt_params *p, int64_t rows, int64_t columns)
{
    double r = (double)rows, c = (double)columns;
    return p->match_rms ? 0.2 * sqrt(fmax(r, c)) : sqrt(fmax(1, r / c));
}

/* ---- as a rule ---- */

/* A new tensor, x as bf16 has it, in f32: what is computed of it is rounded once */
static mt_tensor *rounded(mt_tensor *x)
{
    MT_AUTO mt_tensor *narrow = mt_cast(x, MT_BF16);
    return mt_cast(narrow, MT_F32);
}

/* A new tensor: x becomes a x + s x, s = b x x^T + c x x^T x x^T */
static mt_tensor *iterated(mt_tensor *x)
{
    MT_AUTO mt_tensor *turned = mt_transpose(x, -2, -1), *wide = mt_matmul(x, turned);
    MT_AUTO mt_tensor *square = rounded(wide), *fourth = mt_matmul(square, square);
    MT_AUTO mt_tensor *sum = mti_mixed(B, square, C, fourth), *factor = rounded(sum);
    MT_AUTO mt_tensor *moved = mt_matmul(factor, x), *next = mti_mixed(A, x, 1, moved);
    return rounded(next);
}

bool mti_muon_tensors(const mti_opt_params *p, double decay, mt_tensor *g, mt_tensor **x,
                      mt_tensor **m)
{
    const int rank = mt_rank(*x), both[] = {-2, -1};
    const int64_t rows = mt_shape(*x)[rank - 2], columns = mt_shape(*x)[rank - 1];
    const bool tall = rows > columns;
    if (mt_set(m, mti_mixed(p->momentum, *m, 1 - p->momentum, g)) != MT_OK) return false;
    MT_AUTO mt_tensor *sum = mti_mixed(1 - p->momentum, g, p->momentum, *m);
    MT_AUTO mt_tensor *wide = tall ? mt_transpose(sum, -2, -1) : mt_retain(sum), *u = rounded(wide);
    MT_AUTO mt_tensor *square = mt_mul(u, u), *all = mt_sum(square, 2, both, true);
    MT_AUTO mt_tensor *norm = mt_sqrt(all), *length = mt_clamp(norm, LEAST_NORM, INFINITY);
    MT_AUTO mt_tensor *unit = mt_div(u, length);
    mt_set(&u, rounded(unit));
    for (int i = 0; u && i < STEPS; i++) mt_set(&u, iterated(u));
    MT_AUTO mt_tensor *as_x = mt_cast(u, mt_dtype_of(*x));
    MT_AUTO mt_tensor *step = tall ? mt_transpose(as_x, -2, -1) : mt_retain(as_x);
    return mt_set(x, mti_mixed(1 - p->lr * decay, *x, -p->lr * adjusted(p, rows, columns), step)) ==
           MT_OK;
}

/* ---- as a kernel ---- */

static mt_tensor *matrix(mt_device *d, mt_dtype dtype, int64_t rows, int64_t columns)
{
    mti_view spec = {.dtype = dtype, .rank = 2, .shape = {rows, columns}, .stride = {columns, 1}};
    return mti_tensor_new(d, &spec, MT_TEMPORARY, false);
}

static mti_opt_item item_of(const mti_view *p)
{
    return (mti_opt_item){.n = mti_view_count(p), .dtype = p->dtype, .p = p->data, .g = p->data};
}

static bool scale(mt_device *d, double factor, const mti_view *x)
{
    mti_opt_item item = item_of(x);
    return d->backend->scale_all(d->ctx, factor, 1, &item);
}

/* p += weight (g - p), in f32 (f64 for f64): a step of SGD whose decay is -1. */
static bool lerp(mt_device *d, void *p, const void *g, const mti_opt_item *like, double weight)
{
    const mti_opt_params params = {.lr = -weight, .step = 1};
    mti_opt_item item = {.n = like->n, .dtype = like->dtype, .p = p, .g = g, .weight_decay = -1};
    return d->backend->sgd(d->ctx, &params, 1, &item);
}

/* out = alpha a b + beta out */
static bool product(mt_device *d, double alpha, const mti_view *a, const mti_view *b, double beta,
                    const mt_tensor *out)
{
    size_t n_bytes = d->backend->gemm_scratch(d->ctx, a, b, &out->view);
    if (!mti_device_take_workspace(d, false)) return false;
    mti_block *scratch = n_bytes ? mti_pool_alloc(d->pool, n_bytes, MT_WORKSPACE) : NULL;
    if (n_bytes && !scratch) return false;
    if (scratch) scratch->owner = NULL;
    bool ok = d->backend->gemm(d->ctx, alpha, a, b, beta, &out->view, NULL,
                               scratch ? scratch->ptr : NULL, n_bytes);
    mti_pool_free(d->pool, scratch, n_bytes);
    return ok;
}

/* A new matrix: beta x + alpha a b, rounded once, as torch.addmm rounds it */
static mt_tensor *sum_of(mt_device *d, double beta, const mti_view *x, double alpha,
                         const mti_view *a, const mti_view *b)
{
    mt_tensor *y = matrix(d, MT_BF16, x->shape[0], x->shape[1]);
    if (y && d->backend->copy(d->ctx, x, &y->view) && product(d, alpha, a, b, beta, y)) return y;
    mt_release(y);
    return NULL;
}

/* u becomes what its singular value decomposition has with all singular values about 1. */
static bool orthogonalize(mt_device *d, mt_tensor *u)
{
    bool tall = u->view.shape[0] > u->view.shape[1], ok = true;
    mt_tensor *x = u->view.dtype == MT_BF16
                       ? mt_retain(u)
                       : matrix(d, MT_BF16, u->view.shape[0], u->view.shape[1]);
    mt_tensor *square = NULL, *update = NULL;
    double squares = 0;
    if (!x || (x != u && !d->backend->copy(d->ctx, &u->view, &x->view))) ok = false;
    mti_opt_item all = ok ? item_of(&x->view) : (mti_opt_item){0};
    ok = ok && d->backend->sum_squares(d->ctx, 1, &all, &squares) &&
         scale(d, 1 / fmax(sqrt(squares), LEAST_NORM), &x->view);
    mti_view wide = ok && tall ? mti_transposed(&x->view) : ok ? x->view : (mti_view){0};
    for (int i = 0; ok && i < STEPS; i++) {
        mti_view turned = mti_transposed(&wide);
        mt_set(&square, matrix(d, MT_BF16, wide.shape[0], wide.shape[0]));
        ok = square && product(d, 1, &wide, &turned, 0, square);
        if (ok) mt_set(&update, sum_of(d, B, &square->view, C, &square->view, &square->view));
        ok = ok && update;
        if (ok) mt_set(&x, sum_of(d, A, &wide, 1, &update->view, &wide));
        if ((ok = ok && x)) wide = x->view;
    }
    mti_view result = tall && ok ? mti_transposed(&wide) : wide;
    ok = ok && d->backend->copy(d->ctx, &result, &u->view);
    mt_release(square), mt_release(update), mt_release(x);
    return ok;
}

static bool step_matrix(mt_device *d, const mti_opt_params *p, const mti_opt_item *item)
{
    mt_dtype moment =
        item->moments == MTI_MOMENTS_WIDE && item->dtype != MT_F64 ? MT_F32 : item->dtype;
    mti_view g = {.data = (void *)(uintptr_t)item->g,
                  .dtype = item->wide_grad ? MT_F32 : item->dtype,
                  .rank = 2,
                  .shape = {item->rows, item->columns},
                  .stride = {item->columns, 1}};
    mt_tensor *u = matrix(d, moment, item->rows, item->columns);
    double factor = adjusted(p, item->rows, item->columns);
    mti_opt_params last = {.lr = p->lr * factor, .step = 1};
    mti_opt_item kept = {.n = item->n, .dtype = moment}, to = *item;
    bool ok = u && d->backend->copy(d->ctx, &g, &u->view) &&
              (p->grad_scale == 0 || p->grad_scale == 1 || scale(d, p->grad_scale, &u->view)) &&
              lerp(d, item->m, u->view.data, &kept, 1 - p->momentum) &&
              lerp(d, u->view.data, item->m, &kept, p->momentum) && orthogonalize(d, u);
    if (ok) {
        to.g = u->view.data;
        to.wide_grad = moment != item->dtype;
        to.m = NULL;
        to.weight_decay /= factor;
        ok = d->backend->sgd(d->ctx, &last, 1, &to);
    }
    mt_release(u);
    return ok;
}

static void *advanced(const void *at, int64_t n, size_t size)
{
    return at ? (char *)(uintptr_t)at + (size_t)n * size : NULL;
}

/* The matrices of an item lie one after the other. */
static bool step_matrices(mt_device *d, const mti_opt_params *p, const mti_opt_item *item)
{
    const size_t size = mt_dtype_size(item->dtype), wide = size == 2 ? 4 : size;
    const size_t moment = item->moments == MTI_MOMENTS_WIDE ? wide : size;
    mti_opt_item one = *item;
    bool ok = true;
    one.n = item->rows * item->columns;
    for (int64_t at = 0; ok && at < item->n; at += one.n) {
        one.p = advanced(item->p, at, size);
        one.g = advanced(item->g, at, item->wide_grad ? wide : size);
        one.m = advanced(item->m, at, moment);
        one.master = advanced(item->master, at, wide);
        ok = step_matrix(d, p, &one);
    }
    return ok;
}

bool mti_muon_step(mt_device *d, const mti_opt_params *p, int n, const mti_opt_item *items)
{
    mti_opt_params others = *p;
    others.lr *= p->others_lr;
    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && items[end].v; end++) continue; /* AdamW's have two moments */
        if (end > i && !d->backend->adamw(d->ctx, &others, end - i, items + i)) return false;
        if (end < n && !step_matrices(d, p, &items[end++])) return false;
    }
    return true;
}
