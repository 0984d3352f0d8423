/* philox.h: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
 * easy as 1, 2, 3"), usable from C and from CUDA. A draw is a pure function of
 * (seed, counter), so the same mask results on every device and with any number
 * of threads. */
#ifndef MTI_PHILOX_H
#define MTI_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define MTI_HD __host__ __device__ static inline
#else
#define MTI_HD static inline
#endif

typedef struct mti_u32x4 {
    uint32_t v[4];
} mti_u32x4;

MTI_HD mti_u32x4 mti_philox(uint64_t seed, uint64_t counter)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    mti_u32x4 r = {{c0, c1, c2, c3}};
    return r;
}

/* Uniform in [0, 1) with 24 bits. */
MTI_HD float mti_u32_to_unit(uint32_t x) { return (float)(x >> 8) * 0x1p-24f; }

#endif
