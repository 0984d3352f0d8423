/* sample.c: one byte after the other. */
#include <math.h>
#include <string.h>
#include "base/philox.h"
#include "cli/trainer.h"
#include "memtape/ops.h"

#define BYTES 256

/* Scores of the next byte after window[n]. */
static bool next_scores(mt_module *model, mt_device *device, const unsigned char *window, int64_t n,
                        float scores[BYTES])
{
    int64_t *ids = mti_calloc((size_t)n, sizeof *ids);
    if (!ids) return false;
    for (int64_t i = 0; i < n; i++) ids[i] = window[i];
    mt_tensor *input = mt_from_data(device, MT_I64, MT_SHAPE(1, n), ids, (size_t)n * sizeof *ids);
    mti_free(ids);
    mt_tensor *y = mt_forward(model, input);
    mt_set(&y, mt_slice(y, 1, n - 1, 1));
    mt_set(&y, mt_cast(y, MT_F32));
    bool ok = y && mt_to_host(y, scores, BYTES * sizeof *scores) == MT_OK;
    mt_release(y);
    mt_release(input);
    return ok;
}

/* The score that the k-th likeliest byte has. */
static float threshold(const float scores[BYTES], int64_t k)
{
    float sorted[BYTES];
    memcpy(sorted, scores, sizeof sorted);
    for (int64_t i = 0; i < k; i++) /* k steps of a selection sort */
        for (int j = (int)i + 1; j < BYTES; j++)
            if (sorted[j] > sorted[i]) {
                float held = sorted[i];
                sorted[i] = sorted[j], sorted[j] = held;
            }
    return sorted[k - 1];
}

static unsigned char likeliest(const float scores[BYTES])
{
    int best = 0;
    for (int i = 1; i < BYTES; i++)
        if (scores[i] > scores[best]) best = i;
    return (unsigned char)best;
}

/* unit: uniform in [0,1) */
static unsigned char choose(const float scores[BYTES], const mti_sampling *how, double unit)
{
    double weight[BYTES], sum = 0, top = scores[likeliest(scores)];
    if (how->temperature <= 0) return likeliest(scores);
    float least = how->top_k > 0 ? threshold(scores, how->top_k) : -INFINITY;
    for (int i = 0; i < BYTES; i++) {
        weight[i] = scores[i] >= least ? exp(((double)scores[i] - top) / how->temperature) : 0;
        sum += weight[i];
    }
    double left = unit * sum;
    for (int i = 0; i < BYTES; i++) {
        left -= weight[i];
        if (left < 0 && weight[i] > 0) return (unsigned char)i;
    }
    return likeliest(scores); /* rounding used the sum up */
}

static bool sample(mt_module *model, mt_device *device, int64_t context, unsigned char *window,
                   size_t n_prompt, int64_t n_bytes, const mti_sampling *how, mti_byte_fn *fn,
                   void *user)
{
    float scores[BYTES];
    size_t n = n_prompt, room = (size_t)context;
    for (int64_t i = 0; i < n_bytes; i++) {
        if (!next_scores(model, device, window, (int64_t)n, scores)) return false;
        for (int j = 0; j < BYTES; j++)
            if (!isfinite(scores[j]))
                return mti_fail_bool(MT_ERR_STATE, "the model's scores are not finite numbers");
        mti_u32x4 r = mti_philox(how->seed, (uint64_t)i);
        unsigned char byte = choose(scores, how, (double)mti_u32_to_unit(r.v[0]));
        if (n == room) memmove(window, window + 1, --n);
        window[n++] = byte;
        if (!fn(user, byte)) return true;
    }
    return true;
}

bool mti_sample(mt_module *model, mt_device *device, int64_t context, const char *prompt,
                int64_t n_bytes, const mti_sampling *how, mti_byte_fn *fn, void *user)
{
    if (!*prompt) prompt = "\n"; /* something must come before the first byte */
    size_t n = strlen(prompt), room = (size_t)context, skip = n > room ? n - room : 0;
    unsigned char *window = mti_malloc(room);
    if (!window) return false;
    memcpy(window, prompt + skip, n - skip);
    bool grad = mt_set_grad_mode(false), training = mt_module_training(model);
    mt_module_set_training(model, false);
    bool ok = sample(model, device, context, window, n - skip, n_bytes, how, fn, user);
    mt_module_set_training(model, training);
    mt_set_grad_mode(grad);
    mti_free(window);
    return ok;
}
