/* audit.c: one op with every set of wanted gradients, and with every kept tensor altered. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/philox.h"
#include "audit.h"

/* ---- what is kept for nothing, and why ---- */

/* `gradients` do not need the argument, except in the case `but`. */
enum { DV = 1 << 2, DSINKS = 1 << 3, ANY = ~0 };
static const struct {
    const char *op, *argument;
    int gradients;
    const char *but, *why;
} reasons[] = {
    {"flash_attention", "q", DSINKS, NULL, "its kernel makes all gradients at once"},
    {"flash_attention", "k", DSINKS, NULL, "its kernel makes all gradients at once"},
    {"flash_attention", "v", DV | DSINKS, NULL, "its kernel makes all gradients at once"},
    {"flash_attention", "out", DV, NULL, "its kernel makes all gradients at once"},
    {"flash_attention", "seed", ANY, "dropout 0.1", "without dropout nothing is drawn again"},
    {"flash_attention", "offset", ANY, "dropout 0.1", "without dropout nothing is drawn again"},
    {"all_to_all", "sent", ANY, NULL, "one rank sends nothing"},
    {"all_to_all", "received", ANY, NULL, "one rank sends nothing"},
};

static const char *reason_for(const mti_case *c, unsigned want, const char *argument)
{
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (!strcmp(reasons[i].op, c->op) && !strcmp(reasons[i].argument, argument) &&
            !(want & ~(unsigned)reasons[i].gradients) &&
            !(reasons[i].but && !strcmp(reasons[i].but, c->note)))
            return reasons[i].why;
    return NULL;
}

bool audit_is_fault(const audit_kept *k) { return (k->off > 0) == (k->why != NULL); }

/* ---- forward and backward, with a hook that records and alters ---- */

typedef enum alteration { REVERSED, ZEROED, NEXT, N_ALTERATIONS } alteration;

typedef struct trial {
    const mti_case *c;
    mt_device *device;
    unsigned want;
    audit_set *set;
    int n_saved;
    const audit_kept *target; /* the tensor to alter; NULL: none, and all are recorded */
    alteration how;
} trial;

static void record(const trial *t, audit_kept *k, const mt_save_info *info, const mt_tensor *tensor)
{
    mt_storage_info storage = mt_storage_of(tensor);
    *k = (audit_kept){.argument = info->argument,
                      .role = info->role,
                      .index = info->index,
                      .rank = mt_rank(tensor),
                      .bytes = storage.bytes,
                      .parameter = storage.category == MT_PARAMETER,
                      .why = reason_for(t->c, t->want, info->argument)};
    memcpy(k->shape, mt_shape(tensor), (size_t)k->rank * sizeof *k->shape);
    t->set->n_kept = t->n_saved;
}

/* *state tells on_unpack which of the op's saved tensors it is. */
static mt_status on_pack(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                         void **state)
{
    (void)kept;
    trial *t = user;
    if (strcmp(info->op, t->c->op) != 0) return MT_OK; /* another op of the case's call */
    if (t->n_saved == AUDIT_KEPT)
        return mti_fail(MT_ERR_INTERNAL, "audit: %s keeps more than %d tensors", info->op,
                        AUDIT_KEPT);
    audit_kept *k = &t->set->kept[t->n_saved++];
    if (!t->target) record(t, k, info, tensor);
    *state = k;
    return MT_OK;
}

static void alter(unsigned char *data, size_t n, size_t size, mt_dtype dtype, alteration how)
{
    if (how == ZEROED) memset(data, 0, n * size);
    for (size_t i = 0; how == REVERSED && i < n / 2; i++) {
        unsigned char swap[8], *a = data + i * size, *b = data + (n - 1 - i) * size;
        memcpy(swap, a, size), memcpy(a, b, size), memcpy(b, swap, size);
    }
    if (how == NEXT && dtype == MT_I64 && n == 1) { /* RNG state; an index might leave its range */
        int64_t value;
        memcpy(&value, data, sizeof value);
        value++;
        memcpy(data, &value, sizeof value);
    }
}

static mt_status on_unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    (void)info;
    const trial *t = user;
    if (!t->target || state != t->target) return MT_OK;
    mt_tensor *whole = *tensor;
    mt_dtype dtype = mt_dtype_of(whole);
    size_t n = (size_t)mt_numel(whole), size = mt_dtype_size(dtype);
    unsigned char *data = malloc(n * size);
    if (!data) return mti_fail(MT_ERR_MEMORY, "audit: no memory for a kept tensor");
    mt_status status = mt_to_host(whole, data, n * size);
    if (status == MT_OK) {
        alter(data, n, size, dtype, t->how);
        *tensor = mt_from_data(t->device, dtype, mt_rank(whole), mt_shape(whole), data, n * size);
        if (!*tensor) status = mt_last_status();
    }
    free(data);
    return status;
}

/* ---- inputs ---- */

static mt_tensor *indices(mt_device *device, const mti_case_input *in)
{
    size_t n = 1;
    for (int d = 0; d < in->rank; d++) n *= (size_t)in->shape[d];
    int64_t *data = malloc(n * sizeof *data);
    if (!data) return mti_fail_null(MT_ERR_MEMORY, "audit: no memory for indices");
    for (size_t i = 0; i < n; i++) data[i] = (int64_t)(mti_philox(1, i).v[0] % (uint64_t)in->below);
    mt_tensor *t = mt_from_data(device, MT_I64, in->rank, in->shape, data, n * sizeof *data);
    free(data);
    return t;
}

bool audit_inputs(const mti_case *c, mt_device *device, unsigned want,
                  mt_tensor *in[MTI_CASE_INPUTS])
{
    mt_status status = MT_OK;
    for (int i = 0; i < MTI_CASE_INPUTS; i++) in[i] = NULL;
    for (int i = 0; status == MT_OK && i < c->n_in; i++) {
        const mti_case_input *x = &c->in[i];
        in[i] = x->below ? indices(device, x)
                         : mt_uniform(device, MT_F32, x->rank, x->shape, x->low, x->high);
        if (!in[i]) return false;
        if (x->parameter) status = mt_set_category(in[i], MT_PARAMETER);
        if (status == MT_OK && (want >> i & 1)) status = mt_set_requires_grad(in[i], true);
    }
    return status == MT_OK;
}

mt_status audit_backward(mt_tensor *y)
{
    mt_backward_options options = {
        .gradient = mt_normal(mt_device_of(y), mt_dtype_of(y), mt_rank(y), mt_shape(y), 0, 1)};
    mt_status status = options.gradient ? mt_backward_with(y, &options) : mt_last_status();
    mt_release(options.gradient);
    return status;
}

/* ---- all gradients in one array ---- */

typedef struct gradients {
    float *at;
    size_t n;
} gradients;

static bool gather(const trial *t, mt_tensor *const *in, gradients *g)
{
    for (int i = 0; i < t->c->n_in; i++)
        if (t->want >> i & 1) g->n += (size_t)mt_numel(in[i]);
    float *to = g->at = calloc(g->n, sizeof *g->at);
    if (!to) return mti_fail_bool(MT_ERR_MEMORY, "audit: no memory for gradients");
    for (int i = 0; i < t->c->n_in; i++) {
        if (!(t->want >> i & 1)) continue;
        size_t count = (size_t)mt_numel(in[i]);
        const mt_tensor *grad = mt_grad(in[i]);
        if (grad && mt_to_host(grad, to, count * sizeof *to) != MT_OK) return false;
        to += count;
    }
    return true;
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

static bool run(trial *t, gradients *g)
{
    static const mt_saved_hooks hooks = {.pack = on_pack, .unpack = on_unpack};
    mt_tensor *in[MTI_CASE_INPUTS], *y = NULL;
    mt_seed(t->device, 1);
    bool ok = audit_inputs(t->c, t->device, t->want, in) && mt_push_saved_hooks(&hooks, t) == MT_OK;
    if (ok) {
        y = mti_case_call(t->c, in);
        ok = mt_pop_saved_hooks() == MT_OK && y && audit_backward(y) == MT_OK && gather(t, in, g);
    }
    mt_release(y);
    for (int i = 0; i < t->c->n_in; i++) mt_release(in[i]);
    return ok;
}

/* ---- every kept tensor, until an alteration changes a gradient ---- */

bool audit_run(audit_set *set, const mti_case *c, mt_device *device, unsigned want)
{
    trial t = {.c = c, .device = device, .want = want, .set = set};
    gradients exact = {0};
    *set = (audit_set){0};
    bool ok = run(&t, &exact);
    for (int i = 0; ok && i < set->n_kept; i++) {
        audit_kept *k = &set->kept[i];
        for (int how = 0; ok && how < N_ALTERATIONS && k->off == 0; how++) {
            gradients g = {0};
            t.n_saved = 0, t.target = k, t.how = (alteration)how;
            ok = run(&t, &g);
            if (ok) k->off = difference(&exact, &g);
            free(g.at);
        }
    }
    free(exact.at);
    return ok;
}

bool audit_case(const mti_case_table *t, int nth, mti_case *out)
{
    /* 32 rows of 64, unless the op wants other inputs. */
    static const mti_case_sizes sizes = {
        [MTI_SIZE_M] = 32, [MTI_SIZE_N] = 64, [MTI_SIZE_K] = 48, [MTI_SIZE_V] = 48,
        [MTI_SIZE_B] = 2,  [MTI_SIZE_A] = 2,  [MTI_SIZE_S] = 8,  [MTI_SIZE_D] = 64,
    };
    return mti_case_get(t, MTI_CASE_AUDIT, nth, sizes, out);
}

unsigned audit_next(const mti_case *c, unsigned want)
{
    unsigned floating = 0;
    for (int i = 0; i < c->n_in; i++) floating |= (unsigned)(c->in[i].below == 0) << i;
    return (want - floating) & floating; /* counts in the bits of `floating` */
}
