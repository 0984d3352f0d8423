/* plan_json.c: the object that docs/plan-json.md describes, key by key. */
#include "report/keys.h"
#include "report/results.h"

DESCRIBE(describe_row, mt_plan_row, KEY(text), KEY(amount));

static void describe_comparison(mti_fields *f, const void *comparison)
{
    const mti_comparison *c = comparison;
    const mt_plan_formula *m = &c->formula;
    KEYS(f, mt_plan_formula, m, KEY(name), KEY(unit), KEY(text), KEY(source), KEY(value));
    mti_field_list(f, "rows", describe_row, m->rows, (size_t)m->n_rows, sizeof *m->rows);
    KEYS(f, mti_comparison, c, KEY_AS("expected", formula.expected), KEY(measured),
         KEY(unexplained));
}

static void describe_regime(mti_fields *f, const void *plan)
{
    const mt_plan_regime *r = mt_plan_regime_at(f->i);
    const mti_comparison *count = mti_plan_find(plan, "parameters");
    double n = count ? (double)count->measured : 0;
    KEYS(f, mt_plan_regime, r, KEY(name), KEY_OR_NULL(options));
    mti_field_bool(f, "formula_only", !r->options);
    KEYS(f, mt_plan_regime, r, KEY(source), KEY(parameter), KEY(gradient), KEY(optimizer));
    mti_field_real(f, "bytes", (r->parameter + r->gradient + r->optimizer) * n);
}

static void describe_component(mti_fields *f, const void *component)
{
    const mt_plan_component *c = component;
    KEYS(f, mt_plan_component, c, KEY(name), KEY(text), KEY(times), KEY(each));
    mti_field_int(f, "flops", c->times * c->each);
}

/* What the tokens take, by the formula and as measured: FLOPs, or seconds. */
typedef struct spent {
    mti_plan_options on;
    double formula, measured;
} spent;
DESCRIBE(describe_training, spent, KEY_AS("tokens", on.tokens), KEY_AS("formula_flops", formula),
         KEY_AS("measured_flops", measured));
DESCRIBE(describe_time, spent, KEY_AS("tokens", on.tokens), KEY_AS("devices", on.devices),
         KEY_AS("flops_rate", on.flops_rate), KEY_AS("utilisation", on.utilisation),
         KEY_AS("formula_s", formula), KEY_AS("measured_s", measured));

static void describe_tokens(mti_fields *f, const mti_plan_result *p)
{
    spent flops = {.on = *p->options}, seconds = flops;
    bool given = mti_plan_training(p, &flops.formula, &flops.measured);
    bool timed = mti_plan_time(p, &seconds.formula, &seconds.measured);
    mti_field_object(mti_null_unless(f, given), "training", describe_training, &flops);
    mti_field_object(mti_null_unless(f, timed), "time", describe_time, &seconds);
}

DESCRIBE(describe_step, mti_requirement, KEY(requested), KEY(peak), KEY_AS("active", peak),
         KEY(reserved), KEY(phase), KEY(at_peak));
DESCRIBE(describe_largest, mti_largest, KEY(largest), KEY_OR_NULL(refused), KEY(runs),
         KEY_AS("peak", need.peak), KEY_AS("reserved", need.reserved));

static void describe_fits(mti_fields *f, const void *plan)
{
    const mti_plan_result *p = plan;
    mti_field_size(f, "capacity", p->workload->device.capacity);
    KEYS(f, mti_plan_result, p, KEY_OBJECT(batch, describe_largest),
         KEY_AS("batch_by_formula", batch.by_formula), KEY_AS("batch_by_sum", batch.by_sum),
         KEY_OBJECT(seq, describe_largest));
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
    mti_field_object(f, "flops", mti_describe_flops, &p->flops);
    mti_field_list(f, "components", describe_component, p->components, (size_t)p->n_components,
                   sizeof *p->components);
    describe_tokens(f, p);
    mti_field_real(mti_null_unless(f, caches), "kv_share", share);
    mti_field_object(f, "step", describe_step, &p->need);
    mti_field_object(mti_null_unless(f, w->device.capacity), "fits", describe_fits, p);
    mti_field_budget(f, &p->budget, 0, true);
}
