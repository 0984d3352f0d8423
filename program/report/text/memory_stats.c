/* memory_stats.c: what checkpoints, offload, compression, casts and loss scaling did. */
#include <math.h>
#include "report/sections.h"

static void checkpoint_lines(mti_table *t, const mti_measurement *m)
{
    const mti_memory_stats *s = &m->memory_stats;
    const char *flops = MTI_SCALED((double)m->flops.recompute);
    if (!s->n_segments) { /* modules whose outputs go, too */
        mti_equation_row(t, "checkpoints", 0, "recomputed modules; in all %s FLOP", flops);
        return;
    }
    mti_equation_row(t, "checkpoints", (int64_t)s->between, "inputs held between %zu segment%s",
                     s->n_segments, s->n_segments == 1 ? "" : "s");
    mti_equation_row(t, "", (int64_t)s->inside,
                     "the most that one segment recomputes; in all %s FLOP", flops);
}

static void offload_lines(mti_table *t, const mt_offload_stats *s, bool timed)
{
    mti_equation_row(t, "offload", (int64_t)s->bytes_out,
                     "left the device in %zu transfers; %zu came back", s->n_out, s->n_in);
    mti_equation_row(t, "", (int64_t)s->lowered, "by this much the peak is lower");
    mti_equation_row(t, "", (int64_t)s->bytes_in_vain,
                     "of the bytes that left did not lower the peak");
    if (s->disk_peak) mti_equation_row(t, "", (int64_t)s->disk_peak, "on disk, at most");
    mti_equation_row(t, "", (int64_t)s->host_peak,
                     timed ? "of host memory, at most; copying took %.2f ms, of which %.0f %% was "
                             "hidden"
                           : "of host memory, at most",
                     s->copy_s * 1e3, s->hidden * 100);
}

static void compress_lines(mti_table *t, const mt_compress_stats *s)
{
    const char *name = "compression";
    for (int r = 0; r < MT_COMPRESS_RULE_COUNT; r++) {
        const mt_compress_count *c = &s->by_rule[r];
        if (!c->n) continue;
        mti_equation_row(t, name, (int64_t)c->bytes_after, "instead of %s: %zu storages as %s",
                         MTI_THOUSANDS(c->bytes_before), c->n,
                         mt_compress_rule_name((mt_compress_rule)r));
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
    if (amp)
        mti_equation_row(t, "autocast", (int64_t)s->cast_bytes,
                         "of %zu weight copies in the cast cache", s->cast_copies);
    if (s->duplicates)
        mti_equation_row(t, amp ? "" : "duplicates", (int64_t)s->duplicate_bytes,
                         "of %zu tensors that exist in a second dtype", s->duplicates);
}

bool mti_print_memory_stats(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_memory_options *memory = &p->workload.memory;
    const mti_memory_stats *s = &p->measured.memory_stats;
    bool has_data = mt_device_has_data(p->device);
    const bool checkpoints = memory->checkpoint || memory->recompute;
    if (!checkpoints && !memory->offload && !memory->compress && !memory->amp &&
        memory->loss_scale == 0 && !s->duplicates)
        return true;
    mti_heading(to, "The memory options: what they saved, and at what cost");
    mti_table *t = mti_table_new("lrw", NULL);
    if (s->asked)
        mti_equation_row(t, "saved", (int64_t)s->asked, "what the ops asked the tape to keep");
    if (checkpoints) checkpoint_lines(t, &p->measured);
    if (memory->offload) offload_lines(t, &s->offload, has_data);
    if (memory->compress) compress_lines(t, &s->compress);
    cast_lines(t, s, memory->amp);
    bool ok = mti_table_finish(t, to);
    if (memory->loss_scale != 0) mti_print(to->out, "  loss scale %g", s->scaler.scale);
    if (memory->loss_scale != 0 && has_data)
        fprintf(to->out, " after %lld steps, %lld skipped", (long long)s->scaler.steps,
                (long long)s->scaler.skipped);
    if (p->measured.steady.skipped)
        fputs(", the second one that is measured among them: meta counts it as made", to->out);
    if (memory->loss_scale != 0)
        fputs(has_data ? "\n" : "; which steps are skipped is not known without data\n", to->out);
    return ok;
}

bool mti_print_warnings(const mti_profile_result *p, const mti_sheet *to)
{
    const mti_memory_stats *s = &p->measured.memory_stats;
    if (s->n_warnings) {
        fputs("\n", to->out);
        mti_print_lines(to, MTI_BAD, s->warnings);
    }
    return true;
}
