/* transformers_ops.c: functions as compositions of ops, as Transformers' eager code has them.
 * Values are those of the one op, except for rounding. */
#include <math.h>
#include "stacks/forms.h"

/* silu(gate) up. Keeps gate, silu(gate) and up. */
mt_tensor *mti_transformers_swiglu(mt_tensor *gate, mt_tensor *up)
{
    mt_tensor *y = mt_silu(gate);
    mt_set(&y, mt_mul(y, up));
    return y;
}

/* x / sqrt(mean(x^2) + eps) of rows, x32 in f32. Keeps x32 and each row's root. */
static mt_tensor *normalise(mt_tensor *x, double eps)
{
    mt_tensor *x32 = mti_widen(x);
    mt_tensor *root = mt_pow(x32, 2);
    mt_set(&root, mt_mean(root, 1, (const int[]){-1}, true));
    mt_set(&root, mt_affine(root, 1, eps));
    mt_set(&root, mt_sqrt(root));
    mt_tensor *y = mt_div(x32, root);
    mt_release(x32);
    mt_release(root);
    return y;
}

/* Times w [n]; keeps the normalised rows besides, in x's type. */
mt_tensor *mti_transformers_rms_norm(mt_tensor *x, mt_tensor *w, double eps)
{
    mt_tensor *y = normalise(x, eps);
    if (y) mt_set(&y, mt_cast(y, mt_dtype_of(x)));
    mt_set(&y, mt_mul(w, y));
    return y;
}

/* Times 1 + w; keeps the normalised rows and 1 + w besides, in f32. */
mt_tensor *mti_transformers_rms_norm_one(mt_tensor *x, mt_tensor *w, double eps)
{
    mt_tensor *y = normalise(x, eps), *one = mti_widen(w);
    mt_set(&one, mt_add_scalar(one, 1));
    mt_set(&y, mt_mul(y, one));
    mt_release(one);
    if (y) mt_set(&y, mt_cast(y, mt_dtype_of(x)));
    return y;
}

/* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Keeps x, tanh(..), x/2 and 1 + tanh(..). */
mt_tensor *mti_transformers_gelu_tanh(mt_tensor *x)
{
    mt_tensor *t = mt_pow(x, 3);
    mt_set(&t, mt_affine(t, 0.044715, 0));
    mt_set(&t, mt_add(x, t));
    mt_set(&t, mt_affine(t, sqrt(2 / 3.14159265358979323846), 0));
    mt_set(&t, mt_tanh(t));
    mt_set(&t, mt_affine(t, 1, 1));
    mt_tensor *half = mt_affine(x, 0.5, 0);
    mt_set(&t, mt_mul(half, t));
    mt_release(half);
    return t;
}
