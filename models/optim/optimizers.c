/* optimizers.c: the rows of optimizers, and the optimizers made of them. */
#include <math.h>
#include <stdio.h>
#include "backends/moments.h"
#include "optim/optim.h"

/* ---- rows ---- */

static const char *const names[] = {
    "none",
#define RULE(...)
#define OPTIMIZER(id, name, ...) name,
#include "optim/optimizers.def"
#undef OPTIMIZER
};
const mti_choice mti_optimizers = {"optimizer", MTI_OPTIMIZERS, names};

static const mti_optimizer_row rows[] = {
    {NULL},
#define OPTIMIZER(id, name, ...) {__VA_ARGS__},
#include "optim/optimizers.def"
#undef OPTIMIZER
#undef RULE
};

const char *mti_optimizer_name(mti_optimizer_choice choice)
{
    return mti_choice_name(&mti_optimizers, (int)choice);
}

const mti_optimizer_row *mti_optimizer_row_of(mti_optimizer_choice choice) { return &rows[choice]; }

/* Without parameters. */
static mt_optimizer described(mti_optimizer_choice choice, bool master)
{
    const mti_optimizer_row *row = &rows[choice];
    bool as_param = mti_optimizer_takes_matrices(choice);
    return (mt_optimizer){.rule = row->rule,
                          .n_state = row->n_state,
                          .moments = !as_param ? row->moments
                                     : master  ? MT_MOMENTS_WIDE
                                               : MT_MOMENTS_NARROW,
                          .paged = row->paged,
                          .host = row->host,
                          .form = row->form,
                          .params = row->params,
                          .master = master,
                          .decay_matrices_only = row->decay_matrices_only};
}

bool mti_optimizer_takes_matrices(mti_optimizer_choice choice)
{
    const mti_opt_rule *rule = rows[choice].rule;
    return rule && (rule->whole || rule->others);
}

bool mti_optimizer_is_elementwise(mti_optimizer_choice choice)
{
    return !mti_optimizer_takes_matrices(choice) &&
           mti_moment_codes(rows[choice].moments) == MTI_MOMENTS_WIDE;
}

const char *mti_optimizer_list(char text[MTI_OPTIMIZER_LIST], bool elementwise)
{
    *text = 0;
    for (int i = 1; i < MTI_OPTIMIZERS; i++)
        if (!elementwise || mti_optimizer_is_elementwise(i))
            mti_append(text, MTI_OPTIMIZER_LIST, "%s%s", *text ? ", " : "", names[i]);
    return text;
}

int64_t mti_optimizer_element_bytes(mti_optimizer_choice choice, mt_dtype dtype)
{
    const mti_optimizer_row *row = &rows[choice];
    int64_t size = (int64_t)mt_dtype_size(dtype), wide = size == 8 ? 8 : 4;
    mti_moments codes = size == 8 ? MTI_MOMENTS_WIDE : mti_moment_codes(row->moments);
    bool narrow = row->moments == MT_MOMENTS_BF16 && (dtype == MT_F32 || dtype == MT_BF16);
    if (row->rule && row->rule->whole) return 0;
    if (codes == MTI_MOMENTS_4BIT) return row->n_state / 2;
    return row->n_state * (row->moments == MT_MOMENTS_NARROW ? size
                           : codes != MTI_MOMENTS_WIDE       ? 1
                           : narrow                          ? 2
                                                             : wide);
}

int mti_optimizer_sizes(mti_optimizer_choice choice, const mti_hashmap *embeddings,
                        const mt_named_tensor *param, bool master, int64_t bytes[MTI_MAX_STATE])
{
    if (!rows[choice].rule) return 0;
    const mt_optimizer o = described(choice, master);
    const mti_opt_slot s = {.param = param->tensor,
                            .rule = mti_optimizer_rule(&o, embeddings, param)};
    int n = mti_optimizer_n_moments(&o, &s);
    for (int k = 0; k < n; k++) {
        const mti_view spec = mti_optimizer_spec(&o, &s, k);
        bytes[k] = mti_view_count(&spec) * (int64_t)mt_dtype_size(spec.dtype);
        if (mti_optimizer_pages(&o, &s, k)) bytes[k] = 0;
    }
    return n;
}

/* ---- making ---- */

/* A shard has neither the rows nor the columns of its matrix. */
static bool has_whole_matrices(const mti_opt_rule *rule, const mt_module *m)
{
    bool needs = rule->whole || rule->others;
    return !needs || !m || !mti_module_in_shards(m) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "%s: ZeRO leaves a rank flat shards of its matrices, which have no "
                         "rows and columns to %s; need zero 0, or another optimizer",
                         rule->name, rule->whole ? "factor" : "step by");
}

static bool in_bounds(const mt_optimizer *o)
{
    const mti_opt_params *p = &o->params;
    const struct {
        const char *field;
        double value, below;
    } bounds[] = {{"lr", p->lr, INFINITY},
                  {"momentum", p->momentum, INFINITY},
                  {"beta1", p->beta1, 1},
                  {"beta2", p->beta2, 1},
                  {"-beta2_decay", -p->beta2_decay, INFINITY},
                  {o->rule->whole ? "eps1" : "eps", p->eps, INFINITY},
                  {"eps2", p->eps2, INFINITY},
                  {"weight_decay", o->weight_decay, INFINITY}};
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof bounds / sizeof *bounds; i++)
        ok = mti_optimizer_in_range(o->rule->name, bounds[i].field, bounds[i].value,
                                    bounds[i].below);
    return ok;
}

static mt_optimizer *make(const mt_optimizer *as, mt_module *m)
{
    if (!in_bounds(as) || !has_whole_matrices(as->rule, m)) return NULL;
    return mti_optimizer_like(as, m);
}

mt_optimizer *mti_optimizer_make(mti_optimizer_choice choice, mt_module *m, double lr,
                                 double weight_decay, bool master)
{
    mt_optimizer as = described(choice, master);
    as.params.lr = lr;
    as.weight_decay = weight_decay;
    return make(&as, m);
}

mt_optimizer *mt_optimizer_new(const char *name, mt_module *m, double lr, double weight_decay,
                               bool master)
{
    if (!mti_given(m, "optimizer_new", "the module")) return NULL;
    /* The first name is "none". */
    const int choice = 1 + mti_choose("optimizer_new", names + 1, MTI_OPTIMIZERS - 1, name);
    if (!choice) return NULL;
    return mti_optimizer_make((mti_optimizer_choice)choice, m,
                              lr != 0 ? lr : rows[choice].params.lr, weight_decay, master);
}

static double or_else(double given, double usual) { return given != 0 ? given : usual; }

mt_optimizer *mt_sgd_new(mt_module *m, const mt_sgd_options *options)
{
    if (!options) return mti_fail_null(MT_ERR_ARGUMENT, "sgd: the options are NULL");
    mt_optimizer as = described(MTI_OPT_SGD, options->master);
    as.n_state = options->momentum > 0;
    as.params = (mti_opt_params){.lr = options->lr, .momentum = options->momentum};
    as.weight_decay = options->weight_decay;
    return make(&as, m);
}

mt_optimizer *mt_adamw_new(mt_module *m, const mt_adamw_options *options)
{
    if (!options) return mti_fail_null(MT_ERR_ARGUMENT, "adamw: the options are NULL");
    if (options->moments > MT_MOMENTS_TORCHAO_4BIT)
        return mti_fail_null(MT_ERR_ARGUMENT, "adamw: moments is %d; need an mt_moments",
                             (int)options->moments);
    mt_optimizer as = described(MTI_OPT_ADAMW, options->master);
    if (mti_moments_torchao(options->moments)) as.rule = &mti_rule_torchao;
    if (options->paged && mti_moments_torchao(options->moments))
        return mti_fail_null(MT_ERR_ARGUMENT, "adamw: paged goes with no moments of torchao's");
    as.moments = options->moments;
    as.paged = options->paged;
    as.host = options->host;
    if (as.host && (as.paged || mti_moment_codes(options->moments) != MTI_MOMENTS_WIDE))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "adamw: host goes with moments of floats alone, and not with paged");
    as.form = options->form;
    if (as.form > MT_ADAMW_LOOP)
        return mti_fail_null(MT_ERR_ARGUMENT, "adamw: form is %d; need an mt_adamw_form",
                             (int)options->form);
    if (as.form && mti_moment_codes(options->moments) != MTI_MOMENTS_WIDE)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "adamw: forms foreach and loop go with moments of floats alone");
    as.params = (mti_opt_params){.lr = options->lr,
                                 .beta1 = or_else(options->beta1, 0.9),
                                 .beta2 = or_else(options->beta2, 0.999),
                                 .eps = or_else(options->eps, 1e-8)};
    as.weight_decay = options->weight_decay;
    as.decay_matrices_only = options->decay_matrices_only;
    return make(&as, m);
}

mt_optimizer *mt_adafactor_new(mt_module *m, const mt_adafactor_options *options)
{
    if (!options) return mti_fail_null(MT_ERR_ARGUMENT, "adafactor: the options are NULL");
    if (options->clip != 0 && !(options->clip >= 1 && options->clip < INFINITY))
        return mti_fail_null(MT_ERR_ARGUMENT, "adafactor: clip is %g; need 1 <= clip < inf, or 0",
                             options->clip);
    mt_optimizer as = described(MTI_OPT_ADAFACTOR, options->master);
    as.params = (mti_opt_params){.lr = options->lr,
                                 .beta2_decay = or_else(options->beta2_decay, -0.8),
                                 .eps = options->eps1,
                                 .eps2 = or_else(options->eps2, 1e-3),
                                 .clip = or_else(options->clip, 1)};
    as.weight_decay = options->weight_decay;
    as.decay_matrices_only = options->decay_matrices_only;
    return make(&as, m);
}

mt_optimizer *mt_muon_new(mt_module *m, const mt_muon_options *options)
{
    if (!options) return mti_fail_null(MT_ERR_ARGUMENT, "muon: the options are NULL");
    if (options->adjust > MT_MUON_MATCH_RMS_ADAMW)
        return mti_fail_null(MT_ERR_ARGUMENT, "muon: adjust is %d; need an mt_muon_adjust",
                             (int)options->adjust);
    if (!mti_optimizer_in_range("muon", "adamw_lr", options->adamw_lr, INFINITY)) return NULL;
    mt_optimizer as = described(MTI_OPT_MUON, options->master);
    as.params = (mti_opt_params){
        .lr = options->lr,
        .momentum = or_else(options->momentum, 0.95),
        .beta1 = or_else(options->beta1, 0.9),
        .beta2 = or_else(options->beta2, 0.999),
        .eps = or_else(options->eps, 1e-8),
        .others_lr = options->adamw_lr > 0 && options->lr > 0 ? options->adamw_lr / options->lr : 1,
        .match_rms = options->adjust == MT_MUON_MATCH_RMS_ADAMW};
    as.weight_decay = options->weight_decay;
    as.decay_matrices_only = options->decay_matrices_only;
    return make(&as, m);
}

mt_optimizer *mt_lion_new(mt_module *m, const mt_lion_options *options)
{
    if (!options) return mti_fail_null(MT_ERR_ARGUMENT, "lion: the options are NULL");
    mt_optimizer as = described(MTI_OPT_LION, options->master);
    as.params = (mti_opt_params){.lr = options->lr,
                                 .beta1 = or_else(options->beta1, 0.9),
                                 .beta2 = or_else(options->beta2, 0.99)};
    as.weight_decay = options->weight_decay;
    as.decay_matrices_only = options->decay_matrices_only;
    return make(&as, m);
}
