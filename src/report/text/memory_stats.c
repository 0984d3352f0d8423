/* memory_stats.c: what checkpoints, offload, compression, casts and loss scaling did. */
#include <math.h>
#include "report/parts.h"

static void checkpoint_lines(mti_table *t, const mti_measurement *m)
{
    char text[96], flops[MTI_NUMBER];
    const mti_memory_stats *s = &m->memory_stats;
    snprintf(text, sizeof text, "inputs held between %zu segment%s", s->n_segments,
             s->n_segments == 1 ? "" : "s");
    mti_equation_row(t, "checkpoints", (int64_t)s->between, text);
    snprintf(text, sizeof text, "the most that one segment recomputes; in all %s FLOP",
             mti_scaled(flops, (double)m->flops.recompute));
    mti_equation_row(t, "", (int64_t)s->inside, text);
}

static void offload_lines(mti_table *t, const mt_offload_stats *s, bool timed)
{
    char text[128];
    snprintf(text, sizeof text, "left the device in %zu transfers; %zu came back", s->n_out,
             s->n_in);
    mti_equation_row(t, "offload", (int64_t)s->bytes_out, text);
    mti_equation_row(t, "", (int64_t)s->lowered, "by this much the peak is lower");
    mti_equation_row(t, "", (int64_t)s->bytes_in_vain,
                     "of the bytes that left did not lower the peak");
    if (s->disk_peak) mti_equation_row(t, "", (int64_t)s->disk_peak, "on disk, at most");
    if (timed)
        mti_format(text, sizeof text,
                   "of host memory, at most; copying took %.2f ms, of which %.0f %% was hidden",
                   s->copy_s * 1e3, s->hidden * 100);
    else
        snprintf(text, sizeof text, "of host memory, at most");
    mti_equation_row(t, "", (int64_t)s->host_peak, text);
}

static void compress_lines(mti_table *t, const mt_compress_stats *s)
{
    const char *name = "compression";
    for (int r = 0; r < MT_COMPRESS_RULE_COUNT; r++) {
        const mt_compress_count *c = &s->by_rule[r];
        char text[128], before[MTI_NUMBER];
        if (!c->n) continue;
        snprintf(text, sizeof text, "instead of %s: %zu storages as %s",
                 mti_thousands(before, (int64_t)c->bytes_before), c->n,
                 mt_compress_rule_name((mt_compress_rule)r));
        mti_equation_row(t, name, (int64_t)c->bytes_after, text);
        name = "";
    }
    if (s->in_vain.n)
        mti_equation_row(t, name, (int64_t)s->in_vain.bytes_after,
                         "of them on top: the original is still held");
    else if (*name)
        mti_equation_row(t, name, 0, "nothing to compress");
}

static void cast_lines(mti_table *t, const mti_memory_stats *s, bool amp)
{
    char text[128];
    if (amp) {
        snprintf(text, sizeof text, "of %zu weight copies in the cast cache", s->cast_copies);
        mti_equation_row(t, "autocast", (int64_t)s->cast_bytes, text);
    }
    if (s->duplicates) {
        snprintf(text, sizeof text, "of %zu tensors that exist in a second dtype", s->duplicates);
        mti_equation_row(t, amp ? "" : "duplicates", (int64_t)s->duplicate_bytes, text);
    }
}

bool mti_print_memory_stats(const mti_profile_result *p, FILE *out, const mti_style *style)
{
    const mti_memory_options *memory = &p->workload.memory;
    const mti_memory_stats *s = &p->measured.memory_stats;
    bool has_data = mt_device_has_data(p->device);
    if (!memory->checkpoint && !memory->offload && !memory->compress && !memory->amp &&
        memory->loss_scale == 0 && !s->duplicates)
        return true;
    mti_heading(out, style, "The memory options: what they saved, and at what cost");
    mti_table *t = mti_table_new("lrw", NULL);
    if (s->asked)
        mti_equation_row(t, "saved", (int64_t)s->asked, "what the ops asked the tape to keep");
    if (memory->checkpoint) checkpoint_lines(t, &p->measured);
    if (memory->offload) offload_lines(t, &s->offload, has_data);
    if (memory->compress) compress_lines(t, &s->compress);
    cast_lines(t, s, memory->amp);
    bool ok = mti_table_finish(t, out, style);
    if (memory->loss_scale != 0) mti_print(out, "  loss scale %g", s->scaler.scale);
    if (memory->loss_scale != 0 && has_data)
        fprintf(out, " after %lld steps, %lld skipped", (long long)s->scaler.steps,
                (long long)s->scaler.skipped);
    if (p->measured.steady.skipped)
        fputs(", the second one that is measured among them: meta counts it as made", out);
    if (memory->loss_scale != 0)
        fputs(has_data ? "\n" : "; which steps are skipped is not known without data\n", out);
    return ok;
}

bool mti_print_warnings(const mti_profile_result *p, FILE *out, const mti_style *style)
{
    const mti_memory_stats *s = &p->measured.memory_stats;
    if (s->n_warnings) {
        fputs("\n", out);
        mti_print_lines(out, style, MTI_BAD, s->warnings);
    }
    return true;
}
