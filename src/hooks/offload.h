/* offload.h: what the files of the offload hook share. */
#ifndef MTI_OFFLOAD_H
#define MTI_OFFLOAD_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/base.h"
#include "memtape/offload.h"

struct mt_offload {
    atomic_int refs; /* the owner, and each time it is begun: the hook holds it */
    mt_device *device;
    mt_offload_options options; /* defaults filled in; directory is ours */
    pthread_mutex_t lock;
};

#endif
