/* html_profile.c: what the page of a profile shows beyond the profile's JSON: every event of both
 * steps, in few bytes, who keeps which storage, and the formulas of the ops that keep
 * something. docs/report.md has the form. */
#include <string.h>
#include "memtape/models/collectives.h"
#include "report/page.h"

/* Texts are written once and referred to by their place in `texts`, an event's phase, module and op
 * by their place in `places`. */
typedef struct writer {
    mti_name_index known;
    mti_hashmap known_places;
    json_t *texts, *places;
    bool failed;
} writer;

static size_t text_of(writer *w, const char *text)
{
    size_t place = mti_name_index_find(&w->known, text, strlen(text));
    if (place != MTI_NO_PLACE) return place;
    place = json_array_size(w->texts);
    mti_json_push(w->texts, mti_json_string(text));
    w->failed = !mti_name_index_add(&w->known, text, place) || w->failed;
    return place;
}

#define TEXT_BITS 21 /* of a text's place; three fit into a key */

static size_t place_of(writer *w, const mt_mem_event *e)
{
    const uint64_t phase = text_of(w, e->phase), module = text_of(w, e->module),
                   op = text_of(w, e->op);
    const uint64_t key = (phase << TEXT_BITS | module) << TEXT_BITS | op;
    size_t place = mti_hashmap_find(&w->known_places, key);
    if (place != MTI_NO_PLACE) return place;
    place = json_array_size(w->places);
    mti_json_push(w->places,
                  json_pack("[I,I,I]", (json_int_t)phase, (json_int_t)module, (json_int_t)op));
    w->failed = !mti_hashmap_add(&w->known_places, key, place) || w->failed;
    return place;
}

/* [kind, storage, place], and of what is not freed its category and blocks; of an allocation the
 * requested bytes, if they differ. */
static json_t *event_json(writer *w, const mt_mem_event *e)
{
    json_t *j = json_array();
    mti_json_push(j, json_integer(e->kind));
    mti_json_push(j, json_integer((json_int_t)e->serial));
    mti_json_push(j, json_integer((json_int_t)place_of(w, e)));
    if (e->kind == MT_MEM_FREE) return j;
    mti_json_push(j, json_integer(e->category));
    if (e->kind == MT_MEM_RECATEGORY) return j;
    mti_json_push(j, json_integer((json_int_t)e->allocated));
    if (e->requested != e->allocated) mti_json_push(j, json_integer((json_int_t)e->requested));
    return j;
}

static json_t *events_json(writer *w, const mti_timeline *t)
{
    json_t *j = json_array();
    for (size_t i = 0; i < t->events.n; i++) mti_json_push(j, event_json(w, &t->events.at[i]));
    return j;
}

/* Nanoseconds from the first event to each one; null where nothing is computed. */
static json_t *nanoseconds_json(const mti_timeline *t)
{
    if (!t->clocked) return json_null();
    json_t *j = json_array();
    for (size_t i = 0; i < t->events.n; i++)
        mti_json_push(j, json_integer((json_int_t)((t->seconds.at[i] - t->seconds.at[0]) * 1e9)));
    return j;
}

/* [storage, module, op, role, letter] of each storage that the tape keeps. */
static void push_kept(json_t *kept, writer *w, const mt_ledger *ledger)
{
    mt_ledger_entry e;
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        bool ok = mt_ledger_get(ledger, i, &e) == MT_OK;
        const mt_saver *s = &e.saver;
        mti_json_push(kept, ok ? json_pack("[I,I,I,I,I]", (json_int_t)e.storage,
                                           (json_int_t)text_of(w, s->module),
                                           (json_int_t)text_of(w, s->op),
                                           (json_int_t)text_of(w, mt_save_role_name(s->role)),
                                           (json_int_t)text_of(w, s->argument))
                               : NULL);
    }
}

/* Each step has its own ledger; of a step that failed there may be none. */
static json_t *kept_json(writer *w, const mti_measurement *m)
{
    json_t *j = json_array();
    push_kept(j, w, m->ledger);
    push_kept(j, w, m->steady.ledger);
    return j;
}

static json_t *categories_json(void)
{
    json_t *j = json_array();
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        mti_json_push(j, json_string(mt_category_name((mt_category)c)));
    return j;
}

static json_t *before_json(const mti_timeline *t)
{
    json_t *j = json_array();
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        mti_json_push(j, json_integer((json_int_t)t->before[c]));
    return j;
}

static json_t *timeline_json(const mti_measurement *m)
{
    const mti_timeline *t = &m->timeline;
    writer w = {.texts = json_array(), .places = json_array()};
    json_t *j = json_object();
    mti_json_put(j, "categories", categories_json());
    mti_json_put(j, "before", before_json(t));
    mti_json_put_int(j, "steady", t->steady);
    mti_json_put(j, "events", events_json(&w, t));
    mti_json_put(j, "nanoseconds", nanoseconds_json(t));
    mti_json_put(j, "kept", kept_json(&w, m));
    mti_json_put(j, "texts", w.texts);
    mti_json_put(j, "places", w.places);
    mti_name_index_free(&w.known);
    mti_hashmap_free(&w.known_places);
    if (w.failed) mti_json_put(j, "failed", NULL);
    return j;
}

static void put_op(json_t *ops, const char *name)
{
    int i = mt_all_ops_find(name);
    if (i < 0 || json_object_get(ops, name)) return;
    mt_op_info op = mt_all_ops_get(i);
    mti_json_put(ops, name, json_pack("{s:s,s:s}", "formula", op.formula, "why", op.why));
}

static json_t *ops_json(const mt_ledger *ledger)
{
    json_t *j = json_object();
    mt_ledger_entry e;
    mt_saver s;
    for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
        bool ok = mt_ledger_get(ledger, i, &e) == MT_OK;
        for (size_t k = 0; ok && k < e.n_savers; k++)
            if (mt_ledger_get_saver(ledger, i, k, &s) == MT_OK) put_op(j, s.op);
    }
    return j;
}

mt_status mti_html_write_profile(const mti_profile_result *p, const char *title, json_t *report,
                                 const char *path)
{
    json_t *more = mti_page_words();
    mti_json_put(more, "ops", ops_json(p->measured.ledger));
    mti_json_put(more, "timeline", timeline_json(&p->measured));
    return mti_html_write(title, report, more, path);
}
