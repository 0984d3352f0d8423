/* checkpoint.c: runs a function, keeps what is needed to run it again, and recomputes it in
 * backward.
 *
 * A frame is a saved-tensor hook around the function: pack keeps only the number of the save. The
 * first unpack runs the function again, outside of the backward that asks, under a hook that
 * collects saves: the i-th save of both runs is the same. Once the last one needed is there, the
 * collecting hook fails the op that saved it, the function returns as after any failure, and the
 * error is cleared. */
#include <stdio.h>
#include <string.h>
#include "hooks/checkpoint.h"
#include "memtape/autocast.h"
#include "memtape/ops.h"

/* Returned by the collecting hook once it has all it needs. No caller sees it. */
#define ENOUGH ((mt_status)-1)

static mti_trace_entry *entry_of(mti_frame *f, const void *state)
{
    return &f->entries.at[(uintptr_t)state];
}

static void frame_free(void *user)
{
    mti_frame *f = user;
    if (--f->holders) return;
    mti_policy_release(f, 0);
    mti_free(f->decisions.at);
    for (size_t i = 0; i < f->entries.n; i++) mt_saved_free(f->entries.at[i].again);
    mti_free(f->entries.at);
    mti_hashmap_free(&f->seen);
    for (int i = 0; f->in && i < f->n_in; i++) mt_saved_free(f->in[i].saved);
    mti_free(f->in);
    mti_outputs_free(f);
    if (f->destroy) f->destroy(f->user);
    mt_device_release(f->device);
    mti_free(f);
}

/* ---- forward ---- */

static mt_status on_pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                         void **state)
{
    mti_frame *f = user;
    mti_trace_entry e;
    if (!MTI_RESERVE(&f->entries) || !mti_trace_note(f, info, t, &e)) return mt_last_status();
    e.alive = !e.parameter;
    if (e.alive && !mti_report_saved(f, t)) return mt_last_status();
    if (e.alive) *kept = NULL;
    *state = (void *)(uintptr_t)f->entries.n;
    f->entries.at[f->entries.n++] = e;
    if (e.alive) f->n_live = f->entries.n;
    return MT_OK;
}

static void on_drop(void *user, const mt_save_info *info, void *state)
{
    (void)info;
    mti_frame *f = user;
    mti_trace_entry *e = entry_of(f, state);
    mt_saved_free(e->again);
    e->again = NULL;
    e->alive = false;
    while (f->n_live && !f->entries.at[f->n_live - 1].alive) f->n_live--;
    if (!f->first) mti_policy_release(f, f->n_live);
}

/* ---- recomputing ---- */

static mt_status on_collect(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                            void **state)
{
    (void)state;
    mti_frame *f = user;
    mti_trace_entry now;
    if (f->stopped) return ENOUGH;
    if (mti_failed_since(f->failures)) return *kept = NULL, MT_OK; /* another branch goes on */
    if (!mti_trace_note(f, info, t, &now)) return mt_last_status();
    if (!mti_trace_compare(f, f->at, &now)) return MT_ERR_STATE;
    mti_trace_entry *e = &f->entries.at[f->at];
    if (!e->parameter) *kept = NULL;
    if (e->alive && !e->again && !(e->again = mt_saved_new(t, info))) return mt_last_status();
    f->stopped = f->at++ == f->stop_at && !f->wants_outputs && !f->options.no_early_stop;
    return f->stopped ? ENOUGH : MT_OK;
}

typedef struct tensors {
    int n_in, n_out;
    mt_tensor **in, **out;
} tensors;

static void release_tensors(tensors *t)
{
    for (int i = 0; t->in && i < t->n_in; i++) mt_release(t->in[i]);
    for (int i = 0; t->in && i < t->n_out; i++) mt_release(t->out[i]);
    mti_free(t->in);
}

/* The input without its history. One that was made gets a view as its own: autocast keeps the casts
 * of leaves, so it would call fewer ops than in forward. */
static mt_tensor *input_again(const mti_kept_input *in)
{
    static const int order[MT_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    mt_tensor *kept = mt_saved_get(in->saved), *t = kept ? mt_detach(kept) : NULL;
    mt_release(kept);
    if (t && mt_set_requires_grad(t, in->requires_grad) != MT_OK) mt_set(&t, NULL);
    if (t && in->made) mt_set(&t, mt_permute(t, order));
    return t;
}

/* Makes the inputs, and room for the outputs. */
static mt_status get_inputs(mti_frame *f, tensors *t)
{
    *t = (tensors){f->n_in, f->n_out, NULL, NULL};
    t->in = mti_calloc((size_t)(f->n_in + f->n_out), sizeof *t->in);
    if (!t->in) return mt_last_status();
    t->out = t->in + f->n_in;
    for (int i = 0; i < f->n_in; i++)
        if (!(t->in[i] = input_again(&f->in[i]))) return mt_last_status();
    return MT_OK;
}

static mt_status run_apart(void *user)
{
    static const mt_saved_hooks collecting = {.pack = on_collect};
    mti_frame *f = user;
    tensors t;
    mt_status status = get_inputs(f, &t);
    if (status == MT_OK) status = mt_push_saved_hooks(&collecting, f);
    if (status == MT_OK && f->decisions.n) status = mt_push_op_hooks(&mti_checkpoint_op_hooks, f);
    bool autocast = status == MT_OK && f->autocast;
    if (autocast) status = mt_autocast_begin(f->autocast_dtype);
    if (status == MT_OK) {
        status = f->fn(f->user, f->n_in, t.in, f->n_out, t.out);
        if (autocast) mt_autocast_end();
    }
    if (status == MT_OK && f->wants_outputs && !mti_outputs_take(f, t.out))
        status = mt_last_status();
    release_tensors(&t);
    return status;
}

static void forget_again(mti_frame *f)
{
    for (size_t i = 0; i < f->entries.n; i++) {
        mt_saved_free(f->entries.at[i].again);
        f->entries.at[i].again = NULL;
    }
}

/* Returns `status`; if it is a failure without an error since `failures` was taken, records one. */
static mt_status ensure_error(const mti_frame *f, const char *when, uint64_t failures,
                              mt_status status)
{
    if (status != MT_OK)
        mti_fail_around(failures, status, "checkpoint %s: its function failed%s (%s)",
                        f->options.label, when, mt_status_name(status));
    return status;
}

static mt_status run_again(mti_frame *f)
{
    uint64_t seed, offset;
    mti_error before;
    mti_error_get(&before);
    f->again = true, f->stopped = false;
    f->failures = before.count;
    f->at = f->call = f->stop_at = 0;
    for (size_t i = 0; i < f->entries.n; i++)
        if (f->entries.at[i].alive && !f->entries.at[i].again) f->stop_at = i;
    mt_rng_get(f->device, &seed, &offset);
    if (!f->options.rng_as_it_is) mt_rng_set(f->device, f->seed, f->offset);
    const mt_apart options = {.module = f->module, .recompute = true};
    mt_status status = mt_run_apart(&options, run_apart, f);
    mt_rng_set(f->device, seed, offset);
    f->again = false;
    if (f->stopped) {
        mti_error_set(&before); /* stopped on purpose */
        return MT_OK;
    }
    if (status == MT_OK && f->at < f->entries.n && !mti_trace_compare(f, f->at, NULL))
        status = MT_ERR_STATE;
    if (status != MT_OK) forget_again(f);
    return ensure_error(f, " when it was run again", before.count, status);
}

static mt_status on_unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    (void)info;
    mti_frame *f = user;
    if (entry_of(f, state)->parameter) return MT_OK;
    if (!entry_of(f, state)->again) {
        mt_status status = run_again(f);
        if (status != MT_OK) return status;
    }
    mti_trace_entry *e = entry_of(f, state);
    *tensor = mt_saved_get(e->again);
    mt_saved_free(e->again);
    e->again = NULL;
    return *tensor ? MT_OK : mt_last_status();
}

/* ---- outputs that are given up ---- */

/* What the function's own ops saved is there with the outputs. */
static mt_status on_unpack_output(void *user, const mt_save_info *info, mt_tensor **tensor,
                                  void *state)
{
    mti_frame *f = user;
    (void)info;
    mt_status status = mti_outputs_unpack(tensor, state);
    if (status != MT_OK || *tensor || !state) return status;
    f->wants_outputs = true;
    status = run_again(f);
    f->wants_outputs = false;
    return status == MT_OK ? mti_outputs_unpack(tensor, state) : status;
}

/* Leaves the hook that gives the outputs up on the stack. */
static mt_status discard(mti_frame *f, mt_tensor *const *outputs)
{
    static const mt_saved_hooks hooks = {mti_outputs_pack, on_unpack_output, mti_outputs_drop,
                                         frame_free};
    if (!mti_outputs_note(f, outputs)) return mt_last_status();
    mt_status status = mt_push_saved_hooks(&hooks, f);
    if (status == MT_OK) f->holders++;
    return status;
}

/* ---- making a frame ---- */

static bool check(mt_checkpoint_fn *fn, int n_in, mt_tensor *const *inputs, int n_out,
                  mt_tensor **outputs)
{
    if (!fn) return mti_fail_bool(MT_ERR_ARGUMENT, "checkpoint: the function is NULL");
    if (n_in < 1 || n_out < 1 || !inputs || !outputs)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "checkpoint: %d inputs, %d outputs; need at least one of each", n_in,
                             n_out);
    for (int i = 0; i < n_in; i++) {
        char name[24];
        snprintf(name, sizeof name, "input %d", i);
        if (!mti_given(inputs[i], "checkpoint", name)) return false;
        if (mt_device_of(inputs[i]) != mt_device_of(inputs[0]))
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "checkpoint: input %d lives on another device than input 0", i);
    }
    return true;
}

static bool save_inputs(mti_frame *f, mt_tensor *const *inputs)
{
    static const char *const letters[] = {"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"};
    f->in = mti_calloc((size_t)f->n_in, sizeof *f->in);
    if (!f->in) return false;
    for (int i = 0; i < f->n_in; i++) {
        const mt_save_info info = {.op = "checkpoint",
                                   .argument = f->n_in == 1 ? "x"
                                               : i < 8      ? letters[i]
                                                            : "x..",
                                   .index = i,
                                   .role = MT_SAVE_INPUT};
        f->in[i].requires_grad = mt_requires_grad(inputs[i]);
        f->in[i].made = mt_grad_fn_sequence(inputs[i]) != 0;
        f->in[i].saved = mt_saved_new(inputs[i], &info);
        if (!f->in[i].saved) return false;
    }
    return true;
}

/* Takes user over. */
static mti_frame *frame_new(mti_frame init, mt_tensor *const *inputs,
                            const mt_checkpoint_options *options)
{
    mti_frame *f = mti_calloc(1, sizeof *f);
    if (!f) {
        if (init.destroy) init.destroy(init.user);
        return NULL;
    }
    *f = init;
    f->holders = 1;
    if (options) f->options = *options;
    f->module = mt_scope_path();
    const char *label = f->options.label ? f->options.label : f->module;
    f->options.label = *label ? mti_intern(label) : "(no name)";
    f->device = mt_device_retain(mt_device_of(inputs[0]));
    f->autocast = mt_autocast_active(&f->autocast_dtype);
    mt_rng_get(f->device, &f->seed, &f->offset);
    if (f->options.label && (!mt_grad_mode() || save_inputs(f, inputs))) return f;
    frame_free(f);
    return NULL;
}

/* ---- running it ---- */

static mt_status call(mti_frame *f, mt_tensor *const *inputs, mt_tensor **outputs)
{
    uint64_t failures = mti_failures();
    mt_status status =
        ensure_error(f, "", failures, f->fn(f->user, f->n_in, inputs, f->n_out, outputs));
    for (int i = 0; status == MT_OK && i < f->n_out; i++)
        if (!outputs[i])
            status = mti_fail_around(failures, MT_ERR_ARGUMENT,
                                     "checkpoint %s: its function left output %d NULL",
                                     f->options.label, i);
        else if (mt_device_of(outputs[i]) != f->device)
            status = mti_fail(MT_ERR_ARGUMENT,
                              "checkpoint %s: its function made output %d on another device than "
                              "input 0 is on (%s, %s)",
                              f->options.label, i, mt_device_kind(mt_device_of(outputs[i])),
                              mt_device_kind(f->device));
    return status;
}

/* A checkpoint without a policy takes part in that of an outer one. */
static mt_status call_with_policy(mti_frame *f, mt_tensor *const *inputs, mt_tensor **outputs)
{
    f->outer = mt_find_op_hooks(&mti_checkpoint_op_hooks);
    if (!f->options.policy && !f->outer) return call(f, inputs, outputs);
    mt_status status = mt_push_op_hooks(&mti_checkpoint_op_hooks, f);
    if (status != MT_OK) return status;
    if (f->outer) f->outer->inner = f;
    status = call(f, inputs, outputs);
    /* Pops what the function left pushed, too; nothing if it popped this one. */
    while (mt_find_op_hooks(&mti_checkpoint_op_hooks) == f) mt_pop_op_hooks();
    if (f->outer) f->outer->inner = NULL;
    f->outer = NULL;
    return status;
}

static bool is_pushed(const mti_frame *f)
{
    void *place = mt_step_below_saved_hooks(f);
    mt_step_back_to_saved_hooks(place);
    return place != NULL;
}

/* Takes the frame off the stack, with what its function left pushed on it. */
static mt_status pop(const mti_frame *f, mt_status status)
{
    mti_error before;
    mti_error_get(&before);
    bool pushed = is_pushed(f);
    while (pushed && mt_saved_hooks_user() != f) mt_pop_saved_hooks();
    if (pushed) mt_pop_saved_hooks();
    if (!pushed) mti_error_set(&before);
    return pushed || status != MT_OK
               ? status
               : mti_fail(MT_ERR_STATE,
                          "checkpoint %s: its function popped hooks that it did not push",
                          f->options.label);
}

/* The hook takes f over: it is freed with the last tensor that the function's ops saved. */
static mt_status run_frame(mti_frame *f, mt_tensor *const *inputs, mt_tensor **outputs)
{
    static const mt_saved_hooks hooks = {on_pack, on_unpack, on_drop, frame_free};
    mt_status status = mt_push_saved_hooks(&hooks, f);
    if (status != MT_OK) {
        frame_free(f);
        return status;
    }
    f->first = true;
    f->holders++;
    mti_report_enter(f);
    status = call_with_policy(f, inputs, outputs);
    f->first = false;
    status = pop(f, status);
    mt_status reported = mti_report_leave(f, status == MT_OK ? inputs : NULL);
    if (status == MT_OK) status = reported;
    if (status == MT_OK && f->options.discard_outputs) status = discard(f, outputs);
    frame_free(f); /* with its inputs, if nothing in the function needs a gradient */
    return status;
}

mt_status mt_checkpoint(mt_checkpoint_fn *fn, void *user, void (*destroy)(void *user), int n_in,
                        mt_tensor *const *inputs, int n_out, mt_tensor **outputs,
                        const mt_checkpoint_options *options)
{
    for (int i = 0; outputs && i < n_out; i++) outputs[i] = NULL;
    if (!check(fn, n_in, inputs, n_out, outputs)) {
        if (destroy) destroy(user);
        return mt_last_status();
    }
    mti_frame *f = frame_new(
        (mti_frame){.fn = fn, .user = user, .destroy = destroy, .n_in = n_in, .n_out = n_out},
        inputs, options);
    if (!f) return mt_last_status();
    mt_status status;
    if (mt_grad_mode()) {
        status = run_frame(f, inputs, outputs);
    } else {
        status = call(f, inputs, outputs);
        if (status == MT_OK && f->options.discard_outputs) status = discard(f, outputs);
        frame_free(f);
    }
    for (int i = 0; status != MT_OK && i < n_out; i++) {
        mt_release(outputs[i]);
        outputs[i] = NULL;
    }
    return status;
}
