/* Which x does the gradient of each layer need?
 *
 * Four linear layers in a row and a squared error: x1 = W1 x + b1, ..., x4 = W4 x3 + b4,
 * l = mean((x4 - y)^2). The gradient of W4 is the error times x3, that of W3 needs x2, and so on:
 * layer i keeps x(i-1) for W(i) alone, and keeps it no more when W(i) is frozen. */
#include <string.h>
#include "expect.h"

enum { BATCH = 8, WIDTH = 64, LAYERS = 4, TENSOR = BATCH * WIDTH * 4 };

typedef struct network {
    mt_device *device;
    mt_tensor *w[LAYERS], *b[LAYERS];
} network;

/* Names, in the order of their making, of the tensors that the tape keeps; their bytes. */
static int64_t kept(network *net, char names[64])
{
    static const char *const name[] = {"x", "x1", "x2", "x3", "x4", "y"};
    mt_tensor *x[LAYERS + 2]; /* x, x1, ..., x4, y */
    x[0] = mt_normal(net->device, MT_F32, MT_SHAPE(BATCH, WIDTH), 0, 1);
    mt_tensor *y = x[LAYERS + 1] = mt_normal(net->device, MT_F32, MT_SHAPE(BATCH, WIDTH), 0, 1);
    mt_ledger *ledger = mt_ledger_new(net->device);
    mt_ledger_begin(ledger);
    for (int i = 0; i < LAYERS; i++) x[i + 1] = mt_linear(x[i], net->w[i], net->b[i]);
    mt_tensor *loss = mt_mse(x[LAYERS], y);
    mt_ledger_end(ledger);

    *names = 0;
    for (int i = 0; i < LAYERS + 2; i++)
        for (size_t j = 0; j < mt_ledger_count(ledger); j++) {
            mt_ledger_entry e;
            mt_ledger_get(ledger, j, &e);
            if (e.storage == mt_storage_of(x[i]).serial) strcat(strcat(names, name[i]), " ");
        }
    int64_t bytes = (int64_t)mt_ledger_bytes(ledger);
    mt_release(loss);
    for (int i = 0; i < LAYERS + 2; i++) mt_release(x[i]);
    mt_ledger_free(ledger);
    return bytes;
}

static void row(network *net, const char *frozen, const char *by_hand)
{
    char names[64], line[128];
    int64_t bytes = kept(net, names), n = 0;
    for (const char *c = by_hand; *c; c++) n += *c == ' ';
    snprintf(line, sizeof line, "frozen: %-12s kept: %s", frozen, names);
    expect(line, bytes, n * TENSOR);
    if (strcmp(names, by_hand)) printf("  WRONG: by hand it is %s\n", by_hand), n_wrong++;
}

static void freeze(network *net, int i, bool frozen)
{
    mt_set_requires_grad(net->w[i], !frozen);
    mt_set_requires_grad(net->b[i], !frozen);
}

int main(void)
{
    static const char *const without[LAYERS] = {"x1 x2 x3 x4 y ", "x x2 x3 x4 y ", "x x1 x3 x4 y ",
                                                "x x1 x2 x4 y "};
    network net = {.device = mt_device_open("cpu")};
    for (int i = 0; i < LAYERS; i++) {
        net.w[i] = mt_normal(net.device, MT_F32, MT_SHAPE(WIDTH, WIDTH), 0, 0.1);
        net.b[i] = mt_zeros(net.device, MT_F32, MT_SHAPE(WIDTH));
        mt_set_category(net.w[i], MT_PARAMETER);
        mt_set_category(net.b[i], MT_PARAMETER);
        freeze(&net, i, false);
    }
    row(&net, "none", "x x1 x2 x3 x4 y ");
    for (int i = 0; i < LAYERS; i++) {
        char layer[16];
        snprintf(layer, sizeof layer, "W%d", i + 1);
        freeze(&net, i, true);
        row(&net, layer, without[i]);
        freeze(&net, i, false);
    }
    for (int i = 0; i < LAYERS - 1; i++) freeze(&net, i, true);
    row(&net, "W1 W2 W3", "x3 x4 y ");
    freeze(&net, LAYERS - 1, true);
    row(&net, "all", "");
    for (int i = 0; i < LAYERS; i++) mt_release(net.w[i]), mt_release(net.b[i]);
    mt_device_release(net.device);
    return finish();
}
