/* collective.cc: a block's barrier and the collectives of a warp. */
#include "cudasim/simulator.h"

namespace cudasim
{

/* The last part of a path. */
static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_removed(place here)
{
    return here.line == sim.without_line && sim.without_file == name_of(here.file);
}

static void remember_barrier(place here)
{
    for (const place &p : sim.barriers)
        if (p.line == here.line && !strcmp(p.file, here.file)) return;
    sim.barriers.push_back(here);
}

void barrier(place here)
{
    if (is_removed(here)) return;
    for (unsigned i = 0; sim.n_done && i < sim.n_threads; i++)
        if (sim.threads[i].at == state::done) fault(here, "thread %u ended before the barrier", i);
    if (!sim.n_at_barrier) {
        sim.barrier = here;
        remember_barrier(here);
    }
    if (sim.barrier.line != here.line || sim.barrier.file != here.file)
        fault(here, "other threads wait at another barrier (%s:%d) than this one", sim.barrier.file,
              sim.barrier.line);
    if (++sim.n_at_barrier < sim.n_threads) {
        wait_here(collective::barrier, here);
        return;
    }
    sim.n_at_barrier = 0;
    for (unsigned i = 0; i < sim.n_threads; i++)
        if (i != sim.current) sim.threads[i].at = state::ready;
}

int lane() { return (int)(sim.current % 32); }

static meeting *arrive(collective what, unsigned mask, place here, const slot &mine)
{
    unsigned self = 1u << lane();
    if (!(mask & self))
        fault(here, "%s without its own lane in the mask %08x", collective_name(what), mask);
    meeting *m = &sim.warps[sim.current / 32].of[__builtin_ctz(mask)];
    if (!m->arrived) m->what = what, m->mask = mask, m->where = here;
    if (m->what != what || m->mask != mask || m->where.line != here.line ||
        m->where.file != here.file)
        fault(here, "%s with mask %08x while other lanes wait at %s with mask %08x (%s:%d)",
              collective_name(what), mask, collective_name(m->what), m->mask, m->where.file,
              m->where.line);
    m->slots[m->side][lane()] = mine;
    m->arrived |= self;
    return m;
}

/* All lanes have arrived: they may continue, and the next meeting uses the other slots. */
static void release(meeting *m)
{
    unsigned first = sim.current / 32 * 32;
    m->arrived = 0;
    m->side ^= 1;
    for (unsigned lanes = m->mask & ~(1u << lane()); lanes; lanes &= lanes - 1)
        sim.threads[first + (unsigned)__builtin_ctz(lanes)].at = state::ready;
}

void sync_warp(unsigned mask, place here)
{
    if (is_removed(here)) return;
    remember_barrier(here);
    exchange(collective::syncwarp, mask, here, slot{});
}

const slot *exchange(collective what, unsigned mask, place here, const slot &mine)
{
    meeting *m = arrive(what, mask, here, mine);
    const slot *slots = m->slots[m->side];
    if (m->arrived != mask)
        wait_here(what, here);
    else
        release(m);
    return slots;
}

void meet(collective what, unsigned mask, place here, slot *mine,
          void (*finish)(slot *slots, unsigned mask))
{
    meeting *m = arrive(what, mask, here, *mine);
    slot *slots = m->slots[m->side];
    if (m->arrived != mask) {
        wait_here(what, here);
    } else {
        finish(slots, mask);
        if (sim.failed) fault(here, "%s", sim.text);
        release(m);
    }
    *mine = slots[lane()];
}

} // namespace cudasim

using namespace cudasim;

void cudasim_without_barrier(const char *file, int line)
{
    sim.without_file = file ? file : "";
    sim.without_line = file ? line : 0;
}

size_t cudasim_barriers(const char **files, int *lines, size_t n)
{
    for (size_t i = 0; i < n && i < sim.barriers.size(); i++)
        files[i] = name_of(sim.barriers[i].file), lines[i] = sim.barriers[i].line;
    return sim.barriers.size();
}
