/* attention_mma.cuh: tiles on tensor cores.
 *
 * A warp multiplies with m16n8k16: 16 x 16 by 16 x 8 into 16 x 8, f32 accumulators. With
 * g = lane / 4 and c = lane % 4 a lane holds
 *   accumulator  rows g, g + 8; columns 2c, 2c + 1      float[4]: (g: 2c, 2c+1), (g+8: 2c, 2c+1)
 *   A            rows g, g + 8; columns 2c.. and 8 + 2c..      4 registers of two numbers
 *   B            rows 2c.. and 8 + 2c.. of column g            2 registers
 * so two accumulators side by side are, once rounded, the A of the next product: scores never
 * leave registers.
 *
 * In shared memory a row of a tile has D + 8 numbers: an odd number of 16-byte pieces, so the
 * eight rows that ldmatrix reads at once lie in different banks. */
#ifndef MTI_CUDA_ATTENTION_MMA_CUH
#define MTI_CUDA_ATTENTION_MMA_CUH

#include "backends/cuda/attention.cuh"

/* ---- instructions; the simulator has its own mma and ldmatrix ---- */

#ifndef MTI_CUDASIM

__device__ __forceinline__ uint32_t mti_shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Lane l names the 16-byte row l % 8 of 8 x 8 matrix l / 8; r[m] is this lane's pair of matrix m:
 * row l / 4, columns 2 (l % 4) and the next; _trans: of the transposed matrix. */
__device__ __forceinline__ void mti_ldmatrix_x4(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(mti_shared_address(row)));
}

__device__ __forceinline__ void mti_ldmatrix_x4_trans(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(mti_shared_address(row)));
}

/* c[4] += a[4] b[2] */
__device__ __forceinline__ void mti_mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mti_mma_f16(float *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
#endif
