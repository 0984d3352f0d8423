/* two_params.c: a module with two parameters, their gradients, and AdamW in f64. */
#include <math.h>
#include <stdlib.h>
#include "two_params.h"

mt_module *two_params(mt_dtype dtype, uint64_t seed)
{
    mt_module *m = mt_module_new("m", mtt_pass, NULL, NULL);
    mtt_made(
        mt_module_add_param(m, "matrix", mtt_random(device, dtype, MT_SHAPE(2, 3), seed, -1, 1)));
    mtt_made(
        mt_module_add_param(m, "vector", mtt_random(device, dtype, MT_SHAPE(6), seed + 1, -1, 1)));
    return m;
}

void set_grad(mt_tensor *p, const double g[N])
{
    MT_AUTO mt_tensor *grad = mtt_from_doubles(device, mt_dtype_of(p), mt_rank(p), mt_shape(p), g);
    mtt_ok(mt_set_grad(p, grad));
}

void draw(uint64_t seed, double g[N])
{
    for (int i = 0; i < N; i++) g[i] = mtt_draw(&seed, -1, 1);
}

void assert_near(mt_tensor *t, const double want[N], double tolerance)
{
    double *at = mtt_doubles(t);
    for (int i = 0; i < N; i++)
        if (!(fabs(at[i] - want[i]) <= tolerance))
            fail_msg("element %d is %.17g, need %.17g", i, at[i], want[i]);
    free(at);
}

void reference_adamw(double p[N], const double g[N], double m[N], double v[N], int t, double lr,
                     double b1, double b2, double eps, double decay)
{
    for (int i = 0; i < N; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        p[i] -= lr * decay * p[i];
        p[i] -= lr * (m[i] / (1 - pow(b1, t))) / (sqrt(v[i] / (1 - pow(b2, t))) + eps);
    }
}
