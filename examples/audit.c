/* Whether an op needs each tensor that it keeps: audit [OP]; without a name, all ops.
 *
 * tests/src/gradcheck/audit.c runs the op with every set of wanted gradients, and hands each kept
 * tensor back altered. What changes no gradient was kept for nothing: this fails, and so the tests,
 * unless a reason is known. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../tests/src/gradcheck/audit.h"
#include "collectives/collective_cases.h"
#include <memtape/all.h>

static int n_altered, n_without_effect, n_faults;

/* The wanted gradients: "dx dw". */
static void print_wanted(const mti_case *c, const mt_op_info *op, unsigned want)
{
    char text[64] = "";
    for (int i = 0; i < c->n_in; i++) {
        const char *letter = op->inputs[i] ? op->inputs[i] : op->inputs[0]; /* cat: all have one */
        size_t n = strlen(text);
        if (want >> i & 1) snprintf(text + n, sizeof text - n, "%sd%s", n ? " " : "", letter);
    }
    printf("  %-16s", text);
}

static void print_kept(const audit_kept *k)
{
    char shape[64] = "[", bytes[32] = "parameter";
    for (int d = 0; d < k->rank; d++) {
        size_t n = strlen(shape);
        snprintf(shape + n, sizeof shape - n, "%s%lld", d ? "," : "", (long long)k->shape[d]);
    }
    if (!k->parameter) snprintf(bytes, sizeof bytes, "%zu", k->bytes);
    snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "]");
    printf("%-9s%-8s%-13s%10s  ", k->argument, mt_save_role_name(k->role), shape, bytes);
    if (audit_is_fault(k))
        printf("%s\n", k->why ? "NEEDED, though it should not be" : "NOT NEEDED");
    else if (k->why)
        printf("not needed: %s\n", k->why);
    else if (isfinite(k->off))
        printf("%8.2g\n", k->off);
    else
        printf("not finite\n");
    n_altered++, n_without_effect += k->off == 0, n_faults += audit_is_fault(k);
}

static bool audit(const mti_case *c, const mt_op_info *op, mt_device *device)
{
    printf("%s%s%s  %s\n  %s\n", op->name, *c->note ? ", " : "", c->note, op->formula, op->why);
    printf("  %-16s%-9s%-8s%-13s%10s  %8s\n", "for", "keeps", "its", "shape", "bytes", "off by *");
    for (unsigned want = 0; (want = audit_next(c, want));) {
        audit_set set;
        if (!audit_run(&set, c, device, want)) return false;
        for (int i = 0; i < set.n_kept; i++) {
            print_wanted(c, op, i ? 0 : want);
            print_kept(&set.kept[i]);
        }
        if (set.n_kept) continue;
        print_wanted(c, op, want);
        printf("nothing\n");
    }
    return true;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    if (argc > 2 || (name && mt_all_ops_find(name) < 0)) {
        fprintf(stderr,
                "usage: audit [OP]; \"%s\" is not an op, and without a name all are listed\n",
                argv[argc - 1]);
        return 2;
    }
    mt_device *device = mt_device_open("cpu");
    bool ok = device != NULL;
    mti_case c;
    for (int i = 0; ok && audit_case(&mti_all_cases, i, &c); i++) {
        if (name && strcmp(c.op, name) != 0) continue;
        const mt_op_info op = mt_all_ops_get(mt_all_ops_find(c.op));
        ok = audit(&c, &op, device);
    }
    mt_device_release(device);
    printf("* |g' - g| / |g| over the wanted gradients g, where g' comes from the altered tensor\n"
           "kept tensors altered: %d, without effect: %d, without a reason: %d\n",
           n_altered, n_without_effect, n_faults);
    if (!ok) fprintf(stderr, "%s\n", mt_last_error());
    return ok && !n_faults ? 0 : 1;
}
