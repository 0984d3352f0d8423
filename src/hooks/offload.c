/* offload.c: the hook that sends saved tensors away and brings them back. */
#include "hooks/offload.h"

static bool complete(mt_offload_options *o)
{
    if (o->in_flight < 0 || o->prefetch < -1)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "offload_new: in_flight %d, prefetch %d; need 0 or more, and -1 or "
                             "more",
                             o->in_flight, o->prefetch);
    if (!o->min_bytes) o->min_bytes = 4096;
    if (!o->in_flight) o->in_flight = 2;
    o->prefetch = o->prefetch < 0 ? 0 : o->prefetch ? o->prefetch : 2;
    return true;
}

mt_offload *mt_offload_new(mt_device *device, const mt_offload_options *options)
{
    mt_offload_options filled = options ? *options : (mt_offload_options){0};
    if (!device) return mti_fail_null(MT_ERR_ARGUMENT, "offload_new: the device is NULL");
    if (!complete(&filled)) return NULL;
    mt_offload *o = mti_calloc(1, sizeof *o);
    if (!o) return NULL;
    atomic_init(&o->refs, 1);
    pthread_mutex_init(&o->lock, NULL);
    o->device = mt_device_retain(device);
    o->options = filled;
    return o;
}

void mt_offload_free(mt_offload *o)
{
    if (!o || atomic_fetch_sub(&o->refs, 1) != 1) return;
    mt_device_release(o->device);
    pthread_mutex_destroy(&o->lock);
    mti_free(o);
}
