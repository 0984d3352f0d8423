/* memory.h: memory accounting. Categories, allocator statistics, regions, events.
 *
 * Numbers that are never mixed: *requested* is what was asked for, *allocated* is the blocks that
 * it lies in, *reserved* is what the caching allocator holds from the system, in segments. The
 * rules and the names are those of PyTorch's CUDA caching allocator, so the figures compare:
 * torch.cuda.memory_allocated() tells `allocated`. A block has the request rounded up to 512 bytes
 * and, of requests above 1 MiB, the rest of the free block that it was cut from, where that is at
 * most 1 MiB, since such rests are not split off (in expandable segments all are). A rest belongs
 * to the category of its block. It depends on what was freed before: two runs with equal requests
 * may differ in rests, and in nothing else of `allocated`. */
#ifndef MEMTAPE_MEMORY_H
#define MEMTAPE_MEMORY_H

#include <stdint.h>
#include "memtape/dtype.h"

MT_C_BEGIN

/* Where tensors live (device.h). */
typedef struct mt_device mt_device;

/* What bytes are for. Every allocation has exactly one at a time. */
typedef enum mt_category {
    MT_PARAMETER,
    MT_GRADIENT,      /* of a leaf: what an optimizer reads */
    MT_OPTIMIZER,     /* optimizer state */
    MT_INPUT,         /* made by the caller */
    MT_ACTIVATION,    /* output of an op, or kept by it for its backward */
    MT_OUTPUT,        /* an activation the caller declared to be the result */
    MT_RNG_STATE,     /* seed and offset kept to repeat a random op */
    MT_PACKED,        /* a copy made by a saved-tensor hook */
    MT_CACHE,         /* cast cache, KV cache */
    MT_TEMPORARY,     /* alive within one op, or a gradient on its way */
    MT_WORKSPACE,     /* scratch a kernel asked for */
    MT_COMMUNICATION, /* room for what ranks send each other, on its way */
    MT_CATEGORY_COUNT
} mt_category;

MT_API const char *mt_category_name(mt_category category); /* "parameter", ... */

/* What a saved tensor is to the op that saves it. */
typedef enum mt_save_role { MT_SAVE_INPUT, MT_SAVE_OUTPUT, MT_SAVE_AUX } mt_save_role;
MT_API const char *mt_save_role_name(mt_save_role role); /* "input", "output", "aux" */

/* A saver of a tensor: which op keeps it, and as which argument. */
typedef struct mt_saver {
    const char *module, *op, *argument; /* "gpt.h.3.mlp.act", "gelu", "x" */
    mt_save_role role;
    uint64_t node; /* sequence number of the node that keeps it */
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK]; /* of the view that is saved */
} mt_saver;

/* One figure's history, in bytes (or counts, for the counters). */
typedef struct mt_stat {
    size_t current, peak;
    size_t total_in;  /* everything ever added: "allocated" in total */
    size_t total_out; /* everything ever given back: "freed" in total */
} mt_stat;

/* A device's memory statistics. */
typedef struct mt_mem_stats {
    mt_stat requested;      /* bytes asked for */
    mt_stat allocated;      /* their blocks, rests that were not split off included */
    mt_stat active;         /* with those that are freed while another stream may still use them
                             * (Tensor.record_stream). There are none, so this is `allocated` */
    mt_stat reserved;       /* segments held from the system; of expandable ones, their granules */
    mt_stat inactive_split; /* free bytes in segments that are partly in use */
    mt_stat blocks;         /* count of live allocations */
    mt_stat segments;       /* count of segments. As in PyTorch, expandable ones count neither here
                             * nor for inactive_split */
    size_t by_category[MT_CATEGORY_COUNT]; /* current allocated bytes of each */
    size_t at_peak[MT_CATEGORY_COUNT];     /* the same at the instant of allocated.peak */
    uint64_t alloc_retries, ooms;
} mt_mem_stats;

/* The statistics of this instant. */
MT_API void mt_mem_get_stats(const mt_device *device, mt_mem_stats *out);
/* Peaks start again from the current values. */
MT_API void mt_mem_reset_peak(mt_device *device);
/* Give every segment without a live block back to the system; of expandable segments, every granule
 * that is free. */
MT_API void mt_mem_empty_cache(mt_device *device);
/* Expandable segments: PyTorch's PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Requests up to 1
 * MiB, and larger ones, have a segment each that grows by granules, where otherwise a new segment
 * would be made; `reserved` is what its granules take. */
typedef struct mt_expandable {
    /* Bytes of a granule, a multiple of the device's page (4096 on x86-64 and on meta, 2 MiB on
     * cuda), up to 1 TiB; 0: PyTorch's, 2 MiB for requests up to 1 MiB and 20 MiB for larger ones.
     * Smaller granules leave less of the last one unused, and the system is asked more often. */
    size_t granule;
    /* Not PyTorch's: before a segment grows, as many granules that are free go back to the system,
     * so that `reserved` hardly exceeds what was ever allocated at once. Costs time in each step.
     */
    bool reclaim;
} mt_expandable;
/* Before the device's first tensor; NULL: segments of their own size, the default. MT_ERR_STATE
 * once the device holds memory; MT_ERR_UNSUPPORTED where memory cannot come in granules. */
MT_API mt_status mt_mem_set_expandable(mt_device *device, const mt_expandable *options);
/* Streams. As PyTorch's allocator does, each stream has its own segments and free blocks: a
 * block belongs to the stream that it was requested on and, once it is freed, serves requests of
 * that stream alone; `reserved` is the sum over the streams. All work of a device runs in one order
 * whatever the stream, so a stream is a name in the books, on all devices alike, and a block may be
 * reused as soon as it is freed.
 *     mt_stream_scope scope;                                 stream = torch.cuda.Stream()
 *     mt_mem_stream_begin(&scope, dev, "copy_in");           with torch.cuda.stream(stream):
 *     ...;                                                       ...
 *     mt_mem_stream_end(&scope);
 * What this thread requests on that device until the end belongs to the stream, in backward also
 * that of ops that ran outside of the scope, where PyTorch takes their forward's stream. Scopes
 * nest; other threads and other devices are not concerned. */
#define MT_MAX_STREAMS 16 /* of a device, with "default", outside of all scopes */
/* The fields are private; it must stay where it is until the end. */
typedef struct mt_stream_scope {
    const void *pool;
    int stream;
    struct mt_stream_scope *outer;
} mt_stream_scope;
/* A name that is new to the device makes a stream. After a failure requests belong where they did,
 * and an end does nothing. */
MT_API mt_status mt_mem_stream_begin(mt_stream_scope *scope, mt_device *device, const char *name);
MT_API void mt_mem_stream_end(mt_stream_scope *scope);
/* What a stream has now. What is reserved and not allocated no other stream gets, until
 * mt_mem_empty_cache. */
typedef struct mt_stream_stats {
    const char *name;
    size_t reserved, allocated;
} mt_stream_stats;
/* Fills in those of all streams, "default" first; returns how many there are. */
MT_API int mt_mem_get_streams(const mt_device *device, mt_stream_stats out[MT_MAX_STREAMS]);
/* Refuse segments that would raise `reserved` past n_bytes, as a device of that size would; 0: no
 * limit but the device's own. (torch.cuda.set_per_process_memory_fraction) */
MT_API void mt_mem_set_capacity(mt_device *device, size_t n_bytes);

/* The change of each figure across a region of code.
 *     mt_mem_region r;
 *     mt_mem_region_begin(&r, dev);  ...;  mt_mem_region_end(&r);
 * Regions nest: ending one restores what the outer one had as its peak. */
typedef struct mt_mem_delta {
    size_t allocated; /* bytes newly allocated, in whole blocks, as in all but the last line */
    size_t freed;     /* bytes freed */
    int64_t current;  /* allocated - freed */
    int64_t peak;     /* highest current within, minus current at the begin */
    int64_t requested, reserved;
} mt_mem_delta;

/* A region of code; `device` and `before` are filled in by begin. */
typedef struct mt_mem_region {
    mt_device *device;
    mt_mem_stats before;
    mt_mem_delta delta; /* filled in by end */
} mt_mem_region;

/* Around a region: end fills in region->delta. */
MT_API void mt_mem_region_begin(mt_mem_region *region, mt_device *device);
MT_API void mt_mem_region_end(mt_mem_region *region);

/* Everything that happens to a storage's bytes, in order. */
typedef enum mt_mem_event_kind {
    MT_MEM_ALLOC,
    MT_MEM_FREE,
    MT_MEM_RECATEGORY,
    MT_MEM_OOM, /* `requested` bytes were refused; serial 0. Nothing has changed: what is live now
                 * is what was in the way */
    MT_MEM_SEGMENT_ALLOC, /* a segment of `allocated` bytes came from the system; serial 0 */
    MT_MEM_SEGMENT_FREE,  /* and went back */
    MT_MEM_SEGMENT_MAP,   /* an expandable segment got `allocated` bytes of memory; serial 0 */
    MT_MEM_SEGMENT_UNMAP, /* and gave them back */
} mt_mem_event_kind;

/* One event. */
typedef struct mt_mem_event {
    mt_mem_event_kind kind;
    uint64_t serial;                 /* of the storage; never reused within a device */
    size_t requested;                /* bytes asked for */
    size_t allocated;                /* the whole block, which the next one follows */
    mt_category category, was;       /* `was` differs only for MT_MEM_RECATEGORY */
    const char *op, *module, *phase; /* of the instant; "" if outside */
    size_t current;                  /* the device's allocated bytes after the event */
    size_t reserved;                 /* and its segments */
    bool large;                      /* of segments: for requests above 1 MiB */
    uint64_t place; /* where the bytes lie: their address, if each new segment were placed above all
                     * earlier ones (an expandable one takes 2^44). The same on all devices */
    size_t room;    /* MT_MEM_OOM: bytes that the device could still give; SIZE_MAX: unknown */
    int stream;     /* of the block, the segment, the request: its place in mt_mem_get_streams */
    const char *stream_name;
} mt_mem_event;

/* Called with each event, which is valid until it returns. */
typedef void mt_mem_event_fn(void *user, const mt_mem_event *event);

/* Observers are called under the device's lock, in the order of adding: they
 * must not call back into that device. Returns an id, 0 on failure. */
MT_API int mt_mem_add_observer(mt_device *device, mt_mem_event_fn *fn, void *user);
MT_API void mt_mem_remove_observer(mt_device *device, int id);

MT_C_END
#endif
