/* offload.h: keeps saved tensors in host memory or on disk until backward needs them.
 *
 *     mt_offload *o = mt_offload_new(device, NULL);
 *     mt_offload_begin(o);
 *     loss = forward(model, batch);      saved tensors leave the device while it computes
 *     mt_offload_end(o);
 *     mt_backward(loss);                 and come back before they are needed
 *     mt_offload_get_stats(o, &stats);   what it saved, and what it cost
 *     mt_offload_free(o);
 *
 * A hook on saved tensors (autograd.h) over host copies (tensor.h), and nothing else: gradients
 * have the bits they have without. PyTorch: torch.autograd.graph.save_on_cpu(pin_memory=True),
 * which copies each save again and waits for each copy.
 *
 * What is in device memory when depends on the program alone, never on how fast a copy is. */
#ifndef MEMTAPE_OFFLOAD_H
#define MEMTAPE_OFFLOAD_H

#include "memtape/hooks.h"

MT_C_BEGIN

/* Host memory or a disk for saved tensors, and what went there. */
typedef struct mt_offload mt_offload;

/* All zero is a good choice. */
typedef struct mt_offload_options {
    const char *directory; /* for a temporary file; NULL: host memory */
    size_t min_bytes;      /* smaller storages stay; 0: those under 4096 bytes */
    size_t capacity;       /* most bytes that may be away at once; 0: no limit */
    int in_flight; /* storages that leave at once; 0: 2. More hide more time, but lower the peak
                    * less: each keeps its device bytes until it has left */
    int prefetch;  /* storages brought back before they are needed; 0: 2, -1: none */
    bool inputs;   /* also tensors made by the caller, which usually holds them anyway */
    /* Whether that save may leave; NULL: all may. A storage that another save keeps stays, too. */
    bool (*wants)(void *wants_user, const mt_save_info *info);
    void *wants_user; /* outlives the offload */
} mt_offload_options;

/* Where the bytes went, since the last mt_offload_begin. Bytes are those requested for storages. */
typedef struct mt_offload_stats {
    size_t saves;            /* tensors that the ops saved through the hook, and of these: */
    size_t saves_shared;     /* views of a storage that was away or on its way already */
    size_t saves_left;       /* not offloaded: parameters, inputs, small ones, other devices */
    size_t saves_over;       /* not offloaded because `capacity` was reached */
    size_t n_out, bytes_out; /* storages that began to leave */
    size_t n_in, bytes_in;   /* storages that came back; each time counts */
    size_t bytes_away;       /* away now: in host memory or on disk, and not on the device */
    /* The device's highest allocated bytes, and what they would be without offload: the highest sum
     * of allocated bytes and bytes away, less those counted twice. */
    size_t peak, peak_without;
    size_t lowered;       /* peak_without - peak, or 0 */
    size_t bytes_in_vain; /* bytes_out - lowered, or 0: they left too late, came back too early, or
                           * were still held elsewhere: */
    size_t bytes_still_held;      /* at mt_offload_end */
    size_t host_bytes, host_peak; /* host memory of the copies, now and highest; with a disk: only
                                   * of copies in progress */
    size_t disk_bytes, disk_peak;
    double copy_s; /* spent copying, both ways, disk included */
    double wait_s; /* compute waited for it; the rest was hidden behind compute */
    double hidden; /* 1 - wait_s / copy_s, at least 0; 0 where nothing was copied */
} mt_offload_stats;

/* options: NULL for all zero; copied. The device is retained. NULL and MT_ERR_IO if no
 * file can be created in the directory. The caller frees it once; saved tensors that are away keep
 * what they need. */
MT_API mt_offload *mt_offload_new(mt_device *device, const mt_offload_options *options);
MT_API void mt_offload_free(mt_offload *offload);
/* Between the two it offloads what this thread's ops save. begin pushes a hook, end pops it: hooks
 * nest, and a ledger begun before sees what the offload left on the device, one begun after sees
 * everything. end waits, on the device, until the last storage has left. An op whose tensor cannot
 * be offloaded fails with MT_ERR_MEMORY, or MT_ERR_IO where the disk is full, the tape as before.
 */
MT_API mt_status mt_offload_begin(mt_offload *offload);
MT_API mt_status mt_offload_end(mt_offload *offload);
/* The hooks that begin pushes, with the offload as user: to offload single tensors
 * (mt_checkpoint_options.away). The offload must then live as long as the graph. */
MT_API const mt_saved_hooks *mt_offload_hooks(void);
/* Waits for copies in progress, so that all seconds are counted. */
MT_API mt_status mt_offload_get_stats(mt_offload *offload, mt_offload_stats *out);

MT_C_END
#endif
