/* nccl.h: the parts of NCCL's interface that we use, declared here as its documentation has them
 * (docs.nvidia.com, NCCL API): the library is loaded when ranks first meet, so neither it nor its
 * header is needed to build. */
#ifndef MTI_NCCL_H
#define MTI_NCCL_H

#include "backends/cuda/gpu.h"

/* V(ours, its value, the library's name) */
#define NCCL_VALUES(V)                                                                             \
    V(NCCL_OK, 0, ncclSuccess)                                                                     \
    V(NCCL_IN_PROGRESS, 7, ncclInProgress)                                                         \
    V(NCCL_U8, 1, ncclUint8)                                                                       \
    V(NCCL_F16, 6, ncclFloat16)                                                                    \
    V(NCCL_F32, 7, ncclFloat32)                                                                    \
    V(NCCL_F64, 8, ncclFloat64)                                                                    \
    V(NCCL_BF16, 9, ncclBfloat16)                                                                  \
    V(NCCL_SUM, 0, ncclSum)
#define NCCL_VALUE(ours, value, theirs) ours = value,
enum { NCCL_VALUES(NCCL_VALUE) };
#undef NCCL_VALUE
enum { NCCL_NEEDED = 21400 }; /* 2.14, the first whose communicators need not block the host */

typedef struct nccl_comm *nccl_comm_t;

typedef struct nccl_id {
    char bytes[128];
} nccl_id;

/* The first members of ncclConfig_t, all that version 2.14 had. A later library takes the others'
 * defaults, by `size` and `version`. */
typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} nccl_config;
#define NCCL_MAGIC 0xcafebeefu

/* NAME(member, function's name, result, parameters) */
#define NCCL_FUNCTIONS(F)                                                                          \
    F(version, ncclGetVersion, int, (int *))                                                       \
    F(error_text, ncclGetErrorString, const char *, (int))                                         \
    F(last_error, ncclGetLastError, const char *, (nccl_comm_t))                                   \
    F(unique_id, ncclGetUniqueId, int, (nccl_id *))                                                \
    F(init, ncclCommInitRankConfig, int,                                                           \
      (nccl_comm_t *, int ranks, nccl_id, int rank, nccl_config *))                                \
    F(finalize, ncclCommFinalize, int, (nccl_comm_t))                                              \
    F(destroy, ncclCommDestroy, int, (nccl_comm_t))                                                \
    F(abort, ncclCommAbort, int, (nccl_comm_t))                                                    \
    F(async_error, ncclCommGetAsyncError, int, (nccl_comm_t, int *))                               \
    F(group_start, ncclGroupStart, int, (void))                                                    \
    F(group_end, ncclGroupEnd, int, (void))                                                        \
    F(all_gather, ncclAllGather, int,                                                              \
      (const void *own, void *all, size_t n_own, int dtype, nccl_comm_t, cudaStream_t))            \
    F(reduce_scatter, ncclReduceScatter, int,                                                      \
      (const void *all, void *own, size_t n_own, int dtype, int op, nccl_comm_t, cudaStream_t))    \
    F(all_reduce, ncclAllReduce, int,                                                              \
      (const void *from, void *to, size_t n, int dtype, int op, nccl_comm_t, cudaStream_t))        \
    F(reduce, ncclReduce, int,                                                                     \
      (const void *from, void *to, size_t n, int dtype, int op, int root, nccl_comm_t,             \
       cudaStream_t))                                                                              \
    F(broadcast, ncclBroadcast, int,                                                               \
      (const void *from, void *to, size_t n, int dtype, int root, nccl_comm_t, cudaStream_t))      \
    F(send, ncclSend, int,                                                                         \
      (const void *from, size_t n, int dtype, int peer, nccl_comm_t, cudaStream_t))                \
    F(recv, ncclRecv, int, (void *to, size_t n, int dtype, int peer, nccl_comm_t, cudaStream_t))

typedef struct nccl_functions {
#define NCCL_MEMBER(member, name, result, parameters) result(*member) parameters;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
} nccl_functions;

/* Where the real header is installed, it holds the figures above. */
#if !defined(MTI_CUDASIM) && __has_include(<nccl.h>)
#include <nccl.h>
#define NCCL_IS(ours, theirs)           static_assert((long long)(ours) == (long long)(theirs), #ours)
#define NCCL_CHECK(ours, value, theirs) NCCL_IS(ours, theirs);
NCCL_VALUES(NCCL_CHECK)
#undef NCCL_CHECK
NCCL_IS(sizeof(nccl_id), sizeof(ncclUniqueId));
NCCL_IS(offsetof(nccl_config, size), offsetof(ncclConfig_t, size));
NCCL_IS(offsetof(nccl_config, magic), offsetof(ncclConfig_t, magic));
NCCL_IS(offsetof(nccl_config, version), offsetof(ncclConfig_t, version));
NCCL_IS(offsetof(nccl_config, blocking), offsetof(ncclConfig_t, blocking));
#undef NCCL_IS
#endif

#ifdef MTI_CUDASIM
/* The double's function of this name (tests/src/cudasim/nccl.cc). */
void *cudasim_nccl(const char *name);
#endif

#endif
