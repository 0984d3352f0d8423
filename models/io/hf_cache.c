/* hf_cache.c: where a config.json lies: a file, in a folder, or in Hugging Face's local cache; and
 * reading it from there. */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "io/gguf.h"
#include "io/hf_config.h"
#include "memtape/models/model.h"

#define LONGEST 4096

/* Writes a path; "" if it is too long to be one. */
static char *format_path(char path[LONGEST], const char *fmt, ...) MT_PRINTF(2, 3);
static char *format_path(char path[LONGEST], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = mti_vformat(path, LONGEST, fmt, args);
    va_end(args);
    if (n >= LONGEST) *path = 0;
    return path;
}

/* The name of "org/name"; NULL if it is a path. */
static const char *name_in_hub(const char *path)
{
    const char *slash = strchr(path, '/');
    size_t n = strlen(path);
    bool file = *path == '.' || (n > 5 && !strcmp(path + n - 5, ".json"));
    return file || !slash || slash == path || !slash[1] || strchr(slash + 1, '/') ? NULL
                                                                                  : slash + 1;
}

/* As huggingface_hub finds it. */
static void find_hub(char path[LONGEST])
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    *path = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places && !*path; i++) {
        const char *value = getenv(places[i].variable);
        if (value && *value) format_path(path, "%s%s", value, places[i].below);
    }
}

/* The snapshot that `main` names, else any that has the file. */
static bool find_snapshot(const char *model, char file[LONGEST])
{
    char path[LONGEST], *text;
    size_t n;
    text = mti_file_read(format_path(path, "%s/refs/main", model), 1024, &n);
    if (text) text[strcspn(text, " \r\n")] = 0;
    if (text) format_path(file, "%s/snapshots/%s/config.json", model, text);
    bool found = text && !access(file, R_OK);
    mti_free(text);
    mt_clear_error();
    DIR *folder = found ? NULL : opendir(format_path(path, "%s/snapshots", model));
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
        if (*entry->d_name != '.')
            found = !access(format_path(file, "%s/snapshots/%s/config.json", model, entry->d_name),
                            R_OK);
    if (folder) closedir(folder);
    return found;
}

char *mti_config_path(const char *path)
{
    char file[LONGEST], hub[LONGEST], model[LONGEST];
    size_t n = strlen(path);
    const char *name = name_in_hub(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (mti_is_folder(path)) return mti_strdup(format_path(file, "%.*s/config.json", (int)n, path));
    if (!name || !access(path, F_OK)) return mti_strdup(path);
    find_hub(hub);
    format_path(model, "%s/models--%.*s--%s", hub, (int)(name - path) - 1, path, name);
    if (find_snapshot(model, file)) return mti_strdup(file);
    mti_fail(MT_ERR_IO,
             "%s: there is no such file, and no config.json of it in Hugging Face's cache, %s; hf "
             "download %s config.json puts it there",
             path, hub, path);
    return NULL;
}

/* Replaces "config.json" in the error by the file's path. */
static mt_status name_the_file(const char *path, mt_status status)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", mt_last_error());
    size_t n = strlen(MTI_ANY_FILE);
    mt_clear_error();
    return mti_fail(status, "%.200s: %s", path, strncmp(text, MTI_ANY_FILE, n) ? text : text + n);
}

#define LARGEST_FILE ((size_t)16 << 20)

mt_status mt_model_config_from_hf_file(const char *path, mt_model_config *out, char *notes,
                                       size_t n_bytes)
{
    size_t n;
    if (!path || !out || (n_bytes && !notes))
        return mti_fail(MT_ERR_ARGUMENT, MTI_ANY_FILE "the %s is NULL",
                        !path  ? "path"
                        : !out ? "result"
                               : "buffer for notes");
    if (n_bytes) *notes = '\0';
    if (mti_is_gguf(path)) return mti_gguf_config(path, out) ? MT_OK : mt_last_status();
    char *file = mti_config_path(path);
    if (!file) return mt_last_status();
    char *text = mti_file_read(file, LARGEST_FILE, &n);
    mti_free(file);
    if (!text) return mt_last_status();
    bool is_text = strlen(text) == n;
    mt_status status = is_text ? mt_model_config_from_hf(text, out, notes, n_bytes)
                               : mti_fail(MT_ERR_FORMAT, "%.200s: has zero bytes; need JSON", path);
    mti_free(text);
    return status == MT_OK || !is_text || status == MT_ERR_MEMORY ? status
                                                                  : name_the_file(path, status);
}
