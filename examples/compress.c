/* What do fewer bits for saved tensors bring, and what do they cost?
 *
 * An MLP with ReLU and dropout keeps its input (for the gradient of fc), the sign of ReLU's output
 * as a whole tensor, dropout's mask in bytes, and dropout's output (for the gradient of proj). A
 * mask needs a bit, or only the seed it was drawn from; a sign needs a bit: both are exact. The
 * rest can be rounded to 16 or 8 bits, which makes the gradient inexact, most where int8 rounds
 * small positive outputs of ReLU to 0: so with signs stored as bits, fewer bytes give less
 * error. */
#include <stdio.h>
#include <memtape/memtape.h>
#include <memtape/memtape.h>

enum { ROWS = 512, HIDDEN = 64, WIDE = 4 * HIDDEN };

typedef struct net {
    mt_device *device;
    mt_tensor *x, *fc, *proj; /* [ROWS,HIDDEN], [WIDE,HIDDEN], [HIDDEN,WIDE] */
} net;

static mt_tensor *forward(const net *n)
{
    mt_tensor *h = mt_linear(n->x, n->fc, NULL);
    mt_set(&h, mt_relu(h));
    mt_set(&h, mt_dropout(h, 0.1));
    mt_set(&h, mt_linear(h, n->proj, NULL));
    mt_set(&h, mt_mul(h, h));
    mt_set(&h, mt_mean_all(h));
    return h;
}

/* Bytes that the tape keeps under these rules (0: none), and fc's gradient. */
static size_t step(const net *n, unsigned rules, mt_tensor **gradient)
{
    mt_compress *c = mt_compress_new(n->device, &(mt_compress_options){.rules = rules});
    mt_ledger *ledger = mt_ledger_new(n->device);
    mt_seed(n->device, 1); /* the same mask each time */
    mt_ledger_begin(ledger);
    if (rules) mt_compress_begin(c);
    mt_tensor *loss = forward(n);
    if (rules) mt_compress_end(c);
    mt_ledger_end(ledger); /* opened outside the compressor, it counts packed tensors */
    mt_backward(loss);
    *gradient = mt_retain(mt_grad(n->fc));
    mt_set_grad(n->fc, NULL);
    mt_set_grad(n->proj, NULL);
    size_t bytes = mt_ledger_bytes(ledger);
    mt_release(loss);
    mt_ledger_free(ledger);
    mt_compress_free(c);
    return bytes;
}

static mt_tensor *weight(mt_device *device, int64_t out, int64_t in)
{
    mt_tensor *w = mt_normal(device, MT_F32, MT_SHAPE(out, in), 0, 0.1);
    mt_set_requires_grad(w, true);
    mt_set_category(w, MT_PARAMETER); /* never packed: it stays in memory anyway */
    return w;
}

#define RULE(name) (1u << MT_COMPRESS_##name)
/* elements of ReLU's output; of x; of proj's output, kept by the square */
static const size_t wide = (size_t)ROWS * WIDE, in = (size_t)ROWS * HIDDEN;

static size_t int8(size_t n) { return n + 4 * (n / 128); }

int main(void)
{
    net n = {.device = mt_device_open("cpu")};
    n.x = mt_normal(n.device, MT_F32, MT_SHAPE(ROWS, HIDDEN), 0, 1);
    n.fc = weight(n.device, WIDE, HIDDEN);
    n.proj = weight(n.device, HIDDEN, WIDE);
    const struct {
        const char *name;
        unsigned rules;
        size_t bytes;
        bool exact;
    } row[] = {
        {"as they are", 0, 4 * in + 4 * wide + wide + 4 * wide + 4 * in, true},
        {"mask as bits", RULE(MASK_BITS), 8 * in + 8 * wide + wide / 8, true},
        {"mask as its seed", RULE(MASK_SEED), 8 * in + 8 * wide, true},
        {"signs and seed", RULE(SIGNS) | RULE(MASK_SEED), 8 * in + wide / 8 + 4 * wide, true},
        {"bf16", RULE(BF16), 4 * in + 4 * wide + wide, false},
        {"int8", RULE(INT8), 2 * int8(in) + 2 * int8(wide) + wide, false},
        {"int8, signs, seed", RULE(INT8) | RULE(SIGNS) | RULE(MASK_SEED),
         2 * int8(in) + wide / 8 + int8(wide), false},
    };
    mt_tensor *exact = NULL;
    bool right = true;
    printf("%-20s %10s %8s   %s\n", "saved tensors", "bytes", "of all", "gradient off by");
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        mt_tensor *gradient = NULL;
        size_t bytes = step(&n, row[i].rules, &gradient);
        if (!exact) exact = mt_retain(gradient);
        double error = mt_relative_error(gradient, exact);
        printf("%-20s %10zu %7.1f%%   %.2g\n", row[i].name, bytes,
               100.0 * (double)bytes / (double)row[0].bytes, error);
        right = right && bytes == row[i].bytes && (row[i].exact ? error == 0 : error < 0.05);
        mt_release(gradient);
    }
    mt_release(exact);
    mt_release(n.x);
    mt_release(n.fc);
    mt_release(n.proj);
    mt_device_release(n.device);
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    return mt_last_status() == MT_OK && right ? 0 : 1;
}
