/* subject.c: making a model, or one rank of several, and running its forwards. */
#include "base/philox.h"
#include "measure/memory_hooks.h"
#include "measure/subject.h"
#include "memtape/ops.h"
#include "nn/model.h"

/* ---- inputs ---- */

/* Positions of a sequence that this rank has. */
static int64_t length_of(const mti_workload *w)
{
    return w->seq / (w->ranked ? mti_filled_in(&w->parallel).context : 1);
}

/* Token ids [b,s]; `stream` tells inputs from targets. */
static mt_tensor *random_ids(mt_device *device, const mti_workload *w, uint64_t stream)
{
    const int64_t shape[2] = {w->batch, length_of(w)};
    if (!mt_device_has_data(device)) return mt_zeros(device, MT_I64, 2, shape);
    size_t n = (size_t)(shape[0] * shape[1]), n_bytes = n * sizeof(int64_t);
    int64_t *ids = mti_malloc(n_bytes);
    if (!ids) return NULL;
    for (size_t i = 0; i < n; i++) {
        mti_u32x4 r = mti_philox(w->seed, stream << 40 | i);
        uint64_t wide = (uint64_t)r.v[0] << 32 | r.v[1];
        ids[i] = (int64_t)(wide % (uint64_t)w->config.vocab);
    }
    mt_tensor *t = mt_from_data(device, MT_I64, 2, shape, ids, n_bytes);
    mti_free(ids);
    return t;
}

/* What a layer before would give: [b,s,d]. */
static mt_tensor *random_rows(mt_device *device, const mti_workload *w, int64_t seq)
{
    const mt_model_config *c = &w->config;
    mt_tensor *x = mt_normal(device, c->dtype, MT_SHAPE(w->batch, seq, c->hidden), 0, 1);
    if (x && mt_set_requires_grad(x, true) != MT_OK) mt_set(&x, NULL);
    return x;
}

/* ---- one rank of several ---- */

static bool make_stage(mti_subject *s, bool target)
{
    const mti_workload *w = s->workload;
    const mt_lora_options lora = mti_adapters_of(&w->memory);
    mt_parallel parallel = w->parallel;
    if (w->memory.step_in_backward) parallel.reduce = MT_REDUCE_AFTER; /* none is left by then */
    s->stage = mti_calloc(1, sizeof *s->stage);
    if (!s->stage || !mti_stage_make(s->stage, s->device, &w->config, &parallel, w->seq,
                                     w->memory.lora_rank ? &lora : NULL))
        return false;
    s->model = s->stage->model;
    s->n_params = s->stage->n_params;
    for (int64_t i = 0; i < s->stage->schedule.n_parts; i++)
        s->has_loss = s->has_loss || s->stage->shares[i].last;
    s->has_loss = s->has_loss && target && mti_is_whole(w->config.kind);
    return true;
}

static mt_tensor *stage_input(const mti_subject *s, int64_t part)
{
    const mti_share *share = &s->stage->shares[part];
    const mti_workload *w = s->workload;
    if (!mti_is_whole(w->config.kind))
        return random_rows(s->device, w, mti_piece_length(share, w->seq));
    return share->first ? random_ids(s->device, w, 1)
                        : mt_rank_wire(s->stage->parts[part], s->device, w->batch, w->seq);
}

/* ---- making ---- */

static bool make_model(mti_subject *s, bool target)
{
    const mti_workload *w = s->workload;
    bool whole = mti_is_whole(w->config.kind);
    s->model = whole ? mti_adapted_new(s->device, &w->config, &w->memory)
                     : mt_model_new(s->device, &w->config);
    if (!s->model) return false;
    s->has_loss = whole && target;
    s->input = whole ? random_ids(s->device, w, 1) : random_rows(s->device, w, w->seq);
    if (s->has_loss) s->target = random_ids(s->device, w, 2);
    return s->input && (s->target || !s->has_loss) && (whole || mti_adapt(s->model, &w->memory)) &&
           mt_module_size(s->model, &s->n_params, NULL) == MT_OK;
}

bool mti_subject_make(mti_subject *s, mt_device *device, const mti_workload *w, bool target)
{
    *s = (mti_subject){.device = device, .workload = w};
    mt_seed(device, w->seed);
    return w->ranked ? make_stage(s, target) : make_model(s, target);
}

void mti_subject_free(mti_subject *s)
{
    mt_release(s->input);
    mt_release(s->target);
    if (s->stage) mti_stage_free(s->stage);
    if (!s->stage) mt_module_free(s->model);
    mti_free(s->stage);
    *s = (mti_subject){0};
}

/* ---- forward ---- */

/* share: of a rank's part m; else NULL. */
static mt_tensor *run(const mti_subject *s, mt_module *m, const mti_share *share, mt_tensor *input,
                      mt_tensor *target)
{
    if (target && mti_loss_takes_head(s->workload->config.ops.loss))
        return mt_model_forward_loss(m, input, target);
    mt_tensor *y = mt_forward(m, input);
    if (!target || mt_scope_push("loss") != MT_OK) return y;
    mt_set(&y, share ? mti_rank_loss(share, y, target)
                     : mt_model_loss(&s->workload->config, y, target));
    mt_scope_pop();
    return y;
}

mt_tensor *mti_subject_forward(const mti_subject *s)
{
    return run(s, s->model, NULL, s->input, s->target);
}

int64_t mti_subject_turns(const mti_subject *s)
{
    return s->stage ? s->stage->schedule.run * s->stage->schedule.n_parts : 1;
}

int64_t mti_subject_ahead(const mti_subject *s) { return s->stage ? s->stage->schedule.ahead : 1; }

bool mti_subject_fly(const mti_subject *s, int64_t k, mti_flown *out)
{
    *out = (mti_flown){.last = true};
    if (!s->stage) return (out->output = mti_subject_forward(s)) != NULL;
    int64_t part = mti_schedule_at(&s->stage->schedule, k, false).part;
    out->last = s->stage->shares[part].last;
    out->input = stage_input(s, part);
    if (s->has_loss && out->last) out->target = random_ids(s->device, s->workload, 2);
    if (out->input && (out->target || !(s->has_loss && out->last)))
        out->output =
            run(s, s->stage->parts[part], &s->stage->shares[part], out->input, out->target);
    return out->output != NULL;
}

void mti_subject_set_turns(const mti_subject *s, int64_t n)
{
    if (s->stage)
        s->stage->schedule.run =
            n ? n / s->stage->schedule.n_parts : s->stage->shares->parallel.microbatches;
}

int64_t mti_subject_unit(const mti_subject *s)
{
    return s->stage ? mti_schedule_unit(&s->stage->schedule) : 1;
}

int64_t mti_subject_return(const mti_subject *s, int64_t k)
{
    return s->stage ? mti_schedule_return(&s->stage->schedule, k) : k;
}

void mti_subject_infers(mti_subject *s)
{
    if (!s->stage) mt_module_set_training(s->model, false);
    for (int64_t i = 0; s->stage && i < s->stage->schedule.n_parts; i++)
        mt_module_set_training(s->stage->parts[i], false);
}

bool mti_subject_is_first(const mti_subject *s, int64_t k)
{
    return !s->stage || mti_schedule_at(&s->stage->schedule, k, false).micro == 0;
}

void mti_flown_free(mti_flown *f)
{
    mt_release(f->input);
    mt_release(f->target);
    mt_release(f->output);
    *f = (mti_flown){0};
}

uint64_t mti_subject_whole(const mti_subject *s, uint64_t counted)
{
    if (!s->stage) return counted;
    uint64_t run = (uint64_t)s->stage->schedule.run;
    return counted / run * (uint64_t)s->stage->shares->parallel.microbatches;
}

mt_flops mti_subject_flops(const mti_subject *s, mt_flops f)
{
    return (mt_flops){mti_subject_whole(s, f.forward), mti_subject_whole(s, f.backward),
                      mti_subject_whole(s, f.recompute)};
}

mt_comm *mti_subject_comm(const mti_subject *s)
{
    return s->stage ? s->stage->shares->parallel.pipeline_comm : NULL;
}

bool mti_subject_start_backward(const mti_subject *s)
{
    return !s->stage || mti_zero_start_backward(s->stage->zero);
}

void mti_subject_tell_backward(const mti_subject *s, int64_t k)
{
    if (!s->stage) return;
    const mti_schedule *schedule = &s->stage->schedule;
    mti_zero_set_last(s->stage->zero,
                      mti_schedule_at(schedule, k, true).micro + 1 == schedule->run);
}

bool mti_subject_end_backward(const mti_subject *s)
{
    return !s->stage || mti_zero_end_backward(s->stage->zero);
}

/* ---- around an optimizer's step ---- */

mt_module *mti_subject_stepped(const mti_subject *s)
{
    return s->stage ? mti_zero_stepped(s->stage->zero) : s->model;
}

bool mti_subject_before_step(const mti_subject *s)
{
    return !s->stage || mti_zero_before_step(s->stage->zero);
}

bool mti_subject_after_step(const mti_subject *s)
{
    return s->stage ? mti_zero_after_step(s->stage->zero) : mt_module_zero_grad(s->model) == MT_OK;
}

bool mti_subject_grad_bytes(const mti_subject *s, size_t *bytes)
{
    if (s->stage) return mti_zero_grad_bytes(s->stage->zero, bytes);
    const mt_named_tensor *list;
    size_t n;
    *bytes = 0;
    if (mt_module_params(s->model, &list, &n) != MT_OK) return false;
    for (size_t i = 0; i < n; i++) {
        const mt_tensor *g = mt_grad(list[i].tensor);
        if (g) *bytes += (size_t)mt_numel(g) * mt_dtype_size(mt_dtype_of(g));
    }
    return true;
}
