/* plan_json.c: the object that docs/plan-json.md describes, key by key. */
#include "report/results.h"

static void describe_row(mti_fields *f, const void *row)
{
    const mt_plan_row *r = row;
    mti_field_text(f, "text", r->text);
    mti_field_int(f, "amount", r->amount);
}

static void describe_comparison(mti_fields *f, const void *comparison)
{
    const mti_comparison *c = comparison;
    const mt_plan_formula *m = &c->formula;
    mti_field_text(f, "name", m->name);
    mti_field_text(f, "unit", m->unit);
    mti_field_text(f, "text", m->text);
    mti_field_text(f, "source", m->source);
    mti_field_int(f, "value", m->value);
    mti_field_list(f, "rows", describe_row, m->rows, (size_t)m->n_rows, sizeof *m->rows);
    mti_field_int(f, "expected", m->expected);
    mti_field_int(f, "measured", c->measured);
    mti_field_int(f, "unexplained", c->unexplained);
}

static void describe_regime(mti_fields *f, const void *plan)
{
    const mt_plan_regime *r = mt_plan_regime_at(f->i);
    const mti_comparison *count = mti_plan_find(plan, "parameters");
    double n = count ? (double)count->measured : 0;
    mti_field_text(f, "name", r->name);
    mti_field_text(mti_null_unless(f, r->options), "options", r->options);
    mti_field_bool(f, "formula_only", !r->options);
    mti_field_text(f, "source", r->source);
    mti_field_real(f, "parameter", r->parameter);
    mti_field_real(f, "gradient", r->gradient);
    mti_field_real(f, "optimizer", r->optimizer);
    mti_field_real(f, "bytes", (r->parameter + r->gradient + r->optimizer) * n);
}

static void describe_component(mti_fields *f, const void *component)
{
    const mt_plan_component *c = component;
    mti_field_text(f, "name", c->name);
    mti_field_text(f, "text", c->text);
    mti_field_int(f, "times", c->times);
    mti_field_int(f, "each", c->each);
    mti_field_int(f, "flops", c->times * c->each);
}

/* What the tokens take, by the formula and as measured. */
typedef struct tokens {
    const mti_plan_options *options;
    double formula, measured;
} tokens;

static void describe_training(mti_fields *f, const void *object)
{
    const tokens *t = object;
    mti_field_real(f, "tokens", t->options->tokens);
    mti_field_real(f, "formula_flops", t->formula);
    mti_field_real(f, "measured_flops", t->measured);
}

static void describe_time(mti_fields *f, const void *object)
{
    const tokens *t = object;
    mti_field_real(f, "tokens", t->options->tokens);
    mti_field_int(f, "devices", t->options->devices);
    mti_field_real(f, "flops_rate", t->options->flops_rate);
    mti_field_real(f, "utilisation", t->options->utilisation);
    mti_field_real(f, "formula_s", t->formula);
    mti_field_real(f, "measured_s", t->measured);
}

static void describe_tokens(mti_fields *f, const mti_plan_result *p)
{
    tokens flops = {.options = p->options}, seconds = flops;
    bool given = mti_plan_training(p, &flops.formula, &flops.measured);
    bool timed = mti_plan_time(p, &seconds.formula, &seconds.measured);
    mti_field_object(mti_null_unless(f, given), "training", describe_training, &flops);
    mti_field_object(mti_null_unless(f, timed), "time", describe_time, &seconds);
}

static void describe_step(mti_fields *f, const void *need)
{
    const mti_requirement *n = need;
    mti_field_size(f, "requested", n->requested);
    mti_field_size(f, "peak", n->peak);
    mti_field_size(f, "active", n->peak);
    mti_field_size(f, "reserved", n->reserved);
    mti_field_text(f, "phase", n->phase);
    mti_field_categories(f, "at_peak", n->at_peak);
}

static void describe_largest(mti_fields *f, const void *largest)
{
    const mti_largest *l = largest;
    mti_field_int(f, "largest", l->largest);
    mti_field_int(mti_null_unless(f, l->refused), "refused", l->refused);
    mti_field_int(f, "runs", l->runs);
    mti_field_size(f, "peak", l->need.peak);
    mti_field_size(f, "reserved", l->need.reserved);
}

static void describe_fits(mti_fields *f, const void *plan)
{
    const mti_plan_result *p = plan;
    mti_field_size(f, "capacity", p->workload->device.capacity);
    mti_field_object(f, "batch", describe_largest, &p->batch);
    mti_field_int(f, "batch_by_formula", p->batch.by_formula);
    mti_field_int(f, "batch_by_sum", p->batch.by_sum);
    mti_field_object(f, "seq", describe_largest, &p->seq);
}

void mti_describe_plan(mti_fields *f, const void *plan)
{
    const mti_plan_result *p = plan;
    const mti_workload *w = p->workload;
    double share = 0;
    size_t n_regimes = 0;
    bool caches = mti_plan_cache_share(p, &share);
    while (mt_plan_regime_at(n_regimes)) n_regimes++;
    mti_field_schema(f, "memtape.plan/1");
    mti_field_object(f, "model", mti_describe_model, w);
    mti_field_object(mti_null_unless(f, w->ranked), "parallel", mti_describe_place, w);
    mti_field_list(f, "formulas", describe_comparison, p->items, (size_t)p->n_items,
                   sizeof *p->items);
    mti_field_list(f, "regimes", describe_regime, p, n_regimes, 0);
    mti_field_flops(f, &p->flops);
    mti_field_list(f, "components", describe_component, p->components, (size_t)p->n_components,
                   sizeof *p->components);
    describe_tokens(f, p);
    mti_field_real(mti_null_unless(f, caches), "kv_share", share);
    mti_field_object(f, "step", describe_step, &p->need);
    mti_field_object(mti_null_unless(f, w->device.capacity), "fits", describe_fits, p);
    mti_field_budget(f, &p->budget, 0, true);
}
