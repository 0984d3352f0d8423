/* conditions.c: whether the options that are given have an effect. If a condition does not hold,
 * the option would be ignored, so it is refused. */
#include <math.h>
#include <string.h>
#include "options/option_table.h"
#include "nn/model.h"

/* ---- what conditions ask ---- */

bool mti_is_rank(const mti_options *o)
{
    if (o->verb == MTI_FIT || o->verb == MTI_SERVE) return false; /* they have many */
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (mti_option_rows[id].of_ranks && mti_is_given(o, id)) return true;
    return false;
}

bool mti_is_alone(const mti_options *o)
{
    return o->verb == MTI_FIT ? o->gpu.n == 1 : !mti_is_rank(o);
}

/* Some ranks have the same parameters. */
static bool replicas(const mt_parallel *h) { return h->data > 1 || h->context > 1; }

bool mti_shares_batch(const mti_options *o)
{
    return o->verb == MTI_FIT ? o->gpu.n != 1 : replicas(&o->workload.parallel);
}

bool mti_wants_json(const mti_options *o) { return o->output.json && !strcmp(o->output.json, "-"); }
bool mti_wants_text(const mti_options *o) { return !o->output.quiet && !mti_wants_json(o); }

static int64_t at_least_1(int64_t n) { return n ? n : 1; }
static bool one_forward(const mt_parallel *h) { return h->pipeline <= 1 && h->microbatches <= 1; }
/* A fit that is not told tries several. */
static bool one_stage(const mti_options *o)
{
    const int64_t n = o->workload.parallel.pipeline;
    return n == 1 || (!n && o->verb != MTI_FIT);
}
static bool has_own_head(const mt_model_config *c)
{
    mt_model_config resolved;
    const bool ok = mt_model_config_resolve(c, &resolved) == MT_OK;
    if (!ok) mt_clear_error(); /* refused for that */
    return !ok || (mti_is_whole(resolved.kind) && resolved.untied);
}
static bool draws(const mti_device_options *d) { return strcmp(d->kind, "meta") != 0; }

/* mpirun has started ranks, and the options ask for them. */
static bool together(const mti_options *o, mti_verb verb)
{
    return o->verb == verb && mti_is_rank(o) && o->world;
}
static bool trains_together(const mti_options *o) { return together(o, MTI_TRAIN); }
static bool profiles_together(const mti_options *o) { return together(o, MTI_PROFILE); }

/* Whether each rank's part of every mask begins where a counter's four numbers begin. */
static bool even_masks(const mti_options *o)
{
    const mti_workload *w = &o->workload;
    const mt_parallel *h = &w->parallel;
    const mt_model_config *c = &w->config;
    const int64_t t = at_least_1(h->tensor), d = at_least_1(h->data), s = w->seq;
    const int64_t batch = o->verb == MTI_TRAIN ? w->batch / d : w->batch;
    const int64_t parts[] = {t,
                             h->sequence ? t : 1}; /* of attention's weights; of what is between */
    const int64_t whole[] = {c->heads * s * s, s * c->hidden}; /* of one sequence */
    bool even = true;
    if (c->heads % t || s % parts[1]) return true; /* refused for that */
    for (int i = 0; i < 2; i++) {
        const int64_t n = whole[i] / parts[i];
        even = even && (parts[i] > 1 ? n % 4 == 0 : d == 1 || batch * n % 4 == 0);
    }
    return even;
}

bool mti_checkpoints(const mti_memory_options *m, const char *preset)
{
    return m->checkpoint && !strcmp(m->checkpoint, preset);
}
static bool groups_layers(const mti_memory_options *m)
{
    mti_preset preset;
    return m->checkpoint && mti_preset_parse(m->checkpoint, &preset) &&
           preset.form == MTI_PRESET_GROUPS;
}
/* Whether there is a norm before attention and one before the MLP. */
static bool norms_inputs(const mt_model_config *c)
{
    return (mti_is_whole(c->kind) || c->kind == MT_MODEL_BLOCK) &&
           (c->norm == MT_NORM_PRE || c->norm == MT_NORM_AROUND || c->norm == MT_NORM_PARALLEL);
}
/* Whether layers have all modules of that set of mt_recompute. */
static bool has_modules(const mt_model_config *config, unsigned modules)
{
    mt_model_config c;
    const bool ok = mt_model_config_resolve(config, &c) == MT_OK;
    if (!ok) return mt_clear_error(), true; /* refused for that */
    const unsigned there =
        (mti_attends(c.kind) ? MT_RECOMPUTE_CORE_ATTN : 0) |
        (c.experts ? MT_RECOMPUTE_MOE_ACT | MT_RECOMPUTE_MOE : 0) |
        (norms_inputs(&c) ? MT_RECOMPUTE_LAYERNORM : 0) |
        (mti_attends(c.kind) && c.kv_rank ? MT_RECOMPUTE_MLA_UP_PROJ : 0) |
        (mti_feeds(c.kind) && (!c.experts || c.dense_layers) ? MT_RECOMPUTE_MLP : 0) |
        (c.experts && c.shared_experts ? MT_RECOMPUTE_SHARED_EXPERTS : 0);
    return !(modules & ~there);
}
/* The same of mti_offload_module. */
static bool has_offloaded(const mt_model_config *config, unsigned modules)
{
    mt_model_config c;
    const bool ok = mt_model_config_resolve(config, &c) == MT_OK;
    if (!ok) return mt_clear_error(), true; /* refused for that */
    const unsigned there = (mti_attends(c.kind) ? MTI_OFFLOAD_CORE_ATTN | MTI_OFFLOAD_QKV_LINEAR |
                                                      MTI_OFFLOAD_ATTN_PROJ
                                                : 0) |
                           (c.experts ? MTI_OFFLOAD_MOE_ACT | MTI_OFFLOAD_EXPERT_FC1 : 0) |
                           (norms_inputs(&c) ? MTI_OFFLOAD_ATTN_NORM | MTI_OFFLOAD_MLP_NORM : 0);
    return !(modules & ~there);
}
static bool adapts_head(const mti_memory_options *m)
{
    const mt_lora_options lora = mti_adapters_of(m);
    return m->lora_rank && mti_lora_wants(&lora, "lm_head");
}
static bool has_rms(const mt_model_config *c)
{
    mt_model_config resolved;
    return mt_model_config_resolve(c, &resolved) == MT_OK && resolved.norm_kind != MT_NORM_LAYER;
}

enum { IN_A_ROW = 1, IN_A_RANK = 2, OF_COMMAND = 4 };

static const struct {
    unsigned scope;
    const char *words;
} conditions[MTI_CONDITION_COUNT] = {
#define CONDITION(id, scope, test, words) [MTI_IF_##id] = {scope, words},
#include "options/conditions.def"
#undef CONDITION
};

static bool holds(const mti_options *o, mti_condition condition)
{
    const mti_workload *w = &o->workload;
    const mt_model_config *c = &w->config;
    const mt_parallel *h = &w->parallel;
    const mti_memory_options *m = &w->memory;
    const mti_device_options *d = &w->device;
    switch (condition) {
#define CONDITION(id, scope, test, words)                                                          \
    case MTI_IF_##id:                                                                              \
        return test;
#include "options/conditions.def"
#undef CONDITION
    case MTI_IF_NOTHING:
    case MTI_CONDITION_COUNT:
    default: return true;
    }
}

/* ---- refusals ---- */

#define WORDS MTI_OPTIMIZER_LIST /* more than a value has */

/* A place in a row's list, without its verb. */
static unsigned plain(unsigned when) { return when & ((1u << MTI_OF_VERB) - 1); }

/* The option that it needs or excludes; NULL: it is a condition. */
static const mti_option_row *other_of(unsigned when)
{
    const unsigned kind = when & (MTI_NEEDS | MTI_EXCLUDES);
    return kind ? &mti_option_rows[plain(when) & ~kind] : NULL;
}

static bool is_met(const mti_options *o, unsigned when)
{
    const mti_option_row *other = other_of(when);
    const unsigned verb = when >> MTI_OF_VERB;
    if (verb && verb != (unsigned)o->verb + 1) return true;
    if (!other) return holds(o, (mti_condition)plain(when));
    return when & MTI_EXCLUDES ? !mti_is_given(o, other->id) : mti_option_is_set(o, other);
}

/* A key of a recipe that needs an option may lie idle in some rows of a sweep. */
static unsigned scope_of(const mti_option_row *r, unsigned when)
{
    if (!other_of(when)) return conditions[plain(when)].scope;
    return when & MTI_EXCLUDES ? OF_COMMAND : r->key == MTI_KEY_RECIPE ? IN_A_ROW | IN_A_RANK : 0;
}

/* The first of the row's list that does not hold, among those of a scope if `only`, else of the
 * others; NOTHING if there is none. */
static unsigned broken(const mti_options *o, const mti_option_row *r, unsigned scope, bool only)
{
    for (size_t i = 0; i < sizeof r->when / sizeof *r->when && r->when[i]; i++)
        if (!(scope_of(r, r->when[i]) & scope) != only && !is_met(o, r->when[i])) return r->when[i];
    return MTI_IF_NOTHING;
}

bool mti_has_effect(const mti_options *o, const mti_option_row *r)
{
    return (r->models & 1u << o->workload.config.kind) && !broken(o, r, 0, false);
}

/* What {name} stands for. */
static const char *value_of(const mti_options *o, const char *name, char buf[WORDS])
{
    if (!strcmp(name, "model")) return mt_model_kind_name(o->workload.config.kind);
    if (!strcmp(name, "an optimizer")) return mti_optimizer_list(buf, false);
    if (!strcmp(name, "an elementwise optimizer")) return mti_optimizer_list(buf, true);
    return mti_option_text(o, mti_option_find(o->verb, name), buf);
}

/* "sgd, sgd-momentum or adamw", what the option may be but the first; else "N". */
static void add_values(char *text, size_t n, const mti_option_row *r)
{
    const int some = r->form == MTI_CHOICE ? r->choice->n : 0;
    if (!some && r->arg) mti_append(text, n, "%s", r->arg);
    for (int i = 1; i < some; i++)
        mti_append(text, n, "%s%s",
                   i == 1         ? ""
                   : i + 1 < some ? ", "
                                  : " or ",
                   r->choice->names[i]);
}

static bool refuse_beside(mti_options *o, const mti_option_row *r, unsigned when)
{
    const mti_option_row *other = other_of(when);
    char values[MTI_OPTIMIZER_LIST] = "";
    if (when & MTI_EXCLUDES)
        return mti_options_refuse(o, "--%s and --%s: give one of the two", r->name, other->name);
    add_values(values, sizeof values, other);
    if (other->key)
        return mti_options_refuse(o, "--%s needs %s%s%s beside it", r->name, other->name,
                                  *values ? "=" : "", values);
    const bool shown = other->example && other->form != MTI_CHOICE; /* else values are examples */
    return mti_options_refuse(o, "--%s needs --%s%s%s%s%s", r->name, other->name,
                              *values ? " " : "", values, shown ? ", for example " : "",
                              shown ? other->example : "");
}

static bool refuse(mti_options *o, const mti_option_row *r, unsigned when)
{
    if (other_of(when)) return refuse_beside(o, r, when);
    char text[400 + 2 * WORDS], name[40], value[WORDS]; /* words have two values at most */
    const char *words = conditions[plain(when)].words;
    snprintf(text, sizeof text, "%s%s", *words == '-' ? "" : "--", *words == '-' ? "" : r->name);
    while (*words) {
        size_t plain = strcspn(words, "{"), named = strcspn(words + plain, "}");
        snprintf(name, sizeof name, "%.*s", named ? (int)named - 1 : 0, words + plain + 1);
        mti_append(text, sizeof text, "%.*s%.*s", (int)plain, words, WORDS - 1,
                   named ? value_of(o, name, value) : "");
        words += plain + named + (named > 0);
    }
    return mti_options_refuse(o, "%s", text);
}

static bool check_model(mti_options *o, const mti_option_row *r)
{
    char fit[64] = "";
    if (r->models & 1u << o->workload.config.kind) return true;
    for (int k = 0; k < MT_MODEL_KIND_COUNT; k++)
        if (r->models & 1u << k)
            mti_append(fit, sizeof fit, "%s%s", *fit ? ", " : "",
                       mt_model_kind_name((mt_model_kind)k));
    return mti_options_refuse(o, "--%s: does not apply to %s; it is for %s", r->name,
                              mt_model_kind_name(o->workload.config.kind), fit);
}

/* ---- checks ---- */

/* Checks the options given, and those of a recipe, by the conditions that are in the scope if
 * `only`, else by the others. */
static bool check(mti_options *o, unsigned scope, bool only)
{
    const bool some_ranks = o->verb == MTI_SWEEP && mti_is_rank(o);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        const unsigned asked = some_ranks && mti_option_is_set(o, r) ? IN_A_RANK : 0;
        if (o->chosen[id] < MTI_BY_WORD) continue;
        const unsigned c = broken(o, r, scope & ~asked, only);
        if (c) return refuse(o, r, c);
    }
    return true;
}

bool mti_check_used(mti_options *o)
{
    for (int id = 0; id < MTI_OPTION_COUNT && mti_verb_builds(o->verb); id++)
        if (mti_is_given(o, id) && !check_model(o, &mti_option_rows[id])) return false;
    return check(o, o->verb == MTI_SWEEP ? IN_A_ROW | IN_A_RANK : 0, false);
}

bool mti_check_used_so_far(mti_options *o) { return check(o, OF_COMMAND, true); }

bool mti_check_beside(mti_options *o, unsigned what, const char *why)
{
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (mti_is_given(o, id) && !(mti_option_rows[id].beside & what))
            return mti_options_refuse(o, "--%s: %s", mti_option_rows[id].name, why);
    return true;
}

/* Refuses an option that --over sets in every row anyway. */
static bool check_over(mti_options *o, const mti_option_row *r)
{
    size_t n = strlen(r->name);
    for (size_t k = 0; mti_is_given(o, r->id) && k < o->sweep.over.n; k++)
        if (!strncmp(o->sweep.over.at[k], r->name, n) && o->sweep.over.at[k][n] == '=')
            return mti_options_refuse(o, "--%s: --over %.60s gives it in every row", r->name,
                                      o->sweep.over.at[k]);
    return true;
}

bool mti_check_used_in_rows(mti_options *o, const mti_sweep_rows *rows)
{
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        unsigned reason = MTI_IF_NOTHING;
        bool used = false;
        if (!check_over(o, r)) return false;
        for (size_t k = 0; k < rows->n && !used; k++) {
            const mti_options *row = &rows->at[k].options;
            if (!mti_is_given(row, id)) continue;
            const unsigned c = broken(row, r, IN_A_ROW | IN_A_RANK, true);
            used = !c;
            if (c) reason = c;
        }
        if (reason && !used) return refuse(o, r, reason);
    }
    return true;
}
