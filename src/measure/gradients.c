/* gradients.c: all gradients of a step, to compare with those of another. */
#include <math.h>
#include <string.h>
#include "measure/gradients.h"
#include "memtape/ops.h"

/* Copies `from` to f64, through a separate device, so that the measured one allocates nothing. */
static bool widen(double *to, const mt_tensor *from, mt_device *separate)
{
    mt_dtype dtype = mt_dtype_of(from);
    size_t n = (size_t)mt_numel(from), n_bytes = n * mt_dtype_size(dtype);
    void *raw = mti_malloc(n_bytes);
    bool ok = raw && mt_to_host(from, raw, n_bytes) == MT_OK;
    mt_tensor *t =
        ok ? mt_from_data(separate, dtype, mt_rank(from), mt_shape(from), raw, n_bytes) : NULL;
    mti_free(raw);
    if (t) mt_set(&t, mt_cast(t, MT_F64));
    ok = t && mt_to_host(t, to, n * sizeof *to) == MT_OK;
    mt_release(t);
    return ok;
}

static bool take(mti_gradients *g, const char *name, const mt_tensor *of, mt_device *separate)
{
    const mt_tensor *grad = mt_grad(of);
    if (!grad) return true;
    mti_gradient *slot = MTI_RESERVE(g) ? &g->at[g->n++] : NULL;
    if (!slot) return false;
    size_t n = (size_t)mt_numel(grad);
    *slot = (mti_gradient){.name = mti_strdup(name), .n = n, .at = mti_malloc(n * sizeof(double))};
    return slot->name && slot->at && widen(slot->at, grad, separate);
}

bool mti_gradients_take(mti_gradients *g, const mti_subject *s, double scale)
{
    const mt_named_tensor *params;
    size_t n;
    *g = (mti_gradients){0};
    mt_device *separate = mt_device_open("cpu");
    bool ok = separate && take(g, "input", s->input, separate) &&
              mt_module_params(s->stage.model, &params, &n) == MT_OK;
    for (size_t i = 0; ok && i < n; i++) ok = take(g, params[i].name, params[i].tensor, separate);
    mt_device_release(separate);
    for (size_t i = 0; ok && scale != 1 && i < g->n; i++)
        for (size_t k = 0; k < g->at[i].n; k++) g->at[i].at[k] /= scale;
    return ok;
}

void mti_gradients_free(mti_gradients *g)
{
    for (size_t i = 0; i < g->n; i++) {
        mti_free(g->at[i].name);
        mti_free(g->at[i].at);
    }
    mti_free(g->at);
    *g = (mti_gradients){0};
}

static const mti_gradient *partner(const mti_gradients *g, const mti_gradient *of)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->at[i].n == of->n && !strcmp(g->at[i].name, of->name)) return &g->at[i];
    return NULL;
}

mti_gradient_difference mti_gradients_compare(const mti_gradients *a, const mti_gradients *b)
{
    mti_gradient_difference d = {.same_bits = true};
    double off = 0, size = 0;
    for (size_t i = 0; i < a->n; i++) {
        const mti_gradient *x = &a->at[i], *y = partner(b, x);
        if (!y) continue;
        d.compared++;
        d.same_bits = d.same_bits && !memcmp(x->at, y->at, x->n * sizeof *x->at);
        for (size_t k = 0; k < x->n; k++) {
            double by = y->at[k] - x->at[k];
            off += by * by;
            size += x->at[k] * x->at[k];
        }
    }
    d.alone = a->n + b->n - 2 * d.compared;
    d.same_bits = d.same_bits && d.compared > 0;
    d.relative = !isfinite(off) ? INFINITY : off == 0 ? 0 : sqrt(off / size);
    return d;
}
