/* pickle.c: Python's pickle format, protocol 2. */
#include <string.h>
#include "report/pickle.h"

static void put(mti_pickle *p, const void *bytes, size_t n)
{
    p->ok = p->ok && mti_file_write(p->file, bytes, n);
}

/* An opcode and `n` bytes of a number, the lowest first. */
static void put_number(mti_pickle *p, char opcode, uint64_t value, size_t n)
{
    unsigned char bytes[9] = {(unsigned char)opcode};
    for (size_t i = 0; i < n; i++) bytes[i + 1] = (unsigned char)(value >> 8 * i);
    put(p, bytes, n + 1);
}

static void put_opcode(mti_pickle *p, char opcode) { put(p, &opcode, 1); }

void mti_pickle_begin(mti_pickle *p, mti_file *file)
{
    *p = (mti_pickle){.file = file, .ok = true};
    put(p, "\x80\x02", 2);
}

void mti_pickle_end(mti_pickle *p) { put_opcode(p, '.'); }

void mti_pickle_free(mti_pickle *p) { mti_name_index_free(&p->keys); }

/* ---- values ---- */

static void put_int(mti_pickle *p, int64_t value)
{
    if (value >= 0 && value <= UINT8_MAX)
        put_number(p, 'K', (uint64_t)value, 1);
    else if (value >= 0 && value <= UINT16_MAX)
        put_number(p, 'M', (uint64_t)value, 2);
    else if (value >= INT32_MIN && value <= INT32_MAX)
        put_number(p, 'J', (uint64_t)value, 4);
    else { /* LONG1: the number of bytes, then two's complement */
        put(p, "\x8a\x08", 2);
        unsigned char bytes[8];
        for (size_t i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)value >> 8 * i);
        put(p, bytes, 8);
    }
}

void mti_pickle_real(mti_pickle *p, double value)
{
    uint64_t bits;
    unsigned char bytes[9] = {'G'}; /* the highest byte first */
    memcpy(&bits, &value, sizeof bits);
    for (size_t i = 0; i < 8; i++) bytes[8 - i] = (unsigned char)(bits >> 8 * i);
    put(p, bytes, sizeof bytes);
}

void mti_pickle_bool(mti_pickle *p, bool value) { put(p, value ? "\x88" : "\x89", 1); }

void mti_pickle_text(mti_pickle *p, const char *utf8)
{
    char *copy = mti_is_utf8(utf8) ? NULL : mti_strdup(utf8);
    if (copy) mti_make_printable(copy);
    size_t n = strlen(copy ? copy : utf8);
    p->ok = p->ok && (copy || mti_is_utf8(utf8));
    put_number(p, 'X', n, 4);
    put(p, copy ? copy : utf8, n);
    mti_free(copy);
}

void mti_pickle_pair(mti_pickle *p, int64_t a, int64_t b)
{
    put_int(p, a);
    put_int(p, b);
    put(p, "\x86", 1);
}

/* ---- lists and dictionaries ---- */

void mti_pickle_list(mti_pickle *p) { put_opcode(p, ']'); }
void mti_pickle_dict(mti_pickle *p) { put(p, "}(", 2); }
void mti_pickle_mark(mti_pickle *p) { put_opcode(p, '('); }
void mti_pickle_append(mti_pickle *p) { put_opcode(p, 'e'); }
void mti_pickle_set(mti_pickle *p) { put_opcode(p, 'u'); }

/* ---- the memo ---- */

uint32_t mti_pickle_remember(mti_pickle *p)
{
    uint32_t number = p->n_memo++;
    put_number(p, number <= UINT8_MAX ? 'q' : 'r', number, number <= UINT8_MAX ? 1 : 4);
    return number;
}

void mti_pickle_again(mti_pickle *p, uint32_t number)
{
    put_number(p, number <= UINT8_MAX ? 'h' : 'j', number, number <= UINT8_MAX ? 1 : 4);
}

void mti_pickle_key(mti_pickle *p, const char *utf8)
{
    const size_t number = mti_name_index_find(&p->keys, utf8, strlen(utf8));
    if (number != MTI_NO_PLACE) {
        mti_pickle_again(p, (uint32_t)number);
        return;
    }
    mti_pickle_text(p, utf8);
    p->ok = mti_name_index_add(&p->keys, utf8, mti_pickle_remember(p)) && p->ok;
}

void mti_pickle_key_int(mti_pickle *p, const char *utf8, int64_t value)
{
    mti_pickle_key(p, utf8);
    put_int(p, value);
}
