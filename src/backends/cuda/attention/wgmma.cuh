/* wgmma.cuh: Hopper's tensor cores (sm_90a): products by four warps at once, whose operands lie in
 * shared memory, and barriers in shared memory, for warps that copy what others multiply.
 *
 * The product. Four warps in a row, a warpgroup, start together
 *     D[64,N] += A[64,16] B[16,N]       bf16, f32 accumulators; N is 64 or 128 here
 * B lies in shared memory; A there, too, or in registers. With mma (attention_mma.cuh) each warp
 * loads B into its registers for 16 or 32 rows; here the tensor cores read it, once for 64 rows,
 * while the warps go on.
 *
 * Fragments. Warp w of the four has rows 16 w to 16 w + 15 of D and A, and in them a lane has what
 * it has with mma. With g = lane / 4, c = lane % 4 and columns in groups of 8, D is float[N/8][4]:
 *     d[n][0], d[n][1]     row g,       columns 8 n + 2 c and the next
 *     d[n][2], d[n][3]     row g + 8,   the same columns
 * and A in registers holds four pairs of bf16:
 *     a[0], a[1]           rows g and g + 8, columns 2 c and the next
 *     a[2], a[3]           the same rows, 8 columns on
 * So d[2 k] and d[2 k + 1], rounded, are the A of columns 16 k to 16 k + 15 in the next product.
 *
 * Tiles. 64 numbers of bf16 are a row of 128 bytes, all 32 banks of shared memory. A tile has such
 * rows one after the other, and a wider matrix has one tile for each 64 columns. Whoever reads one
 * column of 8 rows would find all of it in the same four banks; so each row's eight pieces of 16
 * bytes are swizzled: piece c of row r lies at place c ^ (r % 8).
 *     row 0   0 1 2 3 4 5 6 7
 *     row 1   1 0 3 2 5 4 7 6
 *     row 2   2 3 0 1 6 7 4 5      and so on; row 8 is as row 0
 * Hardware makes this of addresses: bits 4 to 6 ^= bits 7 to 9. Hence a tile begins at a multiple
 * of 1,024 bytes.
 *
 * Descriptors tell where an operand lies (PTX manual, "Matrix Descriptor Format"), in units of 16
 * bytes: bits 0-13 its address, 16-29 and 32-45 two distances, 62-63 the swizzle (1: of 128 bytes).
 * Let k be the index that the product sums over.
 *   - k along the rows, "K-major": q and k of S = q k^T. The second distance is that from 8 rows to
 *     the next 8: 1,024 bytes. The next 16 of k are 32 bytes on: the address is swizzled after
 *     all sums.
 *   - k along the columns, "MN-major", "transposed": v of P v, whose rows are the keys. The second
 *     distance is that from 8 keys to the next 8, again 1,024; the first that from 64 columns to
 *     the next 64: a whole tile. The next 16 of k are two groups of 8 rows on: 2,048 bytes.
 *
 * Order. A product runs beside the warps that started it:
 *     mti_wgmma_fence()     what this thread wrote to registers of products comes before them
 *     mti_wgmma(...)        starts one
 *     mti_wgmma_commit()    all started so far are a group
 *     mti_wgmma_wait<n>()   until all groups but the last n are done: until then nobody reads or
 *                           writes their D, nor writes their A
 *     mti_wgmma_settle(d)   tells the compiler that D has changed now
 * And tensor cores read shared memory by a way of their own (the "async proxy"): mti_fence_async(),
 * between the copy's arrival and the product, makes the copy visible there.
 *
 * mbarriers. 8 bytes of shared memory that count arrivals; when all have come a phase is over, the
 * count begins anew, and the phase's parity, 0 at first, changes. mti_mbarrier_wait(b, parity)
 * returns once the phase of that parity is over: at once with parity 1 if b is new.
 * mti_mbarrier_arrive_copied(b) arrives later, when this thread's copies so far (mti_cp_async_16)
 * have. Each stage of a ring has two: `full`, for those who copy into it, and `empty`, for those
 * who have read it. */
#ifndef MTI_CUDA_WGMMA_CUH
#define MTI_CUDA_WGMMA_CUH

#include "backends/cuda/attention/attention_softmax.cuh"

#define MTI_WARPGROUP    128  /* threads */
#define MTI_TILE_ROW     128  /* bytes */
#define MTI_TILE_ALIGN   1024 /* bytes */
#define MTI_TILE_COLUMNS 64

/* Where piece c (16 bytes) of row r lies in a tile. */
__device__ __forceinline__ int mti_tile_piece(int r, int c)
{
    return r * MTI_TILE_ROW + ((c ^ (r % 8)) << 4);
}

/* The descriptor of an operand in tiles of `rows` rows, at this shared address. The first distance
 * counts only where k goes along the columns. */
__device__ __forceinline__ uint64_t mti_tile_descriptor(uint32_t address, int rows)
{
    uint64_t tile = static_cast<uint64_t>(rows * MTI_TILE_ROW), eight_rows = 8 * MTI_TILE_ROW;
    return (static_cast<uint64_t>(address & 0x3ffffu) >> 4) | (tile >> 4) << 16 |
           (eight_rows >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}
/* The same, n_bytes on. */
__device__ __forceinline__ uint64_t mti_tile_after(uint64_t descriptor, int n_bytes)
{
    return descriptor + static_cast<uint64_t>(n_bytes >> 4);
}

/* ---- instructions; the simulator has its own ---- */

#ifndef MTI_CUDASIM

__device__ __forceinline__ void mti_mbarrier_init(uint64_t *barrier, int n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mti_shared_address(barrier)),
                 "r"(n_arrivals)
                 : "memory");
}
__device__ __forceinline__ void mti_mbarrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mti_shared_address(barrier))
                 : "memory");
}
__device__ __forceinline__ void mti_mbarrier_arrive_copied(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(mti_shared_address(barrier))
        : "memory");
}
__device__ __forceinline__ void mti_mbarrier_wait(uint64_t *barrier, unsigned parity)
{
    unsigned over;
    do
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(over)
                     : "r"(mti_shared_address(barrier)), "r"(parity)
                     : "memory");
    while (!over);
}

__device__ __forceinline__ void mti_fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mti_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void mti_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int n_left> __device__ __forceinline__ void mti_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n_left) : "memory");
}
/* All warps of a group: from here on the threads have n registers each, fewer or more than before;
 * more only once they are there. */
template <int n> __device__ __forceinline__ void mti_registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> __device__ __forceinline__ void mti_registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int TILES> __device__ __forceinline__ void mti_wgmma_settle(float (&d)[TILES][4])
{
#pragma unroll
    for (int n = 0; n < TILES; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

#define MTI_D(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define MTI_D_64 MTI_D(0), MTI_D(1), MTI_D(2), MTI_D(3), MTI_D(4), MTI_D(5), MTI_D(6), MTI_D(7)
#define MTI_D_128                                                                                  \
    MTI_D_64, MTI_D(8), MTI_D(9), MTI_D(10), MTI_D(11), MTI_D(12), MTI_D(13), MTI_D(14), MTI_D(15)
#define MTI_NAMES_64                                                                               \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                       \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MTI_NAMES_128                                                                              \
    MTI_NAMES_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"               \
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
/* A is the text of its operands and B's, `last` the number of the last operand: whether to add to
 * D; `end` the signs of A and B, and which are transposed. */
#define MTI_WGMMA(N, A, last, end, ...)                                                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #last ", 0;\n"                               \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" MTI_NAMES_##N        \
                 "}, " A ", p, " end ";\n}"                                                        \
                 : MTI_D_##N                                                                       \
                 : __VA_ARGS__)

/* D += A B, or D = A B unless `add`; both in shared memory, with k along the rows. */
__device__ __forceinline__ void mti_wgmma(float (&d)[8][4], uint64_t a, uint64_t b, bool add)
{
    MTI_WGMMA(64, "%32, %33", 34, "1, 1, 0, 0", "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void mti_wgmma(float (&d)[16][4], uint64_t a, uint64_t b, bool add)
{
    MTI_WGMMA(128, "%64, %65", 66, "1, 1, 0, 0", "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
/* D += A B; A in registers, B with k along the columns. */
__device__ __forceinline__ void mti_wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    MTI_WGMMA(64, "{%32,%33,%34,%35}, %36", 37, "1, 1, 1", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "n"(1));
}
__device__ __forceinline__ void mti_wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    MTI_WGMMA(128, "{%64,%65,%66,%67}, %68", 69, "1, 1, 1", "r"(a[0]), "r"(a[1]), "r"(a[2]),
              "r"(a[3]), "l"(b), "n"(1));
}

#endif

#endif
