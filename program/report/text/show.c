/* show.c: some sections of a report. A section begins with its heading: a line in the first column
 * after an empty one. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "report/terminal.h"

/* Returns where the next heading begins; NULL if there is none. */
static const char *next_heading(const char *text)
{
    while ((text = strstr(text, "\n\n"))) {
        text += 2;
        if (*text && *text != ' ' && *text != '\n') return text;
    }
    return NULL;
}

/* Whether the line has these words, in small letters or capitals. */
static bool has_words(const char *line, const char *words)
{
    const size_t n = strcspn(line, "\n"), wanted = strlen(words);
    for (size_t i = 0; i + wanted <= n; i++) {
        size_t same = 0;
        while (same < wanted &&
               tolower((unsigned char)line[i + same]) == tolower((unsigned char)words[same]))
            same++;
        if (same == wanted) return true;
    }
    return false;
}

/* Says which sections there are: each heading up to its figures. */
static void refuse(const char *words, const char *text)
{
    char all[1200] = "";
    for (const char *at = text; (at = next_heading(at));)
        mti_append(all, sizeof all, "%s%.*s", *all ? "; " : "", (int)strcspn(at, ":,\n"), at);
    mti_fail(MT_ERR_ARGUMENT, "--show \"%s\": no section has these words; there are: %s", words,
             all);
}

/* Prints the sections whose heading has the words; false if none has. */
static bool print_matching(const char *words, const char *text, FILE *out)
{
    bool any = false;
    for (const char *at = text, *end; (at = next_heading(at)); at = end - 2) {
        const char *next = next_heading(at);
        end = next ? next : at + strlen(at) + 1;
        if (has_words(at, words)) {
            const size_t n = next ? (size_t)(next - at) - 1 : strlen(at);
            if (any) fputc('\n', out);
            fwrite(
                at, 1, n,
                out); /* printed once before, so that names in it are as a terminal may have them */
            any = true;
        }
        if (!next) break;
    }
    if (!any) refuse(words, text);
    return any;
}

bool mti_show_sections(const char *words, mti_print_whole *print, const void *report, FILE *out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    bool ok = to && print(report, to);
    const bool written = to && !ferror(to), closed = to && fclose(to) == 0;
    if (!written || !closed || !text) {
        ok = false;
        mti_fail(MT_ERR_MEMORY, "report: no memory for its text: %s", strerror(errno));
    }
    ok = ok && print_matching(words, text, out);
    free(text); /* of open_memstream */
    return ok;
}
