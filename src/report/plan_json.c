/* plan_json.c: the object that docs/plan-json.md describes, key by key. */
#include "report/budget.h"
#include "report/figures.h"
#include "report/plan.h"
#include "report/rank.h"

static json_t *comparison_json(const mti_comparison *c)
{
    const mt_plan_formula *f = &c->formula;
    json_t *j = json_object(), *rows = json_array();
    mti_json_put_text(j, "name", f->name);
    mti_json_put_text(j, "unit", f->unit);
    mti_json_put_text(j, "text", f->text);
    mti_json_put_text(j, "source", f->source);
    mti_json_put(j, "value", json_integer(f->value));
    for (int i = 0; i < f->n_rows; i++)
        mti_json_push(rows, json_pack("{s:s,s:I}", "text", f->rows[i].text, "amount",
                                      (json_int_t)f->rows[i].amount));
    mti_json_put(j, "rows", rows);
    mti_json_put(j, "expected", json_integer(f->expected));
    mti_json_put(j, "measured", json_integer(c->measured));
    mti_json_put(j, "unexplained", json_integer(c->unexplained));
    return j;
}

static json_t *regimes_json(const mti_plan_result *p)
{
    json_t *array = json_array();
    const mt_plan_regime *r;
    double n = (double)mti_plan_find(p, "parameters")->measured;
    for (size_t i = 0; (r = mt_plan_regime_at(i)); i++)
        mti_json_push(array, json_pack("{s:s,s:s?,s:b,s:s,s:f,s:f,s:f,s:f}", "name", r->name,
                                       "options", r->options, "formula_only", !r->options, "source",
                                       r->source, "parameter", r->parameter, "gradient",
                                       r->gradient, "optimizer", r->optimizer, "bytes",
                                       (r->parameter + r->gradient + r->optimizer) * n));
    return array;
}

static json_t *components_json(const mti_plan_result *p)
{
    json_t *array = json_array();
    for (int i = 0; i < p->n_components; i++) {
        const mt_plan_component *c = &p->components[i];
        mti_json_push(array, json_pack("{s:s,s:s,s:I,s:I,s:I}", "name", c->name, "text", c->text,
                                       "times", (json_int_t)c->times, "each", (json_int_t)c->each,
                                       "flops", (json_int_t)(c->times * c->each)));
    }
    return array;
}

static json_t *training_json(const mti_plan_result *p)
{
    double formula, counted;
    if (!mti_plan_training(p, &formula, &counted)) return json_null();
    return json_pack("{s:f,s:f,s:f}", "tokens", p->options->tokens, "formula_flops", formula,
                     "measured_flops", counted);
}

static json_t *time_json(const mti_plan_result *p)
{
    const mti_plan_options *o = p->options;
    double formula_s, measured_s;
    if (!mti_plan_time(p, &formula_s, &measured_s)) return json_null();
    return json_pack("{s:f,s:I,s:f,s:f,s:f,s:f}", "tokens", o->tokens, "devices",
                     (json_int_t)o->devices, "flops_rate", o->flops_rate, "utilisation",
                     o->utilisation, "formula_s", formula_s, "measured_s", measured_s);
}

static json_t *need_json(const mti_need *need)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:s,s:o}", "requested", (json_int_t)need->requested, "peak",
                     (json_int_t)need->peak, "active", (json_int_t)need->peak, "reserved",
                     (json_int_t)need->reserved, "phase", need->phase, "at_peak",
                     mti_categories_json(need->at_peak));
}

static json_t *fit_json(const mti_largest *fit)
{
    json_t *j = json_object();
    mti_json_put(j, "largest", json_integer(fit->largest));
    mti_json_put(j, "refused", fit->refused ? json_integer(fit->refused) : json_null());
    mti_json_put(j, "runs", json_integer(fit->runs));
    mti_json_put_int(j, "peak", fit->need.peak);
    mti_json_put_int(j, "reserved", fit->need.reserved);
    return j;
}

json_t *mti_plan_json(const mti_plan_result *p)
{
    json_t *j = json_object(), *formulas = json_array(), *fits = json_null();
    mti_json_put_text(j, "schema", "memtape.plan/1");
    mti_json_put(j, "model", mti_model_json(p->workload));
    mti_json_put(j, "parallel", mti_place_json(p->workload));
    for (int i = 0; i < p->n_items; i++) mti_json_push(formulas, comparison_json(&p->items[i]));
    mti_json_put(j, "formulas", formulas);
    mti_json_put(j, "regimes", regimes_json(p));
    mti_json_put(j, "flops", mti_flops_json(&p->flops));
    mti_json_put(j, "components", components_json(p));
    mti_json_put(j, "training", training_json(p));
    mti_json_put(j, "time", time_json(p));
    double share;
    mti_json_put(j, "kv_share", mti_plan_cache_share(p, &share) ? json_real(share) : json_null());
    mti_json_put(j, "step", need_json(&p->need));
    if (p->workload->device.capacity) {
        fits = json_object();
        mti_json_put_int(fits, "capacity", p->workload->device.capacity);
        mti_json_put(fits, "batch", fit_json(&p->batch));
        mti_json_put(fits, "batch_by_formula", json_integer(p->batch.by_formula));
        mti_json_put(fits, "batch_by_sum", json_integer(p->batch.by_sum));
        mti_json_put(fits, "seq", fit_json(&p->seq));
    }
    mti_json_put(j, "fits", fits);
    mti_json_put(j, "budget", p->budget.plan ? mti_budget_json(&p->budget, 0) : json_null());
    return j;
}
