/* backend.h: what a backend is: raw memory, copies, and the kernels of kernels.def. A backend is a
 * folder that fills the table in.
 *
 * A backend knows pointers, shapes and strides; it never sees tensors, the tape
 * or the books. Callers have checked shapes and dtypes: a kernel may assert
 * what is written here and need not report it. Kernels return false only when
 * the machine fails (with mti_fail), never for a well-formed call.
 *
 * Unless a line says otherwise: all floating views of one call have one dtype
 * (f32, f64, bf16, f16); 16-bit floats are computed and accumulated in f32 and
 * rounded to nearest even once, at the store; outputs do not overlap inputs
 * except where "in place" is allowed; views may have any strides, 0 included for
 * inputs; reductions run in a fixed order that does not depend on the number
 * of threads. Views with zero elements are legal. */
#ifndef MTI_BACKEND_H
#define MTI_BACKEND_H

#include "base/base.h"

/* What a kernel needs to know of a tensor. Strides count elements. */
typedef struct mti_view {
    void *data; /* the first element; NULL on meta and when there are none */
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK], stride[MT_MAX_RANK];
} mti_view;

int64_t mti_view_count(const mti_view *v);      /* number of elements */
bool mti_view_is_contiguous(const mti_view *v); /* row-major, no gaps */
bool mti_view_same_shape(const mti_view *a, const mti_view *b);

typedef enum mti_unary {
#define UNARY(name, cost, y, dx) MTI_UNARY_##name,
#include "backends/unary.def"
    MTI_UNARY_COUNT
} mti_unary;

/* How a value of a block is stored (quantize). */
typedef enum mti_code { MTI_CODE_INT8, MTI_CODE_NF4 } mti_code;
#define MTI_MEAN_LANES 256 /* of lane_mean */

typedef enum mti_compare {
#define COMPARE(name, sign) MTI_COMPARE_##name,
#include "backends/compare.def"
    MTI_COMPARE_COUNT
} mti_compare;

typedef enum mti_binary { MTI_ADD, MTI_SUB, MTI_MUL, MTI_DIV, MTI_BINARY_COUNT } mti_binary;

/* One tensor of an optimizer step: contiguous, all of n elements. `p` and `g`
 * may be f32/bf16/f16/f64; m, v (and master when there is one) are f32 (f64 for f64). */
typedef struct mti_opt_item {
    int64_t n;
    mt_dtype dtype; /* of p and g */
    void *p;
    const void *g;
    void *m, *v;  /* NULL where the optimizer has none */
    void *master; /* for 16-bit p: the step is taken on it, and p is it rounded; NULL: on p */
    double weight_decay;
} mti_opt_item;

typedef struct mti_opt_params {
    double lr, beta1, beta2, eps, momentum;
    int64_t step;      /* 1 at the first step: bias correction */
    double grad_scale; /* g is multiplied by it first, in f32 (f64 for f64); 0: 1 */
} mti_opt_params;

/* The heads of one attention call. q, o: [b,a,s,d]; k, v: [b,a_kv,t,d] with
 * a % a_kv == 0; lse: f32 (f64 for f64) contiguous [b,a,s] (natural log of the sum of exp of
 * the scaled scores; may be NULL in forward). Any strides with stride[3] == 1 and
 * stride[2] >= d.
 * Causal: query i sees keys j <= i + (t - s).
 * Dropout with p > 0: the probability of (b,h,i,j) is kept when the draw of
 * element ((b*a + h)*s + i)*t + j is >= p (see `dropout`), scaled by 1/(1-p). */
typedef struct mti_attention {
    const mti_view *q, *k, *v;
    const mti_view *o, *lse;
    double scale, p;
    bool causal;
    const mti_view *seed, *offset; /* i64 scalars in device memory; NULL when p == 0 */
} mti_attention;

typedef struct mti_ctx mti_ctx; /* a backend's own state: threads, streams */

typedef enum mti_traits {
    MTI_HOST_MEMORY = 1, /* pointers are the process's own, so sanitizers can watch them */
    MTI_NO_DATA = 2,     /* pointers are imaginary: nothing to read, kernels do nothing */
} mti_traits;

/* Copies that run beside compute. */
typedef enum mti_direction { MTI_TO_HOST, MTI_TO_DEVICE } mti_direction;
typedef struct mti_copy_times {
    double copy_s; /* all copies together */
    double wait_s; /* compute stood still in copy_wait */
} mti_copy_times;

/* (a, b) without its parentheses, for the rows of kernels.def. */
#define MTI_UNWRAP(...) __VA_ARGS__

typedef struct mti_backend {
    const char *kind; /* "cpu" */
    unsigned traits;  /* of mti_traits */

    /* ---- state and raw memory ---- */
    mti_ctx *(*open)(void);
    void (*close)(mti_ctx *ctx);
    bool (*set_threads)(mti_ctx *ctx, int n);
    int (*threads)(const mti_ctx *ctx);
    bool (*sync)(mti_ctx *ctx);
    void *(*alloc)(mti_ctx *ctx,
                   size_t n_bytes); /* NULL if refused, without mti_fail; >= 512-byte aligned */
    void (*free)(mti_ctx *ctx, void *p, size_t n_bytes);
    size_t (*room)(mti_ctx *ctx); /* bytes that alloc can still give; SIZE_MAX: nobody says */
    bool (*upload)(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes);
    bool (*download)(mti_ctx *ctx, void *host, const void *src, size_t n_bytes);

    /* ---- copies beside compute: any thread may ask; all NULL where there is no data ---- */
    /* As alloc and free, for host memory that copies run to and from: page-locked where that
     * matters. */
    void *(*host_alloc)(mti_ctx *ctx, size_t n_bytes);
    void (*host_free)(mti_ctx *ctx, void *p, size_t n_bytes);
    /* Begins a copy between device memory and host_alloc's, behind all compute queued so far and
     * behind every earlier copy; does not wait for it. *ticket numbers copies: 1, 2, 3, ... */
    bool (*copy_begin)(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                       size_t n_bytes, uint64_t *ticket);
    /* Compute queued from here on comes after that copy; the host need not wait. Ticket 0 and
     * those waited for before cost nothing. */
    bool (*copy_wait)(mti_ctx *ctx, uint64_t ticket);
    /* The host waits for that copy. */
    bool (*copy_finish)(mti_ctx *ctx, uint64_t ticket);
    /* Since open; waits for what was begun. */
    bool (*copy_times)(mti_ctx *ctx, mti_copy_times *out);

    /* ---- kernels ---- */
#define KERNEL(name, parameters, arguments)  bool (*name)(mti_ctx * ctx, MTI_UNWRAP parameters);
#define SCRATCH(name, parameters, arguments) size_t (*name)(mti_ctx * ctx, MTI_UNWRAP parameters);
#include "backends/kernels.def"
} mti_backend;

/* The list of backends: adding one is its folder and its line in backends.c.
 * NULL and an error that lists what there is when `kind` is unknown. */
const mti_backend *mti_backend_find(const char *kind);
extern const mti_backend mti_cpu_backend;
extern const mti_backend mti_meta_backend;
/* On meta: scratch memory as `like` would ask for it; NULL: none. */
bool mti_meta_count_scratch_of(mti_ctx *ctx, const mti_backend *like);

#endif
