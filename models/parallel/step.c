/* step.c: one training step of one rank, which all ranks make together; a plain model is a rank of
 * one. Everything that trains or measures takes this step. */
#include <assert.h>
#include <math.h>
#include "memtape/ops.h"
#include "nn/model.h"
#include "optim/optimizers.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

/* The step's loss is the mean of this many. */
double mti_stage_losses(const mt_stage *s)
{
    const mt_parallel *h = &s->shards->parallel;
    return (double)(h->microbatches * mti_data_group(h).ranks);
}

/* ---- observers ---- */

void mti_stage_observe(mt_stage *s, mti_observe_fn *fn, void *user)
{
    assert(s->n_observers < MTI_OBSERVERS);
    s->observers[s->n_observers].fn = fn;
    s->observers[s->n_observers++].user = user;
}

/* Shows a moment to the first n observers, what is after something to the last of them first. */
static bool show(const mt_stage *s, int n, mti_moment moment, mti_step *step, int64_t k)
{
    const bool back = moment == MTI_AFTER_FORWARD;
    bool ok = true;
    for (int i = 0; i < n && (ok || back); i++) {
        const int at = back ? n - 1 - i : i;
        ok = s->observers[at].fn(s->observers[at].user, moment, step, k) && ok;
        if (!ok && moment == MTI_BEFORE_FORWARD) show(s, at, MTI_AFTER_FORWARD, step, k);
    }
    return ok;
}

/* ---- forward ---- */

mt_tensor *mti_stage_run(const mt_stage *s, int64_t part, const mti_in_flight *f)
{
    mt_module *m = s->parts[part];
    mt_tensor *input = f->input, *target = f->target;
    const mt_model_config *c = &s->shards[part].whole;
    const bool adds = c->balance_by_layer && f->learns && !s->shards[part].last;
    if (adds || (target && (mti_loss_row_of(c->ops.loss)->takes_head || c->balance_loss > 0 ||
                            mti_looks_ahead(m, c))))
        return s->is_plain ? mt_model_forward_loss(m, input, target)
                           : mti_rank_forward_loss(m, input, f->tokens ? f->tokens : input, target);
    mt_tensor *y = mt_forward(m, input);
    if (!target || !y) return y;
    bool named = mt_scope_push("loss") == MT_OK;
    mt_tensor *loss = named ? mti_rank_loss(&s->shards[part], y, target) : NULL;
    if (named) mt_scope_pop();
    if (loss && f->outputs && mti_loss_row_of(c->ops.loss)->held) mt_set(f->outputs, mt_detach(y));
    mt_release(y);
    return loss;
}

/* Without a scaler ranks take the mean of their losses in the optimizer's step. */
static double share_of_mean(const mt_stage *s)
{
    return s->scaler || s->is_plain ? 1 / mti_stage_losses(s) : 1;
}

double mti_stage_loss_scale(const mt_stage *s)
{
    return (s->scaler ? mt_scaler_get(s->scaler).scale : 1) * share_of_mean(s);
}

/* What backward begins with, in place of the loss. */
static bool scale_loss(const mt_stage *s, mt_tensor **loss)
{
    double share = share_of_mean(s);
    if (s->scaler) mt_set(loss, mt_scaler_scale(s->scaler, *loss));
    if (share < 1) mt_set(loss, mt_mul_scalar(*loss, share));
    return *loss != NULL;
}

static bool forward(mti_step *p, int64_t k)
{
    mt_stage *s = p->stage;
    const mti_turn turn = mti_schedule_at(&s->schedule, k, false);
    mti_in_flight *f = &p->in_flight[k % p->n_places];
    *f = (mti_in_flight){.last = s->shards[turn.part].last, .outputs = &s->outputs};
    if (!show(s, s->n_observers, MTI_BEFORE_FORWARD, p, k)) return false;
    if (p->batches.take(p->batches.user, turn, f)) f->output = mti_stage_run(s, turn.part, f);
    bool ok = show(s, s->n_observers, MTI_AFTER_FORWARD, p, k);
    if (!ok || !f->output) return false;
    f->is_loss = f->target || mt_rank(f->output) == 0;
    if (f->is_loss && p->batches.note_loss && !p->batches.note_loss(p->batches.user, f->output))
        return false;
    return (!f->is_loss || scale_loss(s, &f->output)) &&
           mt_set_category(f->output, MT_OUTPUT) == MT_OK;
}

/* ---- backward ---- */

static void let_go_of_inputs(mti_in_flight *f)
{
    mt_release(f->input), mt_release(f->target), mt_release(f->tokens);
    f->input = f->target = f->tokens = NULL;
}

static void land(mti_in_flight *f)
{
    let_go_of_inputs(f);
    mt_release(f->output);
    *f = (mti_in_flight){0};
}

/* Stands for the gradient from later layers. What is sent to another stage has no bytes here,
 * and its gradient comes from there. */
static mt_tensor *gradient_of(const mti_in_flight *f)
{
    mt_device *device = mt_device_of(f->output);
    mt_dtype dtype = mt_dtype_of(f->output);
    int rank = mt_rank(f->output);
    if (f->last) return mt_normal(device, dtype, rank, mt_shape(f->output), 0, 1);
    mt_tensor *one = mt_zeros(device, dtype, 0, NULL);
    mt_set(&one, one ? mt_expand(one, rank, mt_shape(f->output)) : NULL);
    return one;
}

/* The k-th backward. */
static bool backward(mti_step *p, int64_t k)
{
    const mt_stage *s = p->stage;
    const mti_turn turn = mti_schedule_at(&s->schedule, k, true);
    mti_in_flight *f = &p->in_flight[mti_schedule_return(&s->schedule, k) % p->n_places];
    mt_backward_options options = {0};
    const bool is_loss = f->is_loss;
    if (!show(s, s->n_observers, MTI_BEFORE_BACKWARD, p, k)) return false;
    let_go_of_inputs(f); /* the tape has what it needs of them */
    if (!is_loss) options.gradient = gradient_of(f);
    const bool is_last = turn.micro + 1 == s->schedule.run;
    if (s->units) mti_units_set_last(s->units[turn.part], is_last);
    bool ok = mti_zero_before_backward(s->zero, is_last) && (is_loss || options.gradient) &&
              mt_backward_with(f->output, &options) == MT_OK;
    mt_release(options.gradient);
    land(f);
    return ok;
}

/* ---- some forwards, then forward and backward in turns, then the remaining backwards ---- */

bool mti_step_begin(mti_step *p, mt_stage *stage, const mti_batches *batches)
{
    mti_schedule *schedule = &stage->schedule;
    schedule->run = stage->is_plain ? 1 : stage->shards->parallel.microbatches;
    *p = (mti_step){.stage = stage,
                    .batches = *batches,
                    .n = schedule->run * schedule->n_parts,
                    /* A backward's forward is in its unit. */
                    .n_places = schedule->ahead + mti_schedule_period(schedule) + 1};
    p->in_flight = mti_calloc((size_t)p->n_places, sizeof *p->in_flight);
    for (int64_t i = 0; stage->units && i < schedule->n_parts; i++)
        mti_units_start_backward(stage->units[i]);
    return p->in_flight && mti_zero_start_backward(stage->zero);
}

bool mti_step_ahead(mti_step *p)
{
    bool ok = true;
    while (ok && p->next < p->stage->schedule.ahead) ok = forward(p, p->next++);
    return ok;
}

bool mti_step_infer(mti_step *p)
{
    const mti_schedule *schedule = &p->stage->schedule;
    bool ok = true;
    for (; ok && p->next < schedule->ahead; p->next++)
        ok = mti_schedule_at(schedule, p->next, false).micro > 0 || forward(p, p->next);
    return ok;
}

bool mti_step_backward(mti_step *p)
{
    bool ok = true;
    for (int64_t k = 0; ok && k < p->n; k++) {
        ok = backward(p, k);
        if (ok && p->next < p->n) ok = forward(p, p->next++);
    }
    ok = mti_zero_end_backward(p->stage->zero, ok);
    return ok && mt_comm_settle(p->stage->shards->parallel.pipeline_comm) == MT_OK;
}

void mti_step_leave_out(mti_step *p, int64_t period)
{
    mti_schedule *schedule = &p->stage->schedule;
    p->n -= (p->n - p->next) / period * period;
    schedule->run = p->n / schedule->n_parts;
}

void mti_step_end(mti_step *p)
{
    for (int64_t i = 0; p->in_flight && i < p->n_places; i++) land(&p->in_flight[i]);
    mti_free(p->in_flight);
    *p = (mti_step){0};
}

/* ---- the optimizer's step ---- */

/* Ranks clip within the step; one process, as a plain training loop does, clips gradients in
 * place, which rounds those in 16 bits. */
static bool step(mt_stage *s, mt_optimizer *optimizer, double max_norm, double *norm)
{
    double factor = share_of_mean(s) < 1 ? 1 : 1 / mti_stage_losses(s), squares = 0;
    if (s->is_plain && !s->scaler && max_norm > 0) {
        if (mt_clip_grad_norm(s->model, max_norm, norm) != MT_OK) return false;
        max_norm = 0;
    }
    mti_zero_direct(s->zero, optimizer);
    if ((max_norm > 0 || s->scaler) && !mti_zero_squares(s->zero, &squares)) return false;
    if (s->scaler) return mti_scaler_step_given(s->scaler, optimizer, squares, max_norm, norm);
    double length = sqrt(squares) * factor, limit = max_norm / (length + 1e-6);
    if (norm && max_norm > 0) *norm = length;
    if (max_norm > 0 && !(limit >= 1)) factor *= limit;
    return mti_optimizer_step_scaled(optimizer, factor);
}

static bool balance_experts(const mt_stage *s)
{
    bool ok = true;
    for (int64_t i = 0; ok && i < s->schedule.n_parts; i++)
        ok = mti_balance_experts(s->parts[i], mti_sum_loads, &s->shards[i].parallel);
    return ok;
}

bool mti_step_optimizer(mt_stage *s, mt_optimizer *optimizer, double max_norm, double *norm)
{
    bool ok = mti_zero_before_step(s->zero);
    if (ok && optimizer) ok = step(s, optimizer, max_norm, norm) && balance_experts(s);
    return ok && show(s, s->n_observers, MTI_BEFORE_DROP, NULL, 0) && mti_zero_after_step(s->zero);
}
