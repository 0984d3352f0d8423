/* demo.c: `memtape demo`: a minute of training on real text, then where its memory went. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "verbs/run_file.h"
#include "verbs/verbs.h"
#include "measure/headroom.h"
#include "report/terminal.h"

#define HELD_FRACTION 0.1
#define MAX_TIMED     64   /* at most so many steps are timed to plan the run */
#define TIMING_SHARE  0.04 /* share of the time for that */
#define LEAST_STEPS   400  /* fewer write hardly any words */
#define MOST_PASSES   8    /* through the text; with more it is learnt by heart */
#define SAMPLE_BYTES  240  /* after each prompt */
#define EVAL_COST     0.4  /* time of a forward alone, in steps */

/* After LEAST_STEPS of the sayings, held-out text takes 2.57 bits a byte. A GPT with learned
 * positions and AdamW, whose steps take as long, is at 3.18. */
static const mt_model_config demo_config = {.kind = MT_MODEL_LLAMA,
                                            .hidden = 128,
                                            .heads = 4,
                                            .layers = 3,
                                            .vocab = 256,
                                            .context = 64,
                                            .mlp = MT_MLP_GATED,
                                            .ffn = 256,
                                            .act = MT_ACT_GELU,
                                            .norm_kind = MT_NORM_RMS,
                                            .causal = true,
                                            .dtype = MT_F32};
#define DEMO_BATCH     16
#define DEMO_OPTIMIZER MTI_OPT_MUON
static const mti_train_settings demo_settings = {
    .accumulate = 1, .lr = 8e-3, .min_lr = 4e-4, .weight_decay = 0.1, .clip = 1};

#define MAX_PROMPTS 5
#define MAX_PLACES  9
#define FORTUNES    "/usr/share/games/fortunes/" /* where Debian has them */

/* A text to learn from, and what the model then goes on from. */
typedef struct known_text {
    const char *what;
    const char *const *places; /* files and folders, any of which may be missing */
    size_t n_places;
    const char *before;               /* what stands before each prompt; it is not shown */
    const char *prompts[MAX_PROMPTS]; /* fewer: then NULL */
    const char *then;                 /* the prompt of the `generate` that is suggested */
} known_text;

typedef struct demo {
    const mti_options *o;
    const known_text *text;
    const char *file; /* the first of the text's places that is there */
    mti_sheet sheet;
    double began;
    mt_device *device;
    mti_corpus corpus;
    mti_baselines baselines;
    mti_workload workload;
    mti_train_settings settings;
    mti_trainer trainer;
    double bits; /* per byte of held-out text */
} demo;

/* ---- text ---- */

#define N(array) (sizeof(array) / sizeof *(array))

/* Sayings of the package fortunes; between them are lines "%". */
static const char *const of_fortunes[] = {FORTUNES "platitudes", FORTUNES "wisdom"};

/* memtape's own text: the source tree that it was built from. */
static const char *const of_sources[] = {
    MTI_SOURCE_DIR "/src",     MTI_SOURCE_DIR "/models",   MTI_SOURCE_DIR "/lab",
    MTI_SOURCE_DIR "/program", MTI_SOURCE_DIR "/include",  MTI_SOURCE_DIR "/docs",
    MTI_SOURCE_DIR "/tests",   MTI_SOURCE_DIR "/examples", MTI_SOURCE_DIR "/README.md"};
static const char *const installed[] = {MTI_DATA_DIR "/demo"};

static const known_text texts[] = {
    {"fortunes",
     of_fortunes,
     N(of_fortunes),
     "%\n",
     {"A bird in the hand ", "Never ", "If you ", "Love is ", "The best "},
     "A fool "},
    {"memtape's own text", of_sources, N(of_sources), "", {"/* "}, "static "},
    {"memtape's own text", installed, N(installed), "", {"/* "}, "static "},
};

/* Loads the first of the demo's texts that is on this machine. */
static bool load_own_text(demo *d)
{
    for (size_t i = 0; i < N(texts); i++) {
        const char *found[MAX_PLACES];
        size_t n = 0;
        for (size_t j = 0; j < texts[i].n_places; j++)
            if (access(texts[i].places[j], R_OK) == 0) found[n++] = texts[i].places[j];
        if (n == 0) continue;
        d->text = &texts[i];
        d->file = found[0];
        return mti_corpus_load(&d->corpus, n, found, HELD_FRACTION, true);
    }
    return mti_fail_bool(MT_ERR_IO, "memtape's own text is not on this machine; give some with "
                                    "--data");
}

static bool load_given_text(demo *d)
{
    static const known_text given = {
        .what = "your text", .before = "", .prompts = {"The "}, .then = "The "};
    d->text = &given;
    d->file = d->o->train.data.at[0];
    return mti_corpus_load(&d->corpus, d->o->train.data.n, d->o->train.data.at, HELD_FRACTION,
                           true);
}

static bool load_text(demo *d)
{
    if (!(d->o->train.data.n ? load_given_text(d) : load_own_text(d))) return false;
    if (d->o->output.quiet) return mti_baselines_fit(&d->baselines, &d->corpus);
    mti_inked(&d->sheet, MTI_BOLD, "memtape demo\n");
    mti_print(
        stdout,
        "text   %s, %zu file%s: %s bytes to learn from, the last tenth of each, %s bytes, held "
        "out\n",
        d->text->what, d->corpus.n_files, d->corpus.n_files == 1 ? "" : "s",
        MTI_THOUSANDS(d->corpus.n_train), MTI_THOUSANDS(d->corpus.n_held));
    return mti_baselines_fit(&d->baselines, &d->corpus);
}

/* ---- training ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of a step: the median of a few, whose training is thrown away. */
static bool time_steps(demo *d, double *step_s)
{
    mti_train_settings settings = d->settings;
    double took[MAX_TIMED];
    int n = 0;
    settings.steps = MAX_TIMED;
    bool ok = mti_trainer_make(&d->trainer, d->device, &d->workload, &settings, &d->corpus) &&
              mti_trainer_step(&d->trainer); /* warm-up, not timed */
    double began = mti_now(), enough = d->o->train.seconds * TIMING_SHARE;
    while (ok && n < MAX_TIMED && (n < 3 || mti_now() - began < enough)) {
        double before = mti_now();
        ok = mti_trainer_step(&d->trainer);
        took[n++] = mti_now() - before;
    }
    mti_trainer_free(&d->trainer);
    qsort(took, (size_t)n, sizeof *took, by_value);
    *step_s = n ? took[n / 2] : 0;
    return ok;
}

/* Chooses as many steps as fit the time left, less what comes after training, measured in steps:
 * the held-out text, the sample, and four measured steps with their models. */
static bool choose_steps(demo *d)
{
    double step_s;
    if (!time_steps(d, &step_s)) return false;
    double held_out =
        EVAL_COST * (double)d->corpus.n_held / (double)(d->workload.batch * d->workload.seq);
    double sample = EVAL_COST * MAX_PROMPTS * SAMPLE_BYTES / (double)d->workload.batch;
    double remaining = d->o->train.seconds - (mti_now() - d->began);
    double steps = remaining / step_s - held_out - sample - 12;
    double passes =
        MOST_PASSES * (double)d->corpus.n_train / (double)(d->workload.batch * d->workload.seq);
    if (steps > passes) steps = passes > LEAST_STEPS ? passes : LEAST_STEPS;
    if (steps < LEAST_STEPS) {
        mti_print(stdout,
                  "note   this machine is slow just now: it will take longer than %g seconds\n",
                  d->o->train.seconds);
        steps = LEAST_STEPS;
    }
    d->settings.steps = (int64_t)steps;
    return true;
}

static bool introduce(const demo *d)
{
    uint64_t n_params, n_bytes;
    if (mt_module_size(d->trainer.model, &n_params, &n_bytes) != MT_OK) return false;
    const mti_workload *w = &d->workload;
    long long steps = d->settings.steps;
    int threads = mt_device_threads(d->device);
    mti_print(stdout,
              "model  a %s of %lld layers, h=%lld, %lld heads, s=%lld: %s parameters, f32, on %d "
              "thread%s\n",
              mt_model_kind_name(w->config.kind), (long long)w->config.layers,
              (long long)w->config.hidden, (long long)w->config.heads, (long long)w->seq,
              MTI_THOUSANDS(n_params), threads, threads == 1 ? "" : "s");
    mti_print(stdout,
              "run    %lld steps of %lld x %lld bytes with %s, seed %lld (--steps %lld repeats "
              "it)\n\n",
              steps, (long long)w->batch, (long long)w->seq, mti_optimizer_name(w->optimizer),
              (long long)w->seed, steps);
    fflush(stdout);
    return true;
}

static void show_progress(const demo *d, mti_progress *progress)
{
    char text[160];
    mt_mem_stats stats;
    mt_mem_get_stats(d->device, &stats);
    double tokens = (double)(d->trainer.step * d->workload.batch * d->workload.seq);
    mti_format(text, sizeof text, "loss %.3f  %s tok/s  %s (peak %s)", d->trainer.loss,
               MTI_SCALED(tokens / (mti_now() - progress->began)),
               MTI_BYTES(stats.allocated.current), MTI_BYTES(stats.allocated.peak));
    mti_progress_step(progress, d->trainer.step, text);
}

static bool train(demo *d)
{
    mti_progress progress;
    int64_t steps = d->settings.steps;
    bool ok = mti_trainer_make(&d->trainer, d->device, &d->workload, &d->settings, &d->corpus) &&
              (d->o->output.quiet || introduce(d));
    mti_progress_begin(&progress, stdout, 0, steps, steps / 10, d->o->output.quiet);
    while (ok && d->trainer.step < steps) {
        ok = mti_trainer_step(&d->trainer);
        if (ok) show_progress(d, &progress);
    }
    mti_progress_end(&progress);
    return ok && mti_trainer_held_out(&d->trainer, 0, &d->bits);
}

/* ---- results ---- */

static bool print_scores(const demo *d)
{
    mti_heading(&d->sheet, "On held-out text (less is better)");
    mti_table *t = mti_table_new("lrl", "model|bits per byte|");
    mti_table_cells(t, "uniform|%.4f|knows nothing", d->baselines.uniform);
    mti_table_cells(t, "unigram|%.4f|knows how often each byte occurs", d->baselines.unigram);
    mti_table_cells(t, "bigram|%.4f|knows which byte follows which", d->baselines.bigram);
    mti_table_ink(t, d->bits < d->baselines.bigram ? MTI_GOOD : MTI_BAD);
    mti_table_cells(t, "memtape's %s|%.4f|sees up to %lld bytes",
                    mt_model_kind_name(d->workload.config.kind), d->bits,
                    (long long)d->workload.seq);
    return mti_table_finish(t, &d->sheet);
}

typedef struct sample_text {
    unsigned char text[SAMPLE_BYTES];
    size_t n;
} sample_text;

/* Takes a byte; a line "%" ends a fortune. */
static bool keep_byte(void *user, int64_t token)
{
    sample_text *s = user;
    s->text[s->n++] = (unsigned char)token;
    bool ends = s->n > 1 && memcmp(s->text + s->n - 2, "\n%", 2) == 0;
    if (ends) s->n -= 2;
    return !ends && s->n < SAMPLE_BYTES;
}

/* Prints what the model makes of the i-th beginning, with other draws for each. */
static bool print_sample(const demo *d, int i)
{
    const char *prompt = d->text->prompts[i];
    char text[64];
    int64_t ids[sizeof text];
    mti_format(text, sizeof text, "%s%s", d->text->before, prompt);
    size_t n = strlen(text);
    for (size_t j = 0; j < n; j++) ids[j] = (unsigned char)text[j];
    sample_text s = {.n = 0};
    const mt_generate_options options = {.temperature = 0.5,
                                         .seed = d->workload.seed + (uint64_t)i};
    if (!mti_sample(d->trainer.model, ids, (int64_t)n, SAMPLE_BYTES, &options, keep_byte, &s, NULL))
        return false;
    mti_inked(&d->sheet, MTI_BOLD, "%s", prompt);
    mti_print_bytes(stdout, s.text, s.n);
    fputc('\n', stdout);
    return true;
}

static bool print_samples(const demo *d)
{
    bool ok = true;
    mti_heading(&d->sheet, "It writes, when it is given the beginning");
    for (int i = 0; ok && i < MAX_PROMPTS && d->text->prompts[i]; i++) ok = print_sample(d, i);
    return ok;
}

/* ---- where the memory goes ---- */

/* A row: one training step of the model with these choices. */
static bool memory_row(const demo *d, mti_table *t, mt_act act, mt_attention_form form)
{
    mti_measurement m = {0};
    mti_workload w = d->workload;
    w.config.act = act;
    w.config.attention = form;
    mt_device *device = mti_device_make(&w.device);
    bool ok = device && mti_measure(&m, device, &w, NULL);
    if (ok)
        mti_table_cells(t, "%s|%s|%s|%s|%s|%s", mt_act_name(act), mt_attention_form_name(form),
                        MTI_THOUSANDS(mt_ledger_bytes(m.ledger)),
                        MTI_THOUSANDS(m.phases.at[1].allocated), MTI_THOUSANDS(m.steady.peak),
                        m.growth.residual ? "NO" : "yes");
    if (ok && m.growth.residual)
        ok = mti_fail_bool(MT_ERR_INTERNAL, "the books do not balance: off by %lld bytes",
                           (long long)m.growth.residual);
    mti_measurement_free(&m);
    mt_device_release(device);
    return ok;
}

static bool print_memory(const demo *d)
{
    mti_heading(&d->sheet, "Where one step's memory goes: the same model, four ways, "
                           "each measured (bytes)");
    mti_table *t = mti_table_new(
        "llrrrr", "activation|attention|saved for backward|after forward|peak|books balance");
    bool ok = memory_row(d, t, MT_ACT_RELU, MT_ATTENTION_FLASH) &&
              memory_row(d, t, MT_ACT_GELU, MT_ATTENTION_FLASH) &&
              memory_row(d, t, MT_ACT_RELU, MT_ATTENTION_MATH) &&
              memory_row(d, t, MT_ACT_GELU, MT_ATTENTION_MATH) &&
              mti_table_print(t, &d->sheet) == MT_OK;
    mti_table_free(t);
    if (ok)
        fputs(
            "  ReLU keeps its output, which the gate's multiplication keeps anyway; GELU keeps its "
            "input besides.\n  Math attention keeps a weight for every pair of positions; flash "
            "computes them again.\n",
            stdout);
    return ok;
}

/* A file for `memtape train` whose name needs no quotes in a shell; NULL if there is none. */
static const char *text_to_train_on(const demo *d)
{
    const char *path =
        d->text->places == of_sources ? MTI_SOURCE_DIR "/program/verbs/demo.c" : d->file;
    struct stat st;
    bool plain =
        strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") ==
        strlen(path);
    return plain && stat(path, &st) == 0 && S_ISREG(st.st_mode) ? path : NULL;
}

static bool print_next(demo *d)
{
    const char *program = d->o->program;
    mti_heading(&d->sheet, "What to try next");
    if (d->o->train.save) {
        char where[4096];
        if (!mti_run_save(&d->trainer, d->o->train.save, HELD_FRACTION, where, sizeof where))
            return false;
        mti_print(stdout, "  %s generate --model %s --prompt \"%s\" --tokens 400\n", program, where,
                  d->text->then);
    }
    mti_print(stdout, "  %s explain mlp --act gelu\n", program);
    mti_print(stdout, "  %s profile block --attention math --dropout 0.1\n", program);
    mti_print(stdout, "  %s profile mlp -b 2 -s 4096 -d 1024 --dtype bf16 --act relu\n", program);
    const char *text = text_to_train_on(d);
    if (text) mti_print(stdout, "  %s train --data %s --preset tiny --steps 200\n", program, text);
    char took[MTI_NUMBER];
    mti_print(stdout, "\n%s in all\n", mti_duration(took, mti_now() - d->began));
    return true;
}

static bool run(demo *d)
{
    const mti_options *o = d->o;
    d->workload = o->workload;
    d->workload.name = "the model", d->workload.config = demo_config;
    d->workload.batch = DEMO_BATCH, d->workload.seq = demo_config.context;
    d->workload.optimizer = DEMO_OPTIMIZER;
    d->settings = demo_settings;
    d->settings.steps = o->train.settings.steps; /* of --steps, or chosen below */
    d->device = mti_open_device(&d->workload);
    if (!d->device || !mti_check_room_for(d->device, &d->workload, MTI_PROFILE_ON_META) ||
        !mti_run_can_save("save", o->train.save, true) || !load_text(d))
        return false;
    if (o->train.save && mti_corpus_has(&d->corpus, o->train.save))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "--save %s: is part of the text to learn from; give another file",
                             o->train.save);
    if (!mti_is_given(o, MTI_O_STEPS) && !choose_steps(d)) return false;
    d->settings.warmup = d->settings.steps / 10;
    return train(d) && print_scores(d) && print_samples(d) && print_memory(d) && print_next(d);
}

int mti_demo(const mti_options *o)
{
    demo d = {.o = o, .sheet = mti_sheet_of(stdout), .began = mti_now()};
    int status = run(&d) ? MTI_EXIT_OK : mti_report_failure(o);
    if (status == MTI_EXIT_OK && !(d.bits < d.baselines.bigram)) {
        mti_print(stderr, "memtape demo: %.4f bits per byte do not beat the bigram model's %.4f\n",
                  d.bits, d.baselines.bigram);
        status = MTI_EXIT_FAILED;
    }
    mti_trainer_free(&d.trainer);
    mti_corpus_free(&d.corpus);
    mt_device_release(d.device);
    return status;
}
