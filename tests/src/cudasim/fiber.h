/* fiber.h: threads of execution with their own stacks, and the switch between them. */
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include <stddef.h>

namespace cudasim
{

struct fiber {
    void *context;    /* saved stack pointer, or a ucontext_t */
    void *fake_stack; /* AddressSanitizer's */
    bool is_host;     /* it is a host thread's own stack */
    char *stack;
    size_t n_stack;
};

/* Makes a fiber that will run entry(), which never returns; false if there is no memory. */
bool fiber_create(fiber *f, size_t index, void (*entry)());
void fiber_destroy(fiber *f);
/* entry must call it first. */
void fiber_started();
/* Returns when some fiber switches back to `from`. */
void fiber_switch(fiber *from, fiber *to);
/* Makes an abandoned fiber start again. */
void fiber_restart(fiber *f, void (*entry)());

} // namespace cudasim

#endif
