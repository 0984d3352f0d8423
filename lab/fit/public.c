/* public.c: the search as a C program asks for it. */
#include <string.h>
#include "fit/search.h"
#include "nn/model.h"

static bool read_optimizer(mti_workload *w, const mt_fit_options *o)
{
    w->optimizer = MTI_OPT_DEFAULT;
    return !o->optimizer || mti_choice_parse(&mti_optimizers, o->optimizer, &w->optimizer) == MT_OK;
}

static bool read_policy(const mt_fit_options *o)
{
    static const char *const places[] = {"none", "cpu"};
    mti_preset preset;
    if (o->checkpoint && !mti_preset_parse(o->checkpoint, &preset))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "fit: checkpoint \"%.40s\"; need none, selective, ops, full, sqrt or "
                             "every=K",
                             o->checkpoint);
    return !o->offload || mti_choose("fit: offload", places, 2, o->offload) >= 0;
}

static bool read_options(mti_workload *w, const mt_fit_options *o)
{
    *w = (mti_workload){.name = "fit", .device.kind = "meta"};
    if (!o->config || !o->gpu)
        return mti_fail_bool(MT_ERR_ARGUMENT, "fit: the %s is NULL", o->config ? "GPU" : "config");
    if (mt_model_config_resolve(o->config, &w->config) != MT_OK) return false;
    if (!mti_is_whole(w->config.kind))
        return mti_fail_bool(MT_ERR_ARGUMENT, "fit: the model is a %s; need a gpt, bert or llama",
                             mt_model_kind_name(w->config.kind));
    w->seq = o->seq ? o->seq : mti_usual_seq(&w->config);
    bool narrow = mt_dtype_size(w->config.dtype) == 2;
    if (!read_optimizer(w, o) || !read_policy(o)) return false;
    w->memory.master = narrow && !o->without_master && w->optimizer != MTI_OPT_NONE;
    w->memory.f32_gradients = narrow && o->f32_gradients;
    return true;
}

mt_status mt_fit_search(const mt_fit_options *options, mt_fit_result *out)
{
    mti_workload w;
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "fit: the result is NULL");
    *out = (mt_fit_result){0};
    if (!options) return mti_fail(MT_ERR_ARGUMENT, "fit: the options are NULL");
    bool ok = read_options(&w, options) && mti_fit_run(&w, options, false, 0, NULL, out);
    return ok ? MT_OK : mt_last_status();
}
