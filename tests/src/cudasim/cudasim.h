/* cudasim.h: a test double of the CUDA runtime that runs a grid on the CPU.
 *
 * Blocks run one after another; the threads of a block are fibers, each of which runs until it
 * reaches a barrier or a warp collective. Faults of a kernel become visible:
 *   - a barrier, shuffle, ballot, ldmatrix or mma that not all of its threads reach, or that they
 *     reach at different places, ends the launch with an error that names the places;
 *   - shared memory and fresh device memory hold 0xff bytes (NaN in every floating type);
 *   - allocations have their exact size, so AddressSanitizer finds accesses beyond them; the bytes
 *     after a shared array are guarded without it;
 *   - an asynchronous copy to shared memory arrives only when it is waited for;
 *   - copies between host and device happen as late as they may, or, with CUDASIM_LATE=kernels in
 *     the environment, kernels do (stream.cc);
 *   - a vector access that is not aligned ends the launch with an error;
 *   - with CUDASIM_GUARD=keys or pages the host cannot touch device memory (memory.cc);
 *   - with CUDASIM_HMM=1 the device reads and writes pageable memory itself, and as late as any
 *     other (stream.cc);
 *   - CUDASIM_GPU=8.0, 8.6, 8.9, 9.0, 10.0 or 12.0 is its capability, and so how much shared memory
 *     a block may have (runtime.cc);
 *   - the order in which threads and blocks run can be chosen (cudasim_set_schedule, environment
 *     CUDASIM_SCHEDULE=forward|reverse|SEED): results that depend on it reveal a race. A warp runs
 *     as far as it can, to a barrier or its end, before the next one continues. So without a
 *     barrier one of two warps reads before the other writes, and one reads after.
 * One grid runs at a time, in the order in which host threads launch. With CUDASIM_TURNS=MS in the
 * environment host threads alternate: a thread that has launched a kernel or waited for a stream
 * continues when another one has done so, too, or after MS milliseconds. This reveals state that
 * two threads share between two launches. No figure measured here says anything about a GPU. */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <type_traits>
#include <utility>
#include "cudasim/runtime.h"
#include "cudasim/types.h"

#define __global__
#define __device__
#define __host__
#define __constant__    static
#define __forceinline__ inline
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace cudasim
{

/* The place of a collective in the source. */
struct place {
    const char *file;
    int line;
};
#define CUDASIM_HERE cudasim::place here = {__builtin_FILE(), __builtin_LINE()}

enum struct collective { barrier, syncwarp, shuffle, ballot, ldmatrix, mma };

/* The data that a lane gives to a collective, and that it gets from it. */
struct slot {
    unsigned char bytes[64];
};

/* The calling thread waits for the others of its block, or of its warp in mask. */
void barrier(place here);
void sync_warp(unsigned mask, place here);
/* The calling lane waits for all lanes of mask. When all have arrived, the last one calls
 * finish(slots of the warp, mask); each lane then gets its slots[lane] in *mine. */
void meet(collective what, unsigned mask, place here, slot *mine,
          void (*finish)(slot *slots, unsigned mask));
/* Lane of the calling thread. */
int lane();
/* Reports a fault of the kernel and ends the launch. */
[[noreturn]] void fault(place here, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Static shared memory: poisons it when the block first reaches it. */
void enter_shared(void *p, size_t n_bytes, size_t n_guard, const char *name, uint64_t *epoch);
unsigned char *dynamic_shared();

/* cp.async of the calling thread */
void copy_async(void *shared, const void *global, size_t n_bytes, size_t n_read, place here);
void copy_commit();
void copy_wait(int n_left);

/* An argument of a launch: its bytes, which the launch copies. */
struct argument {
    const void *value;
    size_t n_bytes;
};
/* Calls a kernel of one type with its arguments. */
typedef void (*kernel_call)(const void *kernel, const void *const *arguments);
cudaError_t launch(const char *name, const void *kernel, kernel_call call,
                   const argument *arguments, size_t n_arguments, dim3 grid, dim3 block,
                   size_t n_shared, cudaStream_t stream);

/* There are hundreds of kernels, most with a type of their own: whatever does not need the type is
 * in the function above, which is compiled once. What does is static, since files may give the same
 * name to different types. */
template <class... P, size_t... I>
static void call_with(const void *kernel, const void *const *arguments, std::index_sequence<I...>)
{
    reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel))(
        *static_cast<const P *>(arguments[I])...);
}
template <class... P> static void call_kernel(const void *kernel, const void *const *arguments)
{
    call_with<P...>(kernel, arguments, std::index_sequence_for<P...>());
}

template <class... P>
static cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t n_shared, cudaStream_t stream, const std::decay_t<P> &...arguments)
{
    static_assert((std::is_trivially_copyable_v<P> && ...), "arguments are copied as bytes");
    static_assert(((alignof(P) <= alignof(max_align_t)) && ...), "copies have this alignment");
    const argument bytes[] = {{&arguments, sizeof arguments}...};
    return launch(name, reinterpret_cast<const void *>(kernel), call_kernel<P...>, bytes,
                  sizeof...(P), grid, block, n_shared, stream);
}

template <class T> static inline slot pack(T value)
{
    static_assert(sizeof(T) <= sizeof(slot), "a lane gives 64 bytes at most");
    slot s;
    memcpy(s.bytes, &value, sizeof value);
    return s;
}
template <class T> static inline T unpack(const slot &s)
{
    T value;
    memcpy(&value, s.bytes, sizeof value);
    return value;
}

/* All slots of the warp, once all lanes of mask have arrived. */
const slot *exchange(collective what, unsigned mask, place here, const slot &mine);

template <class T> static inline T shuffle(unsigned mask, T value, int source, place here)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 32 or 64 bits");
    if (!(mask >> source & 1u))
        fault(here, "shuffle reads from lane %d, which is not in the mask", source);
    return unpack<T>(exchange(collective::shuffle, mask, here, pack(value))[source]);
}

} // namespace cudasim

/* p as a V *, which a GPU accesses only at multiples of its size. */
template <class V, class T> static inline V *mti_at(T *p, CUDASIM_HERE)
{
    if (reinterpret_cast<uintptr_t>(p) % alignof(V))
        cudasim::fault(here, "an access of %zu bytes is not aligned", sizeof(V));
    return reinterpret_cast<V *>(p);
}

/* ---- ops ---- */

struct mti_op_number {
    int value;
};
#define MTI_OP(number) (mti_op_number{number})

/* ---- launching ---- */

/* The type around a shared array gives its size, for any dimensions; the bytes after it are a
 * guard. */
#define CUDASIM_JOIN_(a, b) a##b
#define CUDASIM_JOIN(a, b)  CUDASIM_JOIN_(a, b)
#define CUDASIM_GUARD       64
#define CUDASIM_SHARED(type, name, id)                                                             \
    struct CUDASIM_JOIN(cudasim_size_, id) {                                                       \
        type name;                                                                                 \
    };                                                                                             \
    static union {                                                                                 \
        alignas(128) unsigned char CUDASIM_JOIN(                                                   \
            cudasim_raw_, id)[sizeof(CUDASIM_JOIN(cudasim_size_, id)) + CUDASIM_GUARD];            \
        type name;                                                                                 \
    };                                                                                             \
    static uint64_t CUDASIM_JOIN(cudasim_epoch_, id);                                              \
    cudasim::enter_shared(CUDASIM_JOIN(cudasim_raw_, id), sizeof(CUDASIM_JOIN(cudasim_size_, id)), \
                          CUDASIM_GUARD, #name, &CUDASIM_JOIN(cudasim_epoch_, id))
#define MTI_SHARED(type, name) CUDASIM_SHARED(type, name, __COUNTER__)
#define MTI_DYNAMIC_SHARED(type, name)                                                             \
    type *name = reinterpret_cast<type *>(cudasim::dynamic_shared())
#define MTI_LAUNCH(ctx, kernel, grid, block, shared, ...)                                          \
    mti_cuda_ok(cudasim::launch(#kernel, kernel, dim3(grid), dim3(block), (shared), (ctx)->stream, \
                                __VA_ARGS__),                                                      \
                #kernel)

/* ---- collectives ---- */

static inline void __syncthreads(CUDASIM_HERE) { cudasim::barrier(here); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDASIM_HERE)
{
    cudasim::sync_warp(mask, here);
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDASIM_HERE)
{
    int base = cudasim::lane() & ~(width - 1);
    return cudasim::shuffle(mask, value, base + (source & (width - 1)), here);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CUDASIM_HERE)
{
    int lane = cudasim::lane(), source = lane ^ bits;
    bool inside = source < (lane & ~(width - 1)) + width;
    return cudasim::shuffle(mask, value, inside ? source : lane, here);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 CUDASIM_HERE)
{
    int lane = cudasim::lane(), source = lane + (int)delta;
    bool inside = source < (lane & ~(width - 1)) + width;
    return cudasim::shuffle(mask, value, inside ? source : lane, here);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, CUDASIM_HERE)
{
    int lane = cudasim::lane(), source = lane - (int)delta;
    bool inside = source >= (lane & ~(width - 1));
    return cudasim::shuffle(mask, value, inside ? source : lane, here);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, CUDASIM_HERE)
{
    const cudasim::slot *all =
        cudasim::exchange(cudasim::collective::ballot, mask, here, cudasim::pack(predicate));
    unsigned votes = 0;
    for (int i = 0; i < 32; i++)
        if ((mask >> i & 1u) && cudasim::unpack<int>(all[i])) votes |= 1u << i;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate, CUDASIM_HERE)
{
    return __ballot_sync(mask, predicate, here) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, CUDASIM_HERE)
{
    return __ballot_sync(mask, predicate, here) == mask;
}

/* ---- atomics: only one thread runs at a time, so plain operations are atomic ---- */

#define CUDASIM_ATOMICS(T)                                                                         \
    static inline T atomicAdd(T *p, T value)                                                       \
    {                                                                                              \
        T old = *p;                                                                                \
        *p = (T)(old + value);                                                                     \
        return old;                                                                                \
    }                                                                                              \
    static inline T atomicMax(T *p, T value)                                                       \
    {                                                                                              \
        T old = *p;                                                                                \
        *p = old < value ? value : old;                                                            \
        return old;                                                                                \
    }                                                                                              \
    static inline T atomicMin(T *p, T value)                                                       \
    {                                                                                              \
        T old = *p;                                                                                \
        *p = value < old ? value : old;                                                            \
        return old;                                                                                \
    }                                                                                              \
    static inline T atomicExch(T *p, T value)                                                      \
    {                                                                                              \
        T old = *p;                                                                                \
        *p = value;                                                                                \
        return old;                                                                                \
    }                                                                                              \
    static inline T atomicCAS(T *p, T compare, T value)                                            \
    {                                                                                              \
        T old = *p;                                                                                \
        if (old == compare) *p = value;                                                            \
        return old;                                                                                \
    }
CUDASIM_ATOMICS(int)
CUDASIM_ATOMICS(unsigned)
CUDASIM_ATOMICS(unsigned long long)
#undef CUDASIM_ATOMICS

/* ---- tensor cores and asynchronous copies: the functions of gpu.h that are PTX on a GPU ---- */

/* d[16,8] += a[16,16] b[16,8], spread over the lanes as PTX's mma.m16n8k16.row.col says. */
void mti_mma_bf16(float *d, const uint32_t *a, const uint32_t *b, CUDASIM_HERE);
void mti_mma_f16(float *d, const uint32_t *a, const uint32_t *b, CUDASIM_HERE);
/* Four 8x8 matrices of 16-bit values; lane 8 i + r points at row r of matrix i, 16-byte aligned. */
void mti_ldmatrix_x4(uint32_t *r, const void *row, CUDASIM_HERE);
void mti_ldmatrix_x4_trans(uint32_t *r, const void *row, CUDASIM_HERE);
/* Copies 16 bytes to shared memory, or zeros if !valid; they arrive with the wait that covers them.
 */
static inline void mti_cp_async_16(void *shared, const void *global, bool valid = true,
                                   CUDASIM_HERE)
{
    cudasim::copy_async(shared, global, 16, valid ? 16 : 0, here);
}
static inline void mti_cp_async_commit() { cudasim::copy_commit(); }
/* Waits until at most n_left of the committed groups are pending. */
template <int n_left> static inline void mti_cp_async_wait() { cudasim::copy_wait(n_left); }

/* ---- the simulator's own controls ---- */

extern "C" {
/* "forward", "reverse", or the decimal seed of a random order; false if it is none of these. */
bool cudasim_set_schedule(const char *text);
/* Why the last launch failed; "" if none has failed since the last call of this function. A fault
 * of a kernel breaks the device for the process, as on a GPU: from then on each call fails. This
 * function mends it, as only a new process does there. */
const char *cudasim_take_fault(void);
/* Runs work(state) under several schedules. True if the n_bytes at `result` are the same under all
 * of them; otherwise *differs is the name of the first that differs from "forward". work returns
 * false if a launch failed, which counts as a difference. */
bool cudasim_same_under_all_schedules(bool (*work)(void *state), void *state, const void *result,
                                      size_t n_bytes, const char **differs);
/* Launches do without the __syncthreads or __syncwarp at this line of the file of this name, until
 * another is named (file NULL: none); also environment CUDASIM_WITHOUT_BARRIER=FILE:LINE. For tests
 * of tests: a barrier that is needed must be missed. */
void cudasim_without_barrier(const char *file, int line);
/* Returns how many barriers the program has met so far, and the places of the first n. */
size_t cudasim_barriers(const char **files, int *lines, size_t n);
/* From now on launches, products and copies are checked as ever and noted, but not run: for calls
 * on memory that is not there. Forgets earlier notes. */
struct cudasim_launch {
    const char *name;
    unsigned grid[3];            /* of a kernel */
    int64_t rows[3], columns[3]; /* of a product's three matrices */
    int64_t ld[3], stride[3], n_batch;
};
void cudasim_layout_only(bool on);
const struct cudasim_launch *cudasim_noted(size_t *n);
/* Launches and threads so far. */
void cudasim_counts(uint64_t *n_launches, uint64_t *n_threads);
}

#endif
