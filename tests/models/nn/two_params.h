/* two_params.h: a module with two parameters, their gradients, and AdamW in f64. */
#ifndef TWO_PARAMS_H
#define TWO_PARAMS_H

#include "mtt.h"
#include "mtt_fixture.h"

enum { N = 6 }; /* elements of the matrix [2,3] and of the vector [6] */

/* A module with a matrix [2,3] and a vector [6]. */
mt_module *two_params(mt_dtype dtype, uint64_t seed);
void set_grad(mt_tensor *p, const double g[N]);
void draw(uint64_t seed, double g[N]);
void assert_near(mt_tensor *t, const double want[N], double tolerance);
/* Loshchilov & Hutter 2019, step t = 1, 2, ... */
void reference_adamw(double p[N], const double g[N], double m[N], double v[N], int t, double lr,
                     double b1, double b2, double eps, double decay);

#endif
