/* step_graph.c: when a step is launched, captured or replayed; what a replay does for the books. */
#include <string.h>
#include "autograd/autograd.h"
#include "memtape/models/step_graph.h"
#include "memtrack/trace.h"
#include "nn/nn.h"
#include "optim/optimizers.h"

#define LAUNCHES_FIRST 2 /* in which the allocator finds its steady state */
#define MOST_FAILURES  2 /* then no more captures are tried */

/* A tensor that a step leaves. */
typedef struct result {
    mti_view view;
    size_t n_bytes, offset; /* of its storage; of its first element there */
    size_t survivor;        /* of the trace */
    const char *op, *module;
} result;

typedef struct param_state {
    const void *data;
    const void *grad; /* before the step; NULL: none */
    bool makes_grad;
    result made;
} param_state;

/* What decides what a step does. */
typedef struct step_key {
    double variant;
    int n_inputs;
    size_t n_bytes[MT_STEP_INPUTS];
    bool training, grad_mode;
    uint64_t seed;
} step_key;

typedef struct counters {
    uint64_t offset, flops[3], moved[2 + MTI_ROUTES];
} counters;

typedef struct captured {
    mti_graph *graph;
    mti_trace *trace;
    size_t n_params;
    param_state *params;
    result loss;
    mti_block **blocks;
    counters added; /* by a step */
} captured;

struct mt_step_graph {
    mt_module *model;
    mt_device *device; /* retained */
    step_key key;      /* of the last call */
    int64_t n_same;    /* calls with that key since a graph was last given up */
    int n_failures;
    captured *captured;
    mt_step_graph_stats stats;
};

/* ---- making and freeing ---- */

mt_step_graph *mt_step_graph_new(mt_module *model)
{
    const mt_named_tensor *list;
    size_t n;
    if (!mti_given(model, "step_graph", "the model")) return NULL;
    if (mt_module_params(model, &list, &n) != MT_OK) return NULL;
    if (!n) return mti_fail_null(MT_ERR_ARGUMENT, "step_graph: the model has no parameters");
    mt_device *device = mt_device_of(list[0].tensor);
    if (!device->backend->capture_begin)
        return mti_fail_null(MT_ERR_UNSUPPORTED,
                             "step_graph: %s has no launches to capture; need cuda",
                             device->backend->kind);
    mt_step_graph *g = mti_calloc(1, sizeof *g);
    if (!g) return NULL;
    g->model = model;
    g->device = mt_device_retain(device);
    return g;
}

static void captured_free(const mt_step_graph *g, captured *c)
{
    if (!c) return;
    g->device->backend->graph_free(g->device->ctx, c->graph);
    mti_trace_free(c->trace);
    mti_free(c->params);
    mti_free(c->blocks);
    mti_free(c);
}

static void give_up_graph(mt_step_graph *g)
{
    captured_free(g, g->captured);
    g->captured = NULL;
    g->n_same = 0;
}

void mt_step_graph_free(mt_step_graph *g)
{
    if (!g) return;
    give_up_graph(g);
    mt_device_release(g->device);
    mti_free(g);
}

mt_step_graph_stats mt_step_graph_get(const mt_step_graph *g)
{
    return mti_given(g, "step_graph_get", "the graph") ? g->stats : (mt_step_graph_stats){0};
}

static bool explain(mt_step_graph *g, const char *why)
{
    snprintf(g->stats.why, sizeof g->stats.why, "%s", why);
    return false;
}

/* ---- counters of the device, which a replay advances as a run would ---- */

static counters read_counters(mt_device *d)
{
    counters c = {.flops = {atomic_load(&d->flops_forward), atomic_load(&d->flops_backward),
                            atomic_load(&d->flops_recompute)},
                  .moved = {atomic_load(&d->moved_products), atomic_load(&d->moved_others)}};
    uint64_t seed;
    mt_rng_get(d, &seed, &c.offset);
    for (int i = 0; i < MTI_ROUTES; i++) c.moved[2 + i] = atomic_load(&d->sent[i]);
    return c;
}

/* Adds n times what a step adds; n is 1, or -1 to take a capture back. */
static void add_counters(mt_device *d, const counters *c, int n)
{
    uint64_t seed, offset, factor = (uint64_t)(int64_t)n;
    mt_rng_get(d, &seed, &offset);
    mt_rng_set(d, seed, offset + factor * c->offset);
    atomic_fetch_add(&d->flops_forward, factor * c->flops[0]);
    atomic_fetch_add(&d->flops_backward, factor * c->flops[1]);
    atomic_fetch_add(&d->flops_recompute, factor * c->flops[2]);
    atomic_fetch_add(&d->moved_products, factor * c->moved[0]);
    atomic_fetch_add(&d->moved_others, factor * c->moved[1]);
    for (int i = 0; i < MTI_ROUTES; i++) atomic_fetch_add(&d->sent[i], factor * c->moved[2 + i]);
}

static counters difference(const counters *now, const counters *before)
{
    counters d = {.offset = now->offset - before->offset};
    for (int i = 0; i < 3; i++) d.flops[i] = now->flops[i] - before->flops[i];
    for (int i = 0; i < 2 + MTI_ROUTES; i++) d.moved[i] = now->moved[i] - before->moved[i];
    return d;
}

/* ---- what a step depends on ---- */

static step_key key_of(const mt_step_graph *g, double variant, int n_inputs,
                       const mt_step_input *inputs)
{
    step_key key;
    uint64_t offset;
    memset(&key, 0, sizeof key); /* compared as bytes */
    key.variant = variant;
    key.n_inputs = n_inputs;
    for (int i = 0; i < n_inputs; i++) key.n_bytes[i] = inputs[i].n_bytes;
    key.training = mt_module_training(g->model);
    key.grad_mode = mt_grad_mode();
    mt_rng_get(g->device, &key.seed, &offset);
    return key;
}

static const mti_leaf *leaf_of(const mt_tensor *t) { return (const mti_leaf *)t->leaf; }

/* Whether nobody watches what a replay leaves out. */
static bool is_unwatched(mt_step_graph *g, const mt_named_tensor *list, size_t n)
{
    const mti_modes *modes = mti_modes_now();
    if (modes->hooks || modes->op_hooks || modes->rewrite)
        return explain(g, "hooks on saved tensors or ops are in place");
    if (mti_pool_is_observed(g->device->pool)) return explain(g, "memory is being observed");
    for (size_t i = 0; i < n; i++)
        if (leaf_of(list[i].tensor) && leaf_of(list[i].tensor)->hooks.first)
            return explain(g, "a parameter has a hook on its gradient");
    return true;
}

static const void *grad_data(const mt_tensor *param)
{
    return mt_grad(param) ? mt_grad(param)->view.data : NULL;
}

static bool params_are_as_captured(const captured *c, const mt_named_tensor *list, size_t n)
{
    if (n != c->n_params) return false;
    for (size_t i = 0; i < n; i++)
        if (list[i].tensor->view.data != c->params[i].data ||
            grad_data(list[i].tensor) != c->params[i].grad)
            return false;
    return true;
}

/* ---- capturing ---- */

static bool describe(const mti_trace *trace, const mt_tensor *t, result *out)
{
    const mti_storage *s = t->storage;
    for (size_t i = 0; s->block->ptr && i < mti_trace_survivors(trace); i++) {
        if (mti_trace_survivor(trace, i) != s->block->ptr) continue;
        size_t offset = (size_t)((const char *)t->view.data - (const char *)s->block->ptr);
        *out = (result){t->view, s->bytes, offset, i, s->op, s->module};
        return true;
    }
    return false;
}

/* Every block that is left must be the loss's or a new gradient's, one each. */
static bool describe_results(captured *c, const mt_named_tensor *list, const mt_tensor *loss)
{
    size_t found = describe(c->trace, loss, &c->loss);
    for (size_t i = 0; found && i < c->n_params; i++) {
        const mt_tensor *grad = mt_grad(list[i].tensor);
        if (!grad || c->params[i].grad) continue;
        if (!describe(c->trace, grad, &c->params[i].made)) return false;
        c->params[i].makes_grad = true;
        found++;
    }
    return found == mti_trace_survivors(c->trace);
}

static captured *captured_new(const mt_named_tensor *list, size_t n)
{
    captured *c = mti_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->params = mti_calloc(n, sizeof *c->params);
    c->blocks = mti_calloc(n + 1, sizeof *c->blocks);
    c->n_params = n;
    for (size_t i = 0; c->params && i < n; i++) {
        c->params[i].data = list[i].tensor->view.data;
        c->params[i].grad = grad_data(list[i].tensor);
    }
    return c;
}

/* Calls fn with its launches noted. The loss is NULL if that failed. */
static mt_tensor *note_step(const mt_step_graph *g, captured *c, mt_step_fn *fn, void *user,
                            const mt_step_input *inputs, uint64_t offset)
{
    const mti_backend *be = g->device->backend;
    size_t n_bytes = 0;
    for (int i = 0; i < g->key.n_inputs; i++) n_bytes += inputs[i].n_bytes;
    if (!be->capture_begin(g->device->ctx, offset, n_bytes)) return NULL;
    mt_tensor *loss = fn(user, inputs);
    c->graph = be->capture_end(g->device->ctx, loss != NULL);
    if (!c->graph) mt_set(&loss, NULL);
    return loss;
}

/* Takes back what the noted step left on the host: it has not run. */
static void undo_step(const mt_step_graph *g, const captured *c, const mt_named_tensor *list,
                      const counters *before)
{
    counters now = read_counters(g->device), added = difference(&now, before);
    for (size_t i = 0; c->params && i < c->n_params; i++)
        if (!c->params[i].grad) mt_set_grad(list[i].tensor, NULL);
    add_counters(g->device, &added, -1);
}

/* The graph of a step, or NULL and why not. */
static bool capture(mt_step_graph *g, const mt_named_tensor *list, size_t n, mt_step_fn *fn,
                    void *user, const mt_step_input *inputs)
{
    counters before = read_counters(g->device);
    captured *c = captured_new(list, n);
    bool ok = c && c->params && c->blocks;
    if (ok) c->trace = mti_trace_begin(g->device->pool);
    mt_tensor *loss = ok && c->trace ? note_step(g, c, fn, user, inputs, before.offset) : NULL;
    const char *why = c && c->trace ? mti_trace_end(c->trace) : NULL;
    counters now = read_counters(g->device);
    if (!loss)
        ok = explain(g, mt_last_error());
    else if (why)
        ok = explain(g, why);
    else if (!describe_results(c, list, loss))
        ok = explain(g, "it leaves tensors other than the loss and gradients");
    else if (!g->device->backend->graph_takes(c->graph, g->key.n_inputs, g->key.n_bytes))
        ok = explain(g, "it does not upload its inputs once each, in order");
    if (c) c->added = difference(&now, &before);
    mt_release(loss);
    if (c) undo_step(g, c, list, &before);
    if (ok) {
        g->captured = c;
        g->stats.captured++;
        g->stats.nodes = (int64_t)g->device->backend->graph_nodes(c->graph);
        g->stats.why[0] = 0;
        return true;
    }
    captured_free(g, c);
    mt_clear_error(); /* the step is launched instead */
    g->n_failures++;
    return false;
}

/* ---- replaying ---- */

typedef struct launch {
    const mt_step_graph *graph;
    uint64_t offset;
    const void *inputs[MT_STEP_INPUTS];
} launch;

static bool run_graph(void *user)
{
    const launch *l = user;
    mt_device *d = l->graph->device;
    return d->backend->graph_launch(d->ctx, l->graph->captured->graph, l->offset, l->inputs);
}

static mt_tensor *shell_of(const mt_step_graph *g, const result *r)
{
    return mti_tensor_shell(g->device, &r->view, r->n_bytes, r->op, r->module);
}

static void fill(const captured *c, const result *r, mt_tensor *shell)
{
    mti_tensor_fill_shell(shell, c->blocks[r->survivor], r->offset);
}

/* Everything that may fail is made before the graph is launched. */
static mt_tensor *replay(mt_step_graph *g, const mt_named_tensor *list, const mt_step_input *inputs)
{
    captured *c = g->captured;
    launch l = {.graph = g, .offset = read_counters(g->device).offset};
    for (int i = 0; i < g->key.n_inputs; i++) l.inputs[i] = inputs[i].data;
    mt_tensor **grads = mti_calloc(c->n_params, sizeof *grads), *loss = shell_of(g, &c->loss);
    bool ok = grads && loss;
    for (size_t i = 0; ok && i < c->n_params; i++)
        if (c->params[i].makes_grad)
            ok = (grads[i] = shell_of(g, &c->params[i].made)) && mti_leaf_of(list[i].tensor);
    ok = ok && mti_trace_repeat(c->trace, run_graph, &l, c->blocks);
    if (ok) fill(c, &c->loss, loss);
    for (size_t i = 0; grads && i < c->n_params; i++) {
        if (ok && grads[i]) {
            fill(c, &c->params[i].made, grads[i]);
            mti_leaf_of(list[i].tensor)->grad = mt_retain(grads[i]);
        }
        mt_release(grads[i]);
    }
    mti_free(grads);
    if (ok) add_counters(g->device, &c->added, 1);
    if (!ok) mt_set(&loss, NULL);
    return loss;
}

/* NULL: the step is to be launched. */
static mt_tensor *try_replay(mt_step_graph *g, const mt_named_tensor *list, size_t n,
                             const mt_step_input *inputs)
{
    mt_tensor *loss = NULL;
    if (params_are_as_captured(g->captured, list, n)) loss = replay(g, list, inputs);
    if (loss) {
        g->stats.replayed++;
        return loss;
    }
    explain(g, "the memory it used was not free, or not the same");
    mt_clear_error();
    give_up_graph(g);
    return NULL;
}

/* ---- running ---- */

mt_tensor *mt_step_graph_run(mt_step_graph *g, mt_step_fn *fn, void *user, double variant,
                             int n_inputs, const mt_step_input *inputs)
{
    const mt_named_tensor *list;
    size_t n;
    if (!mti_given(g, "step_graph_run", "the graph")) return NULL;
    if (!fn || n_inputs < 0 || n_inputs > MT_STEP_INPUTS || (n_inputs && !inputs))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "step_graph_run: %d inputs; need a function and 0 to %d inputs",
                             n_inputs, MT_STEP_INPUTS);
    if (mt_module_params(g->model, &list, &n) != MT_OK) return NULL;
    step_key key = key_of(g, variant, n_inputs, inputs);
    if (memcmp(&key, &g->key, sizeof key)) {
        if (g->captured) explain(g, "a shape, the variant, the mode or the seed changed");
        give_up_graph(g);
        g->key = key;
    }
    mt_tensor *loss = NULL;
    if (is_unwatched(g, list, n)) {
        bool due = !g->captured && g->n_same >= LAUNCHES_FIRST && g->n_failures < MOST_FAILURES;
        if (due) capture(g, list, n, fn, user, inputs);
        if (g->captured) loss = try_replay(g, list, n, inputs);
    }
    if (loss) return loss;
    g->n_same++;
    g->stats.launched++;
    return fn(user, inputs);
}
