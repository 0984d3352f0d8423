/* memory_hooks.c: checkpoints, offload and the like around a model's forward. */
#include <stdlib.h>
#include <string.h>
#include "memory/memory_hooks.h"

static bool hooks_wanted(const mti_memory_options *options)
{
    return options && (options->offload || options->compress);
}

/* Whether the tape keeps what it keeps without options. */
static bool is_plain(const mti_memory_options *options)
{
    return !options || (!options->checkpoint && !options->budget && !options->recompute &&
                        !hooks_wanted(options) && !options->amp && !options->lora_rank);
}

static bool is_default(const mti_memory_options *options)
{
    return is_plain(options) &&
           (!options || (!options->master && !options->f32_gradients && options->loss_scale == 0));
}

/* ---- adapters ---- */

const mti_choice mti_codes_names = {"codes", MTI_NAMES("nf4", "int8")};

static mt_lora_base base_of(const mti_memory_options *options)
{
    if (!options->qlora) return MT_LORA_KEEP;
    if (options->codes == MTI_CODES_INT8) return MT_LORA_INT8;
    return options->qlora_double ? MT_LORA_NF4_DOUBLE : MT_LORA_NF4;
}

mt_lora_options mti_adapters_of(const mti_memory_options *options)
{
    return (mt_lora_options){.rank = options->lora_rank,
                             .n_targets = options->lora_targets.n,
                             .targets = options->lora_targets.patterns,
                             .dropout = options->lora_dropout,
                             .f32_adapters = options->f32_adapters,
                             .on_weights = options->lora_on_weights,
                             .base = base_of(options),
                             .from_codes = options->codes_file};
}

bool mti_adapt(mt_module *model, const mti_memory_options *options)
{
    if (!options || !options->lora_rank) return true;
    const mt_lora_options lora = mti_adapters_of(options);
    return mt_lora_add(model, &lora, NULL) == MT_OK;
}

mt_module *mti_adapted_new(mt_device *device, const mt_model_config *config,
                           const mti_memory_options *options)
{
    if (!options || !options->lora_rank) return mt_model_new(device, config);
    const mt_lora_options lora = mti_adapters_of(options);
    return mt_lora_model_new(device, config, &lora);
}

static void count_trained(mt_module *model, int64_t *n, uint64_t *frozen_bytes)
{
    const mt_named_tensor *params;
    size_t n_params;
    *n = 0, *frozen_bytes = 0;
    mt_module_size(model, NULL, frozen_bytes);
    if (mt_module_params(model, &params, &n_params) != MT_OK) return;
    for (size_t i = 0; i < n_params; i++) {
        if (!mt_requires_grad(params[i].tensor)) continue;
        *n += mt_numel(params[i].tensor);
        *frozen_bytes -= mt_storage_of(params[i].tensor).bytes;
    }
}

void mti_count_trained(mt_module *model, const mt_model_config *config,
                       const mti_memory_options *options, int64_t *n, uint64_t *frozen_bytes)
{
    mt_device *meta = model ? NULL : mt_device_open("meta");
    mt_module *whole = meta ? mti_adapted_new(meta, config, options) : NULL;
    count_trained(model ? model : whole, n, frozen_bytes);
    mt_module_free(whole);
    mt_device_release(meta);
}

/* ---- what a stage is given ---- */

static bool widen_gradients(const mti_memory_hooks *p, mt_module *model)
{
    return !p->options->f32_gradients || mt_module_set_grad_dtype(model, MT_F32) == MT_OK;
}

static bool make_checkpoints(mti_memory_hooks *p, mt_module *model)
{
    const unsigned recompute = p->options->recompute;
    if (!p->options->checkpoint && !p->options->budget && !recompute) return true;
    if (!p->report) p->report = mt_checkpoint_report_new();
    if (!p->report) return false;
    const mt_checkpoint_options options = {.report = p->report};
    mt_status status = recompute ? mt_model_recompute(model, recompute, &options)
                       : p->options->budget
                           ? mt_budget_apply(p->options->budget, model, &options)
                           : mt_model_checkpoint_with(model, p->options->checkpoint, &options);
    return status == MT_OK;
}

static bool make_offload(mti_memory_hooks *p)
{
    if (!p->options->offload) return true;
    const char *folder = getenv("TMPDIR");
    mt_offload_options options = {.directory = p->options->offload == MTI_OFFLOAD_DISK
                                                   ? (folder && *folder ? folder : "/tmp")
                                                   : NULL,
                                  .wants = p->options->offload_modules ? mti_offload_wants : NULL,
                                  .wants_user = (unsigned *)&p->options->offload_modules};
    p->offload = mt_offload_new(p->device, &options);
    return p->offload != NULL;
}

static bool make_compress(mti_memory_hooks *p)
{
    if (!p->options->compress) return true;
    p->compress = mt_compress_new(p->device, &(mt_compress_options){.rules = p->options->compress});
    return p->compress != NULL;
}

static bool make_scaler(mti_memory_hooks *p)
{
    double scale = p->options->loss_scale;
    if (scale == 0) return true;
    p->scaler =
        mt_scaler_new(&(mt_scaler_options){.scale = scale > 0 ? scale : 0, .fixed = scale > 0});
    return p->scaler != NULL;
}

static bool attach(mti_memory_hooks *p, mti_stage *stage)
{
    bool ok = true;
    for (int64_t i = 0; ok && i < stage->schedule.n_parts; i++)
        ok = widen_gradients(p, stage->parts[i]) && make_checkpoints(p, stage->parts[i]);
    stage->scaler = p->scaler;
    return ok && widen_gradients(p, mti_zero_stepped(stage->zero)); /* ZeRO's shards */
}

/* ---- around forward: hooks are pushed outermost first ---- */

static bool begin_ledger(mti_memory_hooks *p)
{
    p->under_ledger = p->ledger && p->in_ledger < p->ahead;
    if (p->under_ledger) p->in_ledger++;
    return !p->under_ledger || mt_ledger_begin(p->ledger) == MT_OK;
}

static bool begin_cast(const mti_memory_hooks *p)
{
    const mti_memory_options *o = p->options;
    return !o || !o->amp || mt_autocast_begin(o->amp_dtype) == MT_OK;
}

static bool end_cast(mti_memory_hooks *p)
{
    if (!p->options || !p->options->amp) return true;
    p->memory_stats.cast_copies = mt_autocast_cached(&p->memory_stats.cast_bytes);
    return mt_autocast_end() == MT_OK;
}

/* What began last ends first. */
static bool end_hooks(mti_memory_hooks *p, int n_begun)
{
    bool ok = true;
    if (n_begun > 3 && p->asked) ok = mt_ledger_end(p->asked) == MT_OK;
    if (n_begun > 2 && p->compress) ok = mt_compress_end(p->compress) == MT_OK && ok;
    if (n_begun > 1 && p->offload) ok = mt_offload_end(p->offload) == MT_OK && ok;
    if (n_begun > 0 && p->under_ledger) ok = mt_ledger_end(p->ledger) == MT_OK && ok;
    return ok;
}

static bool before_forward(mti_memory_hooks *p, bool first)
{
    if (p->report && first) mt_checkpoint_report_clear(p->report);
    int n = 0;
    bool ok = begin_ledger(p);
    if (ok) n++, ok = !p->offload || mt_offload_begin(p->offload) == MT_OK;
    if (ok) n++, ok = !p->compress || mt_compress_begin(p->compress) == MT_OK;
    if (ok) n++, ok = !p->asked || mt_ledger_begin(p->asked) == MT_OK;
    if (ok) n++, ok = begin_cast(p);
    if (!ok) end_hooks(p, n);
    return ok;
}

static void count_duplicate(void *user, const mt_duplicate *pair)
{
    mti_memory_stats *stats = user;
    stats->duplicates++;
    stats->duplicate_bytes += pair->copy_bytes;
}

/* The offload forgets when the next forward begins. */
static bool note_offloaded(mti_memory_hooks *p)
{
    mt_offload_stats stats;
    if (!p->offload) return true;
    if (mt_offload_get_stats(p->offload, &stats) != MT_OK) return false;
    p->memory_stats.offloaded += stats.bytes_out;
    if (stats.host_peak > p->memory_stats.host_peak) p->memory_stats.host_peak = stats.host_peak;
    return true;
}

static bool after_forward(mti_memory_hooks *p)
{
    bool ok = end_cast(p);
    ok = end_hooks(p, 4) && note_offloaded(p) && ok;
    if (!p->options || ++p->memory_stats.forwards != p->ahead) return ok;
    ok = ok && mt_visit_duplicates(p->device, count_duplicate, &p->memory_stats) == MT_OK;
    if (p->asked) p->memory_stats.asked = mt_ledger_bytes(p->asked);
    mt_ledger_free(p->asked); /* it would grow with each step */
    p->asked = NULL;
    return ok;
}

static bool observe(void *user, mti_moment moment, mti_step *step, int64_t k)
{
    (void)step;
    if (moment == MTI_BEFORE_FORWARD) return before_forward(user, k == 0);
    return moment != MTI_AFTER_FORWARD || after_forward(user);
}

/* ---- making ---- */

bool mti_memory_hooks_make(mti_memory_hooks *p, const mti_memory_options *options, mti_stage *stage)
{
    *p = (mti_memory_hooks){.options = is_default(options) ? NULL : options,
                            .device = stage->device,
                            .ahead = stage->schedule.ahead};
    mti_stage_observe(stage, observe, p);
    if (!p->options) return true;
    if (hooks_wanted(options)) {
        p->asked = mt_ledger_new(p->device);
        if (!p->asked) return false;
    }
    return make_offload(p) && make_compress(p) && make_scaler(p) && attach(p, stage);
}

void mti_memory_hooks_free(mti_memory_hooks *p)
{
    mt_ledger_free(p->asked);
    mt_offload_free(p->offload);
    mt_compress_free(p->compress);
    mt_scaler_free(p->scaler);
    mt_checkpoint_report_free(p->report);
    *p = (mti_memory_hooks){0};
}

void mti_memory_hooks_watch(mti_memory_hooks *p, mt_ledger *ledger)
{
    p->ledger = ledger;
    p->in_ledger = 0;
}

bool mti_memory_hooks_report(mti_memory_hooks *p)
{
    mti_memory_stats *s = &p->memory_stats;
    if (p->report) {
        s->n_segments = mt_checkpoint_report_count(p->report);
        mt_checkpoint_report_totals(p->report, &s->between, &s->inside);
        s->n_warnings = mt_checkpoint_lint(p->report, s->warnings, sizeof s->warnings);
    }
    if (p->scaler) s->scaler = mt_scaler_get(p->scaler);
    return (!p->offload || mt_offload_get_stats(p->offload, &s->offload) == MT_OK) &&
           (!p->compress || mt_compress_get_stats(p->compress, &s->compress) == MT_OK);
}
