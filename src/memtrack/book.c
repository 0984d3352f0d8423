/* book.c: which storages were saved, by whom, and when their bytes went back.
 *
 * Serial numbers are looked up in an open-addressing table that gives the number
 * of the record, in order of first saving. Records lie in chunks that never move:
 * growing copies nothing, and a closed book's chunks serve the next one. */
#include "memtrack/memtrack.h"

#define IGNORED       UINT32_MAX
#define CHUNK_RECORDS 128

typedef struct slot {
    uint64_t serial; /* 0: empty, since serials start at 1 */
    uint32_t record; /* index, or IGNORED */
} slot;

struct mti_book {
    slot *slots;
    size_t n_slots, n_used;       /* n_slots: a power of two, or 0 */
    MTI_VEC(mti_record *) chunks; /* of CHUNK_RECORDS each */
    size_t n_records;
    size_t bytes, live_bytes, rounded_bytes;
};

/* ---- the table ---- */

static slot *find(const mti_book *book, uint64_t serial)
{
    /* Serials come in runs: multiplied by the golden ratio they scatter. */
    size_t i = (serial * 0x9E3779B97F4A7C15u) >> 32 & (book->n_slots - 1);
    while (book->slots[i].serial && book->slots[i].serial != serial)
        i = (i + 1) & (book->n_slots - 1);
    return &book->slots[i];
}

/* Room for one more entry at no more than three quarters full. */
static bool reserve_slot(mti_book *book)
{
    if (4 * (book->n_used + 1) <= 3 * book->n_slots) return true;
    slot *old = book->slots;
    size_t n_old = book->n_slots, n = n_old ? 2 * n_old : 64;
    slot *grown = mti_calloc(n, sizeof *grown);
    if (!grown) return false;
    book->slots = grown;
    book->n_slots = n;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].serial) *find(book, old[i].serial) = old[i];
    mti_free(old);
    return true;
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
    if (!reserve_slot(book)) return false;
    slot *s = find(book, serial);
    if (s->serial) return true; /* ignored already, or saved before: what is written stays */
    *s = (slot){serial, IGNORED};
    book->n_used++;
    return true;
}

/* The list has room for the next power of two of its length. */
static bool add_sharer(mti_record *record, const mti_save *save)
{
    size_t n = record->n_also;
    mti_save *also = (mti_save *)record->also;
    if ((n & (n - 1)) == 0) {
        also = mti_realloc(also, (n ? 2 * n : 1) * sizeof *also);
        if (!also) return false;
        record->also = also;
    }
    also[n] = *save;
    record->n_also++;
    return true;
}

bool mti_book_save(mti_book *book, const mti_save *save)
{
    if (!reserve_slot(book)) return false;
    slot *s = find(book, save->serial);
    if (s->serial) return s->record == IGNORED || add_sharer(record_at(book, s->record), save);
    if (!reserve_record(book)) return false;
    mti_record *record = record_at(book, book->n_records);
    record->first = *save;
    record->n_also = 0;
    record->also = NULL;
    record->freed = false;
    record->freed_after_op = record->freed_after_module = "";
    *s = (slot){save->serial, (uint32_t)book->n_records++};
    book->n_used++;
    book->bytes += save->bytes;
    book->live_bytes += save->bytes;
    book->rounded_bytes += save->rounded;
    return true;
}

void mti_book_freed(mti_book *book, uint64_t serial, const mti_where *where)
{
    if (!book->n_slots) return;
    const slot *s = find(book, serial);
    if (!s->serial || s->record == IGNORED) return;
    mti_record *record = record_at(book, s->record);
    if (record->freed) return;
    record->freed = true;
    book->live_bytes -= record->first.bytes;
    if (!where) return;
    record->freed_after_op = where->op;
    record->freed_after_module = where->module;
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
    for (size_t i = 0; i < book->n_records; i++) mti_free((mti_save *)record_at(book, i)->also);
    for (size_t i = 0; i < book->chunks.n; i++) mti_free(book->chunks.at[i]);
    mti_free(book->chunks.at);
    mti_free(book->slots);
    mti_free(book);
}
