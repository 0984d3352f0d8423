/* shared.cc: shared memory: poisoned, guarded, and filled by asynchronous copies. */
#include "cudasim/simulator.h"

namespace cudasim
{

static constexpr unsigned char guard = 0xa5;

void enter_shared(void *p, size_t n_bytes, size_t n_guard, const char *name, uint64_t *epoch)
{
    if (*epoch == sim.epoch) return;
    *epoch = sim.epoch;
    memset(p, poison, n_bytes);
    memset((unsigned char *)p + n_bytes, guard, n_guard);
    sim.shared.push_back({(unsigned char *)p, n_bytes, n_guard, name});
}

unsigned char *dynamic_shared() { return sim.dynamic; }

bool guards_hold()
{
    size_t n_bytes = sim.n_dynamic;
    for (const shared_array &a : sim.shared) n_bytes += a.n_bytes;
    if (n_bytes > most_shared()) {
        snprintf(sim.text, sizeof sim.text,
                 "kernel %s: %zu bytes of shared memory, dynamic or not; "
                 "a block may have %zu",
                 sim.name, n_bytes, most_shared());
        return false;
    }
    for (const shared_array &a : sim.shared)
        for (size_t i = 0; i < a.n_guard; i++)
            if (a.p[a.n_bytes + i] != guard) {
                snprintf(
                    sim.text, sizeof sim.text,
                    "kernel %s, block (%u,%u,%u): written past the end of shared %s, %zu bytes",
                    sim.name, blockIdx.x, blockIdx.y, blockIdx.z, a.name, a.n_bytes);
                return false;
            }
    return true;
}

void copy_async(void *shared, const void *global, size_t n_bytes, size_t n_read, place here)
{
    if ((uintptr_t)shared % 16 || (n_read && (uintptr_t)global % 16))
        fault(here, "cp.async of 16 bytes at an address that is no multiple of 16");
    thread *t = &sim.threads[sim.current];
    memset(shared, poison, n_bytes);
    t->copies.push_back({shared, global, n_bytes, n_read, t->n_groups});
}

void copy_commit() { sim.threads[sim.current].n_groups++; }

void copy_wait(int n_left)
{
    thread *t = &sim.threads[sim.current];
    size_t kept = 0;
    for (const async_copy &c : t->copies) {
        if (c.group >= t->n_groups - n_left) {
            t->copies[kept++] = c;
            continue;
        }
        memset(c.to, 0, c.n_bytes);
        if (c.n_read) memcpy(c.to, c.from, c.n_read);
    }
    t->copies.resize(kept);
}

} // namespace cudasim
