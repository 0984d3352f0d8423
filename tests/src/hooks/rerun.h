/* rerun.h: a function to checkpoint that can be told to fail or to differ when it runs again. */
#ifndef RERUN_H
#define RERUN_H

#include "mtt_fixture.h"

enum { N = 6, ROWS = 5 };

typedef struct fn_data {
    mt_tensor *w; /* [N,N] */
    double p;
    int calls, destroys;
    int fail_at;  /* fails in this call (1 is forward) */
    int twist_at; /* differs in this call, in the way that `twist` says */
    enum { NO_TWIST, OTHER_OP, OTHER_SHAPE, FEWER, MORE, OTHER_VALUE } twist;
} fn_data;

/* y0 = dropout(gelu(x0 w^T)) w^T + x1, y1 = tanh(x0); x0, x1, y0, y1 [ROWS,N], user a fn_data */
mt_status fn(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out);
void count_destroy(void *user);

typedef struct setup {
    fn_data d;
    mt_tensor *x[2];
    mt_tensor *out[2];
    mt_tensor *loss;
} setup;

setup set_up(double p);
void tear_down(setup *s);
/* Runs forward and makes a loss of all outputs; checkpointed with these options unless `plain`. */
mt_status forward(setup *s, bool plain, int n_in, int n_out, const mt_checkpoint_options *options);
void assert_same_grads(setup *a, setup *b, int n_in);

typedef struct nest {
    setup *s;
    int depth, calls;
} nest;

/* y = fn(...) inside `depth` checkpoints, with one more op after each; user: a nest */
mt_status nested(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out);

#endif
