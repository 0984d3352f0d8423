/* written.c: generated text as it comes. A terminal gets whole characters, and no control
 * characters; a file or a pipe gets every byte. */
#include "verbs/written.h"
#include <string.h>
#include <unistd.h>

mti_written mti_written_to(const mti_options *o)
{
    return (mti_written){.o = o, .terminal = isatty(STDOUT_FILENO)};
}

void mti_written_free(mti_written *w)
{
    mti_free(w->text.at);
    *w = (mti_written){0};
}

/* Where one of --stop begins in what is not written yet; all of the text: none does. */
static size_t find_stop(const mti_written *w)
{
    size_t at = w->text.n;
    for (size_t i = 0; i < w->o->generate.stop.n; i++) {
        const char *stop = w->o->generate.stop.at[i];
        const unsigned char *found =
            memmem(w->text.at + w->out, w->text.n - w->out, stop, strlen(stop));
        if (found && (size_t)(found - w->text.at) < at) at = (size_t)(found - w->text.at);
    }
    return at;
}

/* Whether the n last bytes may begin one of --stop. */
static bool may_stop(const mti_written *w, size_t n)
{
    for (size_t i = 0; i < w->o->generate.stop.n; i++) {
        const char *stop = w->o->generate.stop.at[i];
        if (n < strlen(stop) && !memcmp(w->text.at + w->text.n - n, stop, n)) return true;
    }
    return false;
}

/* Bytes at the end that are no whole character yet. */
static size_t unfinished(const mti_written *w)
{
    for (size_t n = 1; n <= 3 && n <= w->text.n - w->out; n++) {
        const unsigned char c = w->text.at[w->text.n - n];
        if ((c & 0xC0) == 0x80) continue; /* goes on */
        const size_t whole = c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        return n < whole ? n : 0;
    }
    return 0;
}

static bool write_to(mti_written *w, size_t end)
{
    const unsigned char *from = w->text.at + w->out;
    const size_t n = end - w->out;
    if (!n) return true;
    if (w->terminal)
        mti_print_bytes(stdout, from, n);
    else if (fwrite(from, 1, n, stdout) != n)
        return false;
    w->out = end;
    return fflush(stdout) == 0;
}

bool mti_written_as_is(const mti_written *w, const char *text)
{
    if (w->terminal)
        mti_print_bytes(stdout, text, strlen(text));
    else
        fputs(text, stdout);
    return !ferror(stdout);
}

bool mti_written_add(mti_written *w, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!MTI_PUSH(&w->text, ((const unsigned char *)bytes)[i])) return false;
    const size_t end = find_stop(w);
    if ((w->ended = end < w->text.n)) return write_to(w, end);
    size_t held = w->text.n - w->out;
    while (held && !may_stop(w, held)) held--;
    if (w->terminal && unfinished(w) > held) held = unfinished(w);
    return write_to(w, w->text.n - held);
}

bool mti_written_end(mti_written *w)
{
    bool ok = w->ended || write_to(w, w->text.n);
    w->text.n = w->out = 0;
    w->ended = false;
    return ok;
}
