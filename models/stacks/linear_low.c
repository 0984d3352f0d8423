/* linear_low.c: linears whose products are of 8 or 4 bits, as torchao and Transformer Engine have
 * them.
 *
 * The op is linear, with its node and its backward. A hook supplies its result, the product of x
 * and w as their codes say; hooks on what it saves keep x or codes of it, and give backward the
 * values of the codes; a hook on y's gradient puts that into codes and back. So a product reads
 * values in the model's type: a temporary of 2 bytes an element, as much as the codes in both
 * layouts. */
#include <string.h>
#include "memtape/autocast.h"
#include "memtape/hooks.h"
#include "memtape/ops.h"
#include "stacks/blocks8.h"
#include "stacks/linear_low.h"

typedef struct low_form {
    mti_scales scales;
    mti_values8 values, gradients;
    int64_t block;    /* values of a row that share a scale; 1: all */
    bool square;      /* blocks of the weight are as many rows high */
    bool keeps_codes; /* of x, and of the weight; else both as they are */
    bool both;        /* the weight's codes also as forward read them */
    bool delayed;     /* the scale is that of the steps before */
} low_form;

static const low_form forms[MT_LINEAR_FORM_COUNT] = {
    [MT_LINEAR_TORCHAO_FLOAT8] = {MTI_SCALE_TENSOR, MTI_VALUES_E4M3, MTI_VALUES_E5M2, 1},
    [MT_LINEAR_TORCHAO_MXFP8] = {MTI_SCALE_FLOOR, MTI_VALUES_E4M3, MTI_VALUES_E4M3, 32},
    [MT_LINEAR_TORCHAO_NVFP4] = {MTI_SCALE_TWO, MTI_VALUES_E2M1, MTI_VALUES_E2M1, 16,
                                 .keeps_codes = true},
    [MT_LINEAR_TE_DELAYED] = {MTI_SCALE_TENSOR, MTI_VALUES_E4M3, MTI_VALUES_E5M2, 1,
                              .keeps_codes = true, .both = true, .delayed = true},
    [MT_LINEAR_TE_CURRENT] = {MTI_SCALE_TENSOR, MTI_VALUES_E4M3, MTI_VALUES_E5M2, 1,
                              .keeps_codes = true, .both = true},
    [MT_LINEAR_TE_MXFP8] = {MTI_SCALE_CEIL, MTI_VALUES_E4M3, MTI_VALUES_E4M3, 32,
                            .keeps_codes = true, .both = true},
    [MT_LINEAR_TE_BLOCKWISE] = {MTI_SCALE_F32, MTI_VALUES_E4M3, MTI_VALUES_E4M3, 128,
                                .square = true, .keeps_codes = true, .both = true},
    [MT_LINEAR_TE_NVFP4] = {MTI_SCALE_TWO, MTI_VALUES_E2M1, MTI_VALUES_E2M1, 16,
                            .keeps_codes = true, .both = true},
};

/* Tensors of a delayed form, in Transformer Engine's order. */
enum { OF_X, OF_W, OF_Y, OF_DY = MTI_LOW_FORWARD, OF_DX, TENSORS };

typedef mti_linear_low low;

static const low_form *form_of(const low *l) { return &forms[l->form]; }

int64_t mti_linear_block(mt_linear_form f) { return f ? forms[f].block : 1; }

bool mti_linear_keeps_codes(mt_linear_form f)
{
    return (unsigned)f < MT_LINEAR_FORM_COUNT && forms[f].keeps_codes;
}

bool mti_linear_remembers(mt_linear_form f) { return forms[f].delayed; }

/* ---- codes of one tensor ---- */

/* How tensor `which` is encoded; across: as the products of backward read it. */
static mti_blocks8 blocks_of(const low_form *f, int which, bool across)
{
    mti_blocks8 b = {f->scales, which == OF_DY ? f->gradients : f->values, 1, f->block,
                     across && f->block > 1};
    if (f->square && which == OF_W) b.rows = f->block;
    return b;
}

static mt_tensor *matrix(mt_tensor *x)
{
    int64_t n = mt_shape(x)[mt_rank(x) - 1];
    return mt_reshape(x, MT_SHAPE(n ? mt_numel(x) / n : 0, n));
}

static mt_tensor *temporary(mt_tensor *t)
{
    if (!t || mt_set_category(t, MT_TEMPORARY) == MT_OK) return t;
    mt_release(t);
    return NULL;
}

/* The history's column of a tensor: a view [HISTORY,1]. */
static mt_tensor *past_of(const low *l, int which)
{
    int back = which >= OF_DY;
    return mt_slice(l->history[back], 1, back ? which - OF_DY : which, 1);
}

/* What the largest value of the past makes a delayed form multiply the next tensor by: [1] */
static mt_tensor *next_times(const low *l, int which)
{
    MT_AUTO mt_tensor *past = past_of(l, which);
    mt_tensor *most = past ? mt_max(past, 2, (const int[]){0, 1}, false) : NULL;
    MT_AUTO mt_tensor *none = mt_compare_scalar(most, MT_EQ, 0);
    mt_set(&most, mti_blocks8_times(blocks_of(form_of(l), which, false).values, most));
    mt_set(&most, mt_masked_fill(most, none, 1)); /* the first step's */
    mt_set(&most, most ? mt_reshape(most, MT_SHAPE(1)) : NULL);
    return most;
}

/* What a delayed form multiplies the tensor by: [1,1,1,1]; *times NULL for other forms. Evaluation
 * has what the next step of training would have, and leaves no trace. */
static bool times_of(const low *l, int which, mt_tensor **times)
{
    *times = NULL;
    if (!form_of(l)->delayed) return true;
    int back = which >= OF_DY;
    *times = l->training ? mt_slice(l->times[back], 0, back ? which - OF_DY : which, 1)
                         : next_times(l, which);
    mt_set(times, *times ? mt_reshape(*times, MT_SHAPE(1, 1, 1, 1)) : NULL);
    return *times != NULL;
}

/* Codes of t, from byte `at` of out on. */
static bool encode(const low *l, int which, bool across, mt_tensor *t, mt_tensor *out, int64_t at)
{
    const mti_blocks8 b = blocks_of(form_of(l), which, across);
    mt_tensor *times;
    if (!times_of(l, which, &times)) return false;
    MT_AUTO mt_tensor *m = matrix(t);
    bool ok = m && mti_blocks8_encode(&b, m, times, out, at);
    mt_release(times);
    return ok;
}

/* y of that shape and type: the values of these codes. */
static mt_tensor *decode(const low_form *f, int which, bool across, mt_tensor *codes, int64_t at,
                         mt_dtype dtype, int rank, const int64_t *shape)
{
    const mti_blocks8 b = blocks_of(f, which, across);
    mt_tensor *y = temporary(mt_empty(mt_device_of(codes), dtype, rank, shape));
    MT_AUTO mt_tensor *m = y ? matrix(y) : NULL;
    if (!m || !mti_blocks8_decode(&b, codes, at, m)) mt_set(&y, NULL);
    return y;
}

static int64_t bytes_of(const low_form *f, int which, bool across, const mt_tensor *t)
{
    const mti_blocks8 b = blocks_of(f, which, across);
    return mti_blocks8_bytes(&b, mt_numel(t));
}

/* t, into codes and back. */
static mt_tensor *through_codes(const low *l, int which, bool across, mt_tensor *t)
{
    MT_AUTO mt_tensor *codes = temporary(
        mt_empty(mt_device_of(t), MT_U8, MT_SHAPE(bytes_of(form_of(l), which, across, t))));
    if (!codes || !encode(l, which, across, t, codes, 0)) return NULL;
    return decode(form_of(l), which, across, codes, 0, mt_dtype_of(t), mt_rank(t), mt_shape(t));
}

/* ---- delayed scales ---- */

/* In training, the largest value of the history becomes the tensor's scale, and that of t is put
 * first. */
static bool note_largest(low *l, int which, mt_tensor *t)
{
    int back = which >= OF_DY, column = back ? which - OF_DY : which;
    if (!form_of(l)->delayed || !l->training) return true;
    MT_AUTO mt_tensor *past = past_of(l, which), *most = next_times(l, which);
    MT_AUTO mt_tensor *times = past && most ? mt_slice(l->times[back], 0, column, 1) : NULL;
    if (!times || mt_copy(times, most) != MT_OK) return false;
    MT_AUTO mt_tensor *m = matrix(t), *now = m ? mti_blocks8_largest(m) : NULL;
    MT_AUTO mt_tensor *first = now ? mt_reshape(now, MT_SHAPE(1, 1)) : NULL;
    MT_AUTO mt_tensor *older = first ? mt_slice(past, 0, 0, MTI_LOW_HISTORY - 1) : NULL;
    MT_AUTO mt_tensor *all = older ? mt_cat(2, (mt_tensor *[]){first, older}, 0) : NULL;
    return all && mt_copy(past, all) == MT_OK;
}

/* ---- hooks around one call ---- */

typedef struct product {
    low *l;
    mt_tensor *bias; /* NULL: none */
} product;

static mt_status supply(void *user, const mt_op_call *call, mt_op_result *result, bool *supplied)
{
    const product *p = user;
    low *l = p->l;
    mt_tensor *const *in = call->inputs;
    if (strcmp(call->op, "linear") != 0) return MT_OK; /* a cast of autocast's */
    if (!mt_recomputing() && !(note_largest(l, OF_X, in[0]) && note_largest(l, OF_W, in[1])))
        return mt_last_status();
    MT_AUTO mt_tensor *x = through_codes(l, OF_X, false, in[0]);
    MT_AUTO mt_tensor *w = x ? through_codes(l, OF_W, false, in[1]) : NULL;
    result->outputs[0] = w ? mt_linear(x, w, p->bias) : NULL;
    *supplied = result->outputs[0] != NULL;
    return *supplied ? MT_OK : mt_last_status();
}

/* y has the bias already. */
static mt_status supply_sum(void *user, const mt_op_call *call, mt_op_result *result,
                            bool *supplied)
{
    (void)user;
    *supplied = !strcmp(call->op, "add");
    if (*supplied) result->outputs[0] = mt_retain(call->inputs[0]);
    return MT_OK;
}

/* What was saved, of x or the weight. */
typedef struct saved {
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK];
} saved;

static mt_status pack(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                      void **state)
{
    const low *l = user;
    int which = info->index ? OF_W : OF_X;
    if (info->role != MT_SAVE_INPUT || !form_of(l)->keeps_codes) return MT_OK;
    int64_t n = bytes_of(form_of(l), which, true, tensor), more = 0;
    if (which == OF_W && form_of(l)->both) more = bytes_of(form_of(l), which, false, tensor);
    saved *s = mti_malloc(sizeof *s);
    mt_tensor *codes = s ? mt_empty(mt_device_of(tensor), MT_U8, MT_SHAPE(n + more)) : NULL;
    if (codes && (!encode(l, which, true, tensor, codes, 0) ||
                  (more && !encode(l, which, false, tensor, codes, n))))
        mt_set(&codes, NULL);
    if (!codes) {
        mti_free(s);
        return mt_last_status();
    }
    *s = (saved){.dtype = mt_dtype_of(tensor), .rank = mt_rank(tensor)};
    for (int d = 0; d < s->rank; d++) s->shape[d] = mt_shape(tensor)[d];
    *state = s;
    *kept = codes;
    return MT_OK;
}

static mt_status unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    const low *l = user;
    const saved *s = state;
    int which = info->index ? OF_W : OF_X;
    if (info->role != MT_SAVE_INPUT) return MT_OK;
    *tensor = s ? decode(form_of(l), which, true, *tensor, 0, s->dtype, s->rank, s->shape)
                : through_codes(l, which, true, *tensor);
    return *tensor ? MT_OK : mt_last_status();
}

static void drop(void *user, const mt_save_info *info, void *state)
{
    (void)user, (void)info;
    mti_free(state);
}

/* dy, into codes and back. */
static mt_tensor *lower_gradient(void *user, mt_tensor *dy)
{
    low *l = user;
    if (!note_largest(l, OF_DY, dy)) return NULL;
    return through_codes(l, OF_DY, false, dy);
}

/* ---- the product ---- */

/* Blocks must cover x and w, and where there will be gradients, both and dy in the other direction,
 * too. */
static bool covers(const low_form *f, const mt_tensor *x, const mt_tensor *w)
{
    int64_t in = mt_shape(w)[1], out = mt_shape(w)[0], rows = in ? mt_numel(x) / in : 0;
    bool back = mt_grad_mode() && (mt_requires_grad(x) || mt_requires_grad(w));
    if (in % f->block == 0 && (!f->square || out % f->block == 0) &&
        (!back || (rows % f->block == 0 && out % f->block == 0)))
        return true;
    return mti_fail_bool(
        MT_ERR_ARGUMENT,
        "linear: %lld values share a scale, and x is %lld rows of %lld, the weight "
        "[%lld,%lld]; need multiples",
        (long long)f->block, (long long)rows, (long long)in, (long long)out, (long long)in);
}

/* y + b, which y is: the node of the sum, by which the bias gets dy itself, and the product its
 * codes. y is taken over. */
static mt_tensor *with_bias(mt_tensor *y, mt_tensor *bias)
{
    static const mt_op_hooks hooks = {.before = supply_sum};
    if (!y || !bias) return y;
    bool pushed = mt_push_op_hooks(&hooks, NULL) == MT_OK;
    mt_set(&y, pushed ? mt_add(y, bias) : NULL);
    if (pushed) mt_pop_op_hooks();
    return y;
}

mt_tensor *mti_linear_low_run(low *l, mt_tensor *x, mt_tensor *w, mt_tensor *own)
{
    static const mt_op_hooks op_hooks = {.before = supply};
    static const mt_saved_hooks saved_hooks = {pack, unpack, drop, NULL};
    mt_dtype dtype = x ? mt_dtype_of(x) : MT_F32;
    mt_autocast_active(&dtype);
    MT_AUTO mt_tensor *bias = own ? mt_cast(own, dtype) : NULL;
    product p = {l, bias};
    mt_tensor *y = NULL;
    if (!x || !w || (own && !bias) || !covers(form_of(l), x, w) ||
        mt_push_op_hooks(&op_hooks, &p) != MT_OK)
        return NULL;
    if (mt_push_saved_hooks(&saved_hooks, l) == MT_OK) {
        y = mt_linear(x, w, NULL);
        mt_pop_saved_hooks();
    }
    mt_pop_op_hooks();
    if (y && mt_requires_grad(y) && !mt_add_grad_hook(y, lower_gradient, l)) mt_set(&y, NULL);
    return with_bias(y, bias);
}
