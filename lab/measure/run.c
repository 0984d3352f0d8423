/* run.c: making a model, or one rank of several, and running its forwards. */
#include "base/philox.h"
#include "memory/memory_hooks.h"
#include "workload/routing.h"
#include "measure/two_steps.h"
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
    if ((target && !mti_check_ahead(&w->config, length_of(w))) ||
        !mti_stage_make(&s->stage, s->device, &w->config, &parallel, w->seq,
                        w->memory.lora_rank ? &lora : NULL))
        return false;
    for (int64_t i = 0; i < s->stage.schedule.n_parts; i++)
        s->has_loss = s->has_loss || s->stage.shards[i].last;
    s->has_loss = s->has_loss && target && mti_has_head(&w->config);
    return true;
}

static mt_tensor *stage_input(const mti_subject *s, int64_t part)
{
    const mti_model_shard *shard = &s->stage.shards[part];
    const mti_workload *w = s->workload;
    if (!mti_is_whole(w->config.kind))
        return random_rows(s->device, w, mti_shard_of_sequence(shard, w->seq));
    return shard->first ? random_ids(s->device, w, 1)
                        : mt_rank_wire(s->stage.parts[part], s->device, w->batch, w->seq);
}

/* ---- making ---- */

static bool make_model(mti_subject *s, bool target)
{
    const mti_workload *w = s->workload;
    bool whole = mti_is_whole(w->config.kind);
    mt_module *model = whole ? mti_adapted_new(s->device, &w->config, &w->memory)
                             : mt_model_new(s->device, &w->config);
    s->has_loss = mti_has_head(&w->config) && target;
    s->input = !model  ? NULL
               : whole ? random_ids(s->device, w, 1)
                       : random_rows(s->device, w, w->seq);
    if (model && s->has_loss) s->target = random_ids(s->device, w, 2);
    bool ok = s->input && (s->target || !s->has_loss) && (whole || mti_adapt(model, &w->memory));
    return mti_stage_make_plain(&s->stage, s->device, &w->config, model, 1) && ok;
}

/* Experts without data have the rows that the workload's routing says. */
static bool route(mti_subject *s)
{
    const mti_workload *w = s->workload;
    if (!w->config.experts || !w->routing) return true;
    for (int64_t i = 0; i < s->stage.schedule.n_parts; i++) {
        const int64_t from = s->stage.is_plain ? 0 : s->stage.shards[i].from;
        int64_t layer = from > w->config.dense_layers ? from - w->config.dense_layers : 0;
        mti_set_routing(s->stage.parts[i], &s->routing, &layer, NULL);
    }
    return mti_routing_make(&s->routing, w->routing, w->seed);
}

bool mti_subject_make(mti_subject *s, mt_device *device, const mti_workload *w, bool target)
{
    *s = (mti_subject){.device = device, .workload = w, .learns = target};
    mt_seed(device, w->seed);
    return (w->ranked ? make_stage(s, target) : make_model(s, target)) && route(s);
}

void mti_subject_free(mti_subject *s)
{
    mt_release(s->input);
    mt_release(s->target);
    mti_stage_free(&s->stage);
    mti_free(s->routing.rows);
    *s = (mti_subject){0};
}

bool mti_subject_take(void *subject, mti_turn turn, mti_in_flight *f)
{
    const mti_subject *s = subject;
    bool target = s->has_loss && f->last, tokens = false;
    if (s->stage.is_plain) {
        f->input = mt_retain(s->input);
        f->target = mt_retain(s->target);
    } else {
        f->learns = s->learns;
        f->input = stage_input(s, turn.part);
        if (target) f->target = random_ids(s->device, s->workload, 2);
        tokens = target && mti_copies_embedding(&s->stage.shards[turn.part]);
        if (tokens) f->tokens = random_ids(s->device, s->workload, 1);
    }
    return f->input && (f->target || !target) && (f->tokens || !tokens);
}
