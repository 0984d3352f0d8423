/* options.c: the command line: its words, its help, and a command made of options. */
#include <string.h>
#include "options/option_table.h"

/* ---- words ---- */

/* An abbreviation is refused, too: what it stands for changes with the options that there are. */
static bool refuse_name(mti_options *o, const char *name)
{
    const char *names[MTI_OPTION_COUNT], *advice = mti_foreign_advice(o->verb, name);
    char begun[400] = "", verbs[MTI_VERBS_TEXT];
    size_t n = 0, length = strlen(name);
    unsigned others = 0;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!strcmp(r->name, name)) others |= r->verbs;
        if (!mti_takes(o->verb, r)) continue;
        names[n++] = r->name;
        if (!strncmp(r->name, name, length))
            mti_append(begun, sizeof begun, "%s--%s", *begun ? ", " : "", r->name);
    }
    const char *near = mti_nearest(names, n, name);
    if (advice) return mti_options_refuse(o, "--%s: %s", name, advice);
    if (!strcmp(name, "device"))
        return mti_options_refuse(o, "--device: unrecognized option: %s runs on meta anyway",
                                  mti_verb_get(o->verb)->name);
    if (*begun)
        return mti_options_refuse(o, "--%s: unrecognized option; in full it may be %s", name,
                                  begun);
    if (others)
        return mti_options_refuse(o, "--%s: unrecognized option; it is for %s", name,
                                  mti_verbs_text(others, verbs));
    return mti_options_refuse(o, "--%.60s: unrecognized option; %s%s%s", name,
                              near ? "did you mean --" : "--help all lists those that there are",
                              near ? near : "", near ? "?" : "");
}

/* "name" or "name=value", whose value may be the next word. */
static bool read_name(mti_options *o, const char *word, char **argv, int *i)
{
    char name[64];
    const size_t n = strcspn(word, "=");
    const char *value = word[n] ? word + n + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    for (char *c = name; *c; c++) *c = *c == '_' ? '-' : *c;
    const char *meant = NULL;
    const mti_option_row *r = n < sizeof name ? mti_option_find(o->verb, name) : NULL;
    if (!r) r = mti_foreign_option(o->verb, name, &meant);
    if (!r) return refuse_name(o, name);
    if (meant && !value) return mti_option_read(o, r, meant);
    if (!r->arg && value) return mti_options_refuse(o, "--%s: this option takes no value", name);
    if (r->arg && !value) value = argv[++*i];
    if (r->arg && !value)
        return mti_options_refuse(o, "--%s: this option needs a value, %s", name, r->arg);
    return mti_option_read(o, r, value);
}

/* "qv", or "b8", whose value may be the next word. */
static bool read_letters(mti_options *o, const char *word, char **argv, int *i)
{
    for (; *word; word++) {
        const mti_option_row *r = NULL;
        for (int id = 0; id < MTI_OPTION_COUNT; id++)
            if (mti_takes(o->verb, &mti_option_rows[id]) && mti_option_rows[id].letter == *word)
                r = &mti_option_rows[id];
        if (!r) return mti_options_refuse(o, "-%.1s: unrecognized option", word);
        if (!r->arg && !mti_option_read(o, r, NULL)) return false;
        if (!r->arg) continue;
        const char *value = word[1] ? word + 1 : argv[++*i];
        if (value) return mti_option_read(o, r, value);
        return mti_options_refuse(o, "-%c: this option needs a value, %s", *word, r->arg);
    }
    return true;
}

static bool read_operand(mti_options *o, const char *word)
{
    bool model = *mti_verb_get(o->verb)->args != 0;
    o->help_all = o->help_all || (o->help && !strcmp(word, "all"));
    if (o->help) return true;
    if (o->verb == MTI_COMPARE && o->workload.name && !MTI_PUSH(&o->measured, o->workload.name))
        return mti_options_refuse_as(o, "");
    if (model && o->workload.name && o->verb != MTI_COMPARE)
        return mti_options_refuse(o, "\"%.80s\": unexpected; %s is \"%.80s\" already", word,
                                  o->verb == MTI_AUDIT ? "OP" : "MODEL", o->workload.name);
    if (!model && mti_option_find(o->verb, "data"))
        return mti_options_refuse(o, "\"%.80s\": unexpected; give --data %.80s", word, word);
    if (!model)
        return mti_options_refuse(o, "\"%.80s\": unexpected; this verb takes options only", word);
    o->workload.name = word;
    return true;
}

static bool read_words(mti_options *o, int argc, char **argv)
{
    bool options = true, ok = true;
    for (int i = 1; ok && i < argc; i++) {
        const char *word = argv[i];
        if (!options || *word != '-' || !word[1])
            ok = read_operand(o, word);
        else if (!strcmp(word, "--"))
            options = false;
        else if (word[1] == '-')
            ok = read_name(o, word + 2, argv, &i);
        else
            ok = read_letters(o, word + 1, argv, &i);
    }
    return ok;
}

bool mti_options_parse(mti_options *o, const mti_verb_rules *rules, mt_comm *world, int argc,
                       char **argv)
{
    mti_option_defaults(o, rules);
    o->world = world;
    o->argc = argc, o->argv = argv;
    if (!read_words(o, argc, argv)) return false;
    if (o->help || o->verb != MTI_SWEEP) return o->help || mti_options_complete(o);
    return mti_sweep_check(o);
}

static void words_free(mti_words *words)
{
    mti_free(words->at);
    *words = (mti_words){0};
}

void mti_options_free(mti_options *o)
{
    words_free(&o->data);
    words_free(&o->measured);
    words_free(&o->over);
    words_free(&o->rows);
}

/* ---- help ---- */

#define LONGEST_DOC 800
#define DOC_COLUMN  29 /* where the text of an option begins */
#define WIDTH       79
#define FEW         20 /* options that are listed in any case */

/* Goes on from `column` and begins new lines at `indent`. */
static void put_wrapped(FILE *out, const char *text, int column, int indent)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > WIDTH) {
            mti_print(out, "\n%*s", indent, "");
            column = indent;
        }
        column += mti_print(out, "%s%.*s", column > indent ? " " : "", n, text);
        text += n + strspn(text + n, " ");
    }
    fputc('\n', out);
}

/* The text begins in its column, or below a term that is wider. */
static void put_text(FILE *out, int column, const char *text)
{
    mti_print(out, column < DOC_COLUMN ? "%*s" : "\n%*s",
              column < DOC_COLUMN ? DOC_COLUMN - column : DOC_COLUMN, "");
    put_wrapped(out, text, DOC_COLUMN, DOC_COLUMN);
}

static void put_option(FILE *out, const mti_options *o, const mti_option_row *r, bool example)
{
    char buf[MTI_VALUE_TEXT], doc[LONGEST_DOC], letter[8] = "    ";
    const char *value = mti_option_text(o, r, buf);
    const bool is_zero = r->form != MTI_CHOICE && (!strcmp(value, "0") || !strcmp(value, "0B"));
    snprintf(doc, sizeof doc, "%s", r->doc);
    for (int i = 0; r->choice && i < r->choice->n; i++)
        mti_append(doc, sizeof doc, "%s%s", i ? ", " : ": ", r->choice->names[i]);
    if (r->arg && !is_zero && *value > ' ') mti_append(doc, sizeof doc, " (default %s)", value);
    if (example) mti_append(doc, sizeof doc, "; for example %s", r->example);
    if (r->letter) snprintf(letter, sizeof letter, "-%c, ", r->letter);
    int column =
        mti_print(out, "  %s--%s%s%s", letter, r->name, r->arg ? "=" : "", r->arg ? r->arg : "");
    put_text(out, column, doc);
}

/* All of them, under their headings, or those that matter most. */
static void put_options(FILE *out, const mti_options *o, bool all)
{
    const char *heading = NULL;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (r->heading) heading = r->heading;
        if (!mti_takes(o->verb, r) || !(all || r->example)) continue;
        if (heading && all) mti_print(out, "\n %s\n", heading);
        heading = NULL; /* once */
        put_option(out, o, r, !all);
    }
}

void mti_options_help(const mti_verb_rules *rules, const char *name, bool all, FILE *out)
{
    const mti_verb_info *info = mti_verb_get(rules->verb);
    mti_options defaults;
    int n = 0;
    mti_option_defaults(&defaults, rules);
    defaults.workload.config = defaults.given_config;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) n += mti_takes(rules->verb, &mti_option_rows[id]);
    all = all || n <= FEW;
    mti_print(out, "Usage: %s%s%s [OPTION...]\n", name, *info->args ? " " : "", info->args);
    put_wrapped(out, info->doc, 0, 0);
    mti_print(out, "\nFor example: %s\n", info->example);
    if (!all) fputs("\nThe options that matter most:\n\n", out);
    put_options(out, &defaults, all);
    if (!all) mti_print(out, "\n%s --help all: all %d options, in groups\n", name, n);
}

/* A recipe, with no option, or one of its rows. */
static const struct recipe_entry {
    mti_recipe_group group;
    const char *name, *value, *text;
    mti_option option;
} recipe_entries[] = {
#define RECIPE(id, name, group, doc)             {MTI_RECIPES_##group, name, NULL, doc, MTI_OPTION_COUNT},
#define ROW(recipe, option, value, when, source) {0, NULL, value, source, MTI_O_##option},
#include "options/recipes.def"
#undef RECIPE
#undef ROW
};

void mti_recipes_help(FILE *out)
{
    int group = -1;
    put_wrapped(out,
                "Usage: --recipe NAME, or several of different groups, joined by +. A recipe sets "
                "options as a stack has them, but for those given and those without an effect; "
                "each is shown with its source. Of several rows of an option the first that holds "
                "is set; of several recipes the one that is listed later wins.",
                0, 0);
    for (size_t i = 0; i < sizeof recipe_entries / sizeof *recipe_entries; i++) {
        const struct recipe_entry *e = &recipe_entries[i];
        if (e->name && group != (int)e->group)
            mti_print(out, "\nAt most one of these, which say %s:\n",
                      mti_recipe_group_text(e->group));
        if (e->name) {
            group = (int)e->group;
            mti_print(out, "\n%s: %s\n", e->name, e->text);
        } else
            put_text(out,
                     mti_print(out, "  --%s%s%s", mti_option_rows[e->option].name,
                               e->value ? " " : "", e->value ? e->value : ""),
                     e->text);
    }
}

/* ---- a command ---- */

/* As a shell takes it. */
static void print_word(FILE *out, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_./=+,:@%";
    if (*text && !text[strspn(text, plain)]) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (; *text; text++) fputs(*text == '\'' ? "'\\''" : (char[]){*text, 0}, out);
    fputc('\'', out);
}

bool mti_options_command(const mti_options *o, mti_verb verb, char *buf, size_t n)
{
    char value[MTI_VALUE_TEXT];
    FILE *out = fmemopen(buf, n, "w");
    if (!out) return mti_fail_bool(MT_ERR_MEMORY, "host memory: none left to write a command");
    mti_print(out, "memtape %s ", mti_verb_get(verb)->name);
    print_word(out, o->workload.name);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!o->given[id] || !mti_takes(verb, r)) continue;
        mti_print(out, " --%s%s", r->name, r->arg ? " " : "");
        if (r->arg) print_word(out, mti_option_text(o, r, value));
    }
    bool whole = fflush(out) == 0 && ftell(out) < (long)n;
    fclose(out);
    return whole || mti_fail_bool(MT_ERR_ARGUMENT,
                                  "the command `memtape %s` with these options is longer than %zu "
                                  "bytes",
                                  mti_verb_get(verb)->name, n);
}
