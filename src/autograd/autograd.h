/* autograd.h: what an op is, one call of it, and the node it leaves on the tape. */
#ifndef MTI_AUTOGRAD_H
#define MTI_AUTOGRAD_H

#include <string.h>
#include "memtape/hooks.h"
#include "tensor/tensor.h"

/* ---- an op: one row of src/ops/ops.def and the functions of its file ---- */

#define MTI_MAX_AUX   3
#define MTI_MAX_KEEP  5  /* inputs whose gradient may need kept tensors */
#define MTI_MAX_WANT  64 /* inputs of one call, cat's included */
#define MTI_MAX_OUT   64
#define MTI_MAX_SAVED 9 /* flash attention with sinks and a mask */

/* A set of kept tensors: one bit for each input, from bit 0 on, each output and each auxiliary. */
enum { MTI_OUT_BIT = 8, MTI_AUX_BIT = 12, MTI_SLOT_BITS = 16 };
enum mti_slot {
    MTI_IN0 = 1 << 0,
    MTI_IN1 = 1 << 1,
    MTI_IN2 = 1 << 2,
    MTI_IN3 = 1 << 3,
    MTI_IN4 = 1 << 4,
    MTI_OUT0 = 1 << MTI_OUT_BIT,
    MTI_OUT1 = 2 << MTI_OUT_BIT,
    MTI_AUX0 = 1 << MTI_AUX_BIT,
    MTI_AUX1 = 2 << MTI_AUX_BIT,
    MTI_AUX2 = 4 << MTI_AUX_BIT
};
#define MTI_SLOTS ((1u << MTI_SLOT_BITS) - 1)

/* Marks of a slot whose values a gradient does not read: only whether each is > 0 ... */
#define MTI_SIGN_MARK  MTI_SLOT_BITS
#define MTI_SIGN(slot) ((slot) | (uint64_t)(slot) << MTI_SIGN_MARK)
/* ... or none of them, as mt_dropout_mask can draw the mask again (mti_draw). */
#define MTI_DRAWN_MARK  (2 * MTI_SLOT_BITS)
#define MTI_DRAWN(slot) ((slot) | (uint64_t)(slot) << MTI_DRAWN_MARK)

typedef struct mti_call mti_call;

typedef struct mti_op_code {
    bool (*shape)(mti_call *c); /* check the inputs, set the outputs' shapes and dtypes */
    bool (*forward)(mti_call *c);
    bool (*backward)(mti_call *c); /* gradients of the wanted inputs from mti_saved and mti_dout */
    mti_unary unary;               /* activation.c's ops: their row of unary.def */
} mti_op_code;

typedef enum mti_op_flags {
    MTI_VIEW = 1,    /* forward makes the output itself, a view of in0 */
    MTI_INPLACE = 2, /* the output is in0, changed */
    MTI_LOW = 4,     /* under autocast, in the region's 16-bit dtype ... */
    MTI_FULL = 8,    /* ... or in f32; neither: in the widest dtype of its inputs */
} mti_op_flags;
/* One more flag for each input that may be NULL. */
#define MTI_OPTIONAL(inputs) ((unsigned)(inputs) << 8)

typedef struct mti_op {
    const char *name;
    int n_in; /* -1: any number */
    int n_aux;
    uint64_t keep[MTI_MAX_KEEP]; /* slots the gradient of input i needs, with marks */
    unsigned flags;
    const char *in[MTI_MAX_KEEP], *out[4], *aux[MTI_MAX_AUX]; /* letters: "x", "w"; "y"; "mean" */
    const char *formula, *why;
    const mti_op_code *code;
} mti_op;

/* An output without its own letter has the first one's. */
static inline const char *mti_out_letter(const mti_op *op, int i)
{
    return i < 4 && op->out[i] ? op->out[i] : op->out[0];
}

/* What an op draws is for a part of a whole tensor: along dimension 0 the row-th of `rows` equal
 * parts, along dimension 1 the part-th. All zero: it is the whole. */
typedef struct mti_draw_part {
    int64_t rows, row, parts, part;
} mti_draw_part;

/* An op's arguments besides tensors; copied into the node. */
typedef union mti_params {
    struct {
        double p0, p1;
    } scalar;
    struct {
        double scale;
        bool causal;
    } softmax;
    struct {
        double eps;
    } norm;
    struct mti_batch_norm {
        double eps, momentum;
        mt_tensor *running_mean, *running_var; /* borrowed, forward only */
        bool training;
    } batch_norm;
    struct {
        int64_t start;
        mti_rope angles;
    } rope;
    struct {
        double p;
        mti_draw_part part;
    } dropout;
    struct {
        int64_t ignore;
        int64_t chunk; /* rows of logits at a time; linear_cross_entropy and _early only */
        bool sum;      /* over the rows, not their mean; cross_entropy_lse only */
        bool wide;     /* logits in f32, whatever x; linear_cross_entropy_early only */
    } loss;
    struct {
        int64_t first, rows; /* w has those from first on of so many; rows 0: w has all */
        int64_t padding;     /* padded: the row of the table that gets no gradient */
        bool padded;
    } embedding;
    struct {
        unsigned dims;
        bool keep;
        double scale;
    } reduce; /* dims: bit set */
    struct {
        int order[MT_MAX_RANK];
    } permute;
    struct {
        int dim;
        int64_t start, length;
    } slice;
    struct {
        int rank;
        int64_t shape[MT_MAX_RANK];
    } shape;
    struct {
        int dim;
        int n;
        const int64_t *sizes;
    } split; /* sizes: forward only */
    struct {
        int dim;
    } cat;
    struct {
        int dim;
    } gather;
    struct {
        int64_t k;
    } topk;
    struct {
        int64_t n;
    } groups;
    struct {
        mt_dtype dtype;
    } cast;
    struct {
        double scale, p;
        bool causal;
        mti_draw_part part;
        int64_t window;
    } attention;
    unsigned char other[64]; /* ops of another table: a struct of theirs, copied in and out */
} mti_params;

/* The generator's state where a call's random numbers begin. p > 0: they made a mask with this
 * probability, in the slot that the row marks as DRAWN. */
typedef struct mti_draw {
    double p;
    uint64_t seed, offset;
} mti_draw;

/* ---- one call: forward, or backward of a node ---- */

struct mti_call {
    const mti_op *op;
    mt_device *device;
    const mti_backend *k; /* its kernels ... */
    mti_ctx *ctx;         /* ... and their context */
    const mti_params *params;
    int n_in, n_out;
    const mti_view *in_spec; /* shapes and dtypes, backward too (data only in forward) */
    mti_view *out_spec;      /* set by the shape rule */
    uint64_t want;           /* inputs whose gradient is wanted */
    unsigned keep;           /* slots the tape will keep; 0 when nothing is recorded */
    bool backward;
    bool absent[MTI_OUT_BIT]; /* an optional input was NULL */
    /* forward */
    mt_tensor *const *in;
    mt_tensor **out;
    bool aux_always[MTI_MAX_AUX]; /* made even when nothing is recorded */
    uint64_t n_draws;             /* random numbers that forward takes; set by the shape rule */
    mti_draw draw;                /* where they begin; the shape rule sets p */
    mt_tensor *aux[MTI_MAX_AUX];
    /* backward */
    mt_tensor *saved[MTI_SLOT_BITS]; /* by slot bit; NULL: not kept */
    unsigned loaded;                 /* the bits of those that are not NULL */
    bool last;                       /* what is saved goes after this call */
    mt_tensor **dout;                /* NULL entry: no gradient reached that output */
    mt_tensor **din;
    /* both */
    int n_scratch, n_temps;
    uint64_t flops;  /* counted so far */
    uint64_t filled; /* din that mti_din gave to a kernel */
    bool sends;      /* its tensors are counted as sent, not as moved in memory */
    /* From here on nothing is read before it is set. Freed at the end of the call: */
    mti_block *scratch[4];
    mt_tensor *temps[8];
    mti_view aux_spec[MTI_MAX_AUX]; /* forward */
};

static inline void mti_call_clear(mti_call *c) { memset(c, 0, offsetof(mti_call, scratch)); }

/* Runs an op: checks, makes the outputs, computes, records. in[i] may be NULL if the row has it as
 * OPTIONAL; params NULL: all zero. out[n_out] receives new references. A failure has no
 * effect. */
bool mti_apply(const mti_op *op, const mti_params *params, int n_in, mt_tensor *const *in,
               int n_out, mt_tensor **out);
/* In place on x: the new node becomes x's grad_fn. */
mt_status mti_apply_inplace(const mti_op *op, const mti_params *params, mt_tensor *x);

/* For op files. */
static inline const mti_view *mti_in(const mti_call *c, int i)
{
    return c->absent[i] ? NULL : &c->in[i]->view;
}
static inline const mti_view *mti_out(const mti_call *c, int i) { return &c->out[i]->view; }
/* NULL: not needed. */
static inline const mti_view *mti_aux(const mti_call *c, int i)
{
    return c->aux[i] ? &c->aux[i]->view : NULL;
}
/* Backward's only access to forward values; asserts that the op's row keeps the slot. */
const mti_view *mti_saved(const mti_call *c, unsigned slot);
/* The elements of input i, in backward as it is saved, in host memory: mti_read_once. */
bool mti_in_to_host(mti_call *c, int i, void *data, size_t n_bytes);
static inline const mti_view *mti_dout(const mti_call *c) { return &c->dout[0]->view; }
static inline bool mti_wants(const mti_call *c, int i) { return (c->want >> i) & 1; }
/* The gradient of input i, made on first use: row-major, the input's shape and dtype. NULL on
 * failure. */
const mti_view *mti_din(mti_call *c, int i);
/* The same, in dout's memory if dout has no other reference: for element-wise backwards, which can
 * run in place. */
const mti_view *mti_din_reuse(mti_call *c, int i);
/* The same, filled with what is saved in `slot`, and in its memory if nobody else needs it. */
const mti_view *mti_din_of_saved(mti_call *c, int i, unsigned slot);
/* Sets the gradient of input i to t, a view of dout for example. Takes t over; NULL fails. */
bool mti_give_din(mti_call *c, int i, mt_tensor *t);
/* Sets din i to grad, summed over the dimensions along which input i was broadcast. */
bool mti_reduce_to_din(mti_call *c, int i, mt_tensor *grad);
/* A tensor that lives until the end of the call. */
mt_tensor *mti_temp(mti_call *c, mt_dtype dtype, int rank, const int64_t *shape);
/* v itself if its rows (last dimension) are dense, else a dense temporary copy; NULL on failure. */
const mti_view *mti_dense_rows(mti_call *c, const mti_view *v);
const mti_view *mti_dense(mti_call *c, const mti_view *v);
/* Kernel scratch, category MT_WORKSPACE, until the end of the call; *p is NULL for 0 bytes. */
bool mti_scratch(mti_call *c, size_t n_bytes, void **p);
/* The same, for what is sent to other ranks or comes from them: MT_COMMUNICATION. */
bool mti_scratch_as(mti_call *c, mt_category category, size_t n_bytes, void **p);
/* out = alpha a b (+ bias): copies inputs BLAS cannot read, takes scratch, counts FLOPs. */
bool mti_multiply(mti_call *c, double alpha, const mti_view *a, const mti_view *b,
                  const mti_view *out, const mti_view *bias);
/* out = a b, and sums [m] = the sum of each row of a; matrices, otherwise as mti_multiply. */
bool mti_multiply_sums(mti_call *c, const mti_view *a, const mti_view *b, const mti_view *out,
                       const mti_view *sums);
/* v as BLAS can read its matrices: itself, or a dense temporary copy. */
bool mti_readable(mti_call *c, const mti_view *v, mti_view *out);
/* One of many products of a call: out = a b + beta out, beta 0 or 1, on matrices that BLAS can
 * read. Frees its scratch at once. */
bool mti_multiply_part(mti_call *c, const mti_view *a, const mti_view *b, double beta,
                       const mti_view *out);
void mti_count_flops(mti_call *c, uint64_t n);
/* At the end of a call: what it moved in memory. */
void mti_count_moved(const mti_call *c);
/* Beside ops: a + b, into a place of their size. */
void mti_count_sum(mt_device *d, const mti_view *sum);
/* Shape rules. */
bool mti_out_set(mti_call *c, int i, mt_dtype dtype, int rank, const int64_t *shape);
bool mti_out_like(mti_call *c, const mti_view *v); /* v's shape and dtype, row-major */
bool mti_aux_set(mti_call *c, int i, mt_dtype dtype, int rank, const int64_t *shape);
bool mti_need_float(mti_call *c, int i);
bool mti_need_i64(mti_call *c, int i);
bool mti_need_same_dtype(mti_call *c, int i, int j);

/* ---- modes, per thread ---- */

typedef struct mti_saved_tensor mti_saved_tensor;
typedef struct mti_hooks mti_hooks;
/* In the place of hooks: it only looks on, so a saved tensor has no level for it. */
typedef struct mti_onlooker {
    /* A hook's pack would be given t. False fails the op. */
    bool (*saved)(void *user, const mti_saved_tensor *s, mt_tensor *t);
    /* The slot is let go, and no backward has used it. s->kept is what it kept. h: of one push */
    void (*given_up)(void *user, const mti_hooks *h, const mti_saved_tensor *s);
    void (*popped)(void *user, mti_hooks *h); /* h is the user's again */
} mti_onlooker;

struct mti_hooks { /* a pushed pair: shared by the stack and the slots it packed */
    atomic_int refs;
    int pins; /* while more than 0 it may not be popped */
    mt_saved_hooks fn;
    const mti_onlooker *onlooker; /* instead of fn, in memory of the user's; NULL: fn */
    uint64_t failures;            /* of the thread when an onlooker was pushed */
    void *user;
    mti_hooks *below;
};
void mti_onlooker_push(mti_hooks *h, const mti_onlooker *onlooker, void *user);
void mti_hooks_release(mti_hooks *h);
void mti_hooks_pop_all(void); /* of this thread, pinned or not */

/* Replaces an op's inputs, for autocast: new references in out[n_in], NULL for NULL. False fails
 * the op. Off in hooks, unless they turn it on. */
typedef bool mti_rewrite_fn(const mti_op *op, int n_in, mt_tensor *const *in, mt_tensor **out);

typedef struct mti_op_hooks mti_op_hooks;
void mti_op_hooks_pop_all(void);

typedef struct mti_modes {
    bool grad_off;
    int in_hook;             /* in a pack or unpack: nothing is recorded */
    uint64_t walk;           /* number of the innermost backward; 0: none */
    mti_hooks *hooks;        /* the top of the stack */
    mti_rewrite_fn *rewrite; /* called for every op's inputs; NULL: none */
    mti_op_hooks *op_hooks;  /* the top of that stack */
    int in_op_hook;
    mti_draw_part part;  /* of what is drawn */
    bool recompute;      /* in mt_run_apart: count FLOPs as recomputation */
    bool op_in_progress; /* in mt_run_apart, called within an op or a backward */
} mti_modes;
mti_modes *mti_modes_now(void);
/* In a hook or a backward, an outer op's tensors have no category yet: do not check the balance. */
static inline bool mti_op_in_progress(void)
{
    const mti_modes *m = mti_modes_now();
    return mti_making_now()->in_op || mti_where_now()->in_backward || m->in_op_hook ||
           m->op_in_progress;
}
/* mt_scope_push. *known: NULL, or a path that it pushed before, which is compared and not looked up
 * again. */
typedef _Atomic(const char *) mti_known_path;
mt_status mti_scope_push(const char *name, mti_known_path *known);
int mti_scope_depth(void);
void mti_scope_restore(int depth);

/* Run the op hooks around forward; one before it may supply the results and c->draw. False: a hook
 * failed. */
bool mti_before_op(mti_call *c, bool *supplied);
bool mti_after_op(mti_call *c);

/* ---- nodes ---- */

typedef struct mti_node mti_node;
typedef struct mti_leaf mti_leaf;

/* What one pair of hooks keeps of a saved tensor. */
typedef struct mti_packed {
    mti_hooks *hooks; /* retained */
    void *state;
    mti_view spec;     /* pack's argument: unpack must return this shape and dtype ... */
    mt_device *device; /* ... on this device (retained) */
    bool left_tensor;  /* pack left a tensor for unpack */
} mti_packed;

struct mti_saved_tensor {
    mt_tensor *kept;  /* the outermost hook's result; may be NULL */
    uint64_t version; /* of the storage when it was saved */
    bool original;    /* kept views the saved storage itself: compare versions */
    int bit;          /* slot */
    int n_packed, depth;
    mti_packed *packed;                    /* [n_packed], room for [depth]; innermost first */
    mt_device *device;                     /* packed's; borrowed: packed[0] retains it */
    const mti_node *node;                  /* NULL: an mt_saved */
    struct mti_saved_tensor *next, **link; /* in the list of slots that hold kept's storage */
};

struct mt_saved { /* a slot without a node */
    mti_saved_tensor slot;
    mt_save_info info;
    bool was_read;
};

typedef struct mti_edge {
    mti_node *node; /* the node that made the input, or ... */
    mti_leaf *leaf; /* ... the leaf it is, both retained; NULL both: no gradient wanted */
    int out_index;
} mti_edge;

typedef struct mti_grad_hook { /* on an output of a node, or on a leaf */
    struct mti_grad_hook *next;
    int handle, out_index;
    uint64_t walk; /* in which it was added: called in later walks only */
    bool removed;  /* marked while its list runs; freed afterwards */
    mt_grad_hook_fn *fn;
    mt_leaf_hook_fn *leaf_fn; /* instead of fn: after accumulation */
    void *user;
} mti_grad_hook;

typedef struct mti_hook_list {
    mti_grad_hook *first;
    int last_handle;
    int running; /* walks running it; removed hooks are freed after them */
} mti_hook_list;

struct mti_node {
    mti_ref ref;
    const mti_op *op;
    mt_device *device; /* retained */
    size_t n_bytes;    /* of this node with its arrays */
    uint64_t sequence;
    const char *module;
    mti_params params;
    mti_draw draw;
    uint64_t want;
    int n_in, n_out, n_saved;
    bool freed;    /* its saved tensors are freed */
    bool ran;      /* its backward, which read them */
    bool running;  /* in its hooks or its backward: no walk may reach it */
    uint64_t walk; /* number of the walk that `grads` belong to; 0: none */
    bool absent[MTI_OUT_BIT];
    mti_edge *in;                 /* [n_in] */
    mti_view *in_spec, *out_spec; /* [n_in], [n_out] */
    mt_tensor **grads;            /* [n_out], during a backward */
    mti_saved_tensor *saved;
    mti_hook_list hooks;
    mti_node *next_dying;
};

struct mti_leaf {
    mti_ref ref;
    mt_tensor *owner; /* borrowed; NULL once the handle is gone */
    mt_tensor *grad;
    mti_view spec; /* of its gradient */
    mti_hook_list hooks;
    void *guest; /* of the storey above, which alone knows what it is; NULL: none */
};

/* What waits for the end of the backward that runs in this thread, the outermost one; ok: it went
 * well. False fails it. */
typedef struct mti_ending {
    bool (*run)(struct mti_ending *ending, bool ok);
    struct mti_ending *next;
    bool waits;
} mti_ending;
/* Within a backward; nothing if it waits already. It stays until it has run. */
void mti_await_end(mti_ending *ending);

uint64_t mti_next_sequence(void);
mti_node *mti_node_new(const mti_call *c, int n_saved);
bool mti_edge_to(mti_edge *e, mt_tensor *t); /* *e: all zero; false: out of memory */
void mti_edge_release(mti_edge *e);
void mti_node_drop_saved(mti_node *n);
mti_leaf *mti_leaf_of(mt_tensor *t); /* made on first use; borrowed */

/* ---- hooks on gradients ---- */

void mti_hook_list_free(mti_hook_list *list);
/* Call around a loop over the list: hooks removed meanwhile are freed by the last leave. */
void mti_hook_list_enter(mti_hook_list *list);
void mti_hook_list_leave(mti_hook_list *list);
/* Whether this walk calls any of them: it leaves out those that a hook removed or added meanwhile.
 */
bool mti_any_is_called(const mti_hook_list *list);
/* Runs the hooks of one output, or of a leaf. Takes grad over; NULL on failure. */
mt_tensor *mti_run_grad_hooks(mti_hook_list *list, int out_index, const mti_view *spec,
                              mt_tensor *grad);
/* Runs leaf hooks after accumulation. They may release the leaf's last handle. */
bool mti_run_leaf_hooks(mti_leaf *leaf);

/* ---- kept tensors ---- */

/* Passes t through the hooks and fills *s; t is borrowed. */
bool mti_slot_save(mti_saved_tensor *s, const mti_node *n, int bit, mt_tensor *t);
/* A new reference to what was saved; NULL on failure. */
mt_tensor *mti_slot_load(const mti_saved_tensor *s);
void mti_slot_drop(mti_saved_tensor *s);
mt_save_info mti_slot_info(const mti_saved_tensor *s);
/* mt_saver_of what the slot is and t. */
mt_saver mti_slot_saver(const mti_saved_tensor *s, const mt_tensor *t);

/* Enter the slot into the list at s->kept's storage, and remove it. */
void mti_slot_hold(mti_saved_tensor *s);
void mti_slot_unhold(mti_saved_tensor *s);
/* Fails if a slot holds the storage, because op would change what a backward still needs. */
bool mti_check_holders(const mti_op *op, mti_storage *s);

/* Pops nodes in reverse order of creation, each once, however often it was pushed. */
#define MTI_HEAP_FEW 32
typedef struct mti_heap {
    MTI_VEC(mti_node *) v;       /* its first memory is ... */
    mti_node *few[MTI_HEAP_FEW]; /* ... this: a heap must not move */
} mti_heap;
bool mti_heap_push(mti_heap *h, mti_node *n);
mti_node *mti_heap_pop(mti_heap *h); /* NULL when empty */
void mti_heap_free(mti_heap *h);

/* The balance check after an op (autograd.h); true when it is off. */
bool mti_balance_after(mt_device *device, const char *op);

#endif
