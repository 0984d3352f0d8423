/* memory.h: device memory of the simulator. */
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include <stddef.h>

namespace cudasim
{

/* NULL if there is no memory. */
void *device_alloc(size_t n_bytes);
void device_free(void *p);

/* Addresses that cannot be touched; then memory for some of them, and none any more. */
void *reserve_addresses(size_t n_bytes);
bool open_addresses(void *p, size_t n_bytes);
void close_addresses(void *p, size_t n_bytes);

/* While an object of this type exists, the process may read and write device memory, as a running
 * device does. */
struct access {
    access();
    ~access();
    access(const access &) = delete;
    access &operator=(const access &) = delete;
};

} // namespace cudasim

#endif
