/* Streams of a device: what is freed on one serves that one alone, and values do not care. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include "mtt_engine.h"

#define MIB ((size_t)1 << 20)

static mt_tensor *filled(mt_device *device, size_t n_bytes, double value)
{
    mt_tensor *t = mt_full(device, MT_F32, MT_SHAPE((int64_t)(n_bytes / sizeof(float))), value);
    assert_non_null(t);
    return t;
}

static mt_tensor *filled_on(mt_device *device, const char *stream, size_t n_bytes, double value)
{
    mt_stream_scope scope;
    assert_int_equal(mt_mem_stream_begin(&scope, device, stream), MT_OK);
    mt_tensor *t = filled(device, n_bytes, value);
    mt_mem_stream_end(&scope);
    return t;
}

static void assert_stream(const mt_device *device, int i, const char *name, size_t reserved,
                          size_t allocated)
{
    mt_stream_stats streams[MT_MAX_STREAMS];
    assert_true(mt_mem_get_streams(device, streams) > i);
    assert_string_equal(streams[i].name, name);
    assert_int_equal(streams[i].reserved, reserved);
    assert_int_equal(streams[i].allocated, allocated);
}

static size_t reserved(const mt_device *device)
{
    mt_mem_stats s;
    mt_mem_get_stats(device, &s);
    assert_int_equal(s.active.current, s.allocated.current);
    assert_int_equal(s.active.peak, s.allocated.peak);
    return s.reserved.current;
}

static void a_freed_block_serves_its_own_stream_alone(void **state)
{
    (void)state;
    mt_device *device = mtt_device();
    mt_tensor *a = filled_on(device, "copy_in", 24 * MIB, 1), *b = filled(device, 16 * MIB, 2);
    assert_int_equal(reserved(device), 40 * MIB);
    mt_release(a);
    mt_tensor *c = filled(device, 24 * MIB, 3);
    assert_int_equal(reserved(device), 64 * MIB);
    assert_stream(device, 0, "default", 40 * MIB, 40 * MIB);
    assert_stream(device, 1, "copy_in", 24 * MIB, 0);
    mt_tensor *d = filled_on(device, "copy_in", 24 * MIB, 4);
    assert_int_equal(reserved(device), 64 * MIB);
    mt_tensor *sum = mt_add(c, d);
    assert_true(mt_item_at(sum, 1, (int64_t[]){99}) == 7);
    assert_true(mt_item_at(b, 1, (int64_t[]){5}) == 2);
    mt_release(b), mt_release(c), mt_release(d), mt_release(sum);
    mt_mem_empty_cache(device);
    assert_int_equal(reserved(device), 0);
    assert_stream(device, 1, "copy_in", 0, 0);
    mt_device_release(device);
}

static void expandable_segments_are_a_streams_own(void **state)
{
    (void)state;
    mt_device *device = mtt_device();
    assert_int_equal(mt_mem_set_expandable(device, &(mt_expandable){0}), MT_OK);
    mt_tensor *a = filled(device, 5 * MIB, 1), *b = filled_on(device, "reduce", 5 * MIB, 2);
    mt_tensor *c = filled_on(device, "reduce", 4096, 3);
    assert_stream(device, 0, "default", 20 * MIB, 5 * MIB);
    assert_stream(device, 1, "reduce", 22 * MIB, 5 * MIB + 4096);
    mt_release(b);
    b = filled_on(device, "reduce", 25 * MIB, 4);
    assert_stream(device, 1, "reduce", 42 * MIB, 25 * MIB + 4096);
    assert_true(mt_item_at(a, 1, (int64_t[]){7}) == 1);
    assert_true(mt_item_at(b, 1, (int64_t[]){7}) == 4);
    mt_release(a), mt_release(b), mt_release(c);
    mt_mem_empty_cache(device);
    assert_int_equal(reserved(device), 0);
    mt_device_release(device);
}

static void *request_of_another_thread(void *device)
{
    mt_release(filled(device, 3 * MIB, 1));
    return NULL;
}

static void scopes_nest_and_are_of_one_device_and_one_thread(void **state)
{
    (void)state;
    mt_device *device = mtt_device(), *other = mt_device_open("meta");
    mt_stream_scope outer, inner, of_other;
    pthread_t thread;
    assert_int_equal(mt_mem_stream_begin(&outer, device, "a"), MT_OK);
    assert_int_equal(mt_mem_stream_begin(&of_other, other, "b"), MT_OK);
    mt_tensor *in_outer = filled(device, 2 * MIB, 1);
    mt_tensor *on_other = mt_empty(other, MT_F32, MT_SHAPE(1024));
    assert_int_equal(mt_mem_stream_begin(&inner, device, "default"), MT_OK);
    mt_tensor *in_inner = filled(device, 4096, 2);
    mt_mem_stream_end(&inner);
    assert_int_equal(pthread_create(&thread, NULL, request_of_another_thread, device), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    mt_mem_stream_end(&of_other);
    mt_mem_stream_end(&outer);
    assert_stream(device, 0, "default", 22 * MIB, 4096);
    assert_stream(device, 1, "a", 20 * MIB, 2 * MIB);
    assert_stream(other, 0, "default", 0, 0);
    assert_stream(other, 1, "b", 2 * MIB, 4096);
    mt_release(in_outer), mt_release(in_inner), mt_release(on_other);
    mt_device_release(device), mt_device_release(other);
}

typedef struct seen {
    int n_blocks, n_segments, n_other;
} seen;

static void look(void *user, const mt_mem_event *e)
{
    seen *s = user;
    if (e->stream != 1 || strcmp(e->stream_name, "side"))
        s->n_other++;
    else if (e->kind == MT_MEM_ALLOC || e->kind == MT_MEM_FREE)
        s->n_blocks++;
    else if (e->kind == MT_MEM_SEGMENT_ALLOC || e->kind == MT_MEM_SEGMENT_FREE)
        s->n_segments++;
}

static void events_tell_the_stream_of_their_block(void **state)
{
    (void)state;
    seen s = {0};
    mt_device *device = mtt_device();
    int id = mt_mem_add_observer(device, look, &s);
    mt_tensor *t = filled_on(device, "side", 2 * MIB, 1);
    mt_release(t); /* outside of the scope */
    mt_mem_empty_cache(device);
    assert_int_equal(s.n_blocks, 2);
    assert_int_equal(s.n_segments, 2);
    assert_int_equal(s.n_other, 0);
    mt_mem_remove_observer(device, id);
    mt_device_release(device);
}

static void assert_refused(mt_status status, const char *message)
{
    assert_int_equal(status, MT_ERR_ARGUMENT);
    assert_string_equal(mt_last_error(), message);
    mt_clear_error();
}

static void what_is_not_a_stream_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    mt_stream_scope scope;
    mt_device *device = mtt_device();
    assert_refused(mt_mem_stream_begin(NULL, device, "a"), "mem_stream_begin: the scope is NULL");
    assert_refused(mt_mem_stream_begin(&scope, device, NULL), "mem_stream_begin: the name is NULL");
    assert_refused(mt_mem_stream_begin(&scope, device, ""), "mem_stream_begin: the name is empty");
    mt_mem_stream_end(&scope);
    for (int i = 1; i < MT_MAX_STREAMS; i++) {
        char name[8];
        snprintf(name, sizeof name, "s%d", i);
        assert_int_equal(mt_mem_stream_begin(&scope, device, name), MT_OK);
        mt_mem_stream_end(&scope);
    }
    assert_refused(mt_mem_stream_begin(&scope, device, "more"),
                   "mem_stream_begin: \"more\" would be stream 17 of this device; need at most 16");
    mt_release(filled(device, 4096, 1));
    mt_mem_stream_end(&scope);
    assert_stream(device, 0, "default", 2 * MIB, 0);
    assert_stream(device, 15, "s15", 0, 0);
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_freed_block_serves_its_own_stream_alone),
        cmocka_unit_test(expandable_segments_are_a_streams_own),
        cmocka_unit_test(scopes_nest_and_are_of_one_device_and_one_thread),
        cmocka_unit_test(events_tell_the_stream_of_their_block),
        cmocka_unit_test(what_is_not_a_stream_is_refused_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
