/* memory.h: device memory of the simulator. */
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include <stddef.h>

namespace cudasim
{

/* NULL if there is no memory. */
void *device_alloc(size_t n_bytes);
void device_free(void *p);

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
