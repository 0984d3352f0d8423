/* compress.c: the hook that packs saved tensors, once per storage, and unpacks them. */
#include "hooks/compress.h"

/* The hook's state for one saved tensor. */
typedef struct slot {
    mti_packed_storage *packed_storage;
    mt_layout layout; /* of the view that was saved */
} slot;

/* ---- which storages are packed: by serial, under the lock ---- */

static size_t place_of(mti_packed_storage *s) { return (uintptr_t)s; }
static mti_packed_storage *at(size_t place)
{
    return place == MTI_NO_PLACE ? NULL : (mti_packed_storage *)place;
}

/* The next packed form of the storage; *probe is 0 at first. NULL: no more. */
static mti_packed_storage *next_of(mt_compress *c, uint64_t serial, size_t *probe)
{
    return at(mti_hashmap_next(&c->packed_storages, serial, probe));
}

static mti_packed_storage *find(mt_compress *c, const mt_storage_info *storage,
                                mt_compress_rule rule)
{
    mti_packed_storage *s;
    for (size_t probe = 0; (s = next_of(c, storage->serial, &probe));)
        if (s->version == storage->version && s->rule == rule && s->round == c->round) return s;
    return NULL;
}

static void add_count(mt_compress_count *sum, const mt_compress_count *count)
{
    sum->n += count->n;
    sum->bytes_before += count->bytes_before;
    sum->bytes_after += count->bytes_after;
}

static bool add(mt_compress *c, mti_packed_storage *s)
{
    if (!mti_hashmap_add(&c->packed_storages, s->serial, place_of(s))) return false;
    s->round = c->round;
    add_count(&c->stats.by_rule[s->rule], &s->count);
    return true;
}

static void take_out(mt_compress *c, mti_packed_storage *s)
{
    mti_hashmap_remove(&c->packed_storages, s->serial, place_of(s));
    /* Packed copies that are freed before mt_compress_end are counted now, the others then. */
    if (c->begun && s->round == c->round && !s->gone) add_count(&c->stats.in_vain, &s->count);
}

static void on_event(void *user, const mt_mem_event *e)
{
    mt_compress *c = user;
    if (e->kind != MT_MEM_FREE) return;
    pthread_mutex_lock(&c->lock);
    mti_packed_storage *s;
    for (size_t probe = 0; (s = next_of(c, e->serial, &probe));) s->gone = true;
    pthread_mutex_unlock(&c->lock);
}

/* ---- the hook ---- */

static void release(void *user)
{
    mt_compress *c = user;
    if (atomic_fetch_sub(&c->refs, 1) != 1) return;
    if (c->observer) mt_mem_remove_observer(c->device, c->observer);
    mt_device_release(c->device);
    pthread_mutex_destroy(&c->lock);
    mti_hashmap_free(&c->packed_storages);
    mti_free(c);
}

static void packed_storage_free(mti_packed_storage *s)
{
    mt_release(s->packed);
    mt_release(s->whole);
    mti_free(s);
}

static mti_packed_storage *pack_storage(mt_compress *c, const mt_save_info *info, mt_tensor *t,
                                        mt_compress_rule rule)
{
    mt_storage_info storage = mt_storage_of(t);
    mti_packed_storage *s = mti_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->serial = storage.serial, s->version = storage.version;
    s->rule = rule;
    s->dtype = mt_dtype_of(t);
    s->n = (int64_t)(storage.bytes / mt_dtype_size(s->dtype));
    s->count = (mt_compress_count){.n = 1, .bytes_before = storage.bytes};
    s->slots = 1;
    s->p = info->p, s->seed = info->seed, s->offset = info->offset;
    if (mti_compress_pack(c, s, t)) return s;
    mti_free(s);
    return NULL;
}

static mt_status on_pack(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                         void **state)
{
    mt_compress *c = user;
    mt_compress_rule rule = mti_compress_choose(c, info, t);
    slot *place = rule == MT_COMPRESS_RULE_COUNT ? NULL : mti_malloc(sizeof *place);
    if (!place && rule != MT_COMPRESS_RULE_COUNT) return MT_ERR_MEMORY;
    mt_storage_info storage = mt_storage_of(t);
    pthread_mutex_lock(&c->lock);
    c->stats.saves++;
    c->stats.saves_left += !place;
    mti_packed_storage *s = place ? find(c, &storage, rule) : NULL;
    if (s) s->slots++, c->stats.saves_shared++;
    pthread_mutex_unlock(&c->lock);
    if (!place) return MT_OK;
    if (!s) {
        s = pack_storage(c, info, t, rule);
        pthread_mutex_lock(&c->lock);
        bool added = s && add(c, s);
        pthread_mutex_unlock(&c->lock);
        if (s && !added) packed_storage_free(s);
        if (!added) {
            mti_free(place);
            return mt_last_status();
        }
    }
    place->packed_storage = s;
    place->layout = mt_layout_of(t);
    *kept = mt_retain(s->packed); /* NULL for a seed: nothing is kept on the device */
    *state = place;
    return MT_OK;
}

/* The whole storage, unpacked before for another saved tensor, or now. */
static mt_tensor *whole_of(mt_compress *c, mti_packed_storage *s, mt_tensor *packed)
{
    pthread_mutex_lock(&c->lock);
    mt_tensor *whole = mt_retain(s->whole);
    bool shared = s->slots > 1;
    pthread_mutex_unlock(&c->lock);
    if (whole) return whole;
    whole = mti_compress_unpack(c, s, packed);
    /* It outlives the node that asked. */
    if (whole && shared && mt_set_category(whole, MT_PACKED) != MT_OK) mt_set(&whole, NULL);
    return whole;
}

static mt_status on_unpack(void *user, const mt_save_info *info, mt_tensor **tensor, void *state)
{
    mt_compress *c = user;
    const slot *place = state;
    (void)info;
    if (!place) return MT_OK;
    mti_packed_storage *s = place->packed_storage;
    mt_tensor *whole = whole_of(c, s, *tensor), *old;
    if (!whole) return mt_last_status();
    mt_tensor *view = mt_view_as(whole, &place->layout);
    pthread_mutex_lock(&c->lock);
    old = s->whole;
    s->back++;
    s->whole = s->back < s->slots ? mt_retain(whole) : NULL;
    if (!s->whole) s->back = 0;
    pthread_mutex_unlock(&c->lock);
    mt_release(old);
    mt_release(whole);
    if (!view) return mt_last_status();
    *tensor = view;
    return MT_OK;
}

static void on_drop(void *user, const mt_save_info *info, void *state)
{
    mt_compress *c = user;
    slot *place = state;
    (void)info;
    if (!place) return;
    mti_packed_storage *s = place->packed_storage;
    pthread_mutex_lock(&c->lock);
    if (s->back) s->back--;
    bool last = --s->slots == 0;
    if (last) take_out(c, s);
    pthread_mutex_unlock(&c->lock);
    mti_free(place);
    if (last) packed_storage_free(s);
}

/* ---- from new to free ---- */

static bool fill_defaults(mt_compress_options *o)
{
    if (o->rules >> MT_COMPRESS_RULE_COUNT)
        return mti_fail_bool(MT_ERR_ARGUMENT, "compress_new: rules %#x; need bits below %#x",
                             o->rules, 1u << MT_COMPRESS_RULE_COUNT);
    if (o->block && o->block != 64 && o->block != 128 && o->block != 256)
        return mti_fail_bool(MT_ERR_ARGUMENT, "compress_new: block %d; need 64, 128 or 256",
                             o->block);
    if (!o->rules) o->rules = 1u << MT_COMPRESS_MASK_SEED | 1u << MT_COMPRESS_SIGNS;
    if (!o->min_bytes) o->min_bytes = 4096;
    return true;
}

mt_compress *mt_compress_new(mt_device *device, const mt_compress_options *options)
{
    mt_compress_options filled = options ? *options : (mt_compress_options){0};
    if (!mti_given(device, "compress_new", "the device")) return NULL;
    if (!fill_defaults(&filled)) return NULL;
    mt_compress *c = mti_calloc(1, sizeof *c);
    if (!c) return NULL;
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->lock, NULL);
    c->device = mt_device_retain(device);
    c->options = filled;
    c->observer = mt_mem_add_observer(device, on_event, c);
    if (c->observer) return c;
    release(c);
    return NULL;
}

void mt_compress_free(mt_compress *c)
{
    if (c) release(c);
}

mt_status mt_compress_begin(mt_compress *c)
{
    static const mt_saved_hooks hooks = {on_pack, on_unpack, on_drop, release};
    if (!mti_given(c, "compress_begin", "the compressor")) return mt_last_status();
    if (c->begun) return mti_fail(MT_ERR_STATE, "compress_begin: it has begun already");
    atomic_fetch_add(&c->refs, 1);
    mt_status status = mt_push_saved_hooks(&hooks, c);
    if (status != MT_OK) {
        atomic_fetch_sub(&c->refs, 1);
        return status;
    }
    pthread_mutex_lock(&c->lock);
    c->round++;
    c->begun = true;
    c->stats = (mt_compress_stats){0};
    pthread_mutex_unlock(&c->lock);
    return MT_OK;
}

/* Adds those of this round whose storage is still alive. */
static void count_in_vain(const mt_compress *c, mt_compress_count *sum)
{
    const mti_packed_storage *s;
    for (size_t i = 0; (s = at(mti_hashmap_each(&c->packed_storages, &i)));)
        if (s->round == c->round && !s->gone) add_count(sum, &s->count);
}

/* The next packed tensor that was held for sharing, from *i on; NULL: no more. */
static mt_tensor *next_held(mt_compress *c, size_t *i)
{
    mt_tensor *held = NULL;
    mti_packed_storage *s;
    pthread_mutex_lock(&c->lock);
    while (!held && (s = at(mti_hashmap_each(&c->packed_storages, i))))
        held = s->packed, s->packed = NULL;
    pthread_mutex_unlock(&c->lock);
    return held;
}

mt_status mt_compress_end(mt_compress *c)
{
    if (!mti_given(c, "compress_end", "the compressor")) return mt_last_status();
    if (mt_saved_hooks_user() != c)
        return mti_fail(MT_ERR_STATE, "compress_end: this compressor is not the innermost hook");
    pthread_mutex_lock(&c->lock);
    count_in_vain(c, &c->stats.in_vain);
    c->begun = false;
    pthread_mutex_unlock(&c->lock);
    size_t i = 0;
    for (mt_tensor *held; (held = next_held(c, &i));) mt_release(held);
    return mt_pop_saved_hooks();
}

mt_status mt_compress_get_stats(mt_compress *c, mt_compress_stats *out)
{
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "compress_get_stats: the result is NULL");
    *out = (mt_compress_stats){0};
    if (!mti_given(c, "compress_get_stats", "the compressor")) return mt_last_status();
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    if (c->begun) count_in_vain(c, &out->in_vain);
    pthread_mutex_unlock(&c->lock);
    return MT_OK;
}
