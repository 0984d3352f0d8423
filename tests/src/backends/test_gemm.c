/* Matrix products against a loop in f64. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "backends/cpu/products/blas.h"
#include "backends/cpu/cpu.h"
#include "mtt_engine.h"
#include "values.h"

static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16, MT_F16};

/* Computes with `threads`; the size of the scratch was asked for with `asked` threads. */
static void gemm_after(int asked, int threads, double alpha, const mti_view *a, const mti_view *b,
                       double beta, const mti_view *c, const mti_view *bias)
{
    const mti_backend *be = mtt_chosen();
    mti_ctx *ctx = values_open(asked);
    size_t n_bytes = be->gemm_scratch(ctx, a, b, c);
    mtt_did(be->set_threads(ctx, threads));
    char *scratch = values_scratch(n_bytes);
    mtt_did(be->gemm(ctx, alpha, a, b, beta, c, bias, n_bytes ? scratch : NULL, n_bytes));
    values_scratch_free(scratch, n_bytes);
    be->close(ctx);
}

static void gemm(int threads, double alpha, const mti_view *a, const mti_view *b, double beta,
                 const mti_view *c, const mti_view *bias)
{
    gemm_after(threads, threads, alpha, a, b, beta, c, bias);
}

static int64_t rows(const mti_view *v) { return v->shape[v->rank - 2]; }
static int64_t cols(const mti_view *v) { return v->shape[v->rank - 1]; }

/* Compares element (i, j) of batch item n with the definition. x, y: the elements of a and b.
 * `before`: c before the product, or NULL. */
static void check_element(double alpha, const mti_view *a, const double *x, const mti_view *b,
                          const double *y, const mti_view *before, const mti_view *c,
                          const mti_view *bias, int64_t n, int64_t i, int64_t j)
{
    double sum = 0, size = 0, k = (double)cols(a);
    for (int64_t p = 0; p < cols(a); p++) {
        double term = x[(n * rows(a) + i) * cols(a) + p] * y[(n * rows(b) + p) * cols(b) + j];
        sum += term, size += fabs(term);
    }
    int64_t at = (n * rows(c) + i) * cols(c) + j;
    double start = (before ? values_get(before, at) : 0) + (bias ? values_get(bias, j) : 0);
    double want = alpha * sum + start, got = values_get(c, at);
    /* other devices may round c plus the bias before they add the product */
    bool apart = before && bias && strcmp(mtt_chosen()->kind, "cpu") != 0;
    double inner = c->dtype == MT_F64 ? 0x1p-53 : 0x1p-24;
    double bound = inner * (k + 4) * (fabs(alpha) * size + fabs(start) + 2) +
                   1.01 * values_rounding(c->dtype) * (fabs(want) + apart * fabs(start));
    if (!(fabs(got - want) <= bound))
        fail_msg("%s [%lld,%lld,%lld] item %lld (%lld,%lld): %.9g, want %.9g within %.2g",
                 mt_dtype_name(c->dtype), (long long)rows(c), (long long)cols(c),
                 (long long)cols(a), (long long)n, (long long)i, (long long)j, got, want, bound);
}

/* before: what beta c was. */
static void check_all(double alpha, const mti_view *a, const mti_view *b, const mti_view *before,
                      const mti_view *c, const mti_view *bias)
{
    int64_t batch = mti_view_count(c) / (rows(c) * cols(c));
    double *x = values_all(a), *y = values_all(b);
    for (int64_t n = 0; n < batch; n++)
        for (int64_t i = 0; i < rows(c); i++)
            for (int64_t j = 0; j < cols(c); j++)
                check_element(alpha, a, x, b, y, before, c, bias, n, i, j);
    free(x), free(y);
}

static void copy_values(const mti_view *from, const mti_view *to)
{
    for (int64_t i = 0; i < mti_view_count(to); i++) values_set(to, i, values_get(from, i));
}

/* One product in one layout, with and without bias and with both betas. */
static void try_layout(mt_dtype dtype, int64_t m, int64_t n, int64_t k, int layout, int64_t pad)
{
    mti_view a = values_new_laid_out(dtype, 2, (int64_t[]){m, k}, layout & 1, pad);
    mti_view b = values_new_laid_out(dtype, 2, (int64_t[]){k, n}, layout & 2, pad);
    mti_view c = values_new_laid_out(dtype, 2, (int64_t[]){m, n}, layout & 4, pad);
    mti_view before = values_new(dtype, 2, (int64_t[]){m, n});
    mti_view bias = values_new(dtype, 1, (int64_t[]){n});
    values_random(&a, 1), values_random(&b, 2), values_random(&before, 3), values_random(&bias, 4);
    for (int with = 3; with >= 0; with--) {
        const mti_view *added = with & 1 ? &bias : NULL;
        if (with & 2)
            copy_values(&before, &c);
        else
            values_fill(&c, (double)NAN);                  /* beta 0 must not read it */
        bool any = with == 2 && mt_dtype_size(dtype) == 2; /* a beta that is not 1 */
        gemm(2, 0.5, &a, &b, any ? -4 : with & 2 ? 1 : 0, &c, added);
        for (int64_t i = 0; any && i < m * n; i++)
            values_set(&before, i, -4 * values_get(&before, i));
        check_all(0.5, &a, &b, with & 2 ? &before : NULL, &c, added);
        assert_true(values_surroundings_untouched(&c));
    }
    values_free_all();
}

static void every_dtype_layout_and_odd_size_agrees_with_a_plain_loop(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{1, 1, 1},  {1, 7, 5},   {7, 1, 5},    {3, 5, 1},
                                       {8, 16, 8}, {33, 17, 9}, {65, 31, 129}};
    for (size_t t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int layout = 0; layout < 8; layout++)
                for (int64_t pad = 0; pad <= 3; pad += 3)
                    try_layout(dtypes[t], sizes[s][0], sizes[s][1], sizes[s][2], layout, pad);
}

/* Products that are divided: thin ones, ones in place, strips (of more than 4 MiB of operands),
 * several blocks of k, one tile of 16-bit floats for two threads, transposed blocks. The short form
 * tries each size with each dtype, in two of eight layouts; of these products, too, some at a time
 * (mtt_case). */
static const int64_t cut_sizes[][3] = {{3, 1500, 700},  {1300, 5, 400},  {129, 140, 150},
                                       {70, 65, 2100},  {600, 530, 710}, {1030, 1100, 515},
                                       {301, 203, 100}, {200, 96, 150},  {40, 90, 260}};

static void products_divided_into_tiles_agree_with_a_plain_loop(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof cut_sizes / sizeof *cut_sizes; s++)
            for (int layout = 0; layout < 8; layout++) {
                if (!mtt_long() && (t + s + (size_t)layout) % 4 != 0) continue;
                if (!mtt_case(t + s / 2)) continue;
                int64_t m = cut_sizes[s][0], n = cut_sizes[s][1], k = cut_sizes[s][2];
                mti_view a = values_new_laid_out(dtypes[t], 2, (int64_t[]){m, k}, layout & 1, 1);
                mti_view b = values_new_laid_out(dtypes[t], 2, (int64_t[]){k, n}, layout & 2, 1);
                mti_view c = values_new_laid_out(dtypes[t], 2, (int64_t[]){m, n}, layout & 4, 1);
                mti_view bias = values_new(dtypes[t], 1, (int64_t[]){n});
                values_random(&a, 5), values_random(&b, 6), values_random(&bias, 7);
                values_fill(&c, (double)NAN);
                const mti_view *added = layout % 3 == 0 ? &bias : NULL;
                gemm(2, 1, &a, &b, 0, &c, added);
                double *x = values_all(&a), *y = values_all(&b), *z = values_all(&c);
                for (int64_t e = 0; e < m * n; e++) assert_false(isnan(z[e]));
                for (int64_t e = 0; e < m * n; e += 997) /* reaches every tile and every edge */
                    check_element(1, &a, x, &b, y, NULL, &c, added, 0, e / n, e % n);
                check_element(1, &a, x, &b, y, NULL, &c, added, 0, m - 1, n - 1);
                free(x), free(y), free(z);
                assert_true(values_surroundings_untouched(&c));
                values_free_all();
            }
}

static void batches_may_be_broadcast(void **state)
{
    (void)state;
    int64_t m = 5, n = 6, k = 7;
    for (size_t t = 0; t < 4; t++)
        for (int which = 0; which < 16; which++) { /* stride 0: bits 0, 1 in a; 2, 3 in b */
            mti_view a = values_new(dtypes[t], 4, (int64_t[]){3, 4, m, k});
            mti_view b = values_new(dtypes[t], 4, (int64_t[]){3, 4, k, n});
            mti_view c = values_new(dtypes[t], 4, (int64_t[]){3, 4, m, n});
            values_random(&a, 8), values_random(&b, 9);
            if (which & 1) a.stride[0] = 0;
            if (which & 2) a.stride[1] = 0;
            if (which & 4) b.stride[0] = 0;
            if (which & 8) b.stride[1] = 0;
            gemm(2, 1, &a, &b, 0, &c, NULL);
            check_all(1, &a, &b, NULL, &c, NULL);
            values_free_all();
        }
}

static void an_empty_sum_gives_beta_c_plus_bias(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++)
        for (int with = 0; with < 8; with++) {
            mti_view a = values_new(dtypes[t], 2, (int64_t[]){5, 0});
            mti_view b = values_new(dtypes[t], 2, (int64_t[]){0, 6});
            mti_view c = values_new_laid_out(dtypes[t], 2, (int64_t[]){5, 6}, with & 4, 2);
            mti_view before = values_new(dtypes[t], 2, (int64_t[]){5, 6});
            mti_view bias = values_new(dtypes[t], 1, (int64_t[]){6});
            values_random(&before, 1), values_random(&bias, 2);
            copy_values(&before, &c);
            const mti_view *added = with & 1 ? &bias : NULL;
            gemm(1, 1, &a, &b, with & 2 ? 1 : 0, &c, added);
            check_all(1, &a, &b, with & 2 ? &before : NULL, &c, added);
            values_free_all();
        }
}

static void a_product_without_elements_does_nothing(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{0, 4, 3}, {4, 0, 3}, {0, 0, 0}};
    for (size_t s = 0; s < 3; s++) {
        mti_view a = values_new(MT_F32, 2, (int64_t[]){sizes[s][0], sizes[s][2]});
        mti_view b = values_new(MT_F32, 2, (int64_t[]){sizes[s][2], sizes[s][1]});
        mti_view c = values_new(MT_F32, 2, (int64_t[]){sizes[s][0], sizes[s][1]});
        gemm(2, 1, &a, &b, 0, &c, NULL);
        assert_true(values_surroundings_untouched(&c));
        values_free_all();
    }
}

/* a, b, c of the s-th size; c twice. */
static void make_cut(mt_dtype dtype, size_t s, mti_view v[4])
{
    int64_t m = cut_sizes[s][0], n = cut_sizes[s][1], k = cut_sizes[s][2];
    v[0] = values_new(dtype, 2, (int64_t[]){m, k});
    v[1] = values_new_laid_out(dtype, 2, (int64_t[]){k, n}, s % 2 == 0, 0);
    v[2] = values_new(dtype, 2, (int64_t[]){m, n});
    v[3] = values_new(dtype, 2, (int64_t[]){m, n});
    values_random(&v[0], 10), values_random(&v[1], 11);
}

static void bits_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof cut_sizes / sizeof *cut_sizes; s++) {
            if (!mtt_case(t + s)) continue;
            mti_view v[4];
            make_cut(dtypes[t], s, v);
            gemm(1, 1, &v[0], &v[1], 0, &v[2], NULL);
            for (int threads = 2; threads <= 3; threads++) {
                values_fill(&v[3], 0);
                gemm(threads, 1, &v[0], &v[1], 0, &v[3], NULL);
                assert_true(values_same_bits(&v[2], &v[3]));
            }
            values_free_all();
        }
}

/* Another host thread may set the number of threads at any time. */
static void threads_set_after_the_scratch_was_asked_for_stay_within_it(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof cut_sizes / sizeof *cut_sizes; s++) {
            if (!mtt_case((size_t)t + s + 2)) continue;
            mti_view v[4];
            make_cut(dtypes[t], s, v);
            gemm(1, 1, &v[0], &v[1], 0, &v[2], NULL);
            for (int asked = 1; asked <= 4; asked += 3) {
                values_fill(&v[3], 0);
                gemm_after(asked, 5 - asked, 1, &v[0], &v[1], 0, &v[3], NULL);
                assert_true(values_same_bits(&v[2], &v[3]));
            }
            values_free_all();
        }
}

enum { CALLERS = 3, SIZES = sizeof cut_sizes / sizeof *cut_sizes };

typedef struct caller {
    int threads;
    mti_view v[SIZES][4];
} caller;

static void *multiply(void *arg)
{
    caller *c = arg;
    for (int round = 0; round < (mtt_long() ? 5 : 2); round++)
        for (size_t s = 0; s < SIZES; s++)
            gemm(c->threads, 1, &c->v[s][0], &c->v[s][1], 0, &c->v[s][3], NULL);
    return NULL;
}

static void callers_on_several_threads_get_the_same_bits(void **state)
{
    (void)state;
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    for (int n = 0; n < CALLERS; n++) {
        callers[n].threads = n + 1;
        for (size_t s = 0; s < SIZES; s++) make_cut(MT_F32, s, callers[n].v[s]);
    }
    mti_view(*first)[4] = callers[0].v;
    for (size_t s = 0; s < SIZES; s++)
        gemm(1, 1, &first[s][0], &first[s][1], 0, &first[s][2], NULL);
    for (int n = 0; n < CALLERS; n++)
        assert_int_equal(pthread_create(&threads[n], NULL, multiply, &callers[n]), 0);
    for (int n = 0; n < CALLERS; n++) pthread_join(threads[n], NULL);
    for (int n = 0; n < CALLERS; n++)
        for (size_t s = 0; s < SIZES; s++)
            assert_true(values_same_bits(&first[s][2], &callers[n].v[s][3]));
    values_free_all();
}

static void a_product_leaves_the_callers_openmp_setting_alone(void **state)
{
    (void)state;
    mti_view v[4];
    make_cut(MT_F32, 0, v);
    int was = omp_get_max_threads();
    omp_set_num_threads(3);
    gemm(1, 1, &v[0], &v[1], 0, &v[2], NULL);
    gemm(2, 1, &v[0], &v[1], 0, &v[2], NULL);
    assert_int_equal(omp_get_max_threads(), 3);
    omp_set_num_threads(was);
    values_free_all();
}

static void half_precision_scratch_is_bounded(void **state)
{
    (void)state;
    if (strcmp(mtt_chosen()->kind, "cpu") != 0) skip();
    mti_ctx ctx = {.threads = 2};
    mti_view v = {.dtype = MT_BF16, .rank = 2, .shape = {65536, 65536}, .stride = {65536, 1}};
    size_t n_bytes = mti_cpu_gemm_scratch(&ctx, &v, &v, &v);
    assert_true(n_bytes > 0 && n_bytes <= (size_t)4 << 20);
    v.dtype = MT_F32;
    assert_int_equal(mti_cpu_gemm_scratch(&ctx, &v, &v, &v), 0);
}

/* A view of memory of which only the pages of its elements are ever touched; rows, or columns if
 * `transposed`, lie `far` elements apart, which no int holds. */
static mti_view far_apart(mt_dtype dtype, int64_t rows, int64_t cols, bool transposed, size_t *n)
{
    int64_t far = ((int64_t)1 << 31) + 64, lines = transposed ? cols : rows;
    mti_view v = {.dtype = dtype, .rank = 2, .shape = {rows, cols}};
    v.stride[0] = transposed ? 1 : far, v.stride[1] = transposed ? far : 1;
    *n = ((size_t)((lines - 1) * far) + 64) * mt_dtype_size(dtype);
    v.data =
        mmap(NULL, *n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(v.data != MAP_FAILED);
    return v;
}

static void rows_may_be_farther_apart_than_an_int_holds(void **state)
{
    (void)state;
    if (strcmp(mtt_chosen()->kind, "cpu") != 0) skip(); /* no other one can reach that memory */
    for (size_t t = 0; t < 4; t++)
        for (int layout = 0; layout < 8; layout++)
            for (int far = 0; far < 3; far++) { /* a, b or c */
                static const int64_t rows[] = {4, 3, 4}, columns[] = {3, 5, 5};
                mti_view v[3];
                size_t n_bytes = 0;
                for (int i = 0; i < 3; i++) {
                    const int64_t shape[] = {rows[i], columns[i]};
                    v[i] = i == far ? far_apart(dtypes[t], rows[i], columns[i], layout >> i & 1,
                                                &n_bytes)
                                    : values_new_laid_out(dtypes[t], 2, shape, layout >> i & 1, 1);
                    values_random(&v[i], (uint64_t)i);
                }
                gemm(2, 0.5, &v[0], &v[1], 0, &v[2], NULL);
                check_all(0.5, &v[0], &v[1], NULL, &v[2], NULL);
                munmap(v[far].data, n_bytes);
                values_free_all();
            }
}

static void openblas_gets_better_kernels_if_it_does_not_know_the_cpu(void **state)
{
    (void)state;
    assert_null(mti_openblas_better_core("Prescott", false, false));
    assert_string_equal(mti_openblas_better_core("Prescott", true, false), "Haswell");
    assert_string_equal(mti_openblas_better_core("Nehalem", true, true), "SkylakeX");
    for (const char *const *core =
             (const char *const[]){"Haswell", "Zen", "SkylakeX", "Cooperlake", NULL};
         *core; core++)
        assert_null(mti_openblas_better_core(*core, true, true));
    mt_openblas now = mt_openblas_get();
    assert_non_null(strstr(now.version, "OpenBLAS"));
    assert_true(*now.core);
}

/* A second thread takes part wherever there is work for it, on every processor. */
static void large_products_are_shared_by_threads(void **state)
{
    (void)state;
    static const int64_t sides[] = {64, 192, 512, 1024};
    if (strcmp(mtt_chosen()->kind, "cpu") != 0) skip();
    mti_ctx *ctx = values_open(2);
    for (int i = 0; i < 4 * 4 * 4 * 8; i++) {
        const int64_t m = sides[i % 4], n = sides[i / 4 % 4], k = sides[i / 16 % 4];
        const bool at = i / 64 % 2, bt = i / 128 % 2;
        const mt_dtype dtype = i / 256 ? MT_F64 : MT_F32;
        if (m * n * k < 4 << 20 || (m < 128 && n < 192)) continue; /* as little as one tile */
        mti_view a = values_new_laid_out(dtype, 2, (int64_t[]){m, k}, at, 0);
        mti_view b = values_new_laid_out(dtype, 2, (int64_t[]){k, n}, bt, 0);
        mti_view c = values_new(dtype, 2, (int64_t[]){m, n});
        int before = atomic_load(&ctx->shared);
        assert_true(mtt_chosen()->gemm(ctx, 1, &a, &b, 0, &c, NULL, NULL, 0));
        if (atomic_load(&ctx->shared) == before)
            fail_msg("%s [%lld,%lld] x [%lld,%lld], %c%c: by one thread", mt_dtype_name(dtype),
                     (long long)m, (long long)k, (long long)k, (long long)n, at ? 't' : 'n',
                     bt ? 't' : 'n');
        values_free_all();
    }
    mtt_chosen()->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_layout_and_odd_size_agrees_with_a_plain_loop),
        cmocka_unit_test(products_divided_into_tiles_agree_with_a_plain_loop),
        cmocka_unit_test(batches_may_be_broadcast),
        cmocka_unit_test(an_empty_sum_gives_beta_c_plus_bias),
        cmocka_unit_test(a_product_without_elements_does_nothing),
        cmocka_unit_test(bits_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(large_products_are_shared_by_threads),
        cmocka_unit_test(threads_set_after_the_scratch_was_asked_for_stay_within_it),
        cmocka_unit_test(callers_on_several_threads_get_the_same_bits),
        cmocka_unit_test(a_product_leaves_the_callers_openmp_setting_alone),
        cmocka_unit_test(openblas_gets_better_kernels_if_it_does_not_know_the_cpu),
        cmocka_unit_test(half_precision_scratch_is_bounded),
        cmocka_unit_test(rows_may_be_farther_apart_than_an_int_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
