/* safetensors_load.c: loading data from an open file into tensors and modules. */
#include <stdio.h>
#include <string.h>
#include "files/files.h"
#include "io/safetensors.h"
#include "io/saved_run.h"
#include "memtape/ops.h"

static const mti_tensor_entry *find(const mt_safetensors *f, const char *name)
{
    size_t i = f && name ? mti_name_index_find(&f->entry_at, name, strlen(name)) : MTI_NO_PLACE;
    return i == MTI_NO_PLACE ? NULL : &f->entries.at[i];
}

bool mt_safetensors_find(const mt_safetensors *f, const char *name, mt_safetensors_entry *out)
{
    const mti_tensor_entry *e = find(f, name);
    if (e && out) *out = e->info;
    return e != NULL;
}

/* ---- one tensor ---- */

bool mti_safetensors_read_part(const mt_safetensors *f, const char *name, uint64_t from, void *data,
                               size_t n_bytes)
{
    const mti_tensor_entry *e = find(f, name);
    return mti_read_at(f->fd, f->path, f->data_at + e->begin + from, data, n_bytes);
}

static bool check_bools(const mt_safetensors *f, const mti_tensor_entry *e, const char *data,
                        size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)data[i] > 1) {
            char shown[MTI_SHOWN];
            return mti_fail_bool(MT_ERR_FORMAT, "%s: tensor \"%s\": a BOOL that is %d", f->path,
                                 mti_shown(shown, e->info.name), (unsigned char)data[i]);
        }
    return true;
}

static bool same_shape(const mt_safetensors_entry *e, const mt_tensor *t)
{
    return e->rank == mt_rank(t) &&
           (!e->rank || !memcmp(e->shape, mt_shape(t), sizeof(int64_t) * (size_t)e->rank));
}

/* Whether t has the entry's shape and dtype; the error names both. casts: two floating dtypes may
 * differ. */
static bool fits(const mt_safetensors *f, const mt_safetensors_entry *e, const mt_tensor *t,
                 bool casts)
{
    const mt_dtype dtype = mt_dtype_of(t);
    casts = casts && mt_dtype_is_float(e->dtype) && mt_dtype_is_float(dtype);
    if ((e->dtype == dtype || casts) && same_shape(e, t)) return true;
    char shown[MTI_SHOWN], in_file[MTI_SHAPE_TEXT], need[MTI_SHAPE_TEXT];
    return mti_fail_bool(MT_ERR_ARGUMENT, "%s: tensor \"%s\" is %s %s; need %s %s", f->path,
                         mti_shown(shown, e->name), mt_dtype_name(e->dtype),
                         mti_shape_text(in_file, e->rank, e->shape), mt_dtype_name(mt_dtype_of(t)),
                         mti_shape_text(need, mt_rank(t), mt_shape(t)));
}

/* Data of the entry's dtype becomes t's; through a tensor of that dtype where t has another. */
static bool take(const mti_tensor_entry *e, mt_tensor *t, const void *data, size_t n)
{
    if (e->info.dtype == mt_dtype_of(t)) return mt_copy_from_host(t, data, n) == MT_OK;
    mt_tensor *read =
        mt_from_data(mt_device_of(t), e->info.dtype, mt_rank(t), mt_shape(t), data, n);
    bool ok = read && mt_copy(t, read) == MT_OK;
    mt_release(read);
    return ok;
}

/* Rows of the first dimension at once: so many bytes, so that what is large is not there twice. */
#define PIECE ((size_t)1 << 20)

static bool load_entry(const mt_safetensors *f, const mti_tensor_entry *e, mt_tensor *t)
{
    const int64_t rows = e->info.rank && e->info.bytes ? e->info.shape[0] : 1;
    const size_t row = e->info.bytes / (size_t)rows;
    const int64_t most = row && row < PIECE ? (int64_t)(PIECE / row) : 1;
    char *data = mti_malloc((size_t)(most < rows ? most : rows) * row + 1);
    const bool grad = mt_set_grad_mode(false);
    bool ok = data != NULL;
    for (int64_t at = 0; ok && at < rows; at += most) {
        const int64_t count = rows - at < most ? rows - at : most;
        const size_t n = (size_t)count * row;
        MT_AUTO mt_tensor *part = count < rows ? mt_slice(t, 0, at, count) : mt_retain(t);
        ok = part &&
             mti_read_at(f->fd, f->path, f->data_at + e->begin + (uint64_t)at * row, data, n) &&
             (e->info.dtype != MT_BOOL || check_bools(f, e, data, n)) && take(e, part, data, n);
    }
    mt_set_grad_mode(grad);
    mti_free(data);
    return ok;
}

static const mti_tensor_entry *find_or_fail(const mt_safetensors *f, const char *name)
{
    if (!mti_given(f, "safetensors", "the file")) return NULL;
    if (!name) return mti_fail_null(MT_ERR_ARGUMENT, "safetensors: the name is NULL");
    const mti_tensor_entry *e = find(f, name);
    return e ? e : mti_fail_null(MT_ERR_ARGUMENT, "%s: has no tensor \"%s\"", f->path, name);
}

mt_status mt_safetensors_load(mt_safetensors *f, const char *name, mt_tensor *t)
{
    const mti_tensor_entry *e = find_or_fail(f, name);
    if (!e) return mt_last_status();
    if (!mti_given(t, "safetensors_load", "the tensor")) return mt_last_status();
    return fits(f, &e->info, t, false) && load_entry(f, e, t) ? MT_OK : mt_last_status();
}

mt_tensor *mt_safetensors_read(mt_safetensors *f, const char *name, mt_device *device)
{
    const mti_tensor_entry *e = find_or_fail(f, name);
    if (!e) return NULL;
    mt_tensor *t = mt_empty(device, e->info.dtype, e->info.rank, e->info.shape);
    if (!t || load_entry(f, e, t)) return t;
    mt_release(t);
    return NULL;
}

/* ---- a module ---- */

/* Names that are in one list but not in the other: the first, and how many. */
typedef struct difference {
    char first[MTI_SHOWN];
    size_t n;
} difference;

static void note(difference *d, const char *name)
{
    if (!d->n++) mti_shown(d->first, name);
}

static const char *describe(char *buf, size_t n_bytes, const char *kind, const difference *d)
{
    buf[0] = '\0';
    if (d->n == 1) snprintf(buf, n_bytes, "; %s \"%s\"", kind, d->first);
    if (d->n > 1) snprintf(buf, n_bytes, "; %s \"%s\" and %zu more", kind, d->first, d->n - 1);
    return buf;
}

static bool begins_with(const char *name, const char *prefix)
{
    return !strncmp(name, prefix, strlen(prefix));
}

/* Whether file and list have the same names; a checkpoint may also have state. */
static bool same_names(const mt_safetensors *f, const mt_named_tensor *list, size_t n, bool *wanted)
{
    difference missing = {.n = 0}, superfluous = {.n = 0};
    bool checkpoint = mt_safetensors_metadata(f, MTI_KEY_STEP) != NULL;
    for (size_t i = 0; i < n; i++) {
        const mti_tensor_entry *e = find(f, list[i].name);
        if (e)
            wanted[e - f->entries.at] = true;
        else
            note(&missing, list[i].name);
    }
    for (size_t i = 0; i < f->entries.n; i++) {
        const char *name = f->entries.at[i].info.name;
        bool state = checkpoint && (begins_with(name, MTI_STATE_PREFIX) ||
                                    begins_with(name, MTI_MODULE_STATE "."));
        if (!wanted[i] && !state) note(&superfluous, name);
    }
    if (!missing.n && !superfluous.n) return true;
    char text[2][2 * MTI_SHOWN];
    return mti_fail_bool(MT_ERR_ARGUMENT, "%s: does not fit the model%s%s", f->path,
                         describe(text[0], sizeof text[0], "missing", &missing),
                         describe(text[1], sizeof text[1], "superfluous", &superfluous));
}

bool mti_weights_fit(const mt_safetensors *f, const mt_named_tensor *list, size_t n, bool casts)
{
    bool *wanted = mti_calloc(f->entries.n + 1, sizeof *wanted);
    bool ok = wanted && same_names(f, list, n, wanted);
    mti_free(wanted);
    for (size_t i = 0; ok && i < n; i++)
        ok = !list[i].tensor || fits(f, &find(f, list[i].name)->info, list[i].tensor, casts);
    return ok;
}

bool mti_weights_load(const mt_safetensors *f, const mt_named_tensor *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].tensor && !load_entry(f, find(f, list[i].name), list[i].tensor)) return false;
    return true;
}

bool mti_states_fit(const mt_safetensors *f, const mti_state_list *states, bool all)
{
    const size_t behind = sizeof MTI_MODULE_STATE; /* with the dot */
    for (size_t i = 0; i < states->list.n; i++) {
        const mt_named_tensor *t = &states->list.at[i];
        const mti_tensor_entry *e = find(f, t->name);
        if (e && !fits(f, &e->info, t->tensor, false)) return false;
        if (!e && all)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "%s: lacks \"%s\", which the model keeps from step to step",
                                 f->path, t->name + behind);
    }
    size_t n = 0;
    for (size_t i = 0; i < f->entries.n; i++)
        n += begins_with(f->entries.at[i].info.name, MTI_MODULE_STATE ".");
    return !all || n == states->list.n ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "%s: %zu tensors that a model keeps from step to step; need %zu", f->path,
                         n, states->list.n);
}

bool mti_states_load(const mt_safetensors *f, const mti_state_list *states)
{
    for (size_t i = 0; i < states->list.n; i++) {
        const mti_tensor_entry *e = find(f, states->list.at[i].name);
        if (e && !load_entry(f, e, states->list.at[i].tensor)) return false;
    }
    return true;
}

mt_status mt_safetensors_check_module(mt_safetensors *f, mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    mti_state_list states;
    if (!mti_given(f, "safetensors_check_module", "the file")) return mt_last_status();
    mt_status status = mt_module_params(m, &list, &n);
    if (status != MT_OK) return status;
    bool ok = mti_state_list_make(m, MTI_MODULE_STATE, &states) &&
              mti_weights_fit(f, list, n, false) && mti_states_fit(f, &states, false);
    mti_state_list_free(&states);
    return ok ? MT_OK : mt_last_status();
}

mt_status mt_safetensors_load_module(mt_safetensors *f, mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    mti_state_list states;
    if (!mti_given(f, "safetensors_load_module", "the file")) return mt_last_status();
    mt_status status = mt_safetensors_check_module(f, m);
    if (status == MT_OK) status = mt_module_params(m, &list, &n);
    if (status != MT_OK) return status;
    bool ok = mti_state_list_make(m, MTI_MODULE_STATE, &states) && mti_weights_load(f, list, n) &&
              mti_states_load(f, &states);
    mti_state_list_free(&states);
    return ok ? MT_OK : mt_last_status();
}
