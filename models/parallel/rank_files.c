/* rank_files.c: checkpoints of ranks. The file is the one that a process with the whole model would
 * write: each rank knows from shapes where in it its elements lie, and writes and reads these. No
 * rank ever has more than its own shard. */
#include <stdio.h>
#include <string.h>
#include "collectives/collectives.h"
#include "comm/comm.h"
#include "files/files.h"
#include "memtape/models/io.h"
#include "io/saved_run.h"
#include "io/lora_file.h"
#include "optim/optim.h"
#include "parallel/parallel.h"

/* ---- what a rank has ---- */

/* A parameter of this rank. */
typedef struct owned {
    const mti_model_shard *shard;
    const char *path; /* as in the whole model */
    /* Its whole is what the tensor rank has; where ZeRO cuts states alone, so is its shard. */
    mti_sharded own;
    char stepped[256]; /* its name in the optimizer */
} owned;

typedef MTI_VEC(owned) owned_list;

/* This rank's shard among those with the same shard of the model. */
static mti_shard_range shard_of(const owned *p)
{
    return mti_shard_of(mti_layout_count(&p->own.whole), &p->own.group);
}

static bool is_cut(const owned *p, bool state)
{
    const mt_parallel *h = &p->shard->parallel;
    return mti_shard_group(h).ranks > 1 && h->zero >= (state ? 1 : 3) &&
           !mti_is_buffer(p->own.shard);
}

/* What a tensor of this rank, the parameter or state of it, has. */
static mti_shard_range held(const owned *p, bool state)
{
    return is_cut(p, state) ? shard_of(p) : (mti_shard_range){.n = mti_layout_count(&p->own.whole)};
}

/* What it writes: of what all ranks with the same shard of the model have each writes a shard, of
 * what all tensor ranks have the first. */
static mti_shard_range written(const owned *p)
{
    mti_shard_range r = shard_of(p);
    const mt_parallel *h = &p->shard->parallel;
    bool cut = mti_is_sharded(h, p->path) || (mti_folds_experts(h) && mti_is_divided(h, p->path));
    if (!cut && p->shard->parallel.tensor_rank > 0) r.n = 0;
    return r;
}

static bool add_part(owned_list *all, const mt_stage *s, int64_t nth)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(s->parts[nth], &list, &n) != MT_OK) return false;
    for (size_t i = 0; i < n; i++) {
        mt_tensor *t = list[i].tensor;
        const mti_sharded *cut = mti_units_find(s->units ? s->units[nth] : NULL, t);
        owned p = {.shard = &s->shards[nth], .path = list[i].name};
        p.own =
            cut ? *cut
                : (mti_sharded){t, mt_layout_of(t), mti_param_group(&p.shard->parallel, p.path)};
        if (s->schedule.n_parts > 1)
            snprintf(p.stepped, sizeof p.stepped, "%lld.%.200s", (long long)nth, p.path);
        else
            snprintf(p.stepped, sizeof p.stepped, "%.255s", p.path);
        if (!MTI_PUSH(all, p)) return false;
    }
    return true;
}

/* All parameters of the rank. */
static bool list_owned(owned_list *all, const mt_stage *s)
{
    bool ok = true;
    for (int64_t i = 0; ok && i < s->schedule.n_parts; i++) ok = add_part(all, s, i);
    return ok;
}

static bool check_optimizer(const mt_optimizer *o)
{
    char list[MTI_OPTIMIZER_LIST];
    if (o && (o->rule->whole || o->rule->others))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "stage: %s %s the rows and columns that a rank has; a file has the "
                             "whole's, so need %s",
                             o->rule->name, o->rule->whole ? "keeps means of" : "steps by",
                             mti_optimizer_list(list, true));
    return !o || mti_moment_codes(o->moments) == MTI_MOMENTS_WIDE ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "stage: moments in codes have scales for blocks of a rank's shard; a "
                         "file has the whole's, so need MT_MOMENTS_WIDE or MT_MOMENTS_NARROW");
}

/* ---- agreeing ---- */

typedef struct come {
    int32_t status;
    char error[500];
} come;

/* Whether all ranks have come so far; else each has the first failure as its error. NULL: one. */
static bool all_have(mt_comm *world, bool ok)
{
    mt_group group = mt_comm_group(world);
    if (!world) return ok;
    come own = {.status = MT_OK};
    if (!ok) own.status = mt_last_status() ? (int32_t)mt_last_status() : MT_ERR_INTERNAL;
    if (!ok) snprintf(own.error, sizeof own.error, "%s", mt_last_error());
    come *all = mti_calloc((size_t)group.ranks, sizeof *all);
    bool shared = all && mti_comm_share(world, &own, sizeof own, all);
    int64_t r = 0;
    while (shared && r < group.ranks && all[r].status == MT_OK) r++;
    bool good = shared && r == group.ranks;
    if (shared && !good)
        mti_fail((mt_status)all[r].status, "rank %lld of %lld: %s", (long long)r,
                 (long long)group.ranks, all[r].error);
    mti_free(all);
    return good;
}

/* ---- saving ---- */

typedef struct save {
    const char *path;
    mt_comm *world;
    mt_optimizer *optimizer; /* may be NULL */
    owned_list owned;
    mti_whole whole;
    mt_optimizer *twin;        /* over the whole, without data; it has state where a rank has */
    mti_checkpoint_list names; /* of all tensors in the file */
    uint64_t *begins;          /* [names.tensors.n]: in the file */
    size_t *state_at;          /* [whole.n]: the parameter's first state among the names */
    mti_lora_list adapters;    /* of a file of adapters alone */
    mti_file *file;
} save;

static void end_save(save *w)
{
    mti_file_abandon(w->file);
    mti_lora_list_free(&w->adapters);
    mti_free(w->state_at);
    mti_free(w->begins);
    mti_checkpoint_list_free(&w->names);
    mt_optimizer_free(w->twin);
    mti_whole_close(&w->whole);
    mti_free(w->owned.at);
}

/* steps[whole.n]: of the parameters that this rank has. */
static void note_steps(save *w, int64_t *steps)
{
    for (size_t i = 0; w->optimizer && i < w->owned.n; i++) {
        const mt_named_tensor *p = mti_whole_find(&w->whole, w->owned.at[i].path);
        const mti_opt_slot *slot = mti_optimizer_slot(w->optimizer, w->owned.at[i].stepped);
        if (p && slot && slot->step > steps[p - w->whole.list])
            steps[p - w->whole.list] = slot->step;
    }
}

/* Every rank's; the most is right, as a rank may have no shard of a parameter, or an empty one. */
static bool share_steps(save *w, int64_t *steps)
{
    size_t n = w->whole.n, ranks = (size_t)mt_comm_group(w->world).ranks;
    if (!w->world) return true;
    int64_t *all = mti_calloc(ranks * n + 1, sizeof *all);
    bool ok =
        all_have(w->world, all != NULL) && mti_comm_share(w->world, steps, n * sizeof *steps, all);
    for (size_t i = 0; ok && i < ranks * n; i++)
        if (all[i] > steps[i % n]) steps[i % n] = all[i];
    mti_free(all);
    return ok;
}

static bool make_twin(save *w, const int64_t *steps)
{
    if (!w->optimizer) return true;
    if (!(w->twin = mti_optimizer_like(w->optimizer, w->whole.model))) return false;
    for (size_t i = 0; i < w->whole.n; i++) {
        mti_opt_slot *slot = mti_optimizer_slot(w->twin, w->whole.list[i].name);
        if (!slot || !steps[i]) continue;
        if (!mti_optimizer_make_state(w->twin, slot)) return false;
        slot->step = steps[i];
    }
    return true;
}

/* Names and places of everything in the file. */
static char *plan(save *w, const mt_stage *s, const int64_t *steps, int64_t step, size_t n_pairs,
                  const mt_key_value *pairs, size_t *n_head)
{
    uint64_t seed, offset;
    mt_rng_get(s->device, &seed, &offset);
    mt_rng_set(w->whole.device, seed, offset);
    if (!make_twin(w, steps) ||
        !mti_checkpoint_list_make(&w->names, w->whole.model, w->twin, step, n_pairs, pairs))
        return NULL;
    size_t at = w->names.n_weights;
    w->begins = mti_calloc(w->names.tensors.n + 1, sizeof *w->begins);
    w->state_at = mti_calloc(w->whole.n + 1, sizeof *w->state_at);
    if (!w->begins || !w->state_at) return NULL;
    for (size_t i = 0; i < w->whole.n; i++) {
        w->state_at[i] = at;
        for (int k = 0; steps[i] && mti_optimizer_state_name(w->twin, w->whole.list[i].name, k);
             k++)
            at++;
    }
    return mti_safetensors_head(w->path, w->names.tensors.n, w->names.tensors.at, w->names.pairs.n,
                                w->names.pairs.at, n_head, w->begins);
}

/* Rank 0 makes the file, the others open it. */
static bool open_file(save *w, const char *head, size_t n_head)
{
    char place[4096] = "";
    mt_group group = mt_comm_group(w->world);
    bool ok = true;
    if (group.rank == 0) {
        ok = (w->file = mti_file_create(w->path)) && mti_file_write_at(w->file, 0, head, n_head);
        if (ok && snprintf(place, sizeof place, "%s", mti_file_place(w->file)) >= (int)sizeof place)
            ok = mti_fail_bool(MT_ERR_IO, "%s: the path is too long", w->path);
    }
    char *all = mti_malloc((size_t)group.ranks * sizeof place);
    bool begun = all_have(w->world, ok && all);
    ok = begun && (!w->world || mti_comm_share(w->world, place, sizeof place, all));
    if (ok && group.rank > 0) ok = (w->file = mti_file_join(w->path, all)) != NULL;
    mti_free(all);
    return begun && all_have(w->world, ok);
}

typedef struct writing {
    mti_file *file;
    const char *data; /* of the range's first element */
    uint64_t begin;   /* of the whole tensor in the file */
    size_t e;         /* bytes of an element */
} writing;

static bool write_run(void *user, int64_t i, int64_t n, int64_t at)
{
    const writing *v = user;
    return at < 0 || mti_file_write_at(v->file, v->begin + (uint64_t)at * v->e,
                                       v->data + (size_t)i * v->e, (size_t)n * v->e);
}

/* What this rank writes of a parameter, or of its state, which is the file's tensor `nth`. */
static bool write_tensor(const save *w, const owned *p, const mt_tensor *t, bool state, size_t nth)
{
    const mti_shard_range r = written(p);
    const size_t first = is_cut(p, state) ? 0 : (size_t)r.from; /* in the tensor */
    const mt_named_tensor *of = mti_whole_find(&w->whole, p->path);
    size_t e = mt_dtype_size(mt_dtype_of(t)), n_bytes = (size_t)mt_numel(t) * e;
    if (r.n <= 0) return true;
    char *data = mti_malloc(n_bytes);
    writing v = {w->file, data + first * e, w->begins[nth], e};
    bool ok =
        data && mt_to_host(t, data, n_bytes) == MT_OK &&
        mti_each_run(p->shard, p->path, &p->own.whole, of->tensor, r.from, r.n, write_run, &v);
    mti_free(data);
    return ok;
}

/* Whether another rank has the embedding of which it is a copy. */
static bool is_copy(const owned *p)
{
    return p->shard->parallel.stage && mti_is_at_both_ends(p->shard, p->path);
}

static bool write_owned(const save *w, const owned *p)
{
    const mt_named_tensor *of = mti_whole_find(&w->whole, p->path);
    if (!of) return mti_fail_bool(MT_ERR_INTERNAL, "stage_save: the whole has no %s", p->path);
    if (is_copy(p)) return true; /* the rank with the embedding writes it */
    size_t nth = (size_t)(of - w->whole.list);
    bool ok = write_tensor(w, p, p->own.shard, false, nth);
    mti_opt_slot *slot = w->optimizer ? mti_optimizer_slot(w->optimizer, p->stepped) : NULL;
    for (int k = 0; ok && slot && slot->step && mti_optimizer_state_name(w->twin, of->name, k); k++)
        ok = write_tensor(w, p, mti_optimizer_state_tensor(w->optimizer, slot, k), true,
                          w->state_at[nth] + (size_t)k);
    return ok;
}

/* Into the file that is open, which rank 0 renames once all have written. */
static bool write_file(save *w, bool write_one(const save *w, const owned *p))
{
    bool ok = true;
    for (size_t i = 0; ok && i < w->owned.n; i++) ok = write_one(w, &w->owned.at[i]);
    if (!all_have(w->world, ok && mti_file_sync(w->file))) return false;
    ok = mti_file_commit(w->file);
    w->file = NULL;
    return all_have(w->world, ok);
}

static bool check_world(mt_comm *world, const mt_stage *s)
{
    const mt_parallel *h = &s->shards->parallel;
    int64_t all = h->tensor * mti_data_group(h).ranks * h->pipeline,
            there = mt_comm_group(world).ranks;
    return there == all || mti_fail_bool(MT_ERR_ARGUMENT,
                                         "stage_save: the world has %lld ranks; need all %lld of "
                                         "the stage's",
                                         (long long)there, (long long)all);
}

/* Whether modules keep nothing from step to step: a rank's would be that of its part, and the file
 * is of the whole model. */
static bool keeps_nothing(const mti_whole *whole, const char *op)
{
    mti_state_list states;
    const bool ok = mti_state_list_make(whole->model, MTI_MODULE_STATE, &states);
    const size_t n = states.list.n;
    mti_state_list_free(&states);
    return ok && (!n || mti_fail_bool(MT_ERR_UNSUPPORTED,
                                      "%s: linears of te-delayed keep the largest values of a "
                                      "rank's part, which a file of the whole model does not "
                                      "have; need te-current",
                                      op));
}

static bool save_all(save *w, const mt_stage *s, int64_t step, size_t n_pairs,
                     const mt_key_value *pairs)
{
    size_t n_head = 0;
    bool ok = check_optimizer(w->optimizer) &&
              mti_whole_open(&w->whole, s->shards, mti_stage_lora(s)) &&
              keeps_nothing(&w->whole, "stage_save") && list_owned(&w->owned, s);
    int64_t *steps = ok ? mti_calloc(w->whole.n + 1, sizeof *steps) : NULL;
    ok = all_have(w->world, ok && steps);
    if (ok) note_steps(w, steps);
    ok = ok && share_steps(w, steps);
    char *head = ok ? plan(w, s, steps, step, n_pairs, pairs, &n_head) : NULL;
    ok = ok && all_have(w->world, head != NULL) && open_file(w, head, n_head);
    mti_free(head);
    mti_free(steps);
    return ok && write_file(w, write_owned);
}

mt_status mt_stage_save(const char *path, mt_stage *s, mt_optimizer *o, mt_comm *world,
                        int64_t step, size_t n_metadata, const mt_key_value *metadata)
{
    if (!mti_given(s, "stage_save", "the stage")) return mt_last_status();
    if (!path) return mti_fail(MT_ERR_ARGUMENT, "stage_save: the path is NULL");
    if (!check_world(world, s)) return mt_last_status();
    save w = {.path = path, .world = world, .optimizer = o};
    bool ok = save_all(&w, s, step, n_metadata, metadata);
    end_save(&w);
    return ok ? MT_OK : mt_last_status();
}

/* ---- saving adapters ---- */

static bool write_adapter(const save *w, const owned *p)
{
    if (!mti_is_adapter(p->path)) return true;
    const mt_named_tensor *of = mti_whole_find(&w->whole, p->path);
    size_t nth = 0;
    while (of && nth < w->adapters.n && w->adapters.tensors[nth].tensor != of->tensor) nth++;
    if (!of || nth == w->adapters.n)
        return mti_fail_bool(MT_ERR_INTERNAL, "stage_save_lora: the whole has no %s", p->path);
    return write_tensor(w, p, p->own.shard, false, nth);
}

static char *plan_adapters(save *w, size_t *n_head)
{
    const mti_lora_list *a = &w->adapters;
    if (!mti_lora_list_make(&w->adapters, w->whole.model)) return NULL;
    if (!(w->begins = mti_calloc(a->n, sizeof *w->begins))) return NULL;
    return mti_safetensors_head(w->path, a->n, a->tensors, MTI_LORA_PAIRS, a->pairs, n_head,
                                w->begins);
}

static bool save_adapters(save *w, const mt_stage *s)
{
    size_t n_head = 0;
    bool ok = mti_whole_open(&w->whole, s->shards, mti_stage_lora(s)) && list_owned(&w->owned, s);
    char *head = ok ? plan_adapters(w, &n_head) : NULL;
    ok = all_have(w->world, head != NULL) && open_file(w, head, n_head);
    mti_free(head);
    return ok && write_file(w, write_adapter);
}

mt_status mt_stage_save_lora(const char *path, mt_stage *s, mt_comm *world)
{
    if (!mti_given(s, "stage_save_lora", "the stage")) return mt_last_status();
    if (!path) return mti_fail(MT_ERR_ARGUMENT, "stage_save_lora: the path is NULL");
    if (!check_world(world, s)) return mt_last_status();
    save w = {.path = path, .world = world};
    bool ok = save_adapters(&w, s);
    end_save(&w);
    return ok ? MT_OK : mt_last_status();
}

/* ---- loading ---- */

typedef struct reading {
    const mt_safetensors *file;
    const char *name; /* in the file */
    char *data;
    size_t e;
} reading;

static bool read_run(void *user, int64_t i, int64_t n, int64_t at)
{
    const reading *v = user;
    return at < 0 || mti_safetensors_read_part(v->file, v->name, (uint64_t)at * v->e,
                                               v->data + (size_t)i * v->e, (size_t)n * v->e);
}

/* Padding is 0. */
static bool read_tensor(const mt_safetensors *f, const char *name, const owned *p,
                        const mt_tensor *whole, mt_tensor *t, bool state)
{
    const mti_shard_range r = held(p, state);
    size_t e = mt_dtype_size(mt_dtype_of(t)), n = (size_t)mt_numel(t);
    if (!n || !mt_device_has_data(mt_device_of(t))) return true;
    reading v = {f, name, mti_calloc(n, e), e};
    bool ok = v.data &&
              mti_each_run(p->shard, p->path, &p->own.whole, whole, r.from, r.n, read_run, &v) &&
              mt_copy_from_host(t, v.data, n * e) == MT_OK;
    mti_free(v.data);
    return ok;
}

static bool read_state(const mt_safetensors *f, mt_optimizer *o, const owned *p,
                       const mt_named_tensor *of, const json_t *steps)
{
    const char *state;
    mti_opt_slot *slot = mti_optimizer_slot(o, p->stepped);
    const json_t *step = json_object_get(steps, of->name);
    if (!slot || !step) return true;
    bool ok = mti_optimizer_make_state(o, slot);
    slot->step = ok ? json_integer_value(step) : 0;
    for (int k = 0; ok && (state = mti_optimizer_state_name(o, p->stepped, k)); k++) {
        char *name = mti_checkpoint_state_name(state, of->name);
        ok = name &&
             read_tensor(f, name, p, of->tensor, mti_optimizer_state_tensor(o, slot, k), true);
        mti_free(name);
    }
    return ok;
}

/* Weights, then what begins from them. steps: NULL without an optimizer. */
static bool read_all(const mt_safetensors *f, const mti_whole *whole, const owned_list *all,
                     mt_optimizer *o, const json_t *steps)
{
    bool ok = true;
    for (size_t i = 0; ok && i < all->n; i++) {
        const mt_named_tensor *of = mti_whole_find(whole, all->at[i].path);
        ok =
            of ? read_tensor(f, of->name, &all->at[i], of->tensor, all->at[i].own.shard, false)
               : mti_fail_bool(MT_ERR_INTERNAL, "stage_load: the whole has no %s", all->at[i].path);
    }
    if (o && ok) mt_optimizer_reset(o);
    for (size_t i = 0; o && ok && i < all->n; i++)
        ok = read_state(f, o, &all->at[i], mti_whole_find(whole, all->at[i].path), steps);
    return ok;
}

/* A weight in 4 bits, all of which this rank has, from the file's floats. */
static bool read_codes(mt_safetensors *f, const mt_named_tensor *of, const owned *p,
                       const mt_lora_options *lora)
{
    if (!mt_device_has_data(mt_device_of(p->own.shard))) return true;
    mt_device *separate = mt_device_open("cpu");
    mt_tensor *dense = separate ? mt_safetensors_read(f, of->name, separate) : NULL;
    bool ok = dense && mti_set_codes(p->own.shard, dense, lora);
    mt_release(dense);
    mt_device_release(separate);
    return ok;
}

/* The file has no adapters; this rank's keep their values. */
static bool read_weight(mt_safetensors *f, const mti_whole *whole, const owned *p,
                        const mt_lora_options *lora)
{
    char plain[MTI_PLAIN_PATH];
    if (mti_is_adapter(p->path)) return true;
    const mt_named_tensor *of = mti_whole_find(whole, mti_plain_path(plain, p->path));
    if (!of)
        return mti_fail_bool(MT_ERR_INTERNAL, "stage_load_weights: the whole has no %s", p->path);
    return mt_dtype_is_float(mt_dtype_of(p->own.shard))
               ? read_tensor(f, of->name, p, of->tensor, p->own.shard, false)
               : read_codes(f, of, p, lora);
}

mt_status mt_stage_load_weights(mt_safetensors *f, mt_stage *s)
{
    mti_whole whole;
    owned_list all = {0};
    if (!mti_given(f, "stage_load_weights", "the file") ||
        !mti_given(s, "stage_load_weights", "the stage"))
        return mt_last_status();
    bool ok = mti_whole_open(&whole, s->shards, NULL) &&
              mt_safetensors_check_module(f, whole.model) == MT_OK && list_owned(&all, s);
    for (size_t i = 0; ok && i < all.n; i++)
        ok = read_weight(f, &whole, &all.at[i], mti_stage_lora(s));
    mti_free(all.at);
    mti_whole_close(&whole);
    return ok ? MT_OK : mt_last_status();
}

mt_status mt_stage_load(mt_safetensors *f, mt_stage *s, mt_optimizer *o, int64_t *step)
{
    mti_whole whole;
    owned_list all = {0};
    mti_checkpoint_state saved = {0};
    if (!mti_given(f, "stage_load", "the file") || !mti_given(s, "stage_load", "the stage") ||
        !check_optimizer(o))
        return mt_last_status();
    mt_optimizer *twin = NULL;
    bool ok = mti_whole_open(&whole, s->shards, mti_stage_lora(s)) &&
              keeps_nothing(&whole, "stage_load") &&
              (!o || (twin = mti_optimizer_like(o, whole.model))) &&
              mti_checkpoint_check(f, whole.list, whole.n, twin, &saved) && list_owned(&all, s) &&
              read_all(f, &whole, &all, o, saved.steps);
    json_decref(saved.steps);
    mt_optimizer_free(twin);
    mti_free(all.at);
    mti_whole_close(&whole);
    if (!ok) return mt_last_status();
    mt_rng_set(s->device, saved.seed, saved.offset);
    if (step) *step = (int64_t)saved.step;
    return MT_OK;
}
