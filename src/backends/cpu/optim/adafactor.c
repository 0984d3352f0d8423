/* adafactor.c: a step of Adafactor, parameter by parameter: the squares of all tiles, the moments,
 * the size of the update, the step. The update is computed twice and never stored. */
#include "backends/adafactor.h"
#include "backends/cpu/rows/rows.h"

typedef struct factor_job {
    const mti_factor_step *step;
    const mti_opt_item *item;
    mti_factor_shape shape;
    mti_factor_scratch at;
    char *scratch;
    double *squares; /* in scratch, one a tile */
    double eps;
    double length; /* what the update is multiplied by */
} factor_job;

static double sum_in_order(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

static inline float *part_of_f32(const factor_job *job, int64_t at)
{
    return (float *)(void *)(job->scratch + at);
}
static inline double *part_of_f64(const factor_job *job, int64_t at)
{
    return (double *)(void *)(job->scratch + at);
}
static inline float root_f32(float x) { return sqrtf(x); }
static inline double root_f64(double x) { return sqrt(x); }

#define MTI_TYPED "backends/cpu/optim/adafactor.inc"
#include "backends/cpu/typed.inc"

static mti_factor_scratch scratch_of(const mti_opt_item *item)
{
    mti_factor_shape shape = mti_factor_shape_of(item);
    return mti_factor_scratch_of(&shape, item->dtype == MT_F64 ? 8 : 4);
}

size_t mti_cpu_adafactor_scratch(mti_ctx *ctx, int n_items, const mti_opt_item *items)
{
    (void)ctx;
    int64_t most = 0;
    for (int k = 0; k < n_items; k++) {
        int64_t bytes = items[k].n ? scratch_of(&items[k]).bytes : 0;
        most = bytes > most ? bytes : most;
    }
    return (size_t)most;
}

bool mti_cpu_adafactor(mti_ctx *ctx, const mti_opt_params *p, int n_items,
                       const mti_opt_item *items, void *scratch)
{
    const mti_factor_step step = mti_factor_step_of(p);
    for (int k = 0; k < n_items; k++) {
        const mti_opt_item *item = &items[k];
        if (!item->n) continue;
        factor_job job = {.step = &step,
                          .item = item,
                          .shape = mti_factor_shape_of(item),
                          .at = scratch_of(item),
                          .scratch = scratch,
                          .squares = scratch,
                          .eps = mti_factor_eps(p, item->dtype, item->master != NULL)};
        if (item->dtype == MT_F64)
            step_item_f64(ctx, &job);
        else
            step_item_f32(ctx, &job);
    }
    return true;
}
