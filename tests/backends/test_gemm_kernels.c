/* Our own kernels for products of f32 (gemm_avx2.c): at every remainder of rows, columns and sums
 * they agree with a loop in f64, write nothing else, and an element has the same bits in any tile.
 */
#include <math.h>
#include <pthread.h>
#include "backends/cpu/products/blas.h"
#include "mtt.h"

enum { MOST_M = 110, MOST_N = 150, MOST_K = 520, PAD = 3 };

static float value(int64_t i, int seed)
{
    uint32_t x = (uint32_t)(i + 1) * 2654435761u + (uint32_t)seed * 40503u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    return (float)(x % 2001) / 1000 - 1;
}

typedef struct product {
    int64_t m, n, k, ld_a, ld_b, ld_c;
    bool at, bt, adds;
    float alpha;
    float *a, *b, *c, *before, *row; /* row: what is added to every row, or NULL */
} product;

static float *filled(int64_t n, int seed)
{
    float *p = malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < n; i++) p[i] = value(i, seed);
    return p;
}

static product made(int64_t m, int64_t n, int64_t k, int form, bool adds, float alpha)
{
    product p = {m, n, k, .at = form & 1, .bt = form & 2, .adds = adds, .alpha = alpha};
    p.ld_a = (p.at ? m : k) + PAD, p.ld_b = (p.bt ? k : n) + PAD, p.ld_c = n + PAD;
    p.a = filled(p.ld_a * (p.at ? k : m), 1);
    p.b = filled(p.ld_b * (p.bt ? n : k), 2);
    p.c = filled(p.ld_c * m, 3);
    p.before = filled(p.ld_c * m, 3);
    return p;
}

static void freed(product *p) { free(p->a), free(p->b), free(p->c), free(p->before), free(p->row); }

/* Rows [i, i + m) and columns [j, j + n) of c. */
static void compute(const product *p, int64_t i, int64_t j, int64_t m, int64_t n, float *c)
{
    mti_mat a = {p->a + (p->at ? i : i * p->ld_a), p->ld_a, p->at};
    mti_mat b = {p->b + (p->bt ? j * p->ld_b : j), p->ld_b, p->bt};
    float *out = c + i * p->ld_c + j;
    if (p->row)
        mti_gemm_avx2_product(m, n, p->k, p->alpha, a, b, p->row + j, 0, out, p->ld_c);
    else
        mti_gemm_avx2_product(m, n, p->k, p->alpha, a, b, p->adds ? out : NULL, p->ld_c, out,
                              p->ld_c);
}

static void check_element(const product *p, int64_t i, int64_t j)
{
    double sum = 0, size = 0, start = p->row ? p->row[j] : p->adds ? p->before[i * p->ld_c + j] : 0;
    for (int64_t q = 0; q < p->k; q++) {
        double term = (double)p->a[p->at ? q * p->ld_a + i : i * p->ld_a + q] *
                      p->b[p->bt ? j * p->ld_b + q : q * p->ld_b + j];
        sum += term, size += fabs(term);
    }
    double want = p->alpha * sum + start, got = p->c[i * p->ld_c + j];
    double bound = 0x1p-24 * ((double)p->k + 4) * (fabs(p->alpha) * size + fabs(start) + 1);
    if (!(fabs(got - want) <= bound))
        fail_msg("[%lld,%lld,%lld] form %d%d (%lld,%lld): %.9g, want %.9g", (long long)p->m,
                 (long long)p->n, (long long)p->k, p->at, p->bt, (long long)i, (long long)j, got,
                 want);
}

static void check(int64_t m, int64_t n, int64_t k, int form, bool adds, float alpha)
{
    product p = made(m, n, k, form, adds, alpha);
    if (!adds && k % 2) p.row = filled(n, 4);
    for (int64_t i = 0; !adds && i < m; i++)
        for (int64_t j = 0; j < n; j++) p.c[i * p.ld_c + j] = NAN; /* not to be read */
    compute(&p, 0, 0, m, n, p.c);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) check_element(&p, i, j);
        for (int64_t j = n; j < p.ld_c; j++)
            assert_true(p.c[i * p.ld_c + j] == p.before[i * p.ld_c + j]);
    }
    freed(&p);
}

static void every_remainder_agrees_with_a_plain_loop(void **state)
{
    (void)state;
    static const int64_t ks[] = {1, 7, 8, 17};
    if (!mti_gemm_avx2_runs()) skip();
    for (int64_t m = 1; m <= 13; m++)
        for (int64_t n = 1; n <= 33; n++)
            for (int i = 0; i < 4; i++)
                for (int form = 0; form < 4; form++)
                    check(m, n, ks[i], form, (m + n + i) % 2, form == 1 ? -0.5f : 1);
}

static void several_blocks_agree_with_a_plain_loop(void **state)
{
    (void)state;
    static const int64_t ms[] = {48, 49, 101}, ns[] = {64, 127, 145}, ks[] = {256, 257, 513};
    if (!mti_gemm_avx2_runs()) skip();
    for (int i = 0; i < 3 * 3 * 3 * 4; i++)
        check(ms[i % 3], ns[i / 3 % 3], ks[i / 9 % 3], i / 27, i % 2, 1);
    check(20, 4099, 9, 0, true, 2);
    check(20, 4099, 9, 2, false, 2);
}

/* So tiles may be cut anywhere. */
static void an_element_has_the_same_bits_in_every_tile(void **state)
{
    (void)state;
    static const int64_t cuts[][2] = {{1, 1}, {6, 16}, {7, 33}, {50, 17}, {64, 96}};
    if (!mti_gemm_avx2_runs()) skip();
    for (int form = 0; form < 4; form++)
        for (int cut = 0; cut < 5; cut++) {
            product p = made(MOST_M, MOST_N, MOST_K, form, cut % 2, 1.25f);
            float *whole = filled(p.ld_c * p.m, 3);
            compute(&p, 0, 0, p.m, p.n, whole);
            const int64_t tall = cuts[cut][0], wide = cuts[cut][1];
            for (int64_t i = 0; i < p.m; i += tall)
                for (int64_t j = 0; j < p.n; j += wide)
                    compute(&p, i, j, p.m - i < tall ? p.m - i : tall,
                            p.n - j < wide ? p.n - j : wide, p.c);
            assert_memory_equal(whole, p.c, (size_t)(p.ld_c * p.m) * sizeof *whole);
            free(whole);
            freed(&p);
        }
}

static void *compute_in_thread(void *user)
{
    product *p = user;
    compute(p, 0, 0, p->m, p->n, p->c);
    return NULL;
}

/* A program's own threads may have little. */
static void a_stack_of_128_kib_is_enough(void **state)
{
    (void)state;
    pthread_attr_t attributes;
    if (!mti_gemm_avx2_runs()) skip();
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, (size_t)128 << 10), 0);
    for (int form = 0; form < 4; form++) {
        product p = made(100, 300, 500, form, false, 1);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, &attributes, compute_in_thread, &p), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        for (int64_t i = 0; i < p.m * p.n; i++) check_element(&p, i / p.n, i % p.n);
        freed(&p);
    }
    pthread_attr_destroy(&attributes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_remainder_agrees_with_a_plain_loop),
        cmocka_unit_test(several_blocks_agree_with_a_plain_loop),
        cmocka_unit_test(an_element_has_the_same_bits_in_every_tile),
        cmocka_unit_test(a_stack_of_128_kib_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
