/* op_table.h: the table of ops, for programs that explain it. */
#ifndef MEMTAPE_OP_TABLE_H
#define MEMTAPE_OP_TABLE_H

#include "memtape/status.h"

MT_C_BEGIN

/* A row of the table of ops. */
typedef struct mt_op_info {
    const char *name;
    int n_inputs;           /* -1: any number */
    const char *inputs[5];  /* letters: "x", "w", "b"; NULL past the last */
    const char *outputs[2]; /* of the first two; others have the first's letter */
    const char *auxiliaries[3];
    const char *formula;
    const char *why; /* what is kept, and why */
    /* Its dtype under autocast: "low", "f32", or "widest" of its inputs. */
    const char *autocast;
    /* What the gradient of input i needs: bit k input k, bit 8 + k output k, bit 12 + k auxiliary
     * k. The tape keeps the union over the inputs that want a gradient. */
    unsigned keep[5];
} mt_op_info;
/* How many ops the engine has, and row i of their table. Ops between ranks have a table of their
 * own (mt_all_ops_get in collectives.h lists both). */
MT_API int mt_op_count(void);
MT_API mt_op_info mt_op_get(int i);
/* The row of that name; -1 if there is none, which is not an error. */
MT_API int mt_op_find(const char *name);

MT_C_END
#endif
