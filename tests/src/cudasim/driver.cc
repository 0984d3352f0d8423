/* driver.cc: a double of the driver's virtual memory management, as strict as its documentation:
 * sizes and addresses in whole granules of 2 MiB, a mapping goes as it was made, memory without
 * access cannot be touched, and nothing may be left mapped when addresses go. */
#include <string.h>
#include <sys/mman.h>
#include <map>
#include <mutex>
#include "backends/cuda/device/driver.h"
#include "cudasim/memory.h"

namespace
{

constexpr size_t least = (size_t)2 << 20, memory_of_device = (size_t)4 << 30;
enum { refused = 2, invalid = 1 }; /* CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE */

struct memory {
    size_t n_bytes;
    bool held; /* by its handle */
    int n_mapped;
};

struct mapping {
    size_t n_bytes;
    cu_memory memory;
    bool open;
};

struct {
    std::mutex lock;
    std::map<cu_address, size_t> ranges;
    std::map<cu_memory, struct memory> memory;
    std::map<cu_address, mapping> mapped;
    cu_memory last;
    size_t n_bytes; /* of all memory */
} driver;

bool whole(size_t n_bytes) { return n_bytes && n_bytes % least == 0; }

int granularity(size_t *n_bytes, const cu_kind *kind, int)
{
    if (kind->type != CU_PINNED || kind->location.type != CU_ON_DEVICE) return invalid;
    *n_bytes = least;
    return CU_OK;
}

int reserve(cu_address *at, size_t n_bytes, size_t, cu_address, unsigned long long)
{
    std::lock_guard<std::mutex> mine(driver.lock);
    if (!whole(n_bytes)) return invalid;
    char *p = (char *)cudasim::reserve_addresses(n_bytes + least);
    if (!p) return refused;
    *at = ((cu_address)p + least - 1) / least * least;
    driver.ranges[*at] = n_bytes;
    return CU_OK;
}

/* The double's addresses stay taken, so that a late access is a fault. */
int release(cu_address at, size_t n_bytes)
{
    std::lock_guard<std::mutex> mine(driver.lock);
    auto range = driver.ranges.find(at);
    if (range == driver.ranges.end() || range->second != n_bytes) return invalid;
    auto first = driver.mapped.lower_bound(at);
    if (first != driver.mapped.end() && first->first < at + n_bytes) return invalid;
    driver.ranges.erase(range);
    return CU_OK;
}

int create(cu_memory *memory, size_t n_bytes, const cu_kind *kind, unsigned long long)
{
    std::lock_guard<std::mutex> mine(driver.lock);
    if (!whole(n_bytes) || kind->type != CU_PINNED) return invalid;
    if (n_bytes > memory_of_device - driver.n_bytes) return refused;
    driver.n_bytes += n_bytes;
    *memory = ++driver.last;
    driver.memory[*memory] = {n_bytes, true, 0};
    return CU_OK;
}

int map(cu_address at, size_t n_bytes, size_t offset, cu_memory memory, unsigned long long)
{
    std::lock_guard<std::mutex> mine(driver.lock);
    auto held = driver.memory.find(memory);
    auto range = driver.ranges.upper_bound(at);
    if (held == driver.memory.end() || held->second.n_bytes != n_bytes || offset || at % least ||
        range == driver.ranges.begin())
        return invalid;
    --range;
    if (at + n_bytes > range->first + range->second) return invalid;
    auto next = driver.mapped.lower_bound(at);
    if (next != driver.mapped.end() && next->first < at + n_bytes) return invalid;
    if (next != driver.mapped.begin() && (--next)->first + next->second.n_bytes > at)
        return invalid;
    driver.mapped[at] = {n_bytes, memory, false};
    held->second.n_mapped++;
    return CU_OK;
}

int set_access(cu_address at, size_t n_bytes, const cu_access *access, size_t n)
{
    std::lock_guard<std::mutex> mine(driver.lock);
    if (n != 1 || access->flags != CU_READ_WRITE) return invalid;
    for (cu_address p = at; p < at + n_bytes;) {
        auto mapping = driver.mapped.find(p);
        if (mapping == driver.mapped.end()) return invalid;
        if (!mapping->second.open && !cudasim::open_addresses((void *)p, mapping->second.n_bytes))
            return refused;
        mapping->second.open = true;
        p += mapping->second.n_bytes;
    }
    return CU_OK;
}

/* It goes with its last mapping and its handle. */
void forget_if_unused(std::map<cu_memory, struct memory>::iterator memory)
{
    if (memory->second.held || memory->second.n_mapped) return;
    driver.n_bytes -= memory->second.n_bytes;
    driver.memory.erase(memory);
}

int unmap(cu_address at, size_t n_bytes)
{
    std::lock_guard<std::mutex> mine(driver.lock);
    auto mapping = driver.mapped.find(at);
    if (mapping == driver.mapped.end() || mapping->second.n_bytes != n_bytes) return invalid;
    cudasim::close_addresses((void *)at, n_bytes);
    auto memory = driver.memory.find(mapping->second.memory);
    driver.mapped.erase(mapping);
    memory->second.n_mapped--;
    forget_if_unused(memory);
    return CU_OK;
}

int drop(cu_memory memory)
{
    std::lock_guard<std::mutex> mine(driver.lock);
    auto held = driver.memory.find(memory);
    if (held == driver.memory.end() || !held->second.held) return invalid;
    held->second.held = false;
    forget_if_unused(held);
    return CU_OK;
}

} // namespace

void *cudasim_driver(const char *name)
{
    static const cu_functions all = {granularity, reserve,    release, create,
                                     map,         set_access, unmap,   drop};
    static const char *const names[] = {
#define NAME(member, function, parameters) #function,
        CU_FUNCTIONS(NAME)};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found;
        memcpy(&found, (const char *)&all + i * sizeof found, sizeof found);
        if (!strcmp(names[i], name)) return found;
    }
    return nullptr;
}
