/* Damaged and hostile safetensors files: each is refused, and the message names file and fault. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/base.h"
#include "planted.h"

#define X24 "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}"

static const struct {
    const char *header;
    size_t n_data;
    const char *fault; /* part of the message */
} faults[] = {
    {"", 0, "does not start"},
    {" {}", 0, "does not start"},
    {"[1]", 0, "does not start"},
    {"{", 0, "not JSON"},
    {"{} x", 0, "not JSON"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "not JSON: duplicate"},
    {"{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "not JSON: duplicate"},
    {"{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not JSON"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not JSON"},
    {"{\"x\":4}", 0, "\"x\": is not an object"},
    {"{\"x\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"x\": has no dtype"},
    {"{\"x\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"x\": has no dtype"},
    {"{\"x\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "\"F6_E2M3\""},
    {"{\"x\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "need one of F32"},
    {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"x\": has no shape"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "\"x\": has no shape"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,4]}}", 4,
     "9 dimensions"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "not a whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "not a whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1e0],\"data_offsets\":[0,4]}}", 4, "not a whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4,
     "not a whole number"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
     "not JSON"},
    /* 2^62 + 1 floats: their bytes overflow 64 bits to 4 */
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4,
     "overflows"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     "overflows"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     "overflows"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets are not"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets are not"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 8,
     "data_offsets are not"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "data_offsets are not"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4,
     "data_offsets are not"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0.0,4]}}", 4,
     "data_offsets are not"},
    {X24, 23, "truncated"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,9223372036854775807]}}", 24,
     "truncated"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]}}", 20,
     "make 24 bytes, data_offsets 20"},
    {X24, 25, "1 bytes after the last tensor"},
    {"{}", 1, "1 bytes after the last tensor"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5,
     "1 bytes before tensor \"x\""},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
     7, "\"x\" and \"y\" overlap"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"y\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     4, "\"x\" and \"y\" overlap"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[5,7]}}",
     7, "1 bytes before tensor \"y\""},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "\"a\" is not a string"},
    /* control characters in a name must not reach the terminal */
    {"{\"\\u001b[2J\":{\"dtype\":\"F32\"}}", 0, "\"?[2J\""},
};

static void every_planted_fault_is_refused_by_name(void **state)
{
    (void)state;
    const char *path = planted_path("bad.safetensors");
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        planted_file(path, strlen(faults[i].header), faults[i].header, faults[i].n_data);
        mt_safetensors *f = mt_safetensors_open(path);
        if (f) fail_msg("fault %zu was accepted: %s", i, faults[i].header);
        mtt_failed(MT_ERR_FORMAT, "bad.safetensors", faults[i].fault);
    }
    unlink(path);
}

static void a_false_length_is_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    const char *path = planted_path("lying.safetensors");
    const uint64_t lengths[] = {
        strlen(X24) + 25,  50 * 1000 * 1000, 100 * 1000 * 1000, 100 * 1000 * 1000 + 1,
        (uint64_t)1 << 40, UINT64_MAX - 7,   UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        planted_file(path, lengths[i], X24, 24);
        mti_fail_nth_alloc(0);
        assert_null(mt_safetensors_open(path));
        assert_int_equal(mti_alloc_count(), 0);
        mtt_failed(MT_ERR_FORMAT, "lying.safetensors", "header of");
    }
    /* Too short a length: the JSON ends early, or data is left over. */
    planted_file(path, strlen(X24) - 1, X24, 24);
    assert_null(mt_safetensors_open(path));
    mtt_failed(MT_ERR_FORMAT, "lying.safetensors");
    unlink(path);
}

static void every_prefix_of_a_good_file_is_refused(void **state)
{
    (void)state;
    const char *path = planted_path("whole.safetensors");
    planted_file(path, strlen(X24), X24, 24);
    size_t n;
    unsigned char *bytes = planted_read(path, &n);
    mt_safetensors *f = mt_safetensors_open(path);
    assert_non_null(f);
    mt_safetensors_free(f);
    for (size_t cut = 0; cut < n; cut++) {
        planted_bytes(path, bytes, cut);
        if (mt_safetensors_open(path)) fail_msg("%zu of %zu bytes were accepted", cut, n);
        mtt_failed(MT_ERR_FORMAT, "whole.safetensors");
    }
    free(bytes);
    unlink(path);
}

static void unreadable_files_are_io_errors(void **state)
{
    (void)state;
    const char *path = planted_path("none.safetensors");
    assert_null(mt_safetensors_open(path));
    mtt_failed(MT_ERR_IO, "none.safetensors", "No such file");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_null(mt_safetensors_open(path));
    mtt_failed(MT_ERR_IO, "none.safetensors", "not a regular file");
    rmdir(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* it has no writer: opening it must not wait */
    assert_null(mt_safetensors_open(path));
    mtt_failed(MT_ERR_IO, "none.safetensors", "not a regular file");
    unlink(path);
    assert_null(mt_safetensors_open(NULL));
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
}

static void a_file_that_shrinks_after_it_was_opened_is_an_io_error(void **state)
{
    (void)state;
    const char *path = planted_path("shrinks.safetensors");
    planted_file(path, strlen(X24), X24, 24);
    mt_safetensors *f = mt_safetensors_open(path);
    assert_non_null(f);
    assert_int_equal(truncate(path, (off_t)(8 + strlen(X24) + 10)), 0);
    mt_device *device = mt_device_open("cpu");
    assert_null(mt_safetensors_read(f, "x", device));
    mtt_failed(MT_ERR_IO, "shrinks.safetensors", "shortened");
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(device);
    mt_safetensors_free(f);
    unlink(path);
}

static void a_bool_that_is_neither_0_nor_1_is_refused(void **state)
{
    (void)state;
    const char *path = planted_path("bool.safetensors");
    const char *header = "{\"x\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}";
    planted_file(path, strlen(header), header, 3); /* 0, 1, 2 */
    mt_safetensors *f = mt_safetensors_open(path);
    assert_non_null(f);
    mt_device *device = mt_device_open("cpu");
    assert_null(mt_safetensors_read(f, "x", device));
    mtt_failed(MT_ERR_FORMAT, "\"x\"", "BOOL");
    mt_device_release(device);
    mt_safetensors_free(f);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_planted_fault_is_refused_by_name),
        cmocka_unit_test(a_false_length_is_refused_before_anything_is_allocated),
        cmocka_unit_test(every_prefix_of_a_good_file_is_refused),
        cmocka_unit_test(unreadable_files_are_io_errors),
        cmocka_unit_test(a_file_that_shrinks_after_it_was_opened_is_an_io_error),
        cmocka_unit_test(a_bool_that_is_neither_0_nor_1_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, planted_end);
}
