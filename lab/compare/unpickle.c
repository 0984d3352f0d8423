/* unpickle.c: a machine that builds plain values from a pickle, and does nothing else. */
#include <string.h>
#include "compare/unpickle.h"

typedef struct machine {
    const char *name; /* of the file */
    const unsigned char *bytes;
    size_t n, at;
    size_t opcode_at;
    mti_unpickled *out;
    mti_py_list stack, memo;
    MTI_VEC(size_t) marks; /* heights of the stack */
    bool stopped;
} machine;

/* Those that make Python look up or call something; all others that are unknown have no name. */
static const struct {
    unsigned char opcode;
    const char *name;
} refused[] = {
    {'c', "GLOBAL"}, {0x93, "STACK_GLOBAL"}, {'R', "REDUCE"},  {'b', "BUILD"},
    {'i', "INST"},   {'o', "OBJ"},           {0x81, "NEWOBJ"}, {0x92, "NEWOBJ_EX"},
    {'P', "PERSID"}, {'Q', "BINPERSID"},     {0x82, "EXT1"},   {0x83, "EXT2"},
    {0x84, "EXT4"},  {0x97, "NEXT_BUFFER"},  {'I', "INT"},     {'L', "LONG"},
    {'F', "FLOAT"},  {'S', "STRING"},        {'V', "UNICODE"}, {0x98, "READONLY_BUFFER"}};

/* ---- errors ---- */

static bool bad(const machine *m, const char *what)
{
    return mti_fail_bool(MT_ERR_FORMAT, "%s: byte %zu of %zu: %s", m->name, m->opcode_at, m->n,
                         what);
}

static bool ends(const machine *m, uint64_t wanted)
{
    return mti_fail_bool(MT_ERR_FORMAT,
                         "%s: byte %zu of %zu: the pickle is cut off: %llu bytes should follow, "
                         "and %zu are left",
                         m->name, m->opcode_at, m->n, (unsigned long long)wanted, m->n - m->at);
}

static int shown(size_t n) { return n < 60 ? (int)n : 60; }

/* Refuses an opcode, and names what Python would have looked up. */
static bool refuse(const machine *m, unsigned char opcode)
{
    const char *name = "unknown";
    char what[160] = "";
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].opcode == opcode) name = refused[i].name;
    const char *text = (const char *)m->bytes + m->at;
    const size_t left = m->n - m->at;
    const char *line = memchr(text, '\n', left);
    const mti_py_value *top = m->stack.n > 1 ? &m->stack.at[m->stack.n - 2] : NULL;
    if (opcode == 'c' && line) {
        const size_t first = (size_t)(line - text), rest = left - first - 1;
        const char *end = memchr(line + 1, '\n', rest);
        snprintf(what, sizeof what, " (%.*s.%.*s)", shown(first), text,
                 shown(end ? (size_t)(end - line - 1) : rest), line + 1);
    } else if (opcode == 0x93 && top && top[0].kind == MTI_PY_TEXT && top[1].kind == MTI_PY_TEXT) {
        snprintf(what, sizeof what, " (%.*s.%.*s)", shown(top[0].n), top[0].text, shown(top[1].n),
                 top[1].text);
    }
    return mti_fail_bool(MT_ERR_FORMAT,
                         "%s: byte %zu of %zu: opcode 0x%02x, %s%s: a memory snapshot has numbers, "
                         "texts, lists and dictionaries only, and nothing else is read or run",
                         m->name, m->opcode_at, m->n, opcode, name, what);
}

/* ---- bytes ---- */

/* The next n bytes; NULL with an error if the file ends before. */
static const unsigned char *take(machine *m, uint64_t n)
{
    if (n > m->n - m->at) {
        ends(m, n);
        return NULL;
    }
    const unsigned char *p = m->bytes + m->at;
    m->at += (size_t)n;
    return p;
}

/* A number of n bytes (at most 8), the lowest first. */
static bool take_number(machine *m, size_t n, uint64_t *out)
{
    const unsigned char *p = take(m, n);
    *out = 0;
    for (size_t i = 0; p && i < n; i++) *out |= (uint64_t)p[i] << 8 * i;
    return p != NULL;
}

/* ---- the stack ---- */

static bool push(machine *m, mti_py_value value) { return MTI_PUSH(&m->stack, value); }

/* How many values there are above the last mark, or at all. */
static size_t height(const machine *m)
{
    return m->stack.n - (m->marks.n ? m->marks.at[m->marks.n - 1] : 0);
}

static bool needs(const machine *m, size_t n)
{
    return height(m) >= n || bad(m, "the stack holds too few values");
}

static bool push_text(machine *m, size_t length_bytes)
{
    uint64_t n;
    if (!take_number(m, length_bytes, &n)) return false;
    const unsigned char *p = take(m, n);
    if (p && n > UINT32_MAX) return bad(m, "a text of 4 GiB or more");
    return p &&
           push(m, (mti_py_value){.kind = MTI_PY_TEXT, .n = (uint32_t)n, .text = (const char *)p});
}

/* An integer of n bytes in two's complement. 9 bytes may hold an unsigned one of 8. */
static bool push_long(machine *m, uint64_t n)
{
    const unsigned char *p = take(m, n);
    if (!p) return false;
    const bool fits = n <= 8 || (n == 9 && p[8] == 0);
    if (!fits) return bad(m, "an integer of more than 8 bytes");
    const size_t used = n < 8 ? (size_t)n : 8;
    uint64_t value = used && p[n - 1] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = 0; i < used; i++)
        value = (value & ~((uint64_t)0xff << 8 * i)) | (uint64_t)p[i] << 8 * i;
    return push(m, (mti_py_value){.kind = MTI_PY_INT, .i = (int64_t)value});
}

/* An integer of n bytes; 4 bytes have a sign. */
static bool push_int(machine *m, size_t n)
{
    uint64_t value;
    if (!take_number(m, n, &value)) return false;
    return push(m, (mti_py_value){.kind = MTI_PY_INT,
                                  .i = n == 4 ? (int64_t)(int32_t)value : (int64_t)value});
}

static bool push_real(machine *m)
{
    const unsigned char *p = take(m, 8);
    uint64_t bits = 0;
    mti_py_value value = {.kind = MTI_PY_REAL};
    for (size_t i = 0; p && i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&value.real, &bits, sizeof bits);
    return p && push(m, value);
}

static bool push_list(machine *m, mti_py_kind kind)
{
    const mti_py_value value = {.kind = kind, .list = m->out->lists.n};
    return MTI_PUSH(&m->out->lists, (mti_py_list){0}) && push(m, value);
}

/* ---- lists, tuples, dictionaries ---- */

/* Moves the topmost n values to the end of the list below them. */
static bool append(machine *m, mti_py_kind kind, size_t n)
{
    if (!needs(m, n + 1)) return false;
    const mti_py_value *values = m->stack.at + m->stack.n - n;
    if (values[-1].kind != kind) return bad(m, "what is to be filled is no list or no dictionary");
    mti_py_list *list = &m->out->lists.at[values[-1].list];
    if (kind == MTI_PY_DICT && n % 2) return bad(m, "a key without a value");
    for (size_t i = 0; i < n; i++)
        if (!MTI_PUSH(list, values[i])) return false;
    m->stack.n -= n;
    return true;
}

static bool append_to_mark(machine *m, mti_py_kind kind)
{
    if (!m->marks.n) return bad(m, "there is no mark on the stack");
    const size_t n = height(m);
    m->marks.n--;
    return append(m, kind, n);
}

/* A tuple of the topmost n values. */
static bool push_tuple(machine *m, size_t n)
{
    mti_py_list list = {0};
    if (!needs(m, n)) return false;
    for (size_t i = 0; i < n; i++)
        if (!MTI_PUSH(&list, m->stack.at[m->stack.n - n + i])) {
            mti_free(list.at);
            return false;
        }
    m->stack.n -= n;
    if (!push_list(m, MTI_PY_LIST)) {
        mti_free(list.at);
        return false;
    }
    m->out->lists.at[m->out->lists.n - 1] = list;
    return true;
}

static bool push_tuple_to_mark(machine *m)
{
    if (!m->marks.n) return bad(m, "there is no mark on the stack");
    const size_t n = height(m);
    m->marks.n--;
    return push_tuple(m, n);
}

/* ---- the memo ---- */

/* Writers count up from 0, so a number that skips some is of a file that is none. */
static bool remember(machine *m, uint64_t number)
{
    if (!needs(m, 1)) return false;
    if (number > m->memo.n) return bad(m, "a number of the memo that skips others");
    const mti_py_value top = m->stack.at[m->stack.n - 1];
    if (number == m->memo.n) return MTI_PUSH(&m->memo, top);
    m->memo.at[number] = top;
    return true;
}

static bool recall(machine *m, size_t n_bytes)
{
    uint64_t number;
    if (!take_number(m, n_bytes, &number)) return false;
    if (number >= m->memo.n) return bad(m, "a number of the memo that nothing was stored under");
    return push(m, m->memo.at[number]);
}

static bool remember_as(machine *m, size_t n_bytes)
{
    uint64_t number;
    return take_number(m, n_bytes, &number) && remember(m, number);
}

/* ---- opcodes ---- */

static bool begin_protocol(machine *m)
{
    const unsigned char *p = take(m, 1);
    return p && ((*p >= 2 && *p <= 5) || bad(m, "a protocol other than 2 to 5"));
}

static bool begin_frame(machine *m)
{
    uint64_t n;
    return take_number(m, 8, &n) && (n <= m->n - m->at || ends(m, n));
}

static bool push_long_with_length(machine *m, size_t length_bytes)
{
    uint64_t n;
    return take_number(m, length_bytes, &n) && push_long(m, n);
}

static bool step(machine *m)
{
    const unsigned char *p = take(m, 1);
    if (!p) return false;
    switch (*p) {
    case 0x80: return begin_protocol(m);
    case 0x95: return begin_frame(m);
    case '.': m->stopped = true; return needs(m, 1);
    case '(': return MTI_PUSH(&m->marks, m->stack.n);
    case 'N': return push(m, (mti_py_value){.kind = MTI_PY_NONE});
    case 0x88: return push(m, (mti_py_value){.kind = MTI_PY_BOOL, .i = 1});
    case 0x89: return push(m, (mti_py_value){.kind = MTI_PY_BOOL, .i = 0});
    case 'K': return push_int(m, 1);
    case 'M': return push_int(m, 2);
    case 'J': return push_int(m, 4);
    case 0x8a: return push_long_with_length(m, 1);
    case 0x8b: return push_long_with_length(m, 4);
    case 'G': return push_real(m);
    case 0x8c: return push_text(m, 1);
    case 'X': return push_text(m, 4);
    case 0x8d: return push_text(m, 8);
    case ']': return push_list(m, MTI_PY_LIST);
    case '}': return push_list(m, MTI_PY_DICT);
    case ')': return push_tuple(m, 0);
    case 0x85: return push_tuple(m, 1);
    case 0x86: return push_tuple(m, 2);
    case 0x87: return push_tuple(m, 3);
    case 't': return push_tuple_to_mark(m);
    case 'a': return append(m, MTI_PY_LIST, 1);
    case 'e': return append_to_mark(m, MTI_PY_LIST);
    case 's': return append(m, MTI_PY_DICT, 2);
    case 'u': return append_to_mark(m, MTI_PY_DICT);
    case 'q': return remember_as(m, 1);
    case 'r': return remember_as(m, 4);
    case 0x94: return remember(m, m->memo.n);
    case 'h': return recall(m, 1);
    case 'j': return recall(m, 4);
    default: return refuse(m, *p);
    }
}

bool mti_unpickle(mti_unpickled *out, const char *name, const void *bytes, size_t n)
{
    machine m = {.name = name, .bytes = bytes, .n = n, .out = out};
    bool ok = true;
    *out = (mti_unpickled){0};
    while (ok && !m.stopped) {
        m.opcode_at = m.at;
        ok = step(&m);
    }
    if (ok) out->root = m.stack.at[m.stack.n - 1];
    mti_free(m.stack.at);
    mti_free(m.memo.at);
    mti_free(m.marks.at);
    return ok;
}

void mti_unpickled_free(mti_unpickled *u)
{
    for (size_t i = 0; i < u->lists.n; i++) mti_free(u->lists.at[i].at);
    mti_free(u->lists.at);
    *u = (mti_unpickled){0};
}

/* ---- looking at values ---- */

const mti_py_list *mti_py_items(const mti_unpickled *u, const mti_py_value *list)
{
    static const mti_py_list none;
    return list && list->kind == MTI_PY_LIST ? &u->lists.at[list->list] : &none;
}

bool mti_py_is(const mti_py_value *value, const char *text)
{
    return value && value->kind == MTI_PY_TEXT && value->n == strlen(text) &&
           !memcmp(value->text, text, value->n);
}

const mti_py_value *mti_py_get(const mti_unpickled *u, const mti_py_value *dict, const char *key)
{
    if (!dict || dict->kind != MTI_PY_DICT) return NULL;
    const mti_py_list *all = &u->lists.at[dict->list];
    for (size_t i = 0; i + 1 < all->n; i += 2)
        if (mti_py_is(&all->at[i], key)) return &all->at[i + 1];
    return NULL;
}
