/* train.c: `memtape train`: a byte-level GPT on any file. A run is resumable, and survives Ctrl-C,
 * a terminal that closes and a closed pipe. */
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "verbs/run_file.h"
#include "verbs/train_ranks.h"
#include "verbs/together.h"
#include "verbs/verbs.h"
#include "workload/routing.h"
#include "measure/headroom.h"
#include "report/pictures.h"

#define NAME       "memtape train"
#define EVAL_BYTES 32768 /* of held-out text, for evaluations during training */
#define TAKES_LESS                                                                                 \
    "--budget finds checkpoints that fit; a smaller --batch, or --lora-rank, takes less"

static volatile sig_atomic_t interrupted;

/* The process that watches over a rank that saves (together.h). It is killed when mpirun ends
 * before its ranks, as in `mpirun ... | head -1`; then they save, too. Where another rank has
 * failed they wait for it in vain. */
#define SECONDS_ALONE 10
static pid_t watcher;

/* The first signal stops training after this step. A second Ctrl-C, or another signal that comes
 * again, has its default effect. Not one of another kind: systemd sends SIGTERM and SIGHUP. And not
 * one that came moments ago: a terminal that closes and its shell each send SIGHUP, and systemd and
 * mpirun each send SIGTERM to a rank. */
static void on_signal(int number)
{
    static volatile time_t first[NSIG]; /* of each kind; 0: none */
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!interrupted) interrupted = number;
    if (watcher && getppid() != watcher) alarm(SECONDS_ALONE);
    if (!first[number]) {
        first[number] = now.tv_sec + 1;
    } else if (number == SIGINT || now.tv_sec + 1 - first[number] > 2) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

/* Signals that are ignored already stay so: nohup, background jobs. */
static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, previous;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &previous) == 0 && previous.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

static void outlive_watcher(void)
{
    watcher = getppid();
    mti_end_with_parent(SIGTERM);
    if (watcher == 1) raise(SIGTERM);
}

typedef struct run {
    mti_options o; /* completed by the file a run is resumed from */
    mti_corpus corpus;
    mt_budget *budget; /* NULL: none was given */
    mt_device *device;
    mti_snapshot *snapshot; /* NULL: none is asked for */
    int observer;           /* that writes it */
    bool snapshot_failed;   /* training goes on without it; the reason: */
    mti_error snapshot_error;
    mti_trainer trainer;
    mti_recorder recorder; /* with --record-routing */
    mt_safetensors *file;  /* that the run is resumed from, while it is set up; NULL: none */
    mti_progress progress;
    double step_s; /* seconds of a step, smoothed */
    int64_t saved_at;
    int stopped_by;           /* a signal that ended training early; 0: none */
    mti_rank_figures figures; /* of one of several ranks; its first steps' ... */
    int64_t watched, wanted;  /* ... which are so many, and on meta */
    int64_t scaled_before;    /* steps of the loss scaler before this run */
} run;

/* The first of several ranks prints. */
static bool prints(const run *r) { return !r->o.world || mt_comm_group(r->o.world).rank == 0; }

/* ---- setting up ---- */

/* Defaults that depend on other options; a resumed run keeps its own. */
static void fill_defaults(mti_options *o)
{
    mti_train_settings *s = &o->train.settings;
    if (!mti_is_given(o, MTI_O_LR)) s->lr = mti_optimizer_row_of(o->workload.optimizer)->params.lr;
    if (!mti_is_given(o, MTI_O_MIN_LR)) s->min_lr = s->lr / 10;
    if (!mti_is_given(o, MTI_O_WARMUP)) s->warmup = s->steps / 20;
}

/* Two steps on meta: the first one makes the optimizer's state. */
static mt_status rehearse(void *user, mt_device *device, const mt_budget_plan *budget)
{
    const run *r = user;
    mti_trainer t = {0};
    mti_workload w = r->o.workload;
    mti_train_settings settings = r->o.train.settings;
    settings.from = NULL; /* any weights will do */
    w.memory.budget = budget;
    bool ok = mti_device_pretend(device, &w.device) &&
              mti_trainer_make(&t, device, &w, &settings, &r->corpus) && mti_trainer_step(&t) &&
              mti_trainer_step(&t);
    mti_trainer_free(&t);
    return ok ? MT_OK : mt_last_status();
}

static bool find_budget(run *r)
{
    const mt_budget_plan *plan;
    if (!r->o.workload.budget) return true;
    r->budget = mt_budget_new(rehearse, r);
    if (!r->budget || mt_budget_solve(r->budget, r->o.workload.budget, &plan) != MT_OK)
        return false;
    r->o.workload.memory.budget = plan;
    return true;
}

static bool rehearse_run(void *user, mt_device *meta)
{
    const run *r = user;
    return rehearse(user, meta, r->o.workload.memory.budget) == MT_OK;
}

static bool open_device(run *r)
{
    mti_workload w = r->o.workload;
    w.name = w.preset ? w.preset : "this model";
    return (r->device = mti_open_device(&w)) &&
           mti_check_room(r->device, &w, rehearse_run, r, MTI_ON_META) &&
           (r->o.world || mti_check_capacity(&w, rehearse_run, r, TAKES_LESS));
}

/* Called under the device's lock in the midst of an op, whose error it must not replace. */
static void note_event(void *user, const mt_mem_event *event)
{
    run *r = user;
    mti_error before;
    if (r->snapshot_failed) return;
    mti_error_get(&before);
    if (mti_snapshot_add(r->snapshot, event, mti_now())) return;
    r->snapshot_failed = true;
    mti_error_get(&r->snapshot_error);
    mti_error_set(&before);
}

static bool begin_snapshot(run *r)
{
    if (!r->o.output.snapshot) return true;
    r->snapshot = mti_snapshot_begin(r->o.output.snapshot, mt_device_kind(r->device),
                                     mt_device_has_data(r->device));
    if (r->snapshot) r->observer = mt_mem_add_observer(r->device, note_event, r);
    if (r->observer) return true;
    mti_snapshot_abandon(r->snapshot);
    r->snapshot = NULL;
    return false;
}

/* A run that failed has one, too: up to the failure, which stays the error. */
static bool end_snapshot(run *r)
{
    if (r->observer) mt_mem_remove_observer(r->device, r->observer);
    mti_snapshot *s = r->snapshot;
    r->snapshot = NULL, r->observer = 0;
    if (!s) return true;
    if (!r->snapshot_failed) return mti_snapshot_end(s) == MT_OK;
    mti_snapshot_abandon(s);
    mti_error_set(&r->snapshot_error);
    return false;
}

static void end_watch(mti_trainer *t, size_t figures[MTI_FIGURES])
{
    const mti_watched watched = mti_trainer_end_watch(t);
    figures[MTI_SAVED] = watched.saved;
    figures[MTI_PEAK] = watched.peak;
    figures[MTI_RESERVED] = watched.reserved;
}

/* What this rank's first steps take, on meta. */
static bool predict(run *r)
{
    mti_trainer t = {0};
    mti_workload w = r->o.workload;
    w.device = mti_device_twin(&w.device);
    mti_train_settings settings = r->o.train.settings;
    settings.from = NULL; /* any weights will do */
    mt_device *meta = mti_device_make(&w.device);
    bool ok = meta && mti_trainer_make(&t, meta, &w, &settings, &r->corpus) &&
              (!r->file || mti_run_restore(r->file, &t)) && mti_trainer_begin_watch(&t);
    const int64_t left = settings.steps - t.step;
    r->wanted = left < MTI_WATCHED_STEPS ? left : MTI_WATCHED_STEPS;
    for (int64_t i = 0; ok && i < r->wanted; i++) ok = mti_trainer_step(&t);
    if (ok) end_watch(&t, r->figures.predicted);
    mti_trainer_free(&t);
    mt_device_release(meta);
    return ok;
}

static bool make_trainer(run *r)
{
    if (!find_budget(r) || (r->o.world && !predict(r))) return false;
    bool ok =
        mti_train_ranks_share_room(&r->o, &r->figures, open_device(r)) && begin_snapshot(r) &&
        mti_trainer_make(&r->trainer, r->device, &r->o.workload, &r->o.train.settings, &r->corpus);
    r->trainer.world = r->o.world;
    return ok;
}

/* In tokens if the model is from a folder with a tokenizer, else in bytes. */
static bool load_text(run *r)
{
    const struct mti_train_words *asked = &r->o.train;
    const mt_model_config *c = &r->o.workload.config;
    const char *from = asked->settings.folder;
    mt_tokenizer *t = NULL;
    if (!mti_corpus_load(&r->corpus, asked->data.n, asked->data.at, asked->val_fraction, false) ||
        (from && !mti_tokenizer_find(from, c, &t)))
        return false;
    bool ok = t ? mti_corpus_encode(&r->corpus, t)
                : mti_run_over_bytes(from            ? from
                                     : asked->resume ? asked->resume
                                                     : "the model",
                                     c);
    mt_tokenizer_free(t);
    return ok;
}

static bool resume(run *r)
{
    const struct mti_train_words *t = &r->o.train;
    uint64_t fingerprint;
    r->file = mt_safetensors_open(t->resume);
    bool ok = r->file && mti_run_read_settings(r->file, &r->o, &fingerprint) &&
              mti_run_fits(r->file, &r->o) && load_text(r) && make_trainer(r) &&
              mti_run_restore(r->file, &r->trainer);
    mt_safetensors_free(r->file);
    r->file = NULL;
    if (!ok) return false;
    if (r->trainer.step > t->settings.steps)
        return mti_fail_bool(
            MT_ERR_ARGUMENT,
            "--steps %lld: the run in %s has made %lld steps; give that many or more",
            (long long)t->settings.steps, t->resume, (long long)r->trainer.step);
    if (fingerprint != r->corpus.fingerprint && prints(r))
        fputs("memtape train: note: the text is not the one this run began with\n", stderr);
    if (!r->o.output.quiet)
        mti_print(stdout, "resumed from %s at step %lld of %lld\n", t->resume,
                  (long long)r->trainer.step, (long long)t->settings.steps);
    return true;
}

/* The model of the file that --from names; options given override its config. */
static bool read_base_config(mti_options *o)
{
    mti_train_settings *s = &o->train.settings;
    mt_model_config config;
    s->reader = &mti_run_weights;
    const bool foreign = mti_run_is_foreign(s->from);
    bool ok = mti_run_read_config(s->from, &config);
    char *whole = foreign ? mti_path_from_root(s->from) : NULL; /* resumed from anywhere */
    if (foreign) ok = ok && whole && (s->folder = mti_intern(whole));
    mti_free(whole);
    /* the context of such a model may be longer than any text */
    if (ok && !mti_is_given(o, MTI_O_SEQ) && (!foreign || config.context < o->workload.seq))
        o->workload.seq = config.context;
    if (ok && !mti_options_config(o, &config)) ok = mti_fail_bool(MT_ERR_ARGUMENT, "%s", o->error);
    return ok && mti_run_holds(s->from, &o->workload.config);
}

static bool start(run *r)
{
    fill_defaults(&r->o);
    return (!r->o.train.settings.from || read_base_config(&r->o)) && load_text(r) &&
           make_trainer(r);
}

static void introduce(const run *r)
{
    const mti_workload *w = &r->o.workload;
    const mti_train_settings *s = &r->o.train.settings;
    const mt_model_config *c = &w->config;
    const mti_memory_options *memory = &w->memory;
    int64_t n_trained;
    uint64_t frozen_bytes;
    mti_count_trained(r->trainer.model, c, memory, &n_trained, &frozen_bytes);
    mti_print(stdout, "text   %s bytes to learn from, %s held out\n",
              MTI_THOUSANDS(r->corpus.n_train), MTI_THOUSANDS(r->corpus.n_held));
    if (r->corpus.in_tokens)
        mti_print(stdout, "tokens %s to learn from, %s held out\n",
                  MTI_THOUSANDS(mti_corpus_length(&r->corpus, false)),
                  MTI_THOUSANDS(mti_corpus_length(&r->corpus, true)));
    mti_print(stdout,
              "model  %s, %s parameters%s: %lld layers, h=%lld, %lld heads, %s, %s attention, %s\n",
              mt_model_kind_name(c->kind), MTI_THOUSANDS(n_trained),
              memory->lora_rank ? " to train" : "", (long long)c->layers, (long long)c->hidden,
              (long long)c->heads, mt_act_name(c->act), mt_attention_form_name(c->attention),
              mt_dtype_name(c->dtype));
    if (*w->recipe) mti_print(stdout, "recipe %s: %s\n", w->recipe, w->recipe_options);
    if (memory->lora_rank)
        mti_print(stdout, "adapt  rank %lld beside %s; %s bytes are frozen%s\n",
                  (long long)memory->lora_rank,
                  memory->lora_targets.text ? memory->lora_targets.text : "every linear",
                  MTI_THOUSANDS(frozen_bytes),
                  !memory->qlora                    ? ""
                  : memory->codes == MTI_CODES_INT8 ? ", those of linears in 8 bits"
                                                    : ", those of linears in NF4");
    if (memory->budget) {
        mt_budget_figures f = mt_budget_plan_figures(memory->budget);
        mti_print(stdout,
                  "memory %s bytes in a training step at most; %.1f %% of it is computed again\n",
                  MTI_THOUSANDS(f.peak),
                  100 * (double)f.flops.recompute / (double)(f.flops.forward + f.flops.backward));
    }
    mti_print(stdout,
              "run    %lld steps of %lld x %lld %s, lr %g to %g after %lld of warm-up, seed %lld\n",
              (long long)s->steps, (long long)(w->batch * s->accumulate), (long long)w->seq,
              r->corpus.in_tokens ? "tokens" : "bytes", s->lr, s->min_lr, (long long)s->warmup,
              (long long)w->seed);
    if (r->o.world) mti_train_ranks_introduce(w);
    fflush(stdout);
}

/* ---- running ---- */

static void show_progress(run *r)
{
    if (!mti_progress_due(&r->progress, r->trainer.step)) return;
    char text[160] = "";
    mt_mem_stats stats;
    mt_mem_get_stats(r->device, &stats);
    double tokens =
        (double)(r->o.workload.batch * r->o.train.settings.accumulate * r->o.workload.seq);
    if (mt_device_has_data(r->device))
        mti_append(text, sizeof text, "loss %.4f  %s tok/s  ", r->trainer.loss,
                   MTI_SCALED(tokens / r->step_s));
    mti_append(text, sizeof text, "%s (peak %s)", MTI_BYTES(stats.allocated.current),
               MTI_BYTES(stats.allocated.peak));
    mti_progress_step(&r->progress, r->trainer.step, text);
}

static bool saves(const mti_options *o) { return o->train.save || o->train.save_adapter; }
static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static bool save(run *r)
{
    char where[4096];
    const struct mti_train_words *t = &r->o.train;
    long long step = (long long)r->trainer.step;
    if (t->save) {
        if (!mti_run_save(&r->trainer, t->save, t->val_fraction, where, sizeof where)) return false;
        mti_progress_say(&r->progress, "saved %s at step %lld", where, step);
    }
    if (t->save_adapter) {
        mt_status status = r->o.world
                               ? mt_stage_save_lora(t->save_adapter, &r->trainer.stage, r->o.world)
                               : mt_lora_save(t->save_adapter, r->trainer.model);
        if (status != MT_OK) return false;
        mti_progress_say(&r->progress, "saved the adapters in %s at step %lld", t->save_adapter,
                         step);
    }
    r->saved_at = r->trainer.step;
    return true;
}

static bool save_best(run *r, double bits)
{
    const struct mti_train_words *t = &r->o.train;
    char where[4096];
    r->trainer.best = bits;
    if (!mti_run_save(&r->trainer, t->save_best, t->val_fraction, where, sizeof where))
        return false;
    mti_progress_say(&r->progress, "saved %s, the best so far", where);
    return true;
}

static bool evaluate(run *r)
{
    double bits;
    if (!mti_trainer_held_out(&r->trainer, EVAL_BYTES, &bits)) return false;
    mti_progress_say(&r->progress, "step %lld  held-out bits per byte %.4f",
                     (long long)r->trainer.step, bits);
    return !r->o.train.save_best || (r->trainer.best > 0 && !(bits < r->trainer.best)) ||
           save_best(r, bits);
}

/* Training ends early after a signal, or if its output is neither saved nor read; all ranks end
 * after the same step. */
static bool should_continue(run *r, bool *ok)
{
    bool ends = !saves(&r->o) && ferror(stdout);
    int signalled = (int)interrupted;
    if (*ok && r->o.world) *ok = mti_train_ranks_end_early(r->o.world, &signalled, &ends);
    r->stopped_by = signalled;
    return *ok && !signalled && !ends;
}

/* The first steps' memory, once they are over. A step that the loss scale skips makes no optimizer
 * state: it does not count. */
static void watch(run *r)
{
    const mt_scaler *scaler = r->trainer.memory_hooks.scaler;
    r->watched++;
    int64_t n = scaler ? mt_scaler_get(scaler).steps - r->scaled_before : r->watched;
    r->figures.skipped = n < r->watched && n < r->wanted;
    r->figures.stopped = r->watched < r->wanted;
    if (r->trainer.ledger && n == r->wanted) end_watch(&r->trainer, r->figures.measured);
}

static bool train(run *r)
{
    const mti_options *o = &r->o;
    const struct mti_train_words *t = &o->train;
    int64_t every = t->settings.steps / 20;
    mti_progress_begin(&r->progress, stdout, r->trainer.step, t->settings.steps, every,
                       o->output.quiet);
    r->scaled_before = mt_scaler_get(r->trainer.memory_hooks.scaler).steps;
    bool ok = (!o->world || mti_trainer_begin_watch(&r->trainer)) &&
              (!t->record_routing ||
               mti_recorder_start(&r->recorder, r->trainer.model, &o->workload.config));
    while (r->trainer.step < t->settings.steps && should_continue(r, &ok)) {
        double began = mti_now();
        ok = mti_trainer_step(&r->trainer);
        double took = mti_now() - began;
        r->step_s = r->step_s > 0 ? 0.9 * r->step_s + 0.1 * took : took;
        if (!ok) break;
        watch(r);
        show_progress(r);
        if (ok && due(r->trainer.step, t->eval_every)) ok = evaluate(r);
        if (ok && due(r->trainer.step, t->save_every)) ok = save(r);
    }
    mti_progress_end(&r->progress);
    if (r->trainer.ledger) end_watch(&r->trainer, r->figures.measured);
    if (!o->world) r->stopped_by = (int)interrupted;
    return ok && (!t->record_routing || mti_recorder_write(&r->recorder, t->record_routing)) &&
           (!saves(o) || r->saved_at == r->trainer.step || save(r));
}

/* After a signal. */
static int report_signal(const run *r)
{
    const struct mti_train_words *t = &r->o.train;
    const char *what = t->save ? "the run is saved: go on with --resume"
                       : t->save_adapter
                           ? "the adapters are saved, the run is not, as no --save was given"
                           : "nothing is saved, as no --save was given";
    if (prints(r))
        mti_print(stderr, "memtape train: stopped by signal %d after step %lld; %s\n",
                  r->stopped_by, (long long)r->trainer.step, what);
    return MTI_EXIT_SIGNALLED + r->stopped_by;
}

/* On meta. */
static void report_memory(const run *r)
{
    mt_mem_stats stats;
    mt_mem_get_stats(r->device, &stats);
    mti_print(stdout,
              "at most %s bytes allocated, %s reserved; nothing was learnt: meta has no values\n",
              MTI_THOUSANDS(stats.allocated.peak), MTI_THOUSANDS(stats.reserved.peak));
}

/* At the end, as adapters are added up with the weights. */
static bool save_hf(run *r)
{
    const mti_options *o = &r->o;
    const struct mti_train_words *t = &o->train;
    if (!t->save_hf) return true;
    if (o->workload.memory.lora_rank && mt_lora_merge(r->trainer.model) != MT_OK) return false;
    if (mt_model_save(t->save_hf, r->trainer.model, t->settings.folder) != MT_OK) return false;
    if (!o->output.quiet) mti_print(stdout, "wrote the model to %s\n", t->save_hf);
    return true;
}

static bool evaluate_all(run *r)
{
    double bits;
    if (!mt_device_has_data(r->device)) {
        if (!r->o.world) report_memory(r);
        return true;
    }
    if (r->trainer.memory_hooks.scaler && !r->o.output.quiet) {
        mt_scaler_state scaler = mt_scaler_get(r->trainer.memory_hooks.scaler);
        mti_print(stdout, "loss scale %g at the end; %lld of %lld steps skipped\n", scaler.scale,
                  (long long)scaler.skipped, (long long)(scaler.steps + scaler.skipped));
    }
    if (r->corpus.n_held < 2) return true; /* --val-fraction 0 */
    if (!mti_trainer_held_out(&r->trainer, 0, &bits)) return false;
    if (prints(r) && !mti_wants_json(&r->o))
        mti_print(stdout, "held-out bits per byte %.4f (%s bytes)\n", bits,
                  MTI_THOUSANDS(r->corpus.n_held));
    return true;
}

static bool conclude(run *r) { return evaluate_all(r) && save_hf(r); }

/* ---- one of several ranks ---- */

/* Every rank tells whether it has come so far; one that fails later ends the others. */
static int agree(const run *r, bool ok)
{
    if (r->o.world)
        return mti_together_end(r->o.world, NAME, ok ? MTI_EXIT_OK : MTI_EXIT_FAILED,
                                mt_last_error());
    return ok ? MTI_EXIT_OK : mti_report_failure(&r->o);
}

static int fail(const run *r)
{
    if (!r->o.world) return mti_report_failure(&r->o);
    mti_together_abort(r->o.world, NAME);
    return MTI_EXIT_FAILED;
}

static bool begin(run *r)
{
    mti_options *o = &r->o;
    const struct mti_train_words *t = &o->train;
    if (!prints(r) || mti_wants_json(o)) o->output.quiet = true;
    if (o->world && !mti_train_ranks_place(o, &r->figures)) return false;
    if (!mti_run_can_save("save", t->save, true) ||
        !mti_run_can_save("save-adapter", t->save_adapter, !o->world) ||
        !mti_run_can_save("save-hf", t->save_hf, true) ||
        !mti_run_can_save("save-best", t->save_best, false))
        return false;
    if (!(t->resume ? resume(r) : start(r))) return false;
    const char *folder = t->settings.folder;
    return !t->save_hf || (folder && mti_is_folder(folder)) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "--save-hf: the model is not from a folder with a "
                                          "config.json; give one with --from");
}

static int begin_all(run *r)
{
    int status = agree(r, mti_train_ranks_share_room(&r->o, &r->figures, begin(r)));
    if (status == MTI_EXIT_OK && r->o.world)
        status = agree(r, mti_train_ranks_agree(&r->o, &r->corpus, r->trainer.step));
    return status;
}

int mti_train(const mti_options *options)
{
    run r = {.o = *options, .saved_at = -1};
    int status = begin_all(&r);
    bool ok = status == MTI_EXIT_OK;
    if (ok && !r.o.output.quiet) introduce(&r);
    catch_signals();
    if (r.o.world && saves(&r.o)) outlive_watcher();
    if (ok && !(ok = train(&r))) status = fail(&r);
    if (!end_snapshot(&r)) status = mti_report_failure(&r.o);
    if (ok && !r.stopped_by && !conclude(&r)) status = fail(&r);
    if (ok && r.stopped_by) status = report_signal(&r);
    if (ok && r.o.world && r.watched && !mti_train_ranks_report(&r.o, &r.figures, &r.trainer))
        status = fail(&r);
    if (ok && r.o.world) status = mti_together_end(r.o.world, NAME, status, "");
    mti_trainer_free(&r.trainer);
    mti_recorder_free(&r.recorder);
    mt_budget_free(r.budget);
    mt_device_release(r.device);
    mt_parallel_close(&r.o.workload.parallel);
    mti_corpus_free(&r.corpus);
    return status;
}
