/* Which gradients vanish in 16 bits, and what brings them back?
 *
 * An MLP is run forward and backward in f32, bf16 and f16. How much each output matters to the loss
 * differs, as it does in a model that is nearly trained: the first columns count 1, the last ones
 * 2^-15. Weights and inputs are small whole multiples of 1/8, so that every sum is exact in f32
 * and the same figures come out on every machine. Then the sums themselves, in 16 and in 32 bits.
 */
#include <math.h>
#include "expect.h"

enum { ROWS = 256, WIDTH = 64, N = WIDTH * WIDTH };

/* Values from 1/8 of the numbers -most .. most, the same ones at every call with this seed. */
static mt_tensor *eighths(mt_device *device, mt_dtype dtype, int64_t rows, int most, unsigned seed)
{
    static float data[ROWS * WIDTH];
    for (int64_t i = 0; i < rows * WIDTH; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (float)((int)((seed >> 16) % (unsigned)(2 * most + 1)) - most) / 8;
    }
    mt_tensor *t = mt_from_data(device, MT_F32, MT_SHAPE(rows, WIDTH), data,
                                (size_t)(rows * WIDTH) * sizeof *data);
    mt_set(&t, mt_cast(t, dtype));
    return t;
}

static void read_gradient(mt_tensor *w, float out[N])
{
    mt_tensor *g = mt_cast(mt_grad(w), MT_F32);
    mt_to_host(g, out, N * sizeof *out);
    mt_release(g);
}

/* Gradients of both weights: mean of how-much-it-matters * relu(x w1) w2, times the scale. */
static void gradients(mt_device *device, mt_dtype dtype, double scale, float out[2 * N])
{
    static float matters[WIDTH];
    for (int j = 0; j < WIDTH; j++) matters[j] = ldexpf(1, -(j / 4));
    mt_tensor *m = mt_from_data(device, MT_F32, MT_SHAPE(WIDTH), matters, sizeof matters);
    mt_tensor *x = eighths(device, dtype, ROWS, 4, 1);
    mt_tensor *w1 = eighths(device, dtype, WIDTH, 2, 2), *w2 = eighths(device, dtype, WIDTH, 2, 3);
    mt_set_requires_grad(w1, true);
    mt_set_requires_grad(w2, true);

    mt_tensor *loss = mt_matmul(x, w1);
    mt_set(&loss, mt_relu(loss));
    mt_set(&loss, mt_matmul(loss, w2));
    mt_set(&loss, mt_cast(loss, MT_F32)); /* losses are f32 in every regime */
    mt_set(&loss, mt_mul(loss, m));
    mt_set(&loss, mt_mean_all(loss));
    mt_scaler *scaler = mt_scaler_new(&(mt_scaler_options){.scale = scale, .fixed = true});
    mt_set(&loss, mt_scaler_scale(scaler, loss));
    mt_backward(loss);
    read_gradient(w1, out);
    read_gradient(w2, out + N);
    mt_scaler_free(scaler);
    mt_release(loss);
    mt_release(w2);
    mt_release(w1);
    mt_release(x);
    mt_release(m);
}

/* Of the gradients that are not 0 in f32, those that are 0 here; and those that are too large. */
static void vanished(mt_device *device, const char *name, mt_dtype dtype, double scale,
                     const float *exact, int64_t zero, int64_t infinite)
{
    static float g[2 * N];
    gradients(device, dtype, scale, g);
    int64_t n = 0, too_small = 0, broken = 0;
    for (int i = 0; i < 2 * N; i++) {
        n += exact[i] != 0 && g[i] == 0;
        too_small += exact[i] != 0 && g[i] == 0 && fabsf(exact[i]) <= ldexpf(1, -25);
        broken += !isfinite(g[i]);
    }
    char line[64];
    snprintf(line, sizeof line, "%s: 0", name);
    expect(line, n, zero);
    snprintf(line, sizeof line, "%s: 0, where f32 has what f16 could not hold", name);
    if (n) expect(line, too_small, 0);
    snprintf(line, sizeof line, "%s: infinite, or not a number", name);
    expect(line, broken, infinite);
}

int main(void)
{
    static float exact[2 * N];
    mt_device *device = mt_device_open("cpu");
    gradients(device, MT_F32, 1, exact);
    int64_t nonzero = 0;
    for (int i = 0; i < 2 * N; i++) nonzero += exact[i] != 0;
    /* 32 sums of x are 0 by chance. Half the smallest number of f16, 2^-25, is rounded to 0: the
     * gradient of an output that counts 2^-11 or less is 2^-14 times that, as a mean over 2^14. */
    expect("gradients in f32, of 8192: not 0", nonzero, 2 * N - 32);
    vanished(device, "bf16", MT_BF16, 1, exact, 0, 0);
    vanished(device, "f16", MT_F16, 1, exact, 5 * 4 * WIDTH, 0);
    vanished(device, "f16, the loss times 2^16", MT_F16, ldexp(1, 16), exact, 0, 0);
    /* All of w1's gradients, and those of 24 outputs. Such a step is skipped, the scale halved. */
    vanished(device, "f16, the loss times 2^30", MT_F16, ldexp(1, 30), exact, 0, N + 24 * WIDTH);
    mt_device_release(device);
    return finish();
}
