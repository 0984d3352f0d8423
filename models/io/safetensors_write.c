/* safetensors_write.c: writing tensors to a file, whole or not at all. */
#include <stdlib.h>
#include <string.h>
#include "files/files.h"
#include "files/json_text.h"
#include "io/safetensors.h"

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

/* The JSON header, to be freed with mti_free; NULL on failure. begins[n], unless NULL: where each
 * tensor's data begins after it. */
static char *header_text(const char *path, size_t n, const mt_named_tensor *list, size_t n_metadata,
                         const mt_key_value *metadata, uint64_t *begins)
{
    uint64_t begin = 0, failures = mti_failures();
    json_t *root = json_object();
    bool ok = add_metadata(path, root, n_metadata, metadata, failures);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t i = 0; ok && i < n; i++) {
            if (mt_dtype_size(mt_dtype_of(list[i].tensor)) != widths[w]) continue;
            ok = add(path, root, "tensor", list[i].name, describe(list[i].tensor, begin), failures);
            if (begins) begins[i] = begin;
            begin += tensor_bytes(list[i].tensor);
        }
    char *text = ok ? mti_json_text(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

char *mti_safetensors_head(const char *path, size_t n, const mt_named_tensor *list,
                           size_t n_metadata, const mt_key_value *metadata, size_t *n_bytes,
                           uint64_t *begins)
{
    char *text = header_text(path, n, list, n_metadata, metadata, begins);
    if (!text) return NULL;
    size_t n_text = strlen(text), padded = (n_text + 7) / 8 * 8;
    char *head = mti_malloc(8 + padded);
    if (head) {
        for (int i = 0; i < 8; i++) head[i] = (char)((uint64_t)padded >> (8 * i));
        memcpy(head + 8, text, n_text);
        memset(head + 8 + n_text, ' ', padded - n_text);
        *n_bytes = 8 + padded;
        for (size_t i = 0; begins && i < n; i++) begins[i] += *n_bytes;
    }
    mti_free(text);
    return head;
}

static bool write_tensor(mti_file *file, const mt_tensor *t)
{
    size_t n_bytes = tensor_bytes(t);
    void *data = mti_malloc(n_bytes);
    bool ok = data && mt_to_host(t, data, n_bytes) == MT_OK && mti_file_write(file, data, n_bytes);
    mti_free(data);
    return ok;
}

static bool write_all(mti_file *file, const char *head, size_t n_head, size_t n,
                      const mt_named_tensor *list)
{
    bool ok = mti_file_write(file, head, n_head);
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
    size_t n_head;
    char *head = mti_safetensors_head(path, n, list, n_metadata, metadata, &n_head, NULL);
    if (!head) return mt_last_status();
    mti_file *file = mti_file_create(path);
    bool ok = file && write_all(file, head, n_head, n, list);
    mti_free(head);
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
