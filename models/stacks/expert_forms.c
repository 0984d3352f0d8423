/* expert_forms.c: a mixture of experts in the order of ops of other libraries than Transformers'
 * grouped_mm, which is ours (nn/experts.c). The values are the same except for rounding (not of
 * torchtitan-before, whose experts see weighted inputs); what is kept is not. With S = t k rows of
 * width d, f an expert's width and e the bytes of an element, besides the router's:
 *
 *   loop         S ((3 d + 4 f + 1) e + 16), and in backward two tensors of all experts' weights
 *   torchtitan   S ((d + 4 f) e + 4 d + 20), the outputs in f32; torchtitan-before: the inputs
 *   megatron     S ((d + 3 f) e + 20), no outputs
 *
 * (4 f with an unfused swiglu, else 3 f; an MLP without a gate: 2 f, with megatron 3 f). */
#include <string.h>
#include "memtape/checkpoint.h"
#include "memtape/ops.h"
#include "ops/ops.h"
#include "stacks/expert_forms.h"
#include "stacks/torch_ops.h"

/* ---- loop: an expert after the other, as Transformers' experts_implementation="eager" does ----
 */

/* The lists that a loop over experts goes through: of each expert's rows the token, and the place
 * in index. index NULL: there is no data, and only their numbers are known. */
typedef struct lists {
    int64_t *counts, *index; /* [n], [t k] */
    int64_t n, k, total;
} lists;

static bool read_lists(lists *l, const mti_expert_call *call, mt_tensor *index)
{
    *l = (lists){.n = call->experts, .k = mt_shape(index)[1], .total = mt_numel(index)};
    l->counts = mti_calloc((size_t)l->n, sizeof *l->counts);
    return l->counts && mti_read_choice(call, index, l->counts, &l->index);
}

/* [2,rows]: of the rows of `expert` the tokens, then the places in index; one storage, as where()
 * of PyTorch makes it. */
static mt_tensor *places_of(const lists *l, int64_t expert, mt_device *device)
{
    const int64_t rows = l->counts[expert], shape[2] = {2, rows};
    const size_t n_bytes = 2 * (size_t)rows * sizeof(int64_t);
    if (!l->index) return mt_empty(device, MT_I64, 2, shape);
    int64_t *at = mti_malloc(n_bytes), n = 0;
    if (!at) return NULL;
    for (int64_t i = 0; i < l->total; i++)
        if (l->index[i] == expert) at[n] = i / l->k, at[rows + n++] = i;
    mt_tensor *t = mt_from_data(device, MT_I64, 2, shape, at, n_bytes);
    mti_free(at);
    return t;
}

static mt_tensor *row_of(mt_tensor *places, int64_t i)
{
    mt_tensor *row = places ? mt_slice(places, 0, i, 1) : NULL;
    mt_set(&row, row ? mt_reshape(row, MT_SHAPE(-1)) : NULL);
    return row;
}

/* y [n,d], taken over, times w [n], in w's type if `wide`, then in y's type again */
static mt_tensor *weigh(mt_tensor *y, mt_tensor *w, bool wide)
{
    const mt_dtype dtype = y ? mt_dtype_of(y) : MT_F32;
    MT_AUTO mt_tensor *column = w ? mt_reshape(w, MT_SHAPE(-1, 1)) : NULL;
    if (wide && y && column) mt_set(&y, mt_cast(y, mt_dtype_of(column)));
    mt_set(&y, mt_mul(y, column));
    if (y) mt_set(&y, mt_cast(y, dtype));
    return y;
}

/* What `expert` adds to y [t,d]. */
static mt_tensor *one_expert(const mti_expert_call *call, const lists *l, int64_t expert,
                             mt_tensor *x, mt_tensor *weights)
{
    MT_AUTO mt_tensor *places = places_of(l, expert, mt_device_of(x));
    MT_AUTO mt_tensor *tokens = row_of(places, 0), *at = row_of(places, 1);
    mt_tensor *h = tokens ? mt_embedding(tokens, x, NULL) : NULL;
    if (h) h = call->run(call->user, h, &(mti_expert_rows){.expert = expert, .alone = true});
    MT_AUTO mt_tensor *w = at ? mt_gather(weights, 0, at) : NULL;
    h = weigh(h, w, false);
    mt_set(&h, h ? mti_torch_index_add(h, tokens, mt_shape(x)[0]) : NULL);
    return h;
}

static mt_tensor *loop(const mti_expert_call *call, mt_tensor *x, mt_tensor *weights,
                       mt_tensor *index)
{
    lists l;
    bool ok = read_lists(&l, call, index);
    /* one_hot(index) of PyTorch, which stays until the last expert has run */
    MT_AUTO mt_tensor *mask =
        ok ? mt_empty(mt_device_of(x), MT_I64, MT_SHAPE(mt_shape(x)[0], l.k, l.n + 1)) : NULL;
    MT_AUTO mt_tensor *flat = mask ? mt_reshape(weights, MT_SHAPE(-1)) : NULL;
    mt_tensor *y =
        flat && !l.total ? mt_zeros(mt_device_of(x), mt_dtype_of(x), 2, mt_shape(x)) : NULL;
    for (int64_t e = 0; flat && e < l.n; e++) {
        if (!l.counts[e]) continue;
        mt_tensor *one = one_expert(call, &l, e, x, flat);
        if (y && one) mt_set(&one, mt_add(y, one));
        mt_set(&y, one);
        if (!y) break;
    }
    mti_free(l.counts), mti_free(l.index);
    return y;
}

/* ---- rows sorted by expert, whose outputs are added up by token ---- */

/* *tokens [S], and *groups, of rows sorted by expert; no row is copied. */
static bool sort_rows(const mti_expert_call *call, mt_tensor *x, mt_tensor *index,
                      mt_tensor **tokens, mt_groups *groups)
{
    const int64_t t = mt_shape(x)[0], k = mt_shape(index)[1];
    const bool was = mt_set_grad_mode(false);
    MT_AUTO mt_tensor *none = mt_slice(x, 1, 0, 0);
    MT_AUTO mt_tensor *sorted = none ? mt_dispatch(none, index, call->experts, groups) : NULL;
    mt_tensor *token = sorted ? mt_arange(mt_device_of(x), MT_I64, 0, 1, t) : NULL;
    mt_set(&token, token ? mt_reshape(token, MT_SHAPE(t, 1)) : NULL);
    mt_set(&token, token ? mt_expand(token, MT_SHAPE(t, k)) : NULL);
    mt_set(&token, token ? mt_reshape(token, MT_SHAPE(-1)) : NULL);
    *tokens = token ? mt_gather(token, 0, groups->order) : NULL;
    mt_release(token);
    mt_set_grad_mode(was);
    return *tokens != NULL;
}

static mt_tensor *in_order(const mti_expert_call *call, mt_tensor *x, mt_tensor *weights,
                           mt_tensor *index)
{
    mt_groups groups = {0};
    MT_AUTO mt_tensor *tokens = NULL, *w = NULL;
    mt_tensor *h = NULL;
    if (call->capacity > 0 ? mti_limit_rows(call, weights, index, &tokens, &groups)
                           : sort_rows(call, x, index, &tokens, &groups)) {
        h = mt_embedding(tokens, x, NULL);
        w = mt_reshape(weights, MT_SHAPE(-1));
        if (w && call->padded) {
            MT_AUTO mt_tensor *zero = mt_zeros(mt_device_of(w), mt_dtype_of(w), MT_SHAPE(1));
            mt_set(&w, zero ? mt_cat(2, (mt_tensor *[]){w, zero}, 0) : NULL);
        }
        mt_set(&w, w ? mt_gather(w, 0, groups.order) : NULL);
    }
    if (call->form == MT_EXPERTS_TORCHTITAN_BEFORE) h = weigh(h, w, true);
    const mti_expert_rows rows = {.counts = groups.counts,
                                  .weights = call->form == MT_EXPERTS_MEGATRON ? w : NULL};
    if (h && w) h = call->run(call->user, h, &rows);
    if (call->form == MT_EXPERTS_TORCHTITAN) h = weigh(h, w, true);
    mt_set(&h, h ? mt_combine(h, tokens, mt_shape(x)[0]) : NULL);
    mt_groups_release(&groups);
    return h;
}

/* ---- megatron: the weights are applied in the activation ---- */

/* in[0] times in[1] [n], in that one's type */
static mt_status weighted(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    *out = weigh(mt_retain(in[0]), in[1], true);
    return *out ? MT_OK : mt_last_status();
}

/* The same of silu(gate) up: in[0] has gate and up side by side [n,2f] */
static mt_status weighted_swiglu(void *user, int n_in, mt_tensor *const *in, int n_out,
                                 mt_tensor **out)
{
    const int64_t f = mt_shape(in[0])[1] / 2;
    mt_tensor *half[2] = {NULL, NULL};
    MT_AUTO mt_tensor *y = NULL;
    if (mt_split(in[0], 1, 2, (const int64_t[]){f, f}, half) == MT_OK)
        y = mt_swiglu(half[0], half[1]);
    mt_release(half[0]), mt_release(half[1]);
    return y ? weighted(user, n_in, (mt_tensor *[]){y, in[1]}, n_out, out) : mt_last_status();
}

/* Megatron-Core's WeightedSwiGLUFunction keeps gate, up and the weights, and makes the product of
 * the first two again; without a gate a product of two types keeps both as they are. A checkpoint
 * does either. */
mt_tensor *mti_weighted_rows(mt_tensor *h, mt_tensor *weights, bool swiglu, bool discard)
{
    const mt_checkpoint_options options = {.discard_outputs = discard};
    mt_tensor *in[2] = {h, weights}, *y = NULL;
    if (mt_checkpoint(swiglu ? weighted_swiglu : weighted, NULL, NULL, 2, in, 1, &y, &options) !=
        MT_OK)
        return NULL;
    return y;
}

const mti_expert_form_row *mti_expert_form_of(mt_expert_form form)
{
    static const mti_expert_form_row rows[MT_EXPERTS_FORM_COUNT] = {
        [MT_EXPERTS_LOOP] = {loop, .alone = true},
        [MT_EXPERTS_TORCHTITAN] = {in_order, .as_scored = true},
        [MT_EXPERTS_TORCHTITAN_BEFORE] = {in_order, .as_scored = true},
        [MT_EXPERTS_MEGATRON] = {in_order, .as_scored = true}};
    return &rows[(unsigned)form < MT_EXPERTS_FORM_COUNT ? form : MT_EXPERTS_GROUPED];
}
