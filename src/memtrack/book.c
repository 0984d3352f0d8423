/* book.c: which storages were saved, by which ops, and when they were freed.
 *
 * A block of the pool leads to its records, one in each book that lists it, so neither a save nor a
 * free searches. Records lie in chunks that never move: growing copies nothing. A book that is
 * reset keeps all its memory, also the lists of its records' later savers, so a training step that
 * saves as the last one did asks for none. */
#include <string.h>
#include "memtrack/pool.h"

#define CHUNK_RECORDS 128

struct mti_book {
    mti_pool *pool;
    MTI_VEC(mti_record *) chunks; /* of CHUNK_RECORDS each */
    size_t n_records, n_used;     /* n_used: records that have had an entry, of any reset */
    mti_hashmap ignored;          /* serials */
    size_t bytes, live_bytes, allocated;
};

static void lock(const mti_book *book) { pthread_mutex_lock(&book->pool->lock); }
static void unlock(const mti_book *book) { pthread_mutex_unlock(&book->pool->lock); }

const mti_choice mti_save_roles = {"role", MTI_NAMES("input", "output", "aux")};

const char *mt_save_role_name(mt_save_role role)
{
    return mti_choice_name(&mti_save_roles, (int)role);
}

/* ---- the records ---- */

static mti_record *record_at(const mti_book *book, size_t i)
{
    return &book->chunks.at[i / CHUNK_RECORDS][i % CHUNK_RECORDS];
}

static bool reserve_record(mti_book *book)
{
    if (book->n_records < book->chunks.n * CHUNK_RECORDS) return true;
    if (!MTI_RESERVE(&book->chunks)) return false;
    mti_record *chunk = mti_malloc(CHUNK_RECORDS * sizeof *chunk);
    if (chunk) book->chunks.at[book->chunks.n++] = chunk;
    return chunk;
}

/* The book's record of a block; NULL: it has none. */
static mti_record *record_of(const mti_book *book, const mti_block *block)
{
    mti_record *r = block->records;
    while (r && r->book != book) r = r->next;
    return r;
}

/* The place that points to the record, in the list of its block. */
static mti_record **link_to(const mti_record *record)
{
    mti_record **link = &record->block->records;
    while (*link != record) link = &(*link)->next;
    return link;
}

static void detach(mti_record *record)
{
    if (record->block) *link_to(record) = record->next;
    record->block = NULL;
}

/* ---- writing ---- */

bool mti_book_ignore(mti_book *book, uint64_t serial)
{
    lock(book);
    bool ok = mti_hashmap_find(&book->ignored, serial) != MTI_NO_PLACE ||
              mti_hashmap_add(&book->ignored, serial, 0);
    unlock(book);
    return ok;
}

static bool is_ignored(const mti_book *book, const mti_block *block)
{
    return book->ignored.n && mti_hashmap_find(&book->ignored, block->serial) != MTI_NO_PLACE;
}

static bool add_sharer(mti_record *record, const mt_saver *saver)
{
    size_t n = record->n_also;
    mt_saver *also = (mt_saver *)record->also;
    if (n == record->room) {
        size_t room = n ? 2 * n : 1;
        also = mti_realloc(also, room * sizeof *also);
        if (!also) return false;
        record->also = also;
        record->room = room;
    }
    also[n] = *saver;
    record->n_also++;
    return true;
}

static bool add_record(mti_book *book, mti_block *block, size_t n_bytes, const mt_saver *saver)
{
    if (!reserve_record(book)) return false;
    mti_record *record = record_at(book, book->n_records++);
    if (book->n_used < book->n_records) {
        book->n_used++;
        record->also = NULL;
        record->room = 0;
    }
    record->serial = block->serial;
    record->bytes = n_bytes;
    record->rounded = mti_rounded(block->requested);
    record->allocated = block->size;
    record->saver = *saver;
    record->n_also = 0;
    record->freed = false;
    record->freed_after_op = record->freed_after_module = "";
    record->book = book;
    record->block = block;
    record->next = block->records;
    block->records = record;
    book->bytes += n_bytes;
    book->live_bytes += n_bytes;
    book->allocated += block->size;
    return true;
}

bool mti_book_save(mti_book *book, mti_block *block, size_t n_bytes, const mt_saver *saver)
{
    lock(book);
    mti_record *known = record_of(book, block);
    bool ok = known                     ? add_sharer(known, saver)
              : is_ignored(book, block) ? true
                                        : add_record(book, block, n_bytes, saver);
    unlock(book);
    return ok;
}

/* Removes saver j: 0 is the first. False if it was the only one. */
static bool remove_saver(mti_record *record, size_t j)
{
    mt_saver *also = (mt_saver *)record->also;
    if (!record->n_also) return false;
    if (!j) record->saver = also[0];
    for (size_t k = j ? j : 1; k < record->n_also; k++) also[k - 1] = also[k];
    record->n_also--;
    return true;
}

static size_t index_of(const mti_book *book, const mti_record *record)
{
    size_t c = 0;
    while (record < book->chunks.at[c] || record >= book->chunks.at[c] + CHUNK_RECORDS) c++;
    return c * CHUNK_RECORDS + (size_t)(record - book->chunks.at[c]);
}

/* Removes a record, keeps the order of the others, and leaves its list of savers for the next. */
static void remove_record(mti_book *book, mti_record *record)
{
    detach(record);
    mti_record removed = *record;
    book->bytes -= removed.bytes;
    book->allocated -= removed.allocated;
    if (!removed.freed) book->live_bytes -= removed.bytes;
    for (size_t k = index_of(book, record); ++k < book->n_records;) {
        mti_record *moved = record_at(book, k), *to = record_at(book, k - 1);
        if (moved->block) *link_to(moved) = to;
        *to = *moved;
    }
    *record_at(book, --book->n_records) = removed;
}

/* Which of the record's savers that is: 0 is the first; past them all: none. */
static size_t find_saver(const mti_record *record, uint64_t node, const char *argument)
{
    size_t j = 0;
    for (const mt_saver *s = &record->saver; j <= record->n_also; s = &record->also[j++])
        if (s->node == node && !strcmp(s->argument, argument)) break;
    return j;
}

/* Whether the record has that save, also more than once; then it is taken back. */
static bool take_back(mti_book *book, mti_record *record, uint64_t node, const char *argument)
{
    size_t j = find_saver(record, node, argument);
    if (j > record->n_also) return false;
    for (; j <= record->n_also; j = find_saver(record, node, argument)) {
        if (remove_saver(record, j)) continue;
        remove_record(book, record);
        break;
    }
    return true;
}

void mti_book_take_back(mti_book *book, const mti_block *block, uint64_t node, const char *argument)
{
    lock(book);
    if (block) {
        mti_record *record = record_of(book, block);
        if (record) take_back(book, record, node, argument);
    } else { /* what is let go was saved last, as a rule */
        size_t i = book->n_records;
        while (i-- > 0 && !take_back(book, record_at(book, i), node, argument)) continue;
    }
    unlock(book);
}

void mti_book_freed_locked(mti_block *block)
{
    const mti_where *where = mti_where_now();
    while (block->records) {
        mti_record *record = block->records;
        block->records = record->next;
        record->block = NULL;
        if (!block->size) continue;
        record->freed = true;
        record->book->live_bytes -= record->bytes;
        if (!where->in_backward) continue;
        record->freed_after_op = where->op;
        record->freed_after_module = where->module;
    }
}

static void forget_records(mti_book *book)
{
    for (size_t i = 0; i < book->n_records; i++) detach(record_at(book, i));
    book->n_records = 0;
    book->bytes = book->live_bytes = book->allocated = 0;
}

void mti_book_reset(mti_book *book)
{
    lock(book);
    forget_records(book);
    unlock(book);
}

/* ---- reading ---- */

size_t mti_book_count(const mti_book *book) { return book->n_records; }
size_t mti_book_bytes(const mti_book *book) { return book->bytes; }
size_t mti_book_live_bytes(const mti_book *book) { return book->live_bytes; }
size_t mti_book_allocated(const mti_book *book) { return book->allocated; }
const mti_record *mti_book_get(const mti_book *book, size_t i) { return record_at(book, i); }

/* ---- making and ending ---- */

mti_book *mti_book_new(mti_pool *pool)
{
    mti_book *book = mti_calloc(1, sizeof *book);
    if (book) book->pool = pool;
    return book;
}

void mti_book_free(mti_book *book)
{
    if (!book) return;
    mti_book_reset(book);
    for (size_t i = 0; i < book->n_used; i++) mti_free((mt_saver *)record_at(book, i)->also);
    for (size_t i = 0; i < book->chunks.n; i++) mti_free(book->chunks.at[i]);
    mti_free(book->chunks.at);
    mti_hashmap_free(&book->ignored);
    mti_free(book);
}
