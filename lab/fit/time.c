/* time.c: how long a step takes, by a model (docs/fit.md). Nothing here is measured. */
#include "fit/search.h"
#include "nn/model.h"

static double most(double x, double y) { return x > y ? x : y; }

/* Bytes in a second from one rank of a group whose neighbours are `stride` GPUs apart. Where a
 * group spans nodes, its rings enter and leave a node through the network cards of all its ranks
 * there. */
static double rate_of(const mt_gpu *g, int64_t ranks, int64_t stride)
{
    if (ranks * stride <= g->in_a_node) return g->link;
    int64_t here = stride < g->in_a_node ? g->in_a_node / stride : 1;
    double rate = g->network * (double)here;
    return rate < g->link ? rate : g->link;
}

/* Bytes in a second from a rank that sends all others of such a group as much: within the node and
 * out of it at once. */
static double rate_to_all(const mt_gpu *g, int64_t ranks, int64_t stride)
{
    int64_t here = stride < g->in_a_node ? g->in_a_node / stride : 1;
    if (ranks <= here) return g->link;
    double out = (double)(ranks - here) / (double)(ranks - 1);
    double within = g->link / (1 - out), across = g->network / out;
    return here > 1 && within < across ? within : across;
}

double mti_fit_experts_of_layer(const mt_model_config *c, const mt_parallel *h)
{
    const double one = (double)(mti_product_size(c, 0, 0, MTI_PRODUCT_EXPERT_FIRST) +
                                mti_product_size(c, 0, 0, MTI_PRODUCT_EXPERT_DOWN));
    return (double)c->experts * one / (double)(h->expert * h->tensor);
}

double mti_fit_expert_layers(const mt_model_config *c)
{
    return c->experts ? (double)(c->layers + c->mtp_layers - c->dense_layers) : 0;
}

/* Elements that train of the whole share: of experts, and of all else; those that this rank steps.
 */
typedef struct elements {
    double experts, others, stepped, size, grad_size;
} elements;

static elements elements_of(const mti_workload *w, const mt_parallel *h, const mti_measurement *m)
{
    double dp = (double)(h->data * h->context), copies = dp / (double)h->expert;
    double size =
        h->fsdp & MT_FSDP_F32_SHARDS ? sizeof(float) : (double)mt_dtype_size(w->config.dtype);
    double grad_size = w->memory.f32_gradients ? sizeof(float) : size;
    double n = (double)m->grad_bytes / grad_size; /* ZeRO 2 and 3: of this rank's shards */
    double experts =
        w->memory.lora_rank ? 0 : (double)m->layers * mti_fit_experts_of_layer(&w->config, h);
    double others =
        h->zero >= 2 ? most(0, n * dp - experts * (double)h->expert) : most(0, n - experts);
    return (elements){.experts = experts,
                      .others = others,
                      .stepped = h->zero == 1 ? others / dp + experts / copies : n,
                      .size = size,
                      .grad_size = grad_size};
}

static double sent_of(double n, double ranks) { return n * (ranks - 1) / ranks; }

/* Bytes to ranks with the same parameters that are sent once a step. */
static double sent_once(const elements *e, const mt_parallel *h)
{
    double ranks = (double)(h->data * h->context);
    double sent = sent_of(e->others, ranks) + sent_of(e->experts, ranks / (double)h->expert);
    double gradients = sent * e->grad_size, parameters = sent * e->size;
    switch (h->zero) {
    case 0: return 2 * gradients;          /* all of them get the sum */
    case 1: return gradients + parameters; /* scattered, then gathered */
    case 2: return parameters;             /* gradients: in every backward */
    default: return 0;                     /* both are ops of forward and backward */
    }
}

/* The time of computing, by FLOPs. */
static double forward_share(const mt_flops *f)
{
    double all = (double)(f->forward + f->backward + f->recompute);
    return all > 0 ? (double)f->forward / all : 0;
}

mt_fit_time mti_fit_time_of(const mti_fit_task *task, const mt_fit_setup *s,
                            const mti_measurement *m)
{
    const mt_parallel filled = mti_filled_in(&s->parallel), *h = &filled;
    const int64_t same = h->data * h->context; /* ranks with the same parameters */
    const mt_gpu *g = &task->gpu;
    const mti_steady *step = &m->steady;
    const mt_flops *f = &step->flops;
    const elements e = elements_of(task->workload, h, m);
    double micro = (double)h->microbatches, parts = (double)h->interleave;
    double to_data = rate_of(g, same, h->tensor);
    mt_fit_time t = {.products = (double)(f->forward + f->backward + f->recompute) /
                                 (g->flops * task->utilisation),
                     .memory = (double)step->traffic.others / g->bandwidth,
                     .layers = (double)step->sent.layers / rate_of(g, h->tensor, 1),
                     .context = (double)step->sent.context / rate_of(g, h->context, h->tensor),
                     .experts = (double)step->sent.experts / rate_to_all(g, h->expert, h->tensor),
                     .stages =
                         (double)step->sent.stages / rate_of(g, h->pipeline, h->tensor * same)};
    double computing = t.products + t.memory, away = (double)step->offloaded / g->host;
    double ahead = computing * forward_share(f); /* while it computes so long, bytes leave */
    double sending = t.layers + t.context + t.experts + t.stages;
    t.bubble = (double)(h->pipeline - 1) / (micro * parts) * (computing + sending);
    double once = sent_once(&e, h) / to_data, often = (double)step->sent.shards / to_data;
    t.data = most(0, most(once + often - computing, once - computing / micro));
    double waiting = most(0, away - ahead) + most(0, away - (computing - ahead));
    t.host = most(0, waiting - t.data); /* copies go on while it waits for other ranks */
    t.host += 2 * micro * (double)m->param_host / g->host; /* shards, for each pass */
    bool measures = mti_optimizer_takes_matrices(task->workload->optimizer); /* before it steps */
    double grads = measures ? 3 : 1, params = measures ? 3 : 2;
    if (task->workload->optimizer != MTI_OPT_NONE)
        t.step =
            (e.stepped * (grads * e.grad_size + params * e.size) + 2 * (double)m->optimizer_bytes) /
            g->bandwidth;
    /* what DeepSpeed's 16 bytes there for each parameter stand for goes there and back in 16 bits
     */
    if (mti_optimizer_row_of(task->workload->optimizer)->host)
        t.step += 2 * (double)e.size * (double)m->optimizer_host / 16 / g->host;
    t.total = computing + sending + t.bubble + t.data + t.host + t.step;
    return t;
}

/* The elements of the stage that has most of them: at least the average. */
static elements least_elements(const mti_fit_task *task, const mt_parallel *h)
{
    const mt_model_config *c = &task->workload->config;
    const double size = (double)mt_dtype_size(c->dtype), ranks = (double)(h->tensor * h->pipeline);
    const double layers = mti_fit_expert_layers(c) / (double)h->pipeline;
    const double experts = layers > 0 ? layers * mti_fit_experts_of_layer(c, h) : 0;
    const double all = (double)task->states.params / size / ranks;
    return (elements){.experts = experts,
                      .others = most(0, all - experts * (double)h->expert),
                      .size = size,
                      .grad_size = task->workload->memory.f32_gradients ? sizeof(float) : size};
}

/* Seconds of sending to the ranks with the same parameters, at least. With ZeRO 3 all parameters
 * are gathered in each forward, and experts', which nothing keeps, in each backward. */
static double least_exchange(const mti_fit_task *task, const mt_parallel *h)
{
    const int64_t same = h->data * h->context;
    const double ranks = (double)same, copies = ranks / (double)h->expert;
    const elements e = least_elements(task, h);
    const double others = sent_of(e.others, ranks), experts = sent_of(e.experts, copies);
    const bool trains = !task->workload->memory.lora_rank, again = trains && !h->fsdp;
    double often = 0;
    if (h->zero == 3) often = (others + (again ? 2 : 1) * experts) * e.size;
    if (h->zero >= 2 && trains) often += (others + experts) * e.size;
    const double once = trains ? sent_once(&e, h) : 0;
    return (once + (double)h->microbatches * often) / rate_of(&task->gpu, same, h->tensor);
}

/* Seconds of sending rows to experts, at least: there and back, and their gradients; with a
 * capacity below a balanced share not all rows go, and with autocast they may be narrower. */
static double least_to_experts(const mti_fit_task *task, const mt_parallel *h)
{
    const mt_model_config *c = &task->workload->config;
    if (h->expert == 1) return 0;
    const double kept = c->expert_capacity > 0 && c->expert_capacity < 1 ? c->expert_capacity : 1;
    const double size = task->workload->memory.amp ? 2 : (double)mt_dtype_size(c->dtype);
    const double rows = (double)(task->batch * task->seq * c->experts_per_token) * kept /
                        (double)(h->data * h->context * h->tensor);
    return mti_fit_expert_layers(c) / (double)h->pipeline * 4 *
           sent_of(rows * (double)c->hidden * size, (double)h->expert) /
           rate_to_all(&task->gpu, h->expert, h->tensor);
}

/* A hair less, for what rounding makes of a sum of shares. Where all stages have as many layers,
 * none computes or sends to experts more than the first or the last one; but the stage that
 * exchanges most may be another. */
double mti_fit_least_time(const mti_fit_task *task, const mt_parallel *parallel, double flops,
                          double sending)
{
    const mt_parallel filled = mti_filled_in(parallel), *h = &filled;
    double micro = (double)h->microbatches, parts = (double)h->interleave;
    double products = flops / ((double)task->gpus * task->gpu.flops * task->utilisation);
    double exchange = least_exchange(task, h);
    if (task->workload->config.layers % h->pipeline == 0)
        sending = most(sending, least_to_experts(task, h));
    if (h->pipeline == 1) exchange += sending;
    double computed = (products + sending) * (1 + (double)(h->pipeline - 1) / (micro * parts));
    return (1 - 1e-9) * most(computed, exchange);
}
