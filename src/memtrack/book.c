/* book.c: which storages were saved, by which ops, and when they were freed.
 *
 * A map gives the number of a storage's record, in order of first saving. Records lie in chunks
 * that never move: growing copies nothing. A book that is reset keeps all its memory, also the
 * lists of its records' later savers, so a training step that saves as the last one did asks for
 * none. */
#include <string.h>
#include "memtrack/memtrack.h"

#define IGNORED       UINT32_MAX
#define CHUNK_RECORDS 128

struct mti_book {
    mti_hashmap at;               /* serial -> number of the record, or IGNORED */
    MTI_VEC(mti_record *) chunks; /* of CHUNK_RECORDS each */
    size_t n_records, n_used;     /* n_used: records that have had an entry, of any reset */
    MTI_VEC(uint64_t) ignored;
    size_t bytes, live_bytes, rounded_bytes;
};

const char *mt_save_role_name(mt_save_role role)
{
    static const char *const names[] = {"input", "output", "aux"};
    return (unsigned)role < sizeof names / sizeof *names ? names[role] : "";
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

/* ---- writing ---- */

bool mti_book_ignore(mti_book *book, uint64_t serial)
{
    size_t known = mti_hashmap_find(&book->at, serial);
    if (known == IGNORED) return true;
    if (!MTI_RESERVE(&book->ignored)) return false;
    /* Saved before: the entry stays until a reset. */
    if (known == MTI_NO_PLACE && !mti_hashmap_add(&book->at, serial, IGNORED)) return false;
    book->ignored.at[book->ignored.n++] = serial;
    return true;
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

bool mti_book_save(mti_book *book, const mti_save *save)
{
    size_t known = mti_hashmap_find(&book->at, save->serial);
    if (known == IGNORED) return true;
    if (known != MTI_NO_PLACE) return add_sharer(record_at(book, known), &save->saver);
    if (!reserve_record(book) || !mti_hashmap_add(&book->at, save->serial, book->n_records))
        return false;
    mti_record *record = record_at(book, book->n_records++);
    if (book->n_used < book->n_records) {
        book->n_used++;
        record->also = NULL;
        record->room = 0;
    }
    record->first = *save;
    record->n_also = 0;
    record->freed = false;
    record->freed_after_op = record->freed_after_module = "";
    book->bytes += save->bytes;
    book->live_bytes += save->bytes;
    book->rounded_bytes += save->rounded;
    return true;
}

/* Removes saver j: 0 is the first. False if it was the only one. */
static bool remove_saver(mti_record *record, size_t j)
{
    mt_saver *also = (mt_saver *)record->also;
    if (!record->n_also) return false;
    if (!j) record->first.saver = also[0];
    for (size_t k = j ? j : 1; k < record->n_also; k++) also[k - 1] = also[k];
    record->n_also--;
    return true;
}

/* Removes record i, keeps the order of the others, and leaves its list of savers for the next. */
static void remove_record(mti_book *book, size_t i)
{
    mti_record removed = *record_at(book, i);
    book->bytes -= removed.first.bytes;
    book->rounded_bytes -= removed.first.rounded;
    if (!removed.freed) book->live_bytes -= removed.first.bytes;
    mti_hashmap_remove(&book->at, removed.first.serial, i);
    for (size_t k = i; ++k < book->n_records;) {
        mti_record *moved = record_at(book, k);
        mti_hashmap_move(&book->at, moved->first.serial, k, k - 1);
        *record_at(book, k - 1) = *moved;
    }
    *record_at(book, --book->n_records) = removed;
}

static bool is_save(const mt_saver *saver, uint64_t node, const char *argument)
{
    return saver->node == node && !strcmp(saver->argument, argument);
}

void mti_book_take_back(mti_book *book, uint64_t serial, uint64_t node, const char *argument)
{
    size_t i = mti_hashmap_find(&book->at, serial), j = 0;
    if (i == MTI_NO_PLACE || i == IGNORED) return;
    mti_record *record = record_at(book, i);
    if (!is_save(&record->first.saver, node, argument)) {
        while (j < record->n_also && !is_save(&record->also[j], node, argument)) j++;
        if (j++ == record->n_also) return;
    }
    if (!remove_saver(record, j)) remove_record(book, i);
}

void mti_book_freed(mti_book *book, uint64_t serial, const mti_where *where)
{
    size_t known = mti_hashmap_find(&book->at, serial);
    if (known == MTI_NO_PLACE || known == IGNORED) return;
    mti_record *record = record_at(book, known);
    if (record->freed) return;
    record->freed = true;
    book->live_bytes -= record->first.bytes;
    if (!where) return;
    record->freed_after_op = where->op;
    record->freed_after_module = where->module;
}

void mti_book_reset(mti_book *book)
{
    mti_hashmap_clear(&book->at);
    /* They were all in the map before, so it has room. */
    for (size_t i = 0; i < book->ignored.n; i++)
        if (mti_hashmap_find(&book->at, book->ignored.at[i]) == MTI_NO_PLACE)
            mti_hashmap_add(&book->at, book->ignored.at[i], IGNORED);
    book->n_records = 0;
    book->bytes = book->live_bytes = book->rounded_bytes = 0;
}

/* ---- reading ---- */

size_t mti_book_count(const mti_book *book) { return book->n_records; }
size_t mti_book_bytes(const mti_book *book) { return book->bytes; }
size_t mti_book_live_bytes(const mti_book *book) { return book->live_bytes; }
size_t mti_book_rounded_bytes(const mti_book *book) { return book->rounded_bytes; }
const mti_record *mti_book_get(const mti_book *book, size_t i) { return record_at(book, i); }

/* ---- making and ending ---- */

mti_book *mti_book_new(void) { return mti_calloc(1, sizeof(mti_book)); }

void mti_book_free(mti_book *book)
{
    if (!book) return;
    for (size_t i = 0; i < book->n_used; i++) mti_free((mt_saver *)record_at(book, i)->also);
    for (size_t i = 0; i < book->chunks.n; i++) mti_free(book->chunks.at[i]);
    mti_free(book->chunks.at);
    mti_free(book->ignored.at);
    mti_hashmap_free(&book->at);
    mti_free(book);
}
