/* option_fit.c: options of a fit, and the command that profiles one of its set-ups. */
#include <string.h>
#include "cli/option_rows.h"
#include "nn/model.h"

/* Those that a set-up is made of, or that are of the whole search. */
static bool is_searched(mti_option id)
{
    static const mti_option searched[] = {
        MTI_O_BATCH, MTI_O_SEQ,   MTI_O_TP,         MTI_O_PP,      MTI_O_INTERLEAVE,
        MTI_O_CP,    MTI_O_ZERO,  MTI_O_CHECKPOINT, MTI_O_OFFLOAD, MTI_O_CAPACITY,
        MTI_O_JSON,  MTI_O_QUIET, MTI_O_HELP};
    for (size_t i = 0; i < sizeof searched / sizeof *searched; i++)
        if (searched[i] == id) return true;
    return false;
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
    add(w, w->n ? " --" : "--");
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

bool mti_keep_word(mti_options *o, const mti_option_row *r, const char *value)
{
    words w = {.at = o->fit.plain, .size = sizeof o->fit.plain, .n = strlen(o->fit.plain)};
    if (o->verb != MTI_FIT || !(r->verbs >> MTI_PROFILE & 1) || is_searched(r->id)) return true;
    add_option(&w, r->name, value);
    return !w.full || mti_options_refuse(o, "--%s: the options are longer than %zu bytes together",
                                         r->name, sizeof o->fit.plain);
}

static bool chosen(const mti_options *o, mti_option id) { return o->given[id] || o->by_recipe[id]; }

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

bool mti_profile_command(const mti_options *o, const mt_fit_result *r, const mt_fit_setup *s,
                         char *buf, size_t n)
{
    words w = {.at = buf, .size = n};
    add(&w, "memtape profile ");
    add_value(&w, o->workload.name);
    if (*o->fit.plain) add(&w, " ");
    add(&w, o->fit.plain);
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

/* ---- what a fit needs ---- */

bool mti_check_fit(mti_options *o)
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
    if (w->memory.offload == MTI_OFFLOAD_DISK)
        return mti_options_refuse(o,
                                  "--offload disk: a fit knows no disk's speed; give none or cpu");
    if (!mti_check_factored(o)) return false;
    if (o->given[MTI_O_UTILISATION] && o->plan.utilisation == 0)
        return mti_options_refuse(o, "--utilisation: 0 is not a number above 0, up to 1");
    if (!chosen(o, MTI_O_OPTIMIZER) && !chosen(o, MTI_O_MASTER))
        w->memory.master = mt_dtype_size(w->config.dtype) == 2 && !w->parallel.f32_shards;
    return true;
}
