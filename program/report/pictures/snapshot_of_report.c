/* snapshot_of_report.c: what a report lists, as PyTorch's snapshot of the run. */
#include "base/base.h"
#include "compare/report_read.h"
#include "memtape/report.h"
#include "report/pictures.h"

mt_status mt_report_write_snapshot(const char *report, size_t capacity, const char *path)
{
    if (!report || !path)
        return mti_fail(MT_ERR_ARGUMENT, "report_write_snapshot: the %s is NULL",
                        report ? "path" : "report");
    mti_measurement m;
    char *kind;
    mt_status status = MT_OK;
    if (!mti_report_read(&m, &kind, report, capacity) ||
        mti_snapshot_write(&m.timeline, "meta", path) != MT_OK)
        status = mt_last_status();
    mti_free(kind);
    mti_measurement_free(&m);
    return status;
}
