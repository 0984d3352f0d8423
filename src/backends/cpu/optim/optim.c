/* optim.c: optimizer steps, gradient norms and scaling, all tensors in one call. The
 * tensors are treated as one long array and divided into chunks, so that many small ones
 * cost one parallel region and large ones are shared among the threads. */
#include "backends/cpu/cpu.h"
#include "backends/moments.h"

/* Updates n elements from `at` of one item. */
typedef void span_fn(const void *op, const mti_opt_item *item, int64_t at, int64_t n);

typedef struct items_job {
    int n_items;
    const mti_opt_item *items;
    span_fn *fn;
    const void *op;
} items_job;

static void items_chunk(const void *arg, int64_t begin, int64_t end)
{
    const items_job *job = arg;
    int64_t base = 0; /* the number of item k's first element */
    for (int k = 0; k < job->n_items && base < end; base += job->items[k++].n) {
        int64_t from = begin > base ? begin - base : 0;
        int64_t to = end - base < job->items[k].n ? end - base : job->items[k].n;
        if (from < to) job->fn(job->op, &job->items[k], from, to - from);
    }
}

static int64_t count_all(int n_items, const mti_opt_item *items)
{
    int64_t total = 0;
    for (int k = 0; k < n_items; k++) total += items[k].n;
    return total;
}

static void for_items(mti_ctx *ctx, int n_items, const mti_opt_item *items, int64_t cost,
                      span_fn *fn, const void *op)
{
    items_job job = {n_items, items, fn, op};
    int64_t total = count_all(n_items, items);
    mti_cpu_parallel(ctx, total, mti_cpu_chunk(total, cost), items_chunk, &job);
}

/* The same on the calling thread, in the same chunks: what a chunk gives depends on its bounds. */
static void for_items_alone(int n_items, const mti_opt_item *items, int64_t cost, span_fn *fn,
                            const void *op)
{
    items_job job = {n_items, items, fn, op};
    int64_t total = count_all(n_items, items), chunk = mti_cpu_chunk(total, cost);
    for (int64_t i = 0; i < total; i += chunk)
        items_chunk(&job, i, total - i < chunk ? total : i + chunk);
}

static void *element(const mti_opt_item *item, const void *base, int64_t at)
{
    return (char *)(uintptr_t)base + at * (int64_t)mti_dtype_size(item->dtype);
}

/* A parameter in f32: itself, its master copy, or p of 16 bits converted into p32. */
static float *load_wide(const mti_opt_item *item, int64_t at, float *p32, int64_t run)
{
    if (item->dtype == MT_F32) return (float *)item->p + at;
    if (item->master) return (float *)item->master + at;
    mti_cpu_load_f32(item->dtype, element(item, item->p, at), p32, run);
    return p32;
}

static mt_dtype narrow_of(const mti_opt_item *item)
{
    return item->dtype == MT_F32 ? MT_BF16 : item->dtype;
}

/* m or v in f32: what the item has, or its 16 bits converted into `buffer`; NULL: it has none. */
static float *load_moment(const mti_opt_item *item, void *moment, int64_t at, float *buffer,
                          int64_t run)
{
    if (!moment) return NULL;
    if (item->moments == MTI_MOMENTS_WIDE) return (float *)moment + at;
    mti_cpu_load_f32(narrow_of(item), (uint16_t *)moment + at, buffer, run);
    return buffer;
}

/* g in f32: what the item has, or its 16 bits converted into `buffer`. */
static const float *load_grad(const mti_opt_item *item, int64_t at, float *buffer, int64_t run)
{
    if (item->wide_grad || item->dtype == MT_F32) return (const float *)item->g + at;
    mti_cpu_load_f32(item->dtype, element(item, item->g, at), buffer, run);
    return buffer;
}

static void store_moment(const mti_opt_item *item, void *moment, int64_t at, const float *x,
                         int64_t run)
{
    if (!moment || item->moments == MTI_MOMENTS_WIDE) return;
    mti_cpu_store_f32(narrow_of(item), x, (uint16_t *)moment + at, run);
}

/* ---- one rule for all elements ---- */

/* The rule's step of n elements in both types; m and v are NULL where it has none. */
typedef struct rule {
    const void *op;
    void (*f32)(const void *op, double decay, float *p, const float *g, float *m, float *v,
                int64_t n);
    void (*f64)(const void *op, double decay, double *p, const double *g, double *m, double *v,
                int64_t n);
} rule;

static void rule_span(const void *op, const mti_opt_item *item, int64_t at, int64_t n)
{
    const rule *r = op;
    if (item->moments >= MTI_MOMENTS_8BIT) return;
    double decay = item->weight_decay;
    void *p = element(item, item->p, at);
    const void *g = element(item, item->g, at);
    if (item->dtype == MT_F64) {
        double *m = item->m ? (double *)item->m + at : NULL;
        double *v = item->v ? (double *)item->v + at : NULL;
        r->f64(r->op, decay, p, g, m, v, n);
        return;
    }
    if (item->dtype == MT_F32 && item->moments == MTI_MOMENTS_WIDE) {
        r->f32(r->op, decay, p, g, load_moment(item, item->m, at, NULL, n),
               load_moment(item, item->v, at, NULL, n), n);
        return;
    }
    float p32[MTI_CPU_RUN], g32[MTI_CPU_RUN], m32[MTI_CPU_RUN], v32[MTI_CPU_RUN];
    for (int64_t i = 0, run; i < n; i += run) {
        run = n - i < MTI_CPU_RUN ? n - i : MTI_CPU_RUN;
        float *wide = load_wide(item, at + i, p32, run);
        float *m = load_moment(item, item->m, at + i, m32, run);
        float *v = load_moment(item, item->v, at + i, v32, run);
        r->f32(r->op, decay, wide, load_grad(item, at + i, g32, run), m, v, run);
        if (item->dtype != MT_F32) mti_cpu_store_f32(item->dtype, wide, (uint16_t *)p + i, run);
        store_moment(item, item->m, at + i, m, run);
        store_moment(item, item->v, at + i, v, run);
    }
}

/* ---- AdamW ----
 *
 * In f32 28 bytes pass for every element, and nothing else limits it: a square root and a division
 * are done in the time that p, g, m and v take to come from the caches. If one thread has computed
 * almost all of the step, its core's cache has what a small model needs, and a second thread has to
 * wait for every line of it: two take longer than one. In 16 bits fewer bytes pass and conversions
 * take longer than they do.
 *
 * Two threads are faster line by line, 0.5 ms in place of 0.8 for 0.8 million elements on a Xeon;
 * one alone is a little slower, and its core's cache then has less of the parameters. */

#define ADAMW_ALONE (1 << 17) /* elements in f32 up to which that cache holds them */

typedef struct adamw_step {
    double lr, beta1, beta2;
    double rate;       /* lr / (1 - beta1^t) */
    double root_scale; /* 1 / sqrt(1 - beta2^t) */
    double eps;
    double grad_scale;
    int64_t run; /* elements at a time */
} adamw_step;

/* 0 means 1: multiplying by 1 is exact, so one loop serves both. */
static double grad_scale_of(const mti_opt_params *p)
{
    return p->grad_scale > 0 ? p->grad_scale : 1;
}

#define DEFINE_ADAMW(name, T, ROOT)                                                                \
    static MTI_MULTIVERSION void name(const void *op, double decay, T *p, const T *g, T *m, T *v,  \
                                      int64_t n)                                                   \
    {                                                                                              \
        const adamw_step *s = op;                                                                  \
        T keep = (T)(1.0 - s->lr * decay), b1 = (T)s->beta1, b2 = (T)s->beta2, rate = (T)s->rate;  \
        T a1 = (T)(1.0 - s->beta1), a2 = (T)(1.0 - s->beta2);                                      \
        T root_scale = (T)s->root_scale, eps = (T)s->eps, scale = (T)s->grad_scale;                \
        for (int64_t from = 0, to; from < n; from = to) {                                          \
            to = n - from < s->run ? n : from + s->run;                                            \
            MTI_SIMD                                                                               \
            for (int64_t i = from; i < to; i++) {                                                  \
                T gi = scale * g[i];                                                               \
                T mi = b1 * m[i] + a1 * gi;                                                        \
                T vi = b2 * v[i] + a2 * gi * gi;                                                   \
                m[i] = mi;                                                                         \
                v[i] = vi;                                                                         \
                p[i] = keep * p[i] - rate * mi / (ROOT(vi) * root_scale + eps);                    \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_ADAMW(adamw_f32, float, sqrtf)
DEFINE_ADAMW(adamw_f64, double, sqrt)

/* ---- AdamW with moments in codes: block by block ---- */

typedef struct adamw_codes {
    adamw_step step;
    mti_moments moments;
    float share[2][MTI_MOMENT_CODES]; /* of codes of m and v */
} adamw_codes;

static MTI_MULTIVERSION void decode(const float *share, const uint8_t *codes, float scale, float *x,
                                    int n)
{
    MTI_SIMD
    for (int i = 0; i < n; i++) x[i] = share[codes[i]] * scale;
}

/* Two codes to a byte; n is even. */
static void decode_4bit(const float *share, const uint8_t *codes, float scale, float *x, int n)
{
    for (int i = 0; i < n; i += 2, codes++) {
        x[i] = share[*codes >> 4] * scale;
        x[i + 1] = share[*codes & 15] * scale;
    }
}

static void encode_4bit(bool positive, const float *x, float inverse, uint8_t *codes, int n)
{
    for (int i = 0; i < n; i += 2)
        *codes++ = (uint8_t)(mti_moment_encode_4bit(positive, x[i] * inverse) << 4 |
                             mti_moment_encode_4bit(positive, x[i + 1] * inverse));
}

static MTI_MULTIVERSION float encode(mti_moments moments, bool positive, const float *x,
                                     uint8_t *codes, int n)
{
    uint32_t largest = 0;
    MTI_SIMD_MAX(largest)
    for (int i = 0; i < n; i++) {
        uint32_t u = mti_magnitude_bits(x[i]);
        largest = u > largest ? u : largest;
    }
    float scale = mti_moment_scale(moments, largest), inverse = mti_moment_inverse(scale);
    if (moments == MTI_MOMENTS_4BIT) {
        encode_4bit(positive, x, inverse, codes, n);
    } else if (moments == MTI_MOMENTS_FP8) {
        MTI_SIMD
        for (int i = 0; i < n; i++) codes[i] = mti_e4m3_from_f32(x[i] * inverse);
    } else {
        MTI_SIMD
        for (int i = 0; i < n; i++) codes[i] = mti_moment_encode(positive, x[i] * inverse);
    }
    return scale;
}

static void step_block(const adamw_codes *a, const mti_opt_item *item, int64_t block)
{
    bool halves = a->moments == MTI_MOMENTS_4BIT;
    int64_t most = mti_moment_block(a->moments), at = block * most, code = halves ? at / 2 : at;
    int n = (int)(item->n - at < most ? item->n - at : most);
    float p32[MTI_MOMENT_BLOCK], g32[MTI_MOMENT_BLOCK], moment[2][MTI_MOMENT_BLOCK];
    uint8_t *codes[2] = {item->m, item->v};
    float *scale[2];
    for (int k = 0; k < 2; k++) {
        float *behind = (float *)(void *)(codes[k] + mti_moment_scales_at(a->moments, item->n));
        scale[k] = (item->scales[k] ? item->scales[k] : behind) + block;
        (halves ? decode_4bit : decode)(a->share[k], codes[k] + code, *scale[k], moment[k], n);
    }
    float *p = load_wide(item, at, p32, n);
    const float *g = load_grad(item, at, g32, n);
    adamw_f32(&a->step, item->weight_decay, p, g, moment[0], moment[1], n);
    if (item->dtype != MT_F32) mti_cpu_store_f32(item->dtype, p, element(item, item->p, at), n);
    for (int k = 0; k < 2; k++) *scale[k] = encode(a->moments, k, moment[k], codes[k] + code, n);
}

typedef struct blocks_job {
    const adamw_codes *a;
    const mti_opt_item *item;
} blocks_job;

static void some_blocks(const void *arg, int64_t begin, int64_t end)
{
    const blocks_job *job = arg;
    for (int64_t block = begin; block < end; block++) step_block(job->a, job->item, block);
}

static void adamw_code_items(mti_ctx *ctx, const adamw_step *s, int n_items,
                             const mti_opt_item *items)
{
    adamw_codes a = {.step = *s, .moments = MTI_MOMENTS_WIDE};
    for (int k = 0; k < n_items; k++) {
        mti_moments moments = items[k].moments;
        if (moments < MTI_MOMENTS_8BIT) continue;
        for (int code = 0; moments != a.moments && code < MTI_MOMENT_CODES; code++)
            for (int v = 0; v < 2; v++) a.share[v][code] = mti_moment_value(moments, v, code);
        a.moments = moments;
        int64_t most = mti_moment_block(moments), blocks = (items[k].n + most - 1) / most;
        blocks_job job = {&a, &items[k]};
        mti_cpu_parallel(ctx, blocks, mti_cpu_chunk(blocks, 8 * MTI_MOMENT_BLOCK), some_blocks,
                         &job);
    }
}

/* Whether one thread did almost all of the step: fewer kernels were shared than half of the
 * tensors, each of which takes several kernels. Begins that count again. */
static bool one_core_has_all(mti_ctx *ctx, int n_items, const mti_opt_item *items)
{
    int shared = atomic_exchange_explicit(&ctx->shared, 0, memory_order_relaxed);
    bool all = shared < n_items / 2 && count_all(n_items, items) <= ADAMW_ALONE;
    for (int k = 0; k < n_items; k++) all = all && items[k].dtype == MT_F32;
    return all;
}

bool mti_cpu_adamw(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    double t = (double)p->step;
    adamw_step s = {.lr = p->lr,
                    .beta1 = p->beta1,
                    .beta2 = p->beta2,
                    .rate = p->lr / (1.0 - pow(p->beta1, t)),
                    .root_scale = 1.0 / sqrt(1.0 - pow(p->beta2, t)),
                    .eps = p->eps,
                    .grad_scale = grad_scale_of(p)};
    const rule adamw = {&s, adamw_f32, adamw_f64};
    const bool alone = one_core_has_all(ctx, n_items, items) || mti_cpu_threads(ctx) == 1;
    s.run = alone ? MTI_CPU_GRAIN : MTI_LINE;
    if (alone)
        for_items_alone(n_items, items, 4, rule_span, &adamw);
    else
        for_items(ctx, n_items, items, 4, rule_span, &adamw);
    adamw_code_items(ctx, &s, n_items, items);
    return true;
}

/* ---- SGD ---- */

/* m is NULL without momentum. */
#define DEFINE_SGD(name, T)                                                                        \
    static MTI_MULTIVERSION void name(const void *op, double decay, T *p, const T *g, T *m, T *v,  \
                                      int64_t n)                                                   \
    {                                                                                              \
        (void)v;                                                                                   \
        const mti_opt_params *o = op;                                                              \
        T lr = (T)o->lr, wd = (T)decay, mu = (T)(o->step == 1 ? 0.0 : o->momentum);                \
        T scale = (T)grad_scale_of(o);                                                             \
        if (m) {                                                                                   \
            bool start = o->step == 1; /* m's old contents are ignored, NaN included */            \
            MTI_SIMD                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                      \
                T gi = scale * g[i] + wd * p[i], old = start ? 0 : m[i];                           \
                m[i] = mu * old + gi;                                                              \
                p[i] -= lr * m[i];                                                                 \
            }                                                                                      \
        } else {                                                                                   \
            MTI_SIMD                                                                               \
            for (int64_t i = 0; i < n; i++) p[i] -= lr * (scale * g[i] + wd * p[i]);               \
        }                                                                                          \
    }
DEFINE_SGD(sgd_f32, float)
DEFINE_SGD(sgd_f64, double)

bool mti_cpu_sgd(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    const rule sgd = {p, sgd_f32, sgd_f64};
    for_items(ctx, n_items, items, 2, rule_span, &sgd);
    return true;
}

/* ---- Lion ---- */

#define DEFINE_LION(name, T)                                                                       \
    static MTI_MULTIVERSION void name(const void *op, double decay, T *p, const T *g, T *m, T *v,  \
                                      int64_t n)                                                   \
    {                                                                                              \
        (void)v;                                                                                   \
        const mti_opt_params *o = op;                                                              \
        T lr = (T)o->lr, keep = (T)(1.0 - o->lr * decay), scale = (T)grad_scale_of(o);             \
        T b1 = (T)o->beta1, a1 = (T)(1.0 - o->beta1), b2 = (T)o->beta2, a2 = (T)(1.0 - o->beta2);  \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T gi = scale * g[i], c = b1 * m[i] + a1 * gi;                                          \
            m[i] = b2 * m[i] + a2 * gi;                                                            \
            p[i] = keep * p[i] - lr * (c > 0 ? 1 : c < 0 ? -1 : c);                                \
        }                                                                                          \
    }
DEFINE_LION(lion_f32, float)
DEFINE_LION(lion_f64, double)

bool mti_cpu_lion(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    const rule lion = {p, lion_f32, lion_f64};
    for_items(ctx, n_items, items, 2, rule_span, &lion);
    return true;
}

/* ---- gradient clipping ---- */

#define MAX_PARTIALS 1024

typedef struct squares_job {
    items_job items;
    int64_t chunk;
    double *partial; /* one per chunk */
} squares_job;

/* Squares of f32 may overflow f32, so they are computed in f64. */
#define DEFINE_ADD_SQUARES(name, T)                                                                \
    static MTI_MULTIVERSION void name(const void *op, T *g, int64_t n)                             \
    {                                                                                              \
        double sum = 0;                                                                            \
        MTI_SIMD_SUM(sum)                                                                          \
        for (int64_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];                        \
        *(double *)(uintptr_t)op += sum;                                                           \
    }
DEFINE_ADD_SQUARES(add_squares_f32, float)
DEFINE_ADD_SQUARES(add_squares_f64, double)

/* f32 or f64 of n elements; of narrow ones in f32, in runs, which are stored again if `writes`. */
typedef struct each {
    const void *op;
    void (*f32)(const void *op, float *x, int64_t n);
    void (*f64)(const void *op, double *x, int64_t n);
    bool writes;
} each;

static void each_run(const each *e, mt_dtype dtype, char *x, int64_t n)
{
    if (dtype == MT_F32) {
        e->f32(e->op, (float *)(void *)x, n);
        return;
    }
    if (dtype == MT_F64) {
        e->f64(e->op, (double *)(void *)x, n);
        return;
    }
    float narrow[MTI_CPU_RUN];
    for (int64_t i = 0, run; i < n; i += run) {
        run = n - i < MTI_CPU_RUN ? n - i : MTI_CPU_RUN;
        mti_cpu_load_f32(dtype, (uint16_t *)(void *)x + i, narrow, run);
        e->f32(e->op, narrow, run);
        if (e->writes) mti_cpu_store_f32(dtype, narrow, (uint16_t *)(void *)x + i, run);
    }
}

static void squares_span(const void *op, const mti_opt_item *item, int64_t at, int64_t n)
{
    each_run(&(each){op, add_squares_f32, add_squares_f64, false}, item->dtype,
             element(item, item->g, at), n);
}

static void squares_chunk(const void *arg, int64_t begin, int64_t end)
{
    const squares_job *job = arg;
    double sum = 0;
    items_job items = job->items;
    items.op = &sum;
    items_chunk(&items, begin, end);
    job->partial[begin / job->chunk] = sum;
}

bool mti_cpu_sum_squares(mti_ctx *ctx, int n_items, const mti_opt_item *items, double *out)
{
    double partial[MAX_PARTIALS];
    int64_t total = count_all(n_items, items), chunk = mti_cpu_chunk(total, 1);
    if (total > chunk * MAX_PARTIALS) chunk = (total + MAX_PARTIALS - 1) / MAX_PARTIALS;
    squares_job job = {{n_items, items, squares_span, NULL}, chunk, partial};
    mti_cpu_parallel(ctx, total, chunk, squares_chunk, &job);
    *out = 0;
    for (int64_t i = 0; i * chunk < total; i++) *out += partial[i];
    return true;
}

#define DEFINE_SCALE(name, T)                                                                      \
    static MTI_MULTIVERSION void name(const void *op, T *p, int64_t n)                             \
    {                                                                                              \
        T factor = (T) * (const double *)op;                                                       \
        MTI_EACH(p, p[i] * factor);                                                                \
    }
DEFINE_SCALE(scale_f32, float)
DEFINE_SCALE(scale_f64, double)

static void scale_span(const void *op, const mti_opt_item *item, int64_t at, int64_t n)
{
    each_run(&(each){op, scale_f32, scale_f64, true}, item->dtype, element(item, item->p, at), n);
}

bool mti_cpu_scale_all(mti_ctx *ctx, double factor, int n_items, const mti_opt_item *items)
{
    for_items(ctx, n_items, items, 1, scale_span, &factor);
    return true;
}
