/* segments.c: which modules and groups of layers run as checkpoints, and presets of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nn/model.h"

/* x is taken over, and released once the layers have run: the checkpoint keeps it anyway. */
static mt_tensor *run_group(mt_module *m, mt_tensor *x, int64_t from, int64_t to,
                            const mt_checkpoint_options *options)
{
    char label[512];
    mt_checkpoint_options labelled = *options;
    if (!labelled.label) {
        snprintf(label, sizeof label, "%s.h.%lld..%lld", mt_scope_path(), (long long)from,
                 (long long)to - 1);
        labelled.label = label;
    }
    mt_tensor *y =
        mti_run_frame((mti_module_frame){.m = m, .layers = mti_run_each, .from = from, .to = to}, 1,
                      &x, &labelled);
    mt_release(x);
    return y;
}

/* Whether a checkpoint within m has a policy. */
static bool has_policy(const mt_module *m)
{
    const mt_checkpoint_options *options = mti_module_checkpoint(m, NULL);
    mt_module *child;
    bool found = options && options->policy;
    for (size_t i = 0; !found && (child = mt_module_child_at(m, i)); i++) found = has_policy(child);
    return found;
}

mt_tensor *mti_run_layers(mt_module *m, mt_tensor *x, int64_t from, int64_t to)
{
    for (int64_t i = from, n; x && i < to; i += n) {
        int64_t group;
        const mt_checkpoint_options *options = mti_module_checkpoint(mti_layer(m, i), &group);
        n = group > 1 ? group : 1;
        if (n > to - i) n = to - i;
        /* What is run again has no tables to share, and its policy wants the same ops. */
        const bool own = options && options->policy;
        for (int64_t k = i; k < i + n; k++)
            if (own || has_policy(mti_layer(m, k))) mti_share_rope_tables(mti_layer(m, k), NULL);
        x = group ? run_group(m, x, i, i + n, options) : mti_run_each(m, x, i, i + n);
    }
    return x;
}

/* Whether m has layers h.*from and on, *n in all: a whole model, or consecutive ones of one. */
static bool find_layers(const mt_module *m, int64_t *from, int64_t *n)
{
    const mti_model *model = mti_model_of(m);
    mt_module *child;
    *from = *n = 0;
    if (model) *n = model->config.layers;
    for (size_t i = 0; !model && (child = mt_module_child_at(m, i)); i++) {
        const char *name = mt_module_name(child);
        if (strncmp(name, "h.", 2) != 0 || strcmp(mt_module_kind(child), "block") != 0) continue;
        if (!(*n)++) *from = strtoll(name + 2, NULL, 10);
    }
    return *n > 0;
}

/* Nothing in m runs again any more. */
static void clear(mt_module *m)
{
    mti_experts *experts = mti_experts_of(m);
    mti_heads *heads = mti_heads_of(m);
    mt_module *child;
    if (experts) experts->act_again = false;
    if (heads) heads->again = 0;
    mti_module_set_group(m, 0, NULL);
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++) clear(child);
}

/* Whether m and the options are what a call takes that makes checkpoints of parts of m. */
static bool check(const char *caller, const mt_module *m, const mt_checkpoint_options *options)
{
    return mti_given(m, caller, "the model") &&
           (!options || !options->discard_outputs ||
            mti_fail_bool(MT_ERR_ARGUMENT,
                          "%s: the options discard outputs, which leaves a hook until what reads "
                          "them has run; need discard_outputs false",
                          caller));
}

mt_status mt_model_checkpoint_layers(mt_module *m, int64_t from, int64_t n,
                                     const mt_checkpoint_options *options)
{
    if (!check("checkpoint layers", m, options)) return mt_last_status();
    int64_t first, layers;
    if (!find_layers(m, &first, &layers))
        return mti_fail(MT_ERR_ARGUMENT,
                        "checkpoint layers: %s has none; need a gpt, bert or llama",
                        mt_module_kind(m));
    if (from < first || n < 1 || n > first + layers - from)
        return mti_fail(MT_ERR_ARGUMENT,
                        "checkpoint layers: %lld from layer %lld on; need at least 1, of %lld",
                        (long long)n, (long long)from, (long long)layers);
    for (int64_t i = first, group; i < from; i++)
        if (mti_module_checkpoint(mti_layer(m, i), &group) && group > from - i)
            return mti_fail(MT_ERR_ARGUMENT,
                            "checkpoint layers: layer %lld belongs to the group from %lld to %lld",
                            (long long)from, (long long)i, (long long)(i + group - 1));
    for (int64_t i = from; i < from + n; i++) clear(mti_layer(m, i));
    bool ok = !options || mti_module_set_group(mti_layer(m, from), n, options);
    return ok ? MT_OK : mt_last_status();
}

/* ---- single modules ---- */

const mti_choice mti_recomputed = {"recompute-modules",
                                   MTI_NAMES("none", "core_attn", "moe_act", "layernorm",
                                             "mla_up_proj", "mlp", "moe", "shared_experts")};

const mti_choice mti_offloaded = {"offload-modules",
                                  MTI_NAMES("none", "core_attn", "moe_act", "attn_norm", "mlp_norm",
                                            "qkv_linear", "attn_proj", "expert_fc1")};

const char *mti_modules_text(const mti_choice *choice, unsigned modules, char buf[MTI_MODULES_TEXT])
{
    *buf = 0;
    for (int i = 1; i < choice->n; i++)
        if (modules >> (i - 1) & 1)
            mti_append(buf, MTI_MODULES_TEXT, "%s%s", *buf ? "+" : "", choice->names[i]);
    return *buf ? buf : "none";
}

/* Whether one of the path's names is `name`. */
static bool is_within(const char *path, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = path; at; at = (at = strchr(at, '.')) ? at + 1 : NULL)
        if (!strncmp(at, name, n) && (!at[n] || at[n] == '.')) return true;
    return false;
}

bool mti_offload_wants(void *modules, const mt_save_info *info)
{
    /* The first that the path has decides: what is within attention and has no row is before its
     * core. */
    static const struct {
        const char *name;
        unsigned module;
    } places[] = {{"experts_act", MTI_OFFLOAD_MOE_ACT},
                  {"experts_gate_up", MTI_OFFLOAD_EXPERT_FC1},
                  {"experts_fc", MTI_OFFLOAD_EXPERT_FC1},
                  {"mlp", 0},
                  {"ln_1", MTI_OFFLOAD_ATTN_NORM},
                  {"ln_2", MTI_OFFLOAD_MLP_NORM},
                  {"heads", MTI_OFFLOAD_CORE_ATTN},
                  {"proj", MTI_OFFLOAD_ATTN_PROJ},
                  {"drop", 0},
                  {"attn", MTI_OFFLOAD_QKV_LINEAR},
                  {"attention", MTI_OFFLOAD_QKV_LINEAR}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (is_within(info->module, places[i].name))
            return *(const unsigned *)modules & places[i].module;
    return false;
}

/* shared: what m reads may have other readers. */
static bool recompute(mt_module *m, unsigned which, bool shared,
                      const mt_checkpoint_options *options)
{
    static const mt_checkpoint_options discarding = {.discard_outputs = true};
    const char *kind = mt_module_kind(m);
    mti_experts *experts = mti_experts_of(m);
    mti_heads *heads = mti_heads_of(m);
    mt_module *child;
    const unsigned as = experts                                ? MT_RECOMPUTE_MOE
                        : heads                                ? MT_RECOMPUTE_CORE_ATTN
                        : !strcmp(mt_module_name(m), "shared") ? MT_RECOMPUTE_SHARED_EXPERTS
                        : !strcmp(kind, "mlp")                 ? MT_RECOMPUTE_MLP
                                                               : 0;
    if (experts) experts->act_again = which & MT_RECOMPUTE_MOE_ACT;
    if (heads) heads->again = which, heads->shares_input = shared;
    if (which & as && !mti_module_set_group(m, 0, options)) return false;
    if (!strcmp(kind, "block")) shared = !mti_norms_before(m);
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++) {
        const char *name = mt_module_name(child);
        if (which & MT_RECOMPUTE_LAYERNORM && mti_norms_before(m) &&
            (!strcmp(name, "ln_1") || !strcmp(name, "ln_2")) &&
            !mti_module_set_group(child, 0, &discarding))
            return false;
        if (!recompute(child, which, shared, options)) return false;
    }
    return true;
}

/* Whether no experts' activation overwrites its input, which moe_act reads again. */
static bool keeps_inputs(const mt_module *m)
{
    mt_module *child;
    if (mti_experts_of(m) && mti_acts_in_place(mt_module_child(m, "act")))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "model_recompute: moe_act reads its input again, which an activation "
                             "in place changes; need one that is not in place");
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++)
        if (!keeps_inputs(child)) return false;
    return true;
}

mt_status mt_model_recompute(mt_module *m, unsigned modules, const mt_checkpoint_options *options)
{
    static const mt_checkpoint_options zero;
    if (!check("model_recompute", m, options)) return mt_last_status();
    if (modules & MT_RECOMPUTE_MOE_ACT && !keeps_inputs(m)) return mt_last_status();
    clear(m);
    if (recompute(m, modules, true, options ? options : &zero)) return MT_OK;
    clear(m);
    return mt_last_status();
}

/* ---- presets ---- */

bool mti_preset_parse(const char *text, mti_preset *out)
{
    static const struct {
        const char *name;
        mti_preset_form form;
    } names[] = {{"none", MTI_PRESET_NONE},
                 {"full", MTI_PRESET_FULL},
                 {"selective", MTI_PRESET_SELECTIVE},
                 {"ops", MTI_PRESET_OPS},
                 {"sqrt", MTI_PRESET_GROUPS}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name)) {
            *out = (mti_preset){.form = names[i].form};
            return true;
        }
    if (strncmp(text, "every=", 6) != 0 || text[6] < '0' || text[6] > '9') return false;
    char *end;
    long long k = strtoll(text + 6, &end, 10);
    *out = (mti_preset){.form = MTI_PRESET_GROUPS, .every = k};
    return !*end && k >= 1 && k <= 1000000;
}

int64_t mti_preset_group(const mti_preset *preset, int64_t layers)
{
    if (preset->form != MTI_PRESET_GROUPS) return 1;
    return preset->every ? preset->every : llround(sqrt((double)layers));
}

/* Makes the outermost modules of that kind in m checkpoints; returns how many, -1 on failure. */
static int set_kind(mt_module *m, const char *kind, const mt_checkpoint_options *options)
{
    mt_module *child;
    if (!strcmp(mt_module_kind(m), kind))
        return mt_module_set_checkpoint(m, options) == MT_OK ? 1 : -1;
    int n = 0;
    for (size_t i = 0; n >= 0 && (child = mt_module_child_at(m, i)); i++) {
        int under = set_kind(child, kind, options);
        n = under < 0 ? -1 : n + under;
    }
    return n;
}

static bool set_full(mt_module *m, const mt_checkpoint_options *options)
{
    int n = set_kind(m, "block", options);
    if (n) return n > 0;
    return mt_module_set_checkpoint(m, options) == MT_OK; /* an attention or an mlp */
}

static bool set_selective(mt_module *m, const mt_checkpoint_options *options)
{
    int n = set_kind(m, "heads", options);
    return n > 0 || (!n && mti_fail_bool(MT_ERR_ARGUMENT,
                                         "checkpoint selective: %s has no attention to recompute",
                                         mt_module_kind(m)));
}

/* The layers as with "full", under a policy of ours. */
static bool set_ops(mt_module *m, const mt_checkpoint_options *options)
{
    mt_checkpoint_options with = *options;
    if (with.policy)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "checkpoint ops: the options have a policy, and ops is one");
    with.policy = mt_policy_ops;
    return set_full(m, &with);
}

static bool set_groups(mt_module *m, const char *name, const mti_preset *preset,
                       const mt_checkpoint_options *options)
{
    int64_t from, layers;
    char child[MTI_LAYER_NAME];
    mt_module *ahead = mt_module_child(m, mti_mtp_name(child, 0));
    if (!find_layers(m, &from, &layers) && !ahead)
        return mti_fail_bool(MT_ERR_ARGUMENT, "checkpoint %s: %s has no layers to group", name,
                             mt_module_kind(m));
    int64_t group = layers ? mti_preset_group(preset, layers) : 1;
    for (int64_t i = 0; i < layers; i += group)
        if (!mti_module_set_group(mti_layer(m, from + i), group < layers - i ? group : layers - i,
                                  options))
            return false;
    for (int64_t k = 0; (ahead = mt_module_child(m, mti_mtp_name(child, k))); k++)
        if (mt_module_set_checkpoint(mt_module_child(ahead, "block"), options) != MT_OK)
            return false;
    return true;
}

mt_status mt_model_checkpoint_with(mt_module *m, const char *preset,
                                   const mt_checkpoint_options *options)
{
    static const mt_checkpoint_options zero;
    if (!check("model_checkpoint", m, options)) return mt_last_status();
    if (!preset) return mti_fail(MT_ERR_ARGUMENT, "model_checkpoint: the preset is NULL");
    if (!options) options = &zero;
    mti_preset p;
    if (!mti_preset_parse(preset, &p))
        return mti_fail(MT_ERR_ARGUMENT,
                        "checkpoint: unknown \"%.60s\"; choose none, full, selective, ops, every=K "
                        "(K layers as one, K at least 1) or sqrt",
                        preset);
    clear(m);
    bool ok = p.form == MTI_PRESET_NONE ||
              (p.form == MTI_PRESET_FULL        ? set_full(m, options)
               : p.form == MTI_PRESET_SELECTIVE ? set_selective(m, options)
               : p.form == MTI_PRESET_OPS       ? set_ops(m, options)
                                                : set_groups(m, preset, &p, options));
    if (ok) return MT_OK;
    clear(m);
    return mt_last_status();
}

mt_status mt_model_checkpoint(mt_module *m, const char *preset)
{
    return mt_model_checkpoint_with(m, preset, NULL);
}

mt_tensor *mti_run_turned(mt_module *m, mt_tensor *h, int64_t from, int64_t to)
{
    mti_rope_tables tables = {0};
    mti_share_rope_tables(m, &tables);
    h = mti_run_layers(m, h, from, to);
    mti_share_rope_tables(m, NULL);
    mti_rope_tables_free(&tables);
    return h;
}
