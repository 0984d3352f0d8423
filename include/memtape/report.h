/* report.h: reports that were written as JSON, as pages for a browser and as snapshots. */
#ifndef MEMTAPE_REPORT_H
#define MEMTAPE_REPORT_H

#include <stddef.h>
#include "memtape/status.h"

MT_C_BEGIN

/* Writes the page of --html to `path`, whole or not at all. `report` is JSON text as the program's
 * --json writes it (docs/profile-json.md), of schema memtape.profile/1, memtape.sweep/1 or
 * memtape.plan/1, or as memtape.torch does (docs/python.md); a schema's other keys are not checked.
 * The page shows what the JSON has: without its `timeline` no curve.
 * MT_ERR_FORMAT if it is no such report, MT_ERR_IO if the file cannot be written. */
MT_API mt_status mt_report_write_html(const char *title, const char *report, const char *path);

/* Writes what the file `report` lists to `path` as torch.cuda.memory._dump_snapshot would
 * (docs/snapshot.md), whole or not at all. The report is of a training step, with its `timeline`.
 * capacity: bytes of the device, which refuses what goes past it; the snapshot then ends with that
 * request, an event `oom`. 0: no limit. MT_ERR_FORMAT if the report lists no step, MT_ERR_IO if a
 * file cannot be read or written. */
MT_API mt_status mt_report_write_snapshot(const char *report, size_t capacity, const char *path);

MT_C_END
#endif
