/* Can an op of your own be written with the public headers alone?
 *
 * y = x |x|, as an activation between two linears. Its slope is 2 |x|, which is also 2 sqrt |y|. So
 * the op may keep x, or y, which the next linear keeps anyway. Three doors make it an op: a hook
 * that supplies what another op would compute, a saved tensor, and a hook on the gradient. */
#include "expect.h"

enum { ROWS = 8, IN = 16, WIDE = 32, FLOAT = 4 };

typedef enum form { COMPOSED, KEEPS_INPUT, KEEPS_OUTPUT } form;

/* One call of the op. It lives until backward has come by. */
typedef struct signed_square {
    form form;
    mt_saved *kept;
} signed_square;

static mt_tensor *composed(mt_tensor *x)
{
    mt_tensor *y = mt_abs(x);
    mt_set(&y, mt_mul(x, y));
    return y;
}

/* Forward. Ops called in a hook are not recorded, so |x| goes at once. */
static mt_status supply(void *user, const mt_op_call *call, mt_op_result *result, bool *supplied)
{
    (void)user;
    result->outputs[0] = composed(call->inputs[0]);
    *supplied = result->outputs[0] != NULL;
    return *supplied ? MT_OK : mt_last_status();
}

/* Backward: dx = dy 2 |x|. Called with dy when it is complete. */
static mt_tensor *slope(void *user, mt_tensor *dy)
{
    signed_square *op = user;
    mt_tensor *dx = mt_saved_get(op->kept);
    mt_saved_free(op->kept);
    op->kept = NULL;
    mt_set(&dx, mt_abs(dx));
    if (op->form == KEEPS_OUTPUT) mt_set(&dx, mt_sqrt(dx));
    mt_set(&dx, mt_mul_scalar(dx, 2));
    mt_set(&dx, mt_mul(dx, dy));
    return dx;
}

/* The tape's node is one of affine, y = 1 x + 0, which keeps nothing and passes dy on. */
static mt_tensor *call(signed_square *op, mt_tensor *x)
{
    const mt_op_hooks forward = {.before = supply};
    const mt_save_info info = {
        .op = "signed_square",
        .argument = op->form == KEEPS_INPUT ? "x" : "y",
        .role = op->form == KEEPS_INPUT ? MT_SAVE_INPUT : MT_SAVE_OUTPUT,
    };
    if (mt_push_op_hooks(&forward, NULL) != MT_OK) return NULL;
    mt_tensor *y = mt_affine(x, 1, 0);
    mt_pop_op_hooks();
    op->kept = mt_saved_new(op->form == KEEPS_INPUT ? x : y, &info);
    if (!op->kept || !mt_add_grad_hook(y, slope, op)) mt_set(&y, NULL);
    return y;
}

/* Whole numbers from -3 to 3: products and sums of them are exact in f32, and so are the roots. */
static mt_tensor *whole_numbers(mt_device *device, int rows, int columns)
{
    float values[WIDE * WIDE];
    for (int i = 0; i < rows * columns; i++) values[i] = (float)(i * 5 % 7 - 3);
    return mt_from_data(device, MT_F32, MT_SHAPE(rows, columns), values,
                        (size_t)(rows * columns) * sizeof *values);
}

static void print_kept(const mt_ledger *ledger)
{
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        mt_ledger_get(ledger, i, &e);
        printf("  %s of %s: %zu bytes, kept %zu x\n", e.saver.argument, e.saver.op, e.bytes,
               e.n_savers);
    }
}

/* The bytes kept for z = (signed square of x w^T) v^T, and the gradient of w. */
static int64_t run(mt_device *device, form kind, float gradient[WIDE * IN])
{
    mt_tensor *x = whole_numbers(device, ROWS, IN), *w = whole_numbers(device, WIDE, IN);
    mt_tensor *v = whole_numbers(device, IN, WIDE);
    mt_set_category(w, MT_PARAMETER), mt_set_category(v, MT_PARAMETER);
    mt_set_requires_grad(w, true), mt_set_requires_grad(v, true);
    mt_ledger *ledger = mt_ledger_new(device);
    signed_square op = {.form = kind};

    mt_ledger_begin(ledger);
    mt_tensor *h = mt_linear(x, w, NULL);
    mt_set(&h, kind == COMPOSED ? composed(h) : call(&op, h));
    mt_set(&h, mt_linear(h, v, NULL));
    mt_set(&h, mt_sum_all(h));
    mt_ledger_end(ledger);
    print_kept(ledger);
    int64_t kept = (int64_t)mt_ledger_bytes(ledger);
    mt_backward(h);
    mt_to_host(mt_grad(w), gradient, WIDE * IN * sizeof *gradient);

    mt_saved_free(op.kept); /* only if backward did not come by */
    mt_ledger_free(ledger);
    mt_release(h), mt_release(v), mt_release(w), mt_release(x);
    return kept;
}

int main(void)
{
    const int64_t x = ROWS * IN * FLOAT, wide = ROWS * WIDE * FLOAT;
    float gradient[3][WIDE * IN] = {{0}};
    mt_device *device = mt_device_open("cpu");
    printf("two ops, x |x|:\n");
    expect("bytes kept: x, h, |h|, y", run(device, COMPOSED, gradient[COMPOSED]), x + 3 * wide);
    printf("one op that keeps its input:\n");
    expect("bytes kept: x, h, y", run(device, KEEPS_INPUT, gradient[KEEPS_INPUT]), x + 2 * wide);
    printf("one op that keeps its output:\n");
    expect("bytes kept: x, y", run(device, KEEPS_OUTPUT, gradient[KEEPS_OUTPUT]), x + wide);
    int n_equal = 0, n_other_than_0 = 0;
    for (int i = 0; i < WIDE * IN; i++) {
        n_equal += gradient[COMPOSED][i] == gradient[KEEPS_INPUT][i] &&
                   gradient[COMPOSED][i] == gradient[KEEPS_OUTPUT][i];
        n_other_than_0 += gradient[COMPOSED][i] != 0;
    }
    expect("elements of dw, of 512, the same in all three", n_equal, WIDE * IN);
    expect("whether any is other than 0", n_other_than_0 > 0, 1);
    expect("bytes allocated at the end", allocated(device), 0);
    mt_device_release(device);
    return finish();
}
