/* sweep_rows.c: a set of options for each row, from --row and --over. */
#include <string.h>
#include "options/option_table.h"

/* ---- "act=relu,gelu" ---- */

static size_t n_values(const char *over)
{
    size_t n = 1;
    for (const char *c = strchr(over, '='); c && *c; c++) n += *c == ',';
    return n;
}

static bool check_over(mti_options *o, const char *over)
{
    const char *equals = strchr(over, '=');
    if (equals && equals != over && equals[1]) return true;
    return mti_options_refuse(
        o, "--over: \"%.60s\" is not an option and a list, such as act=relu,gelu", over);
}

/* Sets value `which` of the list; its strings are written to *words, which moves on. */
static bool set_over(mti_options *o, const char *over, size_t which, char **words, char *label,
                     size_t label_size)
{
    const char *from = strchr(over, '=') + 1;
    for (; which; which--) from = strchr(from, ',') + 1;
    size_t n_name = (size_t)(strchr(over, '=') - over), n_value = strcspn(from, ",");
    char *name = *words, *value = name + n_name + 1;
    memcpy(name, over, n_name);
    name[n_name] = 0;
    memcpy(value, from, n_value);
    value[n_value] = 0;
    *words = value + n_value + 1;
    mti_append(label, label_size, "%s%s=%s", *label ? " " : "", name, value);
    return mti_options_set(o, name, value);
}

/* ---- "full: --checkpoint full" ---- */

static bool set_words(mti_options *o, char *text)
{
    char *rest = text, *word;
    while ((word = strtok_r(rest, " \t", &rest))) {
        if (strncmp(word, "--", 2) != 0)
            return mti_options_refuse(
                o, "--row: \"%.40s\" is not an option; write options as --act relu", word);
        char *equals = strchr(word, '='), *value = NULL;
        if (equals) *equals = 0, value = equals + 1;
        rest += strspn(rest, " \t");
        if (!value && *rest && strncmp(rest, "--", 2) != 0) value = strtok_r(rest, " \t", &rest);
        if (!mti_options_set(o, word + 2, value)) return false;
    }
    return true;
}

/* What follows the colon of a row's name: nothing, a space or options; NULL: there is no name. */
static const char *end_of_name(const char *row)
{
    for (const char *colon = strchr(row, ':'); colon; colon = strchr(colon + 1, ':')) {
        const char *rest = colon + 1;
        if (!*rest || *rest == ' ' || !strncmp(rest, "--", 2)) return rest;
    }
    return NULL;
}

static bool set_row(mti_options *o, const char *row, char **words, char *label, size_t label_size)
{
    const char *text = strncmp(row, "--", 2) ? end_of_name(row) : NULL;
    int n_name = (int)(text ? text - 1 - row : (ptrdiff_t)strlen(row));
    snprintf(label, label_size, "%.*s", n_name, row);
    if (!text) text = row;
    char *copy = strcpy(*words, text);
    *words += strlen(text) + 1;
    return set_words(o, copy);
}

/* ---- the product ---- */

static bool make_row(mti_sweep_row *r, mti_options *o, size_t which)
{
    size_t n_words = 1;
    for (size_t i = 0; i < o->sweep.over.n; i++) n_words += strlen(o->sweep.over.at[i]) + 2;
    for (size_t i = 0; i < o->sweep.rows.n; i++) n_words += strlen(o->sweep.rows.at[i]) + 1;
    *r = (mti_sweep_row){.options = *o};
    r->words = mti_malloc(n_words);
    char label[256] = "", *words = r->words;
    bool ok = words != NULL;
    size_t below = 1;
    for (size_t i = 0; i < o->sweep.over.n; i++) below *= n_values(o->sweep.over.at[i]);
    if (ok && o->sweep.rows.n)
        ok = set_row(&r->options, o->sweep.rows.at[which / below], &words, label, sizeof label);
    for (size_t i = 0; ok && i < o->sweep.over.n; i++) {
        which %= below;
        below /= n_values(o->sweep.over.at[i]);
        ok = set_over(&r->options, o->sweep.over.at[i], which / below, &words, label, sizeof label);
    }
    ok = ok && mti_options_complete(&r->options);
    r->label = mti_strdup(*label                     ? label
                          : r->options.workload.name ? r->options.workload.name
                                                     : "");
    if (!ok && *r->options.error)
        mti_options_refuse(o, "row \"%.80s\": %.900s", label, r->options.error);
    return ok && r->label;
}

bool mti_sweep_rows_make(mti_sweep_rows *rows, mti_options *o)
{
    size_t n = o->sweep.rows.n ? o->sweep.rows.n : 1;
    *rows = (mti_sweep_rows){0};
    for (size_t i = 0; i < o->sweep.over.n; i++) {
        if (!check_over(o, o->sweep.over.at[i])) return false;
        n *= n_values(o->sweep.over.at[i]);
        if (n > MTI_MAX_SWEEP)
            return mti_options_refuse(o, "--over: more than %d rows; give shorter lists",
                                      MTI_MAX_SWEEP);
    }
    if (n > MTI_MAX_SWEEP)
        return mti_options_refuse(o, "--row: %zu rows; at most %d", n, MTI_MAX_SWEEP);
    uint64_t failures = mti_failures();
    rows->at = mti_calloc(n, sizeof *rows->at);
    for (; rows->at && rows->n < n; rows->n++)
        if (!make_row(&rows->at[rows->n], o, rows->n)) {
            rows->n++;
            break;
        }
    if (!*o->error && mti_failed_since(failures)) mti_options_refuse(o, "%.900s", mt_last_error());
    return rows->at && !*o->error;
}

void mti_sweep_rows_free(mti_sweep_rows *rows)
{
    for (size_t i = 0; i < rows->n; i++) {
        mti_free(rows->at[i].label);
        mti_free(rows->at[i].words);
    }
    mti_free(rows->at);
    *rows = (mti_sweep_rows){0};
}

bool mti_sweep_check(mti_options *o)
{
    mti_sweep_rows rows;
    bool ok = mti_sweep_rows_make(&rows, o) && mti_check_used_in_rows(o, &rows);
    mti_sweep_rows_free(&rows);
    return ok;
}
