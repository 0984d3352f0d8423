#include "twins.h"
#include "memtape/status.h"

const mtt_shape mtt_shapes[] = {
    {0, {0}},          {1, {1}},          {1, {7}},
    {1, {16}},         {1, {0}},          {1, {1029}},
    {1, {5000}},       {2, {3, 5}},       {2, {4, 64}},
    {2, {67, 130}},    {2, {128, 72}},    {3, {3, 0, 4}},
    {3, {2, 3, 16}},   {3, {1, 37, 8}},   {4, {3, 5, 2, 9}},
    {4, {2, 3, 4, 8}}, {4, {1, 1, 1, 1}}, {4, {2, 1, 65, 33}},
};
const int mtt_n_shapes = sizeof mtt_shapes / sizeof *mtt_shapes;

void mtt_ok(bool ok, const char *what)
{
    if (!ok) fail_msg("%s: %s", what, mt_last_error());
}

int mtt_open(void **state)
{
    mtt_pair *p = malloc(sizeof *p);
    const char *device = getenv("MTT_DEVICE");
    assert_non_null(p);
    p->cpu = mti_backend_find("cpu");
    p->dev = mti_backend_find(device ? device : "cudasim");
    mtt_ok(p->cpu && p->dev, "find");
    p->cpu_ctx = p->cpu->open();
    p->dev_ctx = p->dev->open();
    mtt_ok(p->cpu_ctx && p->dev_ctx, "open");
    *state = p;
    return 0;
}

int mtt_close_pair(void **state)
{
    mtt_pair *p = *state;
    mtt_ok(p->dev->sync(p->dev_ctx), "sync");
    p->dev->close(p->dev_ctx);
    p->cpu->close(p->cpu_ctx);
    free(p);
    return 0;
}

static size_t span_of(const mti_view *v)
{
    int64_t span = 1;
    for (int d = 0; d < v->rank; d++) {
        if (v->shape[d] == 0) return 0;
        span += (v->shape[d] - 1) * v->stride[d];
    }
    return (size_t)span * mt_dtype_size(v->dtype);
}

mtt_twin mtt_twin_make(const mtt_pair *p, mt_dtype dtype, int rank, const int64_t *shape,
                       mtt_placing placing, int64_t skip, double lo, double hi)
{
    mtt_twin t = {.host = mtt_view(dtype, rank, shape, placing)};
    t.n_skip = (size_t)skip * mt_dtype_size(dtype);
    t.n_block = t.n_skip + span_of(&t.host);
    t.block = p->dev->alloc(p->dev_ctx, t.n_block);
    assert_non_null(t.block);
    t.dev = t.host;
    t.dev.data = (char *)t.block + t.n_skip;
    mtt_fill(&t.host, (uint64_t)rank + (uint64_t)skip * 7 + (uint64_t)lo, lo, hi);
    mtt_twin_push(p, &t);
    return t;
}

void mtt_twin_push(const mtt_pair *p, const mtt_twin *t)
{
    mtt_ok(p->dev->upload(p->dev_ctx, t->dev.data, t->host.data, t->n_block - t->n_skip), "upload");
}

/* The offset of element i from the view's data, in elements. */
static int64_t place_of(const mti_view *v, int64_t i)
{
    int64_t at = 0;
    for (int d = v->rank - 1; d >= 0; d--) {
        at += i % v->shape[d] * v->stride[d];
        i /= v->shape[d];
    }
    return at;
}

void mtt_twin_check(const mtt_pair *p, const mtt_twin *t, double tolerance, const char *what)
{
    size_t n_bytes = t->n_block - t->n_skip, size = mt_dtype_size(t->host.dtype);
    char *got = malloc(n_bytes + 1), *want = malloc(n_bytes + 1);
    assert_true(got && want);
    mtt_ok(p->dev->download(p->dev_ctx, got, t->dev.data, n_bytes), what);
    memcpy(want, t->host.data, n_bytes);
    mti_view got_view = t->host;
    got_view.data = got;
    int64_t n = mti_view_count(&t->host);
    if (tolerance == 0) mtt_same(&got_view, &t->host, what);
    for (int64_t i = 0; i < n; i++) {
        if (tolerance > 0)
            mtt_close(mtt_get(&got_view, i), mtt_get(&t->host, i), tolerance, what, i);
        size_t at = (size_t)place_of(&t->host, i) * size;
        memcpy(got + at, want + at, size); /* after this, only bytes between elements may differ */
    }
    if (memcmp(got, want, n_bytes)) fail_msg("%s: wrote between the elements of the view", what);
    free(got), free(want);
}

void mtt_twin_drop(const mtt_pair *p, mtt_twin *t)
{
    p->dev->free(p->dev_ctx, t->block, t->n_block);
    mtt_drop(&t->host);
}

mti_view mtt_transposed(const mti_view *v)
{
    mti_view t = *v;
    t.shape[0] = v->shape[1], t.shape[1] = v->shape[0];
    t.stride[0] = v->stride[1], t.stride[1] = v->stride[0];
    return t;
}
