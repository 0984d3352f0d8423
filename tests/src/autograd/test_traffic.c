/* What ops move in memory, by the sizes of their tensors. tests/models/parallel has what ranks
 * send. */
#include "traffic.h"

enum { S = 8, D = 16, E = 4 }; /* E: bytes of an f32 */

static void each_tensor_of_an_op_counts_once(void **state)
{
    mt_device *device = mt_device_open("meta");
    mt_traffic at = mt_traffic_get(device);
    mt_tensor *x = traffic_leaf(device, 2, (int64_t[]){S, D}),
              *w = traffic_leaf(device, 2, (int64_t[]){D, D});
    (void)state;
    at = mt_traffic_get(device);
    mt_tensor *y = mt_linear(x, w, NULL);
    mt_traffic t = traffic_since(device, &at);
    assert_int_equal(t.products, E * (S * D + D * D + S * D)); /* x, w; y */
    assert_int_equal(t.others, 0);
    mt_tensor *z = mt_gelu(y);
    t = traffic_since(device, &at);
    assert_int_equal(t.others, E * 2 * S * D); /* y; z */
    assert_int_equal(t.products, 0);
    mt_tensor *r = mt_reshape(z, 1, (int64_t[]){S * D});
    t = traffic_since(device, &at);
    assert_int_equal(t.products + t.others, 0); /* a view */
    mt_tensor *sum = mt_sum_all(r);
    t = traffic_since(device, &at);
    assert_int_equal(t.others, E * (S * D + 1));
    mtt_ok(mt_backward(sum));
    t = traffic_since(device, &at);
    /* of sum: a view of one element; of gelu: y and that, and dy; of linear: dy, w, x; dx, dw */
    assert_int_equal(t.products, E * (3 * S * D + 2 * D * D));
    assert_true(t.others >= E * (2 * S * D + 1) && t.others <= E * (3 * S * D + 2));
    mt_release(sum), mt_release(r), mt_release(z), mt_release(y), mt_release(w), mt_release(x);
    mt_device_release(device);
}

static void gradients_that_meet_are_read_and_written(void **state)
{
    mt_device *device = mt_device_open("meta");
    mt_tensor *x = traffic_leaf(device, 2, (int64_t[]){S, D});
    (void)state;
    mt_tensor *a = mt_exp(x);
    traffic_backward(a);
    mt_traffic at = mt_traffic_get(device);
    mt_tensor *b = mt_exp(x);
    mt_traffic t = traffic_since(device, &at);
    traffic_backward(b);
    t = traffic_since(device, &at);
    /* exp: y, dy; dx. The leaf's sum: both, and itself. */
    assert_int_equal(t.others, E * (3 + 3) * S * D);
    mt_release(b), mt_release(a), mt_release(x);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tensor_of_an_op_counts_once),
        cmocka_unit_test(gradients_that_meet_are_read_and_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
