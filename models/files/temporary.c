/* temporary.c: temporary files while they are written, and the removal of abandoned ones.
 *
 * The writer holds a lock on its file; the lock ends with the process, however that ends. So a file
 * that can be locked is abandoned, even if another container of this machine made it, whose process
 * numbers mean nothing here. Other machines may not see the lock (NFS without locking), so a file
 * of another boot must also be unmodified for a day. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "files/temporary.h"

#define MARK    ".tmp-"
#define A_DAY   (24 * 60 * 60)
#define TRIES   1000
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

/* Identifies this boot of this kernel; 0 if unknown. */
static uint32_t boot(void)
{
    char text[64];
    int fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text);
    if (fd >= 0) close(fd);
    uint64_t hash = n > 0 ? mti_hash_bytes(MTI_HASH_BEGIN, text, (size_t)n) : 0;
    return (uint32_t)(hash ^ hash >> 32);
}

/* ---- making ---- */

/* Locks the file; false if a cleanup removed it before. If locks do not work, there is no cleanup
 * either. */
static bool keep(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

int mti_temporary_open(const char *target, mode_t mode, char **name)
{
    size_t room = strlen(target) + 64;
    uint32_t here = boot();
    if (!(*name = mti_malloc(room))) return -1;
    for (int i = 1; i <= TRIES; i++) {
        snprintf(*name, room, "%s" MARK "%08x-%ld-%d", target, here, (long)getpid(), i);
        int fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd >= 0 && keep(fd)) return fd;
        if (fd >= 0) close(fd);
        if (fd < 0 && errno != EEXIST) return -1;
    }
    errno = EEXIST;
    return -1;
}

/* ---- cleaning up ---- */

/* Whether a file has the name of a temporary file; *from: its boot. */
static bool is_temporary(const char *name, uint32_t *from)
{
    const char *at = NULL;
    for (const char *next = name; (next = strstr(next, MARK)); next++) at = next + strlen(MARK);
    if (!at || strspn(at, "0123456789abcdef") != 8 || at[8] != '-') return false;
    *from = (uint32_t)strtoul(at, NULL, 16);
    size_t pid = strspn(at += 9, "0123456789");
    if (!pid || at[pid] != '-') return false;
    size_t i = strspn(at += pid + 1, "0123456789");
    return i && !at[i];
}

static bool is_dead(int fd, const struct stat *st, uint32_t from)
{
    if (!S_ISREG(st->st_mode) || st->st_uid != geteuid()) return false;
    if (from != boot() && time(NULL) - st->st_mtime < A_DAY) return false;
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

static void remove_if_dead(int folder, const char *name, uint32_t from)
{
    struct stat opened, named;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    /* Its writer may have renamed it meanwhile: the name is gone, or belongs to another file. */
    if (fstat(fd, &opened) == 0 && is_dead(fd, &opened, from) &&
        fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_dev == opened.st_dev &&
        named.st_ino == opened.st_ino)
        unlinkat(folder, name, 0);
    close(fd);
}

static DIR *open_folder_of(const char *target)
{
    char folder[4096];
    const char *slash = strrchr(target, '/');
    size_t n = slash ? (size_t)(slash - target) + 1 : 0;
    if (n >= sizeof folder) return NULL;
    memcpy(folder, target, n);
    folder[n] = '\0';
    return opendir(n ? folder : ".");
}

void mti_temporary_clean(const char *target)
{
    uint32_t from;
    DIR *folder = open_folder_of(target);
    if (!folder) return;
    for (struct dirent *d; (d = readdir(folder));)
        if (is_temporary(d->d_name, &from)) remove_if_dead(dirfd(folder), d->d_name, from);
    closedir(folder);
}
