/* The one training step: a plain model is a rank of one, with the bits of a loop written by hand;
 * who observes it sees every turn. */
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"
#include "parallel/parallel.h"

enum { BATCH = MTT_BATCH, SEQ = MTT_SEQ, STEPS = 3 };

typedef enum way { BY_HAND, PLAIN, RANK, WAYS } way;

typedef struct run {
    mt_device *device;
    mti_stage stage;
    mt_tensor *tokens;
    double losses[STEPS];
    int n_losses;
} run;

static bool take(void *user, mti_turn turn, mti_in_flight *f)
{
    const run *r = user;
    if (f->last) f->target = mt_retain(r->tokens);
    return (f->input = mti_stage_input(&r->stage, turn.part, r->tokens)) != NULL;
}

static bool note_loss(void *user, mt_tensor *loss)
{
    run *r = user;
    r->losses[r->n_losses++] = mt_item(loss);
    return true;
}

static void by_step(run *r, mt_optimizer *o)
{
    mti_step step;
    const mti_batches batches = {take, note_loss, r};
    assert_true(mti_step_begin(&step, &r->stage, &batches) && mti_step_ahead(&step) &&
                mti_step_backward(&step));
    mti_step_end(&step);
    assert_true(mti_step_optimizer(&r->stage, o, 0, NULL));
}

static void by_hand(run *r, mt_optimizer *o)
{
    MT_AUTO mt_tensor *loss = mt_model_forward_loss(r->stage.model, r->tokens, r->tokens);
    note_loss(r, loss);
    MT_AUTO mt_tensor *scaled =
        r->stage.scaler ? mt_scaler_scale(r->stage.scaler, loss) : mt_retain(loss);
    mtt_ok(mt_backward(scaled));
    mtt_ok(r->stage.scaler ? mt_scaler_step(r->stage.scaler, o, NULL) : mt_optimizer_step(o));
    mtt_ok(mt_module_zero_grad(r->stage.model));
}

static double *weights_of(mt_module *m, size_t *n)
{
    const mt_named_tensor *list;
    size_t n_params;
    double *all = NULL;
    mtt_ok(mt_module_params(m, &list, &n_params));
    *n = 0;
    for (size_t i = 0; i < n_params; i++) {
        size_t size = (size_t)mt_numel(list[i].tensor);
        double *at = mtt_doubles(list[i].tensor);
        all = realloc(all, (*n + size) * sizeof *all);
        memcpy(all + *n, at, size * sizeof *all);
        free(at);
        *n += size;
    }
    return all;
}

/* Trains, and returns the weights. */
static double *train(way w, const mt_model_config *c, bool scaled, double losses[STEPS], size_t *n)
{
    int64_t ids[BATCH * SEQ];
    run r = {.device = mt_device_open("cpu")};
    mt_seed(r.device, 3);
    assert_true(w == RANK
                    ? mti_stage_make(&r.stage, r.device, c, NULL, 0, NULL)
                    : mti_stage_make_plain(&r.stage, r.device, c, mt_model_new(r.device, c), 1));
    r.stage.scaler = scaled ? mt_scaler_new(&(mt_scaler_options){.scale = 256}) : NULL;
    for (int i = 0; i < BATCH * SEQ; i++) ids[i] = (7 * i + i * i) % c->vocab;
    r.tokens = mt_from_data(r.device, MT_I64, MT_SHAPE(BATCH, SEQ), ids, sizeof ids);
    mt_optimizer *o = mt_adamw_new(mt_stage_stepped(&r.stage), &mtt_adamw);
    for (int i = 0; i < STEPS; i++) (w == BY_HAND ? by_hand : by_step)(&r, o);
    assert_int_equal(r.n_losses, STEPS);
    memcpy(losses, r.losses, sizeof r.losses);
    double *weights = weights_of(r.stage.model, n);
    mt_optimizer_free(o);
    mt_scaler_free(r.stage.scaler);
    mt_release(r.tokens);
    mti_stage_free(&r.stage);
    assert_int_equal(mtt_allocated(r.device), 0);
    mt_device_release(r.device);
    return weights;
}

static void a_plain_model_is_a_rank_of_one(void **state)
{
    (void)state;
    for (int model = 0; model < MTT_MODELS; model++)
        for (int scaled = 0; scaled < 2; scaled++) {
            mt_model_config c = mtt_models[model];
            c.dropout = 0.1;
            double losses[WAYS][STEPS], *weights[WAYS];
            size_t n[WAYS];
            for (way w = 0; w < WAYS; w++) weights[w] = train(w, &c, scaled, losses[w], &n[w]);
            for (way w = 1; w < WAYS; w++) {
                assert_memory_equal(losses[w], losses[0], sizeof losses[0]);
                assert_int_equal(n[w], n[0]);
                if (w == RANK && model == MTT_BERT) continue; /* its head's bias stands elsewhere */
                assert_memory_equal(weights[w], weights[0], n[0] * sizeof *weights[0]);
            }
            for (way w = 0; w < WAYS; w++) free(weights[w]);
        }
}

/* A gradient with gaps between its rows, as a part of a larger tensor is. */
static mt_tensor *with_gaps(mt_device *device, const mt_tensor *param)
{
    int rank = mt_rank(param);
    int64_t shape[MT_MAX_RANK], last = mt_shape(param)[rank - 1];
    size_t n = 2 * (size_t)mt_numel(param);
    double *values = malloc(n * sizeof *values);
    memcpy(shape, mt_shape(param), (size_t)rank * sizeof *shape);
    shape[rank - 1] = 2 * last;
    for (size_t i = 0; i < n; i++) values[i] = (int64_t)i % (2 * last) < last ? 2 : 3;
    MT_AUTO mt_tensor *whole = mtt_from_doubles(device, mt_dtype_of(param), rank, shape, values);
    free(values);
    return mt_slice(whole, rank - 1, 0, last);
}

static void squares_of_gradients_with_gaps_are_of_their_elements(void **state)
{
    (void)state;
    const mt_named_tensor *list;
    size_t n;
    double squares, expected = 0;
    mti_stage stage;
    mt_device *device = mt_device_open("cpu");
    const mt_model_config *c = &mtt_models[MTT_GPT];
    assert_true(mti_stage_make_plain(&stage, device, c, mt_model_new(device, c), 1));
    mtt_ok(mt_module_params(mt_stage_stepped(&stage), &list, &n));
    for (size_t i = 0; i < n; i++) {
        MT_AUTO mt_tensor *grad = with_gaps(device, list[i].tensor);
        mtt_ok(mt_set_grad(list[i].tensor, grad));
        expected += 4 * (double)mt_numel(grad);
    }
    assert_true(mti_zero_squares(stage.zero, &squares));
    assert_true(squares == expected);
    mti_stage_free(&stage);
    mt_device_release(device);
}

/* ---- who observes ---- */

typedef struct seen {
    int forwards, ended, firsts, backwards, drops, period;
    size_t grads; /* bytes, before they are dropped */
    mti_stage *stage;
} seen;

static bool count(void *user, mti_moment moment, mti_step *step, int64_t k)
{
    seen *s = user;
    s->firsts += moment == MTI_BEFORE_FORWARD && k == 0;
    if (moment == MTI_BEFORE_FORWARD) assert_int_equal(k, s->forwards++);
    if (moment == MTI_AFTER_FORWARD) assert_int_equal(k, s->ended++);
    if (moment == MTI_BEFORE_BACKWARD) assert_int_equal(k, s->backwards++);
    if (moment == MTI_BEFORE_BACKWARD && s->period && k == 2) mti_step_leave_out(step, s->period);
    if (moment == MTI_BEFORE_DROP) s->drops++, s->grads = mti_zero_grad_bytes(s->stage->zero);
    return true;
}

static void an_observer_sees_every_turn(void **state)
{
    (void)state;
    for (int interleave = 1; interleave <= 2; interleave++)
        for (int period = 0; period <= 4; period += 4) {
            const mt_parallel h = {.pipeline = 2, .interleave = interleave, .microbatches = 8};
            mt_model_config c = mtt_models[MTT_GPT];
            c.layers = 4;
            run r = {.device = mt_device_open("meta")};
            assert_true(mti_stage_make(&r.stage, r.device, &c, &h, 0, NULL));
            seen s = {.stage = &r.stage, .period = period};
            mti_stage_observe(&r.stage, count, &s);
            r.tokens = mt_zeros(r.device, MT_I64, MT_SHAPE(BATCH, SEQ));
            mti_step step;
            const mti_batches batches = {.take = take, .user = &r};
            assert_true(mti_step_begin(&step, &r.stage, &batches) && mti_step_ahead(&step));
            assert_int_equal(s.forwards, r.stage.schedule.ahead);
            assert_int_equal(s.backwards, 0);
            assert_true(mti_step_backward(&step));
            mti_step_end(&step);
            int all = 8 * interleave, left = all - (int)r.stage.schedule.ahead - 2;
            if (period) all -= left / period * period;
            assert_int_equal(s.forwards, all);
            assert_int_equal(s.ended, all);
            assert_int_equal(s.backwards, all);
            assert_int_equal(s.firsts, 1);
            assert_true(mti_step_optimizer(&r.stage, NULL, 0, NULL));
            assert_int_equal(s.drops, 1);
            assert_true(s.grads > 0);
            mt_release(r.tokens);
            mti_stage_free(&r.stage);
            assert_int_equal(mtt_allocated(r.device), 0);
            mt_device_release(r.device);
        }
}

/* What two observers see: the outer writes capitals. */
typedef struct letters {
    char text[32];
    bool refuse; /* by the inner one, a forward */
} letters;

static bool write_letter(letters *l, char c)
{
    size_t n = strlen(l->text);
    assert_true(n + 1 < sizeof l->text);
    l->text[n] = c;
    return true;
}

static bool outer(void *user, mti_moment moment, mti_step *step, int64_t k)
{
    (void)step, (void)k;
    return write_letter(user, "FEBD"[moment]);
}

static bool inner(void *user, mti_moment moment, mti_step *step, int64_t k)
{
    letters *l = user;
    (void)step, (void)k;
    return write_letter(l, "febd"[moment]) && !(l->refuse && moment == MTI_BEFORE_FORWARD);
}

static void observers_nest(void **state)
{
    (void)state;
    for (int refuse = 0; refuse <= 1; refuse++) {
        const mt_parallel h = {.microbatches = 2};
        run r = {.device = mt_device_open("meta")};
        letters l = {.refuse = refuse};
        assert_true(mti_stage_make(&r.stage, r.device, &mtt_models[MTT_GPT], &h, 0, NULL));
        mti_stage_observe(&r.stage, outer, &l);
        mti_stage_observe(&r.stage, inner, &l);
        r.tokens = mt_zeros(r.device, MT_I64, MT_SHAPE(BATCH, SEQ));
        mti_step step;
        const mti_batches batches = {.take = take, .user = &r};
        assert_true(mti_step_begin(&step, &r.stage, &batches));
        assert_int_equal(mti_step_ahead(&step) && mti_step_backward(&step), !refuse);
        mti_step_end(&step);
        assert_int_equal(!refuse && mti_step_optimizer(&r.stage, NULL, 0, NULL), !refuse);
        assert_string_equal(l.text, refuse ? "FfE" : "FfeEBbFfeEBbDd");
        mt_release(r.tokens);
        mti_stage_free(&r.stage);
        mt_device_release(r.device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_model_is_a_rank_of_one),
        cmocka_unit_test(squares_of_gradients_with_gaps_are_of_their_elements),
        cmocka_unit_test(an_observer_sees_every_turn),
        cmocka_unit_test(observers_nest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
