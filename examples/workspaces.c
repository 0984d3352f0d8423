/* Where do 8.5 MB come from, that no tensor has?
 *
 * Two small networks, forward and backward, on the meta device. The first product of a pass makes
 * cuBLAS's workspace, 8519680 bytes by default on most GPUs, and it stays. PyTorch holds one for
 * each pair of a handle and a stream, and backward runs in a thread that has a handle of its own:
 * so there are two. */
#include "expect.h"

enum { WORKSPACE = 8519680, FLOAT = 4 };

static mt_device *open_gpu(void)
{
    mt_device *device = mt_device_open("meta");
    mt_device_set_gemm_workspace(device, WORKSPACE);
    return device;
}

static void one_linear(void)
{
    mt_device *device = open_gpu();
    const int64_t model = blocks(250 * 256 * FLOAT) + blocks(250 * FLOAT);
    const int64_t x_bytes = blocks(256 * FLOAT), y_bytes = blocks(250 * FLOAT);
    printf("A linear layer, 256 to 250\n");
    mt_module *linear = mt_linear_new(device, MT_F32, 256, 250, true, 0);
    expect("  with the model", allocated(device), model);
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(1, 256), 0, 1);
    expect("  with its input", allocated(device), model + x_bytes);
    mt_tensor *y = mt_forward(linear, x);
    expect("  after forward", allocated(device), model + x_bytes + y_bytes + WORKSPACE);
    mt_tensor *loss = mt_sum_all(y);
    mt_backward(loss);
    mt_release(loss);
    expect("  after backward", allocated(device), 2 * model + x_bytes + y_bytes + 2 * WORKSPACE);
    mt_release(y);
    mt_release(x);
    mt_module_free(linear);
    mt_mem_empty_cache(device);
    expect("  after all tensors are freed", allocated(device), 2 * WORKSPACE);
    mt_device_set_gemm_workspace(device, 0);
    expect("  after the workspaces are freed", allocated(device), 0);
    mt_device_release(device);
}

static mt_tensor *net_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "fc", x);
    mt_set(&h, mt_relu(h));
    mt_set(&h, mt_forward_child(self, "proj", h));
    mt_set(&h, mt_sigmoid(h));
    return h;
}

/* 200 -> 100, ReLU, 100 -> 200, sigmoid; a batch of 5. */
static void two_layers(bool inference)
{
    mt_device *device = open_gpu();
    mt_module *net = mt_module_new("net", net_forward, NULL, NULL);
    mt_module_add_child(net, "fc", mt_linear_new(device, MT_F32, 200, 100, true, 0));
    mt_module_add_child(net, "proj", mt_linear_new(device, MT_F32, 100, 200, true, 0));
    const int64_t model = 2 * blocks(200 * 100 * FLOAT) + blocks(100 * FLOAT) + blocks(200 * FLOAT);
    const int64_t wide = blocks(5 * 200 * FLOAT), hidden = blocks(5 * 100 * FLOAT);

    printf("200 to 100, ReLU, to 200, sigmoid: %s\n", inference ? "inference" : "training");
    mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(5, 200), 0, 1);
    bool before = mt_set_grad_mode(!inference);
    mt_tensor *y = mt_forward(net, x);
    mt_set_grad_mode(before);
    expect("  after forward", allocated(device),
           model + wide + wide + (inference ? 0 : hidden) + WORKSPACE);
    if (!inference) {
        mt_tensor *loss = mt_sum_all(y);
        mt_backward(loss);
        mt_release(loss);
        expect("  after backward", allocated(device), 2 * model + wide + wide + 2 * WORKSPACE);
    }
    mt_release(y);
    mt_release(x);
    mt_module_free(net);
    mt_device_release(device);
}

int main(void)
{
    one_linear();
    two_layers(false);
    two_layers(true);
    return finish();
}
