/* fit.c: `memtape fit MODEL`: whether a model trains on some GPUs, and the fastest ways to. */
#include <string.h>
#include "cli/option_rows.h"
#include "cli/verbs.h"
#include "fit/fit.h"
#include "nn/model.h"
#include "report/results.h"

/* ---- options ---- */

static void set_defaults(mti_options *o)
{
    mti_default_on_meta(o);
    o->workload.batch = 0; /* a sequence a GPU */
}

static bool complete(mti_options *o, mt_model_config *base)
{
    return mti_complete_on_meta(o, base, MTI_USUAL_SEQ);
}

static bool chosen(const mti_options *o, mti_option id) { return o->given[id] || o->by_recipe[id]; }

static bool check(mti_options *o)
{
    mti_workload *w = &o->workload;
    if (!mti_is_whole(w->config.kind))
        return mti_options_refuse(o,
                                  "MODEL: a %s cannot be divided among GPUs; give a gpt, bert, "
                                  "llama, a preset or a path to a config.json",
                                  mt_model_kind_name(w->config.kind));
    if (!o->given[MTI_O_GPUS])
        return mti_options_refuse(o, "--gpus is missing; give how many train the model together");
    if (!o->given[MTI_O_GPU])
        return mti_options_refuse(o, "--gpu is missing; give their kind, such as h100");
    if (!chosen(o, MTI_O_OPTIMIZER) && !chosen(o, MTI_O_MASTER))
        w->memory.master = mt_dtype_size(w->config.dtype) == 2 && !w->parallel.f32_shards;
    return true;
}

/* ---- words of a command ---- */

typedef struct words {
    char *at;
    size_t size, n;
    bool full;
} words;

static void add(words *w, const char *text)
{
    size_t n = strlen(text);
    w->full = w->full || w->n + n + 1 > w->size;
    if (w->full) return;
    memcpy(w->at + w->n, text, n + 1);
    w->n += n;
}

static bool is_plain(const char *text)
{
    return *text && strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                 "-_./=+,:@%") == strlen(text);
}

/* As a shell takes it. */
static void add_value(words *w, const char *text)
{
    if (is_plain(text)) {
        add(w, text);
        return;
    }
    add(w, "'");
    for (const char *c = text; *c; c++) add(w, *c == '\'' ? "'\\''" : (char[]){*c, 0});
    add(w, "'");
}

static void add_option(words *w, const char *name, const char *value)
{
    add(w, " --");
    add(w, name);
    if (!value) return;
    add(w, " ");
    add_value(w, value);
}

static void add_number(words *w, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add_option(w, name, text);
}

static void add_rank(words *w, const mt_fit_setup *s)
{
    const mt_parallel *h = &s->parallel;
    add_number(w, "tp", h->tensor);
    if (h->sequence) add_option(w, "sp", NULL);
    add_number(w, "pp", h->pipeline);
    if (h->interleave > 1) add_number(w, "interleave", h->interleave);
    if (h->pipeline > 1) add_number(w, "stage", h->stage);
    add_number(w, "microbatches", h->microbatches);
    if (h->context > 1) add_number(w, "cp", h->context);
    add_number(w, "dp", h->data);
    if (h->data * h->context > 1) add_number(w, "zero", h->zero);
}

/* The command that profiles a set-up; false if it is too long for buf. */
static bool profile_command(const mti_options *o, const mt_fit_result *r, const mt_fit_setup *s,
                            char *buf, size_t n)
{
    words w = {.at = buf, .size = n};
    char value[MTI_VALUE_TEXT];
    add(&w, "memtape profile ");
    add_value(&w, o->workload.name);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *row = &mti_option_rows[id];
        if (o->given[id] && mti_takes(MTI_PROFILE, row) && !row->searched)
            add_option(&w, row->name, row->arg ? mti_option_text(o, row, value) : NULL);
    }
    if (!chosen(o, MTI_O_DTYPE)) add_option(&w, "dtype", mt_dtype_name(o->workload.config.dtype));
    if (!chosen(o, MTI_O_OPTIMIZER)) {
        add_option(&w, "optimizer", mti_optimizer_name(o->workload.optimizer));
        if (o->workload.memory.master && !chosen(o, MTI_O_MASTER))
            add_option(&w, "master-weights", NULL);
    }
    add_number(&w, "batch", s->microbatch);
    add_number(&w, "seq", r->seq);
    add_rank(&w, s);
    add_option(&w, "checkpoint", s->checkpoint);
    add_option(&w, "offload", s->offload);
    if (s->fits) add_number(&w, "capacity", (int64_t)r->capacity);
    add_option(&w, "device", "meta");
    return !w.full;
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

static bool find_gpu(const mti_options *o, mt_gpu *gpu)
{
    mt_status status =
        o->fit.file ? mt_gpu_find_in(o->fit.file, o->fit.gpu, gpu) : mt_gpu_find(o->fit.gpu, gpu);
    return status == MT_OK;
}

static mt_fit_options options_of(const mti_options *o, const mt_gpu *gpu, mti_progress *progress)
{
    const mti_workload *w = &o->workload;
    bool zero = o->given[MTI_O_ZERO] || o->by_recipe[MTI_O_ZERO];
    return (mt_fit_options){.gpu = gpu,
                            .gpus = o->fit.gpus,
                            .batch = w->batch,
                            .kept_aside = w->device.capacity ? gpu->memory - w->device.capacity : 0,
                            .utilisation = o->plan.utilisation,
                            .tensor = w->parallel.tensor,
                            .pipeline = w->parallel.pipeline,
                            .interleave = w->parallel.interleave,
                            .context = w->parallel.context,
                            .zero_plus_1 = zero ? (int)o->zero + 1 : 0,
                            .checkpoint = !o->given[MTI_O_CHECKPOINT] ? NULL
                                          : w->memory.checkpoint      ? w->memory.checkpoint
                                                                      : "none",
                            .offload = !o->given[MTI_O_OFFLOAD] ? NULL
                                       : w->memory.offload      ? "cpu"
                                                                : "none",
                            .progress = progress->style.live ? show : NULL,
                            .user = progress};
}

static bool write_reports(const mti_options *o, const mt_fit_result *r,
                          const mti_fit_remedies *remedies)
{
    char command[2048];
    mti_fit_report report = {.result = r,
                             .remedies = remedies,
                             .workload = &o->workload,
                             .command = command,
                             .utilisation = o->plan.utilisation,
                             .price = o->fit.price,
                             .tokens = o->plan.tokens};
    if (!profile_command(o, r, &r->setups[0], command, sizeof command))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "the command that profiles the first set-up is "
                             "longer than %zu bytes",
                             sizeof command);
    return (!mti_wants_text(o) || mti_print_fit(&report, stdout)) &&
           (!o->json || mti_json_write(mti_json_of(mti_describe_fit, &report), o->json) == MT_OK);
}

int mti_fit(const mti_options *o)
{
    mt_gpu gpu;
    mt_fit_result r = {0};
    mti_fit_remedies remedies;
    mti_progress progress;
    mti_progress_begin(&progress, stderr, 0, 1, 1, o->quiet);
    bool ok = find_gpu(o, &gpu);
    if (ok && o->workload.device.capacity > gpu.memory)
        gpu.memory = o->workload.device.capacity; /* whoever gives more knows of more */
    const mt_fit_options options = options_of(o, &gpu, &progress);
    ok = ok && mti_fit_run(&o->workload, &options, false, 0, &r) &&
         mti_fit_remedies_make(&remedies, &r, &o->workload, &options);
    mti_progress_end(&progress);
    ok = ok && write_reports(o, &r, &remedies);
    int status = !ok ? mti_report_failure(o) : r.n_fitting ? MTI_EXIT_OK : MTI_EXIT_FAILED;
    mt_fit_free(&r);
    return status;
}

const mti_verb_rules mti_fit_rules = {
    .verb = MTI_FIT, .defaults = set_defaults, .complete = complete, .check = check};
