/* cudasim.cc: runs grids, one block after the other, the threads of a block as fibers. */
#include <stdarg.h>
#include <stdlib.h>
#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>
#include "cudasim/cudasim.h"
#include "cudasim/fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cudasim
{

static const char *collective_name(collective c)
{
    static const char *const names[] = {"__syncthreads", "__syncwarp", "a shuffle",
                                        "a ballot",      "ldmatrix",   "mma"};
    return names[(int)c];
}

enum struct state { unstarted, ready, waiting, done };

struct async_copy {
    void *to;
    const void *from;
    size_t n_bytes, n_read;
    int group;
};

struct thread {
    state at;
    fiber *on; /* the stack it is halfway on */
    collective waits_for;
    place where;
    std::vector<async_copy> copies;
    int n_groups; /* committed so far */
};

/* Lanes that have arrived, by the lowest lane of their mask: disjoint groups meet apart. Meetings
 * take the two sets of slots in turns: a third begins only when all have left the first. */
struct meeting {
    unsigned mask, arrived;
    collective what;
    place where;
    unsigned side;
    slot slots[2][32];
};

struct warp {
    meeting of[32];
};

struct shared_array {
    unsigned char *p;
    size_t n_bytes, n_guard;
    const char *name;
};

static constexpr unsigned char poison = 0xff, guard = 0xa5;
static constexpr unsigned max_threads = 1024;
static constexpr size_t max_dynamic_bytes = 227 << 10, default_dynamic_bytes = 48 << 10;

enum struct order { forward, reverse, random };

static struct simulator {
    /* the grid that runs */
    const char *name;
    void (*call)(const void *);
    const void *arguments;
    bool failed;
    uint64_t epoch; /* one per block ever run */
    /* the block that runs */
    unsigned n_threads, n_done, n_at_barrier;
    place barrier;    /* where they wait */
    unsigned current; /* the thread that runs */
    thread threads[max_threads];
    warp *warps;
    std::vector<unsigned> warp_turns;   /* orders */
    std::vector<unsigned> thread_turns; /* one warp's threads after the other's */
    size_t cursor, end;                 /* in thread_turns: the thread that runs; its warp's end */
    bool breaks;                        /* warps may be interrupted before they reach a barrier */
    std::vector<shared_array> shared;
    unsigned char *dynamic; /* exactly as long as was asked for */
    size_t n_dynamic;
    /* stacks */
    fiber host;
    fiber fibers[max_threads];
    unsigned n_fibers;
    std::vector<fiber *> idle;
    fiber *running;
    /* choices and counts */
    order schedule;
    uint64_t seed, random;
    bool environment_read;
    char text[512];
    uint64_t n_launches, n_all_threads;
    std::vector<place> barriers; /* met so far, each once */
    std::string without_file;    /* the barrier that is taken away, if any */
    int without_line;
    std::map<const void *, size_t> dynamic_limits;
} sim;

static uint64_t draw()
{
    sim.random += 0x9e3779b97f4a7c15u;
    uint64_t z = sim.random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void shuffle_turns(unsigned *turns, size_t n)
{
    for (size_t i = n; i > 1; i--) std::swap(turns[i - 1], turns[draw() % i]);
}

static void set_turns(std::vector<unsigned> &turns, unsigned n)
{
    turns.resize(n);
    for (unsigned i = 0; i < n; i++) turns[i] = sim.schedule == order::reverse ? n - 1 - i : i;
    if (sim.schedule == order::random) shuffle_turns(turns.data(), n);
}

/* The threads of warp w have places 32 w and on. */
static size_t end_of_warp(unsigned w) { return std::min(sim.n_threads, (w + 1) * 32); }

static void set_thread_turns()
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

/* ---- threads ---- */

static void set_indices(unsigned t)
{
    sim.current = t;
    threadIdx.x = t % blockDim.x;
    threadIdx.y = t / blockDim.x % blockDim.y;
    threadIdx.z = t / blockDim.x / blockDim.y;
}

static void fiber_main();

/* What a thread that has not begun runs on. */
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

static void switch_to(fiber *to)
{
    fiber *self = sim.running;
    sim.running = to;
    fiber_switch(self, to);
}

/* The place in turns, from `at` to the warp's end, of the next thread that can go on; else the end.
 */
static size_t next_that_can(size_t at)
{
    while (at < sim.end) {
        state is = sim.threads[sim.thread_turns[at]].at;
        if (is == state::unstarted || is == state::ready) break;
        at++;
    }
    return at;
}

/* Lets the thread at the cursor go on. */
static void resume()
{
    unsigned index = sim.thread_turns[sim.cursor];
    thread *t = &sim.threads[index];
    fiber *f = t->at == state::unstarted ? take_fiber() : t->on;
    t->at = state::ready;
    set_indices(index);
    switch_to(f);
}

/* The running thread can go no further: the next of its warp does, or else the host. */
static void pass_on()
{
    sim.cursor = next_that_can(sim.cursor + 1);
    if (sim.cursor < sim.end)
        resume();
    else
        switch_to(&sim.host);
}

/* What every fiber runs: threads from their beginning. One that met no collective leaves the stack
 * to the next, so that kernels without any run as a plain loop. */
static void fiber_main()
{
    fiber_started();
    for (;;) {
        sim.call(sim.arguments);
        sim.threads[sim.current].at = state::done;
        sim.n_done++;
        size_t next = sim.cursor + 1;
        if (next < sim.end && sim.threads[sim.thread_turns[next]].at == state::unstarted) {
            sim.cursor = next;
            set_indices(sim.thread_turns[next]);
            continue;
        }
        sim.idle.push_back(sim.running);
        pass_on();
    }
}

static void wait_here(collective what, place here)
{
    thread *t = &sim.threads[sim.current];
    t->at = state::waiting;
    t->waits_for = what;
    t->where = here;
    t->on = sim.running;
    pass_on();
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
    switch_to(&sim.host); /* and never back: the launch has ended */
    abort();
}

/* ---- barriers and warps ---- */

/* The last part of a path. */
static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_taken_away(place here)
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
    if (is_taken_away(here)) return;
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

/* All have arrived: they may go on, and the next meeting takes the other slots. */
static void release(meeting *m)
{
    unsigned first = sim.current / 32 * 32;
    m->arrived = 0;
    m->side ^= 1;
    for (unsigned lanes = m->mask & ~(1u << lane()); lanes; lanes &= lanes - 1)
        sim.threads[first + (unsigned)__builtin_ctz(lanes)].at = state::ready;
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

/* ---- shared memory ---- */

void enter_shared(void *p, size_t n_bytes, size_t n_guard, const char *name, uint64_t *epoch)
{
    if (*epoch == sim.epoch) return;
    *epoch = sim.epoch;
    memset(p, poison, n_bytes);
    memset((unsigned char *)p + n_bytes, guard, n_guard);
    sim.shared.push_back({(unsigned char *)p, n_bytes, n_guard, name});
}

unsigned char *dynamic_shared() { return sim.dynamic; }

static bool guards_hold()
{
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

/* ---- grids ---- */

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

/* Runs a warp as far as it goes without the others: to a barrier or to its end. A random order
 * does so in half of the blocks; in the others a warp may be interrupted wherever its lanes meet.
 * false if it could not move. */
static bool run_warp(unsigned w)
{
    bool moved = false;
    size_t first = w * 32;
    for (;;) {
        sim.end = end_of_warp(w);
        sim.cursor = next_that_can(first);
        if (sim.cursor == sim.end) return moved;
        moved = true;
        resume();
        if (sim.failed) return true;
        if (sim.schedule == order::random) shuffle_turns(&sim.thread_turns[first], sim.end - first);
        if (sim.breaks && draw() % 2) return true;
    }
}

static bool run_block()
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

/* Stacks that a failed launch left in the middle of something. */
static void reclaim_fibers()
{
    sim.idle.clear();
    for (unsigned i = 0; i < sim.n_fibers; i++) {
        fiber_restart(&sim.fibers[i], fiber_main);
        sim.idle.push_back(&sim.fibers[i]);
    }
}

static bool run_grid(dim3 grid)
{
    uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    std::vector<unsigned> blocks;
    if (sim.schedule == order::random && n_blocks < 1u << 20) {
        set_turns(blocks, (unsigned)n_blocks);
    }
    for (uint64_t i = 0; i < n_blocks; i++) {
        uint64_t b = !blocks.empty()                  ? blocks[i]
                     : sim.schedule == order::reverse ? n_blocks - 1 - i
                                                      : i;
        blockIdx.x = (unsigned)(b % grid.x);
        blockIdx.y = (unsigned)(b / grid.x % grid.y);
        blockIdx.z = (unsigned)(b / grid.x / grid.y);
        if (!run_block()) return false;
    }
    return true;
}

static cudaError_t refuse(const char *name, const char *why)
{
    snprintf(sim.text, sizeof sim.text, "kernel %s: %s", name, why);
    fprintf(stderr, "cudasim: %s\n", sim.text);
    return cudaErrorInvalidConfiguration;
}

static bool read_environment()
{
    const char *schedule = getenv("CUDASIM_SCHEDULE"), *place = getenv("CUDASIM_WITHOUT_BARRIER");
    if (schedule && !cudasim_set_schedule(schedule)) return false;
    sim.environment_read = true;
    const char *colon = place ? strchr(place, ':') : nullptr;
    if (colon) cudasim_without_barrier(std::string(place, colon).c_str(), atoi(colon + 1));
    return !place || colon;
}

/* One grid at a time, whichever host thread asks. */
static std::mutex one_grid;

cudaError_t run(const char *name, const void *kernel, dim3 grid, dim3 block, size_t n_shared,
                void (*call)(const void *arguments), const void *arguments)
{
    std::lock_guard<std::mutex> turn(one_grid);
    uint64_t n_threads = (uint64_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !n_threads) return refuse(name, "an empty grid or block");
    if (n_threads > max_threads || block.z > 64)
        return refuse(name, "more threads than a block may have");
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return refuse(name, "more blocks than a grid may have");
    auto limit = sim.dynamic_limits.find(kernel);
    if (n_shared > (limit == sim.dynamic_limits.end() ? default_dynamic_bytes : limit->second))
        return refuse(name, "more dynamic shared memory than was asked for");
    if (!sim.environment_read && !read_environment())
        return refuse(name, "CUDASIM_SCHEDULE or CUDASIM_WITHOUT_BARRIER is none");
    if (!sim.warps) sim.warps = (warp *)calloc(max_threads / 32, sizeof *sim.warps);
    void *dynamic = nullptr;
    if (!sim.warps || posix_memalign(&dynamic, 128, n_shared ? n_shared : 1))
        return cudaErrorMemoryAllocation;

    sim.name = name, sim.call = call, sim.arguments = arguments;
    sim.failed = false;
    sim.host.is_host = true;
    sim.running = &sim.host;
    sim.random = sim.seed;
    sim.n_threads = (unsigned)n_threads;
    sim.dynamic = (unsigned char *)dynamic;
    gridDim = grid, blockDim = block;
    sim.n_launches++;
    sim.n_all_threads += n_threads * grid.x * grid.y * grid.z;
    sim.n_dynamic = n_shared;
    bool ok = run_grid(grid);
    free(dynamic);
    if (ok) return cudaSuccess;
    reclaim_fibers();
    fprintf(stderr, "cudasim: %s\n", sim.text);
    return cudaErrorLaunchFailure;
}

} // namespace cudasim

using namespace cudasim;

cudaError_t cudasim_set_attribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > max_dynamic_bytes) return cudaErrorInvalidValue;
    sim.dynamic_limits[kernel] = (size_t)value;
    return cudaSuccess;
}

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

const char *cudasim_take_fault(void)
{
    static char taken[sizeof sim.text];
    memcpy(taken, sim.text, sizeof taken);
    sim.text[0] = 0;
    return taken;
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

void cudasim_counts(uint64_t *n_launches, uint64_t *n_threads)
{
    *n_launches = sim.n_launches;
    *n_threads = sim.n_all_threads;
}
