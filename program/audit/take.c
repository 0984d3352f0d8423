/* take.c: cheaper ways, taken: an op runs as it is and the cheaper way, through the public
 * API; the ledger's bytes and the gradients of both are compared. */
#include <string.h>
#include "base/base.h"
#include "audit/op_audit.h"

#define MAX_LEAVES (2 * MTI_CASE_INPUTS)

/* One run of the op. Its inputs are products of two leaves, so that a checkpoint can recompute
 * them; parameters and indices are leaves themselves. */
typedef struct trial {
    const mti_case *c;
    int n_leaves;
    mt_tensor *leaf[MAX_LEAVES];
    mt_tensor *y;
    size_t bytes; /* kept, without the leaves of products */
} trial;

static bool is_product(const mti_case_input *in) { return !in->below && !in->parameter; }

static mt_status call(void *user, int n_in, mt_tensor *const *leaf, int n_out, mt_tensor **outputs)
{
    (void)n_in, (void)n_out;
    const mti_case *c = user;
    mt_tensor *in[MTI_CASE_INPUTS] = {0};
    bool ok = true;
    for (int i = 0; i < c->n_in; i++) {
        bool product = is_product(&c->in[i]);
        in[i] = product ? mt_mul(leaf[0], leaf[1]) : mt_retain(leaf[0]);
        leaf += product ? 2 : 1;
        ok = ok && in[i];
    }
    outputs[0] = ok ? mti_case_call(c, in) : NULL;
    for (int i = 0; i < c->n_in; i++) mt_release(in[i]);
    return outputs[0] ? MT_OK : mt_last_status();
}

static bool make_leaves(trial *m, mt_device *device, uint64_t seed, mt_ledger *ledger)
{
    mt_seed(device, seed);
    for (int i = 0; i < m->c->n_in; i++) {
        const mti_case_input *in = &m->c->in[i];
        for (int n = is_product(in) ? 2 : 1; n; n--) {
            mt_tensor *t = m->leaf[m->n_leaves++] = mti_audit_input_make(device, in, seed);
            if (!t || (!in->below && mt_set_requires_grad(t, true) != MT_OK) ||
                (is_product(in) && mt_ledger_ignore(ledger, t) != MT_OK))
                return false;
        }
    }
    return true;
}

static void trial_free(trial *m)
{
    mt_release(m->y);
    for (int i = 0; i < m->n_leaves; i++) mt_release(m->leaf[i]);
}

static bool forward(trial *m, mt_compress *compress, bool checkpoint)
{
    if (compress && mt_compress_begin(compress) != MT_OK) return false;
    mt_status (*const run)(void *, int, mt_tensor *const *, int, mt_tensor **) = call;
    void *user = (void *)m->c; /* which call only reads */
    mt_status status = checkpoint
                           ? mt_checkpoint(run, user, NULL, m->n_leaves, m->leaf, 1, &m->y, NULL)
                           : run(user, m->n_leaves, m->leaf, 1, &m->y);
    bool ended = !compress || mt_compress_end(compress) == MT_OK;
    return status == MT_OK && ended;
}

/* Forward under a ledger, and backward. compress NULL, checkpoint false: the op as it is. */
static bool run(trial *m, mt_device *device, uint64_t seed, mt_compress *compress, bool checkpoint)
{
    mt_ledger *ledger = mt_ledger_new(device);
    bool ok = ledger && make_leaves(m, device, seed, ledger) && mt_ledger_begin(ledger) == MT_OK;
    if (ok) {
        ok = forward(m, compress, checkpoint);
        ok = mt_ledger_end(ledger) == MT_OK && ok;
        m->bytes = mt_ledger_bytes(ledger);
        ok = ok && mti_audit_backward(m->y) == MT_OK;
    }
    mt_ledger_free(ledger);
    return ok;
}

/* The largest of the gradients' relative errors; NaN on failure. */
static double compare(const trial *got, const trial *exact)
{
    double most = 0;
    for (int i = 0; i < exact->n_leaves; i++) {
        mt_tensor *a = mt_grad(got->leaf[i]), *b = mt_grad(exact->leaf[i]);
        if (!a && !b) continue;
        double off = mt_relative_error(a, b);
        if (!(off <= most)) most = off;
    }
    return most;
}

/* The compress rule that takes this way; 0: none does. */
static unsigned rule_of(const mti_cheaper *way, const mti_audit_kept *kept)
{
    if (way->kind == MTI_CHEAPER_SEED) return 1u << MT_COMPRESS_MASK_SEED;
    if (way->kind != MTI_CHEAPER_BITS) return 0;
    return 1u << (kept->dtype == MT_BOOL ? MT_COMPRESS_MASK_BITS : MT_COMPRESS_SIGNS);
}

/* rule 0: a checkpoint around the op and the products that make its inputs. */
static bool take(mti_audit_taken *taken, const mti_case *c, unsigned rule, mt_device *device,
                 uint64_t seed)
{
    trial plain = {.c = c}, other = {.c = c};
    const mt_compress_options options = {.rules = rule, .min_bytes = 1};
    mt_compress *compress = rule ? mt_compress_new(device, &options) : NULL;
    uint64_t failures = mti_failures(); /* compare() does not report them one by one */
    bool ok = (!rule || compress) && run(&plain, device, seed, NULL, false) &&
              run(&other, device, seed, compress, !rule);
    if (ok) {
        taken->before = plain.bytes, taken->after = other.bytes;
        taken->difference = compare(&other, &plain);
        ok = !mti_failed_since(failures);
    }
    trial_free(&plain);
    trial_free(&other);
    mt_compress_free(compress);
    return ok;
}

bool mti_audit_take(mti_op_audit *a, mt_device *device, uint64_t seed)
{
    const mti_audit_set *all = &a->sets[a->n_sets - 1]; /* every gradient */
    bool recompute = false;
    for (int i = 0; i < all->n_kept; i++) {
        const mti_audit_kept *kept = &all->kept[i];
        const mti_cheaper *way;
        for (size_t n = 0; (way = mti_audit_cheaper(a->of.op, kept, n)); n++) {
            unsigned rule = rule_of(way, kept);
            recompute = recompute || way->kind == MTI_CHEAPER_RECOMPUTE;
            if (!rule || a->n_taken == MTI_AUDIT_KEPT) continue;
            mti_audit_taken *taken = &a->taken[a->n_taken++];
            *taken = (mti_audit_taken){.argument = kept->argument, .kind = way->kind};
            if (!take(taken, &a->of, rule, device, seed)) return false;
        }
    }
    if (!recompute || a->n_taken == MTI_AUDIT_KEPT) return true;
    mti_audit_taken *taken = &a->taken[a->n_taken++];
    *taken = (mti_audit_taken){.kind = MTI_CHEAPER_RECOMPUTE};
    return take(taken, &a->of, 0, device, seed);
}
