/* op_audit.c: one op with every set of wanted gradients, and with every kept tensor altered. */
#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/philox.h"
#include "audit/op_audit.h"

/* ---- forward and backward, with a hook that records and alters ---- */

typedef enum alteration { UNCHANGED, REVERSED, ZEROED, NEXT, N_ALTERATIONS } alteration;
static const char *const alteration_names[] = {"unchanged", "reversed", "zeroed", "next value"};

typedef struct trial {
    const mti_case *c;
    mt_device *device;
    uint64_t seed;
    unsigned want;
    mti_audit_set *set; /* receives what is kept; may be NULL */
    int target;         /* the kept tensor to alter, in order of saving */
    alteration kind;    /* how */
    int n_saved;
    uint64_t serials[MTI_AUDIT_KEPT]; /* of the storages kept so far */
} trial;

static void record(trial *t, const mt_save_info *info, const mt_tensor *tensor)
{
    mt_storage_info storage = mt_storage_of(tensor);
    mti_audit_set *set = t->set;
    mti_audit_kept *k = &set->kept[set->n_kept++];
    *k = (mti_audit_kept){.argument = info->argument,
                          .role = info->role,
                          .index = info->index,
                          .dtype = mt_dtype_of(tensor),
                          .rank = mt_rank(tensor),
                          .bytes = storage.bytes,
                          .parameter = storage.category == MT_PARAMETER};
    memcpy(k->shape, mt_shape(tensor), (size_t)k->rank * sizeof *k->shape);
    bool seen = false;
    for (int i = 0; i < t->n_saved; i++) seen = seen || t->serials[i] == storage.serial;
    if (!seen && !k->parameter) set->bytes += storage.bytes;
    t->serials[t->n_saved] = storage.serial;
}

/* *state tells on_unpack which of the op's saved tensors it is. */
static mt_status on_pack(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                         void **state)
{
    (void)kept;
    trial *t = user;
    if (strcmp(info->op, t->c->op) != 0) return MT_OK;
    if (t->n_saved == MTI_AUDIT_KEPT)
        return mti_fail(MT_ERR_INTERNAL, "audit: %s keeps more than %d tensors", info->op,
                        MTI_AUDIT_KEPT);
    if (t->set) record(t, info, tensor);
    *state = &t->serials[t->n_saved++];
    return MT_OK;
}

static void alter(unsigned char *data, size_t n, size_t size, mt_dtype dtype, alteration kind)
{
    if (kind == ZEROED) memset(data, 0, n * size);
    for (size_t i = 0; kind == REVERSED && i < n / 2; i++) {
        unsigned char swap[8], *a = data + i * size, *b = data + (n - 1 - i) * size;
        memcpy(swap, a, size), memcpy(a, b, size), memcpy(b, swap, size);
    }
    if (kind == NEXT && dtype == MT_I64 && n == 1) { /* RNG state; an index might leave its range */
        int64_t value;
        memcpy(&value, data, sizeof value);
        value++;
        memcpy(data, &value, sizeof value);
    }
}

static mt_tensor *altered(const mt_tensor *tensor, alteration kind)
{
    mt_dtype dtype = mt_dtype_of(tensor);
    size_t n = (size_t)mt_numel(tensor), size = mt_dtype_size(dtype);
    unsigned char *data = mti_malloc(n * size);
    mt_tensor *t = NULL;
    if (data && mt_to_host(tensor, data, n * size) == MT_OK) {
        alter(data, n, size, dtype, kind);
        t = mt_from_data(mt_device_of(tensor), dtype, mt_rank(tensor), mt_shape(tensor), data,
                         n * size);
    }
    mti_free(data);
    return t;
}

static mt_status on_unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    (void)info;
    trial *t = user;
    if (t->kind == UNCHANGED || state != &t->serials[t->target]) return MT_OK;
    *tensor = altered(*tensor, t->kind);
    return *tensor ? MT_OK : mt_last_status();
}

/* ---- inputs, the same for the same seed ---- */

static mt_tensor *indices(mt_device *device, const mti_case_input *in, uint64_t seed)
{
    size_t n = 1;
    for (int d = 0; d < in->rank; d++) n *= (size_t)in->shape[d];
    int64_t *data = mti_malloc(n * sizeof *data);
    if (!data) return NULL;
    for (size_t i = 0; i < n; i++)
        data[i] = (int64_t)(mti_philox(seed, i).v[0] % (uint64_t)in->below);
    mt_tensor *t = mt_from_data(device, MT_I64, in->rank, in->shape, data, n * sizeof *data);
    mti_free(data);
    return t;
}

mt_tensor *mti_audit_input_make(mt_device *device, const mti_case_input *in, uint64_t seed)
{
    mt_tensor *t = in->below ? indices(device, in, seed)
                             : mt_uniform(device, MT_F32, in->rank, in->shape, in->low, in->high);
    if (t && in->parameter && mt_set_category(t, MT_PARAMETER) != MT_OK) mt_set(&t, NULL);
    return t;
}

static bool make_inputs(const trial *t, mt_tensor *in[MTI_CASE_INPUTS])
{
    for (int i = 0; i < t->c->n_in; i++) {
        in[i] = mti_audit_input_make(t->device, &t->c->in[i], t->seed);
        if (!in[i]) return false;
        if ((t->want >> i & 1) && mt_set_requires_grad(in[i], true) != MT_OK) return false;
    }
    return true;
}

/* ---- all gradients in one array ---- */

typedef struct gradients {
    float *at;
    size_t n;
} gradients;

static bool gather(const trial *t, mt_tensor *const *in, gradients *g)
{
    size_t n = 0;
    for (int i = 0; i < t->c->n_in; i++)
        if (t->want >> i & 1) n += (size_t)mt_numel(in[i]);
    *g = (gradients){.at = mti_calloc(n, sizeof *g->at), .n = n};
    float *to = g->at;
    for (int i = 0; to && i < t->c->n_in; i++) {
        if (!(t->want >> i & 1)) continue;
        size_t count = (size_t)mt_numel(in[i]);
        const mt_tensor *grad = mt_grad(in[i]);
        if (grad && mt_to_host(grad, to, count * sizeof *to) != MT_OK) return false;
        to += count;
    }
    return to != NULL;
}

/* |b - a| / |a|; INFINITY where b is not finite. */
static double difference(const gradients *a, const gradients *b)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < a->n; i++) {
        double d = (double)b->at[i] - (double)a->at[i];
        off += d * d;
        size += (double)a->at[i] * (double)a->at[i];
    }
    return !isfinite(off) ? INFINITY : off == 0 ? 0 : sqrt(off / size);
}

mt_status mti_audit_backward(mt_tensor *y)
{
    mt_backward_options options = {
        .gradient = mt_normal(mt_device_of(y), mt_dtype_of(y), mt_rank(y), mt_shape(y), 0, 1)};
    mt_status status = options.gradient ? mt_backward_with(y, &options) : mt_last_status();
    mt_release(options.gradient);
    return status;
}

static bool run(trial *t, gradients *g)
{
    static const mt_saved_hooks hooks = {.pack = on_pack, .unpack = on_unpack};
    mt_tensor *in[MTI_CASE_INPUTS] = {0}, *y = NULL;
    mt_seed(t->device, t->seed);
    bool ok = make_inputs(t, in) && mt_push_saved_hooks(&hooks, t) == MT_OK;
    if (ok) {
        y = mti_case_call(t->c, in);
        ok = mt_pop_saved_hooks() == MT_OK && y && mti_audit_backward(y) == MT_OK &&
             gather(t, in, g);
    }
    mt_release(y);
    for (int i = 0; i < t->c->n_in; i++) mt_release(in[i]);
    return ok;
}

/* ---- every kept tensor, until an alteration changes a gradient ---- */

static bool try_without(const trial *base, const gradients *exact, int target, mti_audit_kept *k)
{
    k->altered = alteration_names[REVERSED];
    for (int kind = REVERSED; kind < N_ALTERATIONS && !k->needed; kind++) {
        trial t = *base;
        gradients g = {0};
        t.set = NULL, t.n_saved = 0, t.target = target, t.kind = (alteration)kind;
        bool ok = run(&t, &g);
        if (ok) {
            double off = difference(exact, &g);
            k->needed = off > 0;
            if (k->needed) k->altered = alteration_names[kind], k->difference = off;
        }
        mti_free(g.at);
        if (!ok) return false;
    }
    return true;
}

static bool run_set(mti_op_audit *a, trial *t)
{
    gradients exact = {0};
    bool ok = run(t, &exact);
    for (int i = 0; ok && i < t->set->n_kept; i++) {
        ok = try_without(t, &exact, i, &t->set->kept[i]);
        a->n_findings += ok && !t->set->kept[i].needed;
    }
    mti_free(exact.at);
    return ok;
}

bool mti_audit_run(mti_op_audit *a, const mti_case *c, mt_device *device, uint64_t seed)
{
    *a = (mti_op_audit){.of = *c};
    for (unsigned want = 1; want < 1u << c->n_in; want++) {
        bool sensible = true; /* integers have no gradient */
        for (int i = 0; i < c->n_in; i++)
            sensible = sensible && !((want >> i & 1) && c->in[i].below);
        if (!sensible) continue;
        if (a->n_sets == MTI_AUDIT_SETS)
            return mti_fail_bool(MT_ERR_INTERNAL, "audit: %s has more than %d sets of gradients",
                                 c->op, MTI_AUDIT_SETS);
        mti_audit_set *set = &a->sets[a->n_sets++];
        set->want = want;
        trial t = {.c = c, .device = device, .seed = seed, .want = want, .set = set};
        if (!run_set(a, &t)) return false;
    }
    return true;
}
