/* How does the tape walk back?
 *
 * y = relu(x w^T + b), and the loss is mean(y y). Each op appended a node; backward runs the nodes
 * last made first, and a node may run once all that use its outputs have. What a node keeps goes
 * when it has run, and a storage when the last node that keeps it has. With a path as its argument
 * the program draws the tape: nodes, and below them what they keep, as wide as it has bytes. */
#include "expect.h"
#include "svg.h"

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

/* ---- the picture ---- */

enum { NODES = 4, APART = 170, NODE_WIDTH = 120, LEFT = 40, STORAGE_TOP = 210 };

typedef struct picture {
    svg svg;
    int n_lines[NODES]; /* from a node to what it keeps, so far */
} picture;

/* Nodes are numbered from 1 on, in the order in which they were made. */
static double left_of(uint64_t node) { return LEFT + APART * (double)(node - 1); }

static void draw_node(void *user, const mt_node_info *node)
{
    const picture *p = user;
    double left = left_of(node->sequence);
    char label[32];
    svg_rect(p->svg, left, 80, NODE_WIDTH, 46, "#e3e7ea");
    svg_text(p->svg, left + NODE_WIDTH / 2, 100, "middle", 0, node->op);
    snprintf(label, sizeof label, "node %d", (int)node->sequence);
    svg_text(p->svg, left + NODE_WIDTH / 2, 117, "middle", 0, label);
    if (node->sequence == 1) return;
    svg_line(p->svg, left - (APART - NODE_WIDTH), 103, left, 103, "#8b949c");
    svg_line(p->svg, left - 7, 99, left, 103, "#8b949c");
    svg_line(p->svg, left - 7, 107, left, 103, "#8b949c");
}

/* A storage stands below the node that was the first to keep it. */
static void draw_storage(picture *p, const mt_ledger *ledger, size_t i)
{
    mt_ledger_entry e;
    if (mt_ledger_get(ledger, i, &e) != MT_OK) return;
    double left = left_of(e.saver.node), width = 0.29 * (double)e.bytes;
    char label[64];
    svg_rect(p->svg, left, STORAGE_TOP, width, 46, SVG_PALE);
    snprintf(label, sizeof label, "%s of %s: %zu bytes", e.saver.argument, e.saver.op, e.bytes);
    svg_text(p->svg, left + 8, STORAGE_TOP + 28, "start", 0, label);
    for (size_t j = 0; j < e.n_savers; j++) {
        mt_saver saver;
        if (mt_ledger_get_saver(ledger, i, j, &saver) != MT_OK) return;
        double x = left_of(saver.node) + 30 + 40 * p->n_lines[saver.node - 1]++;
        svg_line(p->svg, x, 126, x, STORAGE_TOP, SVG_ACTIVATION);
        svg_text(p->svg, x + 6, 172, "start", 0, saver.argument);
    }
}

static int draw(const char *path, mt_tensor *loss, const mt_ledger *ledger)
{
    picture p = {.svg = svg_begin(path, 710, 290, "The tape of mean(y y), y = relu(x w^T + b)")};
    svg_text(p.svg, LEFT, 30, "start", 0,
             "The tape of mean(y y), y = relu(x w^T + b), as forward made it.");
    svg_text(p.svg, LEFT, 50, "start", 0,
             "Below: the storages that the nodes keep for backward, each once, by bytes.");
    mt_visit_tape(loss, draw_node, &p);
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) draw_storage(&p, ledger, i);
    return svg_end(p.svg, path);
}

int main(int argc, char **argv)
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
    const char *path = svg_path(argc, argv);
    expect("pictures drawn as wanted", draw(path, loss, ledger), 1);
    mt_backward(loss);
    expect("nodes", print_tape("after backward", loss), 4);
    print_kept(ledger);
    expect("bytes kept", (int64_t)mt_ledger_live_bytes(ledger), 0);

    mt_ledger_free(ledger);
    mt_release(loss), mt_release(w), mt_release(b);
    mt_device_release(device);
    return finish();
}
