/* Tensors are read back as they were written; a file that does not fit is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "planted.h"

static mt_device *device;

static int open_device(void **state)
{
    (void)state;
    device = mt_device_open("cpu");
    return device == NULL;
}

static int close_device(void **state)
{
    mt_device_release(device);
    return planted_end(state);
}

static mt_tensor *counting(mt_dtype dtype, int rank, const int64_t *shape)
{
    unsigned char bytes[512];
    size_t n = mt_dtype_size(dtype);
    for (int d = 0; d < rank; d++) n *= (size_t)shape[d];
    assert_true(n <= sizeof bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(dtype == MT_BOOL ? i % 2 : 3 * i + (unsigned)dtype);
    return mtt_made(mt_from_data(device, dtype, rank, shape, bytes, n));
}

static void every_dtype_and_shape_comes_back_bit_for_bit(void **state)
{
    (void)state;
    const char *path = planted_path("all.safetensors");
    mt_named_tensor list[MT_DTYPE_COUNT + 2];
    static const char *const names[MT_DTYPE_COUNT] = {
        "a", "b.weight", "c", "d", "e", "f", "\xc3\xa9t\xc3\xa9", "h", "i", "j", "k", "l", "m"};
    for (int d = 0; d < MT_DTYPE_COUNT; d++)
        list[d] = (mt_named_tensor){names[d], counting((mt_dtype)d, MT_SHAPE(3, 1, 5))};
    list[MT_DTYPE_COUNT] = (mt_named_tensor){"scalar", counting(MT_F32, 0, NULL)};
    list[MT_DTYPE_COUNT + 1] = (mt_named_tensor){"empty", counting(MT_F64, MT_SHAPE(4, 0, 2))};
    size_t n = MT_DTYPE_COUNT + 2;
    mt_key_value metadata[] = {{"format", "pt"}, {"text", "line\n\"quoted\" \xe2\x82\xac"}};
    mtt_ok(mt_safetensors_save(path, n, list, 2, metadata));

    mt_safetensors *f = mt_safetensors_open(path);
    assert_non_null(f);
    assert_int_equal(mt_safetensors_count(f), n);
    assert_string_equal(mt_safetensors_metadata(f, "format"), "pt");
    assert_string_equal(mt_safetensors_metadata(f, "text"), metadata[1].value);
    assert_null(mt_safetensors_metadata(f, "nothing"));
    for (size_t i = 0; i < n; i++) {
        mt_safetensors_entry e;
        assert_true(mt_safetensors_find(f, list[i].name, &e));
        assert_int_equal(e.dtype, mt_dtype_of(list[i].tensor));
        MT_AUTO mt_tensor *read = mtt_made(mt_safetensors_read(f, list[i].name, device));
        assert_true(mtt_same_bits(read, list[i].tensor));
        MT_AUTO mt_tensor *again = mt_zeros(device, e.dtype, e.rank, e.shape);
        mtt_ok(mt_safetensors_load(f, list[i].name, again));
        assert_true(mtt_same_bits(again, list[i].tensor));
    }
    assert_false(mt_safetensors_find(f, "nothing", NULL));
    assert_null(mt_safetensors_read(f, "nothing", device));
    mtt_failed(MT_ERR_ARGUMENT, "all.safetensors", "nothing");
    mt_safetensors_free(f);
    for (size_t i = 0; i < n; i++) mt_release(list[i].tensor);
    unlink(path);
}

static void data_is_aligned_to_its_elements(void **state)
{
    (void)state;
    const char *path = planted_path("aligned.safetensors");
    mt_named_tensor list[] = {{"odd", counting(MT_U8, MT_SHAPE(3))},
                              {"half", counting(MT_BF16, MT_SHAPE(5))},
                              {"wide", counting(MT_F64, MT_SHAPE(3))}};
    mtt_ok(mt_safetensors_save(path, 3, list, 0, NULL));
    size_t n;
    unsigned char *bytes = planted_read(path, &n);
    assert_int_equal((bytes[0] | bytes[1] << 8) % 8, 0);
    static const char *const order[] = {"wide", "half", "odd"};
    mt_safetensors *f = mt_safetensors_open(path);
    for (size_t i = 0; i < 3; i++) {
        mt_safetensors_entry e;
        mtt_ok(mt_safetensors_get(f, i, &e));
        assert_string_equal(e.name, order[i]);
    }
    mt_safetensors_free(f);
    for (int i = 0; i < 3; i++) mt_release(list[i].tensor);
    free(bytes);
    unlink(path);
}

static void a_strided_view_is_written_in_row_major_order(void **state)
{
    (void)state;
    const char *path = planted_path("view.safetensors");
    MT_AUTO mt_tensor *base = counting(MT_I32, MT_SHAPE(4, 6));
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(base, 0, 1));
    mtt_ok(mt_safetensors_save(path, 1, &(mt_named_tensor){"t", turned}, 0, NULL));
    mt_safetensors *f = mt_safetensors_open(path);
    MT_AUTO mt_tensor *read = mtt_made(mt_safetensors_read(f, "t", device));
    assert_true(mtt_same_bits(read, turned));
    assert_true(mt_is_contiguous(read));
    mt_safetensors_free(f);
    unlink(path);
}

static void tensors_may_stand_in_any_order_in_the_header(void **state)
{
    (void)state;
    const char *path = planted_path("order.safetensors");
    const char *header = "{\"late\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},"
                         "\"none\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[3,3]},"
                         "\"early\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}   ";
    planted_file(path, strlen(header), header, 5);
    mt_safetensors *f = mt_safetensors_open(path);
    assert_non_null(f);
    MT_AUTO mt_tensor *late = mtt_made(mt_safetensors_read(f, "late", device));
    unsigned char bytes[2];
    mtt_ok(mt_to_host(late, bytes, 2));
    assert_int_equal(bytes[0], 3);
    assert_int_equal(bytes[1], 4);
    mt_safetensors_free(f);
    unlink(path);
}

static void a_failed_save_leaves_the_old_file(void **state)
{
    (void)state;
    const char *path = planted_path("old.safetensors");
    MT_AUTO mt_tensor *t = counting(MT_F32, MT_SHAPE(2));
    mtt_ok(mt_safetensors_save(path, 1, &(mt_named_tensor){"t", t}, 0, NULL));
    size_t n, n_after;
    unsigned char *before = planted_read(path, &n);

    mt_named_tensor twice[] = {{"t", t}, {"t", t}};
    assert_int_equal(mt_safetensors_save(path, 2, twice, 0, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "old.safetensors", "\"t\" is given twice");
    mt_named_tensor reserved = {"__metadata__", t};
    mt_key_value pair = {"a", "b"}, broken = {"a", "\xff"};
    mt_safetensors_save(path, 1, &reserved, 1, &pair);
    mtt_failed(MT_ERR_ARGUMENT, "__metadata__");
    mt_safetensors_save(path, 1, &(mt_named_tensor){"\xff", t}, 0, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "UTF-8");
    mt_safetensors_save(path, 1, twice, 1, &broken);
    mtt_failed(MT_ERR_ARGUMENT, "UTF-8");
    mt_safetensors_save(path, 1, &(mt_named_tensor){"t", NULL}, 0, NULL);
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
    mt_safetensors_save(planted_path("no/such/folder"), 1, twice, 0, NULL);
    mtt_failed(MT_ERR_IO, "no/such/folder");

    unsigned char *after = planted_read(planted_path("old.safetensors"), &n_after);
    assert_int_equal(n_after, n);
    assert_memory_equal(after, before, n);
    free(before);
    free(after);
    unlink(planted_path("old.safetensors"));
}

static mt_module *small_module(double value)
{
    mt_module *m = mt_module_new("small", mtt_pass, NULL, NULL);
    mt_module_add_param(m, "a", mt_full(device, MT_F32, MT_SHAPE(2, 3), value));
    mt_module_add_param(m, "b", mt_full(device, MT_F32, MT_SHAPE(4), value));
    return m;
}

static void assert_all(mt_module *m, double value)
{
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(m, &list, &n));
    for (size_t i = 0; i < n; i++) {
        double *at = mtt_doubles(list[i].tensor);
        for (int64_t j = 0; j < mt_numel(list[i].tensor); j++) assert_true(at[j] == value);
        free(at);
    }
}

static void a_module_loads_what_it_saved_and_refuses_what_does_not_fit(void **state)
{
    (void)state;
    const char *path = planted_path("module.safetensors");
    mt_module *one = small_module(1), *two = small_module(2);
    mtt_ok(mt_safetensors_save_module(path, one, 0, NULL));
    mt_safetensors *f = mt_safetensors_open(path);
    mtt_ok(mt_safetensors_load_module(f, two));
    assert_all(two, 1);
    mt_safetensors_free(f);
    mt_module_free(two);

    /* a missing or superfluous tensor, another shape or dtype: nothing changes */
    two = small_module(2);
    mt_module_add_param(two, "c", mt_full(device, MT_F32, MT_SHAPE(1), 2));
    f = mt_safetensors_open(path);
    mt_safetensors_load_module(f, two);
    mtt_failed(MT_ERR_ARGUMENT, "module.safetensors", "missing \"c\"");
    assert_all(two, 2);
    mt_safetensors_free(f);
    mtt_ok(mt_safetensors_save_module(path, two, 0, NULL));
    f = mt_safetensors_open(path);
    mt_safetensors_load_module(f, one);
    mtt_failed(MT_ERR_ARGUMENT, "superfluous \"c\"");
    mt_safetensors_free(f);
    mt_module_free(two);

    const struct {
        mt_dtype dtype;
        int64_t extent;
        const char *has;
    } others[] = {{MT_F32, 5, "f32 [5]"}, {MT_F64, 4, "f64 [4]"}};
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *a = mt_full(device, MT_F32, MT_SHAPE(2, 3), 3);
        MT_AUTO mt_tensor *b = mt_full(device, others[i].dtype, MT_SHAPE(others[i].extent), 3);
        mt_named_tensor list[] = {{"a", a}, {"b", b}};
        mtt_ok(mt_safetensors_save(path, 2, list, 0, NULL));
        f = mt_safetensors_open(path);
        mt_safetensors_load_module(f, one);
        mtt_failed(MT_ERR_ARGUMENT, "\"b\" is", others[i].has, "need f32 [4]");
        assert_all(one, 1);
        mt_safetensors_free(f);
    }
    mt_module_free(one);
    unlink(path);
}

/* The model is too large for any machine; the file has 40 bytes of data. */
static void a_file_is_checked_against_a_model_on_meta(void **state)
{
    (void)state;
    const char *path = planted_path("meta.safetensors");
    mt_module *one = small_module(1);
    mtt_ok(mt_safetensors_save_module(path, one, 0, NULL));
    mt_safetensors *f = mt_safetensors_open(path);
    mtt_ok(mt_safetensors_check_module(f, one));
    mt_device *meta = mt_device_open("meta");
    for (int64_t rows = 2; rows < (int64_t)1 << 40; rows *= 1024) {
        mt_module *m = mt_module_new("small", mtt_pass, NULL, NULL);
        mt_module_add_param(m, "a", mt_zeros(meta, MT_F32, MT_SHAPE(rows, 3)));
        mt_module_add_param(m, "b", mt_zeros(meta, MT_F32, MT_SHAPE(4)));
        if (rows == 2) {
            mtt_ok(mt_safetensors_check_module(f, m));
        } else {
            assert_int_equal(mt_safetensors_check_module(f, m), MT_ERR_ARGUMENT);
            mtt_failed(MT_ERR_ARGUMENT, "\"a\" is f32 [2,3]", "need f32 [");
        }
        mt_module_free(m);
    }
    assert_int_equal(mt_safetensors_check_module(NULL, one), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
    mt_device_release(meta);
    mt_safetensors_free(f);
    mt_module_free(one);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_and_shape_comes_back_bit_for_bit),
        cmocka_unit_test(data_is_aligned_to_its_elements),
        cmocka_unit_test(a_strided_view_is_written_in_row_major_order),
        cmocka_unit_test(tensors_may_stand_in_any_order_in_the_header),
        cmocka_unit_test(a_failed_save_leaves_the_old_file),
        cmocka_unit_test(a_module_loads_what_it_saved_and_refuses_what_does_not_fit),
        cmocka_unit_test(a_file_is_checked_against_a_model_on_meta),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
