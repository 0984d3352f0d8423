/* Why does a GELU cost more memory than a ReLU?
 *
 * The gradient of relu(h) can be read off its output: zero where the output is zero. The next
 * linear keeps that output anyway, for the gradient of its weight, so ReLU adds nothing. The
 * gradient of gelu(h) needs h itself: the widest tensor of the MLP, kept a second time. With a path
 * as its argument the program draws what each keeps, as wide as it has bytes. */
#include <stdio.h>
#include <string.h>
#include <memtape/all.h>
#include "svg.h"

enum { BATCH = 2, SEQUENCE = 64, HIDDEN = 32, WIDE = 4 * HIDDEN };

/* "mlp.act" without "mlp." */
static const char *last_part(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

/* The storages of a ledger in a row, and below each its bytes. */
static void draw(svg picture, double top, const char *name, const mt_ledger *ledger)
{
    double left = 80;
    char label[80];
    svg_text(picture, 16, top + 30, "start", 0, name);
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        mt_saver also;
        if (mt_ledger_get(ledger, i, &e) != MT_OK) return;
        double width = 0.0098 * (double)e.bytes;
        svg_rect(picture, left, top, width - 3, 52, SVG_PALE);
        snprintf(label, sizeof label, "%s of %s", e.saver.argument, last_part(e.saver.module));
        svg_text(picture, left + 8, top + 22, "start", 0, label);
        if (e.n_savers > 1 && mt_ledger_get_saver(ledger, i, 1, &also) == MT_OK) {
            snprintf(label, sizeof label, "and %s of %s", also.argument, last_part(also.module));
            svg_text(picture, left + 8, top + 40, "start", 0, label);
        }
        snprintf(label, sizeof label, "%zu bytes", e.bytes);
        svg_text(picture, left, top + 70, "start", 0, label);
        left += width;
    }
}

/* Bytes that the tape keeps after one forward pass. */
static size_t kept_bytes(mt_device *device, mt_act act, svg picture)
{
    mt_model_config config = {.kind = MT_MODEL_MLP, .hidden = HIDDEN, .act = act, .dtype = MT_BF16};
    mt_module *mlp = mt_model_new(device, &config); /* fc: d -> 4d, act, proj: 4d -> d */
    mt_tensor *x = mt_normal(device, MT_BF16, MT_SHAPE(BATCH, SEQUENCE, HIDDEN), 0, 1);
    mt_set_requires_grad(x, true); /* as if it came from a layer below */

    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *y = mt_forward(mlp, x);
    mt_ledger_end(ledger);
    size_t bytes = y ? mt_ledger_bytes(ledger) : 0;

    printf("%s keeps %zu bytes:\n", mt_act_name(act), bytes);
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        mt_ledger_get(ledger, i, &e);
        printf("  %6zu  %s of %s, in %s", e.bytes, e.saver.argument, e.saver.op, e.saver.module);
        for (size_t j = 1; j < e.n_savers; j++) {
            mt_saver also;
            mt_ledger_get_saver(ledger, i, j, &also);
            printf("; also %s of %s, in %s", also.argument, also.op, also.module);
        }
        printf("\n");
    }
    draw(picture, act == MT_ACT_RELU ? 56 : 156, mt_act_name(act), ledger);
    mt_release(y);
    mt_release(x);
    mt_ledger_free(ledger);
    mt_module_free(mlp);
    return bytes;
}

int main(int argc, char **argv)
{
    const char *path = svg_path(argc, argv);
    svg picture = svg_begin(path, 830, 250, "What an MLP keeps with ReLU and with GELU");
    svg_text(picture, 16, 30, "start", 0,
             "What an MLP keeps: fc, the activation act, proj. One that two keep is paid once.");
    mt_device *device = mt_device_open("cpu");
    size_t relu = kept_bytes(device, MT_ACT_RELU, picture);
    size_t gelu = kept_bytes(device, MT_ACT_GELU, picture);
    bool drawn = svg_end(picture, path);
    mt_device_release(device);
    if (mt_last_status() != MT_OK) {
        fprintf(stderr, "%s\n", mt_last_error());
        return 1;
    }
    const size_t tokens = BATCH * SEQUENCE, two_bytes = 2;
    const size_t input = tokens * HIDDEN * two_bytes, wide = tokens * WIDE * two_bytes;
    bool right = relu == input + wide && gelu == input + 2 * wide;
    printf("%zu + %zu and %zu + 2 * %zu: %s; ReLU needs %.4f of GELU's bytes\n", input, wide, input,
           wide, right ? "as counted" : "NOT as counted", (double)relu / (double)gelu);
    return right && drawn ? 0 : 1;
}
