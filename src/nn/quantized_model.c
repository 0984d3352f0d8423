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

mt_module *mt_model_new_quantized(mt_device *device, const mt_model_config *config,
                                  const mt_quant *format)
{
    if (!mti_given(device, "model_new_quantized", "the device") ||
        mt_model_config_check(config) != MT_OK || !mt_quantized_bytes(format, 1))
        return NULL;
    if (!mti_is_whole(config->kind))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "model_new_quantized: the model is a %s; need a gpt, bert or llama",
                             mt_model_kind_name(config->kind));
    if (format->format == MT_QUANT_MXFP4 && !config->experts)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "model_new_quantized: mxfp4 is for experts' weights, and this %s has "
                             "no experts",
                             mt_model_kind_name(config->kind));
    mt_quant copy = *format;
    const mti_each_layer each = {quantize_below, &copy};
    mt_module *m = mti_model_make(device, config, &each);
    return mti_module_complete(m, m && mt_module_freeze(m, true) == MT_OK);
}
