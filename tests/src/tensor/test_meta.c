/* The meta device: it counts memory as other devices do, but has no data. */
#include <math.h>
#include <stdint.h>
#include <sys/resource.h>
#include "backends/backend.h"
#include "mtt_engine.h"

static mt_device *open_meta(void)
{
    mt_device *device = mt_device_open("meta");
    assert_non_null(device);
    return device;
}

/* Except those that copy during compute, graphs, and links: there is nothing to copy, to launch,
 * and to send. */
static void every_kernel_of_the_table_is_there(void **state)
{
    (void)state;
    typedef void function(void);
    const char *table = (const char *)&mti_meta_backend;
    for (size_t at = offsetof(mti_backend, open); at < sizeof(mti_backend);
         at += sizeof(function *)) {
        bool none = at >= offsetof(mti_backend, host_alloc) && at <= offsetof(mti_backend, links);
        function *kernel = *(function *const *)(const void *)(table + at);
        none ? assert_null(kernel) : assert_non_null(kernel);
    }
}

/* Linear 256 -> 250, f32, batch 1: PyTorch on a GPU, with cuBLAS's default workspace. */
static void a_linear_layer_with_gemm_workspace_takes_what_it_takes_under_pytorch(void **state)
{
    (void)state;
    mt_device *device = open_meta();
    mtt_ok(mt_set_balance_check(device, true));
    mtt_ok(mt_device_set_gemm_workspace(device, 8519680));
    mt_tensor *w = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(250, 256)));
    mt_tensor *b = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(250)));
    mtt_ok(mt_set_requires_grad(w, true));
    mtt_ok(mt_set_requires_grad(b, true));
    assert_int_equal(mtt_allocated(device), 257024);
    {
        MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(1, 256)));
        assert_int_equal(mtt_allocated(device), 258048);
        MT_AUTO mt_tensor *y = mtt_made(mt_linear(x, w, b));
        assert_int_equal(mtt_allocated(device), 8778752);
        MT_AUTO mt_tensor *gradient = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(1, 250)));
        size_t before = mtt_allocated(device);
        mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = gradient}));
        assert_int_equal(mtt_allocated(device) - before, 8519680 + 257024);
        mt_set(&gradient, mt_retain(x));
        assert_int_equal(mtt_allocated(device), 17555456);
    }
    mt_release(w), mt_release(b);
    assert_int_equal(mtt_allocated(device), 2 * 8519680);
    mtt_ok(mt_device_set_gemm_workspace(device, 0));
    assert_int_equal(mtt_allocated(device), 0);
    mt_device_release(device);
}

static void reading_a_value_is_an_error_because_there_are_no_values(void **state)
{
    (void)state;
    mt_device *device = open_meta();
    assert_false(mt_device_has_data(device));
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2)));
    float value[2];
    assert_int_equal(mt_to_host(x, value, sizeof value), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "meta", "8 bytes");
    mt_device_release(device);
}

typedef struct seen {
    size_t refused, live_at_refusal;
    const char *op;
} seen;

static void note_refusal(void *user, const mt_mem_event *e)
{
    seen *s = user;
    if (e->kind != MT_MEM_OOM) return;
    s->refused = e->requested, s->live_at_refusal = e->current, s->op = e->op;
}

static void a_capacity_refuses_what_does_not_fit_and_says_who_asked(void **state)
{
    (void)state;
    mt_device *device = open_meta();
    seen s = {0};
    int observer = mt_mem_add_observer(device, note_refusal, &s);
    assert_true(observer > 0);
    mt_mem_set_capacity(device, (size_t)40 << 30);
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_BF16, MT_SHAPE(15, 1 << 30)));
    assert_null(mt_relu(x));
    mtt_failed(MT_ERR_MEMORY, "relu", "40", "capacity");
    assert_int_equal(s.refused, (size_t)30 << 30);
    assert_int_equal(s.live_at_refusal, (size_t)30 << 30);
    assert_string_equal(s.op, "relu");
    mt_mem_set_capacity(device, 0);
    MT_AUTO mt_tensor *y = mtt_made(mt_relu(x));
    mt_mem_remove_observer(device, observer);
    mt_device_release(device);
}

static void a_device_with_data_counts_its_own_scratch_memory_only(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("cpu");
    assert_non_null(device);
    assert_true(mt_device_has_data(device));
    assert_int_equal(mt_device_set_gemm_workspace(device, 512), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "set_gemm_workspace", "cpu");
    assert_int_equal(mt_device_count_scratch_of(device, "none"), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "count_scratch_of", "cpu");
    mt_device_release(device);
}

/* Of a product in 16 bits with several tiles: each thread has scratch memory of its own. */
static int64_t peak_of_product(mt_device *d)
{
    mt_mem_stats stats;
    mt_tensor *x = mt_zeros(d, MT_BF16, MT_SHAPE(272, 64));
    mt_tensor *w = mt_zeros(d, MT_BF16, MT_SHAPE(64, 272));
    mt_tensor *y = mt_matmul(x, w);
    assert_non_null(y);
    mt_mem_get_stats(d, &stats);
    mt_release(y);
    mt_release(w);
    mt_release(x);
    return (int64_t)stats.allocated.peak;
}

static void scratch_of_the_cpu_is_that_of_as_many_threads(void **state)
{
    (void)state;
    int64_t peaks[4];
    for (int threads = 0; threads < 4; threads++) {
        mt_device *cpu = mt_device_open("cpu"), *meta = mt_device_open("meta");
        if (threads) mtt_ok(mt_device_set_threads(cpu, threads));
        if (threads == 1) mtt_ok(mt_device_set_threads(meta, threads)); /* before, or after */
        mtt_ok(mt_device_count_scratch_of(meta, "cpu"));
        if (threads > 1) mtt_ok(mt_device_set_threads(meta, threads));
        assert_int_equal(mt_device_threads(meta), mt_device_threads(cpu));
        peaks[threads] = peak_of_product(meta);
        assert_int_equal(peaks[threads], peak_of_product(cpu));
        mt_device_release(meta);
        mt_device_release(cpu);
    }
    assert_true(peaks[1] < peaks[2]);
}

/* Otherwise a step's memory would depend on whether the program reads its loss. */
static void reading_a_value_takes_no_device_memory_and_is_right_for_every_16_bit_value(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("cpu");
    const mt_dtype dtypes[] = {MT_BF16, MT_F16};
    for (size_t k = 0; k < 2; k++)
        for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
            uint16_t half = (uint16_t)bits;
            MT_AUTO mt_tensor *x =
                mtt_made(mt_from_data(device, dtypes[k], MT_SHAPE(1), &half, sizeof half));
            MT_AUTO mt_tensor *wide = mtt_made(mt_cast(x, MT_F64));
            mt_mem_stats before, after;
            mt_mem_get_stats(device, &before);
            double value = mt_item(x), cast = mt_item(wide);
            mt_mem_get_stats(device, &after);
            assert_true(isnan(cast) ? isnan(value)
                                    : value == cast && !signbit(value) == !signbit(cast));
            assert_int_equal(after.allocated.total_in, before.allocated.total_in);
        }
    mt_device_release(device);
}

static void a_device_reports_how_much_memory_the_system_leaves(void **state)
{
    (void)state;
    mt_device *meta = open_meta(), *cpu = mt_device_open("cpu");
    assert_non_null(cpu);
    assert_true(mt_device_room(meta) == SIZE_MAX);
    assert_true(mt_device_room(NULL) == SIZE_MAX);
    size_t before = mt_device_room(cpu);
    assert_true(before > 0 && before < SIZE_MAX);
    struct rlimit was, limit, kept;
    assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
    limit = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0); /* this process already has more */
    assert_int_equal(getrlimit(RLIMIT_AS, &kept), 0);
    size_t within = mt_device_room(cpu);
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    if (kept.rlim_cur == limit.rlim_cur) assert_int_equal(within, 0); /* qemu-user keeps no limit */
    mt_device_release(cpu);
    mt_device_release(meta);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_of_the_table_is_there),
        cmocka_unit_test(a_linear_layer_with_gemm_workspace_takes_what_it_takes_under_pytorch),
        cmocka_unit_test(reading_a_value_is_an_error_because_there_are_no_values),
        cmocka_unit_test(a_capacity_refuses_what_does_not_fit_and_says_who_asked),
        cmocka_unit_test(a_device_with_data_counts_its_own_scratch_memory_only),
        cmocka_unit_test(scratch_of_the_cpu_is_that_of_as_many_threads),
        cmocka_unit_test(a_device_reports_how_much_memory_the_system_leaves),
        cmocka_unit_test(
            reading_a_value_takes_no_device_memory_and_is_right_for_every_16_bit_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
