/* What does a backend have to do?
 *
 * The device "tally" is backend/tally.c, compiled to a file of its own, which mt_device_open
 * finds beside this program. The same ten training steps run on it and on the CPU: what the tape
 * keeps is equal to the byte, and the losses but for rounding. */
#include <math.h>
#include "expect.h"

enum { ROWS = 8, HIDDEN = 16, WIDE = 4 * HIDDEN, STEPS = 10, FLOAT = 4 };

typedef struct outcome {
    double first, last; /* losses */
    int64_t kept;       /* bytes that the first step's tape keeps */
} outcome;

/* Ten steps of an MLP towards y = x; the backend prints what it was asked for when it is closed. */
static outcome train(const char *kind)
{
    outcome o = {0};
    mt_device *device = mt_device_open(kind);
    mt_seed(device, 1);
    mt_model_config config = {.kind = MT_MODEL_MLP, .hidden = HIDDEN, .act = MT_ACT_RELU};
    mt_module *mlp = mt_model_new(device, &config);
    mt_optimizer *sgd = mt_sgd_new(mlp, &(mt_sgd_options){.lr = 1});
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(ROWS, HIDDEN), 0, 1);
    mt_ledger *ledger = mt_ledger_new(device);
    for (int step = 0; step < STEPS; step++) {
        mt_module_zero_grad(mlp);
        mt_ledger_begin(ledger);
        mt_tensor *loss = mt_forward(mlp, x);
        mt_ledger_end(ledger);
        if (step == 0) o.kept = (int64_t)mt_ledger_bytes(ledger);
        mt_set(&loss, mt_mse(loss, x));
        mt_backward(loss);
        mt_optimizer_step(sgd);
        o.last = mt_item(loss);
        if (step == 0) o.first = o.last;
        mt_release(loss);
    }
    mt_ledger_free(ledger);
    mt_release(x);
    mt_optimizer_free(sgd);
    mt_module_free(mlp);
    printf("%s: loss %.4f, after %d steps %.4f\n", kind, o.first, STEPS, o.last);
    mt_device_release(device);
    return o;
}

int main(void)
{
    outcome cpu = train("cpu"), tally = train("tally");
    expect("bytes kept on cpu", cpu.kept, ROWS * (HIDDEN + WIDE) * FLOAT);
    expect("bytes kept on tally", tally.kept, ROWS * (HIDDEN + WIDE) * FLOAT);
    expect("whether it learns", tally.last < tally.first, 1);
    expect("whether losses differ by less than one in 10^5",
           fabs(cpu.last - tally.last) < 1e-5 * cpu.last, 1);
    return finish();
}
