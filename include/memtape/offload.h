/* offload.h: saved tensors wait for their backward in host memory or on disk.
 *
 *     mt_offload *o = mt_offload_new(device, NULL);
 *     mt_offload_begin(o);
 *     loss = forward(model, batch);      what the ops save leaves the device, beside compute
 *     mt_offload_end(o);
 *     mt_backward(loss);                 and comes back, the next ones ahead of their turn
 *     mt_offload_get_stats(o, &stats);   what it brought, and what it cost
 *     mt_offload_free(o);
 *
 * A hook on saved tensors (autograd.h) over host copies (tensor.h), and nothing else: gradients
 * have the bits they have without. PyTorch: torch.autograd.graph.save_on_cpu(pin_memory=True),
 * which copies each save again and waits for each copy.
 *
 * What is in device memory when depends on the program alone, never on how fast a copy is. */
#ifndef MEMTAPE_OFFLOAD_H
#define MEMTAPE_OFFLOAD_H

#include "memtape/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mt_offload mt_offload;

/* All zero is a good choice. */
typedef struct mt_offload_options {
    const char *directory; /* of a file that is gone when the offload is; NULL: host memory */
    size_t min_bytes;      /* smaller storages stay; 0: those under 4096 bytes */
    size_t capacity;       /* bytes that may be away at once, the rest stays; 0: any number */
    int in_flight;         /* storages on their way out at once; 0: 2. More hides more, and lowers
                            * the peak by less: each keeps its device bytes until it has left */
    int prefetch;          /* storages on their way back before their turn; 0: 2, -1: none */
    bool inputs;           /* tensors that the caller made, too; they are mostly held anyway */
} mt_offload_options;

/* Where the bytes went, since the last mt_offload_begin. Bytes are those requested for storages. */
typedef struct mt_offload_stats {
    size_t saves;            /* tensors that the ops saved through the hook, and of these: */
    size_t saves_shared;     /* views of a storage that was away or on its way already */
    size_t saves_left;       /* of no interest: parameters, inputs, small ones, other devices */
    size_t saves_over;       /* left because `capacity` was reached */
    size_t n_out, bytes_out; /* storages that began to leave */
    size_t n_in, bytes_in;   /* and that came back, once for each time */
    size_t bytes_away;       /* out now: in host memory or on disk, and not on the device */
    /* The device's allocated bytes at most, and at most had nothing left: at each instant those
     * allocated and those away, less those that were there twice. */
    size_t peak, peak_without;
    size_t lowered;       /* peak_without - peak, or 0 */
    size_t bytes_in_vain; /* bytes_out - lowered, or 0: they left too late, came back too early, or
                           * never left, because somebody else held them: */
    size_t bytes_still_held;      /* at mt_offload_end */
    size_t host_bytes, host_peak; /* host memory of the copies, now and at most; on disk: those on
                                   * their way there and back */
    size_t disk_bytes, disk_peak;
    double copy_s; /* spent copying, both ways, disk included */
    double wait_s; /* compute stood still for it; the rest was hidden behind compute */
    double hidden; /* 1 - wait_s / copy_s, at least 0; 0 where nothing was copied */
} mt_offload_stats;

/* options: NULL for all zero; copied. The device is retained. NULL and MT_ERR_IO where the
 * directory does not take a file. The caller frees it once; saved tensors that are away keep what
 * they need. */
MT_API mt_offload *mt_offload_new(mt_device *device, const mt_offload_options *options);
MT_API void mt_offload_free(mt_offload *offload);
/* Between the two it takes what this thread's ops save. begin pushes a hook, end pops it: hooks
 * nest, and a ledger begun before sees what the offload left on the device, one begun after sees
 * everything. end waits, on the device, until the last storage has left. An op whose tensor cannot
 * be taken fails with MT_ERR_MEMORY, or MT_ERR_IO where the disk is full, the tape as before. */
MT_API mt_status mt_offload_begin(mt_offload *offload);
MT_API mt_status mt_offload_end(mt_offload *offload);
/* The pair that begin pushes, with the offload as user: for those who hand over single tensors
 * (mt_checkpoint_options.away). The offload must then live as long as the graph. */
MT_API const mt_saved_hooks *mt_offload_hooks(void);
/* Waits for what is on its way, so that the seconds are all there. */
MT_API mt_status mt_offload_get_stats(mt_offload *offload, mt_offload_stats *out);

#ifdef __cplusplus
}
#endif
#endif
