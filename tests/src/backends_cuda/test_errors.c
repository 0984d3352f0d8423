/* Errors of the runtime: each is reported by the call that met it, and by no later one; a device
 * that a kernel has broken is not called short of memory. */
#include "double.h"
#include "twins.h"
#include "memtape/status.h"

enum { MOST_CALLS = 400 };

typedef bool (*fail_nth_call)(uint64_t n);
static fail_nth_call nth_call(void) { return (fail_nth_call)mtt_double("cudasim_fail_nth_call"); }

typedef struct place {
    void *device, *host;
    char pageable[1024];
} place;

/* Calls of a backend, each with what it asks of the runtime. */
static bool uploads(const mtt_pair *p, place *at)
{
    return p->dev->upload(p->dev_ctx, at->device, at->pageable, sizeof at->pageable);
}
static bool uploads_from_page_locked(const mtt_pair *p, place *at)
{
    return p->dev->upload(p->dev_ctx, at->device, at->host, sizeof at->pageable);
}
static bool downloads(const mtt_pair *p, place *at)
{
    return p->dev->download(p->dev_ctx, at->pageable, at->device, sizeof at->pageable);
}
static bool allocates(const mtt_pair *p, place *at)
{
    (void)at;
    void *more = p->dev->alloc(p->dev_ctx, 64);
    p->dev->free(p->dev_ctx, more, 64);
    return more != NULL;
}
static bool allocates_for_the_host(const mtt_pair *p, place *at)
{
    (void)at;
    void *more = p->dev->host_alloc(p->dev_ctx, 64);
    p->dev->host_free(p->dev_ctx, more, 64);
    return more != NULL;
}
static bool copies_beside(const mtt_pair *p, place *at)
{
    uint64_t ticket;
    return p->dev->copy_begin(p->dev_ctx, MTI_TO_DEVICE, at->device, at->host, 1024, &ticket) &&
           p->dev->copy_wait(p->dev_ctx, ticket) && p->dev->copy_finish(p->dev_ctx, ticket);
}
static bool asks_for_room(const mtt_pair *p, place *at)
{
    (void)at;
    return p->dev->room(p->dev_ctx) > 0;
}
static bool opens_and_closes(const mtt_pair *p, place *at)
{
    (void)at;
    mti_ctx *ctx = p->dev->open();
    if (ctx) p->dev->close(ctx);
    return ctx != NULL;
}
/* With each call of the runtime failing in turn. */
static void no_error_is_left_to_the_next_launch(void **state)
{
    static const struct {
        const char *name;
        bool (*run)(const mtt_pair *p, place *at);
    } calls[] = {{"upload", uploads},
                 {"upload from page-locked memory", uploads_from_page_locked},
                 {"download", downloads},
                 {"alloc", allocates},
                 {"host_alloc", allocates_for_the_host},
                 {"copies beside compute", copies_beside},
                 {"room", asks_for_room},
                 {"open", opens_and_closes}};
    const mtt_pair *p = *state;
    if (!nth_call()) skip();
    place at = {p->dev->alloc(p->dev_ctx, 1024), p->dev->host_alloc(p->dev_ctx, 1024), {0}};
    mtt_ok(at.device && at.host, "alloc");
    mti_view v = {.dtype = MT_F32, .rank = 1, .shape = {4}, .stride = {1}, .data = at.device};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        uint64_t n = 1;
        for (bool met = true; met; n++) {
            assert_in_range(n, 1, MOST_CALLS);
            nth_call()(n);
            calls[c].run(p, &at);
            met = nth_call()(0);
            mt_clear_error();
            if (!p->dev->fill(p->dev_ctx, &v, 0))
                fail_msg("%s, call %d: the next launch reports \"%s\"", calls[c].name, (int)n,
                         mt_last_error());
        }
        assert_in_range(n, 3, MOST_CALLS); /* at least one was made to fail */
    }
    p->dev->free(p->dev_ctx, at.device, 1024);
    p->dev->host_free(p->dev_ctx, at.host, 1024);
}

/* A device that refuses everything has not run out of memory. */
static void a_refusal_for_another_reason_is_not_a_lack_of_memory(void **state)
{
    const mtt_pair *p = *state;
    if (!nth_call()) skip();
    nth_call()(1);
    assert_null(p->dev->alloc(p->dev_ctx, 64));
    assert_int_equal(mt_last_status(), MT_ERR_UNSUPPORTED);
    assert_non_null(strstr(mt_last_error(), "cudaErrorInvalidValue"));
    mt_clear_error();
    nth_call()(1);
    assert_null(p->dev->host_alloc(p->dev_ctx, 64));
    assert_int_equal(mt_last_status(), MT_ERR_UNSUPPORTED);
    mt_clear_error();
    assert_null(p->dev->alloc(p->dev_ctx, (size_t)1 << 60)); /* nothing is said of a lack */
    assert_int_equal(mt_last_status(), MT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_error_is_left_to_the_next_launch),
        cmocka_unit_test(a_refusal_for_another_reason_is_not_a_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
