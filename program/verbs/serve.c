/* serve.c: `memtape serve MODEL`: how many sequences a model generates at once on a GPU. */
#include "verbs/verbs.h"
#include "fit/serve.h"
#include "report/results.h"

#define SHORTEST 16

/* ---- what is measured ---- */

/* The forms that were given, or the usual ones. */
typedef struct forms {
    int n_weights, n_caches;
    mti_weights_choice weights[MTI_WEIGHTS_COUNT];
    mt_kv_form caches[MT_KV_FORM_COUNT];
    size_t n_lengths, asked;
    int64_t lengths[MTI_SERVE_LENGTHS];
} forms;

static forms forms_of(const mti_options *o)
{
    const bool mxfp4 = o->workload.config.mlp == MT_MLP_CLAMPED; /* its files are in MXFP4 */
    forms f = {.n_weights = mxfp4 ? 4 : 3,
               .weights = {MTI_WEIGHTS_PLAIN, MTI_WEIGHTS_INT8, MTI_WEIGHTS_NF4, MTI_WEIGHTS_MXFP4},
               .n_caches = 2,
               .caches = {MT_KV_PREALLOCATED, MT_KV_8BIT}};
    if (mti_is_given(o, MTI_O_SERVE_WEIGHTS)) f.n_weights = 1, f.weights[0] = o->generate.weights;
    if (mti_is_given(o, MTI_O_KV_CACHE))
        f.n_caches = 1, f.caches[0] = (mt_kv_form)o->generate.kv_cache;
    int64_t asked = o->workload.seq, context = o->workload.config.context;
    const int64_t around[MTI_SERVE_LENGTHS] = {asked / 16, asked / 4, asked, asked * 4, asked * 16};
    for (int i = 0; i < MTI_SERVE_LENGTHS; i++) {
        bool wanted = i == 2 || (!mti_is_given(o, MTI_O_SEQ) && around[i] >= SHORTEST &&
                                 around[i] <= context);
        if (i == 2) f.asked = f.n_lengths;
        if (wanted) f.lengths[f.n_lengths++] = around[i];
    }
    return f;
}

typedef struct table {
    const forms *forms;
    mti_serve_report *report;
    mt_serve_options *options; /* of a row after the other */
    mt_serve_need *needs;      /* theirs */
    mti_progress progress;
} table;

static void say_done(void *user, size_t n_done, size_t i)
{
    table *t = user;
    mti_progress_step(&t->progress, (int64_t)n_done,
                      t->report->rows[i / t->forms->n_lengths].weights);
}

static void begin_row(const mti_options *o, table *t, size_t i)
{
    const forms *f = t->forms;
    const mti_weights_choice weights = f->weights[i / (size_t)f->n_caches];
    const mt_model_config *config = &o->workload.config;
    mti_serve_row *row = &t->report->rows[i];
    row->weights = weights ? mti_weights_name(weights) : mt_dtype_name(config->dtype);
    row->cache = f->caches[i % (size_t)f->n_caches];
    row->needs = &t->needs[i * f->n_lengths];
    for (size_t k = 0; k < f->n_lengths; k++)
        t->options[i * f->n_lengths + k] =
            (mt_serve_options){.config = config,
                               .weights = mti_weights_format(weights),
                               .cache = row->cache,
                               .positions = f->lengths[k],
                               .at_once = o->serve.at_once,
                               .tensor = o->workload.parallel.tensor,
                               .exact = o->serve.exact};
}

/* What does not fit is measured without a capacity: how much it would take. */
static bool measure_users(const mti_options *o, const table *t, size_t i)
{
    mti_serve_row *row = &t->report->rows[i];
    const mt_serve_options *asked = &t->options[i * t->forms->n_lengths + t->forms->asked];
    size_t room = o->serve.users <= row->needs[t->forms->asked].sequences ? t->report->capacity : 0;
    return !o->serve.users || mt_serve_measure(asked, o->serve.users, room, &row->users) == MT_OK;
}

static bool measure_table(const mti_options *o, table *t, size_t n)
{
    mti_serve_report *s = t->report;
    const size_t cells = n * t->forms->n_lengths;
    for (size_t i = 0; i < n; i++) begin_row(o, t, i);
    mti_progress_begin(&t->progress, stderr, 0, (int64_t)cells, (int64_t)cells,
                       o->output.quiet || !mti_sheet_of(stderr).live);
    bool ok = mti_serve_most_of_many(t->options, cells, s->capacity, t->needs, say_done, t);
    for (size_t i = 0; ok && i < n; i++) ok = measure_users(o, t, i);
    mti_progress_end(&t->progress);
    return ok;
}

static bool measure(const mti_options *o, mti_serve_report *s)
{
    const forms f = forms_of(o);
    const size_t n = (size_t)f.n_weights * (size_t)f.n_caches;
    s->n_lengths = f.n_lengths, s->asked = f.asked, s->n_rows = n;
    s->rows = mti_calloc(n, sizeof *s->rows);
    s->needs = mti_calloc(n * f.n_lengths, sizeof *s->needs);
    table t = {.forms = &f,
               .report = s,
               .options = mti_calloc(n * f.n_lengths, sizeof *t.options),
               .needs = s->needs};
    bool ok = s->rows && s->needs && t.options && measure_table(o, &t, n);
    mti_free(t.options);
    return ok;
}

/* ---- the verb ---- */

static bool find_memory(const mti_options *o, mt_gpu *gpu, mti_serve_report *s)
{
    s->capacity = o->workload.device.capacity;
    if (!o->gpu.name) return true;
    if (!mti_find_gpu(o, gpu)) return false;
    s->gpu = gpu;
    size_t aside = mti_kept_aside(o, gpu, s->gpus);
    if (aside >= gpu->memory)
        return mti_fail_bool(MT_ERR_ARGUMENT, "serve: %zu bytes kept aside, of %zu that a GPU has",
                             aside, gpu->memory);
    if (!s->capacity) s->capacity = gpu->memory - aside, s->kept_aside = aside;
    return true;
}

int mti_serve(const mti_options *o)
{
    mt_gpu gpu;
    const int64_t gpus = o->workload.parallel.tensor;
    mti_serve_report s = {.workload = &o->workload,
                          .at_once = o->serve.at_once,
                          .users = o->serve.users,
                          .gpus = gpus ? gpus : 1};
    bool ok = find_memory(o, &gpu, &s) && measure(o, &s) &&
              (!mti_wants_text(o) || mti_print_serve(&s, stdout)) &&
              mti_json_write_of(mti_describe_serve, &s, o->output.json);
    int status = !ok ? mti_report_failure(o) : mti_serve_fits(&s) ? MTI_EXIT_OK : MTI_EXIT_FAILED;
    mti_free(s.needs);
    mti_free(s.rows);
    return status;
}

/* Whether the model generates, and memory is given. */
static bool check(mti_options *o)
{
    mt_model_kind kind = o->workload.config.kind;
    if (kind != MT_MODEL_GPT && kind != MT_MODEL_LLAMA)
        return mti_options_refuse(o,
                                  "MODEL: a %s does not generate from left to right; give a gpt, a "
                                  "llama, a preset or a path to a config.json of one",
                                  mt_model_kind_name(kind));
    return mti_is_given(o, MTI_O_GPU) || mti_is_given(o, MTI_O_CAPACITY) ||
           mti_options_refuse(o, "--gpu is missing; give a kind, such as h100, or --capacity");
}

const mti_verb_rules mti_serve_rules = {
    .verb = MTI_SERVE, .check = check, .complete = mti_complete_for_gpu};
