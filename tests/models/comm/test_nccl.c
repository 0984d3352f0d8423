/* What ranks send from a GPU's memory, through the double of NCCL on the simulator: the bits and
 * the bytes of the CPU's collectives; and ranks that fail, for which nobody waits longer than
 * MEMTAPE_NCCL_TIMEOUT, here a second. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "ranks.h"
#include "tensor/tensor.h"

enum { MOST = 8 };

typedef struct one {
    mt_comm *comm;
    mtt_rank_fn *run;
} one;

static void *run_one(void *argument)
{
    const one *o = argument;
    o->run(o->comm);
    return NULL;
}

/* As threads; all ends are closed at the end, by their threads: closing waits for the others. */
static void *close_one(void *argument)
{
    mt_comm_free(((const one *)argument)->comm);
    return NULL;
}

static void for_all(int64_t ranks, one *each, void *(*function)(void *))
{
    pthread_t threads[MOST];
    for (int64_t r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, function, &each[r]), 0);
    for (int64_t r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
}

static void as_threads(int64_t ranks, mtt_rank_fn *run)
{
    mt_comm *ends[MOST];
    one each[MOST];
    mtt_ok(mt_comm_of_threads(ranks, ends));
    for (int64_t r = 0; r < ranks; r++) each[r] = (one){ends[r], run};
    for_all(ranks, each, run_one);
    for_all(ranks, each, close_one);
}

/* A function of the double, which is in the simulator's module. */
static void *of_double(const char *name)
{
    void *module = dlopen(getenv("MEMTAPE_CUDASIM_MODULE"), RTLD_NOW | RTLD_LOCAL);
    void *found = module ? dlsym(module, name) : NULL;
    if (!found) fail_msg("the module has no %s", name);
    return found;
}

static uint64_t moved(void)
{
    uint64_t (*function)(void);
    *(void **)&function = of_double("cudasim_nccl_moved");
    return function();
}

static size_t n_communicators(void)
{
    size_t (*function)(void);
    *(void **)&function = of_double("cudasim_nccl_comms");
    return function();
}

/* ---- the same as on the CPU ---- */

static uint64_t all_sent; /* by all ranks, on the simulator */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

typedef mt_tensor *collective_fn(mt_tensor *x, const mt_group *group);

static mt_tensor *gather(mt_tensor *x, const mt_group *g) { return mt_all_gather(x, 0, g); }
static mt_tensor *gather_inside(mt_tensor *x, const mt_group *g) { return mt_all_gather(x, 1, g); }
static mt_tensor *scatter(mt_tensor *x, const mt_group *g) { return mt_reduce_scatter(x, 0, g); }
static mt_tensor *scatter_inside(mt_tensor *x, const mt_group *g)
{
    return mt_reduce_scatter(x, 1, g);
}
static mt_tensor *reduce(mt_tensor *x, const mt_group *g) { return mt_all_reduce(x, g); }

static mt_tensor *on(mt_device *device, mt_tensor *x)
{
    size_t n_bytes = (size_t)mt_numel(x) * mt_dtype_size(mt_dtype_of(x));
    void *bytes = malloc(n_bytes + 1);
    MTT_NEED(bytes && mt_to_host(x, bytes, n_bytes) == MT_OK);
    mt_tensor *y = mt_from_data(device, mt_dtype_of(x), mt_rank(x), mt_shape(x), bytes, n_bytes);
    free(bytes);
    MTT_NEED(y);
    return y;
}

/* Random numbers: their sums are rounded. */
static void same_as_on_the_cpu(mt_comm *comm)
{
    static collective_fn *const collectives[] = {gather, gather_inside, scatter, scatter_inside,
                                                 reduce};
    static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_F16};
    mt_group group = mt_comm_group(comm);
    mt_device *cpu = mt_device_open("cpu"), *gpu = mtt_device();
    MTT_NEED(cpu && gpu);
    const int64_t shape[3] = {2 * group.ranks, 3 * group.ranks, 7};
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 5; i++) {
            /* of more than two numbers of 16 bits, NCCL rounds each sum */
            if (mt_dtype_size(dtypes[d]) == 2 && group.ranks > 2 && i > 1) continue;
            MT_AUTO mt_tensor *x =
                mtt_random(cpu, dtypes[d], 3, shape, 9 + (uint64_t)group.rank, -1, 1);
            MT_AUTO mt_tensor *there = on(gpu, x);
            uint64_t before = mt_comm_sent(comm);
            MT_AUTO mt_tensor *want = collectives[i](x, &group);
            uint64_t between = mt_comm_sent(comm);
            MT_AUTO mt_tensor *got = collectives[i](there, &group);
            MTT_NEED(want && got);
            MTT_NEED(mt_comm_sent(comm) - between == between - before);
            pthread_mutex_lock(&counting);
            all_sent += between - before;
            pthread_mutex_unlock(&counting);
            MT_AUTO mt_tensor *back = on(cpu, got);
            MTT_NEED(mtt_same_bits(back, want));
        }
    mt_device_release(cpu);
    mt_device_release(gpu);
}

static void collectives_have_the_bits_and_bytes_of_the_cpus(void **state)
{
    (void)state;
    for (int64_t ranks = 2; ranks <= 5; ranks++) {
        uint64_t before = moved();
        all_sent = 0;
        as_threads(ranks, same_as_on_the_cpu);
        assert_true(all_sent > 0);
        assert_int_equal(moved() - before, all_sent);
        assert_int_equal(n_communicators(), 0);
    }
}

/* ---- ranks that fail ---- */

/* Waits for what was queued: MT_OK or the failure. */
static mt_status wait_for(mt_tensor *y)
{
    float value;
    return y ? mt_to_host(y, &value, sizeof value) : mt_last_status();
}

static mt_tensor *sum_of_ones(mt_device *device, const mt_group *group)
{
    MT_AUTO mt_tensor *x = mt_full(device, MT_F32, MT_SHAPE(1), 1);
    return mt_all_reduce(x, group);
}

/* Rank 1 makes one call less. */
static void one_call_less(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mtt_device();
    MT_AUTO mt_tensor *y = sum_of_ones(device, &group);
    MTT_NEED(wait_for(y) == MT_OK && mt_item(y) == (double)group.ranks);
    if (group.rank != 1) {
        double began = mti_now();
        MT_AUTO mt_tensor *late = sum_of_ones(device, &group);
        MTT_NEED(late && wait_for(late) != MT_OK);
        MTT_NEED(mti_now() - began > 0.9 && mti_now() - began < 20);
        mtt_failed(MT_ERR_UNSUPPORTED, "nothing has moved for 1 s", "MEMTAPE_NCCL_TIMEOUT");
        MT_AUTO mt_tensor *after = sum_of_ones(device, &group);
        MTT_NEED(!after);
        mtt_failed(MT_ERR_UNSUPPORTED, "all_reduce: an earlier call has failed");
    }
    mt_device_release(device);
}

static void a_rank_that_does_not_come_is_not_waited_for_longer_than_the_limit(void **state)
{
    (void)state;
    as_threads(3, one_call_less);
    assert_int_equal(n_communicators(), 0);
}

/* What the host waits for beside the stream of compute, after a call that rank 1 does not make. */
typedef bool waiting_fn(const mti_backend *be, mti_ctx *ctx, void *host, void *data);

static bool times_of_copies(const mti_backend *be, mti_ctx *ctx, void *host, void *data)
{
    mti_copy_times times;
    uint64_t ticket;
    return be->copy_begin(ctx, MTI_TO_HOST, host, data, 8, &ticket) && be->copy_times(ctx, &times);
}

static bool end_of_copy(const mti_backend *be, mti_ctx *ctx, void *host, void *data)
{
    uint64_t ticket;
    return be->copy_begin(ctx, MTI_TO_HOST, host, data, 8, &ticket) && be->copy_finish(ctx, ticket);
}

/* As the ring of unfinished copies is full. */
static bool many_copies(const mti_backend *be, mti_ctx *ctx, void *host, void *data)
{
    bool ok = true;
    uint64_t ticket;
    for (int i = 0; ok && i < 10000; i++)
        ok = be->copy_begin(ctx, MTI_TO_HOST, host, data, 8, &ticket);
    return ok;
}

static waiting_fn *waiting;

static void one_call_less_then_a_wait(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mtt_device();
    const mti_backend *be = device->backend;
    void *host = be->host_alloc(device->ctx, 64), *data = be->alloc(device->ctx, 64);
    MT_AUTO mt_tensor *y = sum_of_ones(device, &group);
    MTT_NEED(host && data && wait_for(y) == MT_OK);
    memset(host, 0, 64);
    if (group.rank != 1) {
        double began = mti_now();
        MT_AUTO mt_tensor *late = sum_of_ones(device, &group);
        MTT_NEED(late && !waiting(be, device->ctx, host, data));
        MTT_NEED(mti_now() - began > 0.9 && mti_now() - began < 20);
        mtt_failed(MT_ERR_UNSUPPORTED, "nothing has moved for 1 s", "MEMTAPE_NCCL_TIMEOUT");
    }
    be->free(device->ctx, data, 64);
    be->host_free(device->ctx, host, 64);
    mt_device_release(device);
}

static void no_wait_for_copies_is_longer_than_the_limit(void **state)
{
    (void)state;
    static waiting_fn *const all[] = {times_of_copies, end_of_copy, many_copies};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        waiting = all[i];
        as_threads(2, one_call_less_then_a_wait);
        assert_int_equal(n_communicators(), 0);
    }
}

/* Shapes that differ: the library would hang or garble, the double finds it. */
static void unequal_shapes(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mtt_device();
    MT_AUTO mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(3 + group.rank));
    MT_AUTO mt_tensor *y = mt_all_gather(x, 0, &group);
    MTT_NEED(!y || mt_device_sync(device) != MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "of 2", "ncclAllGather", "dtype 7");
    mt_device_release(device);
}

static void unequal_calls_are_found(void **state)
{
    (void)state;
    as_threads(2, unequal_shapes);
    assert_int_equal(n_communicators(), 0);
}

/* The network fails: NCCL says so when it is asked. */
static void broken(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mtt_device();
    MT_AUTO mt_tensor *y = sum_of_ones(device, &group);
    MTT_NEED(wait_for(y) == MT_OK && mt_comm_agree(comm, "where it is", "here") == MT_OK);
    if (group.rank == 0) {
        void (*function)(int);
        *(void **)&function = of_double("cudasim_nccl_break");
        function(6);
    }
    MT_AUTO mt_tensor *late = sum_of_ones(device, &group);
    MTT_NEED(wait_for(late) != MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "of 2", "remote process exited");
    mt_device_release(device);
}

static void a_failure_of_the_network_is_reported(void **state)
{
    (void)state;
    as_threads(2, broken);
    assert_int_equal(n_communicators(), 0);
}

/* Rank 1 gives up; the others' wait ends. */
static void aborted(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mtt_device();
    mt_comm *part = mt_comm_split(comm, 0, group.rank);
    MTT_NEED(part);
    mt_group all = mt_comm_group(part);
    MT_AUTO mt_tensor *y = sum_of_ones(device, &all);
    MTT_NEED(wait_for(y) == MT_OK);
    if (group.rank == 1) {
        mt_comm_abort(part);
    } else {
        MT_AUTO mt_tensor *late = sum_of_ones(device, &all);
        MTT_NEED(wait_for(late) != MT_OK);
        mt_comm_free(part);
    }
    mt_device_release(device);
}

static void a_rank_that_aborts_does_not_hang_the_others(void **state)
{
    (void)state;
    as_threads(2, aborted);
    assert_int_equal(n_communicators(), 0);
}

static void bad_limit(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mtt_device();
    MT_AUTO mt_tensor *y = sum_of_ones(device, &group);
    MTT_NEED(!y);
    mtt_failed(MT_ERR_ARGUMENT, "MEMTAPE_NCCL_TIMEOUT", "\"soon\"", "above 0");
    mt_device_release(device);
}

static void a_limit_that_is_no_number_is_refused(void **state)
{
    (void)state;
    setenv("MEMTAPE_NCCL_TIMEOUT", "soon", 1);
    as_threads(2, bad_limit);
    setenv("MEMTAPE_NCCL_TIMEOUT", "1", 1);
}

/* A comm carries what is in either memory, and from one device after the other. */
static void both_memories(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    for (int i = 0; i < 4; i++) {
        mt_device *device = i % 2 ? mt_device_open("cpu") : mtt_device();
        MT_AUTO mt_tensor *y = sum_of_ones(device, &group);
        MTT_NEED(y && mt_item(y) == (double)group.ranks);
        MT_AUTO mt_tensor *own = mt_full(device, MT_F32, MT_SHAPE(1), (double)group.rank);
        MT_AUTO mt_tensor *sent = mt_send(own, &group), *got = mt_recv(own, &group);
        MTT_NEED(sent && got &&
                 mt_item(got) == (double)((group.rank + group.ranks - 1) % group.ranks));
        MTT_NEED(mt_comm_settle(comm) == MT_OK);
        mt_device_release(device);
    }
}

static void one_comm_carries_both_memories(void **state)
{
    (void)state;
    as_threads(2, both_memories);
    as_threads(3, both_memories);
    assert_int_equal(n_communicators(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_have_the_bits_and_bytes_of_the_cpus),
        cmocka_unit_test(a_rank_that_does_not_come_is_not_waited_for_longer_than_the_limit),
        cmocka_unit_test(no_wait_for_copies_is_longer_than_the_limit),
        cmocka_unit_test(unequal_calls_are_found),
        cmocka_unit_test(a_failure_of_the_network_is_reported),
        cmocka_unit_test(a_rank_that_aborts_does_not_hang_the_others),
        cmocka_unit_test(a_limit_that_is_no_number_is_refused),
        cmocka_unit_test(one_comm_carries_both_memories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
