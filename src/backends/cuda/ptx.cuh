/* ptx.cuh: the instructions that CUDA C++ has no name for. tests/cudasim has the same functions in
 * plain C++. */
#ifndef MTI_PTX_CUH
#define MTI_PTX_CUH

#include <stdint.h>

/* d[16,8] += a[16,16] b[16,8], 16-bit inputs, f32 accumulators. With g = lane / 4, t = lane % 4,
 * low half first:
 *   a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..]
 *   b[0] = B[2t..][g], b[1] = B[2t+8..][g]
 *   d[0..1] = D[g][2t..], d[2..3] = D[g+8][2t..] */
static __device__ __forceinline__ void mti_mma_bf16(float (&d)[4], const uint32_t (&a)[4],
                                                    const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void mti_mma_f16(float (&d)[4], const uint32_t (&a)[4],
                                                   const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8x8 matrices of 16-bit values: lane 8 i + r points at row r of matrix i, in shared memory,
 * 16-byte aligned. r[i] is M_i[g][2t..], or M_i[2t..][g] with _trans. */
static __device__ __forceinline__ void mti_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void mti_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* 16 bytes from global to shared memory, zeros where !valid (nothing is read then); they are there
 * for the thread after the wait that covers them, for others after a barrier too. */
static __device__ __forceinline__ void mti_cp_async_16(void *shared, const void *global,
                                                       bool valid = true)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void mti_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most n_left of the committed groups are under way. */
template <int n_left> static __device__ __forceinline__ void mti_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n_left) : "memory");
}

#endif
