/* adafactor.h: how a step of Adafactor is cut up, written once, usable from C and from CUDA.
 *
 * An item has `batch` matrices of rows x columns; a vector is a matrix of one row that is not
 * factored. A matrix is cut into tiles. A tile adds up the squares of its gradients by row and by
 * column; what the tiles have is then added up in order, so the bits do not depend on the number of
 * threads. Scratch memory of one item: */
#ifndef MTI_ADAFACTOR_H
#define MTI_ADAFACTOR_H

#include <math.h>
#include "backends/backend.h"
#include "base/philox.h"

#define MTI_FACTOR_ROWS    128 /* of a tile */
#define MTI_FACTOR_COLUMNS 512

typedef struct mti_factor_shape {
    int64_t batch, rows, columns, row_tiles, column_tiles;
    bool factored;
} mti_factor_shape;

/* Bytes from the start of the item's scratch memory; `wide`: float, or double for f64. */
typedef struct mti_factor_scratch {
    int64_t squares;      /* double [tiles]: of the parameter, and then of the update */
    int64_t length;       /* double [1]: by what the update is multiplied */
    int64_t scale;        /* wide [batch]: 1 / mean of the row factors */
    int64_t row_parts;    /* wide [batch][column_tiles][rows] */
    int64_t column_parts; /* wide [batch][row_tiles][columns] */
    int64_t bytes;
} mti_factor_scratch;

MTI_HD mti_factor_shape mti_factor_shape_of(const mti_opt_item *item)
{
    mti_factor_shape s;
    int64_t rows = item->rows, columns = item->columns;
    s.batch = rows * columns > 0 ? item->n / (rows * columns) : 0;
    s.rows = rows;
    s.columns = columns;
    s.row_tiles = (rows + MTI_FACTOR_ROWS - 1) / MTI_FACTOR_ROWS;
    s.column_tiles = (columns + MTI_FACTOR_COLUMNS - 1) / MTI_FACTOR_COLUMNS;
    s.factored = item->m != NULL;
    return s;
}

MTI_HD int64_t mti_factor_tiles(const mti_factor_shape *s)
{
    return s->batch * s->row_tiles * s->column_tiles;
}

MTI_HD mti_factor_scratch mti_factor_scratch_of(const mti_factor_shape *s, int64_t wide)
{
    mti_factor_scratch at;
    at.squares = 0;
    at.length = 8 * mti_factor_tiles(s);
    at.scale = at.length + 8;
    at.row_parts = at.scale + wide * s->batch;
    at.column_parts =
        at.row_parts + (s->factored ? wide * s->batch * s->column_tiles * s->rows : 0);
    at.bytes = at.column_parts + wide * s->batch * s->row_tiles * s->columns;
    at.bytes = (at.bytes + 255) / 256 * 256;
    return at;
}

/* A tile's place: [row, row + rows) x [column, column + columns) of matrix `matrix`. */
typedef struct mti_factor_tile {
    int64_t matrix, row, column, rows, columns;
    int64_t row_tile, column_tile;
} mti_factor_tile;

MTI_HD mti_factor_tile mti_factor_tile_at(const mti_factor_shape *s, int64_t tile)
{
    mti_factor_tile t;
    t.column_tile = tile % s->column_tiles;
    t.row_tile = tile / s->column_tiles % s->row_tiles;
    t.matrix = tile / s->column_tiles / s->row_tiles;
    t.row = t.row_tile * MTI_FACTOR_ROWS;
    t.column = t.column_tile * MTI_FACTOR_COLUMNS;
    t.rows = s->rows - t.row < MTI_FACTOR_ROWS ? s->rows - t.row : MTI_FACTOR_ROWS;
    t.columns =
        s->columns - t.column < MTI_FACTOR_COLUMNS ? s->columns - t.column : MTI_FACTOR_COLUMNS;
    return t;
}

/* Numbers of a step that do not depend on the item. */
typedef struct mti_factor_step {
    double weight; /* of this step's squares in the moments */
    double rate;   /* of the parameter's size, how far a step goes */
    double lr, eps2, clip, grad_scale;
} mti_factor_step;

MTI_HD mti_factor_step mti_factor_step_of(const mti_opt_params *p)
{
    double t = (double)p->step, most = 1 / sqrt(t);
    mti_factor_step s;
    s.weight = pow(t, p->beta2_decay);
    s.rate = p->lr < most ? p->lr : most;
    s.lr = p->lr;
    s.eps2 = p->eps2;
    s.clip = p->clip;
    s.grad_scale = p->grad_scale > 0 ? p->grad_scale : 1;
    return s;
}

/* The smallest divisor; of 16 bits that have a master, the master's. */
MTI_HD double mti_factor_eps(const mti_opt_params *p, mt_dtype dtype, bool master)
{
    if (p->eps > 0) return p->eps;
    if (dtype == MT_F64) return 0x1p-52;
    if (dtype == MT_F32 || master) return 0x1p-23;
    return dtype == MT_BF16 ? 0x1p-7 : 0x1p-10;
}

/* The length of a step of an update whose root mean square is 1, from the sum of the parameter's n
 * squares. */
MTI_HD double mti_factor_reach(const mti_factor_step *s, double squares, double n)
{
    double size = sqrt(squares / n);
    return (size > s->eps2 ? size : s->eps2) * s->rate;
}

/* What the update is multiplied by, from the sum of its squares. */
MTI_HD double mti_factor_length(const mti_factor_step *s, double reach, double squares, double n)
{
    double size = sqrt(squares / n) / s->clip;
    return reach / (size > 1 ? size : 1);
}

#endif
