/* fit_json.c: the JSON of docs/fit.md. */
#include "report/keys.h"
#include "report/results.h"

DESCRIBE(describe_gpu, mt_gpu, KEY(name), KEY(memory), KEY(flops), KEY(bandwidth), KEY(link),
         KEY(network), KEY(host), KEY(in_a_node), KEY(host_memory), KEY(f16_only), KEY(source));
DESCRIBE(describe_time, mt_fit_time, KEY(products), KEY(memory), KEY(layers), KEY(context),
         KEY(experts), KEY(stages), KEY(bubble), KEY(data), KEY(host), KEY_AS("optimizer", step),
         KEY(total));

static void describe_setup(mti_fields *f, const mti_fit_report *report, const mt_fit_setup *s)
{
    const char *besides = mti_fit_besides(s);
    mti_describe_division(f, &s->parallel);
    KEYS(f, mt_fit_setup, s, KEY(microbatch), KEY(checkpoint), KEY(offload), KEY(fits), KEY(peak),
         KEY(reserved));
    mti_field_text(mti_null_unless(f, besides), "besides", besides);
    KEYS(f, mt_fit_setup, s, KEY(by_category), KEY(states), KEY(host), KEY(fits_host),
         KEY_OBJECT(time, describe_time), KEY(tokens_per_second), KEY(mfu));
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

DESCRIBE(describe_skipped, mt_fit_result, KEY_AS("larger", n_larger), KEY_AS("states", n_states),
         KEY_AS("slower", n_slower));

static void describe_other(mti_fields *f, const void *other)
{
    const mti_fit_other *o = other;
    KEYS(f, mti_fit_other, o, KEY(recipe), KEY_AS("peak", setup.peak),
         KEY_AS("reserved", setup.reserved), KEY_AS("fits", setup.fits));
    mti_field_bool(f, "any_fits", o->setup.fits || o->any);
}

static void describe_trained(mti_fields *f, const void *report)
{
    const mti_fit_published none = {.setup = {.checkpoint = "none", .offload = "none"}};
    const mti_fit_report *r = report;
    const mti_fit_published *p = r->trained && r->trained->source ? r->trained : &none;
    KEYS(f, mti_fit_published, p, KEY(source), KEY(gpus), KEY(seq));
    mti_field_text(mti_null_unless(f, p->recompute), "recompute_modules",
                   mti_modules_text(&mti_recomputed, p->recompute, (char[MTI_MODULES_TEXT]){0}));
    describe_setup(f, r, &p->setup);
}

static void describe_most(mti_fields *f, const void *most)
{
    const mti_fit_most *m = most;
    static const char *const what[] = {"seq", "batch"};
    mti_field_one_of(f, "of", what[m->in_batches], what, 2);
    KEYS(f, mti_fit_most, m, KEY_AS("fits", largest), KEY_OR_NULL(refused));
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
    KEYS(f, mt_fit_result, r, KEY_OBJECT(gpu, describe_gpu), KEY(gpus), KEY(batch), KEY(seq),
         KEY(capacity));
    mti_field_size(f, "kept_aside", r->gpu.memory - r->capacity);
    mti_field_object(mti_null_unless(f, p->outside.n), "outside", mti_describe_outside,
                     &p->outside);
    mti_field_size(f, "host_memory", r->host_memory);
    mti_field_text(f, "stack", stack);
    mti_field_text(mti_null_unless(f, *p->workload->recipe), "recipe", p->workload->recipe);
    mti_field_text(mti_null_unless(f, *p->workload->recipe), "recipe_options",
                   p->workload->recipe_options);
    KEYS(f, mti_memory_options, &p->workload->memory, KEY_OR_NULL(lora_rank));
    mti_field_list(f, "left_out", mti_describe_left_out, p->workload->left_out,
                   (size_t)p->workload->n_left_out, sizeof *p->workload->left_out);
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
