/* profile_json.c: the object that docs/profile-json.md describes, key by key. */
#include "cli/profile.h"
#include "nn/model.h"

static json_t *shape_json(int rank, const int64_t *shape)
{
    json_t *array = json_array();
    for (int d = 0; d < rank; d++) mti_json_push(array, json_integer(shape[d]));
    return array;
}

json_t *mti_model_json(const mti_options *o)
{
    static const char *const optimizers[] = {"none", "sgd", "adamw"};
    mt_model_config resolved = o->config;
    mt_model_config_resolve(&o->config, &resolved); /* checked when the options were read */
    const mt_model_config *c = &resolved;
    bool acts = c->kind != MT_MODEL_ATTENTION && c->mlp == MT_MLP_PLAIN;
    bool whole = mti_is_whole(c->kind), attends = c->kind != MT_MODEL_MLP;
    bool feeds = c->kind != MT_MODEL_ATTENTION, norms = whole || c->kind == MT_MODEL_BLOCK;
    json_t *j = json_object();
    mti_json_put_text(j, "kind", mt_model_kind_name(c->kind));
    mti_json_put_text(j, "preset", o->preset);
    mti_json_put_int(j, "batch", (uint64_t)o->batch);
    mti_json_put_int(j, "seq", (uint64_t)o->seq);
    mti_json_put_int(j, "hidden", (uint64_t)c->hidden);
    mti_json_put(j, "heads", attends ? json_integer(c->heads) : json_null());
    mti_json_put(j, "kv_heads", attends ? json_integer(c->kv_heads) : json_null());
    mti_json_put(j, "layers", whole ? json_integer(c->layers) : json_null());
    mti_json_put(j, "vocab", whole ? json_integer(c->vocab) : json_null());
    mti_json_put(j, "context", whole ? json_integer(c->context) : json_null());
    mti_json_put(j, "ffn", feeds ? json_integer(c->ffn) : json_null());
    mti_json_put_text(j, "mlp", feeds ? mt_mlp_kind_name(c->mlp) : NULL);
    mti_json_put_text(j, "act", acts ? mt_act_name(c->act) : NULL);
    mti_json_put(j, "inplace", acts ? json_boolean(c->inplace) : json_null());
    mti_json_put_text(j, "norm", norms ? mt_norm_place_name(c->norm) : NULL);
    mti_json_put_text(j, "norm_kind", norms ? mt_norm_kind_name(c->norm_kind) : NULL);
    mti_json_put(j, "dropout", json_real(c->dropout));
    mti_json_put_text(j, "attention", attends ? mt_attention_form_name(c->attention) : NULL);
    mti_json_put(j, "causal", attends ? json_boolean(c->causal) : json_null());
    mti_json_put_text(j, "dtype", mt_dtype_name(c->dtype));
    mti_json_put_text(j, "optimizer", optimizers[o->optimizer]);
    mti_json_put_int(j, "seed", (uint64_t)o->seed);
    return j;
}

/* ---- saved tensors ---- */

static json_t *saver_json(const mt_saver *s)
{
    json_t *j = json_object();
    mti_json_put_text(j, "module", s->module);
    mti_json_put_text(j, "op", s->op);
    mti_json_put_text(j, "role", mti_role_name(s->role));
    mti_json_put_text(j, "name", s->argument);
    return j;
}

static json_t *freed_json(const mt_ledger_entry *e)
{
    if (!e->freed || !*e->freed_after_op) return json_null();
    json_t *j = json_object();
    mti_json_put_text(j, "module", e->freed_after_module);
    mti_json_put_text(j, "op", e->freed_after_op);
    return j;
}

static json_t *entry_json(const mt_ledger *ledger, size_t i)
{
    mt_ledger_entry e;
    if (mt_ledger_get(ledger, i, &e) != MT_OK) return NULL;
    json_t *j = json_object(), *also = json_array();
    mti_json_put_int(j, "storage", e.storage);
    mti_json_put_int(j, "bytes", e.bytes);
    mti_json_put_int(j, "allocated", e.allocated);
    mti_json_put(j, "shape", shape_json(e.saver.rank, e.saver.shape));
    mti_json_put_text(j, "dtype", mt_dtype_name(e.saver.dtype));
    mti_json_put_text(j, "module", e.saver.module);
    mti_json_put_text(j, "op", e.saver.op);
    mti_json_put_text(j, "role", mti_role_name(e.saver.role));
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
    size_t n = mt_ledger_count(ledger);
    for (size_t i = 0; i < n; i++) mti_json_push(tensors, entry_json(ledger, i));
    mti_json_put_int(j, "bytes", mt_ledger_bytes(ledger));
    mti_json_put_int(j, "allocated", mt_ledger_allocated(ledger));
    mti_json_put_int(j, "storages", n);
    mti_json_put(j, "tensors", tensors);
    return j;
}

/* ---- the rest ---- */

static json_t *growth_json(const mti_growth *g)
{
    json_t *j = json_object();
    mti_json_put(j, "measured", json_integer(g->measured));
    mti_json_put(j, "saved", json_integer(g->saved));
    mti_json_put(j, "before", json_integer(g->before));
    mti_json_put(j, "rounding", json_integer(g->rounding));
    mti_json_put(j, "output", json_integer(g->output));
    mti_json_put(j, "workspace", json_integer(g->workspace));
    mti_json_put(j, "residual", json_integer(g->residual));
    return j;
}

static json_t *phase_json(const mti_phase *p)
{
    json_t *j = json_object();
    mti_json_put_text(j, "name", p->name);
    mti_json_put_int(j, "allocated", p->allocated);
    mti_json_put_int(j, "peak", p->peak);
    mti_json_put_int(j, "reserved", p->reserved);
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

json_t *mti_steady_json(const mti_steady *s)
{
    json_t *j = json_object();
    mti_json_put_int(j, "peak", s->peak);
    mti_json_put_int(j, "reserved", s->reserved);
    mti_json_put(j, "by_category", mti_categories_json(s->by_category));
    return j;
}

json_t *mti_formula_json(const mti_formula *f)
{
    if (!f->known) return json_null();
    json_t *j = json_object(), *terms = json_array(), *residual = json_array();
    mti_json_put(j, "bytes", json_integer(f->bytes));
    mti_json_put_text(j, "text", f->text);
    for (int i = 0; i < f->n_terms; i++) {
        json_t *term = json_object();
        mti_json_put_text(term, "text", f->terms[i].text);
        mti_json_put_text(term, "what", f->terms[i].what);
        mti_json_put(term, "bytes", json_integer(f->terms[i].bytes));
        mti_json_push(terms, term);
    }
    mti_json_put(j, "terms", terms);
    for (int i = 0; i < f->n_residual; i++) {
        json_t *term = json_object();
        mti_json_put_text(term, "term", f->residual[i].text);
        mti_json_put(term, "bytes", json_integer(f->residual[i].bytes));
        mti_json_push(residual, term);
    }
    mti_json_put(j, "residual", residual);
    mti_json_put(j, "unexplained", json_integer(f->unexplained));
    return j;
}

/* What was asked for. */
static void put_head(json_t *j, const mti_profile_data *p)
{
    const mti_options *o = p->options;
    mti_json_put_text(j, "schema", "memtape.profile/1");
    mti_json_put(j, "model", mti_model_json(o));
    mti_json_put_text(j, "device", mt_device_kind(p->device));
    mti_json_put(j, "capacity", o->capacity ? json_integer(o->capacity) : json_null());
    mti_json_put(j, "gemm_workspace", json_integer(o->gemm_workspace));
    mti_json_put_text(j, "scratch", o->scratch_of_cpu ? "cpu" : NULL);
}

json_t *mti_profile_json(const mti_profile_data *p)
{
    const mti_measurement *m = &p->measured;
    json_t *j = json_object(), *params = json_object(), *steady = mti_steady_json(&m->steady);
    json_t *flops = json_object();
    put_head(j, p);
    mti_json_put_int(params, "count", m->n_params);
    mti_json_put_int(params, "bytes", m->param_bytes);
    mti_json_put(j, "params", params);
    mti_json_put(j, "saved", saved_json(m->ledger));
    mti_json_put(j, "growth", growth_json(&m->growth));
    mti_json_put(j, "spared", mti_spent_json(p));
    mti_json_put(j, "budget",
                 p->budgeted.plan
                     ? mti_budgeted_json(&p->budgeted, mti_highest_phase(m, NULL)->peak)
                     : json_null());
    mti_json_put(j, "phases", phases_json(&m->phases));
    mti_json_put(steady, "phases", phases_json(&m->steady.phases));
    mti_json_put_int(steady, "event", m->timeline.steady);
    mti_json_put(j, "steady", steady);
    mti_json_put(j, "peak", mti_peak_json(m));
    mti_json_put(j, "timeline", mti_timeline_json(p));
    mti_json_put(j, "formula", mti_formula_json(&p->formula));
    mti_json_put_int(flops, "forward", m->flops.forward);
    mti_json_put_int(flops, "backward", m->flops.backward);
    mti_json_put_int(flops, "recompute", m->flops.recompute);
    mti_json_put(j, "flops", flops);
    mti_json_put(j, "out_of_memory", json_null());
    return j;
}

json_t *mti_profile_refused_json(const mti_profile_data *p, size_t refused)
{
    json_t *j = json_object();
    put_head(j, p);
    mti_json_put(j, "out_of_memory", mti_refusal_json(p, refused));
    mti_json_put(j, "timeline", mti_timeline_json(p));
    return j;
}
