/* hf_files.c: which files of a folder have its weights. An index is not trusted: it may name files
 * beside it only, each has to be there, and has to have the tensors that the index says it has. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "io/hf_files.h"
#include "files/json_text.h"

#define ONE           "model.safetensors"
#define INDEX         "model.safetensors.index.json"
#define LARGEST_INDEX ((size_t)64 << 20)
#define LONGEST       MTI_PATH

static bool add_file(mti_hf_files *files, const char *path)
{
    mt_safetensors *f = mt_safetensors_open(path);
    if (f && MTI_PUSH(files, f)) return true;
    mt_safetensors_free(f);
    return false;
}

/* ---- the parts that an index names ---- */

static mt_safetensors *opened(const mti_hf_files *files, const char *path)
{
    for (size_t i = 0; i < files->n; i++)
        if (!strcmp(files->at[i]->path, path)) return files->at[i];
    return NULL;
}

/* Opens the part that has the tensor, if no earlier tensor has. */
static bool add_part(mti_hf_files *files, const char *folder, const char *index, const char *tensor,
                     const char *part)
{
    char path[LONGEST], shown[2][MTI_SHOWN];
    mti_shown(shown[0], tensor);
    if (!part || !*part || *part == '.' || strchr(part, '/'))
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: the file of tensor \"%s\" is \"%s\"; need the name of a file "
                             "beside the index",
                             index, shown[0], mti_shown(shown[1], part ? part : ""));
    if (!mti_path_in(path, folder, part)) return false;
    mt_safetensors *f = opened(files, path);
    if (!f && access(path, F_OK) != 0)
        return mti_fail_bool(MT_ERR_IO, "%s: is not there, and %s names it", path, index);
    if (!f && !add_file(files, path)) return false;
    if (!f) f = files->at[files->n - 1];
    return mt_safetensors_find(f, tensor, NULL) ||
           mti_fail_bool(MT_ERR_FORMAT, "%s: has no tensor \"%s\", and %s says that it has", path,
                         shown[0], index);
}

static bool add_indexed(mti_hf_files *files, const char *folder, const char *index)
{
    const char *tensor;
    json_t *root = mti_json_file(index, LARGEST_INDEX);
    json_t *map = json_object_get(root, "weight_map"), *part;
    bool ok = json_is_object(map);
    if (root && !ok) mti_fail(MT_ERR_FORMAT, "%s: has no object \"weight_map\"", index);
    if (ok) json_object_foreach(map, tensor, part)
        {
            ok = add_part(files, folder, index, tensor, json_string_value(part));
            if (!ok) break;
        }
    if (ok && !files->n) ok = mti_fail_bool(MT_ERR_FORMAT, "%s: names no files", index);
    json_decref(root);
    return ok;
}

/* ---- without an index ---- */

/* Parts are numbered: all of them have to be there. */
static bool add_parts(mti_hf_files *files, const char *folder)
{
    char path[LONGEST];
    long all = 0, i;
    DIR *dir = opendir(folder);
    if (!dir) return mti_fail_bool(MT_ERR_IO, "%s: %s", folder, strerror(errno));
    bool ok = true, pickled = false;
    for (struct dirent *entry; ok && (entry = readdir(dir));) {
        pickled = pickled || !fnmatch("pytorch_model*.bin", entry->d_name, 0);
        if (fnmatch("model-*-of-*.safetensors", entry->d_name, 0) != 0) continue;
        if (sscanf(entry->d_name, "model-%ld-of-%ld.", &i, &all) < 2) all = 0;
        ok = mti_path_in(path, folder, entry->d_name) && add_file(files, path);
    }
    closedir(dir);
    if (ok && !files->n)
        return mti_fail_bool(MT_ERR_IO, "%s: has no model.safetensors%s", folder,
                             pickled ? ": a pytorch_model.bin is not read; save_pretrained of "
                                       "Transformers writes a model.safetensors"
                                     : "");
    return ok && ((long)files->n == all ||
                  mti_fail_bool(MT_ERR_IO,
                                "%s: has %zu of %ld parts of a model.safetensors, and no " INDEX
                                " to name them",
                                folder, files->n, all));
}

/* ---- both ---- */

/* Whether no earlier file has a tensor of the i-th. */
static bool is_in_one_file(const mti_hf_files *files, mti_name_index *seen, size_t i)
{
    bool ok = true;
    for (size_t k = 0; ok && k < files->at[i]->entries.n; k++) {
        const char *name = files->at[i]->entries.at[k].info.name;
        const size_t other = mti_name_index_find(seen, name, strlen(name));
        char shown[MTI_SHOWN];
        ok = other == MTI_NO_PLACE ? mti_name_index_add(seen, name, i)
                                   : mti_fail_bool(MT_ERR_FORMAT, "%s: tensor \"%s\" is in %s, too",
                                                   files->at[i]->path, mti_shown(shown, name),
                                                   files->at[other]->path);
    }
    return ok;
}

static bool have_other_names(const mti_hf_files *files)
{
    mti_name_index seen = {0};
    bool ok = true;
    for (size_t i = 0; ok && files->n > 1 && i < files->n; i++)
        ok = is_in_one_file(files, &seen, i);
    mti_name_index_free(&seen);
    return ok;
}

bool mti_hf_files_open(mti_hf_files *files, const char *path)
{
    char file[LONGEST];
    *files = (mti_hf_files){0};
    if (!mti_is_folder(path)) return add_file(files, path);
    if (!mti_path_in(file, path, ONE)) return false;
    if (access(file, F_OK) == 0) return add_file(files, file);
    if (!mti_path_in(file, path, INDEX)) return false;
    return (access(file, F_OK) == 0 ? add_indexed(files, path, file) : add_parts(files, path)) &&
           have_other_names(files);
}

void mti_hf_files_close(mti_hf_files *files)
{
    for (size_t i = 0; i < files->n; i++) mt_safetensors_free(files->at[i]);
    mti_free(files->at);
    *files = (mti_hf_files){0};
}
