/* corpus.c: reading files and folders of text. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "trainer/corpus.h"

#define MAX_FILE        ((size_t)1 << 32) /* larger ones would have to be streamed */
#define MAX_DEPTH       32                /* of folders */
#define MAX_FOLDER_FILE ((size_t)1 << 20) /* larger ones in folders are data, not text */

static bool append(unsigned char **to, size_t *n, const unsigned char *from, size_t n_bytes)
{
    if (n_bytes == 0) return true;
    unsigned char *grown = mti_realloc(*to, *n + n_bytes);
    if (!grown) return false;
    memcpy(grown + *n, from, n_bytes);
    *to = grown;
    *n += n_bytes;
    return true;
}

/* Identifies a file whatever path leads to it. */
typedef struct mti_file_id {
    dev_t device;
    ino_t number;
} mti_file_id;

static bool note_file(mti_corpus *c, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return true; /* deleted since it was read */
    return MTI_PUSH(&c->files, ((mti_file_id){st.st_dev, st.st_ino}));
}

bool mti_corpus_has(const mti_corpus *c, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return false;
    for (size_t i = 0; i < c->files.n; i++)
        if (c->files.at[i].device == st.st_dev && c->files.at[i].number == st.st_ino) return true;
    return false;
}

static bool add_text(mti_corpus *c, const unsigned char *text, size_t n_bytes, double held_fraction)
{
    size_t n_held = (size_t)((double)n_bytes * held_fraction), n_train = n_bytes - n_held;
    c->n_files++;
    return append(&c->train, &c->n_train, text, n_train) &&
           append(&c->held, &c->n_held, text + n_train, n_held);
}

static bool add_file(mti_corpus *c, const char *path, double held_fraction, bool must_be_text)
{
    size_t n_bytes;
    unsigned char *text = mti_file_read(path, MAX_FILE, &n_bytes);
    if (!text) return false;
    bool ok = true;
    if (must_be_text && memchr(text, 0, n_bytes)) goto out;
    if (n_bytes == 0 && !must_be_text)
        ok = mti_fail_bool(MT_ERR_FORMAT, "%s: the file is empty; there is nothing to learn", path);
    ok = ok && note_file(c, path) && add_text(c, text, n_bytes, held_fraction);
out:
    mti_free(text);
    return ok;
}

/* ---- folders ---- */

typedef MTI_VEC(char *) names;

static void free_names(names *list)
{
    for (size_t i = 0; i < list->n; i++) mti_free(list->at[i]);
    mti_free(list->at);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *joined(const char *folder, const char *name)
{
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = mti_malloc(n);
    if (path) snprintf(path, n, "%s/%s", folder, name);
    return path;
}

/* The sorted paths of a folder's entries. */
static bool list_folder(const char *folder, names *list)
{
    DIR *dir = opendir(folder);
    if (!dir) return mti_fail_bool(MT_ERR_IO, "%s: %s", folder, strerror(errno));
    bool ok = true;
    for (struct dirent *d; ok && (d = readdir(dir));) {
        if (*d->d_name == '.' || !strncmp(d->d_name, "build", 5)) continue;
        char *path = joined(folder, d->d_name);
        ok = path && MTI_PUSH(list, path);
        if (!ok) mti_free(path);
    }
    closedir(dir);
    if (ok && list->n) qsort(list->at, list->n, sizeof *list->at, by_name);
    return ok;
}

static bool add_folder(mti_corpus *c, const char *folder, double held_fraction, int depth)
{
    names list = {0};
    bool ok = list_folder(folder, &list);
    for (size_t i = 0; ok && i < list.n; i++) {
        struct stat st;
        if (lstat(list.at[i], &st) != 0) continue; /* deleted since it was listed */
        if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH)
            ok = add_folder(c, list.at[i], held_fraction, depth + 1);
        else if (S_ISREG(st.st_mode) && (size_t)st.st_size <= MAX_FOLDER_FILE)
            ok = add_file(c, list.at[i], held_fraction, true);
    }
    free_names(&list);
    return ok;
}

static bool add_path(mti_corpus *c, const char *path, double held_fraction, bool folders)
{
    struct stat st;
    if (stat(path, &st) != 0) return mti_fail_bool(MT_ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return add_file(c, path, held_fraction, false);
    if (!folders) return mti_fail_bool(MT_ERR_IO, "%s: is a folder; give files", path);
    return add_folder(c, path, held_fraction, 0);
}

bool mti_corpus_load(mti_corpus *c, size_t n_paths, const char *const *paths, double held_fraction,
                     bool folders)
{
    *c = (mti_corpus){0};
    for (size_t i = 0; i < n_paths; i++)
        if (!add_path(c, paths[i], held_fraction, folders)) return false;
    if (c->n_files == 0) return mti_fail_bool(MT_ERR_IO, "%s: no text files in it", paths[0]);
    uint64_t hash = mti_hash_bytes(MTI_HASH_BEGIN, c->train, c->n_train);
    c->fingerprint = mti_hash_bytes(hash, c->held, c->n_held);
    return true;
}

void mti_corpus_free(mti_corpus *c)
{
    mti_free(c->train);
    mti_free(c->held);
    mti_free(c->files.at);
    *c = (mti_corpus){0};
}
