/* lora_file.c: adapters as a safetensors file of their own, named as PEFT names them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "files/files.h"
#include "io/hf_config.h"
#include "io/lora_file.h"
#include "io/peft.h"

mt_status mt_lora_save(const char *path, mt_module *m)
{
    if (!path) return mti_fail(MT_ERR_ARGUMENT, "lora_save: the path is NULL");
    if (!mti_given(m, "lora_save", "the module")) return mt_last_status();
    if (mti_is_peft_folder(path)) return mti_peft_save(path, m) ? MT_OK : mt_last_status();
    mti_lora_list list;
    bool ok = mti_lora_list_make(&list, m) &&
              mt_safetensors_save(path, list.n, list.tensors, MTI_LORA_PAIRS, list.pairs) == MT_OK;
    mti_lora_list_free(&list);
    return ok ? MT_OK : mt_last_status();
}

/* ---- loading ---- */

/* The number under a key; false, without an error, if there is no number. */
static bool get_number(const mt_safetensors *f, const char *key, double *out)
{
    const char *text = mt_safetensors_metadata(f, key);
    char *end = NULL;
    if (text && *text) *out = mti_strtod(text, &end);
    return end && !*end && isfinite(*out);
}

/* Whether the tensors have the rank in the metadata, by which adapters are made. */
static bool has_rank(const char *path, const mt_safetensors *f, double rank)
{
    static const char ending[] = "." MTI_LORA_A ".weight";
    mt_safetensors_entry e;
    for (size_t i = 0; i < mt_safetensors_count(f); i++) {
        if (mt_safetensors_get(f, i, &e) != MT_OK) return false;
        size_t n = strlen(e.name);
        if (n < sizeof ending || strcmp(e.name + n - (sizeof ending - 1), ending) != 0) continue;
        if (e.rank >= 2 && (double)e.shape[e.rank - 2] == rank) return true;
        break;
    }
    return mti_fail_bool(MT_ERR_FORMAT,
                         "lora_load: the metadata of %s has rank %.0f; its tensors have another",
                         path, rank);
}

/* Reads the description of a file that is not a folder's. */
static bool describe(mti_lora_described *d, const mt_safetensors *f, const char *path)
{
    double rank;
    const char *text = mt_safetensors_metadata(f, MTI_KEY_TARGETS);
    if (!text || !get_number(f, MTI_KEY_RANK, &rank) || !get_number(f, MTI_KEY_ALPHA, &d->alpha) ||
        !get_number(f, MTI_KEY_DROPOUT, &d->dropout) || !(rank >= 1 && rank <= INT32_MAX))
        return mti_fail_bool(
            MT_ERR_FORMAT,
            "lora_load: %s does not have rank, alpha, dropout and targets, and the "
            "model has no adapters (mt_lora_add)",
            path);
    d->rank = (int64_t)rank;
    char *copy = mti_strdup(text), *rest = copy, *target;
    bool ok = copy && has_rank(path, f, rank);
    while (ok && (target = strsep(&rest, ","))) ok = mti_lora_describe_target(d, target);
    mti_free(copy);
    return ok;
}

static void forget(mti_lora_described *d)
{
    for (size_t i = 0; i < d->targets.n; i++) mti_free(d->targets.at[i]);
    mti_free(d->targets.at);
}

static bool add_described(mt_module *m, const mti_lora_described *d, mti_places *added)
{
    const mt_lora_options options = {.rank = d->rank,
                                     .alpha = d->alpha,
                                     .dropout = d->dropout,
                                     .n_targets = d->targets.n,
                                     .targets = (const char *const *)d->targets.at,
                                     .f32_adapters = d->f32};
    return mti_lora_add(m, &options, added);
}

/* The file's tensor for this weight, in any floating dtype; NULL and an error otherwise. */
static mt_tensor *read_weight(mt_safetensors *f, const mt_module *m, const char *path,
                              const char *part, mt_tensor *w)
{
    mt_safetensors_entry e;
    char *name = mti_lora_weight_name(m, path, part), has[MTI_SHAPE_TEXT], need[MTI_SHAPE_TEXT];
    mt_tensor *t = NULL;
    if (name && !mt_safetensors_find(f, name, NULL)) { /* older files have our paths */
        char *older = mti_lora_weight_name(NULL, path, part);
        if (older && mt_safetensors_find(f, older, NULL)) {
            mti_free(name);
            name = older, older = NULL;
        }
        mti_free(older);
    }
    if (!name) return NULL;
    if (!mt_safetensors_find(f, name, &e))
        mti_fail(MT_ERR_ARGUMENT, "lora_load: the file has no %s", name);
    else if (e.rank != mt_rank(w) ||
             memcmp(e.shape, mt_shape(w), (size_t)e.rank * sizeof *e.shape) ||
             !mt_dtype_is_float(e.dtype))
        mti_fail(MT_ERR_ARGUMENT, "lora_load: %s is %s %s; need floating %s", name,
                 mt_dtype_name(e.dtype), mti_shape_text(has, e.rank, e.shape),
                 mti_shape_text(need, mt_rank(w), mt_shape(w)));
    else
        t = mt_safetensors_read(f, name, mt_device_of(w));
    mti_free(name);
    return t;
}

/* Reads all tensors before it changes a weight: a failure changes nothing. */
static bool load_weights(mt_safetensors *f, const mt_module *m, const mti_places *loras)
{
    size_t n = 2 * loras->v.n;
    mt_tensor **read = mti_calloc(n, sizeof *read);
    bool ok = read != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        const mti_place *p = &loras->v.at[i / 2];
        mt_tensor *w = i % 2 ? mti_lora_b(p->module) : mti_lora_a(p->module);
        ok = (read[i] = read_weight(f, m, p->path, i % 2 ? MTI_LORA_B : MTI_LORA_A, w));
    }
    if (ok && mt_safetensors_count(f) != n)
        ok = mti_fail_bool(MT_ERR_ARGUMENT,
                           "lora_load: the file has %zu tensors; the model's %zu "
                           "adapters need %zu",
                           mt_safetensors_count(f), loras->v.n, n);
    for (size_t i = 0; ok && i < n; i++) {
        const mti_place *p = &loras->v.at[i / 2];
        ok = mt_copy(i % 2 ? mti_lora_b(p->module) : mti_lora_a(p->module), read[i]) == MT_OK;
    }
    for (size_t i = 0; read && i < n; i++) mt_release(read[i]);
    mti_free(read);
    return ok;
}

/* d: of PEFT's folder; else it is empty. */
static bool load(const char *path, mt_safetensors *f, mt_module *m, mti_lora_described *d)
{
    mti_places loras;
    const bool peft = d->rank > 0;
    bool ok = mti_places_find(&loras, m, mti_is_lora), wrapped = false;
    if (ok && !loras.v.n) {
        mti_places_free(&loras);
        ok = wrapped = (peft || describe(d, f, path)) && add_described(m, d, &loras);
    }
    ok = ok && load_weights(f, m, &loras);
    double alpha = d->alpha;
    bool has_alpha = peft || get_number(f, MTI_KEY_ALPHA, &alpha);
    for (size_t i = 0; i < loras.v.n; i++) {
        if (ok && has_alpha) ((mti_lora *)mt_module_user(loras.v.at[i].module))->alpha = alpha;
        if (!ok && wrapped) mti_lora_unwrap(&loras.v.at[i]);
    }
    mti_places_free(&loras);
    return ok;
}

mt_status mt_lora_load(const char *path, mt_module *m)
{
    if (!path) return mti_fail(MT_ERR_ARGUMENT, "lora_load: the path is NULL");
    if (!mti_given(m, "lora_load", "the module")) return mt_last_status();
    mti_lora_described d = {0};
    mt_safetensors *f =
        mti_is_peft_folder(path) ? mti_peft_open(path, m, &d) : mt_safetensors_open(path);
    bool ok = f && load(path, f, m, &d);
    mt_safetensors_free(f);
    forget(&d);
    return ok ? MT_OK : mt_last_status();
}
