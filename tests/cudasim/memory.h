/* memory.h: device memory of the simulator. */
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include <stddef.h>

namespace cudasim
{

/* NULL: none left. */
void *device_alloc(size_t n_bytes);
void device_free(void *p);

/* While one of these exists, the process may read and write device memory: the device works. */
struct access {
    access();
    ~access();
    access(const access &) = delete;
    access &operator=(const access &) = delete;
};

} // namespace cudasim

#endif
