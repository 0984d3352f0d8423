/* Optimizer kernels, several tensors at once, against the formulas in f64. */
#include "base/philox.h"
#include "views.h"

#define N_ITEMS 6

static const int64_t item_sizes[N_ITEMS] = {1, 0, 1000, 17, 40000, 3};

/* p, g, m, v of every item; m and v in the wider type. */
typedef struct tensors {
    mti_view p[N_ITEMS], g[N_ITEMS], m[N_ITEMS], v[N_ITEMS];
    mti_opt_item items[N_ITEMS];
} tensors;

static void make(tensors *t, mt_dtype dtype)
{
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    for (int k = 0; k < N_ITEMS; k++) {
        t->p[k] = mtt_dense(dtype, item_sizes[k]), t->g[k] = mtt_dense(dtype, item_sizes[k]);
        t->m[k] = mtt_dense(wide, item_sizes[k]), t->v[k] = mtt_dense(wide, item_sizes[k]);
        mtt_fill(&t->p[k], 10 + (uint64_t)k, -1, 1);
        mtt_fill(&t->g[k], 20 + (uint64_t)k, -1, 1);
        mtt_fill(&t->m[k], 30 + (uint64_t)k, -1, 1);
        mtt_fill(&t->v[k], 40 + (uint64_t)k, 0.01, 1);
        t->items[k] = (mti_opt_item){.n = item_sizes[k],
                                     .dtype = dtype,
                                     .p = t->p[k].data,
                                     .g = t->g[k].data,
                                     .m = t->m[k].data,
                                     .v = t->v[k].data,
                                     .weight_decay = 0.1 * k};
    }
}

static void drop(tensors *t)
{
    for (int k = 0; k < N_ITEMS; k++)
        mtt_drop(&t->p[k]), mtt_drop(&t->g[k]), mtt_drop(&t->m[k]), mtt_drop(&t->v[k]);
}

static double wide_epsilon(mt_dtype dtype) { return dtype == MT_F64 ? 0x1p-52 : 0x1p-23; }

static void adamw_takes_the_step_of_its_paper(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_opt_params o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3};
    for (int d = 0; d < 4; d++) {
        tensors was, t;
        make(&was, mtt_floats[d]), make(&t, mtt_floats[d]);
        mtt_did(be->adamw(ctx, &o, N_ITEMS, t.items));
        double eps = 4 * wide_epsilon(mtt_floats[d]);
        for (int k = 0; k < N_ITEMS; k++)
            for (int64_t i = 0; i < item_sizes[k]; i++) {
                double g = mtt_get(&was.g[k], i), p = mtt_get(&was.p[k], i) * (1 - 0.01 * 0.1 * k);
                double m = 0.9 * mtt_get(&was.m[k], i) + 0.1 * g;
                double v = 0.95 * mtt_get(&was.v[k], i) + 0.05 * g * g;
                p -= 0.01 / (1 - pow(0.9, 3)) * m / (sqrt(v) / sqrt(1 - pow(0.95, 3)) + 1e-8);
                mtt_close(mtt_get(&t.m[k], i), m, eps, "m", i);
                mtt_close(mtt_get(&t.v[k], i), v, eps, "v", i);
                mtt_close(mtt_get(&t.p[k], i), p, eps + mtt_epsilon(mtt_floats[d]) / 2, "p", i);
            }
        drop(&was), drop(&t);
    }
    be->close(ctx);
}

/* ---- Adafactor ---- */

/* Row factors r[batch][rows], or NULL; column factors c[batch][columns]. */
static void factored_step(double *p, const double *g, double *r, double *c, int64_t batch,
                          int64_t rows, int64_t columns, const mti_opt_params *o, double eps,
                          double decay)
{
    int64_t n = batch * rows * columns, of = rows * columns;
    double weight = pow((double)o->step, o->beta2_decay), squares = 0, updates = 0;
    double *u = calloc((size_t)n, sizeof *u);
    for (int64_t b = 0; b < batch; b++) {
        const double *at = g + b * of;
        double mean = 0;
        for (int64_t i = 0; i < rows && r; i++) {
            double sum = 0;
            for (int64_t j = 0; j < columns; j++) sum += at[i * columns + j] * at[i * columns + j];
            double *state = &r[b * rows + i];
            *state += weight * (sum / (double)columns - *state);
            mean += *state / (double)rows;
        }
        for (int64_t j = 0; j < columns; j++) {
            double sum = 0, *state = &c[b * columns + j];
            for (int64_t i = 0; i < rows; i++) sum += at[i * columns + j] * at[i * columns + j];
            *state += weight * (sum / (double)rows - *state);
        }
        for (int64_t i = 0; i < of; i++) {
            double v = c[b * columns + i % columns];
            if (r) v *= r[b * rows + i / columns] / fmax(mean, eps);
            u[b * of + i] = at[i] / sqrt(fmax(v, eps * eps));
        }
    }
    for (int64_t i = 0; i < n; i++) squares += p[i] * p[i], updates += u[i] * u[i];
    double alpha =
        fmax(o->eps2, sqrt(squares / (double)n)) * fmin(o->lr, 1 / sqrt((double)o->step));
    double length = alpha / fmax(1, sqrt(updates / (double)n) / o->clip);
    for (int64_t i = 0; i < n; i++) p[i] = p[i] * (1 - o->lr * decay) - length * u[i];
    free(u);
}

static double *values_of(const mti_view *v)
{
    int64_t n = mti_view_count(v);
    double *at = calloc((size_t)n + 1, sizeof *at);
    for (int64_t i = 0; i < n; i++) at[i] = mtt_get(v, i);
    return at;
}

static void check_values(const mti_view *v, const double *want, double tolerance, const char *what)
{
    for (int64_t i = 0; i < mti_view_count(v); i++)
        mtt_close(mtt_get(v, i), want[i], tolerance, what, i);
}

/* Matrices larger and smaller than a tile, a batch, a vector; 16 bits in f32 and rounded once. */
static void adafactor_takes_the_step_of_its_paper(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    const int64_t shapes[][3] = {{1, 3, 5}, {1, 300, 700}, {2, 150, 9}, {0, 1, 900}, {0, 1, 1}};
    for (int k = 0; k < 20; k++) {
        const int64_t *s = shapes[k / 4];
        mt_dtype dtype = mtt_floats[k % 4];
        int64_t batch = s[0] ? s[0] : 1, n = batch * s[1] * s[2];
        mti_view p = mtt_dense(dtype, n), g = mtt_dense(dtype, n);
        mti_view r = mtt_dense(dtype, batch * s[1]), c = mtt_dense(dtype, batch * s[2]);
        mtt_fill(&p, 1, -1, 1), mtt_fill(&g, 2, -1, 1);
        mtt_fill(&r, 3, 0.01, 1), mtt_fill(&c, 4, 0.01, 1);
        double *want_p = values_of(&p), *want_g = values_of(&g);
        double *want_r = values_of(&r), *want_c = values_of(&c);
        bool narrow = mt_dtype_size(dtype) == 2;
        const mti_opt_item item = {.n = n,
                                   .dtype = dtype,
                                   .p = p.data,
                                   .g = g.data,
                                   .m = s[0] ? r.data : NULL,
                                   .v = c.data,
                                   .moments = narrow ? MTI_MOMENTS_NARROW : MTI_MOMENTS_WIDE,
                                   .rows = s[1],
                                   .columns = s[2],
                                   .weight_decay = 0.1};
        const mti_opt_params o = {
            .lr = 0.3, .beta2_decay = -0.8, .eps2 = 1e-3, .clip = 1.5, .step = 7};
        void *scratch = mtt_memory_dirty(be->adafactor_scratch(ctx, 1, &item));
        mtt_did(be->adafactor(ctx, &o, 1, &item, scratch));
        double eps = mtt_epsilon(dtype), close = 64 * wide_epsilon(dtype) + 2 * eps;
        factored_step(want_p, want_g, s[0] ? want_r : NULL, want_c, batch, s[1], s[2], &o, eps,
                      0.1);
        if (s[0]) check_values(&r, want_r, close, "r");
        check_values(&c, want_c, close, "c");
        check_values(&p, want_p, close, "p");
        mtt_memory_free(scratch);
        free(want_p), free(want_g), free(want_r), free(want_c);
        mtt_drop(&p), mtt_drop(&g), mtt_drop(&r), mtt_drop(&c);
    }
    be->close(ctx);
}

/* The step changes the master as it would an f32 parameter, with gradients scaled first; p is the
 * rounded master. */
static void a_master_is_stepped_instead_of_its_parameter(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int way = 0; way < 6; way++) {
        mt_dtype dtype = way % 2 ? MT_BF16 : MT_F16;
        tensors wide, narrow;
        make(&wide, MT_F32), make(&narrow, dtype);
        mti_view master[N_ITEMS];
        for (int k = 0; k < N_ITEMS; k++) { /* the same values, but gradients times 4 */
            master[k] = mtt_dense(MT_F32, item_sizes[k]);
            for (int64_t i = 0; i < item_sizes[k]; i++) {
                mtt_set(&master[k], i, mtt_get(&wide.p[k], i));
                double g = mtt_get(&narrow.g[k], i);
                mtt_set(&wide.g[k], i, g / 4);
            }
            narrow.items[k].master = master[k].data;
        }
        mti_opt_params o = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9, .step = 3};
        bool (*step)(mti_ctx *, const mti_opt_params *, int, const mti_opt_item *) =
            way < 2   ? be->adamw
            : way < 4 ? be->sgd
                      : be->lion;
        mtt_did(step(ctx, &o, N_ITEMS, wide.items));
        o.grad_scale = 0.25;
        mtt_did(step(ctx, &o, N_ITEMS, narrow.items));
        for (int k = 0; k < N_ITEMS; k++) {
            mtt_same(&master[k], &wide.p[k], "master");
            mtt_same(&narrow.m[k], &wide.m[k], "m");
            mti_view rounded = mtt_dense(dtype, item_sizes[k]);
            mtt_did(be->copy(ctx, &master[k], &rounded));
            mtt_same(&narrow.p[k], &rounded, "p");
            mtt_drop(&rounded), mtt_drop(&master[k]);
        }
        drop(&wide), drop(&narrow);
    }
    be->close(ctx);
}

/* The step is that of moments in f32, which are rounded after it. */
static void narrow_moments_are_rounded_after_the_step(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_opt_params o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3};
    for (int way = 0; way < 6; way++) { /* one launch has wide and narrow moments side by side */
        mt_dtype dtype = way > 3 ? MT_F32 : way % 2 ? MT_BF16 : MT_F16;
        mt_dtype moment = way > 3 ? MT_BF16 : dtype;
        tensors wide, narrow;
        make(&wide, dtype), make(&narrow, dtype);
        mti_view m[N_ITEMS], v[N_ITEMS], master[2][N_ITEMS];
        for (int k = 0; k < N_ITEMS; k++) {
            bool is_narrow = way < 2 || way == 4 || k % 2;
            m[k] = mtt_dense(is_narrow ? moment : MT_F32, item_sizes[k]);
            v[k] = mtt_dense(is_narrow ? moment : MT_F32, item_sizes[k]);
            mtt_did(be->copy(ctx, &wide.m[k], &m[k]) && be->copy(ctx, &wide.v[k], &v[k]));
            mtt_did(be->copy(ctx, &m[k], &wide.m[k]) && be->copy(ctx, &v[k], &wide.v[k]));
            narrow.items[k].m = m[k].data, narrow.items[k].v = v[k].data;
            narrow.items[k].moments = is_narrow ? MTI_MOMENTS_NARROW : MTI_MOMENTS_WIDE;
            for (int i = 0; i < 2; i++) {
                master[i][k] = mtt_dense(MT_F32, item_sizes[k]);
                mtt_did(be->copy(ctx, &wide.p[k], &master[i][k]));
            }
            if (k % 3 == 0 && dtype != MT_F32)
                wide.items[k].master = master[0][k].data,
                narrow.items[k].master = master[1][k].data;
        }
        mtt_did(be->adamw(ctx, &o, N_ITEMS, wide.items));
        mtt_did(be->adamw(ctx, &o, N_ITEMS, narrow.items));
        for (int k = 0; k < N_ITEMS; k++) {
            mti_view rounded = mtt_dense(m[k].dtype, item_sizes[k]);
            mtt_same(&narrow.p[k], &wide.p[k], "p");
            mtt_same(&master[1][k], &master[0][k], "master");
            mtt_did(be->copy(ctx, &wide.m[k], &rounded));
            mtt_same(&m[k], &rounded, "m");
            mtt_did(be->copy(ctx, &wide.v[k], &rounded));
            mtt_same(&v[k], &rounded, "v");
            mtt_drop(&rounded), mtt_drop(&m[k]), mtt_drop(&v[k]);
            mtt_drop(&master[0][k]), mtt_drop(&master[1][k]);
        }
        drop(&wide), drop(&narrow);
    }
    be->close(ctx);
}

/* ---- moments in 8 bits ---- */

/* What the codes stand for, in order (Dettmers et al. 2022): 0, then the middles of 2^i cells (of v
 * 2^(i + 1)) of the i-th of seven decades below 1, then 1. Returns how many. */
static int shares_of(bool positive, float share[256])
{
    int n = 0;
    share[n++] = 0;
    for (int i = 0; i < 7; i++)
        for (int cells = (positive ? 2 : 1) << i, c = 0; c < cells; c++)
            share[n++] = (float)(pow(10, i - 6) * (0.1 + 0.9 * (2 * c + 1) / (2.0 * cells)));
    share[n++] = 1;
    return n;
}

static float value_of(bool positive, const float *share, uint8_t code)
{
    if (positive || code <= 128) return share[code];
    return -share[code - 128];
}

/* Whether no code's value is nearer to x than this one's, by more than the midpoint of two, rounded
 * to f32, decides. */
static bool is_nearest(bool positive, const float *share, uint8_t code, float x)
{
    double least = INFINITY, off = fabs((double)value_of(positive, share, code) - (double)x);
    for (int other = 0; other < 256; other++)
        least = fmin(least, fabs((double)value_of(positive, share, (uint8_t)other) - (double)x));
    return off <= least + fabs((double)x) * 0x1p-23;
}

/* Codes and scales [n]: as the kernels lay them out. */
static float *scales_of(const mti_view *codes, int64_t n)
{
    return (float *)(void *)((uint8_t *)codes->data + (n + 3) / 4 * 4);
}

static mti_view draw_codes(uint64_t seed, int64_t n)
{
    int64_t blocks = (n + 255) / 256;
    mti_view v = mtt_dense(MT_U8, (n + 3) / 4 * 4 + 4 * blocks);
    for (int64_t i = 0; i < n; i++)
        ((uint8_t *)v.data)[i] = (uint8_t)mti_philox(seed, (uint64_t)i).v[0];
    for (int64_t b = 0; b < blocks; b++) scales_of(&v, n)[b] = b % 5 ? (float)(b + 1) / 8 : 0;
    return v;
}

/* e4m3's values, by code; those of NaN as 0, and not drawn. */
static void e4m3_values(float share[256])
{
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, mantissa = code & 7;
        double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        share[code] = (float)((code & 127) == 127 ? 0 : code < 128 ? magnitude : -magnitude);
    }
}

/* Checks that `codes` are the nearest ones to the values in `wide`, each block by its largest. */
static void check_codes(bool fp8, bool positive, const mti_view *codes, const mti_view *wide,
                        int64_t n)
{
    float share[256];
    if (fp8)
        e4m3_values(share);
    else
        assert_int_equal(shares_of(positive, share), positive ? 256 : 129);
    for (int64_t first = 0; first < n; first += 256) {
        float top = 0, scale = scales_of(codes, n)[first / 256];
        const float *x = (const float *)wide->data + first;
        int here = (int)(n - first < 256 ? n - first : 256);
        for (int i = 0; i < here; i++) top = fmaxf(top, fabsf(x[i]));
        assert_true(scale == (fp8 ? top / 448 : top));
        for (int i = 0; i < here; i++)
            assert_true(is_nearest(fp8 || positive, share,
                                   ((const uint8_t *)codes->data)[first + i],
                                   top > 0 ? x[i] / scale : 0));
    }
}

/* Makes an item's parameter and gradient begin at their second element. */
static void skip_one(mti_opt_item *item)
{
    item->n--;
    item->p = (char *)item->p + mt_dtype_size(item->dtype);
    item->g = (const char *)item->g + mt_dtype_size(item->dtype);
}

/* The step is that of the values that the codes stand for; it leaves the nearest codes. */
static void step_codes(bool fp8)
{
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    float share[2][256];
    mti_opt_params o = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3, .grad_scale = 0.5};
    for (int v = 0; v < 2; v++) fp8 ? e4m3_values(share[v]) : (void)shares_of(v, share[v]);
    for (int d = 0; d < 4; d++) { /* f64 keeps its wide moments beside the others */
        mt_dtype dtype = mtt_floats[d];
        tensors wide, coded;
        make(&wide, dtype), make(&coded, dtype);
        mti_view codes[N_ITEMS][2];
        for (int k = 0; k < N_ITEMS; k++) {
            if (k == 2) skip_one(&wide.items[k]), skip_one(&coded.items[k]);
            int64_t n = wide.items[k].n;
            float *moment[2] = {wide.m[k].data, wide.v[k].data};
            for (int v = 0; v < 2; v++) {
                codes[k][v] = draw_codes(50 + (uint64_t)(2 * k + v), n);
                uint8_t *code = codes[k][v].data;
                for (int64_t i = 0; i < n && fp8; i++) code[i] &= v ? 0x77 : 0xf7;
                for (int64_t i = 0; i < n && dtype != MT_F64; i++)
                    moment[v][i] =
                        value_of(fp8 || v, share[v], code[i]) * scales_of(&codes[k][v], n)[i / 256];
            }
            if (dtype == MT_F64) continue;
            coded.items[k].moments = fp8 ? MTI_MOMENTS_FP8 : MTI_MOMENTS_8BIT;
            coded.items[k].m = codes[k][0].data, coded.items[k].v = codes[k][1].data;
        }
        mtt_did(be->adamw(ctx, &o, N_ITEMS, wide.items));
        mtt_did(be->adamw(ctx, &o, N_ITEMS, coded.items));
        for (int k = 0; k < N_ITEMS; k++) {
            mtt_same(&coded.p[k], &wide.p[k], "p");
            for (int v = 0; v < 2; v++) {
                if (dtype != MT_F64)
                    check_codes(fp8, v, &codes[k][v], v ? &wide.v[k] : &wide.m[k], wide.items[k].n);
                mtt_drop(&codes[k][v]);
            }
        }
        drop(&wide), drop(&coded);
    }
    be->close(ctx);
}

static void moments_in_8_bits_are_the_nearest_codes(void **state)
{
    (void)state;
    step_codes(false), step_codes(true);
}

/* A gradient in f32 gives the step of the same values in 16 bits, beside any other. */
static void a_gradient_may_be_f32_beside_16_bits(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int way = 0; way < 6; way++) {
        mt_dtype dtype = way % 2 ? MT_BF16 : MT_F16;
        tensors own, wide;
        make(&own, dtype), make(&wide, dtype);
        mti_view g[N_ITEMS];
        for (int k = 0; k < N_ITEMS; k++) {
            g[k] = mtt_dense(MT_F32, item_sizes[k]);
            mtt_did(be->copy(ctx, &own.g[k], &g[k]));
            if (k == 4) continue;
            wide.items[k].g = g[k].data;
            wide.items[k].wide_grad = true;
        }
        mti_opt_params o = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9, .step = 3};
        bool (*step)(mti_ctx *, const mti_opt_params *, int, const mti_opt_item *) =
            way < 2   ? be->adamw
            : way < 4 ? be->sgd
                      : be->lion;
        mtt_did(step(ctx, &o, N_ITEMS, own.items));
        mtt_did(step(ctx, &o, N_ITEMS, wide.items));
        for (int k = 0; k < N_ITEMS; k++) {
            mtt_same(&wide.p[k], &own.p[k], "p");
            mtt_same(&wide.m[k], &own.m[k], "m");
            mtt_same(&wide.v[k], &own.v[k], "v");
            mtt_drop(&g[k]);
        }
        drop(&own), drop(&wide);
    }
    be->close(ctx);
}

static void check_sgd(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, double momentum,
                      int64_t step)
{
    tensors was, t;
    make(&was, dtype), make(&t, dtype);
    mti_opt_params o = {.lr = 0.1, .momentum = momentum, .step = step};
    for (int k = 0; k < N_ITEMS; k++) {
        if (momentum == 0) t.items[k].m = NULL;
        if (step == 1 && item_sizes[k] && momentum != 0) mtt_set(&t.m[k], 0, (double)NAN);
    }
    mtt_did(be->sgd(ctx, &o, N_ITEMS, t.items));
    for (int k = 0; k < N_ITEMS; k++)
        for (int64_t i = 0; i < item_sizes[k]; i++) {
            double p = mtt_get(&was.p[k], i), m = mtt_get(&was.g[k], i) + 0.1 * k * p;
            if (momentum != 0 && step > 1) m += momentum * mtt_get(&was.m[k], i);
            if (momentum != 0) mtt_close(mtt_get(&t.m[k], i), m, 4 * wide_epsilon(dtype), "m", i);
            mtt_close(mtt_get(&t.p[k], i), p - 0.1 * m, mtt_epsilon(dtype), "p", i);
        }
    drop(&was), drop(&t);
}

static void sgd_takes_plain_and_momentum_steps(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int d = 0; d < 4; d++) {
        check_sgd(be, ctx, mtt_floats[d], 0, 1);
        check_sgd(be, ctx, mtt_floats[d], 0.9, 1);
        check_sgd(be, ctx, mtt_floats[d], 0.9, 2);
    }
    be->close(ctx);
}

/* Chen et al. 2023, algorithm 2. */
static void lion_takes_the_step_of_its_paper(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    const mti_opt_params o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .step = 3};
    for (int d = 0; d < 4; d++) {
        tensors was, t;
        make(&was, mtt_floats[d]), make(&t, mtt_floats[d]);
        double eps = 4 * wide_epsilon(mtt_floats[d]);
        mtt_set(&t.g[2], 0, 0), mtt_set(&t.m[2], 0, 0); /* then nothing but the decay */
        mtt_set(&was.g[2], 0, 0), mtt_set(&was.m[2], 0, 0);
        mtt_set(&t.g[2], 1, (double)NAN);
        mtt_did(be->lion(ctx, &o, N_ITEMS, t.items));
        assert_true(isnan(mtt_get(&t.p[2], 1)) && isnan(mtt_get(&t.m[2], 1)));
        for (int k = 0; k < N_ITEMS; k++)
            for (int64_t i = 0; i < item_sizes[k]; i++) {
                if (k == 2 && i == 1) continue;
                double g = mtt_get(&was.g[k], i), m = mtt_get(&was.m[k], i);
                double c = 0.9 * m + 0.1 * g, sign = (c > 0) - (c < 0);
                double p = mtt_get(&was.p[k], i) * (1 - 0.01 * 0.1 * k) - 0.01 * sign;
                mtt_close(mtt_get(&t.m[k], i), 0.99 * m + 0.01 * g, eps, "m", i);
                mtt_close(mtt_get(&t.p[k], i), p, eps + mtt_epsilon(mtt_floats[d]) / 2, "p", i);
            }
        drop(&was), drop(&t);
    }
    be->close(ctx);
}

static void clipping_measures_and_scales_all_gradients(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int d = 0; d < 4; d++) {
        tensors was, t;
        make(&was, mtt_floats[d]), make(&t, mtt_floats[d]);
        double want = 0, got;
        for (int k = 0; k < N_ITEMS; k++)
            for (int64_t i = 0; i < item_sizes[k]; i++) want += pow(mtt_get(&t.g[k], i), 2);
        mtt_did(be->sum_squares(ctx, N_ITEMS, t.items, &got));
        mtt_close(got, want, 1e-12, "sum of squares", 0);
        mtt_did(be->scale_all(ctx, 0.3, N_ITEMS, t.items));
        for (int k = 0; k < N_ITEMS; k++)
            for (int64_t i = 0; i < item_sizes[k]; i++)
                mtt_close(mtt_get(&t.p[k], i), 0.3 * mtt_get(&was.p[k], i),
                          mtt_epsilon(mtt_floats[d]), "scaled", i);
        drop(&was), drop(&t);
    }
    double none = 1;
    mtt_did(be->sum_squares(ctx, 0, NULL, &none));
    assert_true(none == 0);
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_takes_the_step_of_its_paper),
        cmocka_unit_test(adafactor_takes_the_step_of_its_paper),
        cmocka_unit_test(narrow_moments_are_rounded_after_the_step),
        cmocka_unit_test(moments_in_8_bits_are_the_nearest_codes),
        cmocka_unit_test(a_gradient_may_be_f32_beside_16_bits),
        cmocka_unit_test(a_master_is_stepped_instead_of_its_parameter),
        cmocka_unit_test(sgd_takes_plain_and_momentum_steps),
        cmocka_unit_test(lion_takes_the_step_of_its_paper),
        cmocka_unit_test(clipping_measures_and_scales_all_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
