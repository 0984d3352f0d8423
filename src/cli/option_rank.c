/* option_rank.c: options that ask for one rank of several. */
#include <string.h>
#include "cli/option_rows.h"

static const mti_option rank_options[] = {MTI_O_TP,         MTI_O_SP,    MTI_O_PP,
                                          MTI_O_INTERLEAVE, MTI_O_STAGE, MTI_O_MICROBATCHES,
                                          MTI_O_DP,         MTI_O_ZERO};

bool mti_is_rank(const mti_options *o)
{
    for (size_t i = 0; i < sizeof rank_options / sizeof *rank_options; i++)
        if (o->given[rank_options[i]]) return true;
    return false;
}

bool mti_check_rank(mti_options *o)
{
    if (!mti_is_rank(o)) return true;
    if (strcmp(o->device, "meta") != 0)
        return mti_options_refuse(o, "--tp, --sp, --pp, --dp and --zero show one rank of several; "
                                     "give --device meta, where the others need not exist");
    const char *preset = o->spending.checkpoint;
    if (preset && strcmp(preset, "full") != 0 && strcmp(preset, "selective") != 0)
        return mti_options_refuse(o, "--checkpoint: a rank takes one of none, full, selective");
    o->parallel.zero = (int)o->zero;
    int64_t t = o->parallel.tensor ? o->parallel.tensor : 1;
    if (o->parallel.sequence && o->seq % t)
        return mti_options_refuse(o, "--sp: --seq %lld is cut among --tp %lld; need a multiple",
                                  (long long)o->seq, (long long)t);
    if (mt_parallel_check(&o->parallel, &o->config) == MT_OK) return true;
    mti_options_refuse(o, "%.1000s", mt_last_error());
    mt_clear_error();
    return false;
}
