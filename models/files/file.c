/* file.c: files that are complete or absent. A file is written beside its target
 * and renamed over it once it is on disk; until then, and after any failure, the
 * target is unchanged. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "files/files.h"
#include "files/temporary.h"

#define BUFFER_BYTES (64 * 1024)
#define MAX_LINKS    40

struct mti_file {
    int fd;
    bool failed;
    char *path;      /* as given, for messages */
    char *target;    /* the file to replace: path with links resolved */
    char *temporary; /* NULL: a pipe or a device, written in place */
    size_t n;        /* bytes waiting in the buffer */
    char buffer[BUFFER_BYTES];
};

static bool io_error(const char *path, const char *what)
{
    return mti_fail_bool(MT_ERR_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* The path that the link at `path` points to, seen from the working directory. */
static char *step(const char *path, const char *to)
{
    const char *slash = *to == '/' ? NULL : strrchr(path, '/');
    size_t n_folder = slash ? (size_t)(slash - path) + 1 : 0, n = strlen(to);
    char *next = mti_malloc(n_folder + n + 1);
    if (!next) return NULL;
    memcpy(next, path, n_folder);
    memcpy(next + n_folder, to, n + 1);
    return next;
}

char *mti_path_target(const char *path)
{
    char *at = mti_strdup(path), to[4096];
    for (int links = 0; at && links < MAX_LINKS; links++) {
        ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0) return at; /* not a link; opening reports any other problem */
        to[n] = '\0';
        char *next = step(at, to);
        mti_free(at);
        at = next;
    }
    if (!at) return NULL;
    mti_free(at);
    errno = ELOOP;
    io_error(path, "follow the link");
    return NULL;
}

static bool open_temporary(mti_file *f, mode_t mode)
{
    if (!(f->target = mti_path_target(f->path))) return false;
    mti_temporary_clean(f->target);
    f->fd = mti_temporary_open(f->target, mode, &f->temporary);
    if (f->fd >= 0 || !f->temporary) return f->fd >= 0;
    io_error(f->path, "create a file beside it");
    mti_free(f->temporary); /* not ours: nothing to unlink */
    f->temporary = NULL;
    return false;
}

static bool open_target(mti_file *f)
{
    struct stat st;
    if (stat(f->path, &st) != 0)
        return *f->path ? open_temporary(f, 0666) : io_error("\"\"", "create");
    if (S_ISREG(st.st_mode)) {
        /* A private file stays private. */
        if (!open_temporary(f, 0600)) return false;
        return fchmod(f->fd, st.st_mode & 07777) == 0 || io_error(f->path, "keep its permissions");
    }
    /* A rename would replace a device such as /dev/null by a plain file. */
    f->fd = open(f->path, O_WRONLY | O_CLOEXEC);
    return f->fd >= 0 || io_error(f->path, "open");
}

/* Not open yet. */
static mti_file *new_file(const char *path)
{
    mti_file *f = mti_malloc(sizeof *f);
    if (!f) return NULL;
    f->fd = -1, f->failed = false, f->target = f->temporary = NULL, f->n = 0;
    if ((f->path = mti_strdup(path))) return f;
    mti_file_abandon(f);
    return NULL;
}

mti_file *mti_file_create(const char *path)
{
    mti_file *f = new_file(path);
    if (!f || open_target(f)) return f;
    mti_file_abandon(f);
    return NULL;
}

const char *mti_file_place(const mti_file *f) { return f->temporary ? f->temporary : f->path; }

mti_file *mti_file_join(const char *path, const char *place)
{
    mti_file *f = new_file(path);
    if (!f) return NULL;
    f->fd = open(place, O_WRONLY | O_CLOEXEC);
    if (f->fd >= 0) return f;
    io_error(place, "open (all ranks write one file, in a folder that all of them see)");
    mti_file_abandon(f);
    return NULL;
}

#define IN_ORDER (-1)

/* At a position, or IN_ORDER. */
static bool write_all(mti_file *f, off_t at, const char *data, size_t n_bytes)
{
    while (n_bytes) {
        ssize_t n = at == IN_ORDER ? write(f->fd, data, n_bytes) : pwrite(f->fd, data, n_bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            f->failed = true;
            return io_error(f->path, "write");
        }
        data += n, n_bytes -= (size_t)n;
        if (at != IN_ORDER) at += n;
    }
    return true;
}

static bool flush(mti_file *f)
{
    size_t n = f->n;
    f->n = 0;
    return write_all(f, IN_ORDER, f->buffer, n);
}

bool mti_file_write(mti_file *f, const void *data, size_t n_bytes)
{
    if (f->failed) return false;
    if (n_bytes > BUFFER_BYTES - f->n && !flush(f)) return false;
    if (n_bytes > BUFFER_BYTES) return write_all(f, IN_ORDER, data, n_bytes);
    if (n_bytes) memcpy(f->buffer + f->n, data, n_bytes);
    f->n += n_bytes;
    return true;
}

bool mti_file_write_at(mti_file *f, uint64_t at, const void *data, size_t n_bytes)
{
    return !f->failed && write_all(f, (off_t)at, data, n_bytes);
}

/* What is not on a disk cannot be synced. */
bool mti_file_sync(mti_file *f)
{
    if (f->failed || !flush(f)) return false;
    return fsync(f->fd) == 0 || errno == EINVAL || errno == EROFS ||
           io_error(f->path, "write to the disk");
}

#ifdef __APPLE__
static int write_cookie(void *f, const char *data, int n_bytes)
{
    return mti_file_write(f, data, (size_t)n_bytes) ? n_bytes : -1;
}

static FILE *stream_of(mti_file *f) { return funopen(f, NULL, write_cookie, NULL, NULL); }
#else
static ssize_t write_cookie(void *f, const char *data, size_t n_bytes)
{
    return mti_file_write(f, data, n_bytes) ? (ssize_t)n_bytes : 0;
}

static FILE *stream_of(mti_file *f)
{
    return fopencookie(f, "w", (cookie_io_functions_t){.write = write_cookie});
}
#endif

FILE *mti_file_stream(mti_file *f)
{
    FILE *out = stream_of(f);
    return out ? out : mti_fail_null(MT_ERR_MEMORY, "%s: no memory to write it with", f->path);
}

/* Syncs the directory, so that the rename survives a crash. Best effort: either way
 * the target is complete. Cuts `sibling`, a path in that directory, down to the
 * directory. */
static void sync_directory(char *sibling)
{
    char *slash = strrchr(sibling, '/');
    if (slash) slash[slash == sibling] = '\0';
    int fd = open(slash ? sibling : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

bool mti_file_commit(mti_file *f)
{
    bool ok = !f->failed && flush(f);
    if (ok && f->temporary) ok = fsync(f->fd) == 0 || io_error(f->path, "write to the disk");
    if (ok && f->temporary) { /* still locked, so that no cleanup removes it */
        ok = rename(f->temporary, f->target) == 0 || io_error(f->path, "replace");
        if (ok) {
            sync_directory(f->temporary);
            mti_free(f->temporary);
            f->temporary = NULL;
        }
    }
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) != 0 && ok) ok = io_error(f->path, "close");
    mti_file_abandon(f);
    return ok;
}

void mti_file_abandon(mti_file *f)
{
    if (!f) return;
    if (f->temporary) unlink(f->temporary);
    if (f->fd >= 0) close(f->fd);
    mti_free(f->temporary);
    mti_free(f->target);
    mti_free(f->path);
    mti_free(f);
}

/* ---- reading ---- */

static void *too_long(const char *path, size_t limit)
{
    return mti_fail_null(MT_ERR_FORMAT, "%s: longer than the %zu bytes that are allowed here", path,
                         limit);
}

/* Reads to the end, whatever the expected size: pipes have none, and a file may
 * grow or shrink meanwhile. A zero byte follows, for readers of text. */
static void *read_all(int fd, const char *path, size_t expected, size_t limit, size_t *n_bytes)
{
    size_t room = expected + 1, n = 0;
    char *data = mti_malloc(room + 1);
    while (data) {
        if (n == room) {
            char *more = mti_mul_size(room, 2, &room) ? mti_realloc(data, room + 1) : NULL;
            if (!more) break;
            data = more;
        }
        ssize_t got = read(fd, data + n, room - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            io_error(path, "read");
            break;
        }
        if (got == 0) {
            data[n] = '\0';
            *n_bytes = n;
            return data;
        }
        n += (size_t)got;
        if (n > limit) {
            too_long(path, limit);
            break;
        }
    }
    mti_free(data);
    return NULL;
}

bool mti_file_write_all(const char *path, const void *data, size_t n)
{
    mti_file *f = mti_file_create(path);
    if (!f) return false;
    if (mti_file_write(f, data, n)) return mti_file_commit(f);
    mti_file_abandon(f);
    return false;
}

bool mti_path_in(char path[MTI_PATH], const char *folder, const char *name)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    const int all = snprintf(path, MTI_PATH, "%.*s/%s", (int)n, folder, name);
    return (all >= 0 && all < MTI_PATH) ||
           mti_fail_bool(MT_ERR_IO, "%.80s...: the path is too long", folder);
}

char *mti_path_from_root(const char *path)
{
    char whole[PATH_MAX];
    if (realpath(path, whole)) return mti_strdup(whole);
    return mti_fail_null(MT_ERR_IO, "%s: %s", path, strerror(errno));
}

bool mti_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int mti_file_open(const char *path, uint64_t *n_bytes)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0)
        io_error(path, "open");
    else if (!S_ISREG(st.st_mode))
        mti_fail(MT_ERR_IO, "%s: is not a regular file", path);
    else {
        *n_bytes = (uint64_t)st.st_size;
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

void *mti_file_read(const char *path, size_t limit, size_t *n_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *data = NULL;
    if (fd < 0 || fstat(fd, &st) != 0)
        io_error(path, "open");
    else if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > limit)
        too_long(path, limit);
    else
        data = read_all(fd, path, S_ISREG(st.st_mode) ? (size_t)st.st_size : 4095, limit, n_bytes);
    if (fd >= 0) close(fd);
    return data;
}

bool mti_read_at(int fd, const char *path, uint64_t offset, void *data, size_t n)
{
    for (char *p = data; n;) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return io_error(path, "read");
        if (got == 0)
            return mti_fail_bool(MT_ERR_IO, "%s: was shortened after it was opened", path);
        p += got, offset += (uint64_t)got, n -= (size_t)got;
    }
    return true;
}

const char *mti_stand_in(const void *bytes, size_t n)
{
    static const char pointer[] = "version https://git-lfs";
    const size_t m = sizeof pointer - 1;
    if (n >= 8 && !memcmp(bytes, pointer, n < m ? n : m))
        return "a Git LFS pointer, which stands for the file; `git lfs pull` fetches it";
    static const char *const pages[] = {"<!DOC", "<!doc", "<html", "<HTML", "<?xml"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (n >= 5 && !memcmp(bytes, pages[i], 5)) /* one letter alone may begin any file */
            return "a web page (HTML) and not the file; download the file itself";
    return NULL;
}
