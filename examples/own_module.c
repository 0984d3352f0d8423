/* A module of your own, trained, saved and loaded.
 *
 * y = x + proj(tanh(fc(x))), then a read-out: it learns to classify points as inside or outside
 * of a circle. It uses the public interface only. */
#include <stdio.h>
#include <memtape/all.h>

enum { POINTS = 256, WIDTH = 32, STEPS = 300 };

static mt_tensor *residual_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "fc", x);
    mt_set(&h, mt_tanh(h)); /* the old h is released: only the tape may hold on to it */
    mt_set(&h, mt_forward_child(self, "proj", h));
    mt_set(&h, mt_add(x, h));
    return h;
}

static mt_tensor *net_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "in", x);
    mt_set(&h, mt_forward_child(self, "residual", h));
    mt_set(&h, mt_forward_child(self, "out", h));
    return h;
}

/* [n,2] -> logits [n,2] */
static mt_module *net_new(mt_device *device)
{
    mt_module *net = mt_module_new("net", net_forward, NULL, NULL);
    mt_module_add_child(net, "in", mt_linear_new(device, MT_F32, 2, WIDTH, true, 0));
    mt_module *residual = mt_module_add_child(
        net, "residual", mt_module_new("residual", residual_forward, NULL, NULL));
    mt_module_add_child(residual, "fc", mt_linear_new(device, MT_F32, WIDTH, WIDTH, true, 0));
    mt_module_add_child(residual, "proj", mt_linear_new(device, MT_F32, WIDTH, WIDTH, true, 0));
    mt_module_add_child(net, "out", mt_linear_new(device, MT_F32, WIDTH, 2, true, 0));
    return net;
}

static double loss_of(mt_module *net, mt_tensor *x, mt_tensor *inside, bool learn)
{
    mt_tensor *h = mt_forward(net, x);
    mt_set(&h, mt_cross_entropy(h, inside, MT_IGNORE));
    double loss = mt_item(h);
    if (learn) mt_backward(h);
    mt_release(h);
    return loss;
}

static double train(mt_module *net, mt_tensor *x, mt_tensor *inside)
{
    mt_optimizer *adamw = mt_adamw_new(net, &(mt_adamw_options){.lr = 1e-2});
    for (int step = 0; step < STEPS && mt_last_status() == MT_OK; step++) {
        mt_module_zero_grad(net);
        double loss = loss_of(net, x, inside, true);
        mt_clip_grad_norm(net, 1, NULL);
        mt_optimizer_set_lr(adamw, mt_cosine_lr(step, 10, STEPS, 1e-2, 1e-4));
        mt_optimizer_step(adamw);
        if (step % 100 == 0) printf("step %3d  loss %.4f\n", step, loss);
    }
    mt_optimizer_free(adamw);
    return loss_of(net, x, inside, false);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "circle.safetensors";
    if (argc > 2 || *path == '-') return fprintf(stderr, "usage: own_module [FILE]\n"), 2;
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, 1);
    mt_tensor *x = mt_uniform(device, MT_F32, MT_SHAPE(POINTS, 2), -1, 1);
    float at[POINTS][2] = {{0}};
    int64_t label[POINTS];
    mt_to_host(x, at, sizeof at);
    for (int i = 0; i < POINTS; i++) label[i] = at[i][0] * at[i][0] + at[i][1] * at[i][1] < 0.5f;
    mt_tensor *inside = mt_from_data(device, MT_I64, MT_SHAPE(POINTS), label, sizeof label);

    mt_module *net = net_new(device), *copy = net_new(device);
    double before = loss_of(net, x, inside, false), after = train(net, x, inside);
    mt_safetensors_save_module(path, net, 0, NULL);
    mt_safetensors *file = mt_safetensors_open(path);
    mt_safetensors_load_module(file, copy);
    double loaded = loss_of(copy, x, inside, false);
    printf("loss %.4f before, %.4f after, %.4f loaded from %s\n", before, after, loaded, path);

    mt_safetensors_free(file);
    mt_module_free(net);
    mt_module_free(copy);
    mt_release(x);
    mt_release(inside);
    mt_device_release(device);
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    return mt_last_status() == MT_OK && after < 0.2 * before && loaded == after ? 0 : 1;
}
