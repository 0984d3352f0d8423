/* fit_json.c: the JSON of docs/fit.md. */
#include "report/fit.h"

static json_t *gpu_json(const mt_gpu *g)
{
    json_t *j = json_object();
    mti_json_put_text(j, "name", g->name);
    mti_json_put_int(j, "memory", g->memory);
    mti_json_put_real(j, "flops", g->flops);
    mti_json_put_real(j, "bandwidth", g->bandwidth);
    mti_json_put_real(j, "link", g->link);
    mti_json_put_real(j, "network", g->network);
    mti_json_put_real(j, "host", g->host);
    mti_json_put_int(j, "in_a_node", (uint64_t)g->in_a_node);
    mti_json_put_text(j, "source", g->source);
    return j;
}

static json_t *time_json(const mt_fit_time *t)
{
    json_t *j = json_object();
    mti_json_put_real(j, "products", t->products);
    mti_json_put_real(j, "memory", t->memory);
    mti_json_put_real(j, "layers", t->layers);
    mti_json_put_real(j, "context", t->context);
    mti_json_put_real(j, "stages", t->stages);
    mti_json_put_real(j, "bubble", t->bubble);
    mti_json_put_real(j, "data", t->data);
    mti_json_put_real(j, "host", t->host);
    mti_json_put_real(j, "optimizer", t->step);
    mti_json_put_real(j, "total", t->total);
    return j;
}

static json_t *categories_json(const mt_fit_setup *s)
{
    json_t *j = json_object();
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        mti_json_put_int(j, mt_category_name((mt_category)c), s->by_category[c]);
    return j;
}

static json_t *setup_json(const mti_fit_report *f, const mt_fit_setup *s)
{
    const mt_parallel *h = &s->parallel;
    json_t *j = json_object();
    mti_json_put_int(j, "tp", (uint64_t)h->tensor);
    mti_json_put(j, "sp", json_boolean(h->sequence));
    mti_json_put_int(j, "pp", (uint64_t)h->pipeline);
    mti_json_put_int(j, "interleave", (uint64_t)h->interleave);
    mti_json_put_int(j, "cp", (uint64_t)h->context);
    mti_json_put_int(j, "dp", (uint64_t)h->data);
    mti_json_put_int(j, "zero", (uint64_t)h->zero);
    mti_json_put_int(j, "microbatches", (uint64_t)h->microbatches);
    mti_json_put_int(j, "microbatch", (uint64_t)s->microbatch);
    mti_json_put_text(j, "checkpoint", s->checkpoint);
    mti_json_put_text(j, "offload", s->offload);
    mti_json_put(j, "fits", json_boolean(s->fits));
    mti_json_put_int(j, "stage", (uint64_t)h->stage);
    mti_json_put_int(j, "peak", s->peak);
    mti_json_put_int(j, "reserved", s->reserved);
    const char *besides = mti_fit_besides(s);
    mti_json_put(j, "besides", besides ? json_string(besides) : json_null());
    mti_json_put(j, "by_category", categories_json(s));
    mti_json_put_int(j, "states", s->states);
    mti_json_put(j, "time", time_json(&s->time));
    mti_json_put_real(j, "tokens_per_second", s->tokens_per_second);
    mti_json_put_real(j, "mfu", s->mfu);
    mti_json_put(j, "dollars", f->price > 0 ? json_real(mti_fit_cost(f, s)) : json_null());
    mti_json_put(j, "days", f->tokens > 0 ? json_real(mti_fit_seconds(f, s) / 86400) : json_null());
    return j;
}

/* What would fit, of what was asked for with one change. */
static json_t *remedies_json(const mti_fit_report *f)
{
    json_t *rows = json_array();
    for (int i = 0; i < f->remedies->n; i++) {
        json_t *row = setup_json(f, &f->remedies->at[i].setup);
        mti_json_put_text(row, "change", f->remedies->at[i].change);
        mti_json_push(rows, row);
    }
    return rows;
}

json_t *mti_fit_json(const mti_fit_report *f)
{
    const mt_fit_result *r = f->result;
    json_t *j = json_object(), *setups = json_array(), *skipped = json_object();
    mti_json_put_text(j, "schema", "memtape.fit/1");
    mti_json_put_text(j, "model", f->workload->name);
    mti_json_put(j, "gpu", gpu_json(&r->gpu));
    mti_json_put_int(j, "gpus", (uint64_t)r->gpus);
    mti_json_put_int(j, "batch", (uint64_t)r->batch);
    mti_json_put_int(j, "seq", (uint64_t)r->seq);
    mti_json_put_int(j, "capacity", r->capacity);
    mti_json_put_int(j, "kept_aside", r->gpu.memory - r->capacity);
    mti_json_put_real(j, "utilisation", f->utilisation);
    mti_json_put_int(j, "fitting", r->n_fitting);
    mti_json_put_text(j, "command", f->command);
    for (size_t i = 0; i < r->n; i++) mti_json_push(setups, setup_json(f, &r->setups[i]));
    mti_json_put(j, "setups", setups);
    mti_json_put(j, "remedies", remedies_json(f));
    mti_json_put_int(j, "profiles", (uint64_t)r->n_profiles);
    mti_json_put_int(skipped, "larger", (uint64_t)r->n_larger);
    mti_json_put_int(skipped, "states", (uint64_t)r->n_states);
    mti_json_put_int(skipped, "slower", (uint64_t)r->n_slower);
    mti_json_put(j, "not_measured", skipped);
    mti_json_put_real(j, "search_seconds", r->seconds);
    return j;
}
