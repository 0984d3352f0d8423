/* readings.c: the figures of a text: of its lines, or of the JSON that it is. */
#include <ctype.h>
#include <string.h>
#include "compare/readings.h"

/* Colours of a terminal are left out, and zero bytes. */
static size_t make_plain(char *text, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\x1b' && i + 1 < n && text[i + 1] == '[') {
            while (i + 1 < n && !isalpha((unsigned char)text[i + 1]) && text[i + 1] != '\n') i++;
            i++;
        } else if (text[i]) {
            text[kept++] = text[i];
        }
    }
    return kept;
}

bool mti_readings_read(mti_readings *out, const char *path, char *text, size_t n)
{
    bool ok = true;
    const size_t blank = strspn(text, " \t\r\n");
    const bool json = text[blank] == '{' || text[blank] == '[';
    if (json) ok = mti_readings_of_json(out, path, text, n);
    if (ok && !out->n) {
        text[make_plain(text, n)] = 0;
        char *rest = text, *line;
        for (int64_t i = 1; ok && (line = strsep(&rest, "\n")); i++)
            ok = mti_readings_of_line(out, path, line, i);
    }
    return ok &&
           (out->n || mti_fail_bool(MT_ERR_FORMAT,
                                    "%s: neither a memory snapshot of PyTorch nor a text with a "
                                    "figure that is known, such as max_memory_allocated: N, "
                                    "torchtitan's memory: 42.08GiB, Megatron-LM's memory (MB) | "
                                    "allocated: N, PEFT's or Megatron-LM's JSON, or nvidia-smi's "
                                    "12345MiB / 81559MiB",
                                    path));
}
