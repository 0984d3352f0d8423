/* Index arithmetic of calls with more elements than 32 bits can count. No data is there: the views
 * have invented addresses, index functions run on the host, and launches are noted, not run. */
#define MTI_WHOLE_LAYOUTS
#include <setjmp.h>
#include <stdarg.h>
#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/rows/dims.cuh"
#include "backends/cuda/rows/reduce.cu"
extern "C" {
#include <cmocka.h>
}

static const int64_t two31 = (int64_t)1 << 31, two32 = (int64_t)1 << 32;
static char *const invented = reinterpret_cast<char *>((uintptr_t)1 << 46);

static mti_ctx *ctx;

/* Row-major unless strides are given; where: which of the invented places. */
static mti_view view_of(int where, mt_dtype dtype, std::initializer_list<int64_t> shape,
                        std::initializer_list<int64_t> stride = {})
{
    mti_view v = {};
    v.data = invented + ((ptrdiff_t)where << 42);
    v.dtype = dtype;
    v.rank = (int)shape.size();
    int64_t next = 1;
    for (int d = v.rank - 1; d >= 0; d--) {
        v.shape[d] = shape.begin()[d];
        v.stride[d] = stride.size() ? stride.begin()[d] : next;
        next *= v.shape[d];
    }
    return v;
}

/* By hand, in 64 bits: the address of the element that is number i in row-major order. */
static const char *address_of(const mti_view &v, uint64_t i)
{
    int64_t offset = 0;
    for (int d = v.rank - 1; d >= 0; d--) {
        offset += (int64_t)(i % (uint64_t)v.shape[d]) * v.stride[d];
        i /= (uint64_t)v.shape[d];
    }
    return static_cast<const char *>(v.data) + offset * (int64_t)mt_dtype_size(v.dtype);
}

/* ---- walks ---- */

template <int N>
static void check_vector(const mti_walk<N> &w, const mti_view *const (&views)[N], uint32_t i,
                         int width)
{
    int64_t at[N];
    mti_seek(w, i, at);
    for (int k = 0; k < N; k++) {
        const char *found =
            static_cast<const char *>(w.data[k]) + at[k] * (int64_t)mt_dtype_size(views[k]->dtype);
        assert_ptr_equal(found, address_of(*views[k], w.first + (uint64_t)i * (uint64_t)width));
    }
}

/* Walks the views in row-major order as mti_map does; returns the number of launches. */
template <int N> static int check_walk(const mti_view *const (&views)[N], int width)
{
    mti_layout<N> whole = mti_lay_out(views, true);
    uint64_t next = 0;
    int parts = 0;
    bool ok = mti_cut(whole, [&](const mti_layout<N> &l) {
        int v = mti_can_take(l, width, 0) ? width : 1;
        mti_walk<N> w = mti_make_walk(l, v);
        assert_true(l.first == next); /* none is left out, none comes twice */
        assert_true((int64_t)w.count * v + w.tail == l.count);
        const uint32_t last = w.count - 1;
        for (uint32_t i : {0u, 1u, 255u, last / 3, last / 2, last / 2 + 1, last - 1, last})
            if (i <= last) check_vector(w, views, i, v);
        next += (uint64_t)l.count;
        parts++;
        return true;
    });
    assert_true(ok && next == (uint64_t)mti_view_count(views[0]));
    return parts;
}

static void walks_reach_every_element_beyond_32_bits(void **)
{
    /* 3 * 2^32 elements, [3, 2^16, 2^16]: contiguous; x transposed; x broadcast */
    const int64_t side = 1 << 16;
    mti_view y = view_of(0, MT_BF16, {3, side, side}), x = view_of(1, MT_BF16, {3, side, side});
    mti_view across = view_of(1, MT_BF16, {3, side, side}, {side * side, 1, side});
    mti_view one_row = view_of(1, MT_BF16, {3, side, side}, {0, 0, 1});
    for (const mti_view *other : {&x, &across, &one_row}) {
        const mti_view *views[] = {&y, other};
        assert_true(check_walk<2>(views, 8) >= 12);
    }
    /* an odd number of elements, and odd extents */
    mti_view odd = view_of(0, MT_F32, {two32 + 77}), odd_x = view_of(1, MT_F32, {two32 + 77});
    const mti_view *odd_views[] = {&odd, &odd_x};
    check_walk<2>(odd_views, 4);
    mti_view slice = view_of(0, MT_F32, {70001, 70003}, {70010, 1});
    const mti_view *slices[] = {&slice};
    check_walk<1>(slices, 4);
    /* backwards, and with rows more than 2^31 elements apart */
    mti_view reversed = view_of(0, MT_F64, {5, 1000}, {-two32 - 8, 1});
    const mti_view *apart[] = {&reversed};
    check_walk<1>(apart, 2);
}

static void walks_are_cut_at_exactly_31_bits(void **)
{
    mti_view y = view_of(0, MT_F32, {2, 1}, {two31 - 1, 1});
    const mti_view *views[] = {&y};
    assert_int_equal(check_walk<1>(views, 1), 1);
    y.stride[0] = two31;
    assert_int_equal(check_walk<1>(views, 1), 2);
    y.stride[0] = -two31;
    assert_int_equal(check_walk<1>(views, 1), 2);
    mti_view flat = view_of(0, MT_F32, {two31 / 2});
    const mti_view *flats[] = {&flat};
    assert_int_equal(check_walk<1>(flats, 4), 1);
    flat.shape[0]++;
    assert_int_equal(check_walk<1>(flats, 4), 2);
}

static void quotients_are_exact_up_to_31_bits(void **)
{
    const int64_t near[] = {
        1,         2,    3, 5, 7, 641, 65535, 65536, 65537, two31 / 2 - 1, two31 / 2, two31 / 2 + 1,
        two31 - 1, two31};
    uint64_t random = 1;
    auto check = [&](uint32_t n, uint32_t by) {
        assert_int_equal(mti_quotient(n, mti_divide_by(by)), n / by);
    };
    for (int64_t by : near)
        for (int64_t n : near)
            for (int64_t off : {-1, 0, 1})
                if (n + off >= 0 && n + off < two31) check((uint32_t)(n + off), (uint32_t)by);
    for (int i = 0; i < 200000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t by = (uint32_t)(random >> 33) >> (random >> 5 & 31);
        check((uint32_t)(random >> 32) & 0x7fffffffu, by ? by : 1);
    }
}

/* ---- offsets that kernels compute from a number ---- */

static void numbers_of_rows_and_elements_become_offsets_in_64_bits(void **)
{
    mti_view v =
        view_of(0, MT_BF16, {3, 5, 1 << 16, 1 << 15}, {two32 + 64, two32 / 2 + 8, 1 << 15, 1});
    mti_view_dims all = mti_dims_of(&v, 0, 4);
    mti_rowset rows = mti_rowset_of(&v);
    assert_true(all.count == 15 * two31 && rows.rows == 15 << 16);
    for (int64_t i : {(int64_t)0, two31 - 1, two31, two32 - 1, two32, two32 + 12345, all.count - 1})
        assert_ptr_equal(invented + 2 * mti_offset_of(all, i), address_of(v, (uint64_t)i));
    for (int64_t r : {(int64_t)0, (int64_t)65535, (int64_t)65536, rows.rows / 2, rows.rows - 1})
        assert_ptr_equal(mti_row_at<char>(rows, 0) +
                             2 * (mti_row_at<char>(rows, r) - mti_row_at<char>(rows, 0)),
                         address_of(v, (uint64_t)r << 15));
}

static void sums_divide_by_multiplying_only_while_31_bits_suffice(void **)
{
    for (int64_t n : {two31 - 1, two31, two31 + 1, two32 + 5}) {
        mti_view x = view_of(0, MT_F32, {n, 3}, {7, 2});
        const mti_view *views[] = {&x};
        mti_layout<1> l = mti_lay_out(views, true);
        mti_steps s = make_steps(l, 0, 1, 1);
        assert_true(s.narrow == (n < two31));
        for (int64_t i : {(int64_t)0, n / 2, n - 1}) assert_true(offset_of(s, i) == i * 7);
    }
    mti_view x = view_of(0, MT_F32, {3, two32 / 2}, {two32 + 8, 2});
    const mti_view *views[] = {&x};
    mti_layout<1> l = mti_lay_out(views, true);
    mti_steps s = make_steps(l, 0, 2, 1);
    assert_false(s.narrow);
    for (uint64_t i : {(uint64_t)0, (uint64_t)two31, (uint64_t)two32, (uint64_t)two32 + two31 - 1})
        assert_ptr_equal(invented + 4 * offset_of(s, (int64_t)i), address_of(x, i));
}

static void attention_finds_rows_beyond_32_bits_and_its_tile_from_the_block(void **)
{
    mti_attn_rows q = {invented, 40 * two31, two31 + 8, 4096};
    for (int64_t b : {0, 7})
        for (int64_t h : {0, 31})
            for (int64_t i : {(int64_t)0, (int64_t)1 << 20})
                assert_ptr_equal(mti_attn_row<char>(q, b, h, i),
                                 invented + b * 40 * two31 + h * (two31 + 8) + i * 4096);
    mti_attn_args x = {};
    x.a = x.a_kv = 46337;
    x = mti_attn_grid(x, 46339, x.a); /* a prime near 2^15.5 each */
    for (int64_t block : {(int64_t)0, (int64_t)46338, (int64_t)46339, two31 / 2, two31 - 1}) {
        mti_attn_place at = mti_attn_place_of(x, (uint32_t)block);
        assert_int_equal(at.tile, block % 46339);
        assert_int_equal(at.head, block / 46339);
        assert_int_equal(at.b, block / 46339 / 46337);
        assert_int_equal(at.h, block / 46339 % 46337);
    }
}

/* ---- launches ---- */

static void same(int64_t found, int64_t expected)
{
    if (found != expected) fail_msg("%lld, not %lld", (long long)found, (long long)expected);
}

/* Blocks in x of the call's first launch; -1 if it was refused, with an error. */
template <class Call> static int64_t blocks_of(const Call &call)
{
    cudasim_layout_only(true);
    mt_clear_error();
    bool ok = call();
    size_t n;
    const cudasim_launch *noted = cudasim_noted(&n);
    assert_true(ok ? n > 0 : mt_last_status() != MT_OK);
    int64_t blocks = ok ? (int64_t)noted[0].grid[0] : -1;
    cudasim_take_fault();
    cudasim_layout_only(false);
    return blocks;
}

/* Calls that have a block for each `rows_per_block` rows: as many as 31 bits allow, and not one
 * more; where the number of blocks would begin again from 0, too. */
template <class Call> static void check_limit(int64_t rows_per_block, const Call &call)
{
    int64_t most = (two31 - 1) * rows_per_block, wrapped = two32 * rows_per_block;
    same(blocks_of([&] { return call(rows_per_block * 1000 + 1); }), 1001);
    same(blocks_of([&] { return call(most); }), two31 - 1);
    same(blocks_of([&] { return call(most + 1); }), -1);
    same(blocks_of([&] { return call(wrapped + 1); }), -1);
    same(blocks_of([&] { return call(wrapped + rows_per_block * 5); }), -1);
}

static void rows_beyond_a_grid_are_refused(void **)
{
    check_limit(1, [](int64_t rows) {
        mti_view index = view_of(0, MT_I64, {rows}), w = view_of(1, MT_F32, {50257, 1024});
        mti_view y = view_of(2, MT_F32, {rows, 1024});
        return mti_cuda_embedding(ctx, false, &index, &w, &y);
    });
    check_limit(1, [](int64_t rows) {
        mti_view index = view_of(0, MT_I64, {rows, 4}), dy = view_of(1, MT_BF16, {rows, 4});
        mti_view dx = view_of(2, MT_BF16, {rows, 4});
        return mti_cuda_gather_backward(ctx, 1, &index, &dy, &dx);
    });
    check_limit(256, [](int64_t n) {
        mti_view index = view_of(0, MT_I64, {n}), x = view_of(1, MT_BF16, {5});
        mti_view y = view_of(2, MT_BF16, {n});
        return mti_cuda_gather(ctx, 0, &x, &index, &y);
    });
    check_limit(1, [](int64_t rows) {
        mti_view x = view_of(0, MT_F32, {rows, 8}), values = view_of(1, MT_F32, {rows, 2});
        mti_view index = view_of(2, MT_I64, {rows, 2});
        return mti_cuda_topk(ctx, &x, &values, &index, invented);
    });
    check_limit(8, [](int64_t rows) {
        mti_view x = view_of(0, MT_BF16, {rows, 64}), y = view_of(1, MT_BF16, {rows});
        return mti_cuda_max(ctx, &x, &y, NULL);
    });
    check_limit(1, [](int64_t rows) {
        mti_view x = view_of(0, MT_BF16, {rows, 50257}), target = view_of(1, MT_I64, {rows});
        mti_view lse = view_of(2, MT_F32, {rows}), loss = view_of(3, MT_F32, {rows});
        return mti_cuda_entropy_rows(ctx, -100, &x, &target, &lse, &loss);
    });
    check_limit(1, [](int64_t rows) {
        mti_view x = view_of(0, MT_BF16, {rows, 50257}), target = view_of(1, MT_I64, {rows});
        mti_view lse = view_of(2, MT_F32, {rows}), scale = view_of(3, MT_F32, {});
        return mti_cuda_entropy_rows_backward(ctx, -100, 0, &x, &target, &lse, &scale, &x);
    });
    check_limit(1, [](int64_t rows) {
        mti_view x = view_of(0, MT_BF16, {rows, 8192}), y = view_of(1, MT_BF16, {rows, 8192});
        return mti_cuda_layer_norm(ctx, 1e-5, &x, NULL, NULL, &y, NULL, NULL);
    });
    check_limit(1, [](int64_t rows) {
        mti_view x = view_of(0, MT_BF16, {rows, 8192}), y = view_of(1, MT_BF16, {rows, 8192});
        return mti_cuda_log_softmax(ctx, &x, &y);
    });
    check_limit(1, [](int64_t rows) {
        mti_view y = view_of(0, MT_BF16, {rows, 8192}), dy = view_of(1, MT_BF16, {rows, 8192});
        return mti_cuda_softmax_backward(ctx, 1, &y, &dy, &dy);
    });
}

/* The target is read once a row, so the launch may have few blocks with many rows each. */
static void cross_entropy_takes_logits_beyond_32_bits(void **)
{
    for (int64_t rows : {(int64_t)42731, (int64_t)85462, (int64_t)1 << 20}) {
        assert_true(rows * 50257 > two31);
        mti_view x = view_of(0, MT_BF16, {rows, 50257}), target = view_of(1, MT_I64, {rows});
        mti_view logp = view_of(2, MT_BF16, {rows, 50257}), loss = view_of(3, MT_F32, {});
        int64_t blocks =
            blocks_of([&] { return mti_cuda_cross_entropy(ctx, -100, &x, &target, &logp, &loss); });
        assert_true(blocks > 0 && blocks <= 1024);
    }
    mti_view x = view_of(0, MT_BF16, {1, ((int64_t)1 << 34) - 1});
    mti_view y = view_of(1, MT_BF16, {1, x.shape[1]});
    same(blocks_of([&] { return mti_cuda_log_softmax(ctx, &x, &y); }), 1);
    x.shape[1]++, y.shape[1]++;
    same(blocks_of([&] { return mti_cuda_log_softmax(ctx, &x, &y); }), -1);
}

static void embedding_backward_counts_indices_in_32_bits_and_says_so(void **)
{
    auto call = [](int64_t count, int64_t rows) {
        mti_view index = view_of(0, MT_I64, {count}), dy = view_of(1, MT_BF16, {count, 64});
        mti_view dw = view_of(2, MT_BF16, {rows, 64});
        return blocks_of(
            [&] { return mti_cuda_embedding_backward(ctx, false, &index, &dy, &dw, invented); });
    };
    same(call(two31, 50257), two31 / 2048);
    same(call(two32 - 2, 50257), two32 / 2048);
    same(call(two32 - 1, 50257), -1);
    same(call(1000, two32 - 1), -1);
}

static void attention_counts_queries_in_32_bits_and_says_so(void **)
{
    auto call = [](mt_dtype dtype, int64_t b, int64_t a, int64_t s) {
        mti_view q = view_of(0, dtype, {b, a, s, 64});
        mti_attention at = {};
        at.q = at.k = at.v = at.o = &q;
        at.scale = 0.125, at.causal = true;
        return blocks_of([&] { return mti_cuda_attention(ctx, &at, NULL, 0); });
    };
    for (mt_dtype dtype : {MT_BF16, MT_F32}) {
        int64_t queries = dtype == MT_BF16 ? 128 : 64; /* of a block */
        same(call(dtype, 2, 32, (int64_t)1 << 20), 64 * ((1 << 20) / queries));
        same(call(dtype, two31 - 1, 1, 1), -1);
        same(call(dtype, 1, 1, (int64_t)1 << 30), (1 << 30) / queries);
        same(call(dtype, 1, 1, ((int64_t)1 << 30) + 1), -1);
        same(call(dtype, 1, 2, two31), -1);
        same(call(dtype, 1 << 16, (1 << 16) + 1, 1), -1); /* 2^16 heads, if counted in 32 bits */
        same(call(dtype, 1 << 16, (1 << 15) - 1, 1), (int64_t)(1 << 16) * ((1 << 15) - 1));
    }
}

/* ---- products ---- */

static cudasim_launch product_of(const mti_view &a, const mti_view &b, const mti_view &c)
{
    cudasim_layout_only(true);
    bool ok = mti_cuda_gemm(ctx, 1, &a, &b, 0, &c, NULL, invented, 0);
    size_t n;
    const cudasim_launch *noted = cudasim_noted(&n);
    cudasim_launch found = {};
    if (ok) {
        assert_int_equal(n, 1);
        found = noted[0];
    }
    cudasim_layout_only(false);
    return found;
}

static void products_pass_64_bit_dimensions_strides_and_31_bit_batches(void **)
{
    const int64_t wide = two32 + 16, far = 5 * two32;
    /* rows wider apart than 32 bits, in a batch of matrices that are further apart */
    mti_view a = view_of(0, MT_BF16, {7, 256, 64}, {far, wide, 1});
    mti_view b = view_of(1, MT_BF16, {7, 64, 128}, {far + 8, wide + 8, 1});
    mti_view c = view_of(2, MT_BF16, {7, 256, 128}, {far + 16, wide + 16, 1});
    cudasim_launch p = product_of(a, b, c);
    const mti_view *in_order[] = {&b, &a, &c}; /* row-major: c' = b' a' */
    for (int i = 0; i < 3; i++) {
        assert_true(p.ld[i] == in_order[i]->stride[1] && p.stride[i] == in_order[i]->stride[0]);
        assert_true(p.rows[i] == in_order[i]->shape[2] && p.columns[i] == in_order[i]->shape[1]);
    }
    assert_true(p.n_batch == 7);
    /* 2^26 tokens times a weight: 2^36 elements */
    mti_view x = view_of(0, MT_BF16, {1 << 10, 1 << 16, 1024}),
             w = view_of(1, MT_BF16, {1024, 1024});
    mti_view y = view_of(2, MT_BF16, {1 << 10, 1 << 16, 1024});
    mti_view each = w;
    each.rank = 3, each.shape[0] = 1 << 10, each.stride[0] = 0;
    each.shape[1] = each.shape[2] = 1024, each.stride[1] = 1024, each.stride[2] = 1;
    p = product_of(x, each, y);
    assert_true(p.columns[1] == 1 << 26 && p.columns[2] == 1 << 26 && p.n_batch == 1);
    /* the batch is a number of 31 bits */
    for (int64_t n : {two31 - 1, two31, two32 + 3}) {
        mti_view left = view_of(0, MT_F32, {n, 2, 3}), right = view_of(1, MT_F32, {n, 3, 2});
        mti_view out = view_of(2, MT_F32, {n, 2, 2});
        mt_clear_error();
        p = product_of(left, right, out);
        assert_true(p.n_batch == (n < two31 ? n : 0));
        assert_true((n < two31) == (mt_last_status() == MT_OK));
    }
}

static int open_context(void **)
{
    ctx = mti_cuda_open();
    return ctx ? 0 : -1;
}

static int close_context(void **)
{
    mti_cuda_close(ctx);
    return 0;
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks_reach_every_element_beyond_32_bits),
        cmocka_unit_test(walks_are_cut_at_exactly_31_bits),
        cmocka_unit_test(quotients_are_exact_up_to_31_bits),
        cmocka_unit_test(numbers_of_rows_and_elements_become_offsets_in_64_bits),
        cmocka_unit_test(sums_divide_by_multiplying_only_while_31_bits_suffice),
        cmocka_unit_test(attention_finds_rows_beyond_32_bits_and_its_tile_from_the_block),
        cmocka_unit_test(rows_beyond_a_grid_are_refused),
        cmocka_unit_test(cross_entropy_takes_logits_beyond_32_bits),
        cmocka_unit_test(embedding_backward_counts_indices_in_32_bits_and_says_so),
        cmocka_unit_test(attention_counts_queries_in_32_bits_and_says_so),
        cmocka_unit_test(products_pass_64_bit_dimensions_strides_and_31_bit_batches),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
