/* dropout.c: y = mask x / (1 - p), mask drawn from the device's generator.
 *   x, y: any shape, floating; mask: bool, one byte per element
 * dx = mask dy / (1 - p): needs only the mask. */
#include "ops/ops.h"

/* ---- parts of a whole tensor: a rank's mask is its part of the mask that one process draws ----
 */

static bool is_part(const mti_draw_part *p) { return p->rows > 0; }

uint64_t mti_draws_of(const mti_draw_part *part, const mti_view *x)
{
    uint64_t n = (uint64_t)mti_view_count(x);
    return is_part(part) ? n * (uint64_t)(part->rows * part->parts) : n;
}

int64_t mti_draw_runs(const mti_draw_part *part, const mti_view *x, int64_t *rows)
{
    bool each = is_part(part) && part->parts > 1;
    *rows = each ? 1 : x->rank ? x->shape[0] : 1;
    return each ? x->shape[0] : 1;
}

/* Four elements share a counter. */
bool mti_draw_offset(const mti_call *c, const mti_draw_part *part, const mti_view *x, int64_t i,
                     uint64_t *offset)
{
    *offset = c->draw.offset;
    if (!is_part(part) || !mti_view_count(x) || !mt_device_has_data(c->device)) return true;
    int64_t n = mti_view_count(x) / x->shape[0];
    int64_t at = ((part->row * x->shape[0] + i) * part->parts + part->part) * n;
    *offset += (uint64_t)at / 4;
    return at % 4 == 0 ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "%s: this rank's part of the random numbers begins with number %lld; need "
                         "a multiple of 4",
                         c->op->name, (long long)at);
}

/* ---- the op ---- */

static bool dropout_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    const mti_draw_part *part = &c->params->dropout.part;
    c->n_draws = mti_draws_of(part, x);
    if (!is_part(part)) c->draw.p = c->params->dropout.p; /* else it cannot be drawn again alone */
    return mti_shape_same(c) && mti_aux_set(c, 0, MT_BOOL, x->rank, x->shape);
}

static bool dropout_forward(mti_call *c)
{
    const mti_draw_part *part = &c->params->dropout.part;
    const mti_view *x = mti_in(c, 0), *y = mti_out(c, 0), *mask = mti_aux(c, 0);
    double p = c->params->dropout.p;
    if (!is_part(part)) return c->k->dropout(c->ctx, p, c->draw.seed, c->draw.offset, x, y, mask);
    int64_t rows, n = mti_draw_runs(part, x, &rows);
    for (int64_t i = 0; i < n; i++) {
        uint64_t offset;
        mti_view from = mti_range(x, 0, i, rows), to = mti_range(y, 0, i, rows), drawn;
        if (mask) drawn = mti_range(mask, 0, i, rows);
        if (!mti_draw_offset(c, part, x, i, &offset) ||
            !c->k->dropout(c->ctx, p, c->draw.seed, offset, &from, &to, mask ? &drawn : NULL))
            return false;
    }
    return true;
}

static bool dropout_backward(mti_call *c)
{
    const mti_view *dx = mti_din_reuse(c, 0);
    return dx && c->k->dropout_backward(c->ctx, c->params->dropout.p, mti_saved(c, MTI_AUX0),
                                        mti_dout(c), dx);
}

const mti_op_code mti_code_dropout = {dropout_shape, dropout_forward, dropout_backward};

mt_tensor *mt_dropout(mt_tensor *x, double p)
{
    if (!(p >= 0 && p < 1))
        return mti_fail_null(MT_ERR_ARGUMENT, "dropout: p is %g; need 0 <= p < 1", p);
    if (p == 0 && x) return mt_retain(x);
    return mti_op1(&mti_op_dropout, &(mti_params){.dropout = {p, mti_modes_now()->part}}, x);
}
