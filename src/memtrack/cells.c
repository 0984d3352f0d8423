/* cells.c: the parts of segments. Cells are recycled, so that a steady program asks the system for
 * none. */
#include "memtrack/pool.h"

#define CELLS_PER_SLAB 128
struct mti_slab {
    mti_slab *next;
    mti_cell cell[CELLS_PER_SLAB];
};

bool mti_cells_ready(mti_pool *pool, size_t n)
{
    if (pool->n_spare >= n) return true;
    mti_slab *slab = mti_malloc(sizeof *slab);
    if (!slab) return false;
    slab->next = pool->slabs;
    pool->slabs = slab;
    for (size_t i = CELLS_PER_SLAB; i-- > 0;) mti_cell_drop(pool, &slab->cell[i]);
    return true;
}

void mti_cells_free(mti_pool *pool)
{
    while (pool->slabs) {
        mti_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        mti_free(slab);
    }
    pool->spare = NULL;
    pool->n_spare = 0;
}

mti_cell *mti_cell_cut(mti_pool *pool, mti_cell *cell, size_t size)
{
    mti_cell *rest = mti_cell_take(pool);
    rest->block.ptr = (char *)cell->block.ptr + size;
    rest->place = cell->place + size;
    rest->stream = cell->stream;
    rest->block.size = cell->block.size - size;
    rest->large = cell->large;
    rest->mapped = cell->mapped;
    rest->left = cell;
    rest->right = cell->right;
    if (rest->right) rest->right->left = rest;
    cell->right = rest;
    cell->block.size = size;
    return rest;
}

void mti_cell_absorb_right(mti_pool *pool, mti_cell *cell)
{
    mti_cell *gone = cell->right;
    cell->block.size += gone->block.size;
    cell->right = gone->right;
    if (cell->right) cell->right->left = cell;
    mti_cell_drop(pool, gone);
}

mti_cell *mti_cell_join(mti_pool *pool, mti_cell *cell)
{
    if (mti_cell_is_free(cell->right)) {
        mti_fit_remove(&cell->stream->fit, cell->right);
        mti_cell_absorb_right(pool, cell);
    }
    if (mti_cell_is_free(cell->left)) {
        cell = cell->left;
        mti_fit_remove(&cell->stream->fit, cell);
        mti_cell_absorb_right(pool, cell);
    }
    mti_fit_add(&cell->stream->fit, cell);
    return cell;
}
