/* fit_json.c: the JSON of docs/fit.md. */
#include "report/results.h"

static void describe_gpu(mti_fields *f, const void *gpu)
{
    const mt_gpu *g = gpu;
    mti_field_text(f, "name", g->name);
    mti_field_size(f, "memory", g->memory);
    mti_field_real(f, "flops", g->flops);
    mti_field_real(f, "bandwidth", g->bandwidth);
    mti_field_real(f, "link", g->link);
    mti_field_real(f, "network", g->network);
    mti_field_real(f, "host", g->host);
    mti_field_int(f, "in_a_node", g->in_a_node);
    mti_field_size(f, "host_memory", g->host_memory);
    mti_field_bool(f, "f16_only", g->f16_only);
    mti_field_text(f, "source", g->source);
}

static void describe_time(mti_fields *f, const void *time)
{
    const mt_fit_time *t = time;
    mti_field_real(f, "products", t->products);
    mti_field_real(f, "memory", t->memory);
    mti_field_real(f, "layers", t->layers);
    mti_field_real(f, "context", t->context);
    mti_field_real(f, "experts", t->experts);
    mti_field_real(f, "stages", t->stages);
    mti_field_real(f, "bubble", t->bubble);
    mti_field_real(f, "data", t->data);
    mti_field_real(f, "host", t->host);
    mti_field_real(f, "optimizer", t->step);
    mti_field_real(f, "total", t->total);
}

static void describe_setup(mti_fields *f, const mti_fit_report *report, const mt_fit_setup *s)
{
    const char *besides = mti_fit_besides(s);
    mti_describe_division(f, &s->parallel);
    mti_field_int(f, "microbatch", s->microbatch);
    mti_field_text(f, "checkpoint", s->checkpoint);
    mti_field_text(f, "offload", s->offload);
    mti_field_bool(f, "fits", s->fits);
    mti_field_size(f, "peak", s->peak);
    mti_field_size(f, "reserved", s->reserved);
    mti_field_text(mti_null_unless(f, besides), "besides", besides);
    mti_field_categories(f, "by_category", s->by_category);
    mti_field_size(f, "states", s->states);
    mti_field_size(f, "host", s->host);
    mti_field_bool(f, "fits_host", s->fits_host);
    mti_field_object(f, "time", describe_time, &s->time);
    mti_field_real(f, "tokens_per_second", s->tokens_per_second);
    mti_field_real(f, "mfu", s->mfu);
    mti_field_real(mti_null_unless(f, report->price > 0), "dollars", mti_fit_cost(report, s));
    mti_field_real(mti_null_unless(f, report->tokens > 0), "days",
                   mti_fit_seconds(report, s) / 86400);
}

static void describe_ith_setup(mti_fields *f, const void *report)
{
    const mti_fit_report *r = report;
    const mt_fit_setup none = {0};
    describe_setup(f, r, r->result->setups ? &r->result->setups[f->i] : &none);
}

/* What would fit, of what was asked for with one change. */
static void describe_remedy(mti_fields *f, const void *report)
{
    const mti_fit_report *r = report;
    describe_setup(f, r, &r->remedies->at[f->i].setup);
    mti_field_text(f, "change", r->remedies->at[f->i].change);
}

static void describe_skipped(mti_fields *f, const void *result)
{
    const mt_fit_result *r = result;
    mti_field_int(f, "larger", r->n_larger);
    mti_field_int(f, "states", r->n_states);
    mti_field_int(f, "slower", r->n_slower);
}

static void describe_other(mti_fields *f, const void *other)
{
    const mti_fit_other *o = other;
    mti_field_text(f, "recipe", o->recipe);
    mti_field_size(f, "peak", o->setup.peak);
    mti_field_size(f, "reserved", o->setup.reserved);
    mti_field_bool(f, "fits", o->setup.fits);
    mti_field_bool(f, "any_fits", o->setup.fits || o->any);
}

static void describe_trained(mti_fields *f, const void *report)
{
    const mti_fit_published none = {.setup = {.checkpoint = "none", .offload = "none"}};
    const mti_fit_report *r = report;
    const mti_fit_published *p = r->trained && r->trained->source ? r->trained : &none;
    mti_field_text(f, "source", p->source);
    mti_field_int(f, "gpus", p->gpus);
    mti_field_int(f, "seq", p->seq);
    mti_field_text(mti_null_unless(f, p->recompute), "recompute_modules",
                   mti_modules_text(&mti_recomputed, p->recompute, (char[MTI_MODULES_TEXT]){0}));
    describe_setup(f, r, &p->setup);
}

static void describe_most(mti_fields *f, const void *most)
{
    const mti_fit_most *m = most;
    static const char *const what[] = {"seq", "batch"};
    mti_field_one_of(f, "of", what[m->in_batches], what, 2);
    mti_field_int(f, "fits", m->largest);
    mti_field_int(mti_null_unless(f, m->refused), "refused", m->refused);
}

static void describe_reached(mti_fields *f, const void *gpu)
{
    double least = 0, most = 0;
    if (gpu) mti_gpu_reached(gpu, &least, &most);
    mti_field_real(f, "least", least);
    mti_field_real(f, "most", most);
}

void mti_describe_fit(mti_fields *f, const void *report)
{
    const mti_fit_report *p = report;
    const mt_fit_result *r = p->result;
    const mti_fit_other none = {0};
    const mti_fit_most nothing = {0};
    char stack[200] = "";
    if (p->workload) mti_stack_text(stack, sizeof stack, p->workload);
    mti_field_schema(f, "memtape.fit/1");
    mti_field_text(f, "model", p->workload->name);
    mti_field_object(f, "gpu", describe_gpu, &r->gpu);
    mti_field_int(f, "gpus", r->gpus);
    mti_field_int(f, "batch", r->batch);
    mti_field_int(f, "seq", r->seq);
    mti_field_size(f, "capacity", r->capacity);
    mti_field_size(f, "kept_aside", r->gpu.memory - r->capacity);
    mti_field_object(mti_null_unless(f, p->outside.n), "outside", mti_describe_outside,
                     &p->outside);
    mti_field_size(f, "host_memory", r->host_memory);
    mti_field_text(f, "stack", stack);
    mti_field_text(mti_null_unless(f, *p->workload->recipe), "recipe", p->workload->recipe);
    mti_field_text(mti_null_unless(f, *p->workload->recipe), "recipe_options",
                   p->workload->recipe_options);
    mti_field_object(mti_null_unless(f, p->other && p->other->recipe), "other_stack",
                     describe_other, p->other ? p->other : &none);
    mti_field_object(mti_null_unless(f, p->trained && p->trained->source), "published",
                     describe_trained, p);
    mti_field_object(mti_null_unless(f, p->most), "largest", describe_most,
                     p->most ? p->most : &nothing);
    mti_field_real(f, "utilisation", p->utilisation);
    mti_field_object(mti_null_unless(f, p->published), "reached", describe_reached,
                     &p->result->gpu);
    mti_field_size(f, "fitting", r->n_fitting);
    mti_field_text(f, "command", p->command);
    mti_field_list(f, "setups", describe_ith_setup, p, r->n, 0);
    mti_field_list(f, "remedies", describe_remedy, p, (size_t)p->remedies->n, 0);
    mti_field_int(f, "profiles", r->n_profiles);
    mti_field_object(f, "not_measured", describe_skipped, r);
    mti_field_real(f, "search_seconds", r->seconds);
}
