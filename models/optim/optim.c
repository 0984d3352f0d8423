/* optim.c: an optimizer's parameters and its state. */
#include <math.h>
#include <string.h>
#include "backends/moments.h"
#include "optim/optim.h"

/* ---- making and freeing ---- */

bool mti_optimizer_note_embeddings(const mt_module *m, mti_hashmap *out)
{
    const mt_module *child;
    bool ok = strcmp(mt_module_kind(m), "embedding") != 0 ||
              mti_hashmap_add(out, (uintptr_t)mt_module_param(m, "weight"), 0);
    for (size_t i = 0; ok && (child = mt_module_child_at(m, i)); i++)
        ok = mti_optimizer_note_embeddings(child, out);
    return ok;
}

/* Rows of an embedding and of the head are looked up, or one for each class: no map of vectors
 * between two layers. */
const mti_opt_rule *mti_optimizer_rule(const mt_optimizer *o, const mti_hashmap *embeddings,
                                       const mt_named_tensor *p)
{
    if (!o->rule->others) return o->rule;
    bool hidden = mt_rank(p->tensor) >= 2 && strncmp(p->name, "lm_head.", 8) != 0 &&
                  mti_hashmap_find(embeddings, (uintptr_t)p->tensor) == MTI_NO_PLACE;
    return hidden ? o->rule : o->rule->others;
}

static bool init_slot(mt_optimizer *o, mti_opt_slot *s, const mti_hashmap *embeddings,
                      const mt_named_tensor *p)
{
    if (!mt_is_contiguous(p->tensor))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "%s: parameter %s is a strided view; need a contiguous one",
                             o->rule->name, p->name);
    if (o->device && o->device != mt_device_of(p->tensor))
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: parameter %s is on another device than the rest",
                             o->rule->name, p->name);
    o->device = mt_device_of(p->tensor);
    s->param = mt_retain(p->tensor);
    s->rule = mti_optimizer_rule(o, embeddings, p);
    return (s->module = mti_intern(p->name)) && (s->path = mti_strdup(p->name));
}

/* ---- in host memory ---- */

/* Moves a gradient that is complete, as stage_1_and_2.py and stage3.py of DeepSpeed do with
 * offload_optimizer; a later backward adds to it where it lies. */
static mt_status move_grad(void *slot, mt_tensor *leaf)
{
    mti_opt_slot *s = slot;
    mt_tensor *grad = mt_grad(leaf);
    if (!grad || !mt_storage_of(grad).allocated) return MT_OK;
    mti_view spec = grad->view;
    size_t n_bytes;
    mti_view_pack(&spec, &n_bytes);
    MT_AUTO mt_tensor *there = mti_tensor_in_host(s->owner->device, &spec);
    return there && mti_copy_view(s->owner->device, &grad->view, &there->view)
               ? mt_set_grad(leaf, there)
               : mt_last_status();
}

/* ---- making ---- */

mt_optimizer *mti_optimizer_like(const mt_optimizer *like, mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(m, &list, &n) != MT_OK) return NULL;
    mt_optimizer *o = mti_calloc(1, sizeof *o);
    if (!o) return NULL;
    *o = (mt_optimizer){.rule = like->rule,
                        .n_state = like->n_state,
                        .moments = like->moments,
                        .paged = like->paged,
                        .host = like->host,
                        .form = like->form,
                        .by_rule = like->by_rule,
                        .params = like->params,
                        .master = like->master,
                        .weight_decay = like->weight_decay,
                        .decay_matrices_only = like->decay_matrices_only};
    mti_hashmap embeddings = {0};
    bool ok = (o->slots = mti_calloc(n, sizeof *o->slots)) &&
              (o->items = mti_calloc(n, sizeof *o->items)) &&
              mti_optimizer_note_embeddings(m, &embeddings);
    for (size_t i = 0; ok && i < n; i++) {
        if (!mt_dtype_is_float(mt_dtype_of(list[i].tensor))) continue;
        ok = init_slot(o, &o->slots[o->n_slots++], &embeddings, &list[i]);
    }
    for (size_t i = 0; ok && o->host && i < o->n_slots; i++) {
        mti_opt_slot *s = &o->slots[i];
        s->owner = o;
        ok = !mt_requires_grad(s->param) || (s->moves = mt_add_leaf_hook(s->param, move_grad, s));
    }
    mti_hashmap_free(&embeddings);
    if (ok) return o;
    mt_optimizer_free(o);
    return NULL;
}

static void drop_state(mti_opt_slot *s)
{
    for (int k = 0; k < MTI_MAX_STATE; k++) {
        mt_release(s->state[k]);
        s->state[k] = NULL;
    }
    mt_release(s->master);
    s->master = NULL;
    s->step = 0;
}

void mt_optimizer_reset(mt_optimizer *o)
{
    for (size_t i = 0; o && i < o->n_slots; i++) drop_state(&o->slots[i]);
}

void mt_optimizer_free(mt_optimizer *o)
{
    if (!o) return;
    mt_optimizer_reset(o);
    for (size_t i = 0; i < o->n_slots; i++) {
        if (o->slots[i].hook) mt_remove_hook(o->slots[i].param, o->slots[i].hook);
        if (o->slots[i].moves) mt_remove_hook(o->slots[i].param, o->slots[i].moves);
        mt_release(o->slots[i].param);
        mti_free(o->slots[i].path);
    }
    mti_free(o->slots);
    mti_free(o->items);
    mti_free(o);
}

bool mti_optimizer_in_range(const char *caller, const char *field, double value, double below)
{
    return (value >= 0 && value < below) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s is %g; need 0 <= %s < %g", caller, field, value,
                         field, below);
}

const char *mt_optimizer_kind(const mt_optimizer *o) { return o ? o->rule->name : ""; }
double mt_optimizer_lr(const mt_optimizer *o) { return o ? o->params.lr : NAN; }

mt_status mt_optimizer_set_lr(mt_optimizer *o, double lr)
{
    if (!mti_given(o, "optimizer_set_lr", "the optimizer")) return mt_last_status();
    if (!mti_optimizer_in_range(o->rule->name, "lr", lr, INFINITY)) return MT_ERR_ARGUMENT;
    o->params.lr = lr;
    return MT_OK;
}

/* ---- state ---- */

static bool has_master(const mt_optimizer *o, const mti_opt_slot *s)
{
    return o->master && mt_dtype_size(s->param->view.dtype) == 2;
}

/* How the moments of a parameter of n elements are stored if `asked` is asked for. */
static mti_moments stored_as(mt_moments asked, mt_dtype dtype, int64_t n)
{
    mti_moments codes = mti_moment_codes(asked);
    bool large = n >= MT_MOMENTS_8BIT_LEAST && dtype != MT_F64,
         torchao = mti_moments_torchao(asked);
    if (codes != MTI_MOMENTS_WIDE && large && (!torchao || n % mti_moment_block(codes) == 0))
        return codes;
    bool narrow =
        asked == MT_MOMENTS_BF16 ? dtype == MT_F32 || dtype == MT_BF16 : mt_dtype_size(dtype) == 2;
    bool asked_narrow = torchao || asked == MT_MOMENTS_NARROW || asked == MT_MOMENTS_BF16;
    return asked_narrow && narrow ? MTI_MOMENTS_NARROW : MTI_MOMENTS_WIDE;
}

mti_moments mti_moment_codes(mt_moments asked)
{
    return asked == MT_MOMENTS_TORCHAO_4BIT                               ? MTI_MOMENTS_4BIT
           : asked == MT_MOMENTS_TORCHAO_FP8                              ? MTI_MOMENTS_FP8
           : asked == MT_MOMENTS_8BIT || asked == MT_MOMENTS_TORCHAO_8BIT ? MTI_MOMENTS_8BIT
                                                                          : MTI_MOMENTS_WIDE;
}

/* What n codes take, with their scales and the table that torchao reads them by. */
static int64_t bytes_of_codes(mt_moments asked, int64_t n)
{
    mti_moments codes = mti_moment_codes(asked);
    int64_t values = codes == MTI_MOMENTS_4BIT ? 16 : MTI_MOMENT_CODES;
    bool table = mti_moments_torchao(asked) && codes != MTI_MOMENTS_FP8;
    return mti_moment_bytes(codes, n) + (table ? 4 * values : 0);
}

mti_moments mti_optimizer_moments(const mt_optimizer *o, const mti_view *param)
{
    return stored_as(o->moments, param->dtype, mti_view_count(param));
}

#define MOST_ELEMENTS (INT64_MAX / 16) /* whose bytes an int64_t holds, with rows' and columns' */

int64_t mt_moment_bytes(mt_moments moments, mt_dtype dtype, int64_t n)
{
    if (n < 0 || n > MOST_ELEMENTS) {
        mti_fail(MT_ERR_ARGUMENT, "moment_bytes: n is %lld; need 0 to %lld", (long long)n,
                 (long long)MOST_ELEMENTS);
        return 0;
    }
    switch (stored_as(moments, dtype, n)) {
    case MTI_MOMENTS_NARROW: return 2 * n;
    case MTI_MOMENTS_WIDE: return (dtype == MT_F64 ? 8 : 4) * n;
    default: return bytes_of_codes(moments, n);
    }
}

bool mti_optimizer_factors(const mt_optimizer *o, const mti_view *param)
{
    return o->rule->whole && param->rank > 1;
}

static bool has_scales_apart(const mt_optimizer *o, const mti_opt_slot *s)
{
    return o->paged && mti_optimizer_moments(o, &s->param->view) >= MTI_MOMENTS_8BIT;
}

bool mti_optimizer_pages(const mt_optimizer *o, const mti_opt_slot *s, int k)
{
    const bool large = mti_view_count(&s->param->view) >= MT_PAGED_LEAST;
    return o->host || (o->paged && k < o->n_state && large);
}

int mti_optimizer_n_moments(const mt_optimizer *o, const mti_opt_slot *s)
{
    if (s->rule != o->rule) return s->rule->n_state;
    if (has_scales_apart(o, s)) return 2 * o->n_state;
    return o->rule->whole && !mti_optimizer_factors(o, &s->param->view) ? 1 : o->n_state;
}

int64_t mt_adafactor_bytes(mt_dtype dtype, int rank, const int64_t *shape, bool master)
{
    int64_t n = 1, size = (int64_t)mt_dtype_size(dtype);
    bool ok = rank >= 0 && rank <= MT_MAX_RANK;
    if (!shape) rank = 0;
    for (int d = 0; ok && d < rank; d++)
        ok = shape[d] >= 0 && !__builtin_mul_overflow(n, shape[d], &n) && n <= MOST_ELEMENTS;
    if (!ok) {
        mti_fail(MT_ERR_ARGUMENT,
                 "adafactor_bytes: need a rank from 0 to %d and at most %lld elements", MT_MAX_RANK,
                 (long long)MOST_ELEMENTS);
        return 0;
    }
    if (master && size == 2) size = 4;
    if (rank < 2 || n == 0) return n * size;
    return (n / shape[rank - 1] + n / shape[rank - 2]) * size;
}

mti_view mti_optimizer_spec(const mt_optimizer *o, const mti_opt_slot *s, int k)
{
    const mti_view *param = &s->param->view;
    mti_view spec = *param;
    bool moment = k < mti_optimizer_n_moments(o, s);
    mti_moments moments = moment ? mti_optimizer_moments(o, param) : MTI_MOMENTS_WIDE;
    if (moment && mti_optimizer_factors(o, param)) {
        size_t n_bytes;
        spec.shape[spec.rank - 1 - k] = 1; /* rows' sums have no columns, columns' no rows */
        mti_view_pack(&spec, &n_bytes);    /* smaller than the parameter */
    }
    if (moments >= MTI_MOMENTS_8BIT) {
        int64_t n = mti_view_count(&spec), n_bytes = bytes_of_codes(o->moments, n);
        int64_t codes = mti_moment_scales_at(moments, n);
        if (has_scales_apart(o, s)) n_bytes = k < o->n_state ? codes : (n_bytes - codes) / 4;
        spec = (mti_view){.dtype = MT_U8, .rank = 1, .shape = {n_bytes}, .stride = {1}};
        if (k >= o->n_state) spec.dtype = MT_F32;
    } else if (moments == MTI_MOMENTS_WIDE && spec.dtype != MT_F64) {
        spec.dtype = MT_F32;
    } else if (moments == MTI_MOMENTS_NARROW && spec.dtype == MT_F32) {
        spec.dtype = MT_BF16;
    }
    return spec;
}

/* Tensors of a parameter's state: its moments, and its master if it has one. */
static int n_state_of(const mt_optimizer *o, const mti_opt_slot *s)
{
    return mti_optimizer_n_moments(o, s) + has_master(o, s);
}
static mt_tensor **state_at(const mt_optimizer *o, mti_opt_slot *s, int k)
{
    return k < mti_optimizer_n_moments(o, s) ? &s->state[k] : &s->master;
}
mt_tensor *mti_optimizer_state_tensor(const mt_optimizer *o, mti_opt_slot *s, int k)
{
    return *state_at(o, s, k);
}
static const char *name_of(const mt_optimizer *o, const mti_opt_slot *s, int k)
{
    if (k >= mti_optimizer_n_moments(o, s)) return "master";
    bool whole = o->rule->whole && !mti_optimizer_factors(o, &s->param->view);
    return whole ? o->rule->whole : s->rule->state[k];
}

static mt_tensor *new_state(const mt_optimizer *o, const mti_opt_slot *s, int k)
{
    mti_view spec = mti_optimizer_spec(o, s, k);
    if (mti_optimizer_pages(o, s, k)) return mti_tensor_in_host(o->device, &spec);
    return mti_tensor_new(o->device, &spec, MT_OPTIMIZER, false);
}

static bool make_zeros(const mt_optimizer *o, mti_opt_slot *s, int k)
{
    mt_tensor **state = &s->state[k];
    if (*state) return true;
    *state = new_state(o, s, k);
    return *state && o->device->backend->fill(o->device->ctx, &(*state)->view, 0);
}

/* Makes the master, or updates it if the parameter was written since the last step. */
static bool make_master(const mt_optimizer *o, mti_opt_slot *s)
{
    uint64_t version = atomic_load(&s->param->storage->version);
    if (s->master && s->version == version) return true;
    if (!s->master && !(s->master = new_state(o, s, mti_optimizer_n_moments(o, s)))) return false;
    mti_note_copy(s->master, s->param);
    s->version = version;
    return mti_copy_view(o->device, &s->param->view, &s->master->view);
}

bool mti_optimizer_make_state(const mt_optimizer *o, mti_opt_slot *s)
{
    /* A GPU's kernels look for scales behind the codes. */
    if ((o->paged || o->host) && o->device->backend->links)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "%s: %s keeps no paged state; need cpu or meta",
                             o->rule->name, o->device->backend->kind);
    mti_where *now = mti_where_now(), previous = *now;
    now->op = o->rule->name;
    now->module = s->module;
    bool ok = true;
    for (int k = 0; ok && k < mti_optimizer_n_moments(o, s); k++) ok = make_zeros(o, s, k);
    if (ok && has_master(o, s)) ok = make_master(o, s);
    *now = previous;
    if (!ok && !s->step) drop_state(s);
    return ok;
}

/* State tensors that the public functions show. */
static size_t n_visible(const mt_optimizer *o, const mti_opt_slot *s)
{
    return s->step > 0 ? (size_t)n_state_of(o, s) : 0;
}

size_t mt_optimizer_state_count(const mt_optimizer *o)
{
    size_t n = 0;
    for (size_t i = 0; o && i < o->n_slots; i++) n += n_visible(o, &o->slots[i]);
    return n;
}

mt_status mt_optimizer_state(const mt_optimizer *o, size_t i, mt_optimizer_entry *out)
{
    if (!mti_given(o, "optimizer_state", "the optimizer")) return mt_last_status();
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "optimizer_state: the result is NULL");
    size_t index = i;
    for (size_t j = 0; j < o->n_slots; j++) {
        mti_opt_slot *s = &o->slots[j];
        size_t n = n_visible(o, s);
        if (index < n) {
            int k = (int)index;
            *out = (mt_optimizer_entry){s->path, name_of(o, s, k), *state_at(o, s, k), s->step};
            return MT_OK;
        }
        index -= n;
    }
    return mti_fail(MT_ERR_ARGUMENT, "optimizer: no state tensor %zu; there are %zu", i,
                    mt_optimizer_state_count(o));
}

static size_t bytes_in(const mt_optimizer *o, bool host)
{
    size_t bytes = 0;
    for (size_t i = 0; o && i < o->n_slots; i++)
        for (size_t k = 0; k < n_visible(o, &o->slots[i]); k++) {
            const mt_tensor *t = *state_at(o, &o->slots[i], (int)k);
            if (mti_optimizer_pages(o, &o->slots[i], (int)k) == host)
                bytes += (size_t)mt_numel(t) * mt_dtype_size(mt_dtype_of(t));
        }
    return bytes;
}

size_t mti_optimizer_state_bytes(const mt_optimizer *o) { return bytes_in(o, false); }

/* DeepSpeed has gradients there in f32, from the first step on. */
size_t mti_optimizer_host_bytes(const mt_optimizer *o)
{
    size_t bytes = bytes_in(o, true);
    for (size_t i = 0; o && o->host && i < o->n_slots; i++)
        if (n_visible(o, &o->slots[i])) bytes += 4 * (size_t)mt_numel(o->slots[i].param);
    return bytes;
}

mti_opt_slot *mti_optimizer_slot(mt_optimizer *o, const char *path)
{
    for (size_t i = 0; path && i < o->n_slots; i++)
        if (!strcmp(o->slots[i].path, path)) return &o->slots[i];
    return NULL;
}

const char *mti_optimizer_state_name(mt_optimizer *o, const char *path, int k)
{
    const mti_opt_slot *s = mti_optimizer_slot(o, path);
    return s && k < n_state_of(o, s) ? name_of(o, s, k) : NULL;
}

mti_view mti_optimizer_state_spec(mt_optimizer *o, const char *path, int k)
{
    return mti_optimizer_spec(o, mti_optimizer_slot(o, path), k);
}

bool mti_optimizer_is_in_backward(const mt_optimizer *o) { return o->in_backward; }

mt_status mt_optimizer_restore(mt_optimizer *o, const mt_optimizer_entry *entry)
{
    if (!mti_given(o, "optimizer_restore", "the optimizer")) return mt_last_status();
    if (!entry || !entry->name || !entry->param)
        return mti_fail(MT_ERR_ARGUMENT, "optimizer_restore: the entry is NULL, or a name in it");
    if (!mti_given(entry->tensor, "optimizer_restore", "the entry's tensor"))
        return mt_last_status();
    mti_opt_slot *s = mti_optimizer_slot(o, entry->param);
    int k = 0, n = s ? n_state_of(o, s) : 0;
    while (k < n && strcmp(name_of(o, s, k), entry->name)) k++;
    if (k == n)
        return mti_fail(MT_ERR_ARGUMENT, "%s: has no state \"%s\" of a parameter \"%s\"",
                        o->rule->name, entry->name, entry->param);
    if (entry->step < 1)
        return mti_fail(MT_ERR_ARGUMENT, "%s: state of %s at step %lld; need at least 1",
                        o->rule->name, s->path, (long long)entry->step);
    mti_view spec = mti_optimizer_spec(o, s, k);
    if (!mti_view_same_shape(&entry->tensor->view, &spec)) {
        char has[MTI_SHAPE_TEXT], need[MTI_SHAPE_TEXT];
        return mti_fail(MT_ERR_ARGUMENT, "%s: state %s of %s is %s; need %s", o->rule->name,
                        entry->name, s->path,
                        mti_shape_text(has, mt_rank(entry->tensor), mt_shape(entry->tensor)),
                        mti_shape_text(need, spec.rank, spec.shape));
    }
    if (!mti_optimizer_make_state(o, s)) return mt_last_status();
    s->step = entry->step;
    return mt_copy(*state_at(o, s, k), entry->tensor);
}
