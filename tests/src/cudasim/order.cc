/* order.cc: the order in which blocks, warps and threads run. */
#include <stdlib.h>
#include "cudasim/simulator.h"

namespace cudasim
{

uint64_t draw()
{
    sim.random += 0x9e3779b97f4a7c15u;
    uint64_t z = sim.random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void shuffle_turns(unsigned *turns, size_t n)
{
    for (size_t i = n; i > 1; i--) std::swap(turns[i - 1], turns[draw() % i]);
}

void set_turns(std::vector<unsigned> &turns, unsigned n)
{
    turns.resize(n);
    for (unsigned i = 0; i < n; i++) turns[i] = sim.schedule == order::reverse ? n - 1 - i : i;
    if (sim.schedule == order::random) shuffle_turns(turns.data(), n);
}

void set_thread_turns()
{
    sim.thread_turns.resize(sim.n_threads);
    for (unsigned w = 0; w * 32 < sim.n_threads; w++) {
        unsigned first = w * 32, last = (unsigned)end_of_warp(w) - 1;
        for (unsigned i = first; i <= last; i++)
            sim.thread_turns[i] = sim.schedule == order::reverse ? first + last - i : i;
        if (sim.schedule == order::random)
            shuffle_turns(&sim.thread_turns[first], last - first + 1);
    }
}

} // namespace cudasim

using namespace cudasim;

bool cudasim_set_schedule(const char *text)
{
    sim.environment_read = true;
    if (!strcmp(text, "forward"))
        sim.schedule = order::forward;
    else if (!strcmp(text, "reverse"))
        sim.schedule = order::reverse;
    else {
        char *end;
        sim.seed = strtoull(text, &end, 10);
        if (end == text || *end) return false;
        sim.schedule = order::random;
    }
    return true;
}

bool cudasim_same_under_all_schedules(bool (*work)(void *state), void *state, const void *result,
                                      size_t n_bytes, const char **differs)
{
    static const char *const schedules[] = {"forward", "reverse", "1", "2", "3"};
    order before = sim.schedule;
    uint64_t seed_before = sim.seed;
    std::vector<unsigned char> first;
    bool same = true;
    for (const char *schedule : schedules) {
        cudasim_set_schedule(schedule);
        const unsigned char *bytes = (const unsigned char *)result;
        same = work(state);
        if (same && first.empty())
            first.assign(bytes, bytes + n_bytes);
        else if (same)
            same = !memcmp(first.data(), bytes, n_bytes);
        if (!same) {
            *differs = schedule;
            break;
        }
    }
    sim.schedule = before;
    sim.seed = seed_before;
    return same;
}
