/* hf_layers.c: which layers of a config.json are local, and how YaRN scales their angles. */
#include <math.h>
#include <string.h>
#include "io/hf_config.h"

/* Layer i, by "layer_types", or by where the local ones begin. */
static bool is_local(const json_t *types, int64_t from, int64_t i)
{
    const char *type = json_string_value(json_array_get(types, (size_t)i));
    return types ? type && !strcmp(type, "sliding_attention") : i >= from;
}

static bool repeats(const json_t *types, int64_t from, int64_t layers, int64_t period)
{
    for (int64_t i = period; i < layers; i++)
        if (is_local(types, from, i) != is_local(types, from, i - period)) return false;
    return true;
}

bool mti_hf_local_layers(mt_model_config *c, const json_t *root, bool from_some)
{
    const json_t *types = json_object_get(root, "layer_types");
    const json_t *first = json_object_get(root, "max_window_layers");
    const int64_t from = json_is_integer(first) ? (int64_t)json_integer_value(first) : 28;
    int64_t period = 1, local = 0;
    if (!json_array_size(types)) types = NULL;
    if (!types && !from_some) return true;
    while (period < 62 && !repeats(types, from, c->layers, period)) period++;
    if (!repeats(types, from, c->layers, period))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             MTI_ANY_FILE "which of %lld layers have a window does not repeat "
                                          "itself after at most 62; need a pattern that does",
                             (long long)c->layers);
    for (int64_t i = 0; i < period; i++) local |= (int64_t)is_local(types, from, i) << i;
    const bool all = local == ((int64_t)1 << period) - 1;
    const bool usual = local == ((int64_t)1 << (period - 1)) - 1; /* all but the last */
    if (!local) c->window = 0;
    c->local_period = all && c->local_theta == 0 ? 0 : period;
    c->local_layers = usual || !c->local_period ? 0 : local;
    return true;
}

/* *to: the number of that name, or `usual` without one. */
static bool read_number(const char *key, const json_t *value, const char *name, double usual,
                        double *to)
{
    const json_t *number = json_object_get(value, name);
    *to = number && !json_is_null(number) ? json_number_value(number) : usual;
    return *to > 0 ||
           mti_fail_bool(MT_ERR_FORMAT, MTI_ANY_FILE "\"%s\" has no \"%s\" above 0; YaRN needs it",
                         key, name);
}

bool mti_hf_yarn(mt_model_config *c, const char *key, const json_t *value)
{
    const json_t *whole = json_object_get(value, "truncate");
    const json_t *theta = json_object_get(value, "rope_theta");
    const char *type = json_string_value(json_object_get(value, "rope_type"));
    if (!type) type = json_string_value(json_object_get(value, "type"));
    if (theta && !read_number(key, value, "rope_theta", 0, &c->rope_theta)) return false;
    if (type && !strcmp(type, "default")) {
        c->yarn_factor = c->yarn_scale = c->yarn_fast = c->yarn_slow = 0;
        c->yarn_context = 0, c->yarn_exact = false;
        return true;
    }
    if (!type || strcmp(type, "yarn") != 0 || json_object_get(value, "mscale"))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             MTI_ANY_FILE "\"%s\" is not of type \"yarn\", without mscale, or "
                                          "\"default\"; need one of these",
                             key);
    double context;
    c->yarn_exact = json_is_false(whole);
    bool ok = read_number(key, value, "factor", 0, &c->yarn_factor) &&
              read_number(key, value, "beta_fast", 32, &c->yarn_fast) &&
              read_number(key, value, "beta_slow", 1, &c->yarn_slow) &&
              read_number(key, value, "original_max_position_embeddings", 0, &context);
    if (!ok) return false;
    c->yarn_context = (int64_t)context;
    double usual = c->yarn_factor > 1 ? 0.1 * log(c->yarn_factor) + 1 : 1;
    return read_number(key, value, "attention_factor", usual, &c->yarn_scale);
}
