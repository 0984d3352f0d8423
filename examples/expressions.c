/* What does an expression keep for backward?
 *
 * The gradient of a product needs the other factor, that of a sum nothing. Only the w's want a
 * gradient: so what is kept is what they are multiplied with. x is [10,100], in f32; of what is
 * kept, x itself is no new memory. */
#include "expect.h"

enum { ROWS = 10, IN = 100, OUT = 50, FLOAT = 4, X = ROWS * IN * FLOAT };

typedef struct inputs {
    mt_tensor *x, *product, *sum, *inner, *factor; /* x and w's: [100,10], [10,100], ... */
} inputs;

/* x @ w */
static mt_tensor *product(const inputs *in) { return mt_matmul(in->x, in->product); }

/* (u * w1) @ w2: the left factor is made on the way, and wants a gradient itself. */
static mt_tensor *inner_product(const inputs *in)
{
    mt_tensor *x = mt_mul(in->x, in->sum);
    mt_set(&x, mt_matmul(x, in->product));
    return x;
}

/* x + w */
static mt_tensor *sum(const inputs *in) { return mt_add(in->x, in->sum); }

/* (x * 2) @ w */
static mt_tensor *scaled_product(const inputs *in)
{
    mt_tensor *y = mt_mul_scalar(in->x, 2);
    mt_set(&y, mt_matmul(y, in->product));
    return y;
}

/* (((x + 2) @ w1) + 3) * w2 */
static mt_tensor *two_layers(const inputs *in)
{
    mt_tensor *y = mt_add_scalar(in->x, 2);
    mt_set(&y, mt_matmul(y, in->inner));
    mt_set(&y, mt_add_scalar(y, 3));
    mt_set(&y, mt_mul(y, in->factor));
    return y;
}

static void keeps(const char *text, mt_tensor *(*expression)(const inputs *), const inputs *in,
                  int64_t all, int64_t new)
{
    mt_ledger *ledger = mt_ledger_new(mt_device_of(in->x));
    mt_ledger_begin(ledger);
    mt_tensor *y = expression(in);
    mt_ledger_end(ledger);
    int64_t bytes = (int64_t)mt_ledger_bytes(ledger), of_x = 0;
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        mt_ledger_entry e;
        mt_ledger_get(ledger, i, &e);
        if (e.storage == mt_storage_of(in->x).serial) of_x = (int64_t)e.bytes;
    }
    char line[64];
    snprintf(line, sizeof line, "%s keeps", text);
    expect(line, bytes, all);
    snprintf(line, sizeof line, "%s keeps, without x itself", text);
    expect(line, bytes - of_x, new);
    mt_release(y);
    mt_ledger_free(ledger);
}

static mt_tensor *weight(mt_device *device, int64_t rows, int64_t columns)
{
    mt_tensor *w = mt_normal(device, MT_F32, MT_SHAPE(rows, columns), 0, 1);
    mt_set_category(w, MT_PARAMETER);
    mt_set_requires_grad(w, true);
    return w;
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    inputs in = {.x = mt_normal(device, MT_F32, MT_SHAPE(ROWS, IN), 0, 1),
                 .product = weight(device, IN, ROWS),
                 .sum = weight(device, ROWS, IN),
                 .inner = weight(device, IN, OUT),
                 .factor = weight(device, ROWS, OUT)};
    keeps("x @ w", product, &in, X, 0);
    keeps("(u * w1) @ w2", inner_product, &in, X + X, X);
    keeps("x + w", sum, &in, 0, 0);
    keeps("(x * 2) @ w", scaled_product, &in, X, X);
    keeps("(((x + 2) @ w1) + 3) * w2", two_layers, &in, X + ROWS * OUT * FLOAT,
          X + ROWS * OUT * FLOAT);
    mt_release(in.x);
    mt_release(in.product);
    mt_release(in.sum);
    mt_release(in.inner);
    mt_release(in.factor);
    mt_device_release(device);
    return finish();
}
