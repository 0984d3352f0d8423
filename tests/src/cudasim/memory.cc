/* memory.cc: device memory. It is filled with 0xff, so that unwritten memory reads as NaN.
 *
 * With CUDASIM_GUARD=pages in the environment the host cannot read or write it: its pages are open
 * only while a kernel, a product or a copy runs. CUDASIM_GUARD=keys does the same if the CPU has
 * protection keys, which cost nothing. Otherwise allocations have their exact size, for
 * AddressSanitizer. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <map>
#include <mutex>
#include "cudasim/memory.h"

namespace cudasim
{

static constexpr size_t address_space = (size_t)64 << 30, page = 4096;

static struct {
    std::mutex lock;
    char *begin, *end; /* all of it, and the end of the part used so far */
    std::map<void *, size_t> blocks;
    std::multimap<size_t, void *> free; /* free allocations by size */
    int n_open;                         /* number of accesses, without a key */
} memory;

enum struct guard { none, pages, keys };
struct choice {
    guard by;
    int key;
};
static choice choose()
{
    const char *text = getenv("CUDASIM_GUARD");
    if (text && !strcmp(text, "pages")) return {guard::pages, -1};
    int key = text && !strcmp(text, "keys") ? pkey_alloc(0, 0) : -1;
    return {key < 0 ? guard::none : guard::keys, key};
}
static const choice &chosen()
{
    static const choice made = choose();
    return made;
}

static void on_fault(int number, siginfo_t *info, void *)
{
    static const char text[] = "cudasim: the host touches device memory\n";
    const char *at = (const char *)info->si_addr;
    if (memory.begin && at >= memory.begin && at < memory.begin + address_space) {
        ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
        (void)written;
    }
    signal(number, SIG_DFL); /* the access is repeated and ends the program */
}

/* With a protection key each thread that calls the device has its own rights, and changing them
 * takes no system call. OpenBLAS's threads never call it and keep their rights. */
static thread_local int n_open_here;

static void protect(bool open)
{
    if (chosen().by == guard::keys)
        pkey_set(chosen().key, open ? 0 : PKEY_DISABLE_ACCESS);
    else if (mprotect(memory.begin, (size_t)(memory.end - memory.begin),
                      open ? PROT_READ | PROT_WRITE : PROT_NONE))
        abort();
}

access::access()
{
    if (chosen().by == guard::none) return;
    std::lock_guard<std::mutex> mine(memory.lock);
    int *n = chosen().by == guard::keys ? &n_open_here : &memory.n_open;
    if ((*n)++ == 0 && memory.begin) protect(true);
}

access::~access()
{
    if (chosen().by == guard::none) return;
    std::lock_guard<std::mutex> mine(memory.lock);
    int *n = chosen().by == guard::keys ? &n_open_here : &memory.n_open;
    if (--*n == 0 && memory.begin) protect(false);
}

static bool reserve()
{
    if (memory.begin) return true;
    void *p =
        mmap(nullptr, address_space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    if (chosen().by == guard::keys &&
        pkey_mprotect(p, address_space, PROT_READ | PROT_WRITE, chosen().key))
        abort();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    memory.begin = memory.end = (char *)p;
    return true;
}

static void *take(size_t n_bytes)
{
    std::lock_guard<std::mutex> mine(memory.lock);
    if (n_bytes > address_space || !reserve()) return nullptr;
    n_bytes = (n_bytes + page - 1) / page * page;
    auto found = memory.free.find(n_bytes);
    void *p = memory.end;
    if (found != memory.free.end()) {
        p = found->second;
        memory.free.erase(found);
    } else if ((size_t)(memory.begin + address_space - memory.end) < n_bytes) {
        return nullptr;
    } else {
        memory.end += n_bytes;
        if (memory.n_open) protect(true);
    }
    memory.blocks[p] = n_bytes;
    return p;
}

void *device_alloc(size_t n_bytes)
{
    void *p = nullptr;
    if (n_bytes > (size_t)1 << 39)
        return nullptr; /* no GPU has as much; AddressSanitizer would end the process */
    if (chosen().by != guard::none)
        p = take(n_bytes);
    else if (posix_memalign(&p, 512, n_bytes))
        return nullptr;
    access open;
    if (p) memset(p, 0xff, n_bytes);
    return p;
}

void device_free(void *p)
{
    if (!p || chosen().by == guard::none) {
        free(p);
        return;
    }
    std::lock_guard<std::mutex> mine(memory.lock);
    auto block = memory.blocks.find(p);
    if (block == memory.blocks.end()) abort();
    memory.free.emplace(block->second, p);
    memory.blocks.erase(block);
}

void *reserve_addresses(size_t n_bytes)
{
    void *p = mmap(nullptr, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

/* Under guard::pages they are open to the host, too. */
bool open_addresses(void *p, size_t n_bytes)
{
    bool keys = chosen().by == guard::keys;
    if (keys ? pkey_mprotect(p, n_bytes, PROT_READ | PROT_WRITE, chosen().key)
             : mprotect(p, n_bytes, PROT_READ | PROT_WRITE))
        return false;
    access open;
    memset(p, 0xff, n_bytes);
    return true;
}

void close_addresses(void *p, size_t n_bytes)
{
    if (mmap(p, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
}

} // namespace cudasim
