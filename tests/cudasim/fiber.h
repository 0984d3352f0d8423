/* fiber.h: stacks of their own, and the switch from one to another. */
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include <stddef.h>

namespace cudasim
{

struct fiber {
    void *context;    /* saved stack pointer, or a ucontext_t */
    void *fake_stack; /* AddressSanitizer's */
    bool is_host;     /* the stack of a host thread itself, not one of ours */
    char *stack;
    size_t n_stack;
};

/* A fiber that will run entry(), which never returns; false where memory ran out. */
bool fiber_create(fiber *f, size_t index, void (*entry)());
void fiber_destroy(fiber *f);
/* To be called first thing in entry. */
void fiber_started();
/* Until some fiber switches back to `from`. */
void fiber_switch(fiber *from, fiber *to);
/* Makes a fiber that was abandoned in the middle start anew. */
void fiber_restart(fiber *f, void (*entry)());

} // namespace cudasim

#endif
