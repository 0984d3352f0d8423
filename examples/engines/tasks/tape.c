/* tape.c: an engine that is right and keeps too much: docs/tasks.md has a task for each op marked
 * "task". Beside events.h:  cc -o tape tape.c -lm && ./tape relu  runs the step of a task and
 * writes events.jsonl. */
#include <math.h>
#include "events.h"

/* Numbers, row by row: of a mask bytes, else doubles. */
typedef struct value {
    int rows, cols, holders;
    bool mask, wants;
    void *data;
    struct value *grad, **to; /* of a leaf; where the gradient goes, or NULL if none is wanted */
} value;

/* An op that ran. */
typedef struct node {
    const char *op;
    void (*back)(struct node *);
    int rows, cols;         /* of its first input */
    value *kept[3];         /* what backward reads */
    value *grad, **to[2];   /* of what it made; where the gradients of its inputs go */
    unsigned seed;          /* of dropout */
    value *(*run)(value *); /* of a checkpoint */
} node;

static node tape[100];
static int n_nodes;
static bool off; /* ops leave no nodes */

static const char *const slots[] = {"kept[0]", "kept[1]", "kept[2]"};

/* ---- values ---- */

static int size(const value *v) { return v->rows * v->cols; }
static double *numbers(const value *v) { return v->data; }
static inline unsigned char *bytes(const value *v) { return v->data; }

static value *made(int rows, int cols, bool mask)
{
    value *v = calloc(1, sizeof *v);
    size_t n_bytes = (size_t)rows * (size_t)cols * (mask ? 1 : sizeof(double));
    void *data = calloc(1, n_bytes);
    if (!v || !data) {
        fputs("tape: out of memory\n", stderr);
        exit(1);
    }
    *v = (value){.rows = rows, .cols = cols, .holders = 1, .mask = mask, .data = data};
    events_storage(v, mask ? "u8" : "f64", n_bytes, 2, (int64_t[]){rows, cols});
    return v;
}

static value *value_new(int rows, int cols) { return made(rows, cols, false); }
static value *like(const value *v) { return value_new(v->rows, v->cols); }

static void drop(value *v)
{
    if (--v->holders > 0) return;
    events_storage(v, NULL, 0, 0, NULL);
    free(v->data);
    free(v);
}

/* ---- the tape ---- */

/* A node for y = op(a, b), or NULL if nobody wants a gradient; b may be NULL. */
static node *record(const char *op, void (*back)(node *), value *y, value *a, value *b)
{
    if (off || (!a->to && !(b && b->to))) return NULL;
    node *n = &tape[n_nodes++];
    *n = (node){.op = op, .back = back, .rows = a->rows, .cols = a->cols};
    n->to[0] = a->to, n->to[1] = b ? b->to : NULL;
    y->to = &n->grad;
    return n;
}

static void keep(node *n, int slot, value *v)
{
    if (!n) return;
    v->holders++;
    n->kept[slot] = v;
    events_kept(v, n->op, slots[slot], true);
}

/* Adds g, which is taken over, to the gradient at a place. */
static void send(value **to, value *g)
{
    if (to && !*to) {
        *to = g;
        return;
    }
    for (int i = 0; to && i < size(g); i++) numbers(*to)[i] += numbers(g)[i];
    drop(g);
}

/* Runs the nodes from the last one down to number `end`, and releases what they keep. */
static void walk(int end)
{
    while (n_nodes > end) {
        node *n = &tape[n_nodes - 1];
        if (n->grad) n->back(n);
        for (int k = 0; k < 3; k++) {
            if (!n->kept[k]) continue;
            events_kept(n->kept[k], n->op, slots[k], false);
            drop(n->kept[k]);
        }
        if (n->grad) drop(n->grad);
        n_nodes--;
    }
}

/* ---- ops ---- */

static void matmul_back(node *n)
{
    value *dy = n->grad, *a = n->kept[0], *b = n->kept[1];
    if (n->to[0]) {
        value *da = value_new(dy->rows, b->rows);
        for (int i = 0; i < da->rows; i++)
            for (int j = 0; j < da->cols; j++)
                for (int k = 0; k < dy->cols; k++)
                    numbers(da)[i * da->cols + j] +=
                        numbers(dy)[i * dy->cols + k] * numbers(b)[j * b->cols + k];
        send(n->to[0], da);
    }
    if (n->to[1]) {
        value *db = value_new(a->cols, dy->cols);
        for (int i = 0; i < db->rows; i++)
            for (int j = 0; j < db->cols; j++)
                for (int k = 0; k < dy->rows; k++)
                    numbers(db)[i * db->cols + j] +=
                        numbers(a)[k * a->cols + i] * numbers(dy)[k * dy->cols + j];
        send(n->to[1], db);
    }
}

/* task: frozen */
static value *matmul(value *a, value *b)
{
    value *y = value_new(a->rows, b->cols);
    for (int i = 0; i < y->rows; i++)
        for (int j = 0; j < y->cols; j++)
            for (int k = 0; k < a->cols; k++)
                numbers(y)[i * y->cols + j] +=
                    numbers(a)[i * a->cols + k] * numbers(b)[k * b->cols + j];
    node *n = record("matmul", matmul_back, y, a, b);
    keep(n, 0, a);
    keep(n, 1, b);
    return y;
}

static void tanh_back(node *n)
{
    value *y = n->kept[0], *dx = like(y);
    for (int i = 0; i < size(dx); i++)
        numbers(dx)[i] = numbers(n->grad)[i] * (1 - numbers(y)[i] * numbers(y)[i]);
    send(n->to[0], dx);
}

static value *tanh_of(value *x)
{
    value *y = like(x);
    for (int i = 0; i < size(x); i++) numbers(y)[i] = tanh(numbers(x)[i]);
    keep(record("tanh", tanh_back, y, x, NULL), 0, y);
    return y;
}

static void relu_back(node *n)
{
    value *mask = n->kept[0], *dx = value_new(n->rows, n->cols);
    for (int i = 0; i < size(dx); i++) numbers(dx)[i] = numbers(n->grad)[i] * bytes(mask)[i];
    send(n->to[0], dx);
}

/* task: relu */
static value *relu(value *x)
{
    value *y = like(x), *mask = made(x->rows, x->cols, true);
    for (int i = 0; i < size(x); i++) {
        bytes(mask)[i] = numbers(x)[i] > 0;
        numbers(y)[i] = numbers(x)[i] * bytes(mask)[i];
    }
    keep(record("relu", relu_back, y, x, NULL), 0, mask);
    drop(mask);
    return y;
}

static void gelu_back(node *n)
{
    value *x = n->kept[0], *below = n->kept[1], *density = n->kept[2], *dx = like(x);
    for (int i = 0; i < size(dx); i++)
        numbers(dx)[i] =
            numbers(n->grad)[i] * (numbers(below)[i] + numbers(x)[i] * numbers(density)[i]);
    send(n->to[0], dx);
}

/* task: gelu */
static value *gelu(value *x)
{
    value *y = like(x), *below = like(x), *density = like(x);
    for (int i = 0; i < size(x); i++) {
        double v = numbers(x)[i];
        numbers(below)[i] = (1 + erf(v / sqrt(2))) / 2;
        numbers(density)[i] = exp(-v * v / 2) / sqrt(2 * acos(-1));
        numbers(y)[i] = v * numbers(below)[i];
    }
    node *n = record("gelu", gelu_back, y, x, NULL);
    keep(n, 0, x), keep(n, 1, below), keep(n, 2, density);
    drop(below), drop(density);
    return y;
}

/* Draws what dropout with p = 1/4 multiplies by: the next of a sequence that its seed gives. */
static double draw(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 30 == 0 ? 0 : 4.0 / 3;
}

static void dropout_back(node *n)
{
    value *scale = n->kept[0], *dx = like(scale);
    for (int i = 0; i < size(dx); i++) numbers(dx)[i] = numbers(n->grad)[i] * numbers(scale)[i];
    send(n->to[0], dx);
}

/* task: dropout */
static value *dropout(value *x, unsigned seed)
{
    value *y = like(x), *scale = like(x);
    for (int i = 0; i < size(x); i++) {
        numbers(scale)[i] = draw(&seed);
        numbers(y)[i] = numbers(x)[i] * numbers(scale)[i];
    }
    keep(record("dropout", dropout_back, y, x, NULL), 0, scale);
    drop(scale);
    return y;
}

static void softmax_back(node *n)
{
    value *y = n->kept[0], *dx = like(y);
    for (int i = 0; i < y->rows; i++) {
        double *dy = numbers(n->grad) + i * y->cols, *row = numbers(y) + i * y->cols, dot = 0;
        for (int j = 0; j < y->cols; j++) dot += dy[j] * row[j];
        for (int j = 0; j < y->cols; j++) numbers(dx)[i * y->cols + j] = row[j] * (dy[j] - dot);
    }
    send(n->to[0], dx);
}

/* task: softmax */
static value *softmax(value *x)
{
    value *y = like(x);
    for (int i = 0; i < x->rows; i++) {
        double *from = numbers(x) + i * x->cols, *to = numbers(y) + i * x->cols, most = from[0],
               sum = 0;
        for (int j = 0; j < x->cols; j++) most = fmax(most, from[j]);
        for (int j = 0; j < x->cols; j++) sum += to[j] = exp(from[j] - most);
        for (int j = 0; j < x->cols; j++) to[j] /= sum;
    }
    node *n = record("softmax", softmax_back, y, x, NULL);
    keep(n, 0, y);
    keep(n, 1, x);
    return y;
}

/* task: checkpoint */
static value *checkpoint(value *(*f)(value *), value *x) { return f(x); }

static void mean_square_back(node *n)
{
    value *x = n->kept[0], *dx = like(x);
    for (int i = 0; i < size(dx); i++)
        numbers(dx)[i] = 2 * numbers(x)[i] * numbers(n->grad)[0] / size(x);
    send(n->to[0], dx);
}

static value *mean_square(value *x)
{
    value *y = value_new(1, 1);
    for (int i = 0; i < size(x); i++) numbers(y)[0] += numbers(x)[i] * numbers(x)[i] / size(x);
    keep(record("mean_square", mean_square_back, y, x, NULL), 0, x);
    return y;
}

/* ---- a step of each task ---- */

static value *w1, *w2;

static value *mlp(value *(*act)(value *), value *x)
{
    value *h = matmul(x, w1), *a = act(h), *y = matmul(a, w2);
    drop(h), drop(a);
    return y;
}

static value *with_tanh(value *x) { return mlp(tanh_of, x); }

static value *dropped_tanh(value *x)
{
    value *y = tanh_of(x), *z = dropout(y, 7);
    drop(y);
    return z;
}

static value *loss_of(const char *task, value *x)
{
    value *y = !strcmp(task, "relu")         ? mlp(relu, x)
               : !strcmp(task, "gelu")       ? mlp(gelu, x)
               : !strcmp(task, "softmax")    ? mlp(softmax, x)
               : !strcmp(task, "dropout")    ? mlp(dropped_tanh, x)
               : !strcmp(task, "checkpoint") ? checkpoint(with_tanh, x)
                                             : with_tanh(x);
    value *loss = mean_square(y);
    drop(y);
    return loss;
}

static value *leaf(int rows, int cols, int start, bool wants)
{
    value *v = value_new(rows, cols);
    for (int i = 0; i < size(v); i++) numbers(v)[i] = sin(start + i) / 2;
    v->to = wants ? &v->grad : NULL;
    return v;
}

/* Compares the gradients of some of a leaf's numbers with what the loss does. */
static void probe(const char *task, value *x, const char *name, value *v)
{
    double by = 1e-4, side[2];
    for (int i = 0; v->to && i < size(v); i += 37) {
        double before = numbers(v)[i];
        events_paused = off = true;
        for (int up = 0; up < 2; up++) {
            numbers(v)[i] = before + (up ? by : -by);
            value *loss = loss_of(task, x);
            side[up] = numbers(loss)[0];
            drop(loss);
        }
        events_paused = off = false;
        numbers(v)[i] = before;
        events_probe(name, i, numbers(v->grad)[i], side[1], side[0], by);
    }
}

static const char *const tasks[] = {"relu", "gelu", "dropout", "softmax", "frozen", "checkpoint"};

int main(int argc, char **argv)
{
    const char *task = NULL;
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        if (argc == 2 && !strcmp(argv[1], tasks[i])) task = tasks[i];
    if (!task) {
        fputs("tape: name a task: relu, gelu, dropout, softmax, frozen, checkpoint\n", stderr);
        return 2;
    }
    events_begin("events.jsonl");
    w1 = leaf(16, 32, 1, strcmp(task, "frozen") != 0), w2 = leaf(32, 16, 2, true);
    events_phase("forward");
    events_category = "input";
    value *x = leaf(8, 16, 3, true);
    events_category = "activation";
    value *loss = loss_of(task, x);
    events_phase("backward");
    value *one = value_new(1, 1);
    numbers(one)[0] = 1;
    send(loss->to, one);
    walk(0);
    drop(loss);
    events_phase("step");
    probe(task, x, "x", x), probe(task, x, "w1", w1), probe(task, x, "w2", w2);
}
