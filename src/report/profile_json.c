/* profile_json.c: the object that docs/profile-json.md describes, key by key. */
#include "memtrack/range.h"
#include "report/budget.h"
#include "report/figures.h"
#include "report/profile.h"
#include "report/rank.h"

static json_t *shape_json(int rank, const int64_t *shape)
{
    json_t *array = json_array();
    for (int d = 0; d < rank; d++) mti_json_push(array, json_integer(shape[d]));
    return array;
}

/* ---- saved tensors ---- */

static json_t *saver_json(const mt_saver *s)
{
    return json_pack("{s:s,s:s,s:s,s:s}", "module", s->module, "op", s->op, "role",
                     mt_save_role_name(s->role), "name", s->argument);
}

static json_t *freed_json(const mt_ledger_entry *e)
{
    if (!e->freed || !*e->freed_after_op) return json_null();
    return json_pack("{s:s,s:s}", "module", e->freed_after_module, "op", e->freed_after_op);
}

static json_t *entry_json(const mt_ledger *ledger, size_t i)
{
    mt_ledger_entry e;
    if (mt_ledger_get(ledger, i, &e) != MT_OK) return NULL;
    json_t *j = json_object(), *also = json_array();
    mti_json_put_int(j, "storage", e.storage);
    mti_json_put_int(j, "bytes", e.bytes);
    mti_json_put_int(j, "rounded", e.rounded);
    mti_json_put_int(j, "allocated", e.allocated);
    mti_json_put(j, "shape", shape_json(e.saver.rank, e.saver.shape));
    mti_json_put_text(j, "dtype", mt_dtype_name(e.saver.dtype));
    mti_json_put_text(j, "module", e.saver.module);
    mti_json_put_text(j, "op", e.saver.op);
    mti_json_put_text(j, "role", mt_save_role_name(e.saver.role));
    mti_json_put_text(j, "name", e.saver.argument);
    for (size_t k = 1; k < e.n_savers; k++) {
        mt_saver other;
        bool ok = mt_ledger_get_saver(ledger, i, k, &other) == MT_OK;
        mti_json_push(also, ok ? saver_json(&other) : NULL);
    }
    mti_json_put(j, "also", also);
    mti_json_put(j, "freed_after", freed_json(&e));
    return j;
}

static json_t *saved_json(const mt_ledger *ledger)
{
    json_t *j = json_object(), *tensors = json_array();
    size_t n = mt_ledger_count(ledger), rounded = 0;
    mt_ledger_entry e;
    for (size_t i = 0; i < n; i++) {
        mti_json_push(tensors, entry_json(ledger, i));
        if (mt_ledger_get(ledger, i, &e) == MT_OK) rounded += e.rounded;
    }
    mti_json_put_int(j, "bytes", mt_ledger_bytes(ledger));
    mti_json_put_int(j, "rounded", rounded);
    mti_json_put_int(j, "allocated", mt_ledger_allocated(ledger));
    mti_json_put_int(j, "storages", n);
    mti_json_put(j, "tensors", tensors);
    return j;
}

/* ---- the other sections ---- */

static json_t *growth_json(const mti_growth *g)
{
    json_t *j = json_object();
    mti_json_put(j, "measured", json_integer(g->measured));
    mti_json_put(j, "saved", json_integer(g->saved));
    mti_json_put(j, "before", json_integer(g->before));
    mti_json_put(j, "rounding", json_integer(g->rounding));
    mti_json_put(j, "rests", json_integer(g->rests));
    mti_json_put(j, "output", json_integer(g->output));
    mti_json_put(j, "input", json_integer(g->input));
    mti_json_put(j, "workspace", json_integer(g->workspace));
    mti_json_put(j, "gathered", json_integer(g->gathered));
    mti_json_put(j, "residual", json_integer(g->residual));
    return j;
}

static json_t *phase_json(const mti_phase *p)
{
    json_t *j = json_object();
    mti_json_put_text(j, "name", p->name);
    mti_json_put_int(j, "requested", p->requested);
    mti_json_put_int(j, "requested_peak", p->requested_peak);
    mti_json_put_int(j, "allocated", p->allocated);
    mti_json_put_int(j, "peak", p->peak);
    mti_json_put_int(j, "active", p->allocated);
    mti_json_put_int(j, "active_peak", p->peak);
    mti_json_put_int(j, "reserved", p->reserved);
    mti_json_put_int(j, "reserved_peak", p->reserved_peak);
    mti_json_put_real(j, "seconds", p->seconds);
    mti_json_put(j, "by_category", mti_categories_json(p->by_category));
    mti_json_put(j, "at_peak", mti_categories_json(p->at_peak));
    return j;
}

static json_t *phases_json(const mti_phases *phases)
{
    json_t *j = json_array();
    for (int i = 0; i < phases->n; i++) mti_json_push(j, phase_json(&phases->at[i]));
    return j;
}

static json_t *left_json(const mti_left *left)
{
    return json_pack("{s:I,s:I}", "freed", (json_int_t)left->freed, "given_back",
                     (json_int_t)left->given_back);
}

static json_t *inference_json(const mti_profile_result *p)
{
    const mti_measurement *m = &p->inference;
    if (!p->infers) return json_null();
    json_t *j = json_object();
    mti_json_put(j, "phases", phases_json(&m->phases));
    mti_json_put_int(j, "saved", mt_ledger_bytes(m->ledger));
    mti_json_put_int(j, "flops", m->flops.forward);
    mti_json_put(j, "left", left_json(&p->left_by_inference));
    return j;
}

/* Null: segments have sizes of their own. */
static json_t *expandable_json(const mti_device_options *o)
{
    if (!o->expandable) return json_null();
    size_t small = o->granule ? o->granule : MTI_SMALL_GRANULE;
    size_t large = o->granule ? o->granule : MTI_LARGE_GRANULE;
    return json_pack("{s:I,s:I,s:b}", "small", (json_int_t)small, "large", (json_int_t)large,
                     "reclaim", o->reclaim);
}

/* What the options asked for. */
static void put_head(json_t *j, const mti_profile_result *p)
{
    const mti_workload *w = &p->workload;
    mti_json_put_text(j, "schema", "memtape.profile/1");
    mti_json_put(j, "model", mti_model_json(w));
    mti_json_put_text(j, "device", mt_device_kind(p->device));
    mti_json_put(j, "capacity",
                 w->device.capacity ? json_integer((json_int_t)w->device.capacity) : json_null());
    mti_json_put(j, "expandable_segments", expandable_json(&w->device));
    mti_json_put_int(j, "gemm_workspace", w->device.gemm_workspace);
    mti_json_put_text(j, "scratch", w->device.scratch_of_cpu ? "cpu" : NULL);
}

json_t *mti_profile_json(const mti_profile_result *p, bool whole)
{
    const mti_measurement *m = &p->measured;
    json_t *j = json_object(), *steady = mti_steady_json(&m->steady);
    put_head(j, p);
    mti_json_put(j, "parallel", mti_parallel_json(&p->workload, m));
    mti_json_put(j, "params", mti_params_json(m->n_params, m->param_bytes));
    mti_json_put(j, "saved", saved_json(m->ledger));
    mti_json_put(j, "growth", growth_json(&m->growth));
    mti_json_put(j, "spared", mti_memory_stats_json(p));
    mti_json_put(j, "budget",
                 p->budget.plan ? mti_budget_json(&p->budget, mti_highest_phase(m, NULL)->peak)
                                : json_null());
    mti_json_put(j, "phases", phases_json(&m->phases));
    mti_json_put(steady, "phases", phases_json(&m->steady.phases));
    mti_json_put_int(steady, "event", m->timeline.steady);
    mti_json_put(j, "steady", steady);
    mti_json_put(j, "left", left_json(&p->left));
    mti_json_put(j, "inference", inference_json(p));
    mti_json_put(j, "peak", mti_peak_json(m));
    mti_json_put(j, "timeline", whole ? mti_timeline_json(&p->measured.timeline) : json_null());
    mti_json_put(j, "formula", mti_formula_json(&p->formula));
    mti_json_put(j, "flops", mti_flops_json(&m->flops));
    mti_json_put(j, "out_of_memory", json_null());
    return j;
}

json_t *mti_profile_refused_json(const mti_profile_result *p, size_t event, bool whole)
{
    json_t *j = json_object();
    put_head(j, p);
    mti_json_put(j, "parallel", mti_parallel_json(&p->workload, &p->measured));
    mti_json_put(j, "out_of_memory", mti_refusal_json(p, event));
    mti_json_put(j, "timeline", whole ? mti_timeline_json(&p->measured.timeline) : json_null());
    return j;
}
