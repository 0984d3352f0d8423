/* amp.c: loss scaling: the scale, when it changes, and when a step is skipped. The optimizer does
 * the arithmetic on gradients. */
#include <float.h>
#include <math.h>
#include "memtape/models/amp.h"
#include "memtape/ops.h"
#include "nn/nn.h"
#include "optim/optimizers.h"

struct mt_scaler {
    mt_scaler_options options; /* defaults filled in */
    mt_scaler_state state;
    /* For the next step: */
    bool checked, unscaled;
    double squares; /* of the scaled gradients, summed; not finite: the step is skipped */
    double clip;    /* at most 1 */
};

static double or_default(double value, double fallback) { return value != 0 ? value : fallback; }

mt_scaler *mt_scaler_new(const mt_scaler_options *options)
{
    mt_scaler_options o = options ? *options : (mt_scaler_options){0};
    o.scale = or_default(o.scale, 65536);
    o.growth = or_default(o.growth, 2);
    o.backoff = or_default(o.backoff, 0.5);
    if (!o.interval) o.interval = 2000;
    bool good = o.scale > 0 && isfinite(o.scale) && o.growth > 1 && isfinite(o.growth) &&
                o.backoff > 0 && o.backoff < 1 && o.interval > 0;
    if (!good)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "scaler: scale %g, growth %g, backoff %g, interval %lld; need a scale "
                             "> 0, growth > 1, 0 < backoff < 1, interval > 0",
                             o.scale, o.growth, o.backoff, (long long)o.interval);
    mt_scaler *s = mti_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->options = o;
    s->state.scale = o.scale;
    s->clip = 1;
    return s;
}

void mt_scaler_free(mt_scaler *s) { mti_free(s); }

static bool check_arguments(const char *caller, const mt_scaler *s, const mt_optimizer *o)
{
    if (!mti_given(s, caller, "the scaler") || !mti_given(o, caller, "the optimizer")) return false;
    return !mti_optimizer_is_in_backward(o) ||
           mti_fail_bool(MT_ERR_STATE,
                         "%s: the optimizer steps in backward, before the scale can be divided out",
                         caller);
}

mt_tensor *mt_scaler_scale(mt_scaler *s, mt_tensor *loss)
{
    if (!mti_given(s, "scaler_scale", "the scaler")) return NULL;
    if (!loss || mt_dtype_size(mt_dtype_of(loss)) > 2) return mt_mul_scalar(loss, s->state.scale);
    mt_tensor *wide = mt_cast(loss, MT_F32); /* f16 ends at 65504 */
    mt_set(&wide, mt_mul_scalar(wide, s->state.scale));
    return wide;
}

/* One pass over all gradients: one that is not finite makes the sum so. */
static bool check(mt_scaler *s, mt_optimizer *o)
{
    if (!s->checked) s->checked = mti_optimizer_squares(o, &s->squares);
    return s->checked;
}

mt_status mt_scaler_unscale(mt_scaler *s, mt_optimizer *o)
{
    if (!check_arguments("scaler_unscale", s, o)) return mt_last_status();
    if (s->unscaled)
        return mti_fail(MT_ERR_STATE, "scaler_unscale: called twice since the last step");
    if (!check(s, o)) return mt_last_status();
    double factor = 1 / s->state.scale;
    if (isfinite(s->squares) && !mti_optimizer_scale_grads(o, factor)) return mt_last_status();
    s->unscaled = true;
    s->squares *= factor * factor;
    return MT_OK;
}

mt_status mt_scaler_clip(mt_scaler *s, mt_optimizer *o, double max_norm, double *norm)
{
    if (!check_arguments("scaler_clip", s, o)) return mt_last_status();
    if (!(max_norm > 0))
        return mti_fail(MT_ERR_ARGUMENT, "scaler_clip: max_norm is %g; need it > 0", max_norm);
    if (!check(s, o)) return mt_last_status();
    double true_norm = sqrt(s->squares) / (s->unscaled ? 1 : s->state.scale);
    s->clip = fmin(1, max_norm / (true_norm + 1e-6));
    if (norm) *norm = true_norm;
    return MT_OK;
}

static void update(mt_scaler *s, bool stepped)
{
    mt_scaler_state *st = &s->state;
    st->steps += stepped;
    st->skipped += !stepped;
    st->good_steps = stepped ? st->good_steps + 1 : 0;
    s->checked = s->unscaled = false;
    s->clip = 1;
    if (s->options.fixed) return;
    if (!stepped) {
        st->scale *= s->options.backoff;
    } else if (st->good_steps >= s->options.interval) {
        if (st->scale * s->options.growth <= FLT_MAX) st->scale *= s->options.growth;
        st->good_steps = 0;
    }
}

mt_status mt_scaler_step(mt_scaler *s, mt_optimizer *o, bool *stepped)
{
    if (!check_arguments("scaler_step", s, o)) return mt_last_status();
    if (!check(s, o)) return mt_last_status();
    bool finite = isfinite(s->squares);
    double factor = s->clip / (s->unscaled ? 1 : s->state.scale);
    if (finite && !mti_optimizer_step_scaled(o, factor)) return mt_last_status();
    update(s, finite);
    if (stepped) *stepped = finite;
    return MT_OK;
}

bool mti_scaler_step_given(mt_scaler *s, mt_optimizer *o, double squares, double max_norm,
                           double *norm)
{
    s->squares = squares;
    s->checked = true;
    bool ok = (max_norm <= 0 || mt_scaler_clip(s, o, max_norm, norm) == MT_OK) &&
              mt_scaler_step(s, o, NULL) == MT_OK;
    s->checked = false; /* of these gradients */
    return ok;
}

mt_scaler_state mt_scaler_get(const mt_scaler *s) { return s ? s->state : (mt_scaler_state){0}; }

mt_status mt_scaler_set(mt_scaler *s, const mt_scaler_state *state)
{
    if (!mti_given(s, "scaler_set", "the scaler")) return mt_last_status();
    if (!state) return mti_fail(MT_ERR_ARGUMENT, "scaler_set: the state is NULL");
    bool good = state->scale > 0 && isfinite(state->scale) && state->good_steps >= 0 &&
                state->steps >= 0 && state->skipped >= 0;
    if (!good)
        return mti_fail(MT_ERR_ARGUMENT,
                        "scaler_set: scale %g, counts %lld, %lld, %lld; need a "
                        "scale > 0, counts not negative",
                        state->scale, (long long)state->good_steps, (long long)state->steps,
                        (long long)state->skipped);
    s->state = *state;
    return MT_OK;
}
