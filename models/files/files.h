/* files.h: files, written to a temporary file and renamed, so that the target is never incomplete
 * (a device or a pipe, such as /dev/stdout, is written directly; for a symbolic link its target is
 * replaced). */
#ifndef MTI_FILES_H
#define MTI_FILES_H

#include "base/base.h"

typedef struct mti_file mti_file;
/* Opens the temporary file, and removes those that processes which died left in the same folder. */
mti_file *mti_file_create(const char *path);
bool mti_file_write(mti_file *f, const void *data, size_t n_bytes);
/* A stream that writes into f; close it before committing f. Its ferror is reliable, unlike that of
 * open_memstream, which drops data without setting it when memory runs out. */
FILE *mti_file_stream(mti_file *f);
/* For a file that several processes write: where its bytes go until the commit; another process
 * that opens this place, to write at positions of it (path: for messages), and ends with
 * mti_file_commit, which then only closes; all bytes on the disk, before the commit. */
const char *mti_file_place(const mti_file *f);
mti_file *mti_file_join(const char *path, const char *place);
bool mti_file_write_at(mti_file *f, uint64_t at, const void *data, size_t n_bytes);
bool mti_file_sync(mti_file *f);
bool mti_file_commit(mti_file *f); /* flush, fsync, rename; frees f either way */
void mti_file_abandon(mti_file *f);
/* Writes a whole file so. */
bool mti_file_write_all(const char *path, const void *data, size_t n);
/* "folder/name"; slashes at the folder's end do not count. An error if it is too long. */
#define MTI_PATH 4096
bool mti_path_in(char path[MTI_PATH], const char *folder, const char *name);
/* The path with symbolic links resolved, whether the file exists or not; the caller mti_frees
 * it. */
char *mti_path_target(const char *path);
/* The path of what is there, from the root, to be mti_freed; NULL on failure. */
char *mti_path_from_root(const char *path);
bool mti_is_folder(const char *path); /* links followed */
/* Opens a file to read parts of it, and sets *n_bytes. Anything but a regular file is refused; a
 * pipe's writer is not waited for. -1 on failure. */
int mti_file_open(const char *path, uint64_t *n_bytes);
/* Reads n bytes of the open file; path is for messages. */
bool mti_read_at(int fd, const char *path, uint64_t offset, void *data, size_t n);
/* Reads a whole file; sets *n_bytes. The caller mti_frees it. Refuses more than limit bytes.
 * A zero byte, not counted, follows the last. */
void *mti_file_read(const char *path, size_t limit, size_t *n_bytes);

/* What a file that begins so is in the place of the one that was wanted: a Git LFS pointer, a web
 * page; NULL: neither. */
const char *mti_stand_in(const void *bytes, size_t n);

#endif
