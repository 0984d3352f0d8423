/* corpus.c: reading files and folders of text. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "files/json_text.h"
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

/* A document's part; of none nothing. */
static bool add_part(mti_corpus *c, bool held, const void *text, size_t n)
{
    mti_part_text *part = held ? &c->kept : &c->learnt;
    size_t *end = held ? &c->n_held : &c->n_train;
    return !n || (append(held ? &c->held : &c->train, end, text, n) && MTI_PUSH(&part->ends, *end));
}

static bool add_text(mti_corpus *c, const unsigned char *text, size_t n_bytes, double held_fraction)
{
    size_t n_held = (size_t)((double)n_bytes * held_fraction), n_train = n_bytes - n_held;
    c->n_files++;
    return add_part(c, false, text, n_train) && add_part(c, true, text + n_train, n_held);
}

/* ---- a document a line ---- */

static bool add_string(mti_corpus *c, bool held, const json_t *first, const json_t *second)
{
    const size_t n = json_string_length(first), more = json_string_length(second);
    char *text = mti_malloc(n + more + 1);
    if (text) memcpy(text, json_string_value(first), n);
    if (text && more) memcpy(text + n, json_string_value(second), more);
    if (text) text[n + more] = '\n'; /* between documents that are bytes */
    bool ok = text && add_part(c, held, text, n + more + 1);
    mti_free(text);
    return ok;
}

static bool add_line(mti_corpus *c, bool held, const char *path, long long number, const char *line,
                     size_t n)
{
    json_error_t error;
    const uint64_t failures = mti_failures();
    json_t *j = mti_json_read(line, n, &error);
    const json_t *text = json_object_get(j, "text"), *prompt = json_object_get(j, "prompt"),
                 *completion = json_object_get(j, "completion");
    bool ok = false;
    if (json_is_string(text))
        ok = add_string(c, held, text, NULL);
    else if (json_is_string(prompt) && json_is_string(completion))
        ok = add_string(c, held, prompt, completion);
    else if (!j)
        mti_fail_around(failures, MT_ERR_FORMAT, "%s: line %lld, column %d: %s", path, number,
                        error.column, error.text);
    else
        mti_fail_around(failures, MT_ERR_FORMAT,
                        "%s: line %lld: need an object with \"text\", or with \"prompt\" and "
                        "\"completion\"%s",
                        path, number,
                        json_object_get(j, "messages") ? "; a chat template is not run here" : "");
    json_decref(j);
    return ok;
}

/* The last lines are held out. */
static bool add_lines(mti_corpus *c, const char *path, const char *text, size_t n_bytes,
                      double held_fraction)
{
    const size_t n_train = n_bytes - (size_t)((double)n_bytes * held_fraction);
    size_t at = 0;
    bool ok = true;
    c->n_files++;
    for (long long number = 1; ok && at < n_bytes; number++) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        const size_t n = end ? (size_t)(end - text) - at : n_bytes - at;
        bool blank = true;
        for (size_t i = 0; blank && i < n; i++) blank = strchr(" \t\r", text[at + i]) != NULL;
        if (!blank) ok = add_line(c, at + n > n_train, path, number, text + at, n);
        at += n + 1;
    }
    return ok;
}

static bool is_lines(const char *path)
{
    const size_t n = strlen(path);
    return n > 6 && !strcmp(path + n - 6, ".jsonl");
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
    ok = ok && note_file(c, path) &&
         (is_lines(path) ? add_lines(c, path, (const char *)text, n_bytes, held_fraction)
                         : add_text(c, text, n_bytes, held_fraction));
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

/* The sorted paths of a folder's entries. */
static bool list_folder(const char *folder, names *list)
{
    DIR *dir = opendir(folder);
    if (!dir) return mti_fail_bool(MT_ERR_IO, "%s: %s", folder, strerror(errno));
    bool ok = true;
    for (struct dirent *d; ok && (d = readdir(dir));) {
        if (*d->d_name == '.' || !strncmp(d->d_name, "build", 5)) continue;
        char whole[MTI_PATH], *path = NULL;
        ok = mti_path_in(whole, folder, d->d_name) && (path = mti_strdup(whole)) &&
             MTI_PUSH(list, path);
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

static bool note_path(mti_corpus *c, const char *path)
{
    char *whole = mti_path_from_root(path);
    if (whole && MTI_PUSH(&c->paths, whole)) return true;
    mti_free(whole);
    return false;
}

bool mti_corpus_load(mti_corpus *c, size_t n_paths, const char *const *paths, double held_fraction,
                     bool folders)
{
    *c = (mti_corpus){0};
    for (size_t i = 0; i < n_paths; i++)
        if (!add_path(c, paths[i], held_fraction, folders) || !note_path(c, paths[i])) return false;
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
    mti_free(c->learnt.ends.at), mti_free(c->kept.ends.at);
    mt_token_list_free(&c->learnt.ids), mt_token_list_free(&c->kept.ids);
    for (size_t i = 0; i < c->paths.n; i++) mti_free(c->paths.at[i]);
    mti_free(c->paths.at);
    *c = (mti_corpus){0};
}

/* ---- tokens ---- */

static bool encode_part(mti_part_text *part, const unsigned char *text, const mt_tokenizer *t)
{
    const int64_t *ends = NULL;
    const size_t n_ends = mt_tokenizer_ends(t, &ends);
    bool ok = true;
    for (size_t i = 0, from = 0, to; ok && i < part->ends.n; from = to, i++) {
        to = part->ends.at[i];
        ok = mti_encode(t, text + from, to - from, true, &part->ids) &&
             (!n_ends || MTI_PUSH(&part->ids, ends[0]));
        part->ends.at[i] = part->ids.n;
    }
    return ok;
}

bool mti_corpus_encode(mti_corpus *c, const mt_tokenizer *t)
{
    c->in_tokens = true;
    return encode_part(&c->learnt, c->train, t) && encode_part(&c->kept, c->held, t);
}

size_t mti_corpus_documents(const mti_corpus *c) { return c->learnt.ends.n; }

void mti_corpus_document(const mti_corpus *c, size_t i, size_t *begin, size_t *end)
{
    const size_t n = c->learnt.ends.n, *ends = c->learnt.ends.at;
    *begin = *end = 0;
    for (size_t tried = 0; tried < n; tried++, i++) {
        *begin = i % n ? ends[i % n - 1] : 0;
        if (ends[i % n] - *begin < 2) continue;
        *end = ends[i % n];
        return;
    }
}

size_t mti_corpus_length(const mti_corpus *c, bool held)
{
    if (c->in_tokens) return held ? c->kept.ids.n : c->learnt.ids.n;
    return held ? c->n_held : c->n_train;
}

int64_t mti_corpus_token(const mti_corpus *c, bool held, size_t i)
{
    if (c->in_tokens) return held ? c->kept.ids.at[i] : c->learnt.ids.at[i];
    return held ? c->held[i] : c->train[i];
}
