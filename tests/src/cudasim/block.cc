/* block.cc: a block's threads, each one a fiber, and the order in which they run. */
#include <stdarg.h>
#include <stdlib.h>
#include "cudasim/simulator.h"

namespace cudasim
{

const char *collective_name(collective c)
{
    static const char *const names[] = {"__syncthreads", "__syncwarp", "a shuffle",
                                        "a ballot",      "ldmatrix",   "mma"};
    return names[(int)c];
}

static void set_indices(unsigned t)
{
    sim.current = t;
    threadIdx.x = t % blockDim.x;
    threadIdx.y = t / blockDim.x % blockDim.y;
    threadIdx.z = t / blockDim.x / blockDim.y;
}

static void fiber_main();

/* The fiber for a thread that has not started. */
static fiber *take_fiber()
{
    if (sim.idle.empty()) {
        fiber *made = &sim.fibers[sim.n_fibers];
        if (!fiber_create(made, sim.n_fibers, fiber_main)) {
            fprintf(stderr, "cudasim: no memory for the stack of a thread\n");
            abort();
        }
        sim.n_fibers++;
        return made;
    }
    fiber *f = sim.idle.back();
    sim.idle.pop_back();
    return f;
}

void switch_to(fiber *to)
{
    fiber *self = sim.running;
    sim.running = to;
    fiber_switch(self, to);
}

/* The index in thread_turns of the next thread from `at` on that can continue, within the warp; or
 * the warp's end. */
static size_t next_runnable(size_t at)
{
    while (at < sim.end) {
        state is = sim.threads[sim.thread_turns[at]].at;
        if (is == state::unstarted || is == state::ready) break;
        at++;
    }
    return at;
}

/* Continues the thread at the cursor. */
static void resume()
{
    unsigned index = sim.thread_turns[sim.cursor];
    thread *t = &sim.threads[index];
    fiber *f = t->at == state::unstarted ? take_fiber() : t->on;
    t->at = state::ready;
    set_indices(index);
    switch_to(f);
}

/* The running thread must wait: continues the next one of its warp, or the host if there is none.
 */
static void run_next()
{
    sim.cursor = next_runnable(sim.cursor + 1);
    if (sim.cursor < sim.end)
        resume();
    else
        switch_to(&sim.host);
}

/* What every fiber runs: threads from their start. A thread that has met no collective leaves its
 * stack to the next one, so a kernel without collectives runs as a plain loop. */
static void fiber_main()
{
    fiber_started();
    for (;;) {
        sim.call(sim.kernel, sim.arguments);
        sim.threads[sim.current].at = state::done;
        sim.n_done++;
        size_t next = sim.cursor + 1;
        if (next < sim.end && sim.threads[sim.thread_turns[next]].at == state::unstarted) {
            sim.cursor = next;
            set_indices(sim.thread_turns[next]);
            continue;
        }
        sim.idle.push_back(sim.running);
        run_next();
    }
}

void wait_here(collective what, place here)
{
    thread *t = &sim.threads[sim.current];
    t->at = state::waiting;
    t->waits_for = what;
    t->where = here;
    t->on = sim.running;
    run_next();
}

void fault(place here, const char *format, ...)
{
    char why[320];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    snprintf(sim.text, sizeof sim.text, "kernel %s, block (%u,%u,%u), thread %u: %s at %s:%d",
             sim.name, blockIdx.x, blockIdx.y, blockIdx.z, sim.current, why, here.file, here.line);
    sim.failed = true;
    switch_to(&sim.host); /* it never returns: the launch has ended */
    abort();
}

/* ---- the block ---- */

static void report_deadlock()
{
    unsigned barrier_thread = max_threads, other = max_threads;
    for (unsigned i = 0; i < sim.n_threads; i++) {
        const thread *t = &sim.threads[i];
        if (t->at == state::waiting && barrier_thread == max_threads)
            barrier_thread = i;
        else if (barrier_thread != max_threads && other == max_threads &&
                 (t->at == state::done || t->waits_for != sim.threads[barrier_thread].waits_for ||
                  t->where.line != sim.threads[barrier_thread].where.line))
            other = i;
        if (t->at == state::done && other == max_threads) other = i;
    }
    const thread *t = &sim.threads[barrier_thread];
    int n = snprintf(sim.text, sizeof sim.text,
                     "kernel %s, block (%u,%u,%u): thread %u waits for ever in %s at %s:%d",
                     sim.name, blockIdx.x, blockIdx.y, blockIdx.z, barrier_thread,
                     collective_name(t->waits_for), t->where.file, t->where.line);
    size_t left = sizeof sim.text - (size_t)n;
    if (other == max_threads)
        snprintf(sim.text + n, left, ": the mask names lanes that the block has not");
    else if (sim.threads[other].at == state::done)
        snprintf(sim.text + n, left, ": thread %u has ended", other);
    else
        snprintf(sim.text + n, left, ": thread %u waits in %s at %s:%d", other,
                 collective_name(sim.threads[other].waits_for), sim.threads[other].where.file,
                 sim.threads[other].where.line);
}

/* Runs a warp as far as it can go without the others: to a barrier or to its end. A random order
 * does so in half of the blocks; in the other half a warp may be interrupted wherever its lanes
 * meet. Returns false if the warp could not continue. */
static bool run_warp(unsigned w)
{
    bool moved = false;
    size_t first = w * 32;
    for (;;) {
        sim.end = end_of_warp(w);
        sim.cursor = next_runnable(first);
        if (sim.cursor == sim.end) return moved;
        moved = true;
        resume();
        if (sim.failed) return true;
        if (sim.schedule == order::random) shuffle_turns(&sim.thread_turns[first], sim.end - first);
        if (sim.breaks && draw() % 2) return true;
    }
}

bool run_block()
{
    sim.epoch++;
    sim.n_done = sim.n_at_barrier = 0;
    sim.shared.clear();
    memset(sim.dynamic, poison, sim.n_dynamic);
    for (unsigned i = 0; i < sim.n_threads; i++) {
        sim.threads[i].at = state::unstarted;
        sim.threads[i].copies.clear();
        sim.threads[i].n_groups = 0;
    }
    for (unsigned i = 0; i < (sim.n_threads + 31) / 32; i++)
        for (meeting &m : sim.warps[i].of) m.arrived = m.side = 0;
    unsigned n_warps = (sim.n_threads + 31) / 32;
    set_turns(sim.warp_turns, n_warps);
    set_thread_turns();
    sim.breaks = sim.schedule == order::random && draw() % 2;
    while (sim.n_done < sim.n_threads) {
        bool moved = false;
        for (unsigned w : sim.warp_turns) {
            moved |= run_warp(w);
            if (sim.failed) return false;
        }
        if (!moved) {
            report_deadlock();
            return false;
        }
        if (sim.schedule == order::random) shuffle_turns(sim.warp_turns.data(), n_warps);
    }
    return guards_hold();
}

void reclaim_fibers()
{
    sim.idle.clear();
    for (unsigned i = 0; i < sim.n_fibers; i++) {
        fiber_restart(&sim.fibers[i], fiber_main);
        sim.idle.push_back(&sim.fibers[i]);
    }
}

} // namespace cudasim
