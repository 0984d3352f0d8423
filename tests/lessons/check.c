/* check.c: what ./run lesson N asks of the reader's own tape. It is compiled with the reader's file
 * (TAPE) for one lesson (LESSON), runs the checks of all lessons up to that one, and stops at the
 * first that is not passed. Bytes are compared with memtape's for the same expression, gradients
 * with finite differences. */
#include <stdarg.h>
#include <stdio.h>
#include <memtape/all.h>
#include TAPE

static int lesson; /* whose check runs */

/* One line for what holds, of the lesson that is asked for; the first that does not hold ends the
 * program. */
static void holds(bool ok, const char *format, ...)
{
    if (ok && lesson < LESSON) return;
    va_list words;
    va_start(words, format);
    printf(ok ? "  right: " : "  WRONG: ");
    vprintf(format, words);
    printf("\n");
    fflush(stdout);
    va_end(words);
    if (!ok) exit(1);
}

static void same_bytes(const char *what, size_t yours, size_t memtapes)
{
    if (yours == memtapes)
        holds(true, "%s: %zu bytes, as memtape counts", what, yours);
    else
        holds(false, "%s: %zu bytes; memtape counts %zu", what, yours, memtapes);
}

/* ---- memtape's side of a comparison ---- */

static mt_device *device;

static size_t requested(void)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.requested.current;
}

/* ---- lesson 1: a value ---- */

static void check_value(void)
{
    size_t before = requested();
    value *v = value_new(3, 5);
    mt_tensor *t = mt_zeros(device, MT_F64, MT_SHAPE(3, 5));
    holds(v && v->rows == 3 && v->cols == 5 && v->data,
          "value_new(3, 5) has 3 rows, 5 columns and room for its numbers");
    for (int i = 0; i < 15; i++)
        if (v->data[i] != 0) holds(false, "value_new: number %d is %g, and not 0", i, v->data[i]);
    same_bytes("bytes_of a value of 3 x 5", bytes_of(v), requested() - before);
    same_bytes("in_use, with that value", in_use, requested() - before);
    value *w = value_new(100, 7);
    mt_tensor *u = mt_zeros(device, MT_F64, MT_SHAPE(100, 7));
    same_bytes("in_use, with one of 100 x 7 as well", in_use, requested() - before);
    drop(v), mt_release(t);
    same_bytes("in_use, after the first is dropped", in_use, requested() - before);
    drop(w), mt_release(u);
    same_bytes("in_use, after both are dropped", in_use, requested() - before);
}

/* ---- lesson 3: holders ---- */

#if LESSON >= 3
static void check_holders(void)
{
    size_t before = requested();
    value *v = value_new(4, 4);
    mt_tensor *t = mt_zeros(device, MT_F64, MT_SHAPE(4, 4));
    value *again = hold(v);
    mt_tensor *also = mt_retain(t);
    holds(again == v, "hold gives back the value that it was given");
    same_bytes("in_use, with a value that two hold", in_use, requested() - before);
    drop(again), mt_release(also);
    same_bytes("in_use, after one of them has dropped it", in_use, requested() - before);
    v->data[15] = 1; /* the memory must still be there */
    drop(v), mt_release(t);
    same_bytes("in_use, after both have", in_use, requested() - before);
}
#endif

/* ---- lesson 4: ops ---- */

#if LESSON >= 4
/* A value and memtape's tensor with the same numbers, between -2 and 2. */
typedef struct pair {
    value *v;
    mt_tensor *t;
} pair;

static pair pair_new(int rows, int cols)
{
    static unsigned drawn = 1;
    pair p = {.v = value_new(rows, cols)};
    for (int i = 0; i < rows * cols; i++) {
        drawn = drawn * 1664525u + 1013904223u;
        p.v->data[i] = (drawn >> 8) / (double)(1 << 22) - 2;
    }
    p.t = mt_from_data(device, MT_F64, MT_SHAPE(rows, cols), p.v->data,
                       sizeof(double) * (size_t)(rows * cols));
    return p;
}

static void pair_drop(pair p) { drop(p.v), mt_release(p.t); }

/* Both are taken over. */
static void same_numbers(const char *what, value *v, mt_tensor *t)
{
    double numbers[256];
    holds(v && (int64_t)v->rows * v->cols == mt_numel(t), "%s: has %d numbers", what,
          (int)mt_numel(t));
    mt_to_host(t, numbers, sizeof(double) * (size_t)mt_numel(t));
    for (int i = 0; i < v->rows * v->cols; i++)
        if (fabs(v->data[i] - numbers[i]) > 1e-12)
            holds(false, "%s: number %d is %.6f; memtape's is %.6f", what, i, v->data[i],
                  numbers[i]);
    holds(true, "%s: memtape's numbers", what);
    drop(v), mt_release(t);
}

static void check_ops(void)
{
    pair a = pair_new(3, 5), b = pair_new(5, 4);
    same_numbers("matmul of 3 x 5 and 5 x 4", matmul(a.v, b.v), mt_matmul(a.t, b.t));
    same_numbers("relu", relu(a.v), mt_relu(a.t));
    same_numbers("gelu", gelu(a.v), mt_gelu(a.t));
    same_numbers("mean", mean(a.v), mt_mean_all(a.t));
    pair_drop(a), pair_drop(b);
    if (LESSON > 4) return; /* from then on the tape holds */
    holds(in_use == 0, "no op holds what it has read: %zu bytes are in use when all is dropped",
          in_use);
}
#endif

/* ---- lessons 5 and 6: what is saved, and its bytes ---- */

#if LESSON >= 5
typedef value *(*value_op)(value *);
typedef mt_tensor *(*tensor_op)(mt_tensor *);

/* mean(act(x @ w1) @ w2), on both sides; which of x, w1 and w2 want a gradient, as bits. */
typedef struct mlp {
    pair x, w[2];
    value *loss;
    mt_tensor *t_loss;
    mt_ledger *ledger;
} mlp;

static void wants(pair p, bool weight, bool gradient)
{
    if (weight) {
        parameter(p.v);
        mt_set_category(p.t, MT_PARAMETER);
    }
    if (gradient) want(p.v);
    if (!gradient) p.v->to = NULL; /* frozen */
    mt_set_requires_grad(p.t, gradient);
}

static mlp mlp_new(unsigned wanted)
{
    mlp m = {.x = pair_new(6, 8),
             .w = {pair_new(8, 32), pair_new(32, 4)},
             .ledger = mt_ledger_new(device)};
    wants(m.x, false, wanted & 1);
    wants(m.w[0], true, wanted & 2);
    wants(m.w[1], true, wanted & 4);
    return m;
}

static void mlp_forward(mlp *m, value_op act, tensor_op mt_act)
{
    value *h = matmul(m->x.v, m->w[0].v), *a = act(h), *y = matmul(a, m->w[1].v);
    m->loss = mean(y);
    drop(h), drop(a), drop(y);
    mt_ledger_begin(m->ledger);
    mt_tensor *t = mt_matmul(m->x.t, m->w[0].t);
    mt_set(&t, mt_act(t));
    mt_set(&t, mt_matmul(t, m->w[1].t));
    m->t_loss = mt_mean_all(t);
    mt_release(t);
    mt_ledger_end(m->ledger);
}

/* Tensors that memtape's tape keeps, each as often as it is kept. */
static int n_kept_by_memtape(mt_ledger *ledger)
{
    int n = 0;
    mt_ledger_entry entry;
    for (size_t i = 0; i < mt_ledger_count(ledger); i++)
        if (mt_ledger_get(ledger, i, &entry) == MT_OK) n += (int)entry.n_savers;
    return n;
}

static const char *words_for(unsigned wanted)
{
    static const char *const words[] = {"nobody wants a gradient",   "x wants a gradient",
                                        "w1 wants a gradient",       "x and w1 want a gradient",
                                        "w2 wants a gradient",       "x and w2 want a gradient",
                                        "w1 and w2 want a gradient", "all want a gradient"};
    return words[wanted];
}

static void check_kept(const char *name, value_op act, tensor_op mt_act, bool bytes)
{
    char what[120];
    for (unsigned wanted = 0; wanted < 8; wanted++) {
        n_nodes = 0; /* what earlier passes have left */
        mlp m = mlp_new(wanted);
        mt_ledger_count_parameters(m.ledger, !bytes);
        mlp_forward(&m, act, mt_act);
        snprintf(what, sizeof what, "mean(%s(x @ w1) @ w2), where %s", name, words_for(wanted));
#if LESSON >= 6
        if (bytes) same_bytes(what, kept_bytes(), mt_ledger_bytes(m.ledger));
#endif
        int n = 0, memtapes = n_kept_by_memtape(m.ledger);
        for (int i = 0; i < 2 * n_nodes; i++) n += tape[i / 2].kept[i % 2] != NULL;
        if (!bytes)
            holds(n == memtapes, "%s: the nodes keep %d values; memtape's keep %d", what, n,
                  memtapes);
        mt_release(m.t_loss), mt_ledger_free(m.ledger);
    }
    n_nodes = 0;
}

static void check_save(void)
{
    n_nodes = 0;
    mlp m = mlp_new(6);
    mlp_forward(&m, relu, mt_relu);
    holds(n_nodes == 4, "two products, relu and mean are %d nodes", n_nodes);
    holds(!tape[0].kept[1] && tape[0].kept[0] == m.x.v,
          "the first product keeps x for dw1, and not w1, as x wants no gradient");
    holds(tape[1].kept[0] && tape[1].kept[0] == tape[2].kept[0],
          "relu keeps its output, which the second product keeps as well");
    mt_release(m.t_loss), mt_ledger_free(m.ledger);
    check_kept("relu", relu, mt_relu, false);
    check_kept("gelu", gelu, mt_gelu, false);
}
#endif

#if LESSON >= 6
#ifdef HAS_SQUARE
static mt_tensor *mt_square(mt_tensor *x) { return mt_mul(x, x); }
#endif

static void check_count(void)
{
    check_kept("relu", relu, mt_relu, true);
    check_kept("gelu", gelu, mt_gelu, true);
#ifdef HAS_SQUARE
    check_kept("square", square, mt_square, true);
#endif
}
#endif

/* ---- lesson 7: backward ---- */

#if LESSON >= 7
/* The functions of one or two values whose gradients are tried; the constant c stands at the end of
 * each, so that what comes down differs from number to number. */
static pair tried[2], c;

static value *with_c(value *y)
{
    value *z = matmul(y, c.v), *loss = mean(z);
    drop(y), drop(z);
    return loss;
}

static value *of_mean(void) { return mean(tried[0].v); }
static value *of_matmul(void) { return with_c(matmul(tried[0].v, tried[1].v)); }
static value *of_relu(void) { return with_c(relu(tried[0].v)); }
#ifdef HAS_SQUARE
static value *of_square(void) { return with_c(square(tried[0].v)); }
#endif
static value *of_gelu(void) { return with_c(gelu(tried[0].v)); }

static double loss_at(value *(*f)(void))
{
    value *loss = f();
    double number = loss->data[0];
    drop(loss);
    n_nodes = 0;
    return number;
}

/* Central differences: f is asked beside each number, a little above and a little below. */
static void check_slopes(const char *back, const char *name, value *(*f)(void), value *v)
{
    const double step = 1e-5;
    for (int i = 0; i < v->rows * v->cols; i++) {
        double at = v->data[i];
        v->data[i] = at + step;
        double above = loss_at(f);
        v->data[i] = at - step;
        double slope = (above - loss_at(f)) / (2 * step), yours = v->grad->data[i];
        v->data[i] = at;
        if (fabs(slope - yours) > 1e-7)
            holds(false,
                  "%s: d%s[%d,%d] is %.6f; by finite differences it is %.6f, as the loss moves by "
                  "that much where %s does",
                  back, name, i / v->cols, i % v->cols, yours, slope, name);
    }
    holds(true, "%s: d%s is what finite differences say, in all %d numbers", back, name,
          v->rows * v->cols);
}

static void check_back(const char *back, value *(*f)(void), int n, const char *const *names)
{
    n_nodes = 0;
    tried[0] = n == 2 ? pair_new(3, 5) : pair_new(3, 4);
    tried[1] = pair_new(5, 4);
    c = pair_new(4, 2);
    for (int k = 0; k < n; k++) want(tried[k].v);
    backward(f());
    for (int k = 0; k < n; k++) {
        value *v = tried[k].v;
        if (!v->grad) holds(false, "%s: nothing was sent to d%s", back, names[k]);
        if (v->grad->rows != v->rows || v->grad->cols != v->cols)
            holds(false, "%s: d%s is %d x %d, but %s is %d x %d", back, names[k], v->grad->rows,
                  v->grad->cols, names[k], v->rows, v->cols);
    }
    for (int k = 0; k < n; k++) check_slopes(back, names[k], f, tried[k].v);
}

static value *of_twice(void) { return with_c(matmul(tried[0].v, tried[0].v)); }

static void check_backward(void)
{
    check_back("mean_back", of_mean, 1, (const char *[]){"x"});
    check_back("matmul_back", of_matmul, 2, (const char *[]){"a", "b"});
    check_back("relu_back", of_relu, 1, (const char *[]){"x"});
    check_back("gelu_back", of_gelu, 1, (const char *[]){"x"});
#ifdef HAS_SQUARE
    check_back("square_back", of_square, 1, (const char *[]){"x"});
#endif
    n_nodes = 0;
    tried[0] = pair_new(4, 4);
    want(tried[0].v);
    backward(of_twice());
    check_slopes("a value that is used twice gets the sum: send", "x", of_twice, tried[0].v);
    holds(n_nodes == 0, "backward leaves %d nodes on the tape", n_nodes);
}
#endif

/* ---- lesson 8: bytes go back ---- */

#if LESSON >= 8
static void mt_step(mt_tensor *w, double lr)
{
    double numbers[256], slopes[256];
    size_t n_bytes = sizeof(double) * (size_t)mt_numel(w);
    mt_to_host(w, numbers, n_bytes);
    mt_to_host(mt_grad(w), slopes, n_bytes);
    for (int i = 0; i < mt_numel(w); i++) numbers[i] -= lr * slopes[i];
    mt_copy_from_host(w, numbers, n_bytes);
    mt_zero_grads(1, &w);
}

static void check_free(void)
{
    size_t before = in_use, mt_before = requested();
    mlp m = mlp_new(6);
    double first = 0;
    for (int step = 0; step < 20; step++) {
        mlp_forward(&m, gelu, mt_gelu);
        if (step == 0) first = m.loss->data[0];
        if (step < 2) same_bytes("in_use after forward", in_use - before, requested() - mt_before);
        backward(m.loss), mt_backward(m.t_loss);
        drop(m.loss), mt_release(m.t_loss);
        if (step < 2)
            same_bytes("in_use after backward, with the gradients", in_use - before,
                       requested() - mt_before);
        for (int k = 0; k < 2; k++) sgd(m.w[k].v, 0.05), mt_step(m.w[k].t, 0.05);
        if (step < 2) same_bytes("in_use after the step", in_use - before, requested() - mt_before);
        mt_ledger_reset(m.ledger);
    }
    mlp_forward(&m, gelu, mt_gelu);
    holds(fabs(m.loss->data[0] - mt_item(m.t_loss)) < 1e-9,
          "after 20 steps the loss has gone from %.4f to %.4f, and memtape's to %.4f", first,
          m.loss->data[0], mt_item(m.t_loss));
    backward(m.loss), drop(m.loss);
    for (int k = 0; k < 2; k++) sgd(m.w[k].v, 0), drop(m.w[k].v);
    drop(m.x.v);
    holds(in_use == before, "when all is dropped, %zu bytes more are in use than before",
          in_use - before);
    mt_ledger_free(m.ledger);
}
#endif

/* ---- lesson 12: checkpoints ---- */

#if LESSON >= 12
static pair weights[3];

static value *layer(value *x, value *w)
{
    value *h = matmul(x, w), *y = gelu(h);
    drop(h);
    return y;
}

static value *first(value *x) { return layer(x, weights[0].v); }
static value *second(value *x) { return layer(x, weights[1].v); }

static mt_status mt_layer(void *w, int n_in, mt_tensor *const *inputs, int n_out,
                          mt_tensor **outputs)
{
    (void)n_in, (void)n_out;
    mt_tensor *h = mt_matmul(inputs[0], w);
    outputs[0] = mt_gelu(h);
    mt_release(h);
    return outputs[0] ? MT_OK : mt_last_status();
}

static value *two_layers(value *x, bool checkpoints)
{
    value *a = checkpoints ? checkpoint(first, x) : first(x);
    value *b = checkpoints ? checkpoint(second, a) : second(a);
    value *y = matmul(b, weights[2].v), *loss = mean(y);
    drop(a), drop(b), drop(y);
    return loss;
}

/* What memtape's tape keeps of the same. */
static size_t mt_two_layers(mt_tensor *x)
{
    mt_ledger *ledger = mt_ledger_new(device);
    mt_ledger_begin(ledger);
    mt_tensor *a = NULL, *b = NULL;
    mt_checkpoint(mt_layer, weights[0].t, NULL, 1, &x, 1, &a, NULL);
    mt_checkpoint(mt_layer, weights[1].t, NULL, 1, &a, 1, &b, NULL);
    mt_tensor *y = mt_matmul(b, weights[2].t), *loss = mt_mean_all(y);
    mt_ledger_end(ledger);
    size_t bytes = mt_ledger_bytes(ledger);
    mt_release(a), mt_release(b), mt_release(y), mt_release(loss);
    mt_ledger_free(ledger);
    return bytes;
}

static void check_checkpoint(void)
{
    pair x = pair_new(6, 16);
    value *plain[3];
    for (int k = 0; k < 3; k++) {
        weights[k] = pair_new(16, 16);
        wants(weights[k], true, true);
    }
    value *loss = two_layers(x.v, false);
    size_t whole = kept_bytes(), before = in_use;
    backward(loss), drop(loss);
    for (int k = 0; k < 3; k++) plain[k] = weights[k].v->grad, weights[k].v->grad = NULL;
    loss = two_layers(x.v, true);
    holds(n_nodes == 4, "two checkpoints, a product and mean are %d nodes", n_nodes);
    same_bytes("kept with a checkpoint around each layer", kept_bytes(), mt_two_layers(x.t));
    holds(kept_bytes() < whole, "without checkpoints it is %zu bytes", whole);
    backward(loss), drop(loss);
    for (int k = 0; k < 3; k++) {
        value *grad = weights[k].v->grad;
        if (!grad)
            holds(false, "no gradient of w%d: does what runs again find its parameters' places?",
                  k + 1);
        for (int i = 0; i < 256; i++)
            if (grad->data[i] != plain[k]->data[i])
                holds(false, "dw%d: number %d is %g; without checkpoints it is %g", k + 1, i,
                      grad->data[i], plain[k]->data[i]);
        drop(grad), drop(plain[k]);
        weights[k].v->grad = NULL;
    }
    holds(true, "gradients have the bits that they have without checkpoints");
    size_t rest = before - whole - sizeof(double) + bytes_of(x.v);
    holds(n_nodes == 0 && in_use == rest, "%d nodes are left, and %zu bytes more than before",
          n_nodes, in_use - rest);
}
#endif

int main(void)
{
    device = mt_device_open("cpu");
    static const struct {
        int lesson;
        const char *what;
        void (*check)(void);
    } checks[] = {
        {1, "a value", check_value},
#if LESSON >= 3
        {3, "a value that several hold", check_holders},
#endif
#if LESSON >= 4
        {4, "ops", check_ops},
#endif
#if LESSON >= 5
        {5, "what an op saves", check_save},
#endif
#if LESSON >= 6
        {6, "bytes", check_count},
#endif
#if LESSON >= 7
        {7, "backward", check_backward},
#endif
#if LESSON >= 8
        {8, "bytes go back", check_free},
#endif
#if LESSON >= 12
        {12, "checkpoints", check_checkpoint},
#endif
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        lesson = checks[i].lesson;
        printf("lesson %d: %s\n", lesson, checks[i].what);
        fflush(stdout);
        checks[i].check();
    }
    return 0;
}
