/* The gradient of an input, with fixed weights: the direction in which a small step makes a network
 * err (Goodfellow et al. 2015, "Explaining and harnessing adversarial examples"). */
#include <stdio.h>
#include <memtape/all.h>

/* -log softmax(w2 tanh(w1 x))[label]; *hidden is the tanh, borrowed from the arena. */
static mt_tensor *loss_of(mt_arena *a, mt_tensor *const w[2], mt_tensor *x, mt_tensor *label,
                          mt_tensor **hidden)
{
    *hidden = mt_in(a, mt_tanh(mt_in(a, mt_linear(x, w[0], NULL))));
    return mt_in(a, mt_cross_entropy(mt_in(a, mt_linear(*hidden, w[1], NULL)), label, MT_IGNORE));
}

int main(void)
{
    mt_device *device = mt_device_open("cpu");
    mt_arena *a = mt_arena_new();
    mt_seed(device, 1);
    mt_tensor *w[2] = {mt_in(a, mt_normal(device, MT_F32, MT_SHAPE(4, 3), 0, 1)),
                       mt_in(a, mt_normal(device, MT_F32, MT_SHAPE(2, 4), 0, 1))};
    mt_tensor *x = mt_in(a, mt_normal(device, MT_F32, MT_SHAPE(1, 3), 0, 1));
    mt_tensor *label = mt_in(a, mt_zeros(device, MT_I64, MT_SHAPE(1))), *hidden;
    for (int i = 0; i < 2; i++) mt_set_requires_grad(w[i], true);
    mt_set_requires_grad(x, true);

    mt_tensor *loss = loss_of(a, w, x, label, &hidden);
    mt_tensor *inputs[] = {x, hidden}, *gradients[2];
    mt_gradients(&(mt_gradients_options){1, &loss, NULL, 2, inputs}, gradients);
    mt_print(hidden, stdout);
    printf("its gradient:\n");
    mt_print(mt_in(a, gradients[1]), stdout);
    printf("the input's:\n");
    mt_print(mt_in(a, gradients[0]), stdout);

    /* After a small step along the gradient the loss grows as it predicts, to first order. */
    double before = mt_item(loss), step = 1e-3;
    mt_tensor *moved = mt_in(a, mt_add(x, mt_in(a, mt_mul_scalar(gradients[0], step))));
    double after = mt_item(loss_of(a, w, moved, label, &hidden));
    double promised =
        step * mt_item(mt_in(a, mt_sum_all(mt_in(a, mt_mul(gradients[0], gradients[0])))));
    printf("loss %.6f, after a step of %g along it %.6f: %.6f more; promised %.6f\n", before, step,
           after, after - before, promised);
    bool good = mt_last_status() == MT_OK && promised > 0 && !mt_grad(w[0]) && !mt_grad(w[1]) &&
                !mt_grad(x) && after - before > 0.9 * promised && after - before < 1.1 * promised;
    if (!good) printf("not as it should be: %s\n", mt_last_error());
    mt_arena_free(a);
    mt_device_release(device);
    return good ? 0 : 1;
}
