/* reference_pages.c: a program of the build: `reference man`, `bash` or `zsh` prints the man page
 * or a shell's completion, from the same rows that the program reads its options by. */
#include <stdio.h>
#include <string.h>
#include "options/option_table.h"
#include "nn/model.h"

static const char *const kinds[] = {"linear", "mlp", "attention", "block", "gpt", "bert", "llama"};
#define N_KINDS (sizeof kinds / sizeof *kinds)

/* ---- the man page ---- */

/* Text of a man page, between two pieces of markup: no line of it begins with a request. */
static void put_roff(const char *before, const char *text, const char *after)
{
    fputs(before, stdout);
    for (const char *c = text; *c; c++) {
        if (*c == '\\')
            fputs("\\e", stdout);
        else if (*c == '-')
            fputs("\\-", stdout);
        else if ((*c == '.' || *c == '\'') && (c == text || c[-1] == '\n'))
            mti_print(stdout, "\\&%c", *c);
        else
            putchar(*c);
    }
    fputs(after, stdout);
}

static void put_option(const mti_option_row *r)
{
    char verbs[MTI_VERBS_TEXT];
    fputs(".TP\n", stdout);
    if (r->letter) mti_print(stdout, "\\fB\\-%c\\fR, ", r->letter);
    put_roff(r->key ? "\\fB" : "\\fB\\-\\-", r->name, "\\fR");
    if (r->arg) put_roff("=\\fI", r->arg, "\\fR");
    put_roff("\n", r->doc, "");
    for (int i = 0; r->choice && i < r->choice->n; i++)
        put_roff(i ? ", " : ": ", r->choice->names[i], "");
    mti_print(stdout, ".\nOf %s.\n", mti_verbs_text(r->verbs, verbs));
}

static void put_options(void)
{
    fputs(".SH OPTIONS\n", stdout);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (r->key) continue;
        if (r->heading) put_roff(".SS \"", r->heading, "\"\n");
        put_option(r);
    }
}

static void put_keys(void)
{
    fputs(".SH DETAILS\nThey follow a value after a colon, joined by commas.\n", stdout);
    for (int owner = MTI_KEY_MODEL; owner < MTI_KEY_OWNERS; owner++) {
        put_roff(".SS \"As in ", mti_key_example((mti_key_of)owner), "\"\n");
        for (int id = 0; id < MTI_OPTION_COUNT; id++)
            if (mti_option_rows[id].key == (mti_key_of)owner) put_option(&mti_option_rows[id]);
    }
}

static void put_verbs(void)
{
    fputs(".SH VERBS\n", stdout);
    for (int v = 0; v < MTI_VERB_COUNT; v++) {
        const mti_verb_info *info = mti_verb_get((mti_verb)v);
        mti_print(stdout, ".TP\n\\fBmemtape %s\\fR [\\fIOPTION\\fR...]%s%s\n", info->name,
                  *info->args ? " " : "", info->args);
        put_roff("", info->doc, "\n");
    }
}

static void put_examples(void)
{
    fputs(".SH EXAMPLES\n", stdout);
    for (int v = 0; v < MTI_VERB_COUNT; v++) {
        const mti_verb_info *info = mti_verb_get((mti_verb)v);
        put_roff(".TP\n\\fB", info->example, "\\fR\n");
        put_roff("", info->summary, "\n");
    }
}

static void put_man_page(void)
{
    mti_print(stdout,
              ".TH MEMTAPE 1 \"\" \"memtape %s\" \"User Commands\"\n"
              ".SH NAME\n"
              "memtape \\- trains transformers and keeps exact books on their memory\n"
              ".SH SYNOPSIS\n"
              "\\fBmemtape\\fR \\fIVERB\\fR [\\fIOPTION\\fR...]\n.br\n"
              "\\fBmemtape\\fR \\fIVERB\\fR \\fB\\-\\-help\\fR [\\fBall\\fR]\n.br\n"
              "\\fBmemtape\\fR \\fB\\-\\-version\\fR\n",
              MTI_VERSION);
    put_verbs();
    put_options();
    put_keys();
    put_examples();
    printf(".SH EXIT STATUS\n"
           ".TP\n%d\nSuccess.\n"
           ".TP\n%d\nA failure while running, such as memory that ran out or a file that cannot be "
           "written.\n"
           ".TP\n%d\nA command line that is not understood.\n"
           ".TP\n%d and more\nTraining was stopped by a signal, or the reader of the output went "
           "away (141): the signal's number is added.\n",
           MTI_EXIT_OK, MTI_EXIT_FAILED, MTI_EXIT_USAGE, MTI_EXIT_SIGNALLED);
}

/* ---- bash ---- */

static void put_models(void)
{
    const char *between = "";
    for (size_t i = 0; i < N_KINDS; i++, between = " ")
        mti_print(stdout, "%s%s", between, kinds[i]);
    for (size_t i = 0; mt_model_preset_name(i); i++)
        mti_print(stdout, " %s", mt_model_preset_name(i));
}

static void put_values(const char *before, const mti_choice *c, const char *after)
{
    for (int k = 0; k < c->n; k++) mti_print(stdout, "%s%s", k ? " " : before, c->names[k]);
    fputs(after, stdout);
}

/* What a verb takes, and the values of its options that have some to choose from or are files. */
static void put_bash_verb(mti_verb verb)
{
    const char *between = "";
    mti_print(stdout, "    %s)\n        words='", mti_verb_get(verb)->name);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!mti_takes(verb, r) || r->key) continue;
        mti_print(stdout, "%s--%s%s", between, r->name, r->arg ? "=" : "");
        between = " ";
    }
    mti_print(stdout, "'%s\n        case $option in\n",
              mti_verb_takes_model(verb) ? "; [[ $cur == -* ]] || words=$models" : "");
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!mti_takes(verb, r) || r->key) continue;
        if (mti_takes_file(r)) mti_print(stdout, "        --%s) files=yes ;;\n", r->name);
        if (!r->choice) continue;
        mti_print(stdout, "        --%s)", r->name);
        put_values(" words='", r->choice, "' ;;\n");
    }
    fputs("        esac ;;\n", stdout);
}

static void put_bash(void)
{
    fputs("# bash completion for memtape, made by the build from the program's options.\n"
          "_memtape() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
          "verb=${COMP_WORDS[1]}\n"
          "    local option= words= files= models='",
          stdout);
    put_models();
    fputs("'\n"
          "    COMPREPLY=()\n"
          "    if ((COMP_CWORD == 1)); then\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    for (int v = 0; v < MTI_VERB_COUNT; v++)
        mti_print(stdout, "%s ", mti_verb_get((mti_verb)v)->name);
    fputs("help --help --version' -- \"$cur\"))\n"
          "        return\n"
          "    fi\n"
          "    # Readline takes --act=relu for three words.\n"
          "    if [[ $cur == = ]]; then\n"
          "        option=$prev cur=\n"
          "    elif [[ $prev == = ]]; then\n"
          "        option=${COMP_WORDS[COMP_CWORD-2]}\n"
          "    elif [[ $cur != -* && $prev == --* ]]; then\n"
          "        option=$prev\n"
          "    fi\n"
          "    case $verb in\n",
          stdout);
    for (int v = 0; v < MTI_VERB_COUNT; v++) put_bash_verb((mti_verb)v);
    fputs(
        "    esac\n"
        "    if [[ $files ]]; then\n"
        "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
        "        return\n"
        "    fi\n"
        "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
        "    [[ $cur == -* || $words != \"$models\" ]] || COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
        "    [[ ${COMPREPLY[0]} != *= || ${#COMPREPLY[@]} -gt 1 ]] || compopt -o nospace "
        "2>/dev/null\n"
        "}\n"
        "complete -F _memtape memtape\n",
        stdout);
}

/* ---- zsh ---- */

/* Text of a description within single quotes, between two pieces of markup. */
static void put_zsh(const char *before, const char *text, const char *after)
{
    fputs(before, stdout);
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *c))
            mti_print(stdout, "\\%c", *c);
        else
            putchar(*c);
    }
    fputs(after, stdout);
}

static void put_zsh_option(const mti_option_row *r)
{
    const char *with = r->arg ? "=" : "", *star = r->form == MTI_LIST ? "*" : "";
    fputs("        ", stdout);
    if (r->letter && !*star)
        mti_print(stdout, "'(-%c --%s)'{-%c%s,--%s%s}'", r->letter, r->name, r->letter,
                  r->arg ? "+" : "", r->name, with);
    else
        mti_print(stdout, "'%s--%s%s", star, r->name, with);
    put_zsh("[", r->doc, "]");
    if (r->arg) put_zsh(":", r->arg, mti_takes_file(r) ? ":_files" : ":");
    if (r->arg && r->choice) put_values("(", r->choice, ")");
    fputs("' \\\n", stdout);
}

static void put_zsh_verb(mti_verb verb)
{
    mti_print(stdout, "    %s)\n        _arguments -S \\\n", mti_verb_get(verb)->name);
    for (int i = 0; i < MTI_OPTION_COUNT; i++)
        if (mti_takes(verb, &mti_option_rows[i]) && !mti_option_rows[i].key)
            put_zsh_option(&mti_option_rows[i]);
    if (mti_verb_takes_model(verb)) {
        mti_print(stdout, "        '%s:MODEL:{compadd ", verb == MTI_COMPARE ? "*" : "1");
        put_models();
        fputs("; _files}' \\\n", stdout);
    }
    fputs("        && return 0 ;;\n", stdout);
}

static void put_zsh_completion(void)
{
    fputs("#compdef memtape\n"
          "# zsh completion for memtape, made by the build from the program's options.\n"
          "_memtape() {\n"
          "    local -a verbs\n"
          "    verbs=(\n",
          stdout);
    for (int v = 0; v < MTI_VERB_COUNT; v++) {
        const mti_verb_info *info = mti_verb_get((mti_verb)v);
        mti_print(stdout, "        '%s", info->name);
        put_zsh(":", info->summary, "'\n");
    }
    fputs("    )\n"
          "    if ((CURRENT == 2)); then\n"
          "        _describe verb verbs\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    ((CURRENT--))\n"
          "    case $words[1] in\n",
          stdout);
    for (int v = 0; v < MTI_VERB_COUNT; v++) put_zsh_verb((mti_verb)v);
    fputs("    esac\n"
          "    return 1\n"
          "}\n"
          "_memtape \"$@\"\n",
          stdout);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*put)(void);
    } forms[] = {{"man", put_man_page}, {"bash", put_bash}, {"zsh", put_zsh_completion}};
    for (size_t i = 0; argc == 2 && i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(argv[1], forms[i].name)) continue;
        forms[i].put();
        return fflush(stdout) == 0 && !ferror(stdout) ? MTI_EXIT_OK : MTI_EXIT_FAILED;
    }
    fputs("usage: reference man|bash|zsh\n", stderr);
    return MTI_EXIT_USAGE;
}
