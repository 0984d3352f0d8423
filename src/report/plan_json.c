/* plan_json.c: the object that docs/plan-json.md describes, key by key. */
#include "report/budget.h"
#include "report/figures.h"
#include "report/plan.h"

static json_t *comparison_json(const mti_comparison *c)
{
    const mt_plan_formula *f = &c->formula;
    json_t *j = json_object(), *rows = json_array();
    mti_json_put_text(j, "name", f->name);
    mti_json_put_text(j, "unit", f->unit);
    mti_json_put_text(j, "text", f->text);
    mti_json_put_text(j, "source", f->source);
    mti_json_put(j, "value", json_integer(f->value));
    for (int i = 0; i < f->n_rows; i++) {
        json_t *row = json_object();
        mti_json_put_text(row, "text", f->rows[i].text);
        mti_json_put(row, "amount", json_integer(f->rows[i].amount));
        mti_json_push(rows, row);
    }
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
    for (size_t i = 0; (r = mt_plan_regime_at(i)); i++) {
        json_t *j = json_object();
        mti_json_put_text(j, "name", r->name);
        mti_json_put_text(j, "options", r->options);
        mti_json_put_text(j, "source", r->source);
        mti_json_put(j, "parameter", json_real(r->parameter));
        mti_json_put(j, "gradient", json_real(r->gradient));
        mti_json_put(j, "optimizer", json_real(r->optimizer));
        mti_json_put(j, "bytes", json_real((r->parameter + r->gradient + r->optimizer) * n));
        mti_json_push(array, j);
    }
    return array;
}

static json_t *time_json(const mti_plan_result *p)
{
    const mti_plan_options *o = p->options;
    double formula_s, measured_s;
    if (!mti_plan_time(p, &formula_s, &measured_s)) return json_null();
    json_t *j = json_object();
    mti_json_put(j, "tokens", json_real(o->tokens));
    mti_json_put(j, "devices", json_integer(o->devices));
    mti_json_put(j, "flops_rate", json_real(o->flops_rate));
    mti_json_put(j, "utilisation", json_real(o->utilisation));
    mti_json_put(j, "formula_s", json_real(formula_s));
    mti_json_put(j, "measured_s", json_real(measured_s));
    return j;
}

static json_t *need_json(const mti_need *need)
{
    json_t *j = json_object();
    mti_json_put_int(j, "peak", need->peak);
    mti_json_put_int(j, "reserved", need->reserved);
    mti_json_put_text(j, "phase", need->phase);
    mti_json_put(j, "at_peak", mti_categories_json(need->at_peak));
    return j;
}

static json_t *fit_json(const mti_fit *fit)
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
    for (int i = 0; i < p->n_items; i++) mti_json_push(formulas, comparison_json(&p->items[i]));
    mti_json_put(j, "formulas", formulas);
    mti_json_put(j, "regimes", regimes_json(p));
    mti_json_put(j, "flops", mti_flops_json(&p->flops));
    mti_json_put(j, "time", time_json(p));
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
