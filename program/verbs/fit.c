/* fit.c: `memtape fit MODEL`: whether a model trains on some GPUs, and the fastest ways to. */
#include <stdlib.h>
#include <string.h>
#include "options/changes.h"
#include "options/option_table.h"
#include "verbs/verbs.h"
#include "fit/search.h"
#include "fit/at_once.h"
#include "nn/model.h"
#include "report/results.h"

/* ---- options ---- */

static void set_defaults(mti_options *o)
{
    o->workload.batch = 0; /* a sequence a GPU */
    o->gpu.n = 1;
}

/* Whether what is asked for is about one kind of GPU. */
static const char *needs_a_kind(const mti_options *o)
{
    static const mti_option of_one[] = {MTI_O_JSON,     MTI_O_PRICE,    MTI_O_TRAIN_TOKENS,
                                        MTI_O_OUTSIDE,  MTI_O_MAX_SEQ,  MTI_O_MAX_BATCH,
                                        MTI_O_CAPACITY, MTI_O_GPUS_FILE};
    for (size_t i = 0; i < sizeof of_one / sizeof *of_one; i++)
        if (mti_is_given(o, of_one[i])) return mti_option_rows[of_one[i]].name;
    return NULL;
}

static bool check(mti_options *o)
{
    mti_workload *w = &o->workload;
    if (!mti_is_whole(w->config.kind))
        return mti_options_refuse(o,
                                  "MODEL: a %s cannot be divided among GPUs; give a gpt, bert, "
                                  "llama, a preset or a path to a config.json",
                                  mt_model_kind_name(w->config.kind));
    const char *about = mti_is_given(o, MTI_O_GPU) ? NULL : needs_a_kind(o);
    if (about) {
        char typed[64];
        snprintf(typed, sizeof typed, "--%s", about);
        mti_key_in_words(o, typed, sizeof typed);
        return mti_options_refuse(o, "--gpu is missing; %s is about one kind, such as h100", typed);
    }
    if (!mti_is_given(o, MTI_O_BATCH)) w->batch = 0;
    return true;
}

/* ---- the command that profiles a set-up ---- */

static void give(mti_options *o, mti_option id, bool given)
{
    o->chosen[id] = given ? MTI_BY_WORD : MTI_BY_NOBODY;
}

/* The set-up as options of a profile. */
static mti_options profiled(const mti_options *o, const mt_fit_result *r, const mt_fit_setup *s)
{
    static const mti_option always[] = {MTI_O_BATCH,      MTI_O_SEQ,          MTI_O_TP,
                                        MTI_O_PP,         MTI_O_MICROBATCHES, MTI_O_DP,
                                        MTI_O_CHECKPOINT, MTI_O_OFFLOAD,      MTI_O_DEVICE},
                            never[] = {MTI_O_JSON, MTI_O_QUIET, MTI_O_OUTSIDE, MTI_O_GPU};
    mti_options p = *o;
    const mt_parallel *h = &s->parallel;
    p.workload = mti_fit_workload(&(mti_fit_task){.workload = &o->workload, .seq = r->seq}, s);
    p.workload.device.capacity = r->capacity;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) give(&p, always[i], true);
    give(&p, MTI_O_DTYPE, o->chosen[MTI_O_DTYPE] != MTI_BY_RECIPE);
    give(&p, MTI_O_OPTIMIZER, o->chosen[MTI_O_OPTIMIZER] != MTI_BY_RECIPE);
    give(&p, MTI_O_MASTER, p.workload.memory.master && o->chosen[MTI_O_MASTER] != MTI_BY_RECIPE);
    give(&p, MTI_O_SP, h->sequence);
    give(&p, MTI_O_INTERLEAVE, h->interleave > 1);
    give(&p, MTI_O_STAGE, h->pipeline > 1);
    give(&p, MTI_O_CP, h->context > 1);
    give(&p, MTI_O_EP, h->expert > 1);
    give(&p, MTI_O_ZERO, h->data * h->context > 1);
    give(&p, MTI_O_CAPACITY, s->fits);
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) give(&p, never[i], false);
    return p;
}

/* ---- the search ---- */

static void show(void *user, int64_t done, int64_t of, int64_t measured)
{
    char text[64];
    mti_progress *p = user;
    p->total = of;
    snprintf(text, sizeof text, "ways to divide the model, %lld set-ups measured",
             (long long)measured);
    mti_progress_step(p, done, text);
}

static mt_fit_options options_of(const mti_options *o, const mt_gpu *gpu, mti_progress *progress)
{
    const mti_workload *w = &o->workload;
    return (mt_fit_options){.gpu = gpu,
                            .gpus = o->gpu.n,
                            .batch = w->batch,
                            .kept_aside = mti_kept_aside(o, gpu, o->gpu.n),
                            .host_memory = o->gpu.host_memory,
                            .utilisation = o->plan.utilisation,
                            .tensor = w->parallel.tensor,
                            .pipeline = w->parallel.pipeline,
                            .interleave = w->parallel.interleave,
                            .context = w->parallel.context,
                            .expert = w->parallel.expert,
                            .zero_stages = o->chosen[MTI_O_ZERO] ? 1u << w->parallel.zero : 0,
                            .checkpoint = !o->chosen[MTI_O_CHECKPOINT] ? NULL
                                          : w->memory.checkpoint       ? w->memory.checkpoint
                                                                       : "none",
                            .offload = !mti_is_given(o, MTI_O_OFFLOAD) ? NULL
                                       : w->memory.offload             ? "cpu"
                                                                       : "none",
                            .progress = progress->sheet.live ? show : NULL,
                            .user = progress};
}

/* The first set-up as Transformers' own modules make it, unless that is what was asked for. */
static bool measure_other(const mti_options *o, const mt_fit_options *options,
                          const mt_fit_result *r, mti_fit_other *out)
{
    mti_options hf = *o;
    mti_fit_measured seen;
    *out = (mti_fit_other){0};
    if (!r->n_fitting || o->recipe) return true;
    hf.recipe = MTI_RECIPE_HF;
    if (!mti_recipe_apply(&hf)) return mti_fail_bool(MT_ERR_ARGUMENT, "%s", hf.error);
    if (!*hf.workload.recipe_options) return true;
    out->recipe = "hf";
    out->setup = r->setups[0];
    const mti_fit_task task = {.workload = &hf.workload,
                               .options = options,
                               .gpu = r->gpu,
                               .gpus = r->gpus,
                               .batch = r->batch,
                               .seq = r->seq,
                               .capacity = r->capacity,
                               .host_memory = r->host_memory,
                               .utilisation = o->plan.utilisation};
    mt_fit_result again = {0};
    bool ok = mti_fit_measure(&task, &out->setup, &seen) &&
              (out->setup.fits || mti_fit_run(&hf.workload, options, true, 0, NULL, &again));
    out->any = again.n_fitting > 0;
    mt_fit_free(&again);
    return ok;
}

static bool write_reports(const mti_options *o, const mt_fit_result *r,
                          const mti_fit_remedies *remedies, const mti_fit_other *other,
                          const mti_fit_published *trained, const mti_fit_most *most)
{
    char command[2048];
    mti_fit_report report = {.result = r,
                             .remedies = remedies,
                             .other = other,
                             .trained = trained,
                             .most = o->fit.max_seq || o->fit.max_batch ? most : NULL,
                             .workload = &o->workload,
                             .command = command,
                             .utilisation = o->plan.utilisation,
                             .published = !mti_is_given(o, MTI_O_UTILISATION),
                             .price = o->gpu.price,
                             .tokens = o->plan.tokens};
    report.rows = o->output.outside;
    if (!mti_is_given(o, MTI_O_CAPACITY) && !mti_is_given(o, MTI_O_KEEP_ASIDE))
        mti_gpu_outside(&report.outside, &r->gpu, r->gpus);
    const mti_options setup = profiled(o, r, &r->setups[0]);
    if (!mti_options_command(&setup, MTI_PROFILE, command, sizeof command)) return false;
    return (!mti_wants_text(o) || mti_print_fit(&report, stdout)) &&
           mti_json_write_of(mti_describe_fit, &report, o->output.json);
}

/* Searches for a set-up; of one GPU, if none fits, for the nearest. False on failure. */
static bool fit_kind(const mti_workload *w, const mt_fit_options *options, mti_fit_memo *memo,
                     mt_fit_setup *found)
{
    mt_fit_result r;
    bool ok = mti_fit_run(w, options, true, 0, memo, &r);
    if (ok && !r.n_fitting && options->gpus == 1) {
        mt_fit_free(&r);
        ok = mti_fit_run(w, options, false, 0, memo, &r);
    }
    if (ok && r.n) *found = r.setups[0];
    mt_fit_free(&r);
    return ok;
}

/* The same with adapters beside frozen weights, in 16 and in 4 bits: the first change that fits. */
static bool fit_adapters(const mti_changes *changes, const mt_fit_options *options,
                         mti_fit_memo *memo, mti_fit_kind *kind)
{
    bool ok = true;
    for (size_t i = 0; ok && i < changes->n; i++) {
        const mti_workload *w = &changes->at[i].workload;
        mti_fit_tried *t = &kind->adapted[w->memory.qlora];
        if (!w->memory.lora_rank || t->setup.fits) continue;
        t->tried = true;
        ok = fit_kind(w, options, memo, &t->setup);
    }
    return ok;
}

/* What is asked for, with the changes that adapt it. */
typedef struct kinds_question {
    mti_options options;
    mti_option_changes changes;
} kinds_question;

/* All kinds, several at a time. */
typedef struct kinds_search {
    const kinds_question *asked, *in_f16; /* in_f16: NULL if a dtype was asked for */
    mti_fit_kinds *all;
    mti_fit_memo *memo;
    mti_progress progress;
} kinds_search;

/* A kind as asked, and with adapters: two tasks, as their measurements have nothing in common. */
#define PARTS 2

static bool fit_ith_kind(void *user, size_t i)
{
    const kinds_search *s = user;
    mti_fit_kind *kind = &s->all->at[i / PARTS];
    const kinds_question *q = kind->in_f16 ? s->in_f16 : s->asked;
    mti_progress quiet = {0};
    mt_fit_options options = options_of(&q->options, kind->gpu, &quiet);
    options.threads = 1;
    if (kind->no_bf16) return true;
    if (i % PARTS)
        return options.gpus > 1 || fit_adapters(&q->changes.changes, &options, s->memo, kind);
    return fit_kind(&q->options.workload, &options, s->memo, &kind->setup);
}

static bool show_kind(void *user, size_t n_done, size_t i)
{
    kinds_search *s = user;
    (void)i;
    if (s->progress.sheet.live)
        mti_progress_step(&s->progress, (int64_t)(n_done / PARTS), "kinds of GPU");
    return true;
}

static int by_capacity(const void *a, const void *b)
{
    const size_t x = ((const mti_fit_kind *)a)->capacity, y = ((const mti_fit_kind *)b)->capacity;
    return (x > y) - (x < y);
}

/* Whether the model trains on so many GPUs of each kind. */
static bool fit_kinds(const kinds_question *asked, const kinds_question *in_f16, mti_fit_kinds *all)
{
    const mt_gpu *gpu;
    const bool bf16 = mti_multiplies_bf16(&asked->options.workload);
    for (size_t i = 0; (gpu = mt_gpu_at(i)) != NULL; i++) {
        const size_t aside = mti_kept_aside(&asked->options, gpu, asked->options.gpu.n);
        const mti_fit_kind kind = {.gpu = gpu,
                                   .capacity = gpu->memory - aside,
                                   .in_f16 = gpu->f16_only && bf16 && in_f16,
                                   .no_bf16 = gpu->f16_only && bf16 && !in_f16};
        if (!MTI_PUSH(all, kind)) return false;
    }
    kinds_search s = {.asked = asked, .in_f16 = in_f16, .all = all, .memo = mti_fit_memo_new()};
    mti_progress_begin(&s.progress, stderr, 0, (int64_t)all->n, 1, asked->options.output.quiet);
    bool ok =
        s.memo && mti_work_at_once(&(mti_tasks){
                      .n = PARTS * all->n, .work = fit_ith_kind, .done = show_kind, .user = &s});
    mti_progress_end(&s.progress);
    mti_fit_memo_free(s.memo);
    qsort(all->at, all->n, sizeof *all->at, by_capacity);
    return ok;
}

/* Parses all that was typed, and --gpu with a GPU that multiplies no bf16; *allowed: the options
 * and the type that the model then has go with it. argv: its words, freed after the options. */
static bool ask_in_f16(kinds_question *in_f16, const mti_options *o, char ***argv, bool *allowed)
{
    static char option[] = "--gpu", gpu[] = "t4";
    const size_t n = (size_t)o->argc;
    if (!(*argv = mti_calloc(n + 3, sizeof **argv))) return false;
    memcpy(*argv, o->argv, n * sizeof **argv);
    (*argv)[n] = option, (*argv)[n + 1] = gpu;
    const uint64_t failures = mti_failures();
    *allowed = mti_options_parse(&in_f16->options, o->rules, o->world, o->argc + 2, *argv) &&
               !mti_multiplies_bf16(&in_f16->options.workload);
    if (*allowed) return mti_option_changes_make(&in_f16->changes, &in_f16->options, true);
    return !mti_failed_since(failures) || mt_last_status() != MT_ERR_MEMORY;
}

static int fit_all_kinds(const mti_options *o)
{
    mti_fit_kinds all = {0};
    kinds_question asked = {.options = *o}, in_f16 = {0};
    char **argv = NULL;
    bool any = false, in_both = false;
    const bool typed = mti_is_given(o, MTI_O_DTYPE) || !mti_multiplies_bf16(&o->workload);
    bool ok = mti_option_changes_make(&asked.changes, o, true) &&
              (typed || ask_in_f16(&in_f16, o, &argv, &in_both)) &&
              fit_kinds(&asked, in_both ? &in_f16 : NULL, &all) &&
              (!mti_wants_text(o) || mti_print_fit_kinds(&all, &o->workload, o->gpu.n, stdout));
    for (size_t i = 0; i < all.n; i++) any = any || all.at[i].setup.fits;
    mti_free(all.at);
    mti_option_changes_free(&asked.changes);
    mti_option_changes_free(&in_f16.changes);
    mti_options_free(&in_f16.options);
    mti_free(argv);
    return !ok ? mti_report_failure(o) : any ? MTI_EXIT_OK : MTI_EXIT_FAILED;
}

int mti_fit(const mti_options *o)
{
    if (!mti_is_given(o, MTI_O_GPU)) return fit_all_kinds(o);
    mt_gpu gpu;
    mt_fit_result r = {0};
    mti_fit_remedies remedies;
    mti_option_changes changes;
    mti_fit_other other;
    mti_fit_published trained;
    mti_fit_most most = {.in_batches = o->fit.max_batch};
    mti_workload w = o->workload;
    mti_progress progress;
    mti_progress_begin(&progress, stderr, 0, 1, 1, o->output.quiet);
    bool ok = mti_option_changes_make(&changes, o, true) && mti_find_gpu(o, &gpu);
    if (ok && o->workload.device.capacity > gpu.memory)
        gpu.memory = o->workload.device.capacity; /* whoever gives more knows of more */
    mt_fit_options options = options_of(o, &gpu, &progress);
    if (ok && (o->fit.max_seq || o->fit.max_batch)) ok = mti_fit_find_most(&most, &w, &options);
    ok = ok && mti_fit_run(&w, &options, false, 0, NULL, &r) &&
         mti_fit_remedies_make(&remedies, &r, &w, &options, &changes.changes) &&
         measure_other(o, &options, &r, &other) && mti_fit_measure_published(&w, &r, &trained);
    mti_progress_end(&progress);
    ok = ok && write_reports(o, &r, &remedies, &other, &trained, &most);
    int status = !ok ? mti_report_failure(o) : r.n_fitting ? MTI_EXIT_OK : MTI_EXIT_FAILED;
    mt_fit_free(&r);
    mti_option_changes_free(&changes);
    return status;
}

const mti_verb_rules mti_fit_rules = {
    .verb = MTI_FIT, .defaults = set_defaults, .check = check, .complete = mti_complete_for_gpu};
