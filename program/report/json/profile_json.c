/* profile_json.c: the object that docs/profile-json.md describes, key by key. */
#include <limits.h>
#include <math.h>
#include "memtrack/range.h"
#include "parallel/parallel.h"
#include "report/keys.h"
#include "report/results.h"

/* ---- saved tensors ---- */

static void describe_saver(mti_fields *f, const mt_saver *saver)
{
    mti_field_text(f, "module", saver->module);
    mti_describe_keeper(f, saver);
}

typedef struct entry {
    const mt_ledger *ledger;
    size_t i; /* its place there */
    mt_ledger_entry is;
} entry;

/* All savers but the first, which pays. */
static void describe_other(mti_fields *f, const void *object)
{
    const entry *e = object;
    mt_saver other = {0};
    mt_ledger_get_saver(e->ledger, e->i, f->i + 1, &other);
    describe_saver(f, &other);
}

DESCRIBE(describe_freed, mt_ledger_entry, KEY_AS("module", freed_after_module),
         KEY_AS("op", freed_after_op));

static void describe_entry(mti_fields *f, const void *ledger)
{
    entry e = {.ledger = ledger, .i = f->i};
    mt_ledger_get(ledger, f->i, &e.is);
    KEYS(f, mt_ledger_entry, &e.is, KEY(storage), KEY(bytes), KEY(rounded), KEY(allocated));
    mti_field_shape(f, "shape", e.is.saver.rank, e.is.saver.shape);
    mti_field_text(f, "dtype", mt_dtype_name(e.is.saver.dtype));
    describe_saver(f, &e.is.saver);
    mti_field_list(f, "also", describe_other, &e, e.is.n_savers - 1, 0);
    mti_field_object(mti_null_unless(f, e.is.freed && *e.is.freed_after_op), "freed_after",
                     describe_freed, &e.is);
}

static void describe_saved(mti_fields *f, const void *ledger)
{
    size_t n = mt_ledger_count(ledger), rounded = 0;
    mt_ledger_entry e;
    for (size_t i = 0; i < n; i++)
        if (mt_ledger_get(ledger, i, &e) == MT_OK) rounded += e.rounded;
    mti_field_size(f, "bytes", mt_ledger_bytes(ledger));
    mti_field_size(f, "rounded", rounded);
    mti_field_size(f, "allocated", mt_ledger_allocated(ledger));
    mti_field_size(f, "storages", n);
    mti_field_list(f, "tensors", describe_entry, ledger, n, 0);
}

/* ---- the other sections ---- */

static void describe_growth(mti_fields *f, const void *growth)
{
    const mti_growth *g = growth;
    mti_field_int(f, "measured", g->measured);
#define PART(member, ...) mti_field_int(f, #member, g->member);
#include "measure/growth.def"
#undef PART
    mti_field_int(f, "residual", g->residual);
}

DESCRIBE(describe_phase, mti_phase, KEY(name), KEY(requested), KEY(requested_peak), KEY(allocated),
         KEY(peak), KEY_AS("active", allocated), KEY_AS("active_peak", peak), KEY(reserved),
         KEY(reserved_peak), KEY_OR_NULL(seconds), KEY(by_category), KEY(at_peak));

static void describe_phases(mti_fields *f, const mti_phases *phases)
{
    mti_field_list(f, "phases", describe_phase, phases->at, (size_t)phases->n, sizeof *phases->at);
}

DESCRIBE(describe_left, mti_left, KEY(freed), KEY(given_back));

static void describe_inference(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    describe_phases(f, &p->inference.phases);
    mti_field_size(f, "saved", mt_ledger_bytes(p->inference.ledger));
    mti_field_size(f, "flops", p->inference.flops.forward);
    mti_field_object(f, "left", describe_left, &p->left_by_inference);
}

void mti_describe_steady(mti_fields *f, const void *steady)
{
    KEYS(f, mti_steady, steady, KEY(requested), KEY(peak), KEY_AS("active", peak), KEY(reserved),
         KEY(by_category));
}

static void describe_second_step(mti_fields *f, const void *measurement)
{
    const mti_measurement *m = measurement;
    mti_describe_steady(f, &m->steady);
    mti_field_streams(f, m);
    describe_phases(f, &m->steady.phases);
    mti_field_size(f, "event", m->timeline.steady);
}

void mti_describe_flops(mti_fields *f, const void *flops)
{
    KEYS(f, mt_flops, flops, KEY(forward), KEY(backward), KEY(recompute));
}

DESCRIBE(describe_term, mti_formula_term, KEY(text), KEY(what), KEY(bytes));
DESCRIBE(describe_residual, mti_residual, KEY_AS("term", text), KEY(bytes));

static void describe_formula(mti_fields *f, const void *formula)
{
    const mti_formula *m = formula;
    KEYS(f, mti_formula, m, KEY(bytes), KEY(text));
    mti_field_list(f, "terms", describe_term, m->terms, (size_t)m->n_terms, sizeof *m->terms);
    mti_field_list(f, "residual", describe_residual, m->residual, (size_t)m->n_residual,
                   sizeof *m->residual);
    mti_field_int(f, "unexplained", m->unexplained);
}

void mti_field_formula(mti_fields *f, const mti_formula *formula)
{
    mti_field_object(mti_null_unless(f, formula->known), "formula", describe_formula, formula);
}

/* ---- the memory options ---- */

static void describe_checkpoint(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    const mti_memory_stats *s = &p->measured.memory_stats;
    mti_field_text(f, "preset", p->workload.memory.checkpoint);
    KEYS(f, mti_memory_stats, s, KEY_AS("segments", n_segments), KEY(between), KEY(inside),
         KEY(warnings));
}

static void describe_offload(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    const mt_offload_stats *s = &p->measured.memory_stats.offload;
    bool timed = mt_device_has_data(p->device);
    mti_field_text(f, "to", p->workload.memory.offload == MTI_OFFLOAD_DISK ? "disk" : "cpu");
    const unsigned modules = p->workload.memory.offload_modules;
    mti_field_text(mti_null_unless(f, modules), "modules",
                   mti_modules_text(&mti_offloaded, modules, (char[MTI_MODULES_TEXT]){0}));
    KEYS(f, mt_offload_stats, s, KEY_AS("transfers_out", n_out), KEY(bytes_out),
         KEY_AS("transfers_in", n_in), KEY(bytes_in), KEY(lowered),
         KEY_AS("in_vain", bytes_in_vain), KEY(host_peak), KEY(disk_peak));
    mti_field_real(mti_null_unless(f, timed), "copy_seconds", s->copy_s);
    mti_field_real(mti_null_unless(f, timed), "wait_seconds", s->wait_s);
    mti_field_real(mti_null_unless(f, timed), "hidden", s->hidden);
}

DESCRIBE(describe_count, mt_compress_count, KEY_AS("storages", n), KEY_AS("before", bytes_before),
         KEY_AS("after", bytes_after));

/* The i-th of those that were asked for. */
static void describe_rule(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    unsigned rules = p->workload.memory.compress, r = 0;
    while (rules && (!(rules >> r & 1) || f->i--)) r++;
    const mt_compress_count *c = &p->measured.memory_stats.compress.by_rule[r];
    describe_count(f, c);
    mti_field_text(f, "rule", mt_compress_rule_name((mt_compress_rule)r));
}

static void describe_compress(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    size_t n = 0;
    for (unsigned rules = p->workload.memory.compress; rules; rules >>= 1) n += rules & 1;
    mti_field_list(f, "rules", describe_rule, p, n, 0);
    mti_field_object(f, "in_vain", describe_count, &p->measured.memory_stats.compress.in_vain);
}

/* Without data no overflow of a gradient can be seen. */
static void describe_scaler(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    const mt_scaler_state *s = &p->measured.memory_stats.scaler;
    bool seen = mt_device_has_data(p->device);
    mti_field_real(f, "scale", s->scale);
    mti_field_int(mti_null_unless(f, seen), "steps", s->steps);
    mti_field_int(mti_null_unless(f, seen), "skipped", s->skipped);
    mti_field_bool(mti_null_unless(f, seen), "second_skipped", p->measured.steady.skipped);
}

DESCRIBE(describe_casts, mti_memory_stats, KEY_AS("copies", cast_copies),
         KEY_AS("bytes", cast_bytes), KEY(duplicates), KEY(duplicate_bytes));

static void describe_memory(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    const mti_memory_options *o = &p->workload.memory;
    const mti_memory_stats *s = &p->measured.memory_stats;
    mti_field_size(f, "asked", s->asked ? s->asked : mt_ledger_bytes(p->measured.ledger));
    mti_field_object(mti_null_unless(f, o->checkpoint), "checkpoint", describe_checkpoint, p);
    mti_field_text(mti_null_unless(f, o->recompute), "recompute_modules",
                   mti_modules_text(&mti_recomputed, o->recompute, (char[MTI_MODULES_TEXT]){0}));
    mti_field_object(mti_null_unless(f, o->offload), "offload", describe_offload, p);
    mti_field_object(mti_null_unless(f, o->compress), "compress", describe_compress, p);
    mti_field_text(mti_null_unless(f, o->amp), "amp", mt_dtype_name(o->amp_dtype));
    mti_field_object(f, "casts", describe_casts, s);
    mti_field_object(mti_null_unless(f, o->loss_scale != 0), "loss_scale", describe_scaler, p);
    KEYS(f, mti_memory_options, o, KEY_AS("master_weights", master), KEY(f32_gradients),
         KEY(step_in_backward), KEY_OR_NULL(lora_rank),
         KEY_OR_NULL_AS("lora_targets", lora_targets.text));
    mti_field_real(mti_null_unless(f, o->lora_rank), "lora_dropout", o->lora_dropout);
    KEYS(f, mti_memory_options, o, KEY(f32_adapters), KEY(lora_on_weights), KEY(qlora));
    mti_field_name(mti_null_unless(f, o->qlora), "codes", &mti_codes_names, (int)o->codes);
    KEYS(f, mti_memory_options, o, KEY(qlora_double), KEY(codes_file));
}

/* ---- the whole ---- */

static void describe_parallel(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    const mt_parallel *h = &p->workload.parallel;
    const mti_measurement *m = &p->measured;
    const mti_shard_policy policy = mti_shard_policy_of(h);
    char reshard[32];
    mti_describe_place(f, &p->workload);
    KEYS(f, mti_shard_policy, &policy, KEY(f32_shards), KEY(f32_reduce), KEY(keep_root),
         KEY_CHOICE(gather, &mti_gather_units), KEY(keep_last), KEY(group_ends), KEY(reduce_last));
    mti_field_text(f, "reshard", mti_reshard_text(h->reshard, reshard, sizeof reshard));
    mti_field_range(f, "replicas", h->replicas ? h->replicas : 1, 1, INT_MAX);
    mti_field_range(f, "rs_buffers", h->reduce_inputs ? h->reduce_inputs : 1, 1, INT_MAX);
    mti_field_name(f, "buckets", &mti_bucket_forms, (int)h->buckets);
    mti_field_size(mti_null_unless(f, h->buckets), "bucket_bytes",
                   h->bucket_bytes ? h->bucket_bytes : MTI_BUCKET_BYTES);
    KEYS(f, mt_parallel, h, KEY_OR_NULL(reduce_bucket), KEY_OR_NULL(sub_group), KEY(host_shards));
    KEYS(f, mti_measurement, m, KEY(layers), KEY(in_flight), KEY_AS("gradients", grad_bytes),
         KEY_AS("optimizer", optimizer_bytes));
}

static void describe_granules(mti_fields *f, const void *options)
{
    const mti_device_options *o = options;
    mti_field_size(f, "small", o->granule ? o->granule : MTI_SMALL_GRANULE);
    mti_field_size(f, "large", o->granule ? o->granule : MTI_LARGE_GRANULE);
    mti_field_bool(f, "reclaim", o->reclaim);
}

/* What the options asked for, and the events. */
static void describe_head(mti_fields *f, const mti_profile_object *o)
{
    const mti_profile_result *p = o->profile;
    const mti_device_options *d = &p->workload.device;
    const mti_timeline *t = &p->measured.timeline;
    mti_field_schema(f, "memtape.profile/1");
    mti_field_object(f, "model", mti_describe_model, &p->workload);
    mti_field_text(f, "device", p->device ? mt_device_kind(p->device) : NULL);
    KEYS(f, mti_device_options, d, KEY_OR_NULL(capacity));
    mti_field_object(mti_null_unless(f, d->expandable), "expandable_segments", describe_granules,
                     d);
    KEYS(f, mti_device_options, d, KEY(gemm_workspace), KEY_OR_NULL_AS("scratch", scratch_of));
    mti_field_object(mti_null_unless(f, p->workload.ranked), "parallel", describe_parallel, p);
    mti_field_list(mti_null_unless(f, o->whole), "timeline", mti_describe_event, t->events.at,
                   t->events.n, sizeof *t->events.at);
}

static void describe_routing(mti_fields *f, const void *profile)
{
    const mti_profile_result *p = profile;
    const mti_routed *r = &p->routed;
    mti_field_text(f, "given", p->workload.routing ? p->workload.routing : "balanced");
    KEYS(f, mti_routed, r, KEY_OR_NULL(balanced), KEY_OR_NULL(worst), KEY_OR_NULL(rows));
}

DESCRIBE(describe_params, mti_measurement, KEY_AS("count", n_params), KEY_AS("bytes", param_bytes));

void mti_describe_profile(mti_fields *f, const void *at)
{
    const mti_profile_object *o = at;
    const mti_profile_result *p = o->profile;
    const mti_measurement *m = &p->measured;
    describe_head(f, o);
    mti_field_object(f, "params", describe_params, m);
    KEYS(f, mti_measurement, m, KEY(optimizer_host), KEY_AS("parameters_host", param_host));
    mti_field_object(f, "saved", describe_saved, m->ledger);
    mti_field_object(f, "growth", describe_growth, &m->growth);
    const bool routed = p->workload.config.experts && !mt_device_has_data(p->device);
    mti_field_object(mti_null_unless(f, routed), "routing", describe_routing, p);
    mti_field_object(f, "memory_options", describe_memory, p);
    mti_field_budget(f, &p->budget, p->budget.plan ? mti_highest_phase(m, NULL)->peak : 0, false);
    describe_phases(f, &m->phases);
    mti_field_object(f, "steady", describe_second_step, m);
    mti_field_object(f, "left", describe_left, &p->left);
    mti_field_object(mti_null_unless(f, p->infers), "inference", describe_inference, p);
    mti_field_object(f, "peak", mti_describe_peak, m);
    mti_field_object(mti_null_unless(f, p->outside.n), "outside", mti_describe_outside,
                     &p->outside);
    mti_field_formula(f, &p->formula);
    mti_field_object(f, "flops", mti_describe_flops, &m->flops);
    mti_field_null(f, "out_of_memory");
}

void mti_describe_refused(mti_fields *f, const void *at)
{
    const mti_profile_object *o = at;
    describe_head(f, o);
    mti_field_object(f, "out_of_memory", mti_describe_refusal, o);
}
