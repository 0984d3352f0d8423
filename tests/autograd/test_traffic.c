/* What ops move in memory, and what collectives send: by the sizes of their tensors. */
#include <string.h>
#include "memtape/ops.h"
#include "memtape/models/parallel.h"
#include "mtt.h"

enum { B = 2, S = 8, D = 16, E = 4 }; /* E: bytes of an f32 */

static mt_traffic since(const mt_device *device, mt_traffic *before)
{
    mt_traffic now = mt_traffic_get(device), x = now;
    x.products -= before->products, x.others -= before->others, x.layers -= before->layers;
    x.pieces -= before->pieces, x.stages -= before->stages;
    *before = now;
    return x;
}

static mt_tensor *wanted(mt_device *device, int rank, const int64_t *shape)
{
    mt_tensor *t = mt_zeros(device, MT_F32, rank, shape);
    mtt_ok(mt_set_requires_grad(t, true));
    return t;
}

static void backward(mt_tensor *y)
{
    mt_tensor *dy = mt_zeros(mt_device_of(y), MT_F32, mt_rank(y), mt_shape(y));
    mtt_ok(mt_backward_from(1, &y, &dy, false));
    mt_release(dy);
}

static void each_tensor_of_an_op_counts_once(void **state)
{
    mt_device *device = mt_device_open("meta");
    mt_traffic at = mt_traffic_get(device);
    mt_tensor *x = wanted(device, 2, (int64_t[]){S, D}), *w = wanted(device, 2, (int64_t[]){D, D});
    (void)state;
    at = mt_traffic_get(device);
    mt_tensor *y = mt_linear(x, w, NULL);
    mt_traffic t = since(device, &at);
    assert_int_equal(t.products, E * (S * D + D * D + S * D)); /* x, w; y */
    assert_int_equal(t.others, 0);
    mt_tensor *z = mt_gelu(y);
    t = since(device, &at);
    assert_int_equal(t.others, E * 2 * S * D); /* y; z */
    assert_int_equal(t.products, 0);
    mt_tensor *r = mt_reshape(z, 1, (int64_t[]){S * D});
    t = since(device, &at);
    assert_int_equal(t.products + t.others, 0); /* a view */
    mt_tensor *sum = mt_sum_all(r);
    t = since(device, &at);
    assert_int_equal(t.others, E * (S * D + 1));
    mtt_ok(mt_backward(sum));
    t = since(device, &at);
    /* of sum: a view of one element; of gelu: y and that, and dy; of linear: dy, w, x; dx, dw */
    assert_int_equal(t.products, E * (3 * S * D + 2 * D * D));
    assert_true(t.others >= E * (2 * S * D + 1) && t.others <= E * (3 * S * D + 2));
    mt_release(sum), mt_release(r), mt_release(z), mt_release(y), mt_release(w), mt_release(x);
    mt_device_release(device);
}

static void gradients_that_meet_are_read_and_written(void **state)
{
    mt_device *device = mt_device_open("meta");
    mt_tensor *x = wanted(device, 2, (int64_t[]){S, D});
    (void)state;
    mt_tensor *a = mt_exp(x);
    backward(a);
    mt_traffic at = mt_traffic_get(device);
    mt_tensor *b = mt_exp(x);
    mt_traffic t = since(device, &at);
    backward(b);
    t = since(device, &at);
    /* exp: y, dy; dx. The leaf's sum: both, and itself. */
    assert_int_equal(t.others, E * (3 + 3) * S * D);
    mt_release(b), mt_release(a), mt_release(x);
    mt_device_release(device);
}

static void a_ring_sends_all_but_its_own_part(void **state)
{
    mt_device *device = mt_device_open("meta");
    mt_tensor *x = wanted(device, 3, (int64_t[]){B, S, D});
    const uint64_t n_bytes = E * B * S * D;
    (void)state;
    mt_traffic at = mt_traffic_get(device);
    mt_tensor *gathered = mt_all_gather(x, 1, MT_RANKS(4)); /* [b,4s,d] */
    assert_int_equal(since(device, &at).layers, 3 * n_bytes);
    backward(gathered);
    assert_int_equal(since(device, &at).layers, 3 * n_bytes);
    mt_tensor *sum = mt_all_reduce(x, MT_RANKS(4));
    assert_int_equal(since(device, &at).layers, 2 * 3 * n_bytes / 4);
    backward(sum);
    assert_int_equal(since(device, &at).layers, 0);
    mt_tensor *same = mt_replicate(x, MT_RANKS(4));
    assert_int_equal(since(device, &at).layers, 0);
    backward(same);
    assert_int_equal(since(device, &at).layers, 2 * 3 * n_bytes / 4);
    mt_tensor *part = mt_reduce_scatter(x, 0, MT_RANKS(2)); /* of a parameter */
    mt_traffic t = since(device, &at);
    assert_int_equal(t.pieces, n_bytes / 2);
    assert_int_equal(t.layers, 0);
    backward(part);
    assert_int_equal(since(device, &at).pieces, n_bytes / 2);
    mt_tensor *sent = mt_send(x, MT_RANKS(3)), *received = mt_recv(x, MT_RANKS(3));
    assert_int_equal(since(device, &at).stages, n_bytes);
    backward(received);
    assert_int_equal(since(device, &at).stages, n_bytes);
    at = mt_traffic_get(device);
    assert_int_equal(at.products, 0);
    mt_release(received), mt_release(sent), mt_release(part), mt_release(same), mt_release(sum);
    mt_release(gathered), mt_release(x);
    mt_device_release(device);
}

/* ---- whole ranks ---- */

static const mt_model_config gpt = {.kind = MT_MODEL_GPT,
                                    .hidden = D,
                                    .heads = 4,
                                    .layers = 3,
                                    .vocab = 32,
                                    .context = S,
                                    .dtype = MT_F32};

/* Of forward and backward of all its layers. */
static mt_traffic of_a_rank(mt_parallel h)
{
    mt_device *device = mt_device_open("meta");
    mt_module *rank = mt_rank_new(device, &gpt, &h, 0);
    mt_tensor *ids = mt_zeros(device, MT_I64, 2, (int64_t[]){B, S});
    assert_non_null(rank);
    mt_tensor *y = mt_forward(rank, ids);
    backward(y);
    mt_traffic t = mt_traffic_get(device);
    mt_release(y), mt_release(ids), mt_module_free(rank);
    mt_device_release(device);
    return t;
}

/* Shoeybi et al. 2019, section 3: two all-reduces of [b,s,d] a layer in forward, two in backward;
 * here also one for the embedding and, in backward, one for the head. */
static void tensor_parallel_layers_send_four_sums_each(void **state)
{
    const uint64_t a_sum = 2 * E * B * S * D * 3 / 4;
    (void)state;
    mt_traffic t = of_a_rank((mt_parallel){.tensor = 4});
    assert_int_equal(t.layers, (4 * 3 + 2) * a_sum);
    assert_int_equal(t.pieces + t.stages, 0);
    /* Korthikanti et al. 2022, 4.2.2: with sequence parallelism as much, but for what backward
     * gathers again because only pieces are kept: the inputs of two products a layer, and of the
     * head. */
    t = of_a_rank((mt_parallel){.tensor = 4, .sequence = true});
    assert_int_equal(t.layers, (4 * 3 + 2) * a_sum + (2 * 3 + 1) * a_sum / 2);
}

/* Rajbhandari et al. 2020, section 7: parameters are gathered for forward and for backward, and
 * gradients are scattered: three times (n-1)/n of them. Norms and the embedding do not need their
 * parameters, biases are not needed by backward: so a little less. */
static void zero_3_sends_parameters_twice_and_gradients_once(void **state)
{
    const int64_t matrices = 3 * 12 * D * D, head = 32 * D;
    uint64_t n;
    (void)state;
    mt_device *device = mt_device_open("meta");
    mt_module *whole = mt_rank_new(device, &gpt, NULL, 0);
    mtt_ok(mt_module_size(whole, &n, NULL));
    mt_module_free(whole);
    mt_device_release(device);
    mt_traffic t = of_a_rank((mt_parallel){.data = 2, .zero = 3});
    const uint64_t least = E * (2 * n + (uint64_t)(matrices + head)) / 2, most = 3 * E * n / 2;
    if (t.pieces < least || t.pieces > most + E * (uint64_t)head)
        fail_msg("%llu bytes, need %llu to %llu", (unsigned long long)t.pieces,
                 (unsigned long long)least, (unsigned long long)most);
    assert_int_equal(t.layers + t.stages, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tensor_of_an_op_counts_once),
        cmocka_unit_test(gradients_that_meet_are_read_and_written),
        cmocka_unit_test(a_ring_sends_all_but_its_own_part),
        cmocka_unit_test(tensor_parallel_layers_send_four_sums_each),
        cmocka_unit_test(zero_3_sends_parameters_twice_and_gradients_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
