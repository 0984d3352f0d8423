/* optim.c: SGD and AdamW. The arithmetic is the backend's, one call for all parameters; here is
 * what surrounds it: which parameters take part, their state, and at which step each of them is. */
#include <math.h>
#include <string.h>
#include "tensor/tensor.h"
#include "memtape/ops.h"
#include "nn/nn.h"

#define MAX_STATE 2

typedef struct rule {
    const char *name;
    const char *state[MAX_STATE]; /* names of the state tensors; NULL: no more */
    bool (*step)(const mti_backend *be, mti_ctx *ctx, const mti_opt_params *p, int n,
                 const mti_opt_item *items);
} rule;

typedef struct slot {
    char *path;
    const char *where;           /* the path, interned: the state's module in the books */
    mt_tensor *param;            /* retained */
    mt_tensor *state[MAX_STATE]; /* NULL before the first step */
    int64_t step;                /* steps made */
    mt_tensor *grad; /* contiguous; held during a step by the slots that take part in it */
} slot;

struct mt_optimizer {
    const rule *rule;
    int n_state; /* tensors per parameter */
    mti_opt_params params;
    double weight_decay;
    bool decay_matrices_only;
    mt_device *device; /* of all parameters; NULL if there are none */
    size_t n_slots;
    slot *slots;
    mti_opt_item *items; /* [n_slots] */
};

static bool sgd_step(const mti_backend *be, mti_ctx *ctx, const mti_opt_params *p, int n,
                     const mti_opt_item *items)
{
    return be->sgd(ctx, p, n, items);
}

static bool adamw_step(const mti_backend *be, mti_ctx *ctx, const mti_opt_params *p, int n,
                       const mti_opt_item *items)
{
    return be->adamw(ctx, p, n, items);
}

static const rule sgd_rule = {"sgd", {"momentum"}, sgd_step};
static const rule adamw_rule = {"adamw", {"m", "v"}, adamw_step};

/* ---- making and freeing ---- */

static bool init_slot(mt_optimizer *o, slot *s, const mt_named_tensor *p)
{
    if (!mt_is_contiguous(p->tensor))
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: parameter %s is a strided view; need it dense",
                             o->rule->name, p->name);
    if (o->device && o->device != mt_device_of(p->tensor))
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: parameter %s is on another device than the rest",
                             o->rule->name, p->name);
    o->device = mt_device_of(p->tensor);
    s->param = mt_retain(p->tensor);
    return (s->where = mti_intern(p->name)) && (s->path = mti_strdup(p->name));
}

static mt_optimizer *optimizer_new(mt_module *m, const rule *r, int n_state)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(m, &list, &n) != MT_OK) return NULL;
    mt_optimizer *o = mti_calloc(1, sizeof *o);
    if (!o) return NULL;
    o->rule = r;
    o->n_state = n_state;
    bool ok = (o->slots = mti_calloc(n, sizeof *o->slots)) &&
              (o->items = mti_calloc(n, sizeof *o->items));
    for (size_t i = 0; ok && i < n; i++) {
        if (!mt_dtype_is_float(mt_dtype_of(list[i].tensor))) continue;
        ok = init_slot(o, &o->slots[o->n_slots++], &list[i]);
    }
    if (ok) return o;
    mt_optimizer_free(o);
    return NULL;
}

static bool in_range(const char *who, const char *field, double value, double below)
{
    return (value >= 0 && value < below) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s is %g; need 0 <= %s < %g", who, field, value,
                         field, below);
}

mt_optimizer *mt_sgd_new(mt_module *m, const mt_sgd_options *options)
{
    if (!options) return mti_fail_null(MT_ERR_ARGUMENT, "sgd: the options are NULL");
    if (!in_range("sgd", "lr", options->lr, INFINITY) ||
        !in_range("sgd", "momentum", options->momentum, INFINITY) ||
        !in_range("sgd", "weight_decay", options->weight_decay, INFINITY))
        return NULL;
    mt_optimizer *o = optimizer_new(m, &sgd_rule, options->momentum > 0);
    if (!o) return NULL;
    o->params = (mti_opt_params){.lr = options->lr, .momentum = options->momentum};
    o->weight_decay = options->weight_decay;
    return o;
}

mt_optimizer *mt_adamw_new(mt_module *m, const mt_adamw_options *options)
{
    if (!options) return mti_fail_null(MT_ERR_ARGUMENT, "adamw: the options are NULL");
    if (!in_range("adamw", "lr", options->lr, INFINITY) ||
        !in_range("adamw", "beta1", options->beta1, 1) ||
        !in_range("adamw", "beta2", options->beta2, 1) ||
        !in_range("adamw", "eps", options->eps, INFINITY) ||
        !in_range("adamw", "weight_decay", options->weight_decay, INFINITY))
        return NULL;
    mt_optimizer *o = optimizer_new(m, &adamw_rule, 2);
    if (!o) return NULL;
    o->params = (mti_opt_params){.lr = options->lr,
                                 .beta1 = options->beta1 > 0 ? options->beta1 : 0.9,
                                 .beta2 = options->beta2 > 0 ? options->beta2 : 0.999,
                                 .eps = options->eps > 0 ? options->eps : 1e-8};
    o->weight_decay = options->weight_decay;
    o->decay_matrices_only = options->decay_matrices_only;
    return o;
}

static void drop_state(slot *s)
{
    for (int k = 0; k < MAX_STATE; k++) {
        mt_release(s->state[k]);
        s->state[k] = NULL;
    }
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
        mt_release(o->slots[i].param);
        mti_free(o->slots[i].path);
    }
    mti_free(o->slots);
    mti_free(o->items);
    mti_free(o);
}

const char *mt_optimizer_kind(const mt_optimizer *o) { return o ? o->rule->name : ""; }
double mt_optimizer_lr(const mt_optimizer *o) { return o ? o->params.lr : NAN; }

mt_status mt_optimizer_set_lr(mt_optimizer *o, double lr)
{
    if (!o) return mti_fail(MT_ERR_ARGUMENT, "optimizer: is NULL");
    if (!in_range(o->rule->name, "lr", lr, INFINITY)) return MT_ERR_ARGUMENT;
    o->params.lr = lr;
    return MT_OK;
}

/* ---- state ---- */

mt_dtype mti_optimizer_state_dtype(const mt_tensor *param)
{
    return mt_dtype_of(param) == MT_F64 ? MT_F64 : MT_F32;
}

static mt_tensor *zero_state(const mt_optimizer *o, const slot *s)
{
    mti_view spec = s->param->view;
    spec.dtype = mti_optimizer_state_dtype(s->param);
    mt_tensor *t = mti_tensor_new(o->device, &spec, MT_OPTIMIZER, false);
    if (t && o->device->backend->fill(o->device->ctx, &t->view, 0)) return t;
    mt_release(t);
    return NULL;
}

/* All state of a slot, or none of it. */
static bool make_state(const mt_optimizer *o, slot *s)
{
    mti_where *now = mti_where_now(), was = *now;
    now->op = o->rule->name;
    now->module = s->where;
    bool ok = true;
    for (int k = 0; ok && k < o->n_state; k++)
        if (!s->state[k]) ok = (s->state[k] = zero_state(o, s)) != NULL;
    *now = was;
    if (!ok) drop_state(s);
    return ok;
}

static bool has_state(const mt_optimizer *o, const slot *s) { return o->n_state && s->step > 0; }

size_t mt_optimizer_state_count(const mt_optimizer *o)
{
    size_t n = 0;
    for (size_t i = 0; o && i < o->n_slots; i++)
        if (has_state(o, &o->slots[i])) n += (size_t)o->n_state;
    return n;
}

mt_status mt_optimizer_state(const mt_optimizer *o, size_t i, mt_optimizer_entry *out)
{
    size_t at = i;
    for (size_t j = 0; o && out && j < o->n_slots; j++) {
        const slot *s = &o->slots[j];
        if (!has_state(o, s)) continue;
        if (at < (size_t)o->n_state) {
            *out = (mt_optimizer_entry){s->path, o->rule->state[at], s->state[at], s->step};
            return MT_OK;
        }
        at -= (size_t)o->n_state;
    }
    return mti_fail(MT_ERR_ARGUMENT, "optimizer: no state tensor %zu; there are %zu", i,
                    mt_optimizer_state_count(o));
}

static slot *find_slot(mt_optimizer *o, const char *path)
{
    for (size_t i = 0; path && i < o->n_slots; i++)
        if (!strcmp(o->slots[i].path, path)) return &o->slots[i];
    return NULL;
}

const char *mti_optimizer_state_name(const mt_optimizer *o, int k)
{
    return k < o->n_state ? o->rule->state[k] : NULL;
}

mt_tensor *mti_optimizer_param(mt_optimizer *o, const char *path)
{
    const slot *s = find_slot(o, path);
    return s ? s->param : NULL;
}

mt_status mt_optimizer_restore(mt_optimizer *o, const mt_optimizer_entry *entry)
{
    if (!o || !entry || !entry->tensor || !entry->name)
        return mti_fail(MT_ERR_ARGUMENT, "optimizer_restore: an argument is NULL");
    slot *s = find_slot(o, entry->param);
    int k = 0;
    while (k < o->n_state && strcmp(o->rule->state[k], entry->name)) k++;
    if (!s || k == o->n_state)
        return mti_fail(MT_ERR_ARGUMENT, "%s: has no state \"%s\" of a parameter \"%s\"",
                        o->rule->name, entry->name, entry->param ? entry->param : "(null)");
    if (entry->step < 1)
        return mti_fail(MT_ERR_ARGUMENT, "%s: state of %s at step %lld; need at least 1",
                        o->rule->name, s->path, (long long)entry->step);
    if (!mti_view_same_shape(&entry->tensor->view, &s->param->view)) {
        char has[MTI_SHAPE_TEXT], need[MTI_SHAPE_TEXT];
        return mti_fail(MT_ERR_ARGUMENT, "%s: state %s of %s is %s; need %s", o->rule->name,
                        entry->name, s->path,
                        mti_shape_text(has, mt_rank(entry->tensor), mt_shape(entry->tensor)),
                        mti_shape_text(need, mt_rank(s->param), mt_shape(s->param)));
    }
    if (!make_state(o, s)) return mt_last_status();
    s->step = entry->step;
    return mt_copy(s->state[k], entry->tensor);
}

/* ---- a step ---- */

/* Hold a dense gradient and state for every parameter that takes part. Nothing has changed yet
 * that a failure would have to undo: fresh state is zero, as at a first step. */
static bool prepare(mt_optimizer *o)
{
    for (size_t i = 0; i < o->n_slots; i++) {
        slot *s = &o->slots[i];
        mt_tensor *grad = mt_requires_grad(s->param) ? mt_grad(s->param) : NULL;
        if (!grad) continue;
        s->grad = mt_is_contiguous(grad) ? mt_retain(grad) : mt_contiguous(grad);
        if (!s->grad || !make_state(o, s)) return false;
    }
    return true;
}

/* The parameters whose next step is `step`, as items for the backend. */
static int gather(mt_optimizer *o, int64_t step)
{
    int n = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        const slot *s = &o->slots[i];
        if (!s->grad || s->step + 1 != step) continue;
        bool decays = !o->decay_matrices_only || s->param->view.rank >= 2;
        o->items[n++] = (mti_opt_item){.n = mti_view_count(&s->param->view),
                                       .dtype = s->param->view.dtype,
                                       .p = s->param->view.data,
                                       .g = s->grad->view.data,
                                       .m = s->state[0] ? s->state[0]->view.data : NULL,
                                       .v = s->state[1] ? s->state[1]->view.data : NULL,
                                       .weight_decay = decays ? o->weight_decay : 0};
    }
    return n;
}

/* The smallest next step above `above` that some parameter is at; 0 if none. */
static int64_t next_step(const mt_optimizer *o, int64_t above)
{
    int64_t least = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        int64_t next = o->slots[i].step + 1;
        if (o->slots[i].grad && next > above && (!least || next < least)) least = next;
    }
    return least;
}

/* A parameter that was frozen or unused for a while is at an earlier step of its own than the
 * others: one call per distinct step, which is nearly always one. */
static bool run(mt_optimizer *o)
{
    for (int64_t step = 0; (step = next_step(o, step)) > 0;) {
        int n = gather(o, step);
        o->params.step = step;
        if (!o->rule->step(o->device->backend, o->device->ctx, &o->params, n, o->items))
            return false;
    }
    for (size_t i = 0; i < o->n_slots; i++) {
        slot *s = &o->slots[i];
        if (!s->grad) continue;
        s->step++;
        atomic_fetch_add(&s->param->storage->version, 1);
    }
    return true;
}

mt_status mt_optimizer_step(mt_optimizer *o)
{
    if (!o) return mti_fail(MT_ERR_ARGUMENT, "optimizer_step: the optimizer is NULL");
    const char *op = mti_where_now()->op;
    mti_where_now()->op = o->rule->name;
    bool ok = prepare(o) && run(o);
    mti_where_now()->op = op;
    for (size_t i = 0; i < o->n_slots; i++) {
        mt_release(o->slots[i].grad);
        o->slots[i].grad = NULL;
    }
    return ok ? MT_OK : mt_last_status();
}
