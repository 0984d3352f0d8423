/* driver.h: the parts of the driver's interface that expandable segments call, declared here as its
 * documentation has them (CUDA driver API, virtual memory management): libcuda.so.1 is opened when
 * they are first asked for. */
#ifndef MTI_CUDA_DRIVER_H
#define MTI_CUDA_DRIVER_H

#include "backends/cuda/gpu.h"

enum { CU_OK = 0 };                /* CUresult */
enum { CU_PINNED = 1 };            /* CUmemAllocationType */
enum { CU_ON_DEVICE = 1 };         /* CUmemLocationType */
enum { CU_READ_WRITE = 3 };        /* CUmemAccess_flags */
enum { CU_LEAST_GRANULARITY = 0 }; /* CUmemAllocationGranularity_flags */

typedef unsigned long long cu_address, cu_memory; /* CUdeviceptr, CUmemGenericAllocationHandle */

typedef struct cu_location {
    int type, id;
} cu_location;

/* CUmemAllocationProp, whose other members stay 0. */
typedef struct cu_kind {
    int type, handles;
    cu_location location;
    void *metadata;
    unsigned char flags[8];
} cu_kind;

/* CUmemAccessDesc */
typedef struct cu_access {
    cu_location location;
    int flags;
} cu_access;

/* F(member, function's name, parameters); all return a CUresult. */
#define CU_FUNCTIONS(F)                                                                            \
    F(granularity, cuMemGetAllocationGranularity, (size_t *, const cu_kind *, int option))         \
    F(reserve, cuMemAddressReserve,                                                                \
      (cu_address *, size_t n_bytes, size_t alignment, cu_address, unsigned long long flags))      \
    F(release, cuMemAddressFree, (cu_address, size_t n_bytes))                                     \
    F(create, cuMemCreate, (cu_memory *, size_t n_bytes, const cu_kind *, unsigned long long))     \
    F(map, cuMemMap, (cu_address, size_t n_bytes, size_t offset, cu_memory, unsigned long long))   \
    F(set_access, cuMemSetAccess, (cu_address, size_t n_bytes, const cu_access *, size_t n))       \
    F(unmap, cuMemUnmap, (cu_address, size_t n_bytes))                                             \
    F(drop, cuMemRelease, (cu_memory))

typedef struct cu_functions {
#define CU_MEMBER(member, name, parameters) int(*member) parameters;
    CU_FUNCTIONS(CU_MEMBER)
#undef CU_MEMBER
} cu_functions;

/* The toolkit's header holds the figures above. */
#ifndef MTI_CUDASIM
#include <cuda.h>
#define CU_IS(ours, theirs) static_assert((long long)(ours) == (long long)(theirs), #ours)
CU_IS(CU_OK, CUDA_SUCCESS);
CU_IS(CU_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
CU_IS(CU_ON_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
CU_IS(CU_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
CU_IS(CU_LEAST_GRANULARITY, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
CU_IS(sizeof(cu_address), sizeof(CUdeviceptr));
CU_IS(sizeof(cu_memory), sizeof(CUmemGenericAllocationHandle));
CU_IS(sizeof(cu_kind), sizeof(CUmemAllocationProp));
CU_IS(offsetof(cu_kind, location), offsetof(CUmemAllocationProp, location));
CU_IS(sizeof(cu_access), sizeof(CUmemAccessDesc));
CU_IS(offsetof(cu_access, flags), offsetof(CUmemAccessDesc, flags));
#undef CU_IS
#else
/* The double's function of this name (tests/src/cudasim/driver.cc). */
void *cudasim_driver(const char *name);
#endif

#endif
