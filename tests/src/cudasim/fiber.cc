/* fiber.cc: see fiber.h. On x86-64 the switch is written in assembly, because swapcontext makes a
 * system call each time; other machines use ucontext. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "cudasim/fiber.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define WITH_ASAN 1
#endif
#endif

namespace cudasim
{

/* Only the used pages of a stack take memory. */
static constexpr size_t stack_bytes = 256 << 10;

static void before_switch(fiber *from, const fiber *to)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->n_stack);
#else
    (void)from, (void)to;
#endif
}

/* The fiber that ran before. */
static fiber *left;

/* Called when `self` runs again, or with null when a fiber runs for the first time. */
static void after_switch(fiber *self)
{
#ifdef WITH_ASAN
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(self ? self->fake_stack : nullptr, &bottom, &size);
    /* A host thread's stack is only known when the thread is left. */
    if (left->is_host) left->stack = (char *)const_cast<void *>(bottom), left->n_stack = size;
#else
    (void)self;
#endif
}

#if defined(__x86_64__)

extern "C" void cudasim_switch(void **save, void *restore);
asm(R"(
    .text
    .globl cudasim_switch
    .type cudasim_switch, @function
cudasim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size cudasim_switch, . - cudasim_switch
)");

static void prepare(fiber *f, void (*entry)())
{
    /* Six registers, the return address, and a return address for the entry's caller. */
    void **top = (void **)(f->stack + f->n_stack - 64);
    for (int i = 0; i < 8; i++) top[i] = nullptr;
    top[6] = (void *)entry;
    f->context = top;
}
static bool prepare_first(fiber *f, void (*entry)())
{
    prepare(f, entry);
    return true;
}
static void leave(fiber *from, fiber *to) { cudasim_switch(&from->context, to->context); }
static void free_context(fiber *) {}

#else

#include <ucontext.h>

static void prepare(fiber *f, void (*entry)())
{
    ucontext_t *context = (ucontext_t *)f->context;
    getcontext(context);
    context->uc_stack.ss_sp = f->stack;
    context->uc_stack.ss_size = f->n_stack;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
}
static bool prepare_first(fiber *f, void (*entry)())
{
    f->context = calloc(1, sizeof(ucontext_t));
    if (!f->context) return false;
    prepare(f, entry);
    return true;
}
static void leave(fiber *from, fiber *to)
{
    if (!from->context) from->context = calloc(1, sizeof(ucontext_t));
    if (!from->context) abort();
    swapcontext((ucontext_t *)from->context, (ucontext_t *)to->context);
}
static void free_context(fiber *f) { free(f->context); }

#endif

bool fiber_create(fiber *f, size_t index, void (*entry)())
{
    *f = fiber{};
    void *p = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    f->stack = (char *)p;
    /* The tops have different distances from a page: otherwise all would use the same cache lines.
     */
    f->n_stack = stack_bytes - index % 61 * 192;
    return prepare_first(f, entry);
}

void fiber_destroy(fiber *f)
{
    munmap(f->stack, stack_bytes);
    free_context(f);
}

void fiber_started() { after_switch(nullptr); }

void fiber_switch(fiber *from, fiber *to)
{
    before_switch(from, to);
    left = from;
    leave(from, to);
    after_switch(from);
}

void fiber_restart(fiber *f, void (*entry)())
{
#ifdef WITH_ASAN
    __asan_unpoison_memory_region(f->stack, f->n_stack);
#endif
    f->fake_stack = nullptr;
    prepare(f, entry);
}

} // namespace cudasim
