/* schedule.c: the 1F1B schedule of one stage of a pipeline.
 *
 * A stage first runs some forwards, then forward and backward alternately, then the remaining
 * backwards (Narayanan et al. 2021). With m parts a stage they run in groups of p microbatches:
 * part 0 of all p, then part 1 of the same, ... The first stage of p has min(p, microbatches) in
 * flight, or p m + p - 1 parts: 1 + (p-1)/(p m) times as much. */
#include "parallel/parallel.h"

/* Forwards before the first backward. */
static int64_t n_ahead(const mt_parallel *h)
{
    int64_t after = h->pipeline - 1 - h->stage, p = h->pipeline, m = h->interleave;
    int64_t ahead = m == 1 ? after : 2 * after + (m - 1) * p;
    int64_t all = h->microbatches * m - 1;
    return (ahead < all ? ahead : all) + 1;
}

mti_schedule mti_schedule_of(const mt_parallel *h)
{
    return (mti_schedule){.pipeline = h->pipeline,
                          .n_parts = h->interleave,
                          .ahead = n_ahead(h),
                          .run = h->microbatches};
}

int64_t mti_schedule_period(const mti_schedule *s)
{
    return s->n_parts == 1 ? 1 : s->pipeline * s->n_parts;
}

mti_turn mti_schedule_at(const mti_schedule *s, int64_t k, bool backward)
{
    int64_t p = s->pipeline, m = s->n_parts;
    if (m == 1) return (mti_turn){k, 0};
    int64_t part = k % (p * m) / p;
    return (mti_turn){k / (p * m) * p + k % p, backward ? m - 1 - part : part};
}

int64_t mti_schedule_return(const mti_schedule *s, int64_t k)
{
    int64_t unit = mti_schedule_period(s), p = s->pipeline, in_unit = k % unit;
    if (unit == 1) return k;
    return k - in_unit + (s->n_parts - 1 - in_unit / p) * p + in_unit % p;
}
