/* Random results that an op hook supplies: how their masks are packed, and the generator's offset
 * afterwards. */
#include <string.h>
#include "memtape/checkpoint.h"
#include "compressed.h"

/* Results for the next op named `op`. */
typedef struct supply {
    const char *op;
    mt_tensor *out, *aux[3];
    double p;
    uint64_t seed, offset;
    bool keep; /* keep the op's results instead of supplying them */
    int n_supplied;
} supply;

static mt_status before(void *user, const mt_op_call *call, mt_op_result *result, bool *supplied)
{
    supply *s = user;
    if (s->keep || strcmp(call->op, s->op) != 0) return MT_OK;
    result->outputs[0] = mt_retain(s->out);
    for (int i = 0; i < call->n_auxiliaries; i++) result->auxiliaries[i] = mt_retain(s->aux[i]);
    result->p = s->p, result->seed = s->seed, result->offset = s->offset;
    *supplied = true;
    s->n_supplied++;
    return MT_OK;
}

static mt_status after(void *user, const mt_op_call *call, const mt_op_result *result)
{
    supply *s = user;
    if (!s->keep || strcmp(call->op, s->op) != 0) return MT_OK;
    s->out = mt_detach(result->outputs[0]);
    for (int i = 0; i < call->n_auxiliaries; i++) s->aux[i] = mt_detach(result->auxiliaries[i]);
    s->p = result->p, s->seed = result->seed, s->offset = result->offset;
    return MT_OK;
}

static const mt_op_hooks hooks = {before, after, NULL};

static void release(supply *s)
{
    mt_release(s->out);
    for (int i = 0; i < 3; i++) mt_release(s->aux[i]);
}

/* A mask other than mlp's own dropout would draw; without known_origin the hook does not say where
 * it was drawn. */
static supply another_mask(bool known_origin)
{
    supply s = {.op = "dropout", .p = .25, .seed = 123, .offset = 45};
    s.out = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(ROWS, WIDE), 9, -1, 1));
    s.aux[0] = mtt_made(mt_dropout_mask(device, MT_SHAPE(ROWS, WIDE), s.p, s.seed, s.offset));
    if (!known_origin) s.p = 0;
    return s;
}

static outcome run_with(supply *s, mt_compress *c)
{
    net n = open_net(MT_F32);
    mtt_ok(mt_push_op_hooks(&hooks, s));
    outcome o = run(&n, mlp, mt_gelu, c);
    mtt_ok(mt_pop_op_hooks());
    close_net(&n);
    return o;
}

/* Compression changes no gradient; `by_seed` masks are replaced by their seeds. */
static void check_compressed(supply *s, size_t by_seed)
{
    mtt_ok(mt_set_balance_check(device, false)); /* the hook keeps auxiliaries that no ledger has */
    outcome exact = run_with(s, NULL);
    mt_compress *c = compressor(RULE(MASK_SEED));
    outcome o = run_with(s, c);
    assert_int_equal(s->n_supplied, 2);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_MASK_SEED].n, by_seed);
    for (int i = 0; i < 3; i++) assert_true(mtt_same_bits(o.grad[i], exact.grad[i]));
    free_outcome(&o);
    free_outcome(&exact);
    mt_compress_free(c);
    release(s);
    mtt_ok(mt_set_balance_check(device, true));
}

/* Keeps the values, but swaps the last two dimensions in memory. */
static void transpose_in_memory(mt_tensor **t)
{
    int rank = mt_rank(*t);
    if (rank < 2) return;
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(*t, rank - 2, rank - 1));
    MT_AUTO mt_tensor *dense = mtt_made(mt_clone(turned));
    mt_set(t, mtt_made(mt_transpose(dense, rank - 2, rank - 1)));
}

static void a_supplied_mask_of_unknown_origin_is_kept(void **state)
{
    (void)state;
    supply s = another_mask(false);
    check_compressed(&s, 0);
}

static void a_supplied_mask_is_drawn_again_from_the_origin_the_hook_gives(void **state)
{
    (void)state;
    supply s = another_mask(true);
    check_compressed(&s, 1);
}

static void a_mask_that_is_part_of_its_storage_is_put_in_order(void **state)
{
    (void)state;
    supply s = another_mask(true);
    mt_tensor *larger = mtt_made(mt_zeros(device, MT_BOOL, MT_SHAPE(ROWS, WIDE + 2)));
    mt_tensor *part = mtt_made(mt_slice(larger, 1, 1, WIDE));
    mtt_ok(mt_copy(part, s.aux[0]));
    mt_release(larger);
    mt_set(&s.aux[0], part);
    check_compressed(&s, 1);
}

static void a_transposed_mask_is_put_in_order(void **state)
{
    (void)state;
    supply s = another_mask(true);
    transpose_in_memory(&s.aux[0]);
    check_compressed(&s, 1);
}

static mt_tensor *attend(mt_tensor *q)
{
    return mtt_made(mt_flash_attention(q, q, q, 0, false, .5));
}

static mt_tensor *drop(mt_tensor *q) { return mtt_made(mt_dropout(q, .5)); }

static mt_tensor *softmax(mt_tensor *q) { return mtt_made(mt_softmax(q, 1, false)); }

/* Keeps op(x), then supplies it for a second leaf, with the generator at another offset. */
static void check_generator(const char *op, mt_tensor *(*fn)(mt_tensor *))
{
    supply s = {.op = op, .keep = true};
    mt_tensor *x[2];
    uint64_t seed, offset[2];
    mtt_ok(mt_set_balance_check(device, false));
    for (int i = 0; i < 2; i++) {
        x[i] = leaf(MT_F32, MT_SHAPE(1, 2, 7, 3), 1);
        mt_rng_set(device, 31, 10 * (uint64_t)i);
        mtt_ok(mt_push_op_hooks(&hooks, &s));
        MT_AUTO mt_tensor *y = fn(x[i]);
        mtt_ok(mt_pop_op_hooks());
        mt_rng_get(device, &seed, &offset[i]);
        offset[i] -= 10 * (uint64_t)i;
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
        mtt_ok(mt_backward(loss));
        s.keep = false;
    }
    assert_int_equal(s.n_supplied, 1);
    assert_true(offset[0] > 0);
    assert_int_equal(offset[0], offset[1]);
    assert_true(mtt_same_bits(mt_grad(x[0]), mt_grad(x[1])));
    mt_release(x[0]), mt_release(x[1]);
    release(&s);
    mtt_ok(mt_set_balance_check(device, true));
}

static void the_generator_advances_as_if_the_op_had_drawn(void **state)
{
    (void)state;
    check_generator("dropout", drop);
    check_generator("flash_attention", attend);
}

/* A supplied result may have any layout: the gradients are those of a dense one. */
static void supplied_results_may_be_transposed(void **state)
{
    (void)state;
    static mt_tensor *(*const fns[])(mt_tensor *) = {drop, attend, softmax};
    static const char *const ops[] = {"dropout", "flash_attention", "softmax"};
    mtt_ok(mt_set_balance_check(device, false));
    for (int f = 0; f < 3; f++) {
        supply s = {.op = ops[f], .keep = true};
        mt_tensor *x[2];
        mtt_ok(mt_push_op_hooks(&hooks, &s));
        for (int i = 0; i < 2; i++) {
            x[i] = leaf(MT_F32, MT_SHAPE(1, 2, 7, 3), 1);
            MT_AUTO mt_tensor *y = fns[f](x[i]), *square = mtt_made(mt_mul(y, y));
            MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(square));
            mtt_ok(mt_backward(loss));
            if (i == 0) transpose_in_memory(&s.out), transpose_in_memory(&s.aux[0]);
            s.keep = false;
        }
        mtt_ok(mt_pop_op_hooks());
        assert_int_equal(s.n_supplied, 1);
        assert_true(mtt_same_bits(mt_grad(x[0]), mt_grad(x[1])));
        mt_release(x[0]), mt_release(x[1]);
        release(&s);
    }
    mtt_ok(mt_set_balance_check(device, true));
}

/* A mask that the caller keeps is drawn again only if it fills its storage. */
static void part_of_a_mask_that_the_caller_keeps_is_kept(void **state)
{
    (void)state;
    const mt_save_info info = {"mine", "mask", 0, MT_SAVE_AUX, .p = .5, .seed = 3, .offset = 4};
    mt_compress *c = compressor(RULE(MASK_SEED));
    MT_AUTO mt_tensor *whole =
        mtt_made(mt_dropout_mask(device, MT_SHAPE(8, 8), info.p, info.seed, info.offset));
    for (int part = 0; part < 3; part++) {
        MT_AUTO mt_tensor *t = mtt_made(part == 0   ? mt_slice(whole, 0, 0, 8)
                                        : part == 1 ? mt_slice(whole, 0, 2, 4)
                                                    : mt_transpose(whole, 0, 1));
        mt_compress_stats stats;
        mtt_ok(mt_compress_begin(c));
        mt_saved *saved = mt_saved_new(t, &info);
        assert_non_null(saved);
        mtt_ok(mt_compress_end(c));
        mtt_ok(mt_compress_get_stats(c, &stats));
        assert_int_equal(stats.by_rule[MT_COMPRESS_MASK_SEED].n, part == 0);
        MT_AUTO mt_tensor *back = mtt_made(mt_saved_get(saved));
        assert_true(mtt_same_bits(back, t));
        mt_saved_free(saved);
    }
    mt_compress_free(c);
}

/* ---- a checkpoint whose policy keeps the first dropout and supplies it when it runs again */

static mt_status two_dropouts(void *user, int n_in, mt_tensor *const *in, int n_out,
                              mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    mt_tensor *h = mt_dropout(in[0], .25);
    mt_set(&h, mt_gelu(h));
    mt_set(&h, mt_dropout(h, .5));
    mt_set(&h, mt_linear(h, in[1], NULL));
    out[0] = h;
    return h ? MT_OK : mt_last_status();
}

static mt_policy keep_the_first(void *user, const mt_op_call *call)
{
    (void)user;
    bool first = strcmp(call->op, "dropout") == 0 && !mt_grad_fn_sequence(call->inputs[0]);
    return first ? MT_MUST_SAVE : MT_MUST_RECOMPUTE;
}

static mt_tensor *checkpointed(net *n, act_fn *act)
{
    (void)act;
    mt_tensor *in[2] = {n->x, n->w1}, *y;
    const mt_checkpoint_options options = {.policy = keep_the_first, .check = true};
    if (mt_checkpoint(two_dropouts, NULL, NULL, 2, in, 1, &y, &options) != MT_OK) return NULL;
    mt_set(&y, mt_linear(y, n->w2, NULL));
    mt_set(&y, mt_mean_all(y));
    return y;
}

static mt_tensor *plain(net *n, act_fn *act)
{
    (void)act;
    mt_tensor *in[2] = {n->x, n->w1}, *y;
    if (two_dropouts(NULL, 2, in, 1, &y) != MT_OK) return NULL;
    mt_set(&y, mt_linear(y, n->w2, NULL));
    mt_set(&y, mt_mean_all(y));
    return y;
}

static void a_dropout_that_a_policy_keeps_may_be_compressed(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, plain, NULL, NULL), uncompressed = run(&n, checkpointed, NULL, NULL);
    mt_compress *c = compressor(RULE(MASK_SEED));
    outcome o = run(&n, checkpointed, NULL, c);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_MASK_SEED].n, 1);
    assert_int_equal(o.saved, uncompressed.saved - input);
    for (int i = 0; i < 3; i++) {
        assert_true(mtt_same_bits(uncompressed.grad[i], exact.grad[i]));
        assert_true(mtt_same_bits(o.grad[i], exact.grad[i]));
    }
    free_outcome(&o);
    free_outcome(&uncompressed);
    free_outcome(&exact);
    mt_compress_free(c);
    close_net(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_supplied_mask_of_unknown_origin_is_kept),
        mtt_test(a_supplied_mask_is_drawn_again_from_the_origin_the_hook_gives),
        mtt_test(a_mask_that_is_part_of_its_storage_is_put_in_order),
        mtt_test(a_transposed_mask_is_put_in_order),
        mtt_test(the_generator_advances_as_if_the_op_had_drawn),
        mtt_test(supplied_results_may_be_transposed),
        mtt_test(part_of_a_mask_that_the_caller_keeps_is_kept),
        mtt_test(a_dropout_that_a_policy_keeps_may_be_compressed),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
