#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gradcheck.h"

/* One check in progress: the inputs' values and the numeric gradients. */
typedef struct check {
    mt_device *device;
    const grad_case *c;
    mtt_layout layout;
    int64_t n[CASE_INPUTS];
    double *values[CASE_INPUTS];
    double *numeric[CASE_INPUTS]; /* d(loss)/d(value) */
    double *weights;              /* the loss is the weighted sum of the result's elements */
    int64_t n_out;
    grad_result *result;
} check;

static bool MT_PRINTF(2, 3) fault(check *k, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(k->result->fault, sizeof k->result->fault, fmt, args);
    va_end(args);
    return false;
}

static bool is_float(const mti_case_input *in) { return in->below == 0; }

mt_tensor *case_call(const grad_case *c, mt_tensor **in)
{
    return c->composed ? c->composed(in) : mti_case_call(&c->of, in);
}

int64_t case_count(const mti_case_input *in)
{
    int64_t n = 1;
    for (int d = in->rank - 1; d >= 0; d--) n *= in->shape[d];
    return n;
}

void case_draw(const grad_case *c, double grid, double *const values[CASE_INPUTS])
{
    uint64_t state = 7;
    for (int i = 0; i < c->of.n_in; i++) {
        const mti_case_input *in = &c->of.in[i];
        int64_t n = case_count(in);
        for (int64_t j = 0; j < n; j++) {
            double v = mtt_draw(&state, in->low, in->high);
            if (fabs(v) < in->away) v = v < 0 ? v - in->away : v + in->away;
            if (in->below) v = floor(mtt_draw(&state, 0, (double)in->below));
            values[i][j] = in->below ? v : round(v * grid) / grid;
        }
    }
}

static bool draw_inputs(check *k)
{
    for (int i = 0; i < k->c->of.n_in; i++) {
        k->n[i] = case_count(&k->c->of.in[i]);
        k->values[i] = malloc((size_t)(k->n[i] + 1) * sizeof(double));
        k->numeric[i] = malloc((size_t)(k->n[i] + 1) * sizeof(double));
        if (!k->values[i] || !k->numeric[i]) return fault(k, "no memory for the inputs");
    }
    case_draw(k->c, 1024, k->values); /* so that casts to f32 are exact */
    return true;
}

static mt_tensor *make_input(const check *k, int i)
{
    const mti_case_input *in = &k->c->of.in[i];
    if (is_float(in))
        return mtt_laid_out(k->device, MT_F64, in->rank, in->shape, k->values[i], k->layout);
    return mtt_from_doubles(k->device, MT_I64, in->rank, in->shape, k->values[i]);
}

/* Asks for the gradient of one input at a time: the op's backward runs for that input only, with
 * what was kept for all. */
static bool ask_alone(check *k, unsigned wanted, mt_tensor *out, mt_tensor *weights, mt_tensor **in,
                      mt_tensor **found)
{
    mt_gradients_options options = {1, &out, &weights, 1, NULL, .retain_graph = true};
    for (int i = 0; i < k->c->of.n_in; i++) {
        options.inputs = &in[i];
        if ((wanted >> i & 1) && mt_gradients(&options, &found[i]) != MT_OK)
            return fault(k, "wanted %u: gradients by in%d: %s", wanted, i, mt_last_error());
        if (mt_grad(in[i])) return fault(k, "gradients by in%d left one there", i);
    }
    return true;
}

static bool compare_alone(check *k, unsigned wanted, mt_tensor **in, mt_tensor **found)
{
    for (int i = 0; i < k->c->of.n_in; i++)
        if ((wanted >> i & 1) && !mtt_same_bits(found[i], mt_grad(in[i])))
            return fault(k, "wanted %u, %s: in%d asked alone has another gradient", wanted,
                         mtt_layout_name(k->layout), i);
    return true;
}

/* Calls the case's function with new inputs; the wanted ones require grad. */
static mt_tensor *run(const check *k, unsigned wanted, mt_tensor **in)
{
    for (int i = 0; i < k->c->of.n_in; i++) {
        in[i] = make_input(k, i);
        if (in[i] && (wanted >> i & 1) && mt_set_requires_grad(in[i], true) != MT_OK) return NULL;
    }
    mt_seed(k->device, 11);
    return case_call(k->c, in);
}

static void release_inputs(const check *k, mt_tensor **in)
{
    for (int i = 0; i < k->c->of.n_in; i++) mt_release(in[i]);
}

/* The weighted sum of the result for the current values. */
static bool loss_now(check *k, double *loss)
{
    mt_tensor *in[CASE_INPUTS] = {0};
    MT_AUTO mt_tensor *out = run(k, 0, in);
    release_inputs(k, in);
    double *results = mtt_doubles(out);
    if (!results) return fault(k, "forward failed: %s", mt_last_error());
    *loss = 0;
    for (int64_t j = 0; j < k->n_out; j++) *loss += k->weights[j] * results[j];
    free(results);
    return true;
}

static bool differences(check *k)
{
    double step = k->c->step > 0 ? k->c->step : 1e-5;
    for (int i = 0; i < k->c->of.n_in; i++) {
        if (!is_float(&k->c->of.in[i])) continue;
        for (int64_t j = 0; j < k->n[i]; j++) {
            double here = k->values[i][j], above, below;
            k->values[i][j] = here + step;
            bool good = loss_now(k, &above);
            k->values[i][j] = here - step;
            good = good && loss_now(k, &below);
            k->values[i][j] = here;
            if (!good) return false;
            k->numeric[i][j] = (above - below) / (2 * step);
        }
    }
    return true;
}

static bool compare(check *k, unsigned wanted, mt_tensor **in)
{
    const grad_case *c = k->c;
    double tolerance = c->tolerance > 0 ? c->tolerance : 1e-7;
    for (int i = 0; i < c->of.n_in; i++) {
        if (!(wanted >> i & 1)) {
            if (mt_grad(in[i])) return fault(k, "in%d has a gradient, but did not require grad", i);
            continue;
        }
        double *analytic = mtt_doubles(mt_grad(in[i]));
        if (!analytic) return fault(k, "in%d got no gradient: %s", i, mt_last_error());
        for (int64_t j = 0; j < k->n[i]; j++) {
            double a = analytic[j], b = k->numeric[i][j];
            if (fabs(a - b) <= tolerance * (1 + fabs(b))) continue;
            free(analytic);
            return fault(k,
                         "wanted %u, %s: d/din%d[%lld] is %.12g by backward, %.12g by difference",
                         wanted, mtt_layout_name(k->layout), i, (long long)j, a, b);
        }
        free(analytic);
        k->result->n_gradients++;
    }
    return true;
}

static bool backward(check *k, unsigned wanted, mt_grad_hook_fn *planted)
{
    mt_tensor *in[CASE_INPUTS] = {0}, *found[CASE_INPUTS] = {0};
    MT_AUTO mt_tensor *out = run(k, wanted, in);
    bool good = out != NULL;
    for (int i = 0; good && planted && i < k->c->of.n_in; i++)
        good = !(wanted >> i & 1) || mt_add_grad_hook(in[i], planted, NULL) != 0;
    if (!good) fault(k, "wanted %u: forward failed: %s", wanted, mt_last_error());
    if (good && !mt_requires_grad(out))
        good = fault(k, "wanted %u: the result does not require grad", wanted);
    if (good && !(k->c->of.users & MTI_CASE_INNER) &&
        strcmp(mt_grad_fn_name(out), k->c->of.op) != 0)
        good = fault(k, "made by \"%s\", not by this row", mt_grad_fn_name(out));
    if (good) {
        MT_AUTO mt_tensor *weights =
            mtt_from_doubles(k->device, mt_dtype_of(out), mt_rank(out), mt_shape(out), k->weights);
        mt_backward_options options = {.gradient = weights};
        good = weights && ask_alone(k, wanted, out, weights, in, found);
        if (good && mt_backward_with(out, &options) != MT_OK)
            good = fault(k, "wanted %u: backward failed: %s", wanted, mt_last_error());
    }
    good = good && compare(k, wanted, in) && compare_alone(k, wanted, in, found);
    release_inputs(k, in);
    release_inputs(k, found);
    return good;
}

/* Weights of the loss: fixed and not 0, so that every element of the result counts. */
static bool choose_weights(check *k)
{
    mt_tensor *in[CASE_INPUTS] = {0};
    MT_AUTO mt_tensor *out = run(k, 0, in);
    release_inputs(k, in);
    if (!out) return fault(k, "forward failed: %s", mt_last_error());
    if (mt_requires_grad(out)) return fault(k, "the result requires grad, but no input does");
    k->n_out = mt_numel(out);
    k->weights = malloc((size_t)(k->n_out + 1) * sizeof *k->weights);
    if (!k->weights) return fault(k, "no memory for the weights");
    uint64_t state = 3;
    for (int64_t j = 0; j < k->n_out; j++)
        k->weights[j] = mtt_draw(&state, 0.5, 1.5) * (j % 3 == 1 ? -1 : 1);
    return true;
}

static bool check_layout(check *k, mt_grad_hook_fn *planted)
{
    unsigned floating = 0;
    for (int i = 0; i < k->c->of.n_in; i++) floating |= (unsigned)is_float(&k->c->of.in[i]) << i;
    if (!draw_inputs(k) || !choose_weights(k) || !differences(k)) return false;
    for (unsigned wanted = 1; wanted < 1u << k->c->of.n_in; wanted++)
        if ((wanted & ~floating) == 0 && !backward(k, wanted, planted)) return false;
    return true;
}

/* A short simulation has each case in one layout, which the case's name decides. */
static bool is_left_out(const grad_case *c, mtt_layout layout)
{
    if (!mtt_short_simulation()) return false;
    size_t n = strlen(c->of.op) + (c->of.note ? strlen(c->of.note) : 0);
    return n % MTT_LAYOUT_COUNT != layout;
}

grad_result grad_check(mt_device *device, const grad_case *c, mt_grad_hook_fn *planted)
{
    grad_result result = {0};
    for (mtt_layout layout = 0; layout < MTT_LAYOUT_COUNT && !result.fault[0]; layout++) {
        if (is_left_out(c, layout)) continue;
        check k = {.device = device, .c = c, .layout = layout, .result = &result};
        check_layout(&k, planted);
        for (int i = 0; i < CASE_INPUTS; i++) {
            free(k.values[i]);
            free(k.numeric[i]);
        }
        free(k.weights);
        mt_clear_error();
    }
    return result;
}
