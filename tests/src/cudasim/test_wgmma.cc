/* The simulator's products of a warpgroup: both forms give the matrix product, and planted faults
 * of a kernel are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "cudasim/cudasim.h"
extern "C" {
#include <cmocka.h>
}

struct stream_holder {
    cudaStream_t stream;
};
static cudaStream_t mti_stream(const stream_holder *s) { return s->stream; }
static stream_holder none = {nullptr};

static bool mti_cuda_ok(cudaError_t status, const char *) { return status == cudaSuccess; }

enum planted {
    nothing,
    no_fence_of_copies,
    no_fence_of_registers,
    read_before_the_wait,
    written_before_the_wait,
    a_changed_before_the_wait,
    tile_overwritten_before_the_wait,
    never_waited_for,
    other_products_in_one_warp,
    more_arrivals_needed,
};

static constexpr int SIDE = 64, TILE = SIDE * 128; /* bytes of a tile */

/* Copies a matrix [64][64] of bf16 into a tile; piece c of row r goes to place c ^ r % 8. */
static void copy_tile(unsigned char *tile, const uint16_t *from)
{
    for (int piece = (int)threadIdx.x; piece < SIDE * 8; piece += (int)blockDim.x) {
        int r = piece / 8, c = piece % 8;
        mti_cp_async_16(tile + r * 128 + (c ^ r % 8) * 16, from + r * SIDE + c * 8, true);
    }
}

/* By the manual: address, first and second distance, all by 16; the swizzle of 128 bytes is 1. */
static uint64_t descriptor(const unsigned char *p, uint64_t first, uint64_t second)
{
    return mti_shared_address(p) >> 4 | first >> 4 << 16 | second >> 4 << 32 | (uint64_t)1 << 62;
}

/* d[64][64] = a b^T with both in shared memory, or a b with a in registers. */
static void product(const uint16_t *a, const uint16_t *b, float *d, bool in_registers,
                    planted fault)
{
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    unsigned char *tiles = shared + (0u - mti_shared_address(shared)) % 1024;
    uint64_t *full = (uint64_t *)(void *)(tiles + 2 * TILE);
    if (threadIdx.x == 0) mti_mbarrier_init(full, fault == more_arrivals_needed ? 129 : 128);
    __syncthreads();
    copy_tile(tiles, a), copy_tile(tiles + TILE, b);
    mti_mbarrier_arrive_copied(full);
    mti_mbarrier_wait(full, 0);
    if (fault != no_fence_of_copies) mti_fence_async();
    float sum[8][4];
    uint32_t pairs[4][4];
    int warp = (int)threadIdx.x / 32, g = cudasim::lane() / 4, c = cudasim::lane() % 4;
    for (int i = 0; i < 32; i++) sum[i / 4][i % 4] = 0;
    for (int i = 0; i < 16; i++)
        memcpy(&pairs[i / 4][i % 4],
               a + (warp * 16 + g + i % 2 * 8) * SIDE + i / 4 * 16 + i % 4 / 2 * 8 + 2 * c, 4);
    if (fault != no_fence_of_registers) mti_wgmma_fence();
    for (int k = 0; k < 4; k++)
        if (in_registers)
            mti_wgmma(sum, pairs[k], descriptor(tiles + TILE + k * 2048, TILE, 1024));
        else
            mti_wgmma(sum, descriptor(tiles + k * 32, 16, 1024),
                      descriptor(tiles + TILE + k * 32, 16, 1024), k > 0);
    if (fault == other_products_in_one_warp && warp == 2)
        mti_wgmma(sum, pairs[0], descriptor(tiles, TILE, 1024));
    mti_wgmma_commit();
    float early = sum[3][1];
    if (fault == written_before_the_wait) sum[3][1] = 1;
    if (fault == a_changed_before_the_wait) pairs[3][1]++;
    if (fault == tile_overwritten_before_the_wait) {
        copy_tile(tiles, b);
        mti_cp_async_commit();
        mti_cp_async_wait<0>();
    }
    if (fault == never_waited_for) return;
    mti_wgmma_wait<0>();
    if (fault == read_before_the_wait) sum[3][1] = early;
    for (int n = 0; n < 8; n++)
        for (int e = 0; e < 4; e++)
            d[(warp * 16 + g + e / 2 * 8) * SIDE + n * 8 + 2 * c + e % 2] = sum[n][e];
}

static __global__ void run_product(const uint16_t *a, const uint16_t *b, float *d,
                                   bool in_registers, planted fault)
{
    product(a, b, d, in_registers, fault);
}

static uint16_t a[SIDE * SIDE], b[SIDE * SIDE];
static float d[SIDE * SIDE];

static bool run(bool in_registers, planted fault)
{
    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = cudasim_bf16_bits((float)(i * 7 % 13 - 6));
        b[i] = cudasim_bf16_bits((float)(i * 5 % 11 - 5));
        d[i] = 0;
    }
    stream_holder *ctx = &none;
    return MTI_LAUNCH(ctx, run_product, 1, 128, 1024 + 2 * TILE + 8, a, b, d, in_registers, fault);
}

static float number(const uint16_t *m, int r, int c) { return cudasim_bf16_value(m[r * SIDE + c]); }

static void both_forms_give_the_matrix_product(void **)
{
    for (int in_registers = 0; in_registers < 2; in_registers++) {
        assert_true(run(in_registers, nothing));
        for (int r = 0; r < SIDE; r++)
            for (int c = 0; c < SIDE; c++) {
                float sum = 0;
                for (int k = 0; k < SIDE; k++)
                    sum += number(a, r, k) * (in_registers ? number(b, k, c) : number(b, c, k));
                assert_true(d[r * SIDE + c] == sum);
            }
    }
}

static void planted_faults_are_found(void **)
{
    static const struct {
        planted fault;
        bool in_registers;
        const char *text;
    } cases[] = {
        {no_fence_of_copies, false, "copied without a fence of its threads since"},
        {no_fence_of_registers, false, "without mti_wgmma_fence"},
        {written_before_the_wait, false, "accumulators were written during a product"},
        {a_changed_before_the_wait, true, "A's registers changed"},
        {tile_overwritten_before_the_wait, false, "copied without a fence of its threads since"},
        {never_waited_for, true, "ended before its products were waited for"},
        {other_products_in_one_warp, false, "its warpgroup started other products"},
        {more_arrivals_needed, false, "waits for ever in an mbarrier"},
    };
    for (auto &c : cases) {
        assert_false(run(c.in_registers, c.fault));
        const char *fault = cudasim_take_fault();
        if (!strstr(fault, c.text)) fail_msg("\"%s\" lacks \"%s\"", fault, c.text);
    }
}

static void accumulators_are_nan_until_the_wait(void **)
{
    assert_true(run(false, read_before_the_wait));
    assert_true(d[8 * 3 + 1] != d[8 * 3 + 1]);
    assert_true(d[0] == d[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_give_the_matrix_product),
        cmocka_unit_test(planted_faults_are_found),
        cmocka_unit_test(accumulators_are_nan_until_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
