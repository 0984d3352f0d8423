/* notify.c: tells the observers of a pool what happens to its blocks and segments. */
#include "memtrack/pool.h"

void mti_notify(mti_pool *pool, mt_mem_event event)
{
    const mti_where *where = mti_where_now();
    event.op = where->op, event.module = where->module, event.phase = where->phase;
    event.current = pool->stats.allocated.current;
    event.reserved = pool->stats.reserved.current;
    for (size_t i = 0; i < pool->observers.n; i++)
        pool->observers.at[i].fn(pool->observers.at[i].user, &event);
}

void mti_notify_of_block(mti_pool *pool, mt_mem_event_kind kind, const mti_cell *cell,
                         mt_category was)
{
    mti_notify(pool, (mt_mem_event){.kind = kind,
                                    .serial = cell->block.serial,
                                    .requested = cell->block.requested,
                                    .allocated = cell->block.size,
                                    .category = cell->block.category,
                                    .was = was,
                                    .place = cell->place,
                                    .stream = cell->stream->number,
                                    .stream_name = cell->stream->name});
}

void mti_notify_segment(mti_pool *pool, mt_mem_event_kind kind, const mti_cell *cell, size_t size)
{
    if (!pool->observers.n) return;
    mti_notify(pool, (mt_mem_event){.kind = kind,
                                    .requested = size,
                                    .allocated = size,
                                    .place = cell->place,
                                    .large = cell->large,
                                    .stream = cell->stream->number,
                                    .stream_name = cell->stream->name});
}
