/* quantized_model.c: models whose linears keep their weights in 8 or 4 bits. In MXFP4 those of
 * experts alone, as gpt-oss' own files have it. */
#include <string.h>
#include "nn/model.h"
#include "nn/quantized.h"

static bool is_quantized(const mt_quant *format, const mt_module *m)
{
    return !strcmp(mt_module_kind(m), "grouped_linear") ||
           (format->format != MT_QUANT_MXFP4 && !strcmp(mt_module_kind(m), "linear"));
}

static bool quantize_below(void *format, mt_module *m)
{
    mt_module *child;
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++) {
        if (!is_quantized(format, child)) {
            if (!quantize_below(format, child)) return false;
            continue;
        }
        mt_module *q = mti_linear_quantized_new(child, format);
        mt_module *old = q ? mt_module_swap_child(m, mt_module_name(child), q) : NULL;
        if (q && !old) mt_module_free(q);
        if (!old) return false;
        mt_module_free(old);
    }
    return true;
}

static bool takes(const char *caller, const mt_quant *format, bool experts)
{
    return mt_quantized_bytes(format, 1) &&
           (format->format != MT_QUANT_MXFP4 || experts ||
            mti_fail_bool(MT_ERR_ARGUMENT,
                          "%s: mxfp4 is for experts' weights, and the model has no experts",
                          caller));
}

static bool has_experts(const mt_module *m)
{
    mt_module *child;
    bool found = mti_experts_of(m) != NULL;
    for (size_t i = 0; !found && (child = mt_module_child_at(m, i)); i++)
        found = has_experts(child);
    return found;
}

/* Whether all mixtures in m can be quantised. */
static bool each_takes(const mt_module *m)
{
    mt_module *child;
    bool ok = mti_takes_whole_experts("model_quantize", m);
    for (size_t i = 0; ok && (child = mt_module_child_at(m, i)); i++) ok = each_takes(child);
    return ok;
}

mt_status mt_model_quantize(mt_module *model, const mt_quant *format)
{
    mt_module *child;
    if (!mti_given(model, "model_quantize", "the model") ||
        !takes("model_quantize", format, has_experts(model)) || !each_takes(model) ||
        mt_module_freeze(model, true) != MT_OK)
        return mt_last_status();
    mt_quant copy = *format;
    for (size_t i = 0; (child = mt_module_child_at(model, i)); i++) {
        const char *name = mt_module_name(child);
        const bool layer = !strncmp(name, "h.", 2) || !strncmp(name, "mtp.", 4);
        if (layer && !quantize_below(&copy, child)) return mt_last_status();
    }
    return MT_OK;
}

mt_module *mt_model_new_quantized(mt_device *device, const mt_model_config *config,
                                  const mt_quant *format)
{
    if (!mti_given(device, "model_new_quantized", "the device") ||
        mt_model_config_check(config) != MT_OK ||
        !takes("model_new_quantized", format, config->experts > 0))
        return NULL;
    if (!mti_is_whole(config->kind))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "model_new_quantized: the model is a %s; need a gpt, bert or llama",
                             mt_model_kind_name(config->kind));
    if (config->experts && mti_expert_form_of(config->ops.expert_form)->alone)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "model_new_quantized: the config's expert_form is loop, with which "
                             "each expert takes its own matrix; need another one");
    mt_quant copy = *format;
    const mti_each_layer each = {quantize_below, &copy};
    mt_module *m = mti_model_make(device, config, &each);
    return mti_module_complete(m, m && mt_module_freeze(m, true) == MT_OK);
}
