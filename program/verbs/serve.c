/* serve.c: `memtape serve MODEL`: how many sequences a model generates at once on a GPU. */
#include "verbs/verbs.h"
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
    if (o->given[MTI_O_SERVE_WEIGHTS]) f.n_weights = 1, f.weights[0] = o->weights;
    if (o->given[MTI_O_KV_CACHE]) f.n_caches = 1, f.caches[0] = (mt_kv_form)o->kv_cache;
    int64_t asked = o->workload.seq, context = o->workload.config.context;
    const int64_t around[MTI_SERVE_LENGTHS] = {asked / 16, asked / 4, asked, asked * 4, asked * 16};
    for (int i = 0; i < MTI_SERVE_LENGTHS; i++) {
        bool wanted =
            i == 2 || (!o->given[MTI_O_SEQ] && around[i] >= SHORTEST && around[i] <= context);
        if (i == 2) f.asked = f.n_lengths;
        if (wanted) f.lengths[f.n_lengths++] = around[i];
    }
    return f;
}

static bool measure_row(const mti_options *o, const forms *f, mti_weights_choice weights,
                        mti_serve_report *s, mti_progress *p)
{
    mti_serve_row *row = &s->rows[s->n_rows];
    const mt_model_config *config = &o->workload.config;
    const char *name = mti_weights_name(weights);
    *row = (mti_serve_row){.weights = weights ? name : mt_dtype_name(config->dtype),
                           .cache = f->caches[s->n_rows % (size_t)f->n_caches],
                           .needs = mti_calloc(f->n_lengths, sizeof *row->needs)};
    if (!row->needs) return false;
    s->n_rows++;
    for (size_t k = 0; k < f->n_lengths; k++) {
        const mt_serve_options options = {.config = config,
                                          .weights = mti_weights_format(weights),
                                          .cache = row->cache,
                                          .positions = f->lengths[k],
                                          .at_once = o->at_once,
                                          .tensor = o->workload.parallel.tensor,
                                          .exact = o->exact};
        if (mt_serve_most(&options, s->capacity, &row->needs[k]) != MT_OK) return false;
        /* What does not fit is measured without a capacity: how much it would take. */
        size_t room = o->users <= row->needs[k].sequences ? s->capacity : 0;
        if (k == f->asked && o->users &&
            mt_serve_measure(&options, o->users, room, &row->users) != MT_OK)
            return false;
        mti_progress_step(p, (int64_t)((s->n_rows - 1) * f->n_lengths + k) + 1, row->weights);
    }
    return true;
}

static bool measure(const mti_options *o, mti_serve_report *s)
{
    const forms f = forms_of(o);
    mti_progress progress;
    size_t n = (size_t)f.n_weights * (size_t)f.n_caches;
    s->n_lengths = f.n_lengths, s->asked = f.asked;
    s->rows = mti_calloc(n, sizeof *s->rows);
    if (!s->rows) return false;
    mti_progress_begin(&progress, stderr, 0, (int64_t)(n * f.n_lengths), (int64_t)(n * f.n_lengths),
                       o->quiet || !mti_sheet_of(stderr).live);
    bool ok = true;
    for (size_t i = 0; ok && i < n; i++)
        ok = measure_row(o, &f, f.weights[i / (size_t)f.n_caches], s, &progress);
    mti_progress_end(&progress);
    return ok;
}

/* ---- the verb ---- */

static bool find_memory(const mti_options *o, mt_gpu *gpu, mti_serve_report *s)
{
    s->capacity = o->workload.device.capacity;
    if (!o->fit.gpu) return true;
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
                          .at_once = o->at_once,
                          .users = o->users,
                          .gpus = gpus ? gpus : 1};
    bool ok = find_memory(o, &gpu, &s) && measure(o, &s) &&
              (!mti_wants_text(o) || mti_print_serve(&s, stdout)) &&
              (!o->json || mti_json_write(mti_json_of(mti_describe_serve, &s), o->json) == MT_OK);
    int status = !ok ? mti_report_failure(o) : mti_serve_fits(&s) ? MTI_EXIT_OK : MTI_EXIT_FAILED;
    for (size_t i = 0; i < s.n_rows; i++) mti_free(s.rows[i].needs);
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
    if (o->given[MTI_O_SERVE_WEIGHTS] && o->weights == MTI_WEIGHTS_MXFP4 &&
        !o->workload.config.experts)
        return mti_options_refuse(
            o, "--weights mxfp4 is for experts' weights, and MODEL has none; give nf4");
    return o->given[MTI_O_GPU] || o->given[MTI_O_CAPACITY] ||
           mti_options_refuse(o, "--gpu is missing; give a kind, such as h100, or --capacity");
}

const mti_verb_rules mti_serve_rules = {.verb = MTI_SERVE, .check = check};
