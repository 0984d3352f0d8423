/* How does the tape walk back?
 *
 * y = relu(x w^T + b), and the loss is mean(y y). Each op appended a node; backward runs the nodes
 * last made first, and a node may run once all that use its outputs have. What a node keeps goes
 * when it has run, and a storage when the last node that keeps it has. */
#include "expect.h"

enum { ROWS = 8, IN = 16, OUT = 32 };

static void print_node(void *user, const mt_node_info *node)
{
    int *n = user;
    printf("node %llu  %-7s %d inputs, keeps %d%s\n", (unsigned long long)node->sequence, node->op,
           node->n_inputs, node->n_saved, node->freed ? ", freed" : "");
    ++*n;
}

static int print_tape(const char *when, mt_tensor *loss)
{
    int n = 0;
    printf("the tape %s, last made first:\n", when);
    mt_visit_tape(loss, print_node, &n);
    return n;
}

static void print_kept(const mt_ledger *ledger)
{
    mt_ledger_entry e;
    for (size_t i = 0; i < mt_ledger_count(ledger) && mt_ledger_get(ledger, i, &e) == MT_OK; i++)
        printf("%s of %s: %zu bytes, kept %zu x, went after %s\n", e.saver.argument, e.saver.op,
               e.bytes, e.n_savers, e.freed_after_op);
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(ROWS, IN), 0, 1);
    mt_tensor *w = mt_normal(device, MT_F32, MT_SHAPE(OUT, IN), 0, 1);
    mt_tensor *b = mt_zeros(device, MT_F32, MT_SHAPE(OUT));
    mt_set_category(w, MT_PARAMETER);
    mt_set_requires_grad(w, true);
    mt_set_requires_grad(b, true);

    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *y = mt_linear(x, w, b);
    mt_set(&y, mt_relu(y));
    mt_tensor *loss = mt_mul(y, y);
    mt_set(&loss, mt_mean_all(loss));
    mt_ledger_end(ledger);
    mt_release(x); /* from here on only the tape holds them */
    mt_release(y);

    expect("nodes", print_tape("after forward", loss), 4);
    expect("bytes kept: x and y", (int64_t)mt_ledger_bytes(ledger), 4 * ROWS * (IN + OUT));
    mt_backward(loss);
    expect("nodes", print_tape("after backward", loss), 4);
    print_kept(ledger);
    expect("bytes kept", (int64_t)mt_ledger_live_bytes(ledger), 0);

    mt_ledger_free(ledger);
    mt_release(loss), mt_release(w), mt_release(b);
    mt_device_release(device);
    return finish();
}
