/* stage.c: all that one rank has: the parts of its stage, and what ZeRO leaves of their states. */
#include <stdio.h>
#include "comm/comm.h"
#include "memtape/models/optimizer.h"
#include "parallel/parallel.h"

/* ---- the parameters of several parts ---- */

static bool add_params(mt_module *all, mt_module *part, int64_t nth)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(part, &list, &n) != MT_OK) return false;
    for (size_t i = 0; i < n; i++) {
        char name[256];
        bool wanted = mt_requires_grad(list[i].tensor);
        snprintf(name, sizeof name, "%lld.%.200s", (long long)nth, list[i].name);
        if (!mt_module_add_param(all, name, mt_retain(list[i].tensor))) return false;
        if (!wanted && mt_set_requires_grad(list[i].tensor, false) != MT_OK) return false;
    }
    return true;
}

/* One module with the parameters of all parts, for an optimizer. */
static mt_module *join(mt_module *const *parts, int64_t n)
{
    mt_module *all = mt_module_new("parts", mti_no_forward, NULL, NULL);
    bool ok = all != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        ok = add_params(all, parts[i], i);
        if (mti_module_in_shards(parts[i])) mti_module_mark_shards(all);
    }
    return mti_module_complete(all, ok);
}

/* ---- making ---- */

/* Counts a part's parameters before ZeRO cuts them. */
static bool count_params(mti_stage *s, int64_t part)
{
    const mt_named_tensor *list;
    size_t n_list;
    uint64_t n;
    if (mt_module_params(s->parts[part], &list, &n_list) != MT_OK ||
        mt_module_size(s->parts[part], &n, NULL) != MT_OK)
        return false;
    for (size_t i = 0; i < n_list; i++) {
        const mti_sharded *cut = mti_units_find(s->units[part], list[i].tensor);
        if (cut) n += (uint64_t)(mti_layout_count(&cut->whole) - mt_numel(cut->shard));
    }
    s->n_params += n;
    return true;
}

static bool make_parts(mti_stage *s, mt_device *device, const mt_model_config *config,
                       const mt_parallel *parallel, const mt_lora_options *lora)
{
    uint64_t seed, offset;
    mt_rng_get(device, &seed, &offset);
    for (int64_t i = 0; i < s->schedule.n_parts; i++) {
        if (mt_device_has_data(device)) mt_rng_set(device, seed, offset); /* one process's */
        if (!mti_model_shard_make(&s->shards[i], config, parallel, i) ||
            !(s->parts[i] = mti_rank_new(device, config, parallel, i, lora, &s->units[i])) ||
            !count_params(s, i))
            return false;
        s->layers += s->shards[i].to - s->shards[i].from;
        if (s->shards[i].last) s->layers += s->shards[i].whole.mtp_layers;
    }
    return true;
}

/* On a device without data a stage holds what it sends as long as if it moved. */
static bool hold_messages(mti_stage *s, mt_parallel *h)
{
    if (h->pipeline == 1 || h->pipeline_comm || mt_device_has_data(s->device)) return true;
    s->unconnected = mti_comm_unconnected(h->pipeline, h->stage);
    h->pipeline_comm = s->unconnected;
    return s->unconnected != NULL;
}

/* The caller's options may go before the stage does. */
static bool copy_adapters(mti_stage *s, const mt_lora_options *lora)
{
    const char **targets = mti_calloc(lora->n_targets + 1, sizeof *targets);
    s->lora = *lora;
    s->lora.targets = targets;
    bool ok = targets != NULL;
    for (size_t i = 0; ok && i < lora->n_targets; i++)
        ok = (targets[i] = mti_intern(lora->targets[i])) != NULL;
    return ok;
}

/* Among stages a gradient goes back to the first one, so the first part must have an adapter. */
static bool check_first_part(const mti_model_shard *s, const mt_lora_options *lora)
{
    mt_parallel h = s->parallel;
    mti_model_shard first;
    mti_whole whole;
    if (h.pipeline == 1 || !lora->n_targets) return true;
    h.stage = 0;
    h.pipeline_comm = h.ends_comm = NULL;
    if (!mti_model_shard_make(&first, &s->whole, &h, 0)) return false;
    const int64_t n = first.to;
    bool ok = mti_whole_open(&whole, s, lora), found = false;
    for (size_t i = 0; ok && i < whole.n; i++) {
        long long layer;
        found = found || (mti_is_adapter(whole.list[i].name) &&
                          sscanf(whole.list[i].name, "h.%lld.", &layer) == 1 && layer < n);
    }
    mti_whole_close(&whole);
    return ok && (found || mti_fail_bool(MT_ERR_UNSUPPORTED,
                                         "rank: no target of the adapters is among the first "
                                         "stage's %lld layers, so no gradient would go back to "
                                         "it; need one there, or pipeline 1",
                                         (long long)n));
}

bool mti_stage_make(mti_stage *s, mt_device *device, const mt_model_config *config,
                    const mt_parallel *parallel, int64_t seq, const mt_lora_options *lora)
{
    mti_model_shard first;
    *s = (mti_stage){0};
    if (!mti_model_shard_make(&first, config, parallel, 0) ||
        (seq && !mti_check_length("rank", &first, seq)))
        return false;
    if (lora && (!check_first_part(&first, lora) || !copy_adapters(s, lora))) return false;
    s->device = device;
    s->schedule = mti_schedule_of(&first.parallel);
    size_t n = (size_t)s->schedule.n_parts;
    s->shards = mti_calloc(n, sizeof *s->shards);
    s->parts = mti_calloc(n, sizeof *s->parts);
    s->units = mti_calloc(n, sizeof *s->units);
    if (!s->shards || !s->parts || !s->units || !hold_messages(s, &first.parallel) ||
        !make_parts(s, device, config, &first.parallel, lora))
        return false;
    if (n > 1) s->joined = join(s->parts, s->schedule.n_parts);
    s->model = n > 1 ? s->joined : s->parts[0];
    s->zero = s->model ? mti_zero_new(s->shards, device, s->model) : NULL;
    return s->zero != NULL;
}

bool mti_stage_make_plain(mti_stage *s, mt_device *device, const mt_model_config *config,
                          mt_module *model, int64_t microbatches)
{
    const mt_parallel alone = mti_filled_in(&(mt_parallel){.microbatches = microbatches});
    *s = (mti_stage){
        .schedule = mti_schedule_of(&alone), .device = device, .model = model, .is_plain = true};
    s->shards = mti_calloc(1, sizeof *s->shards);
    s->parts = mti_calloc(1, sizeof *s->parts);
    if (s->parts) s->parts[0] = model;
    if (!s->parts) mt_module_free(model);
    if (!model || !s->shards || !s->parts) return false;
    s->shards[0] = (mti_model_shard){.parallel = alone, .first = true, .last = true};
    if (mt_model_config_resolve(config, &s->shards->whole) != MT_OK) return false;
    s->zero = mti_zero_new(s->shards, device, model);
    return s->zero && mt_module_size(model, &s->n_params, NULL) == MT_OK;
}

void mti_stage_free(mti_stage *s)
{
    mt_release(s->outputs);
    mti_zero_free(s->zero);
    mt_module_free(s->joined);
    for (int64_t i = 0; s->parts && i < s->schedule.n_parts; i++) mt_module_free(s->parts[i]);
    for (int64_t i = 0; s->units && i < s->schedule.n_parts; i++) mti_units_release(s->units[i]);
    mt_comm_free(s->unconnected);
    mti_free(s->draws.parts);
    mti_free((void *)s->lora.targets);
    mti_free(s->parts);
    mti_free(s->units);
    mti_free(s->shards);
    *s = (mti_stage){0};
}
