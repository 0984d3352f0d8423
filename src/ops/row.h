/* row.h: the words of a table of ops (ops.def, collectives.def), and MTI_ROW, which makes a row's
 * object mti_op_NAME. For the one file that has the table's rows. */
#ifndef MTI_OPS_ROW_H
#define MTI_OPS_ROW_H

#include "autograd/autograd.h"

#define KEEP(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define IN       KEEP
#define AUX      KEEP
#define IN0      MTI_IN0
#define IN1      MTI_IN1
#define IN2      MTI_IN2
#define IN3      MTI_IN3
#define IN4      MTI_IN4
#define OUT0     MTI_OUT0
#define OUT1     MTI_OUT1
#define OUT(...) __VA_ARGS__
#define AUX0     MTI_AUX0
#define AUX1     MTI_AUX1
#define AUX2     MTI_AUX2
#define SIGN     MTI_SIGN
#define DRAWN    MTI_DRAWN
#define OPTIONAL MTI_OPTIONAL
#define MTI_ROW(name_, n_in_, n_aux_, keep_, flags_, in_, out_, aux_, formula_, why_)              \
    const mti_op mti_op_##name_ = {.name = #name_,                                                 \
                                   .n_in = n_in_,                                                  \
                                   .n_aux = n_aux_,                                                \
                                   .keep = keep_,                                                  \
                                   .flags = flags_,                                                \
                                   .in = in_,                                                      \
                                   .out = {out_},                                                  \
                                   .aux = aux_,                                                    \
                                   .formula = formula_,                                            \
                                   .why = why_,                                                    \
                                   .code = &mti_code_##name_};

#endif
