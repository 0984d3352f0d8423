/* offload.h: what the files of the offload hook share: items, their accounts, the disk. */
#ifndef MTI_OFFLOAD_H
#define MTI_OFFLOAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "base/base.h"
#include "memtape/host_copy.h"
#include "memtape/offload.h"

/* ---- the disk: a file without a name, and a thread that reads and writes it in order ---- */

typedef struct mti_disk mti_disk;

typedef struct mti_disk_job {
    struct mti_disk_job *next;
    mt_host_copy *copy; /* from or to here; the thread waits for its bytes */
    uint64_t offset;
    size_t n_bytes;
    bool write, submitted, done;
    int error; /* errno, 0 if all went well */
} mti_disk_job;

/* The system calls it uses, so that a test can make them fail. */
typedef struct mti_disk_io {
    ssize_t (*pwrite)(int file, const void *data, size_t n_bytes, off_t offset);
    ssize_t (*pread)(int file, void *data, size_t n_bytes, off_t offset);
    int (*fallocate)(int file, int mode, off_t offset, off_t n_bytes);
} mti_disk_io;

/* NULL and MT_ERR_IO if no file can be created in the directory. */
mti_disk *mti_disk_open(const char *directory);
void mti_disk_close(mti_disk *disk); /* finishes what was submitted; NULL is allowed */
void mti_disk_set_io(mti_disk *disk, const mti_disk_io *io);
/* Reserves the file's first n_bytes; false and MT_ERR_IO, naming `op` and the bytes it asked for,
 * if the disk or a limit has no room. */
bool mti_disk_reserve(mti_disk *disk, uint64_t n_bytes, const char *op, size_t asked);
/* The caller owns the job and keeps it until it is finished. */
void mti_disk_submit(mti_disk *disk, mti_disk_job *job);
/* Waits; true if it went well, or was never submitted. */
bool mti_disk_finish(mti_disk *disk, mti_disk_job *job);
/* Records the failure of a finished job; `op` begins the message. */
mt_status mti_disk_failed(const mti_disk *disk, const mti_disk_job *job, const char *op);
/* Seconds the thread worked, and others waited for it, since it was opened. */
mt_copy_times mti_disk_times(mti_disk *disk);

/* ---- accounts: what is on the device, by its events ---- */

typedef struct mti_item mti_item;

typedef struct mti_offload_books {
    pthread_mutex_t
        lock; /* taken under the device's lock: no call to the device while it is held */
    MTI_VEC(struct {
        uint64_t serial;
        mti_item *item;
    })
    known;               /* storages of items, by serial: what left and what came back */
    size_t away;         /* bytes of items that are not on the device */
    int64_t elsewhere;   /* their allocated bytes, less those of items on the device twice */
    size_t peak;         /* highest allocated bytes of the device ... */
    size_t peak_without; /* ... and of device and `elsewhere` together */
} mti_offload_books;

void mti_books_init(mti_offload_books *books);
void mti_books_free(mti_offload_books *books);
/* Resets the peaks. */
void mti_books_start(mti_offload_books *books, mt_device *device);
/* Fills in bytes_away and the peaks. */
void mti_books_read(mti_offload_books *books, mt_offload_stats *out);
void mti_books_on_event(void *books, const mt_mem_event *event);
/* Makes room for two more storages, so that adding them cannot fail. */
bool mti_books_reserve(mti_offload_books *books);
void mti_books_add(mti_offload_books *books, uint64_t serial, mti_item *item);
void mti_books_forget(mti_offload_books *books, mti_item *item);
mti_item *mti_books_find(mti_offload_books *books, uint64_t serial);
/* Whether its storage is still on the device, because something holds it. */
bool mti_books_still_held(mti_offload_books *books, const mti_item *item);
void mti_books_coming_back(mti_offload_books *books, mti_item *item, bool coming);

/* ---- items: a storage that left, and the saved tensors that wait for it ---- */

struct mti_item {
    mti_item *earlier, *later; /* in the order of packing */
    const char *op, *argument, *module;
    uint64_t serial, version;  /* of the storage, when it began to leave */
    uint64_t round;            /* the mt_offload_begin in which it did */
    size_t n_bytes, allocated; /* requested, and its block's */
    int refs;                  /* saved tensors */
    mt_tensor *source;         /* held until it has left */
    mt_tensor *back;           /* held until every saved tensor has read it */
    mt_host_copy *copy;        /* with a disk: only during transfers */
    mti_disk_job job;
    uint64_t times_back;
    int unread;             /* saved tensors that have not read it since it came back last */
    uint64_t read_by;       /* the node that read it last */
    uint64_t new_version;   /* if it was changed while it left; else 0 */
    uint64_t source_serial; /* from here on under the accounts' lock; 0 once freed */
    uint64_t back_serial;
    bool coming; /* its storage is about to be allocated */
    int counted; /* in `elsewhere`: 1 if away, 0 if on the device, -1 if there twice */
};

/* The hook's state for one saved tensor. */
typedef struct mti_offload_slot {
    mti_item *item;
    mt_layout layout;
    uint64_t read; /* item->times_back at its last read */
} mti_offload_slot;

struct mt_offload {
    atomic_int refs; /* the owner, and each time it is begun: the hook holds it */
    mt_device *device;
    mt_offload_options options; /* defaults filled in */
    int observer;
    mti_disk *disk;       /* NULL: host memory */
    pthread_mutex_t lock; /* everything from here on; taken before the books' */
    mti_item *first, *last;
    mti_item **leaving; /* [in_flight], oldest first */
    int n_leaving;
    mt_offload_stats stats; /* the fields counted as they happen */
    size_t held_bytes;      /* of all items */
    uint64_t round;         /* mt_offload_begin so far */
    mt_copy_times times_before, disk_times_before;
    mti_offload_books books;
};

/* For tests; NULL for host memory. */
mti_disk *mti_offload_disk(mt_offload *o);

/* All under the lock. */
mti_item *mti_item_new(mt_offload *o, const mt_save_info *info, mt_tensor *t);
void mti_item_free(mt_offload *o, mti_item *item);
/* Waits until the oldest item in `leaving` has left. */
mt_status mti_item_depart(mt_offload *o);
/* A tensor over the item's bytes, borrowed until mti_item_read. NULL on failure. */
mt_tensor *mti_item_bring(mt_offload *o, mti_item *item, const mt_save_info *info);
/* One more saved tensor has read what came back. */
void mti_item_read(mti_item *item);
/* Begins to bring back items packed before `item`, except those that `node` has read. */
void mti_item_prefetch(mt_offload *o, mti_item *item, uint64_t node);

#endif
