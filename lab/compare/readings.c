/* readings.c: the figures of a text: of its lines, or of the JSON that it is. */
#include <ctype.h>
#include <string.h>
#include "compare/readings.h"

size_t mti_make_plain(char *text, size_t n)
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

bool mti_readings_read(mti_readings *out, const char *path, char *text, size_t n, bool maybe_none)
{
    bool ok = true;
    const size_t blank = strspn(text, " \t\r\n");
    const bool json = text[blank] == '{' || text[blank] == '[';
    if (json) ok = mti_readings_of_json(out, path, text, n);
    if (ok && !out->n) {
        char *rest = text, *line;
        for (int64_t i = 1; ok && (line = strsep(&rest, "\n")); i++)
            ok = mti_readings_of_line(out, path, line, i);
        ok = ok && mti_readings_add_deltas(out, path);
    }
    if (!ok || out->n || maybe_none) return ok;
    if (*out->unclear) return mti_fail_bool(MT_ERR_FORMAT, "%s: %s", path, out->unclear);
    return mti_fail_bool(
        MT_ERR_FORMAT,
        "%s: neither a memory snapshot of PyTorch nor its message that memory ran "
        "out, nor a text with a figure that is known, such as "
        "max_memory_allocated: N, torchtitan's memory: 42.08GiB, Megatron-LM's "
        "memory (MB) | allocated: N, DeepSpeed's Max_MA, "
        "torch.cuda.memory_summary(), Trainer's train_mem_gpu_*, PEFT's or Megatron-LM's JSON, or "
        "nvidia-smi's 12345MiB / 81559MiB",
        path);
}
