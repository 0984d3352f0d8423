/* saved_run.c: all of a training run in one file: weights, optimizer state, what modules keep,
 * generator, step. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "io/saved_run.h"
#include "files/json_text.h"
#include "optim/optim.h"

/* ---- saving ---- */

char *mti_checkpoint_state_name(const char *state, const char *param)
{
    size_t n = strlen(MTI_STATE_PREFIX) + strlen(state) + strlen(param) + 2;
    char *name = mti_malloc(n);
    if (name) snprintf(name, n, "%s%s.%s", MTI_STATE_PREFIX, state, param);
    return name;
}

/* Their names become the list's. */
static bool add_states(mti_checkpoint_list *w, mt_module *m)
{
    mti_state_list states;
    bool ok = mti_state_list_make(m, MTI_MODULE_STATE, &states);
    for (size_t i = 0; ok && i < states.list.n; i++)
        if ((ok = MTI_PUSH(&w->tensors, states.list.at[i]))) states.list.at[i].name = NULL;
    mti_state_list_free(&states);
    return ok;
}

static bool add_weights(mti_checkpoint_list *w, const mt_named_tensor *list, size_t n)
{
    w->n_weights = n; /* also after a failure: these names are the module's */
    for (size_t i = 0; i < n; i++) {
        if (!strncmp(list[i].name, MTI_STATE_PREFIX, strlen(MTI_STATE_PREFIX)))
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "checkpoint: a parameter is called \"%s\"; names that start "
                                 "with \"" MTI_STATE_PREFIX "\" are taken",
                                 list[i].name);
        if (!MTI_PUSH(&w->tensors, list[i])) return false;
    }
    return true;
}

static bool add_state(mti_checkpoint_list *w, const mt_optimizer *o)
{
    uint64_t failures = mti_failures();
    json_t *steps = json_object();
    bool ok = true;
    for (size_t i = 0; ok && i < mt_optimizer_state_count(o); i++) {
        mt_optimizer_entry e;
        if ((ok = mt_optimizer_state(o, i, &e) == MT_OK && MTI_RESERVE(&w->tensors))) {
            char *name = mti_checkpoint_state_name(e.name, e.param);
            if ((ok = name != NULL))
                w->tensors.at[w->tensors.n++] = (mt_named_tensor){name, e.tensor};
        }
        ok = ok && json_object_set_new(steps, e.param, json_integer(e.step)) == 0;
    }
    if (!ok) mti_fail_around(failures, MT_ERR_MEMORY, "checkpoint: no memory for the header");
    ok = ok && (w->steps = mti_json_text(steps, JSON_COMPACT));
    json_decref(steps);
    return ok && MTI_PUSH(&w->pairs, ((mt_key_value){MTI_KEY_OPTIMIZER, mt_optimizer_kind(o)})) &&
           MTI_PUSH(&w->pairs, ((mt_key_value){MTI_KEY_STEPS, w->steps}));
}

static bool add_step_and_rng(mti_checkpoint_list *w, const mt_device *device, int64_t step)
{
    uint64_t seed = 0, offset = 0;
    if (device) mt_rng_get(device, &seed, &offset);
    snprintf(w->step, sizeof w->step, "%" PRId64, step);
    snprintf(w->seed, sizeof w->seed, "%" PRIu64, seed);
    snprintf(w->offset, sizeof w->offset, "%" PRIu64, offset);
    return MTI_PUSH(&w->pairs, ((mt_key_value){MTI_KEY_STEP, w->step})) &&
           MTI_PUSH(&w->pairs, ((mt_key_value){MTI_KEY_SEED, w->seed})) &&
           MTI_PUSH(&w->pairs, ((mt_key_value){MTI_KEY_OFFSET, w->offset}));
}

static bool add_metadata(mti_checkpoint_list *w, size_t n, const mt_key_value *pairs)
{
    for (size_t i = 0; i < n; i++) {
        if (pairs[i].key && !strncmp(pairs[i].key, MTI_KEY_PREFIX, strlen(MTI_KEY_PREFIX)))
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "checkpoint: metadata \"%s\"; keys that start "
                                 "with \"" MTI_KEY_PREFIX "\" are taken",
                                 pairs[i].key);
        if (!MTI_PUSH(&w->pairs, pairs[i])) return false;
    }
    return true;
}

bool mti_checkpoint_list_make(mti_checkpoint_list *w, mt_module *m, mt_optimizer *o, int64_t step,
                              size_t n_metadata, const mt_key_value *metadata)
{
    const mt_named_tensor *list;
    size_t n;
    *w = (mti_checkpoint_list){0};
    if (step < 0)
        return mti_fail_bool(MT_ERR_ARGUMENT, "checkpoint_save: step %" PRId64 "; need at least 0",
                             step);
    if (n_metadata && !metadata)
        return mti_fail_bool(MT_ERR_ARGUMENT, "checkpoint_save: the metadata is NULL");
    return mt_module_params(m, &list, &n) == MT_OK && add_weights(w, list, n) &&
           add_step_and_rng(w, n ? mt_device_of(list[0].tensor) : NULL, step) &&
           (!o || add_state(w, o)) && add_states(w, m) && add_metadata(w, n_metadata, metadata);
}

void mti_checkpoint_list_free(mti_checkpoint_list *w)
{
    for (size_t i = w->n_weights; i < w->tensors.n; i++) mti_free((char *)w->tensors.at[i].name);
    mti_free(w->tensors.at);
    mti_free(w->pairs.at);
    mti_free(w->steps);
}

mt_status mt_checkpoint_save(const char *path, mt_module *m, mt_optimizer *o, int64_t step,
                             size_t n_metadata, const mt_key_value *metadata)
{
    mti_checkpoint_list w;
    bool ok = mti_checkpoint_list_make(&w, m, o, step, n_metadata, metadata);
    if (ok)
        ok = mt_safetensors_save(path, w.tensors.n, w.tensors.at, w.pairs.n, w.pairs.at) == MT_OK;
    mti_checkpoint_list_free(&w);
    return ok ? MT_OK : mt_last_status();
}

/* ---- loading ---- */

static bool get_number(const mt_safetensors *f, const char *key, uint64_t max, uint64_t *out)
{
    const char *text = mt_safetensors_metadata(f, key);
    char *end = NULL;
    errno = 0;
    if (text && *text >= '0' && *text <= '9') *out = strtoull(text, &end, 10);
    if (end && !*end && !errno && *out <= max) return true;
    return mti_fail_bool(MT_ERR_FORMAT,
                         "%s: is not a checkpoint: the metadata has no %s that is a number",
                         f->path, key);
}

/* Whether the optimizer has this parameter and the file all of its state. */
static bool check_state(const mt_safetensors *f, mt_optimizer *o, const char *param)
{
    char shown[MTI_SHOWN];
    if (!mti_optimizer_slot(o, param))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "%s: has optimizer state of \"%s\"; no such parameter", f->path,
                             mti_shown(shown, param));
    const char *state;
    for (int k = 0; (state = mti_optimizer_state_name(o, param, k)); k++) {
        mt_safetensors_entry e;
        char *name = mti_checkpoint_state_name(state, param);
        if (!name) return false;
        const mti_view need = mti_optimizer_state_spec(o, param, k);
        bool ok = mt_safetensors_find(f, name, &e) && e.rank == need.rank && e.dtype == need.dtype;
        for (int d = 0; ok && d < e.rank; d++) ok = e.shape[d] == need.shape[d];
        mti_free(name);
        if (!ok)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "%s: the optimizer state \"%s\" of \"%s\" is missing or has "
                                 "another shape or dtype",
                                 f->path, state, param);
    }
    return true;
}

static size_t count_state(const mt_safetensors *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->entries.n; i++)
        n += !strncmp(f->entries.at[i].info.name, MTI_STATE_PREFIX, strlen(MTI_STATE_PREFIX));
    return n;
}

/* The metadata's {"parameter": steps}, to be json_decref'ed; NULL if optimizer and file differ. */
static json_t *check_optimizer(const mt_safetensors *f, mt_optimizer *o)
{
    const char *kind = mt_safetensors_metadata(f, MTI_KEY_OPTIMIZER);
    const char *text = mt_safetensors_metadata(f, MTI_KEY_STEPS);
    char shown[MTI_SHOWN];
    if (!kind || strcmp(kind, mt_optimizer_kind(o)))
        return mti_fail_null(MT_ERR_ARGUMENT, "%s: has state of optimizer \"%s\"; need \"%s\"",
                             f->path, mti_shown(shown, kind ? kind : "none"), mt_optimizer_kind(o));
    uint64_t failures = mti_failures();
    json_t *steps = text ? mti_json_read(text, strlen(text), NULL) : NULL;
    bool ok =
        json_is_object(steps) && !mti_failed_since(failures); /* else names may be cut short */
    if (!ok)
        mti_fail_around(failures, MT_ERR_FORMAT, "%s: %s is not a JSON object", f->path,
                        MTI_KEY_STEPS);
    size_t n = 0;
    for (void *at = ok ? json_object_iter(steps) : NULL; ok && at;
         at = json_object_iter_next(steps, at)) {
        const json_t *step = json_object_iter_value(at);
        int n_of = 0;
        ok = (json_is_integer(step) && json_integer_value(step) >= 1) ||
             mti_fail_bool(MT_ERR_FORMAT, "%s: %s: \"%s\" is not a number >= 1", f->path,
                           MTI_KEY_STEPS, mti_shown(shown, json_object_iter_key(at)));
        ok = ok && check_state(f, o, json_object_iter_key(at));
        while (ok && mti_optimizer_state_name(o, json_object_iter_key(at), n_of)) n_of++;
        n += (size_t)n_of;
    }
    if (ok && n != count_state(f))
        ok = mti_fail_bool(MT_ERR_ARGUMENT, "%s: %zu tensors of optimizer state; need %zu", f->path,
                           count_state(f), n);
    if (ok) return steps;
    json_decref(steps);
    return NULL;
}

/* After check_optimizer. */
static bool load_state(mt_safetensors *f, mt_optimizer *o, mt_device *device, json_t *steps)
{
    bool ok = true;
    mt_optimizer_reset(o);
    for (void *at = json_object_iter(steps); ok && at; at = json_object_iter_next(steps, at)) {
        mt_optimizer_entry e = {.param = json_object_iter_key(at),
                                .step = json_integer_value(json_object_iter_value(at))};
        for (int k = 0; ok && (e.name = mti_optimizer_state_name(o, e.param, k)); k++) {
            char *name = mti_checkpoint_state_name(e.name, e.param);
            e.tensor = name ? mt_safetensors_read(f, name, device) : NULL;
            ok = e.tensor && mt_optimizer_restore(o, &e) == MT_OK;
            mt_release(e.tensor);
            mti_free(name);
        }
    }
    return ok;
}

bool mti_checkpoint_check(const mt_safetensors *f, const mt_named_tensor *list, size_t n,
                          mt_optimizer *o, mti_checkpoint_state *out)
{
    *out = (mti_checkpoint_state){0};
    return get_number(f, MTI_KEY_STEP, INT64_MAX, &out->step) &&
           get_number(f, MTI_KEY_SEED, UINT64_MAX, &out->seed) &&
           get_number(f, MTI_KEY_OFFSET, UINT64_MAX, &out->offset) &&
           mti_weights_fit(f, list, n, false) && (!o || (out->steps = check_optimizer(f, o)));
}

mt_status mt_checkpoint_load(mt_safetensors *f, mt_module *m, mt_optimizer *o, int64_t *step)
{
    const mt_named_tensor *list;
    size_t n;
    mti_checkpoint_state saved = {0};
    mti_state_list states;
    if (!mti_given(f, "checkpoint_load", "the file")) return mt_last_status();
    mt_status status = mt_module_params(m, &list, &n);
    if (status != MT_OK) return status;
    mt_device *device = n ? mt_device_of(list[0].tensor) : NULL;
    bool ok = mti_state_list_make(m, MTI_MODULE_STATE, &states) &&
              mti_checkpoint_check(f, list, n, o, &saved) && mti_states_fit(f, &states, true) &&
              mti_weights_load(f, list, n) && mti_states_load(f, &states) &&
              (!o || load_state(f, o, device, saved.steps));
    mti_state_list_free(&states);
    json_decref(saved.steps);
    if (!ok) return mt_last_status();
    if (device) mt_rng_set(device, saved.seed, saved.offset);
    if (step) *step = (int64_t)saved.step;
    return MT_OK;
}
