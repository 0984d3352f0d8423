/* objects.c: the small host objects of a device (handles, storages, nodes of the tape) come and go
 * with every op. Freed ones stay on lists by size, so that a steady step asks the system for
 * nothing. */
#include <sched.h>
#include "memtrack/shadow.h"
#include "tensor/tensor.h"

#define UNIT 64 /* sizes are rounded up to this */
/* So many bytes stay on the lists at most. Under AddressSanitizer none: it reports an object used
 * after its end only if that was freed. */
#ifdef MTI_HAS_SHADOW
#define MOST_KEPT ((size_t)0)
#else
#define MOST_KEPT ((size_t)8 << 20)
#endif

struct mti_free_object {
    mti_free_object *next;
};

/* From 1, as a free object holds a pointer. */
static size_t list_of(size_t n_bytes) { return n_bytes ? (n_bytes + UNIT - 1) / UNIT : 1; }

/* A spin lock: it is held for a few instructions, and threads rarely share a device. */
static MTI_COLD void wait_for(mti_objects *o)
{
    while (atomic_flag_test_and_set_explicit(&o->busy, memory_order_acquire)) sched_yield();
}

static void lock(mti_objects *o)
{
    if (atomic_flag_test_and_set_explicit(&o->busy, memory_order_acquire)) wait_for(o);
}

static void unlock(mti_objects *o) { atomic_flag_clear_explicit(&o->busy, memory_order_release); }

static MTI_COLD void *refuse(mt_device *device, void *object, size_t n_bytes)
{
    mti_object_free(device, object, n_bytes);
    return mti_alloc_refused(n_bytes);
}

void *mti_object_new(mt_device *device, size_t n_bytes)
{
    mti_objects *o = &device->objects;
    size_t i = list_of(n_bytes);
    if (i >= MTI_OBJECT_LISTS) return mti_malloc(n_bytes);
    lock(o);
    mti_free_object *p = o->first[i];
    if (p) {
        o->first[i] = p->next;
        o->n_bytes -= i * UNIT;
    }
    unlock(o);
    if (!p) return mti_malloc(i * UNIT);
    return mti_alloc_should_fail() ? refuse(device, p, n_bytes) : p;
}

void mti_object_free(mt_device *device, void *object, size_t n_bytes)
{
    mti_objects *o = &device->objects;
    size_t i = list_of(n_bytes);
    if (!object) return;
    if (i >= MTI_OBJECT_LISTS) {
        mti_free(object);
        return;
    }
    lock(o);
    bool keep = o->n_bytes + i * UNIT <= MOST_KEPT;
    if (keep) {
        mti_free_object *p = object;
        p->next = o->first[i];
        o->first[i] = p;
        o->n_bytes += i * UNIT;
    }
    unlock(o);
    if (!keep) mti_free(object);
}

void mti_objects_empty(mt_device *device)
{
    mti_objects *o = &device->objects;
    for (size_t i = 0; i < MTI_OBJECT_LISTS; i++) {
        size_t n_bytes = 0;
        lock(o);
        mti_free_object *p = o->first[i];
        o->first[i] = NULL;
        unlock(o);
        while (p) {
            mti_free_object *next = p->next;
            mti_free(p);
            n_bytes += i * UNIT;
            p = next;
        }
        lock(o);
        o->n_bytes -= n_bytes;
        unlock(o);
    }
}
