/* module.c: the tree of modules. A module owns its children and retains its parameters; the names
 * from the root down make up the paths in ledgers and files. */
#include <string.h>
#include "autograd/autograd.h"
#include "nn/nn.h"

typedef struct child {
    char *name; /* the module's own name points here */
    mt_module *module;
} child;

struct mt_module {
    char *kind;
    const char *name; /* kind, or the name the parent gave */
    mt_forward_fn *forward;
    void *user;
    void (*destroy)(void *user);
    mti_known_path path; /* of its last forward */
    bool training, in_shards;
    mt_module *parent;               /* NULL: a root */
    MTI_VEC(mt_named_tensor) params; /* own; names allocated here */
    MTI_VEC(mt_named_tensor) states; /* the same */
    MTI_VEC(child) children;
    mti_name_index param_at, child_at; /* indices by name */
    MTI_VEC(mt_named_tensor) flat;     /* cache of mt_module_params; paths allocated here */
    bool flat_valid;
    mti_around around;                 /* fn NULL: none */
    int64_t in_codes;                  /* values that its tensors stand for, less their elements */
    mt_checkpoint_options *checkpoint; /* NULL: not a checkpoint */
    int64_t group;                     /* m begins a checkpoint of so many layers; 0: it is one */
};

/* ---- making and freeing ---- */

mt_module *mt_module_new(const char *kind, mt_forward_fn *forward, void *user,
                         void (*destroy)(void *user))
{
    mt_module *m = NULL;
    if (!kind || !*kind || !forward)
        mti_fail(MT_ERR_ARGUMENT, "module: needs a kind and a forward function");
    else if ((m = mti_calloc(1, sizeof *m)) && !(m->kind = mti_strdup(kind))) {
        mti_free(m);
        m = NULL;
    }
    if (!m) {
        if (destroy) destroy(user);
        return NULL;
    }
    m->name = m->kind;
    m->forward = forward;
    m->user = user;
    m->destroy = destroy;
    m->training = true;
    return m;
}

void mti_module_mark_shards(mt_module *m) { m->in_shards = true; }
bool mti_module_in_shards(const mt_module *m) { return m->in_shards; }

mt_module *mti_module_complete(mt_module *m, bool complete)
{
    if (complete) return m;
    mt_module_free(m);
    return NULL;
}

static void clear_flat(mt_module *m)
{
    for (size_t i = 0; i < m->flat.n; i++) mti_free((char *)m->flat.at[i].name);
    m->flat.n = 0;
    m->flat_valid = false;
}

void mt_module_free(mt_module *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->children.n; i++) {
        mt_module_free(m->children.at[i].module);
        mti_free(m->children.at[i].name);
    }
    for (size_t i = 0; i < m->params.n; i++) {
        mt_release(m->params.at[i].tensor);
        mti_free((char *)m->params.at[i].name);
    }
    for (size_t i = 0; i < m->states.n; i++) {
        mt_release(m->states.at[i].tensor);
        mti_free((char *)m->states.at[i].name);
    }
    clear_flat(m);
    mti_free(m->states.at);
    mti_free(m->flat.at);
    mti_name_index_free(&m->param_at);
    mti_name_index_free(&m->child_at);
    mti_free(m->params.at);
    mti_free(m->children.at);
    if (m->destroy) m->destroy(m->user);
    if (m->around.destroy) m->around.destroy(m->around.user);
    mti_free(m->checkpoint);
    mti_free(m->kind);
    mti_free(m);
}

/* After a change of m: clears the cached lists of all modules that contain it. */
static void clear_lists(mt_module *m)
{
    for (; m; m = m->parent) clear_flat(m);
}

/* ---- parameters and children ---- */

/* The child whose name is the first n bytes of `name`. */
static child *find_child(const mt_module *m, const char *name, size_t n)
{
    size_t i = mti_name_index_find(&m->child_at, name, n);
    return i == MTI_NO_PLACE ? NULL : &m->children.at[i];
}

static bool good_name(const mt_module *m, const char *name)
{
    if (!name) return mti_fail_bool(MT_ERR_ARGUMENT, "module %s: the name is NULL", m->name);
    if (!*name || name[0] == '.' || name[strlen(name) - 1] == '.')
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "module %s: \"%s\" is not a name; need some text without a dot at "
                             "either end",
                             m->name, name);
    if (mt_module_param(m, name) || find_child(m, name, strlen(name)))
        return mti_fail_bool(MT_ERR_ARGUMENT, "module %s: the name \"%s\" is taken", m->name, name);
    return true;
}

mt_tensor *mt_module_add_param(mt_module *m, const char *name, mt_tensor *param)
{
    char *copy = NULL;
    if (!m || !param) goto fail;
    if (!good_name(m, name) || !MTI_RESERVE(&m->params) || !(copy = mti_strdup(name))) goto fail;
    if (mt_set_category(param, MT_PARAMETER) != MT_OK) goto fail;
    if (mt_dtype_is_float(mt_dtype_of(param)) && mt_set_requires_grad(param, true) != MT_OK)
        goto fail;
    if (!mti_name_index_add(&m->param_at, copy, m->params.n)) goto fail;
    m->params.at[m->params.n++] = (mt_named_tensor){copy, param};
    clear_lists(m);
    return param;
fail:
    mti_free(copy);
    mt_release(param);
    return NULL;
}

mt_tensor *mti_module_add_buffer(mt_module *m, const char *name, mt_tensor *value)
{
    mt_tensor *t = mt_module_add_param(m, name, value);
    return t && mt_set_requires_grad(t, false) == MT_OK && mt_set_category(t, MT_CACHE) == MT_OK
               ? t
               : NULL;
}

bool mti_is_buffer(const mt_tensor *t) { return mt_storage_of(t).category == MT_CACHE; }

mt_tensor *mti_module_add_state(mt_module *m, const char *name, mt_tensor *value)
{
    char *copy = value && MTI_RESERVE(&m->states) ? mti_strdup(name) : NULL;
    if (!copy) {
        mt_release(value);
        return NULL;
    }
    m->states.at[m->states.n++] = (mt_named_tensor){copy, value};
    return value;
}

/* Whether m can take new_child over; if not, it is freed unless it has a parent. */
static bool can_adopt(mt_module *m, mt_module *new_child)
{
    if (!new_child) return false;
    const mt_module *root = m;
    while (root && root->parent) root = root->parent;
    if (m && !new_child->parent && new_child != root) return true;
    if (m)
        mti_fail(MT_ERR_ARGUMENT, "module %s: %s belongs to a module already", m->name,
                 new_child->name);
    else if (!new_child->parent)
        mt_module_free(new_child);
    return false;
}

mt_module *mt_module_add_child(mt_module *m, const char *name, mt_module *new_child)
{
    char *copy;
    if (!can_adopt(m, new_child)) return NULL;
    copy = good_name(m, name) && MTI_RESERVE(&m->children) ? mti_strdup(name) : NULL;
    if (!copy || !mti_name_index_add(&m->child_at, copy, m->children.n)) {
        mti_free(copy);
        mt_module_free(new_child);
        return NULL;
    }
    new_child->name = copy;
    new_child->parent = m;
    m->children.at[m->children.n++] = (child){copy, new_child};
    clear_lists(m);
    return new_child;
}

mt_module *mt_module_swap_child(mt_module *m, const char *name, mt_module *new_child)
{
    if (!can_adopt(m, new_child)) return NULL;
    child *place = name ? find_child(m, name, strlen(name)) : NULL;
    if (!place) {
        if (name)
            mti_fail(MT_ERR_ARGUMENT, "module %s: no child \"%s\" to swap", m->name, name);
        else
            mti_fail(MT_ERR_ARGUMENT, "module %s: the name of a child to swap is NULL", m->name);
        mt_module_free(new_child);
        return NULL;
    }
    mt_module *old = place->module;
    old->parent = NULL;
    old->name = old->kind;
    new_child->parent = m;
    new_child->name = place->name;
    place->module = new_child;
    clear_lists(m);
    return old;
}

/* ---- properties ---- */

const char *mt_module_kind(const mt_module *m) { return m ? m->kind : ""; }
const char *mt_module_name(const mt_module *m) { return m ? m->name : ""; }
void *mt_module_user(const mt_module *m) { return m ? m->user : NULL; }
bool mti_module_runs(const mt_module *m, mt_forward_fn *forward)
{
    return m && m->forward == forward;
}

bool mti_module_owns(const mt_module *m, void (*destroy)(void *user))
{
    return m && m->destroy == destroy;
}

mt_tensor *mt_module_param(const mt_module *m, const char *name)
{
    size_t i = m && name ? mti_name_index_find(&m->param_at, name, strlen(name)) : MTI_NO_PLACE;
    return i == MTI_NO_PLACE ? NULL : m->params.at[i].tensor;
}

mt_module *mt_module_child(const mt_module *m, const char *name)
{
    child *found = m && name ? find_child(m, name, strlen(name)) : NULL;
    return found ? found->module : NULL;
}

mt_module *mt_module_child_at(const mt_module *m, size_t i)
{
    return m && i < m->children.n ? m->children.at[i].module : NULL;
}

mt_module *mt_module_find(mt_module *m, const char *path)
{
    if (!m || !path || !*path) return path ? m : NULL;
    /* Names may contain dots ("h.3"): tries every prefix that ends at one. */
    for (size_t n = strcspn(path, ".");; n += 1 + strcspn(path + n + 1, ".")) {
        const child *c = find_child(m, path, n);
        mt_module *found = c ? mt_module_find(c->module, path + n + (path[n] == '.')) : NULL;
        if (found || !path[n]) return found;
    }
}

/* ---- running ---- */

static mt_status run_frame(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    const mti_module_frame *f = user;
    (void)n_in, (void)n_out;
    out[0] = f->run ? f->run(f->m, in) : f->layers(f->m, mt_retain(in[0]), f->from, f->to);
    return out[0] ? MT_OK : mt_last_status();
}

mt_tensor *mti_run_frame(mti_module_frame init, int n_in, mt_tensor *const *in,
                         const mt_checkpoint_options *options)
{
    mt_tensor *out;
    mti_module_frame *frame = mti_malloc(sizeof *frame);
    if (!frame) return NULL;
    *frame = init;
    mt_status status = mt_checkpoint(run_frame, frame, mti_free, n_in, in, 1, &out, options);
    return status == MT_OK ? out : NULL;
}

mt_tensor *mti_run_module(mt_module *m, mti_run_fn *run, int n_in, mt_tensor *const *in)
{
    return m->checkpoint
               ? mti_run_frame((mti_module_frame){.m = m, .run = run}, n_in, in, m->checkpoint)
               : run(m, in);
}

mt_tensor *mti_module_run_inner(mt_module *m, mt_tensor *x) { return m->forward(m, x); }

mt_tensor *mti_no_forward(mt_module *m, mt_tensor *x)
{
    (void)m;
    return mt_retain(x);
}

static mt_tensor *run_forward(mt_module *m, mt_tensor *const *in)
{
    return m->around.fn ? m->around.fn(m, m->around.user, in[0]) : m->forward(m, in[0]);
}

void mti_module_set_around(mt_module *m, mti_around around)
{
    if (m->around.destroy) m->around.destroy(m->around.user);
    m->around = around;
}

mti_around mti_module_take_around(mt_module *m)
{
    const mti_around around = m->around;
    m->around = (mti_around){0};
    return around;
}

mt_tensor *mt_forward(mt_module *m, mt_tensor *x)
{
    if (!mti_given(m, "forward", "the module") || !mti_given(x, "forward", "x")) return NULL;
    if (mti_scope_push(m->name, &m->path) != MT_OK) return NULL;
    mt_tensor *y =
        m->checkpoint && !m->group ? mti_run_module(m, run_forward, 1, &x) : run_forward(m, &x);
    mt_scope_pop();
    return y;
}

mt_tensor *mt_forward_child(mt_module *m, const char *name, mt_tensor *x)
{
    if (!mti_given(m, "forward_child", "the module") || !mti_given(x, "forward_child", "x"))
        return NULL;
    if (!name) return mti_fail_null(MT_ERR_ARGUMENT, "forward_child: the name is NULL");
    mt_module *c = mt_module_child(m, name);
    if (c) return mt_forward(c, x);
    return mti_fail_null(MT_ERR_ARGUMENT, "module %s: no child \"%s\" to run", mt_module_name(m),
                         name);
}

mt_tensor *mti_forward_child_as(mt_module *m, const char *name, mt_forward_fn *run, void *user,
                                mt_tensor *x)
{
    mt_module *c = mt_module_child(m, name);
    if (!c) return mt_forward_child(m, name, x);
    mt_forward_fn *const own = c->forward;
    void *const owned = c->user;
    c->forward = run, c->user = user;
    mt_tensor *y = mt_forward_child(m, name, x);
    c->forward = own, c->user = owned;
    return y;
}

void mt_module_set_training(mt_module *m, bool training)
{
    if (!m) return;
    m->training = training;
    for (size_t i = 0; i < m->children.n; i++)
        mt_module_set_training(m->children.at[i].module, training);
}

bool mt_module_training(const mt_module *m) { return m && m->training; }

mt_tensor *mti_module_lend_param(mt_module *m, const char *name, mt_tensor *other)
{
    size_t i = mti_name_index_find(&m->param_at, name, strlen(name));
    if (i == MTI_NO_PLACE) return NULL;
    mt_tensor *previous = m->params.at[i].tensor;
    m->params.at[i].tensor = other;
    return previous;
}

mt_tensor *mti_module_swap_param(mt_module *m, const char *name, mt_tensor *other)
{
    clear_lists(m);
    return mti_module_lend_param(m, name, other);
}

bool mti_module_materialize_own(mt_module *m, mt_device *device)
{
    clear_flat(m);
    for (size_t i = 0; i < m->params.n; i++) {
        mt_tensor **t = &m->params.at[i].tensor;
        const mt_category category = mt_storage_of(*t).category;
        mt_tensor *real = mt_empty(device, mt_dtype_of(*t), mt_rank(*t), mt_shape(*t));
        if (real && mt_set_category(real, category) == MT_OK &&
            mt_set_requires_grad(real, mt_requires_grad(*t)) == MT_OK)
            mt_set(t, mt_retain(real));
        else
            mt_set(&real, NULL);
        if (!real) return false;
        mt_release(real);
    }
    for (size_t i = 0; i < m->states.n; i++) {
        mt_tensor **t = &m->states.at[i].tensor;
        mt_tensor *real = mt_zeros(device, mt_dtype_of(*t), mt_rank(*t), mt_shape(*t));
        if (!real || mt_set(t, real) != MT_OK) return false;
    }
    return true;
}

bool mti_module_materialize(mt_module *m, mt_device *device)
{
    bool ok = mti_module_materialize_own(m, device);
    for (size_t i = 0; ok && i < m->children.n; i++)
        ok = mti_module_materialize(m->children.at[i].module, device);
    return ok;
}

/* ---- checkpoints ---- */

const mt_checkpoint_options *mti_module_checkpoint(const mt_module *m, int64_t *group)
{
    if (group) *group = m->group;
    return m->checkpoint;
}

bool mti_module_set_group(mt_module *m, int64_t group, const mt_checkpoint_options *options)
{
    mt_checkpoint_options *copy = NULL;
    if (options) {
        copy = mti_malloc(sizeof *copy);
        if (!copy) return false;
        *copy = *options;
        if (options->label && !(copy->label = mti_intern(options->label))) {
            mti_free(copy);
            return false;
        }
    }
    mti_free(m->checkpoint);
    m->checkpoint = copy;
    m->group = copy ? group : 0;
    return true;
}

mt_status mt_module_set_checkpoint(mt_module *m, const mt_checkpoint_options *options)
{
    if (!mti_given(m, "module_set_checkpoint", "the module")) return mt_last_status();
    return mti_module_set_group(m, 0, options) ? MT_OK : mt_last_status();
}

/* ---- parameters ---- */

char *mti_join(const char *prefix, const char *name)
{
    size_t n_prefix = strlen(prefix), n_name = strlen(name);
    char *path = mti_malloc(n_prefix + n_name + 2);
    if (!path) return NULL;
    memcpy(path, prefix, n_prefix);
    if (n_prefix) path[n_prefix++] = '.';
    memcpy(path + n_prefix, name, n_name + 1);
    return path;
}

/* seen: the parameters so far, by address. */
static bool flatten(mt_module *root, const mt_module *m, const char *prefix, mti_hashmap *seen)
{
    for (size_t i = 0; i < m->params.n; i++) {
        uintptr_t address = (uintptr_t)m->params.at[i].tensor;
        if (mti_hashmap_find(seen, address) != MTI_NO_PLACE) continue;
        if (!MTI_RESERVE(&root->flat) || !mti_hashmap_add(seen, address, root->flat.n))
            return false;
        char *path = mti_join(prefix, m->params.at[i].name);
        if (!path) return false;
        root->flat.at[root->flat.n++] = (mt_named_tensor){path, m->params.at[i].tensor};
    }
    bool ok = true;
    for (size_t i = 0; ok && i < m->children.n; i++) {
        char *path = mti_join(prefix, m->children.at[i].name);
        ok = path && flatten(root, m->children.at[i].module, path, seen);
        mti_free(path);
    }
    return ok;
}

static bool flatten_all(mt_module *m)
{
    mti_hashmap seen = {0};
    bool ok = flatten(m, m, "", &seen);
    mti_hashmap_free(&seen);
    return ok;
}

mt_status mt_module_params(mt_module *m, const mt_named_tensor **list, size_t *n)
{
    if (!mti_given(m, "module_params", "the module")) return mt_last_status();
    if (!list || !n)
        return mti_fail(MT_ERR_ARGUMENT, "module_params: the %s is NULL", list ? "count" : "list");
    if (!m->flat_valid) {
        if (!flatten_all(m)) {
            clear_flat(m);
            return MT_ERR_MEMORY;
        }
        m->flat_valid = true;
    }
    *list = m->flat.at;
    *n = m->flat.n;
    return MT_OK;
}

static bool list_states(const mt_module *m, const char *path, mti_state_list *out)
{
    bool ok = true;
    for (size_t i = 0; ok && i < m->states.n; i++) {
        mt_named_tensor t = {MTI_RESERVE(&out->list) ? mti_join(path, m->states.at[i].name) : NULL,
                             m->states.at[i].tensor};
        if ((ok = t.name != NULL)) out->list.at[out->list.n++] = t;
    }
    for (size_t i = 0; ok && i < m->children.n; i++) {
        char *of_child = mti_join(path, m->children.at[i].name);
        ok = of_child && list_states(m->children.at[i].module, of_child, out);
        mti_free(of_child);
    }
    return ok;
}

bool mti_state_list_make(mt_module *m, const char *prefix, mti_state_list *out)
{
    *out = (mti_state_list){0};
    return list_states(m, prefix, out);
}

void mti_state_list_free(mti_state_list *states)
{
    for (size_t i = 0; i < states->list.n; i++) mti_free((char *)states->list.at[i].name);
    mti_free(states->list.at);
    *states = (mti_state_list){0};
}

void mti_module_note_codes(mt_module *m, int64_t values, int64_t elements)
{
    m->in_codes = values - elements;
}

static int64_t values_in_codes(const mt_module *m)
{
    int64_t n = m->in_codes;
    const mt_module *below;
    for (size_t i = 0; (below = mt_module_child_at(m, i)); i++) n += values_in_codes(below);
    return n;
}

mt_status mt_module_size(mt_module *m, uint64_t *n_elements, uint64_t *n_bytes)
{
    const mt_named_tensor *list;
    size_t n;
    mt_status status = mt_module_params(m, &list, &n);
    if (status != MT_OK) return status;
    uint64_t elements = 0, bytes = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t count = mti_is_buffer(list[i].tensor) ? 0 : (uint64_t)mt_numel(list[i].tensor);
        elements += count;
        bytes += count * mt_dtype_size(mt_dtype_of(list[i].tensor));
    }
    if (n_elements) *n_elements = elements + (uint64_t)values_in_codes(m);
    if (n_bytes) *n_bytes = bytes;
    return MT_OK;
}

mt_status mt_module_zero_grad(mt_module *m)
{
    const mt_named_tensor *list;
    size_t n;
    mt_status status = mt_module_params(m, &list, &n);
    for (size_t i = 0; status == MT_OK && i < n; i++) status = mt_set_grad(list[i].tensor, NULL);
    return status;
}

mt_status mt_module_set_grad_dtype(mt_module *m, mt_dtype dtype)
{
    const mt_named_tensor *list;
    size_t n;
    mt_status status = mt_module_params(m, &list, &n);
    for (size_t i = 0; status == MT_OK && i < n; i++)
        if (mt_dtype_is_float(mt_dtype_of(list[i].tensor)))
            status = mt_set_grad_dtype(list[i].tensor, dtype);
    return status;
}

mt_status mt_module_freeze(mt_module *m, bool frozen)
{
    const mt_named_tensor *list;
    size_t n;
    mt_status status = mt_module_params(m, &list, &n);
    for (size_t i = 0; status == MT_OK && i < n; i++) {
        mt_tensor *p = list[i].tensor;
        if (!mt_dtype_is_float(mt_dtype_of(p)) || mti_is_buffer(p)) continue;
        if (frozen) status = mt_set_grad(p, NULL);
        if (status == MT_OK) status = mt_set_requires_grad(p, !frozen);
    }
    return status;
}
