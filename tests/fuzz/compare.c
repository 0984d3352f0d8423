/* compare.c: any bytes read as a memory snapshot give a history whose blocks lie within its
 * segments, and any bytes read as a log give intervals; or an error with a message. */
#include <stdlib.h>
#include <string.h>
#include "compare/blocks.h"
#include "compare/oom.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check_error(bool ok)
{
    if (!ok && (mt_last_status() != MT_ERR_FORMAT || !*mt_last_error())) abort();
    mt_clear_error();
}

/* The sums add up whatever the file says, and a history matches itself. */
static void check_history(const mti_history *h)
{
    size_t n, stream = 0, blocks = 0;
    mti_block_match m;
    const mti_stream_use use = mti_history_use(h, -1);
    mti_history_peak(h, &n);
    if (n > h->events.n) abort();
    for (size_t i = 0; i < h->streams.n; i++) stream += mti_history_use(h, (int)i).reserved;
    if (stream != use.reserved || mti_history_end(h).reserved != use.reserved) abort();
    for (size_t i = 0; i < h->blocks.n; i++)
        for (size_t k = 0; k < h->segments.n; k++)
            if (h->blocks.at[i].place - h->segments.at[k].place < h->segments.at[k].size) {
                blocks++;
                break;
            }
    for (size_t i = 0; i < h->blocks.n; i++) blocks += !h->blocks.at[i].size;
    if (blocks < h->blocks.n) abort();
    if (!mti_blocks_match(&m, h, n, h, n) || m.rows.n) abort();
    mti_block_match_free(&m);
}

static void check_oom(char *text)
{
    mti_oom oom;
    if (!mti_oom_take(&oom, text)) return;
    const mti_byte_range spans[] = {oom.asked, oom.total, oom.free, oom.allocated, oom.unallocated};
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        if (spans[i].low > spans[i].high) abort();
    if (!oom.n || oom.line < 1 || !oom.asked.high) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    mti_history h;
    mti_readings figures = {0};
    bool ok = mti_history_read(&h, "input", data, n_bytes);
    check_error(ok);
    if (ok) check_history(&h);
    mti_history_free(&h);
    char *text = malloc(n_bytes + 1);
    if (!text) return 0;
    memcpy(text, data, n_bytes);
    text[n_bytes] = 0;
    n_bytes = mti_make_plain(text, n_bytes);
    text[n_bytes] = 0;
    check_oom(text);
    ok = mti_readings_read(&figures, "input", text, n_bytes, false);
    check_error(ok);
    if (ok && !figures.n) abort();
    for (size_t i = 0; i < figures.n; i++)
        if (figures.at[i].low > figures.at[i].high) abort();
    free(text);
    mti_free(figures.at);
    return 0;
}
