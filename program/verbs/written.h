/* written.h: what `generate` writes, token by token. */
#ifndef MTI_CLI_WRITTEN_H
#define MTI_CLI_WRITTEN_H

#include "options/options.h"

/* Text on its way to standard output. The end of what has come is held back as long as it may be
 * the beginning of a text that ends it (--stop), and on a terminal of a character. */
typedef struct mti_written {
    const mti_options *o;
    bool terminal;
    MTI_VEC(unsigned char) text;
    size_t out; /* bytes of it that are written */
    bool ended; /* by one of --stop, which is not written itself */
} mti_written;

mti_written mti_written_to(const mti_options *o);
void mti_written_free(mti_written *w);
/* Writes a prompt, in which --stop is not looked for. */
bool mti_written_as_is(const mti_written *w, const char *text);
/* Adds bytes; false: a write failed, or memory. */
bool mti_written_add(mti_written *w, const void *bytes, size_t n);
/* Writes what is held back, and begins a new text. */
bool mti_written_end(mti_written *w);

#endif
