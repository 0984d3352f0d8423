/* batch_norm.c: batch norm over x [b,c,s] and its backward, in f64 whatever the dtype.
 *
 * A block is some channels side by side, so that a row of it is at least ROW elements long where s
 * is short, and one channel where it is not. Each block's sums are added up by one thread, in the
 * order of the batch: the same bits at any number of threads. */
#include "backends/cpu/cpu.h"

enum { ROW = 64 };

typedef struct batch_job {
    const mti_view *x, *dy, *y; /* dy: backward only; x may be NULL there, and y, which is dx */
    bool training;
    double eps, momentum;
    const mti_view *w, *b, *running_mean, *running_var, *mean, *rstd, *dw, *db; /* [c] or NULL */
    int64_t batch, channels, s, width;                                          /* of a block */
} batch_job;

/* Some channels and the numbers of each; and a piece of their elements: n from `at` on, `per` of
 * the first channel, of the next one, and so on. */
typedef struct batch_block {
    const batch_job *job;
    int64_t first, width, at, n, per;
    double mean[ROW], rstd[ROW], sum[ROW], sum_x[ROW], scale[ROW], shift[ROW];
} batch_block;

static double channel_of(const mti_view *v, int64_t channel, double otherwise)
{
    double value = otherwise;
    if (v) mti_cpu_read_wide(v, channel, &value, 1);
    return value;
}

static void set_channel(const mti_view *v, int64_t channel, double value)
{
    if (v) mti_cpu_write_wide(v, channel, &value, 1);
}

typedef void piece_fn(batch_block *block);

static void each_piece(batch_block *block, piece_fn *fn)
{
    const batch_job *job = block->job;
    int64_t row = block->width * job->s;
    for (int64_t batch = 0; batch < job->batch; batch++)
        for (int64_t in = 0; in < row; in += block->n) {
            block->n = row - in < MTI_CPU_RUN ? row - in : MTI_CPU_RUN;
            block->per = block->width > 1 ? job->s : block->n;
            block->at = (batch * job->channels + block->first) * job->s + in;
            fn(block);
        }
}

/* For each element i of a piece, k being its channel. */
#define EACH_ELEMENT(block)                                                                        \
    for (int64_t k = 0, begin = 0; begin < (block)->n; k++, begin += (block)->per)                 \
        for (int64_t i = begin; i < begin + (block)->per; i++)

static void add_up(batch_block *block)
{
    double x[MTI_CPU_RUN];
    mti_cpu_read_wide(block->job->x, block->at, x, block->n);
    EACH_ELEMENT(block) block->sum[k] += x[i];
}

/* A second pass, because E[x^2] - mean^2 cancels. */
static void add_squares(batch_block *block)
{
    double x[MTI_CPU_RUN];
    mti_cpu_read_wide(block->job->x, block->at, x, block->n);
    EACH_ELEMENT(block) block->sum_x[k] += (x[i] - block->mean[k]) * (x[i] - block->mean[k]);
}

static void write_y(batch_block *block)
{
    double x[MTI_CPU_RUN];
    mti_cpu_read_wide(block->job->x, block->at, x, block->n);
    EACH_ELEMENT(block) x[i] = (x[i] - block->mean[k]) * block->scale[k] + block->shift[k];
    mti_cpu_write_wide(block->job->y, block->at, x, block->n);
}

static void forward_block(batch_block *block)
{
    const batch_job *job = block->job;
    double count = (double)(job->batch * job->s);
    if (job->training) {
        each_piece(block, add_up);
        for (int64_t k = 0; k < block->width; k++) block->mean[k] = block->sum[k] / count;
        each_piece(block, add_squares);
    }
    for (int64_t k = 0; k < block->width; k++) {
        int64_t channel = block->first + k;
        double old_mean = channel_of(job->running_mean, channel, 0),
               old_var = channel_of(job->running_var, channel, 1);
        double m = job->training ? job->momentum : 0;
        if (!job->training) block->mean[k] = old_mean;
        double var = job->training ? block->sum_x[k] / count : old_var;
        block->rstd[k] = 1 / sqrt(var + job->eps);
        block->scale[k] = block->rstd[k] * channel_of(job->w, channel, 1);
        block->shift[k] = channel_of(job->b, channel, 0);
        set_channel(job->mean, channel, block->mean[k]);
        set_channel(job->rstd, channel, block->rstd[k]);
        if (m == 0) continue;
        set_channel(job->running_mean, channel, (1 - m) * old_mean + m * block->mean[k]);
        set_channel(job->running_var, channel, (1 - m) * old_var + m * var * count / (count - 1));
    }
    each_piece(block, write_y);
}

static void add_gradients(batch_block *block)
{
    double dy[MTI_CPU_RUN], x[MTI_CPU_RUN];
    mti_cpu_read_wide(block->job->dy, block->at, dy, block->n);
    EACH_ELEMENT(block) block->sum[k] += dy[i];
    if (!block->job->x) return;
    mti_cpu_read_wide(block->job->x, block->at, x, block->n);
    EACH_ELEMENT(block)
    block->sum_x[k] += dy[i] * (x[i] - block->mean[k]) * block->rstd[k];
}

/* dx = scale (dy - sum - xhat sum_x), sums being means by now; in evaluation scale dy, whatever x.
 */
static void write_dx(batch_block *block)
{
    double dy[MTI_CPU_RUN], x[MTI_CPU_RUN];
    mti_cpu_read_wide(block->job->dy, block->at, dy, block->n);
    mti_cpu_read_wide(block->job->x, block->at, x, block->n);
    if (block->job->training) {
        EACH_ELEMENT(block)
        dy[i] = dy[i] - block->sum[k] - (x[i] - block->mean[k]) * block->rstd[k] * block->sum_x[k];
    }
    EACH_ELEMENT(block) dy[i] *= block->scale[k];
    mti_cpu_write_wide(block->job->y, block->at, dy, block->n);
}

static void backward_block(batch_block *block)
{
    const batch_job *job = block->job;
    double count = (double)(job->batch * job->s);
    for (int64_t k = 0; k < block->width; k++) {
        block->mean[k] = channel_of(job->mean, block->first + k, 0);
        block->rstd[k] = channel_of(job->rstd, block->first + k, 0);
        block->scale[k] = block->rstd[k] * channel_of(job->w, block->first + k, 1);
    }
    each_piece(block, add_gradients);
    for (int64_t k = 0; k < block->width; k++) {
        set_channel(job->db, block->first + k, block->sum[k]);
        set_channel(job->dw, block->first + k, block->sum_x[k]);
        block->sum[k] /= count, block->sum_x[k] /= count;
    }
    if (job->y) each_piece(block, write_dx);
}

static void batch_blocks(const void *arg, int64_t begin, int64_t end)
{
    const batch_job *job = arg;
    for (int64_t i = begin; i < end; i++) {
        batch_block block = {.job = job, .first = i * job->width};
        int64_t left = job->channels - block.first;
        block.width = left < job->width ? left : job->width;
        if (job->dy)
            backward_block(&block);
        else
            forward_block(&block);
    }
}

static bool run(mti_ctx *ctx, batch_job *job, const mti_view *like)
{
    job->batch = like->shape[0], job->channels = like->shape[1], job->s = like->shape[2];
    job->width = job->s == 0 || job->s >= ROW ? 1 : (ROW + job->s - 1) / job->s;
    int64_t blocks = (job->channels + job->width - 1) / job->width;
    int64_t cost = 8 * job->batch * job->s * job->width + 1;
    mti_cpu_parallel(ctx, blocks, mti_cpu_chunk(blocks, cost), batch_blocks, job);
    return true;
}

bool mti_cpu_batch_norm(mti_ctx *ctx, bool training, double eps, double momentum, const mti_view *x,
                        const mti_view *w, const mti_view *b, const mti_view *running_mean,
                        const mti_view *running_var, const mti_view *y, const mti_view *mean,
                        const mti_view *rstd)
{
    batch_job job = {.x = x, .y = y, .training = training, .eps = eps, .momentum = momentum};
    job.w = w, job.b = b, job.mean = mean, job.rstd = rstd;
    job.running_mean = running_mean, job.running_var = running_var;
    return run(ctx, &job, x);
}

bool mti_cpu_batch_norm_backward(mti_ctx *ctx, bool training, const mti_view *dy, const mti_view *x,
                                 const mti_view *w, const mti_view *mean, const mti_view *rstd,
                                 const mti_view *dx, const mti_view *dw, const mti_view *db)
{
    batch_job job = {.x = x, .dy = dy, .y = dx, .training = training};
    job.w = w, job.mean = mean, job.rstd = rstd, job.dw = dw, job.db = db;
    return run(ctx, &job, dy);
}
