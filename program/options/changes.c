/* changes.c: makes workloads of what was typed and a few more words. */
#include <string.h>
#include "options/changes.h"
#include "options/option_table.h"

/* Those of one kind go from the cheapest to the dearest; other weights than all are trained from
 * ADAPTERS on. */
enum { SEGMENTS, LOSS, CHECKPOINTS, OPTIMIZER, BATCH, SEQUENCE, ADAPTERS, CODES };
static const struct {
    int kind;
    bool searched;
    const char *words; /* NULL: halves */
} rows[] = {
    {SEGMENTS, true, "--expandable-segments"},
    {LOSS, false, "--loss fused"},
    {CHECKPOINTS, true, "--checkpoint full"},
    {CHECKPOINTS, true, "--checkpoint full --loss fused"},
    {OPTIMIZER, true, "--optimizer adamw-8bit"},
    {OPTIMIZER, true, "--optimizer adamw-8bit --checkpoint full --loss fused"},
    {BATCH, true, NULL},
    {SEQUENCE, true, NULL},
    {ADAPTERS, false, ""},
    {ADAPTERS, true, "--checkpoint full"},
    {ADAPTERS, false, "--loss fused"},
    {ADAPTERS, true, "--checkpoint full --loss fused"},
    {CODES, false, "--qlora"},
    {CODES, true, "--qlora --checkpoint full"},
    {CODES, false, "--qlora --loss fused"},
    {CODES, true, "--qlora --checkpoint full --loss fused"},
    {CODES, true, "--qlora --checkpoint full --expandable-segments"},
    {CODES, true, "--qlora --checkpoint full --loss fused --expandable-segments"},
};

#define MOST_WORDS 16
#define LONGEST    sizeof((mti_change *)NULL)->words

/* Cuts the text at its blanks. */
static int split(char *text, char *words[MOST_WORDS])
{
    int n = 0;
    char *rest = text, *word;
    while (n < MOST_WORDS && (word = strtok_r(rest, " ", &rest))) words[n++] = word;
    return n;
}

/* Writes the options of `text` that have another value than now. */
static void leave_out(char out[LONGEST], const mti_options *o, const char *text)
{
    char copy[LONGEST], value[MTI_VALUE_TEXT], *words[MOST_WORDS];
    mti_format(copy, sizeof copy, "%s", text);
    const int n = split(copy, words);
    *out = 0;
    for (int i = 0; i < n; i++) {
        const mti_option_row *r = mti_option_find(o->verb, words[i] + 2);
        const char *now = r && r->arg ? words[++i] : NULL;
        const bool same = r && (now ? !strcmp(mti_option_text(o, r, value), now)
                                    : mti_option_is_set(o, r) && r->id != MTI_O_MASTER);
        if (!same && r)
            mti_append(out, LONGEST, "%s--%s%s%s", *out ? " " : "", r->name, now ? " " : "",
                       now ? now : "");
    }
}

/* Parses all that was typed and then the words; false if that is not allowed, or there was no
 * memory. */
static bool parse(mti_options *with, const mti_options *o, char *const words[], int n)
{
    const size_t argc = (size_t)o->argc;
    char **argv = mti_calloc(argc + (size_t)n + 1, sizeof *argv);
    *with = (mti_options){0};
    if (!argv) return false;
    memcpy(argv, o->argv, argc * sizeof *argv);
    memcpy(argv + argc, words, (size_t)n * sizeof *words);
    const bool ok = mti_options_parse(with, o->rules, o->world, o->argc + n, argv);
    mti_free(argv);
    return ok;
}

static bool is_there(const mti_changes *all, const char *text)
{
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(all->at[i].words, text)) return true;
    return false;
}

/* Adds the change, if it is one and is allowed. */
static bool add(mti_option_changes *out, const mti_options *o, int kind, const char *text)
{
    char *words[MOST_WORDS];
    mti_change c = {.kind = kind};
    mti_options with;
    leave_out(c.words, o, text);
    if (!*c.words || is_there(&out->changes, c.words)) return true;
    char *copy = mti_strdup(c.words);
    if (!copy || !MTI_PUSH(&out->words, copy)) {
        mti_free(copy);
        return false;
    }
    const uint64_t failures = mti_failures();
    bool ok = parse(&with, o, words, split(copy, words));
    c.workload = with.workload;
    if (ok)
        ok = MTI_PUSH(&out->changes, c);
    else
        ok = !mti_failed_since(failures) || mt_last_status() != MT_ERR_MEMORY;
    mti_options_free(&with);
    return ok;
}

#define HALVINGS 4

/* The option at a half of its value, a quarter, and so on. */
static bool add_halves(mti_option_changes *out, const mti_options *o, int kind, const char *name,
                       int64_t value)
{
    char text[64];
    bool ok = true;
    for (int i = 0; ok && i < HALVINGS && (value /= 2) > 0; i++) {
        mti_format(text, sizeof text, "--%s %lld", name, (long long)value);
        ok = add(out, o, kind, text);
    }
    return ok;
}

#define RANK "--lora-rank " MTI_USUAL_RANK

/* The adapters of a change: on queries and values, as PEFT has them, unless a recipe says
 * otherwise; "" if there are some. */
static const char *adapters_for(const mti_options *o)
{
    char rank[] = RANK, *words[MOST_WORDS];
    mti_options with;
    if (mti_adapters_of(&o->workload.memory).rank) return "";
    const bool ok = parse(&with, o, words, split(rank, words));
    const bool usual =
        ok && with.workload.config.kind == MT_MODEL_LLAMA && !with.chosen[MTI_O_LORA_TARGETS];
    mti_options_free(&with);
    return usual ? RANK " --lora-targets q,v " : RANK " ";
}

static bool add_row(mti_option_changes *out, const mti_options *o, int kind, const char *words)
{
    char text[LONGEST];
    const char *adapters = kind >= ADAPTERS ? adapters_for(o) : "";
    if (kind == ADAPTERS && !*adapters) return true;
    mti_format(text, sizeof text, "%s%s%s", adapters, words,
               kind == OPTIMIZER && o->workload.memory.master ? " --master-weights" : "");
    return add(out, o, kind, text);
}

bool mti_option_changes_make(mti_option_changes *out, const mti_options *o, bool searching)
{
    bool ok = true;
    *out = (mti_option_changes){0};
    for (size_t i = 0; ok && i < sizeof rows / sizeof *rows; i++) {
        if (searching && rows[i].searched) continue;
        if (rows[i].words)
            ok = add_row(out, o, rows[i].kind, rows[i].words);
        else if (rows[i].kind == BATCH)
            ok = add_halves(out, o, BATCH, "batch", o->workload.batch);
        else
            ok = add_halves(out, o, SEQUENCE, "seq", o->workload.seq);
    }
    return ok;
}

void mti_option_changes_free(mti_option_changes *c)
{
    for (size_t i = 0; i < c->words.n; i++) mti_free(c->words.at[i]);
    mti_free(c->words.at);
    mti_free(c->changes.at);
    *c = (mti_option_changes){0};
}
