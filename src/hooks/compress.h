/* compress.h: what the files of the compressing hook share. */
#ifndef MTI_COMPRESS_H
#define MTI_COMPRESS_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/base.h"
#include "memtape/compress.h"
#include "memtape/host_copy.h"
#include "memtape/ops.h"
#include "memtape/quantize.h"

/* A storage at one version, packed by one rule. It lives as long as saved tensors share it. */
typedef struct mti_packed_storage {
    uint64_t serial, version; /* of the storage */
    mt_compress_rule rule;
    uint64_t round; /* which begin it was packed in */
    mt_compress_count count;
    bool gone; /* the storage was freed */
    mt_dtype dtype;
    int64_t n;         /* elements of the whole storage */
    int slots;         /* saved tensors that share it */
    int back;          /* of them, those unpacked since `whole` was made */
    mt_tensor *packed; /* held for sharing until mt_compress_end; NULL after, and for seeds */
    mt_tensor *whole;  /* unpacked, while other saved tensors still need it */
    double p;          /* a mask's */
    uint64_t seed, offset;
} mti_packed_storage;

struct mt_compress {
    atomic_int refs; /* the owner, and each time it is begun: the hook holds it */
    mt_device *device;
    mt_compress_options options; /* defaults filled in */
    int observer;
    /* Guards what follows. Events arrive under the device's lock, which is thus taken first:
     * nothing is allocated or released while this one is held. */
    pthread_mutex_t lock;
    mti_hashmap packed_storages; /* serial -> the address of a mti_packed_storage */
    uint64_t round;
    bool begun;
    mt_compress_stats stats;
};

/* Which rule takes this tensor; RULE_COUNT for none. */
mt_compress_rule mti_compress_choose(const mt_compress *c, const mt_save_info *info, mt_tensor *t);
/* Packs t's storage as *s says; s->packed stays NULL for seeds. False on failure. */
bool mti_compress_pack(const mt_compress *c, mti_packed_storage *s, mt_tensor *t);
/* The whole storage again, as [n]; `packed` is what pack made. NULL on failure. */
mt_tensor *mti_compress_unpack(const mt_compress *c, const mti_packed_storage *s,
                               mt_tensor *packed);

#endif
