/* choose.c: a name out of a list. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"

#define LONGEST 40 /* longest word that is compared */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* The next character that tells names apart, in small letters; moves *text past it. 0: the end. */
static char next_letter(const char **text)
{
    *text += strspn(*text, "-_. /");
    return **text ? (char)tolower((unsigned char)*(*text)++) : 0;
}

const char *mti_after(const char *a, const char *b)
{
    for (char x; (x = next_letter(&a));)
        if (next_letter(&b) != x) return NULL;
    return b;
}

bool mti_same_word(const char *a, const char *b)
{
    const char *rest = mti_after(a, b);
    return rest && !next_letter(&rest);
}

/* Letters to insert, drop, change or swap with their neighbour to make one word of the other
 * (optimal string alignment). */
static size_t distance(const char *a, const char *b)
{
    size_t m = strlen(a), n = strlen(b), d[LONGEST + 1][LONGEST + 1];
    if (m > LONGEST || n > LONGEST) return LONGEST;
    for (size_t i = 0; i <= m; i++)
        for (size_t j = 0; j <= n; j++) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            const bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            d[i][j] = least(d[i - 1][j - 1] + !same, least(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[m][n];
}

const char *mti_nearest(const char *const *names, size_t n, const char *word)
{
    const char *nearest = NULL;
    size_t best = least(3, (strlen(word) + 1) / 2); /* more edits make it another word */
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(names[i], word);
        if (d < best) best = d, nearest = names[i];
    }
    return nearest;
}

int mti_find_word(const char *const *names, int n, const char *name)
{
    int found = -1;
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name)) return i;
    for (int i = 0; i < n; i++) {
        if (!mti_same_word(names[i], name)) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

#define MOST_MEANT 4

const char *mti_meant(char *out, size_t size, const char *const *names, int n, const char *word)
{
    int found[MOST_MEANT], k = 0;
    for (int i = 0; strlen(word) > 1 && i < n && k <= MOST_MEANT; i++) {
        if (!mti_after(word, names[i])) continue;
        if (k < MOST_MEANT) found[k] = i;
        k++;
    }
    const char *near = k && k <= MOST_MEANT ? NULL : mti_nearest(names, (size_t)n, word);
    snprintf(out, size, "%s", near ? near : "");
    for (int i = 0; i < k && k <= MOST_MEANT; i++)
        mti_append(out, size, "%s%s", !i ? "" : i + 1 < k ? ", " : " or ", names[found[i]]);
    return out;
}

int mti_choose(const char *what, const char *const *names, int n, const char *name)
{
    for (int i = 0; name && i < n; i++)
        if (!strcmp(names[i], name)) return i;
    char list[800] = "";
    for (int i = 0, at = 0; i < n && at < (int)sizeof list; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, "%s%s", i ? ", " : "", names[i]);
    char near[200] = "";
    if (name) mti_meant(near, sizeof near, names, n, name);
    if (!name)
        mti_fail(MT_ERR_ARGUMENT, "%s: the name is NULL; choose %s", what, list);
    else if (*near)
        mti_fail(MT_ERR_ARGUMENT, "%s: unknown \"%.80s\", did you mean %s? choose %s", what, name,
                 near, list);
    else
        mti_fail(MT_ERR_ARGUMENT, "%s: unknown \"%.80s\"; choose %s", what, name, list);
    return -1;
}

const char *mti_choice_name(const mti_choice *c, int i)
{
    return i >= 0 && i < c->n ? c->names[i] : "unknown";
}

mt_status mti_choice_parse(const mti_choice *c, const char *name, void *out)
{
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "%s: the result is NULL", c->what);
    int i = mti_choose(c->what, c->names, c->n, name);
    if (i < 0) return MT_ERR_ARGUMENT;
    memcpy(out, &i, sizeof i);
    return MT_OK;
}
