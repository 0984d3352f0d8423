/* backend.h: what a backend is: raw memory, copies, and the kernels of kernels.def. Each backend is
 * a folder that defines one mti_backend table.
 *
 * A backend works on pointers, shapes and strides; it never sees tensors, the tape or the books.
 * Callers check shapes and dtypes first: a kernel may assert the rules written here, and does not
 * report violations. A kernel returns false only if the machine fails (with mti_fail).
 *
 * Unless a kernel's comment says otherwise: all floating views of one call have one dtype (f32,
 * f64, bf16, f16); 16-bit floats are computed and accumulated in f32 and rounded to nearest even
 * once, at the store; outputs do not overlap inputs, except where the comment says "in place";
 * views may have any strides, inputs also stride 0; reductions run in a fixed order that does not
 * depend on the number of threads. Views may have zero elements. */
#ifndef MTI_BACKEND_H
#define MTI_BACKEND_H

#include "backends/link.h"
#include "base/base.h"

/* What a kernel needs to know of a tensor. Strides count elements. */
typedef struct mti_view {
    void *data; /* the first element; NULL on meta, and without elements */
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK], stride[MT_MAX_RANK];
} mti_view;

/* Number of elements. */
static inline int64_t mti_view_count(const mti_view *v)
{
    int64_t n = 1;
    for (int d = 0; d < v->rank; d++) n *= v->shape[d];
    return n;
}
bool mti_view_is_contiguous(const mti_view *v); /* row-major, no gaps */
bool mti_view_same_shape(const mti_view *a, const mti_view *b);
/* The operands of gemm_sums for the kernel sum: a^T, whose columns are summed, and the sums as a
 * row. */
void mti_view_sums(const mti_view *a, const mti_view *sums, mti_view *x, mti_view *y);

/* For ranks that share a vocabulary (kernels.def): an index that is no row of this rank; a target
 * that is ignored, and one that is another rank's class. They are far from any class, so that
 * differences are numbers. */
#define MTI_NO_ROW    INT64_MIN
#define MTI_IGNORED   (INT64_MIN / 2)
#define MTI_ELSEWHERE (INT64_MAX / 2)

/* A number out of range: of an embedding's or a gather's index, a loss's target, a row's group. */
typedef enum mti_fault_kind {
    MTI_FAULT_NONE,
    MTI_FAULT_INDEX,
    MTI_FAULT_TARGET,
    MTI_FAULT_GATHER,
    MTI_FAULT_GROUP
} mti_fault_kind;
typedef struct mti_fault {
    int64_t kind;            /* mti_fault_kind */
    int64_t position, value; /* numbers[position] is value */
    int64_t limit, ignore;   /* must be in [0, limit); ignore: a target's exception, or gather's
                              * dimension */
} mti_fault;
bool mti_fault_report(const mti_fault *f); /* fails with the error that it is; false */

typedef enum mti_unary {
#define UNARY(name, cost, y, dx) MTI_UNARY_##name,
#include "backends/unary.def"
    MTI_UNARY_COUNT
} mti_unary;

/* The number format of quantized values. */
typedef enum mti_code { MTI_CODE_INT8, MTI_CODE_NF4, MTI_CODE_MXFP4 } mti_code;
#define MTI_MEAN_LANES 256 /* of the kernel lane_mean */

typedef enum mti_compare {
#define COMPARE(name, sign) MTI_COMPARE_##name,
#include "backends/comparisons.def"
    MTI_COMPARE_COUNT
} mti_compare;

typedef enum mti_binary { MTI_ADD, MTI_SUB, MTI_MUL, MTI_DIV, MTI_BINARY_COUNT } mti_binary;

typedef enum mti_moments {
    MTI_MOMENTS_WIDE,   /* f32 (f64 for f64) */
    MTI_MOMENTS_NARROW, /* dtype's 16 bits; adamw: of f32 in bf16 */
    /* Codes and scales (moments.h): mti_moment_bytes(...); not for f64 */
    MTI_MOMENTS_8BIT,
    MTI_MOMENTS_FP8, /* e4m3 */
    MTI_MOMENTS_4BIT /* whole blocks only; not on cuda */
} mti_moments;

/* One tensor of an optimizer step: contiguous, all of n elements. `p` and `g`
 * may be f32/bf16/f16/f64; m (of sgd) and master are f32 (f64 for f64). */
typedef struct mti_opt_item {
    int64_t n;
    mt_dtype dtype; /* of p and g */
    void *p;
    const void *g;
    bool wide_grad;        /* adamw, sgd, adafactor: g is f32 beside p of 16 bits */
    void *m, *v;           /* NULL where the optimizer has none */
    mti_moments moments;   /* adamw, adafactor: how m and v are stored */
    float *scales[2];      /* of m and v in codes; NULL: behind the codes (always on cuda) */
    int64_t rows, columns; /* adafactor: of each matrix; a vector is one row */
    void *master;          /* the f32 copy that is updated; p is its rounding; NULL: p is */
    double weight_decay;
} mti_opt_item;

typedef struct mti_opt_params {
    double lr, beta1, beta2, eps, momentum;
    double beta2_decay, eps2, clip; /* of adafactor; its eps 0: that of p's dtype */
    double others_lr;  /* of muon: AdamW's lr for what is no matrix, as a multiple of lr */
    bool match_rms;    /* of muon: mt_muon_adjust */
    int64_t step;      /* 1 at the first step: bias correction */
    double grad_scale; /* factor on g, applied first, in f32 (f64 for f64); 0 means 1 */
} mti_opt_params;

/* The frequency of pair i is theta^(-2i/d), and slower as mt_rope_options says; scale is not 0. */
typedef struct mti_rope {
    double theta, factor, low, high, scale;
    bool by_angle;
} mti_rope;

/* The heads of one attention call. q, o: [b,a,s,d]; k, v: [b,a_kv,t,d] with
 * a % a_kv == 0; lse: f32 (f64 for f64) contiguous [b,a,s] (natural log of the sum of exp of
 * the scaled scores; may be NULL in forward). Any strides with stride[3] == 1 and
 * stride[2] >= d.
 * Causal: query i sees keys j <= i + (t - s), with a window only the last so many of them.
 * Dropout with p > 0: the probability of (b,h,i,j) is kept when the draw of
 * element ((b*a + h)*s + i)*t + j is >= p (see `dropout`), scaled by 1/(1-p).
 * sinks: [a], q's dtype: one more score in each row of a head, in lse too, without a value. */
typedef struct mti_attention {
    const mti_view *q, *k, *v;
    const mti_view *o, *lse;
    double scale, p;
    bool causal;
    int64_t window;                /* 0: all; else causal */
    const mti_view *seed, *offset; /* i64 scalars in device memory; NULL when p == 0 */
    const mti_view *sinks;         /* NULL: none */
} mti_attention;

typedef enum mti_traits {
    MTI_HOST_MEMORY = 1, /* pointers are the process's own, so sanitizers can watch them */
    MTI_NO_DATA = 2,     /* addresses without memory behind them; kernels do nothing */
} mti_traits;

/* Copies that run beside compute. */
typedef enum mti_direction { MTI_TO_HOST, MTI_TO_DEVICE } mti_direction;
typedef struct mti_copy_times {
    double copy_s; /* the sum over all copies */
    double wait_s; /* compute waiting in copy_wait */
} mti_copy_times;

/* Addresses whose memory comes and goes in granules: multiples of page(), all of one size for a
 * range, counted from its beginning. */
typedef struct mti_ranges {
    size_t (*page)(mti_ctx *ctx);
    size_t (*total)(mti_ctx *ctx); /* bytes of memory that the device has in all */
    /* Addresses without memory, 2 MiB aligned; NULL if refused, without mti_fail. */
    void *(*reserve)(mti_ctx *ctx, size_t n_bytes);
    void (*release)(mti_ctx *ctx, void *p, size_t n_bytes); /* after their memory is gone */
    /* Gives whole granules memory. False, without mti_fail: refused, and none of them has any. */
    bool (*map)(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule);
    /* Takes whole granules' memory. False: refused, and all of them have it as before. */
    bool (*unmap)(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule);
} mti_ranges;

/* Strips the parentheses of (a, b), for the rows of kernels.def. */
#define MTI_UNWRAP(...) __VA_ARGS__

typedef struct mti_backend {
    const char *kind; /* "cpu" */
    unsigned traits;  /* mti_traits, or-ed */

    /* ---- state and raw memory ---- */
    mti_ctx *(*open)(void);
    void (*close)(mti_ctx *ctx);
    bool (*set_threads)(mti_ctx *ctx, int n);
    int (*threads)(const mti_ctx *ctx);
    bool (*sync)(mti_ctx *ctx);
    void *(*alloc)(mti_ctx *ctx,
                   size_t n_bytes); /* NULL if refused, without mti_fail; >= 512-byte aligned */
    void (*free)(mti_ctx *ctx, void *p, size_t n_bytes);
    size_t (*room)(mti_ctx *ctx); /* bytes that alloc can still give; SIZE_MAX: unknown */
    bool (*upload)(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes);
    bool (*download)(mti_ctx *ctx, void *host, const void *src, size_t n_bytes);

    /* ---- copies beside compute: any thread may call; all NULL for a backend without data ---- */
    /* As alloc and free, for the host memory that these copies use; page-locked where that helps.
     */
    void *(*host_alloc)(mti_ctx *ctx, size_t n_bytes);
    void (*host_free)(mti_ctx *ctx, void *p, size_t n_bytes);
    /* Queues a copy between device memory and memory of host_alloc, behind all compute and all
     * copies queued so far; returns at once. *ticket numbers the copies: 1, 2, 3, ... */
    bool (*copy_begin)(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                       size_t n_bytes, uint64_t *ticket);
    /* Compute queued after this call runs after that copy; the host does not wait. Ticket 0, and a
     * ticket already waited for, cost nothing. */
    bool (*copy_wait)(mti_ctx *ctx, uint64_t ticket);
    /* The host waits for that copy. */
    bool (*copy_finish)(mti_ctx *ctx, uint64_t ticket);
    /* Totals since open; waits for all copies that have begun. */
    bool (*copy_times)(mti_ctx *ctx, mti_copy_times *out);

    /* ---- links among ranks; NULL for a backend whose memory the host reads, and for one without
     * data ---- */
    const mti_link_kind *links;

    /* ---- for expandable segments; NULL for a backend whose memory comes whole ---- */
    const mti_ranges *ranges;

    /* ---- kernels ---- */
#define KERNEL(name, parameters, arguments)  bool (*name)(mti_ctx * ctx, MTI_UNWRAP parameters);
#define SCRATCH(name, parameters, arguments) size_t (*name)(mti_ctx * ctx, MTI_UNWRAP parameters);
#include "backends/kernels.def"
} mti_backend;

/* Finds a backend in the list in backends.c, or loads its module. Unknown `kind`: NULL, and an
 * error that lists the backends that exist. */
const mti_backend *mti_backend_find(const char *kind);
extern const mti_backend mti_cpu_backend;
extern const mti_backend mti_meta_backend;
/* On meta: scratch kernels answer as `like` would; NULL: they answer 0. */
bool mti_meta_count_scratch_of(mti_ctx *ctx, const mti_backend *like);
bool mti_meta_counts_scratch(const mti_ctx *ctx);

/* ---- memory of the host (cpu/room.c) ---- */

/* Bytes that this process can still get according to the system: available memory and swap, within
 * the limits of its control groups and its address space. SIZE_MAX: unknown. */
size_t mti_host_room(void);
/* The bytes that the processes of a machine share: the same without the limit of the address space.
 * *machine is the same for all processes of one host and control group. */
size_t mti_shared_room(uint64_t *machine);

#endif
