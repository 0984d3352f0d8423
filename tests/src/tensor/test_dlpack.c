/* Tensors to DLPack and back: the same memory, alive as long as either side holds it. */
#include <stdint.h>
#include <string.h>
#include "base/base.h"
#include "memtape/dlpack.h"
#include "mtt_fixture.h"

/* DLManagedTensorVersioned of DLPack 1.0, as another library sees it. */
typedef struct managed {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(struct managed *self);
    uint64_t flags;
    void *data;
    int32_t device_type, device_id, rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} managed;

static int deleted;
static void count_deletion(managed *self)
{
    (void)self;
    deleted++;
}

static float theirs[6] = {1, 2, 3, 4, 5, 6};
static int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
static managed given(void)
{
    deleted = 0;
    return (managed){.major = 1,
                     .deleter = count_deletion,
                     .data = theirs,
                     .device_type = 1,
                     .rank = 2,
                     .code = 2,
                     .bits = 32,
                     .lanes = 1,
                     .shape = shape,
                     .strides = strides};
}

static mt_tensor *taken(managed *m) { return mt_from_dlpack(device, (mt_dlpack *)m); }

static void a_lent_tensor_lives_until_its_deleter_is_called(void **state)
{
    (void)state;
    size_t before = mtt_allocated(device);
    mt_tensor *x = mtt_made(mt_arange(device, MT_F32, 0, 1, 6));
    mtt_ok(mt_set(&x, mt_reshape(x, MT_SHAPE(2, 3))));
    mtt_ok(mt_set(&x, mt_transpose(x, 0, 1)));
    managed *m = (managed *)mt_to_dlpack(x);
    assert_non_null(m);
    assert_int_equal(m->rank, 2);
    assert_int_equal(m->shape[0], 3);
    assert_int_equal(m->strides[0], 1);
    assert_int_equal(m->strides[1], 3);
    mt_tensor *again = mtt_made(mt_from_dlpack(device, (mt_dlpack *)m));
    mt_release(x);
    assert_float_equal(mt_item_at(again, 2, (int64_t[]){1, 1}), 4, 0);
    ((float *)m->data)[4] = 9; /* the same memory */
    assert_float_equal(mt_item_at(again, 2, (int64_t[]){1, 1}), 9, 0);
    assert_true(mtt_allocated(device) > before);
    mt_release(again);
    assert_int_equal(mtt_allocated(device), before);
    x = mtt_made(mt_zeros(device, MT_BF16, 0, NULL));
    mt_dlpack_free(mt_to_dlpack(x));
    mt_dlpack_free(NULL);
    mt_release(x);
    assert_int_equal(mtt_allocated(device), before);
}

static void taken_memory_is_let_go_with_its_last_view(void **state)
{
    (void)state;
    size_t before = mtt_allocated(device);
    managed m = given();
    mt_tensor *x = mtt_made(taken(&m)), *row = mtt_made(mt_slice(x, 0, 1, 1));
    assert_int_equal(mtt_allocated(device), before);
    mt_storage_info info = mt_storage_of(x);
    assert_int_equal(info.bytes, sizeof theirs);
    assert_int_equal(info.allocated, 0);
    assert_int_equal(mt_layout_of(row).offset, sizeof(float));
    mt_release(x);
    assert_int_equal(deleted, 0);
    assert_float_equal(mt_item_at(row, 2, (int64_t[]){0, 2}), 6, 0);
    mtt_ok(mt_fill(row, 8));
    assert_true(theirs[1] == 8 && theirs[3] == 8 && theirs[5] == 8 && theirs[0] == 1);
    mt_release(row);
    assert_int_equal(deleted, 1);
}

static void the_tape_keeps_taken_memory_and_counts_all_of_it(void **state)
{
    (void)state;
    managed m = given();
    mt_tensor *x = mtt_made(taken(&m));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mt_tensor *y = mtt_made(mt_gelu(x));
    mtt_ok(mt_set(&y, mt_sum_all(y)));
    mtt_ok(mt_ledger_end(ledger));
    assert_int_equal(mt_ledger_bytes(ledger), sizeof theirs);
    assert_null(mt_to_dlpack(x));
    mtt_failed(mt_last_status(), "requires grad");
    mtt_ok(mt_backward(y));
    assert_int_equal(mt_numel(mt_grad(x)), 6);
    mt_ledger_free(ledger);
    mt_release(y);
    assert_int_equal(deleted, 0);
    mt_release(x);
    assert_int_equal(deleted, 1);
}

static void refused(managed m, const char *said)
{
    assert_null(taken(&m));
    mtt_failed(mt_last_status(), said);
    assert_int_equal(deleted, 0);
}

static void what_memtape_cannot_hold_is_refused_and_stays_the_callers(void **state)
{
    (void)state;
    managed m = given();
    m.major = 2, refused(m, "version 2.0"), m = given();
    m.device_type = 2, refused(m, "device type 2"), m = given();
    m.flags = 1, refused(m, "read-only"), m = given();
    m.code = 5, m.bits = 64, refused(m, "code 5"), m = given();
    m.lanes = 4, refused(m, "4 lanes"), m = given();
    m.rank = 9, refused(m, "rank 9"), m = given();
    m.byte_offset = 2, refused(m, "multiple of 4"), m = given();
    m.strides = (int64_t[]){-1, 2}, refused(m, "negative"), m = given();
    mt_device *meta = mt_device_open("meta");
    assert_null(mt_from_dlpack(meta, (mt_dlpack *)&m));
    mtt_failed(mt_last_status(), "meta");
    mt_tensor *there = mtt_made(mt_zeros(meta, MT_F32, 0, NULL));
    assert_null(mt_to_dlpack(there));
    mtt_failed(mt_last_status(), "meta");
    mt_release(there);
    mt_device_release(meta);
    there = mtt_made(mt_zeros(device, MT_F8_E4M3, 0, NULL));
    assert_null(mt_to_dlpack(there));
    mtt_failed(mt_last_status(), "f8_e4m3");
    mt_release(there);
}

/* DLPack's codes: 0 int, 1 unsigned, 2 float, 4 bfloat, 6 bool. */
static void every_dtype_has_the_code_and_bits_of_dlpack(void **state)
{
    (void)state;
    static const int rows[][3] = {
        {MT_I8, 0, 8},   {MT_I16, 0, 16}, {MT_I32, 0, 32}, {MT_I64, 0, 64},  {MT_U8, 1, 8},
        {MT_F16, 2, 16}, {MT_F32, 2, 32}, {MT_F64, 2, 64}, {MT_BF16, 4, 16}, {MT_BOOL, 6, 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mt_tensor *x = mtt_made(mt_zeros(device, (mt_dtype)rows[i][0], MT_SHAPE(2)));
        managed *m = (managed *)mt_to_dlpack(x);
        assert_non_null(m);
        assert_int_equal(m->code, rows[i][1]);
        assert_int_equal(m->bits, rows[i][2]);
        assert_int_equal(m->lanes, 1);
        mt_tensor *again = mtt_made(mt_from_dlpack(device, (mt_dlpack *)m));
        assert_int_equal(mt_dtype_of(again), rows[i][0]);
        mt_release(again);
        mt_release(x);
    }
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    size_t before = mtt_allocated(device);
    mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(3)));
    for (uint64_t n = 1;; n++) {
        managed m = given();
        mti_fail_nth_alloc(n);
        mt_dlpack *out = mt_to_dlpack(x);
        mt_tensor *in = taken(&m);
        bool reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        assert_int_equal(deleted, 0);
        if (!out || !in) mtt_failed(MT_ERR_MEMORY, "");
        mt_dlpack_free(out);
        mt_release(in);
        if (!reached) break;
    }
    mt_release(x);
    assert_int_equal(mtt_allocated(device), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_lent_tensor_lives_until_its_deleter_is_called),
        mtt_test(taken_memory_is_let_go_with_its_last_view),
        mtt_test(the_tape_keeps_taken_memory_and_counts_all_of_it),
        mtt_test(what_memtape_cannot_hold_is_refused_and_stays_the_callers),
        mtt_test(every_dtype_has_the_code_and_bits_of_dlpack),
        mtt_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
