/* case_row.h: the words of a table of cases (op_cases.def, collective_cases.def), and MTI_CASE_ROW,
 * which makes a row's object row_NAME. For the one file that has the table's rows: after all other
 * headers, since some words are single letters. */
#ifndef MTI_OPS_CASE_ROW_H
#define MTI_OPS_CASE_ROW_H

#include "ops/op_cases.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum {
    AUDIT = MTI_CASE_AUDIT,
    BENCH = MTI_CASE_BENCH,
    CHECK = MTI_CASE_CHECK,
    PARITY = MTI_CASE_PARITY,
    INNER = MTI_CASE_INNER,
    CHECKED = CHECK | PARITY,
    EACH = AUDIT | BENCH | CHECKED
};

/* A named size is a number far above any extent or parameter, so that N - 4 works, too. */
#define NAMED(size) ((int64_t)(1 + (size)) << 40)
#define M           NAMED(MTI_SIZE_M)
#define N           NAMED(MTI_SIZE_N)
#define K           NAMED(MTI_SIZE_K)
#define V           NAMED(MTI_SIZE_V)
#define B           NAMED(MTI_SIZE_B)
#define A           NAMED(MTI_SIZE_A)
#define S           NAMED(MTI_SIZE_S)
#define D           NAMED(MTI_SIZE_D)

#define X(...)           MTI_CASE_INPUT(MTI_CASE_ANY, __VA_ARGS__)
#define POSITIVE(...)    MTI_CASE_INPUT(MTI_CASE_POSITIVE, __VA_ARGS__)
#define KINK(...)        MTI_CASE_INPUT(MTI_CASE_KINK, __VA_ARGS__)
#define WEIGHT(...)      MTI_CASE_INPUT(MTI_CASE_WEIGHT, __VA_ARGS__)
#define INDEX(most, ...) MTI_CASE_INPUT(.below = (most), __VA_ARGS__)
#define P(...)           .n_p = (int)COUNT(((double[]){0, __VA_ARGS__})) - 1, .p = {__VA_ARGS__}
#define CASE(who, which, parameters, ...)                                                          \
    {                                                                                              \
        .users = (who), .note = which, P parameters,                                               \
        .n_in = (int)COUNT(((mti_case_input[]){__VA_ARGS__})), .in = {                             \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#define MTI_CASE_ROW(name, expression, ...)                                                        \
    static mt_tensor *call_##name(const mti_case *c, mt_tensor **in)                               \
    {                                                                                              \
        const double *p = c->p;                                                                    \
        return (void)p, expression;                                                                \
    }                                                                                              \
    static const mti_case cases_##name[] = {__VA_ARGS__};                                          \
    static const mti_case_row row_##name = {#name, call_##name, (int)COUNT(cases_##name),          \
                                            cases_##name};                                         \
    _Static_assert(sizeof mti_op_##name && COUNT(cases_##name) > 0, "cases of a row");

#endif
