/* hf_layers.c: which layers of a config.json are local, which have no rotary positions, and how
 * angles are scaled. */
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

bool mti_hf_unturned(mt_model_config *c, const json_t *root)
{
    const json_t *turned = json_object_get(root, "no_rope_layers");
    const int64_t n = (int64_t)json_array_size(turned);
    if (!json_is_array(turned)) return true;
    if (n < c->layers)
        return mti_fail_bool(MT_ERR_FORMAT,
                             MTI_ANY_FILE "\"no_rope_layers\" has %lld entries; need one for each "
                                          "of %lld layers",
                             (long long)n, (long long)c->layers);
    int64_t period = 0, i = 0;
    for (; i < c->layers; i++) {
        const bool unturned = json_integer_value(json_array_get(turned, (size_t)i)) == 0;
        if (!period && unturned) period = i + 1;
        if (unturned != (period && (i + 1) % period == 0)) break;
    }
    c->unturned_period = period;
    return i == c->layers ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         MTI_ANY_FILE
                         "\"no_rope_layers\" has the first 0 for layer %lld and another "
                         "order at layer %lld; need a 0 for every %lldth layer",
                         (long long)period - 1, (long long)i, (long long)period);
}

/* ---- scaled angles ---- */

typedef struct scaling {
    const char *key, *type;
    const json_t *value;
    mt_model_config *c;
} scaling;

/* *to: the number of that name, or `usual`, if it is above 0, without one. */
static bool read_number(const scaling *s, const char *name, double usual, double *to)
{
    const json_t *number = json_object_get(s->value, name);
    *to = number && !json_is_null(number) ? json_number_value(number) : usual;
    return *to > 0 ||
           mti_fail_bool(MT_ERR_FORMAT, MTI_ANY_FILE "\"%s\" has no \"%s\" above 0; %s needs it",
                         s->key, name, s->type);
}

static bool read_yarn(const scaling *s, double context)
{
    mt_model_config *c = s->c;
    double some, all;
    if (!read_number(s, "factor", 0, &c->yarn_factor)) return false;
    const double log_factor = 0.1 * log(fmax(c->yarn_factor, 1));
    double usual = log_factor + 1;
    if (json_number_value(json_object_get(s->value, "mscale")) != 0 &&
        json_number_value(json_object_get(s->value, "mscale_all_dim")) != 0) {
        if (!read_number(s, "mscale", 0, &some) || !read_number(s, "mscale_all_dim", 0, &all))
            return false;
        usual = (log_factor * some + 1) / (log_factor * all + 1);
    }
    c->yarn_exact = json_is_false(json_object_get(s->value, "truncate"));
    c->yarn_context = (int64_t)context;
    bool ok = read_number(s, "beta_fast", 32, &c->yarn_fast) &&
              read_number(s, "beta_slow", 1, &c->yarn_slow) &&
              read_number(s, "attention_factor", usual, &c->yarn_scale);
    if (c->yarn_scale == 1) c->yarn_scale = 0;
    return ok;
}

static bool read_llama3(const scaling *s, double context)
{
    mt_model_config *c = s->c;
    c->yarn_ramp = MT_RAMP_TURNS;
    c->yarn_context = (int64_t)context;
    return read_number(s, "factor", 0, &c->yarn_factor) &&
           read_number(s, "high_freq_factor", 0, &c->yarn_fast) &&
           read_number(s, "low_freq_factor", 0, &c->yarn_slow);
}

/* The context before angles were scaled, as Transformers takes it; longest: the whole context. */
static bool read_context(const scaling *s, const json_t *root, double longest, double *context)
{
    const json_t *whole = json_object_get(root, "original_max_position_embeddings");
    if (json_is_number(whole)) *context = json_number_value(whole);
    const bool ok = json_is_number(whole) ||
                    read_number(s, "original_max_position_embeddings", longest, context);
    return (ok && *context >= 1 && *context <= (double)MTI_MAX_EXTENT) ||
           mti_fail_bool(MT_ERR_FORMAT,
                         MTI_ANY_FILE "\"original_max_position_embeddings\" of \"%s\" is not a "
                                      "number from 1 to %lld",
                         s->key, (long long)MTI_MAX_EXTENT);
}

const char *mti_hf_rope_type(const json_t *value)
{
    const json_t *type = json_object_get(value, "rope_type");
    if (!type) type = json_object_get(value, "type");
    return json_is_string(type) ? json_string_value(type) : "default";
}

/* Latent attention leaves a part of YaRN's factor to its softmax; finish_latent multiplies it by
 * the usual scale. */
static void scale_softmax(const scaling *s)
{
    const double factor = json_number_value(json_object_get(s->value, "factor"));
    const double all = json_number_value(json_object_get(s->value, "mscale_all_dim"));
    const double m = 0.1 * all * log(fmax(factor, 1)) + 1;
    if (m != 1) s->c->attention_scale = m * m;
}

bool mti_hf_scaling(mt_model_config *c, const char *key, const json_t *value, const json_t *root,
                    bool *known)
{
    const scaling s = {key, mti_hf_rope_type(value), value, c};
    const bool yarn = !strcmp(s.type, "yarn"), llama3 = !strcmp(s.type, "llama3");
    const bool linear = !strcmp(s.type, "linear"), none = !strcmp(s.type, "default");
    double context;
    c->yarn_factor = c->yarn_scale = c->yarn_fast = c->yarn_slow = 0;
    c->yarn_context = 0, c->yarn_exact = false, c->yarn_ramp = linear ? MT_RAMP_FLAT : 0;
    *known = yarn || llama3 || linear || none || !strcmp(s.type, "dynamic");
    if (c->kv_rank && !none) scale_softmax(&s);
    if (linear) return read_number(&s, "factor", 0, &c->yarn_factor);
    return !(yarn || llama3) || (read_context(&s, root, (double)c->context, &context) &&
                                 (yarn ? read_yarn : read_llama3)(&s, context));
}
