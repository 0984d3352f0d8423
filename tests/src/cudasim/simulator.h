/* simulator.h: the state of the running grid, shared by the files of the simulator. */
#ifndef CUDASIM_SIMULATOR_H
#define CUDASIM_SIMULATOR_H

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>
#include "cudasim/cudasim.h"
#include "cudasim/fiber.h"

namespace cudasim
{

enum struct state { unstarted, ready, waiting, done };

struct async_copy {
    void *to;
    const void *from;
    size_t n_bytes, n_read;
    int group;
};

struct thread {
    state at;
    fiber *on; /* its stack, once it has started */
    collective waits_for;
    place where;
    std::vector<async_copy> copies;
    int n_groups; /* committed so far */
};

/* Lanes that have arrived, listed by the lowest lane of their mask: disjoint groups meet
 * separately. Meetings use the two sets of slots alternately: a third begins only when all lanes
 * have left the first. */
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

static constexpr unsigned char poison = 0xff;
static constexpr unsigned max_threads = 1024;

enum struct order { forward, reverse, random };

struct simulator {
    /* the running grid */
    const char *name;
    const void *kernel;
    kernel_call call;
    const void *const *arguments;
    bool failed;
    uint64_t epoch; /* increases with every block */
    /* the running block */
    unsigned n_threads, n_done, n_at_barrier;
    place barrier;    /* where the threads wait */
    unsigned current; /* the running thread */
    thread threads[max_threads];
    warp *warps;
    std::vector<unsigned> warp_turns;   /* the order of warps */
    std::vector<unsigned> thread_turns; /* the order of threads, warp by warp */
    size_t cursor, end; /* in thread_turns: the running thread, and its warp's end */
    bool breaks;        /* warps may be interrupted before they reach a barrier */
    std::vector<shared_array> shared;
    unsigned char *dynamic; /* exactly as long as requested */
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
    std::string without_file;    /* the barrier that is skipped, if any */
    int without_line;
    std::map<const void *, size_t> dynamic_limits;
    bool layout_only; /* launches and copies are recorded, not run */
    std::vector<cudasim_launch> recorded;
};
extern simulator sim;

/* Warp w has the threads from 32 w on. */
static inline size_t end_of_warp(unsigned w) { return std::min(sim.n_threads, (w + 1) * 32); }

const char *collective_name(collective c);

/* ---- stream.cc ---- */

/* With CUDASIM_TURNS, lets another host thread run first. */
void take_turns();
/* Runs work in the stream: at once, after what the stream has to do first, or later. An
 * error that comes late is the result of a later wait. */
cudaError_t submit(cudaStream_t stream, std::function<cudaError_t()> work);
void pass_time(double ms); /* by the clock that events read */

/* Work that starts when the stream has come to it, and is over when `is_over`, which is asked again
 * and again, says so: the stream waits for it, and no host thread does but one that waits for the
 * stream. It is asked by one host thread at a time. */
cudaError_t submit_awaited(cudaStream_t stream, std::function<bool()> is_over);

/* ---- runtime.cc ---- */

/* What a call returns, and the next cudaGetLastError finds, if it is an error. Of a broken device
 * it is one. */
cudaError_t keep(cudaError_t status);
/* Begins a call: an error if it must fail. */
cudaError_t enter();
cudaError_t break_device(cudaError_t status);
void mend_device();
static inline bool is_broken() { return keep(cudaSuccess) != cudaSuccess; }
size_t most_shared();        /* bytes of a block of the simulated GPU */
bool copies_pageable_late(); /* CUDASIM_HMM=1 */

/* ---- order.cc: the order of threads ---- */

uint64_t draw();
void shuffle_turns(unsigned *turns, size_t n);
void set_turns(std::vector<unsigned> &turns, unsigned n);
void set_thread_turns(); /* of a block: a warp's threads stay together */

/* ---- block.cc: threads ---- */

bool run_block(); /* the block blockIdx */
/* The running thread waits until its state is ready again; the others continue. */
void wait_here(collective what, place here);
void switch_to(fiber *to);
/* Takes back the stacks of threads that a failed launch abandoned. */
void reclaim_fibers();

/* ---- shared.cc ---- */

bool guards_hold(); /* if not, sim.text says which shared array was overrun */

} // namespace cudasim

#endif
