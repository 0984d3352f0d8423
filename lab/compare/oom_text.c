/* oom_text.c: the numbers of an out-of-memory message of PyTorch. */
#include <ctype.h>
#include <string.h>
#include "compare/oom.h"

#define LONGEST 2000 /* characters of a message */

/* What stands right before or right behind a number, in small letters; NULL: anything. */
static const struct {
    const char *before, *behind;
    size_t at;
} places[] = {
    {"tried to allocate ", NULL, offsetof(mti_oom, asked)},
    {"total capacity of ", NULL, offsetof(mti_oom, total)},
    {"total capacty of ", NULL, offsetof(mti_oom, total)}, /* 2.1 */
    {NULL, " total capacity", offsetof(mti_oom, total)},
    {"max allowed: ", NULL, offsetof(mti_oom, total)},
    {NULL, " is free", offsetof(mti_oom, free)},
    {NULL, " free", offsetof(mti_oom, free)},
    {NULL, " is allocated by pytorch", offsetof(mti_oom, allocated)},
    {NULL, " already allocated", offsetof(mti_oom, allocated)},
    {"mps allocated: ", NULL, offsetof(mti_oom, allocated)},
    {NULL, " is reserved by pytorch but unallocated", offsetof(mti_oom, unallocated)},
};

/* Numbers of which unallocated bytes are a part. */
static const char *const reserved[] = {" reserved in total by pytorch", " cached"};

static bool ends_with(const char *text, size_t n, const char *end)
{
    const size_t length = strlen(end);
    return !end[0] || (n >= length && !memcmp(text + n - length, end, length));
}

static bool begins_with(const char *text, const char *beginning_of_it)
{
    return !strncmp(text, beginning_of_it, strlen(beginning_of_it));
}

/* The message in small letters, with a space for whatever blanks a terminal has wrapped it with.
 * Returns its length. */
static size_t normalise(char out[LONGEST + 1], const char *text)
{
    size_t n = 0;
    for (; *text && n < LONGEST; text++) {
        const bool blank = isspace((unsigned char)*text);
        if (blank && (!n || out[n - 1] == ' ')) continue;
        out[n++] = blank ? ' ' : (char)tolower((unsigned char)*text);
    }
    out[n] = 0;
    return n;
}

/* The first number that stands so is it: what follows the message may have others. */
static void note(mti_oom *oom, mti_byte_range *in_all, const char *text, size_t at, size_t length,
                 const mti_byte_range *span)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        mti_byte_range *to = (mti_byte_range *)(void *)((char *)oom + places[i].at);
        if (to->high || !ends_with(text, at, places[i].before ? places[i].before : "") ||
            (places[i].behind && !begins_with(text + at + length, places[i].behind)))
            continue;
        *to = *span;
        return;
    }
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (!in_all->high && begins_with(text + at + length, reserved[i])) *in_all = *span;
}

static void read_numbers(mti_oom *oom, const char *message)
{
    char text[LONGEST + 1];
    const size_t n = normalise(text, message);
    mti_byte_range in_all = {0, 0}, span;
    for (size_t i = 0, length; i < n; i++) {
        const bool begins = !i || !(isalnum((unsigned char)text[i - 1]) || text[i - 1] == '.');
        if (!begins || !mti_byte_range_read(text + i, &length, &span)) continue;
        note(oom, &in_all, text, i, length, &span);
        i += length - 1;
    }
    if (in_all.high && !oom->unallocated.high && in_all.high >= oom->allocated.low) {
        const mti_byte_range *a = &oom->allocated;
        oom->unallocated.low = in_all.low > a->high ? in_all.low - a->high : 0;
        oom->unallocated.high = in_all.high - a->low;
    }
}

/* The end of a message that begins here: its last words, or its line's. */
static char *end_of(char *message)
{
    static const char *const last[] = {"but unallocated", "by PyTorch)", "cached)", "\n"};
    char *end = NULL;
    for (size_t i = 0; !end && i < sizeof last / sizeof *last; i++) {
        end = strstr(message, last[i]);
        if (end && end - message > LONGEST) end = NULL;
    }
    return end ? end : message + strlen(message);
}

/* Where a line may be wrapped, between words, is up to the terminal that it was copied from. */
bool mti_oom_take(mti_oom *oom, char *text)
{
    static const char beginning[] = "out of memory";
    *oom = (mti_oom){.line = 0};
    for (char *c = text; (c = strstr(c, beginning)); c += sizeof beginning - 1) {
        mti_oom one = {.line = 1};
        read_numbers(&one, c);
        if (!one.asked.high) continue;
        for (const char *before = text; before < c; before++) one.line += *before == '\n';
        one.n = oom->n + 1;
        if (oom->n)
            oom->n++;
        else
            *oom = one;
        for (char *digit = c, *end = end_of(c); digit < end; digit++)
            if (isdigit((unsigned char)*digit)) *digit = ' ';
    }
    return oom->n > 0;
}

static size_t middle(const mti_byte_range *s) { return (size_t)(s->low + (s->high - s->low) / 2); }

size_t mti_oom_capacity(const mti_oom *oom)
{
    if (!oom->allocated.high || !oom->free.high) return 0;
    return middle(&oom->allocated) + middle(&oom->unallocated) + middle(&oom->free);
}
