/* safetensors_write.c: writing tensors to a file, whole or not at all. */
#include <stdlib.h>
#include <string.h>
#include "nn/json_text.h"
#include "nn/safetensors.h"

/* Tensors are written by element size, widest first, and in the caller's order within a size. With
 * a header padded to 8 bytes each then begins at a multiple of its element size. */
static const size_t widths[] = {8, 4, 2, 1};

static size_t tensor_bytes(const mt_tensor *t)
{
    return (size_t)mt_numel(t) * mt_dtype_size(mt_dtype_of(t));
}

static json_t *describe(const mt_tensor *t, uint64_t begin)
{
    json_t *shape = json_array();
    bool ok = shape != NULL;
    for (int d = 0; d < mt_rank(t); d++)
        ok = ok && !json_array_append_new(shape, json_integer(mt_shape(t)[d]));
    if (!ok) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s,s:o,s:[I,I]}", "dtype", mti_safetensors_dtypes[mt_dtype_of(t)], "shape",
                     shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + tensor_bytes(t)));
}

/* Adds a new key; value is taken over. It is NULL if memory ran out since `failures` was taken, or
 * if it is not UTF-8. */
static bool add(const char *path, json_t *object, const char *kind, const char *key, json_t *value,
                uint64_t failures)
{
    if (json_object_get(object, key)) {
        json_decref(value);
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s \"%s\" is given twice", path, kind, key);
    }
    if (json_object_set_new(object, key, value) == 0) return true;
    mti_fail_around(failures, MT_ERR_ARGUMENT, "%s: %s \"%s\": is not UTF-8 (or memory ran out)",
                    path, kind, key);
    return false;
}

static bool add_metadata(const char *path, json_t *root, size_t n, const mt_key_value *pairs,
                         uint64_t failures)
{
    if (!n) return true;
    json_t *object = json_object();
    for (size_t i = 0; i < n; i++) {
        bool ok =
            pairs[i].key && pairs[i].value
                ? add(path, object, "metadata", pairs[i].key, json_string(pairs[i].value), failures)
                : mti_fail_bool(MT_ERR_ARGUMENT, "%s: metadata %zu is NULL", path, i);
        if (ok) continue;
        json_decref(object);
        return false;
    }
    return add(path, root, "tensor", "__metadata__", object, failures);
}

/* The JSON header, to be freed with mti_free; NULL on failure. */
static char *make_header(const char *path, size_t n, const mt_named_tensor *list, size_t n_metadata,
                         const mt_key_value *metadata, size_t *n_bytes)
{
    uint64_t begin = 0, failures = mti_failures();
    json_t *root = json_object();
    bool ok = add_metadata(path, root, n_metadata, metadata, failures);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; ok && i < n; i++) {
            if (mt_dtype_size(mt_dtype_of(list[i].tensor)) != widths[w]) continue;
            ok = add(path, root, "tensor", list[i].name, describe(list[i].tensor, begin), failures);
            begin += tensor_bytes(list[i].tensor);
        }
    char *text = ok ? mti_json_text(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text) *n_bytes = strlen(text);
    return text;
}

static bool write_header(mti_file *file, const char *text, size_t n_text)
{
    static const char spaces[8] = "        ";
    size_t n = (n_text + 7) / 8 * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)n >> (8 * i));
    return mti_file_write(file, length, 8) && mti_file_write(file, text, n_text) &&
           mti_file_write(file, spaces, n - n_text);
}

static bool write_tensor(mti_file *file, const mt_tensor *t)
{
    size_t n_bytes = tensor_bytes(t);
    void *data = mti_malloc(n_bytes);
    bool ok = data && mt_to_host(t, data, n_bytes) == MT_OK && mti_file_write(file, data, n_bytes);
    mti_free(data);
    return ok;
}

static bool write_all(mti_file *file, const char *header, size_t n_header, size_t n,
                      const mt_named_tensor *list)
{
    bool ok = write_header(file, header, n_header);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; ok && i < n; i++)
            if (mt_dtype_size(mt_dtype_of(list[i].tensor)) == widths[w])
                ok = write_tensor(file, list[i].tensor);
    return ok;
}

mt_status mt_safetensors_save(const char *path, size_t n, const mt_named_tensor *list,
                              size_t n_metadata, const mt_key_value *metadata)
{
    if (!path || (n && !list) || (n_metadata && !metadata))
        return mti_fail(MT_ERR_ARGUMENT, "safetensors_save: the %s is NULL",
                        !path        ? "path"
                        : n && !list ? "list"
                                     : "metadata");
    for (size_t i = 0; i < n; i++)
        if (!list[i].name)
            return mti_fail(MT_ERR_ARGUMENT, "%s: the name of tensor %zu to save is NULL", path, i);
        else if (!mti_given(list[i].tensor, path, "a tensor to save"))
            return mt_last_status();
    size_t n_header;
    char *header = make_header(path, n, list, n_metadata, metadata, &n_header);
    if (!header) return mt_last_status();
    mti_file *file = mti_file_create(path);
    bool ok = file && write_all(file, header, n_header, n, list);
    mti_free(header);
    if (file && ok)
        ok = mti_file_commit(file);
    else
        mti_file_abandon(file);
    return ok ? MT_OK : mt_last_status();
}

mt_status mt_safetensors_save_module(const char *path, mt_module *m, size_t n_metadata,
                                     const mt_key_value *metadata)
{
    const mt_named_tensor *list;
    size_t n;
    mt_status status = mt_module_params(m, &list, &n);
    return status == MT_OK ? mt_safetensors_save(path, n, list, n_metadata, metadata) : status;
}
