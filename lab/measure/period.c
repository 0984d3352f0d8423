/* period.c: the allocator's state from microbatch to microbatch. */
#include "measure/period.h"

static void begin_step(mti_repeat *r)
{
    r->begins.n = r->anchor.n = 0;
    r->at = 0, r->seen = 0;
    /* What is in flight moves through as many places. */
    r->span = (r->ahead / r->unit + 1) * r->unit;
}

/* Before each forward and each backward. */
static bool begin_turn(mti_repeat *r)
{
    return MTI_PUSH(&r->begins, mti_pool_newest(r->stage->device->pool));
}

/* The last turn that began before the block was made; -1: none. */
static int64_t turn_of(const mti_repeat *r, uint64_t serial)
{
    size_t low = 0, high = r->begins.n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (r->begins.at[mid] < serial)
            low = mid + 1;
        else
            high = mid;
    }
    return (int64_t)low - 1;
}

static mti_repeat_block block_of(const mti_repeat *r, const mti_cell_info *cell)
{
    mti_repeat_block b = {.cell = *cell, .turn = cell->serial ? turn_of(r, cell->serial) : -1};
    const int64_t after = b.turn - r->ahead; /* backward and forward in turns */
    if (b.turn >= 0) b.nth = (int64_t)(cell->serial - r->begins.at[b.turn]);
    b.backward = b.turn >= 0 && after >= 0 && after % 2 == 0;
    if (after >= 0) b.turn = b.backward ? after / 2 : r->ahead + after / 2;
    return b;
}

typedef struct look {
    mti_repeat *r;
    int64_t shift; /* turns since the anchor */
    size_t n;      /* blocks seen */
    bool ok;       /* all are the anchor's, or have been written there */
} look;

static bool is_same(void *user, const mti_cell_info *cell)
{
    look *l = user;
    const mti_repeat_block *a = &l->r->anchor.at[l->n];
    if (l->n++ == l->r->anchor.n) return l->ok = false;
    const mti_cell_info *was = &a->cell;
    l->ok = cell->place == was->place && cell->span == was->span && cell->mapped == was->mapped &&
            !cell->serial == !was->serial;
    if (!l->ok || cell->serial == was->serial) return l->ok;
    const mti_repeat_block b = block_of(l->r, cell);
    return l->ok = a->turn >= 0 && b.turn - a->turn == l->shift && b.backward == a->backward &&
                   b.nth == a->nth;
}

static bool write_down(void *user, const mti_cell_info *cell)
{
    look *l = user;
    return l->ok = MTI_PUSH(&l->r->anchor, block_of(l->r, cell));
}

/* After `done` backwards, each followed by a forward: *period = how many of them ago all was as it
 * is now; 0: not known. */
static bool find_period(mti_repeat *r, int64_t done, int64_t *period)
{
    look l = {.r = r, .shift = done - r->at, .ok = true};
    *period = 0;
    /* The first gradients have nothing to be added to. */
    if (done % r->unit || done < 2 * r->unit) return true;
    /* Looking takes no longer than the step does. */
    const uint64_t made = r->begins.at[r->begins.n - 1] - r->begins.at[0];
    if (r->seen > 4 * made) return true;
    if (r->at) mti_pool_visit_cells(r->stage->device->pool, is_same, &l);
    r->seen += l.n;
    if (r->at && l.ok && l.n == r->anchor.n) return *period = l.shift, true;
    if (r->at && l.shift < r->span) return true;
    if (r->at) r->span *= 2;
    r->at = done, r->anchor.n = 0, l.ok = true;
    mti_pool_visit_cells(r->stage->device->pool, write_down, &l);
    return l.ok;
}

/* ---- observing a stage ---- */

static bool leave_out(mti_repeat *r, mti_step *step, int64_t done)
{
    int64_t period = 0;
    if (done == 0 || step->next >= step->n) return true;
    if (!find_period(r, done, &period)) return false;
    if (period) mti_step_leave_out(step, period);
    return true;
}

static bool observe(void *user, mti_moment moment, mti_step *step, int64_t k)
{
    mti_repeat *r = user;
    const bool forward = moment == MTI_BEFORE_FORWARD, backward = moment == MTI_BEFORE_BACKWARD;
    if (forward && k == 0) begin_step(r);
    return (!backward || leave_out(r, step, k)) && ((!forward && !backward) || begin_turn(r));
}

void mti_repeat_observe(mti_repeat *r, mti_stage *stage)
{
    r->stage = stage;
    r->ahead = stage->schedule.ahead;
    r->unit = mti_schedule_period(&stage->schedule);
    mti_stage_observe(stage, observe, r);
}

void mti_repeat_free(mti_repeat *r)
{
    mti_free(r->begins.at);
    mti_free(r->anchor.at);
    *r = (mti_repeat){0};
}
