/* routing.c: the value of `routing`, and the file that --record-routing writes. */
#include <string.h>
#include "files/files.h"
#include "files/json_text.h"
#include "parallel/parallel.h"
#include "workload/routing.h"

#define SCHEMA "memtape.routing/1"

const mti_choice mti_routing_kinds = {"routing", MTI_NAMES("balanced", "worst", "random")};

bool mti_routing_parse(const char *text, mti_routing_kind *kind, const char **file)
{
    static const char recorded[] = "recorded=";
    int chosen = MTI_ROUTING_RECORDED;
    *file = text + strlen(recorded);
    if (strncmp(text, recorded, strlen(recorded)) != 0) {
        *file = NULL;
        for (chosen = 0; chosen < mti_routing_kinds.n; chosen++)
            if (!strcmp(text, mti_routing_kinds.names[chosen])) break;
    }
    *kind = (mti_routing_kind)chosen;
    return (*file ? **file != 0 : chosen < mti_routing_kinds.n) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "\"%.40s\" is not a routing; choose balanced, worst, random or "
                         "recorded=FILE",
                         text);
}

/* ---- the file: {"schema": .., "experts": n, "layers": [[rows of each expert], ..]} ---- */

static bool take_layers(mti_routing *r, const json_t *layers)
{
    r->layers = (int64_t)json_array_size(layers);
    if (r->experts < 1 || r->layers < 1 || r->experts > MTI_MAX_LAYERS) return false;
    int64_t *rows = r->rows = mti_calloc((size_t)(r->layers * r->experts), sizeof *rows);
    for (int64_t l = 0; rows && l < r->layers; l++) {
        const json_t *layer = json_array_get(layers, (size_t)l);
        if ((int64_t)json_array_size(layer) != r->experts) return false;
        for (int64_t e = 0; e < r->experts; e++) {
            const json_t *n = json_array_get(layer, (size_t)e);
            if (!json_is_integer(n) || json_integer_value(n) < 0) return false;
            rows[l * r->experts + e] = json_integer_value(n);
        }
    }
    return rows != NULL;
}

static bool read_rows(mti_routing *r, const char *path)
{
    size_t n;
    json_error_t error;
    char *text = mti_file_read(path, (size_t)64 << 20, &n);
    if (!text) return false;
    const uint64_t before = mti_failures();
    json_t *root = mti_json_read(text, n, &error);
    const char *schema = json_string_value(json_object_get(root, "schema"));
    r->experts = json_integer_value(json_object_get(root, "experts"));
    bool ok = schema && !strcmp(schema, SCHEMA) && take_layers(r, json_object_get(root, "layers"));
    if (!ok && mti_failures() == before)
        mti_fail(MT_ERR_FORMAT, "%s: is not a file of --record-routing: %s", path,
                 root ? "need \"schema\": \"" SCHEMA "\", \"experts\", and in \"layers\" a list of "
                        "that many rows for each layer"
                      : error.text);
    json_decref(root);
    mti_free(text);
    return ok;
}

bool mti_routing_make(mti_routing *r, const char *text, uint64_t seed)
{
    const char *file = NULL;
    *r = (mti_routing){.seed = seed};
    return !text || (mti_routing_parse(text, &r->kind, &file) && (!file || read_rows(r, file)));
}

bool mti_routing_matters(const mti_workload *w, const mt_device *device)
{
    const mt_model_config *c = &w->config;
    return c->experts && !mt_device_has_data(device) && !c->expert_padding &&
           (mti_expert_form_of(c->ops.expert_form)->alone || c->expert_capacity > 0 ||
            (w->ranked && w->parallel.expert > 1));
}

bool mti_routing_keeps(const mti_workload *w, int64_t *rows)
{
    const mt_model_config *c = &w->config;
    const mt_parallel h = mti_filled_in(&w->parallel);
    const int64_t shards = !w->ranked ? 1 : h.context * (mti_folds_experts(&h) ? h.tensor : 1);
    const int64_t t = w->batch * w->seq / shards;
    const mti_expert_call call = {.experts = c->experts,
                                  .k = c->experts_per_token,
                                  .capacity = c->expert_capacity,
                                  .padded = c->expert_padding};
    mti_routing r = {0};
    int64_t *counts = mti_calloc((size_t)c->experts, sizeof *counts);
    bool ok = counts && mti_routing_make(&r, w->routing, w->seed);
    ok = ok && mti_routing_counts(&r, 0, t, call.k, call.experts, counts);
    if (ok) mti_cap_counts(&call, t, counts);
    *rows = 0;
    for (int64_t e = 0; ok && e < call.experts; e++) *rows += counts[e];
    mti_free(r.rows), mti_free(counts);
    return ok;
}

bool mti_recorder_start(mti_recorder *r, mt_module *m, const mt_model_config *c)
{
    int64_t layer = 0;
    const int64_t all = c->layers ? c->layers : 1;
    *r = (mti_recorder){.layers = all - c->dense_layers + c->mtp_layers, .experts = c->experts};
    r->rows = mti_calloc((size_t)(r->layers * r->experts), sizeof *r->rows);
    if (r->rows) mti_set_routing(m, NULL, &layer, r->rows);
    return r->rows != NULL;
}

bool mti_recorder_write(const mti_recorder *r, const char *path)
{
    mti_file *f = mti_file_create(path);
    FILE *out = f ? mti_file_stream(f) : NULL;
    if (!out) return mti_file_abandon(f), false;
    mti_print(out, "{\"schema\": \"" SCHEMA "\", \"experts\": %lld, \"layers\": [",
              (long long)r->experts);
    for (int64_t i = 0; i < r->layers * r->experts; i++)
        mti_print(out, "%s%lld",
                  i % r->experts ? ", "
                  : i            ? "],\n ["
                                 : "\n [",
                  (long long)r->rows[i]);
    mti_print(out, "]]}\n");
    const bool ok = !ferror(out);
    if (fclose(out) || !ok) return mti_file_abandon(f), false;
    return mti_file_commit(f);
}

void mti_recorder_free(mti_recorder *r)
{
    mti_free(r->rows);
    *r = (mti_recorder){0};
}
