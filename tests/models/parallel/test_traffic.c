/* What ranks send each other: by the sizes of the tensors of their collectives. */
#include "../../src/autograd/traffic.h"
#include "mtt.h"

enum { B = 2, S = 8, D = 16, E = 4 }; /* E: bytes of an f32 */

/* Returns what the device has sent since *before, and sets *before to all so far. */
static mt_sent sent_since(const mt_device *device, mt_sent *before)
{
    const mt_sent now = mt_sent_get(device), was = *before;
    *before = now;
    return (mt_sent){.layers = now.layers - was.layers,
                     .shards = now.shards - was.shards,
                     .stages = now.stages - was.stages};
}

static void a_ring_sends_all_but_its_own_part(void **state)
{
    mt_device *device = mt_device_open("meta");
    mt_tensor *x = traffic_leaf(device, 3, (int64_t[]){B, S, D});
    const uint64_t n_bytes = E * B * S * D;
    (void)state;
    mt_sent at = mt_sent_get(device);
    mt_tensor *gathered = mt_all_gather(x, 1, MT_RANKS(4)); /* [b,4s,d] */
    assert_int_equal(sent_since(device, &at).layers, 3 * n_bytes);
    traffic_backward(gathered);
    assert_int_equal(sent_since(device, &at).layers, 3 * n_bytes);
    mt_tensor *sum = mt_all_reduce(x, MT_RANKS(4));
    assert_int_equal(sent_since(device, &at).layers, 2 * 3 * n_bytes / 4);
    traffic_backward(sum);
    assert_int_equal(sent_since(device, &at).layers, 0);
    mt_tensor *same = mt_replicate(x, MT_RANKS(4));
    assert_int_equal(sent_since(device, &at).layers, 0);
    traffic_backward(same);
    assert_int_equal(sent_since(device, &at).layers, 2 * 3 * n_bytes / 4);
    mt_tensor *part = mt_reduce_scatter(x, 0, MT_RANKS(2)); /* of a parameter */
    mt_sent t = sent_since(device, &at);
    assert_int_equal(t.shards, n_bytes / 2);
    assert_int_equal(t.layers, 0);
    traffic_backward(part);
    assert_int_equal(sent_since(device, &at).shards, n_bytes / 2);
    mt_tensor *sent = mt_send(x, MT_RANKS(3)), *received = mt_recv(x, MT_RANKS(3));
    assert_int_equal(sent_since(device, &at).stages, n_bytes);
    traffic_backward(received);
    assert_int_equal(sent_since(device, &at).stages, n_bytes);
    assert_int_equal(mt_traffic_get(device).products, 0);
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

/* Counts what a rank sends in forward and backward of all its layers. */
static mt_sent of_a_rank(mt_parallel h)
{
    mt_device *device = mt_device_open("meta");
    mt_module *rank = mt_rank_new(device, &gpt, &h, 0);
    mt_tensor *ids = mt_zeros(device, MT_I64, 2, (int64_t[]){B, S});
    assert_non_null(rank);
    mt_tensor *y = mt_forward(rank, ids);
    traffic_backward(y);
    mt_sent t = mt_sent_get(device);
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
    mt_sent t = of_a_rank((mt_parallel){.tensor = 4});
    assert_int_equal(t.layers, (4 * 3 + 2) * a_sum);
    assert_int_equal(t.shards + t.stages, 0);
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
    mt_sent t = of_a_rank((mt_parallel){.data = 2, .zero = 3});
    const uint64_t least = E * (2 * n + (uint64_t)(matrices + head)) / 2, most = 3 * E * n / 2;
    if (t.shards < least || t.shards > most + E * (uint64_t)head)
        fail_msg("%llu bytes, need %llu to %llu", (unsigned long long)t.shards,
                 (unsigned long long)least, (unsigned long long)most);
    assert_int_equal(t.layers + t.stages, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_sends_all_but_its_own_part),
        cmocka_unit_test(tensor_parallel_layers_send_four_sums_each),
        cmocka_unit_test(zero_3_sends_parameters_twice_and_gradients_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
