/* bpe.c: byte pair encoding of one word. Its symbols are characters at first; of all neighbours
 * that a merge joins, those of the least rank become one symbol, the leftmost first, until there
 * are none. A heap of ranks and places finds them: n log n for a word of n characters. */
#include "tokens/tokenizer.h"

#define NONE UINT32_MAX

typedef struct symbol {
    uint32_t id, rank;       /* rank: of this and the next as a pair; NONE: they do not merge */
    uint32_t merged;         /* what the pair becomes */
    uint32_t previous, next; /* NONE: there is none */
} symbol;

/* What has been seen: words and their tokens. A word takes the place of another with its hash. */
enum { CACHE = 8192, CACHED_BYTES = 24, CACHED_TOKENS = 6 };
typedef struct cached {
    unsigned char n_bytes, n_tokens;
    char word[CACHED_BYTES];
    uint32_t ids[CACHED_TOKENS];
} cached;

struct mti_bpe {
    MTI_VEC(symbol) symbols;
    MTI_VEC(uint64_t) heap; /* rank << 32 | place of the left symbol */
    mt_text text;           /* a symbol with prefix and suffix */
    cached cache[CACHE];
};

mti_bpe *mti_bpe_new(void) { return mti_calloc(1, sizeof(mti_bpe)); }

void mti_bpe_free(mti_bpe *work)
{
    if (!work) return;
    mti_free(work->symbols.at);
    mti_free(work->heap.at);
    mt_text_free(&work->text);
    mti_free(work);
}

/* ---- the tables ---- */

static uint64_t pair(uint32_t left, uint32_t right) { return (uint64_t)left << 32 | right; }

int mti_model_merge(mt_tokenizer *t, const char *left, size_t n, const char *right, size_t m,
                    uint32_t rank)
{
    const mti_vocabulary *v = &t->vocabulary;
    mti_token_model *model = &t->model;
    const size_t cut = model->prefix.n < m ? model->prefix.n : m, kept = m - cut;
    const uint64_t hash = mti_hash_bytes(MTI_HASH_BEGIN, left, n);
    const uint32_t a = mti_token_find(v, hash, "", 0, left, n, true);
    const uint32_t b = a == MTI_NO_TOKEN ? a : mti_token_named(v, right, m, true);
    if (b == MTI_NO_TOKEN) return 0;
    const mti_merge merge = {rank, mti_token_find(v, mti_hash_bytes(hash, right + cut, kept), left,
                                                  n, right + cut, kept, true)};
    if (merge.id == MTI_NO_TOKEN) return 0;
    const size_t at = mti_hashmap_find(&model->pairs, pair(a, b));
    if (at != MTI_NO_PLACE) return model->merges.at[at] = merge, 1;
    return mti_hashmap_add(&model->pairs, pair(a, b), model->merges.n) &&
                   MTI_PUSH(&model->merges, merge)
               ? 1
               : -1;
}

void mti_model_finish(mt_tokenizer *t)
{
    mti_token_model *m = &t->model;
    const mti_vocabulary *v = &t->vocabulary;
    char text[8];
    for (uint32_t c = 0; c < MTI_SHORT_CHARS; c++) {
        const int n = c < 0x80 ? 1 : 2;
        text[0] = (char)(n == 1 ? c : 0xC0 | c >> 6), text[1] = (char)(0x80 | (c & 0x3F));
        m->chars[c] = mti_token_named(v, text, (size_t)n, true);
    }
    for (unsigned b = 0; b < 256; b++) {
        snprintf(text, sizeof text, "<0x%02X>", b);
        m->bytes[b] = mti_token_named(v, text, 6, true);
    }
    for (size_t i = 0; i < v->tokens.n; i++)
        if (v->tokens.at[i].in_model && v->tokens.at[i].n > m->longest)
            m->longest = v->tokens.at[i].n;
}

/* ---- the heap ---- */

static bool heap_push(mti_bpe *w, uint64_t key)
{
    if (!MTI_PUSH(&w->heap, key)) return false;
    uint64_t *at = w->heap.at;
    size_t i = w->heap.n - 1;
    for (; i && key < at[(i - 1) / 2]; i = (i - 1) / 2) at[i] = at[(i - 1) / 2];
    at[i] = key;
    return true;
}

static uint64_t heap_pop(mti_bpe *w)
{
    uint64_t *at = w->heap.at;
    const uint64_t least = at[0], key = at[--w->heap.n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < w->heap.n) {
        if (child + 1 < w->heap.n && at[child + 1] < at[child]) child++;
        if (key <= at[child]) break;
        at[i] = at[child], i = child;
    }
    at[i] = key;
    return least;
}

/* ---- a word ---- */

static bool add_symbol(mti_bpe *w, uint32_t id)
{
    const uint32_t i = (uint32_t)w->symbols.n;
    const symbol s = {.id = id, .rank = NONE, .previous = i ? i - 1 : NONE, .next = i + 1};
    return MTI_PUSH(&w->symbols, s);
}

/* The token of the character [at, end) of the word. */
static uint32_t first_symbol(const mt_tokenizer *t, mti_bpe *w, const char *word, size_t n,
                             size_t at, size_t end, uint32_t c)
{
    const mti_token_model *m = &t->model;
    const mt_text *prefix = &m->prefix, *suffix = &m->suffix;
    if (!prefix->n && !suffix->n)
        return c < MTI_SHORT_CHARS ? m->chars[c]
                                   : mti_token_named(&t->vocabulary, word + at, end - at, true);
    w->text.n = 0;
    if (!mti_text_add(&w->text, prefix->at, at ? prefix->n : 0) ||
        !mti_text_add(&w->text, word + at, end - at) ||
        !mti_text_add(&w->text, suffix->at, end == n ? suffix->n : 0))
        return MTI_NO_TOKEN;
    return mti_token_named(&t->vocabulary, w->text.at, w->text.n, true);
}

/* Adds the bytes of an unknown character as tokens; *known: whether all of them are tokens. With a
 * prefix or suffix these are of the character, too. */
static bool add_bytes(const mt_tokenizer *t, mti_bpe *w, const char *bytes, size_t n, bool *known)
{
    const mti_token_model *m = &t->model;
    *known = m->byte_fallback;
    for (size_t i = 0; i < n && *known; i++)
        *known = m->bytes[(unsigned char)bytes[i]] != MTI_NO_TOKEN;
    for (size_t i = 0; i < n && *known; i++)
        if (!add_symbol(w, m->bytes[(unsigned char)bytes[i]])) return false;
    return true;
}

/* Fills in the word's symbols. An unknown character waits until a known one comes, since several
 * may become one unknown token. */
static bool add_symbols(const mt_tokenizer *t, mti_bpe *w, const char *word, size_t n)
{
    const mti_token_model *m = &t->model;
    const bool affixed = m->prefix.n || m->suffix.n;
    bool waiting = false;
    for (size_t at = 0, end = 0; at < n; at = end) {
        const uint64_t failures = mti_failures();
        const uint32_t c = mti_char(word, n, &end);
        const uint32_t id = first_symbol(t, w, word, n, at, end, c);
        if (affixed && mti_failed_since(failures)) return false;
        if (id != MTI_NO_TOKEN) {
            if ((waiting && !add_symbol(w, m->unknown)) || !add_symbol(w, id)) return false;
            waiting = false;
            continue;
        }
        bool known;
        if (!add_bytes(t, w, affixed ? w->text.at : word + at, affixed ? w->text.n : end - at,
                       &known))
            return false;
        if (known || m->unknown == MTI_NO_TOKEN) continue;
        if (waiting && !m->fuse_unknown && !add_symbol(w, m->unknown)) return false;
        waiting = true;
    }
    return !waiting || add_symbol(w, m->unknown);
}

/* Whether symbol i and the next one merge, into the heap. */
static bool look(const mti_token_model *m, mti_bpe *w, uint32_t i)
{
    symbol *s = &w->symbols.at[i];
    s->rank = NONE;
    if (s->next == NONE) return true;
    const size_t at = mti_hashmap_find(&m->pairs, pair(s->id, w->symbols.at[s->next].id));
    if (at == MTI_NO_PLACE) return true;
    s->rank = m->merges.at[at].rank, s->merged = m->merges.at[at].id;
    return heap_push(w, pair(s->rank, i));
}

static bool merge_all(const mti_token_model *m, mti_bpe *w)
{
    const uint32_t n = (uint32_t)w->symbols.n;
    symbol *at = w->symbols.at;
    w->heap.n = 0;
    at[n - 1].next = NONE;
    for (uint32_t i = 0; i < n; i++)
        if (!look(m, w, i)) return false;
    while (w->heap.n) {
        const uint64_t key = heap_pop(w);
        symbol *s = &at[(uint32_t)key];
        if (s->rank != (uint32_t)(key >> 32)) continue; /* it has merged otherwise meanwhile */
        symbol *gone = &at[s->next];
        s->id = s->merged, s->next = gone->next;
        gone->rank = NONE;
        if (s->next != NONE) at[s->next].previous = (uint32_t)key;
        if (!look(m, w, (uint32_t)key)) return false;
        if (s->previous != NONE && !look(m, w, s->previous)) return false;
    }
    return true;
}

static bool push_all(const cached *c, mt_token_list *ids)
{
    for (size_t i = 0; i < c->n_tokens; i++)
        if (!MTI_PUSH(ids, (int64_t)c->ids[i])) return false;
    return true;
}

bool mti_bpe_encode(const mt_tokenizer *t, mti_bpe *w, const char *word, size_t n,
                    mt_token_list *ids)
{
    const uint64_t hash = n <= CACHED_BYTES ? mti_hash_bytes(MTI_HASH_BEGIN, word, n) : 0;
    cached *c = n <= CACHED_BYTES ? &w->cache[(hash ^ hash >> 32) % CACHE] : NULL;
    if (c && c->n_bytes == n && !memcmp(c->word, word, n)) return push_all(c, ids);
    if (t->model.ignore_merges) {
        const uint32_t whole = mti_token_named(&t->vocabulary, word, n, true);
        if (whole != MTI_NO_TOKEN) return MTI_PUSH(ids, (int64_t)whole);
    }
    const size_t before = ids->n;
    w->symbols.n = 0;
    if (!add_symbols(t, w, word, n)) return false;
    if (!w->symbols.n) return true;
    if (!merge_all(&t->model, w)) return false;
    for (uint32_t i = 0; i != NONE; i = w->symbols.at[i].next)
        if (!MTI_PUSH(ids, (int64_t)w->symbols.at[i].id)) return false;
    const size_t made = ids->n - before;
    if (!c || made > CACHED_TOKENS) return true;
    c->n_bytes = (unsigned char)n, c->n_tokens = (unsigned char)made;
    memcpy(c->word, word, n);
    for (size_t i = 0; i < made; i++) c->ids[i] = (uint32_t)ids->at[before + i];
    return true;
}

/* ---- WordPiece ---- */

/* The longest token that begins the word, then the longest, with the prefix, of what is left. */
bool mti_wordpiece_encode(const mt_tokenizer *t, const char *word, size_t n, mt_token_list *ids)
{
    const mti_token_model *m = &t->model;
    const size_t before = ids->n;
    size_t count = 0, longest = 0;
    for (size_t at = 0; at < n; count++) mti_char(word, n, &at);
    for (size_t at = 0; at < n; at += longest) {
        const size_t n_before = at ? m->prefix.n : 0;
        uint64_t hash = mti_hash_bytes(MTI_HASH_BEGIN, m->prefix.at, n_before);
        uint32_t id = MTI_NO_TOKEN, found;
        longest = 0;
        for (size_t k = 0; at + k < n && k < m->longest && count <= m->most_chars;) {
            hash = mti_hash_bytes(hash, word + at + k++, 1);
            if (at + k < n && ((unsigned char)word[at + k] & 0xC0) == 0x80) continue;
            found =
                mti_token_find(&t->vocabulary, hash, m->prefix.at, n_before, word + at, k, true);
            if (found != MTI_NO_TOKEN) id = found, longest = k;
        }
        if (id == MTI_NO_TOKEN) {
            ids->n = before;
            return MTI_PUSH(ids, (int64_t)m->unknown);
        }
        if (!MTI_PUSH(ids, (int64_t)id)) return false;
    }
    return true;
}
