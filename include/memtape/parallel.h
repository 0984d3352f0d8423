/* parallel.h: one rank of a model that many share, measured without the others.
 *
 * Tensor parallelism (Shoeybi et al. 2019) cuts each layer's matrices, sequence parallelism
 * (Korthikanti et al. 2022) what lies between them, pipeline parallelism (Narayanan et al. 2021)
 * gives each rank some layers, ZeRO (Rajbhandari et al. 2020) cuts what the optimizer needs. What a
 * rank keeps depends on shapes alone, so it is measured on `meta` with the ranks' messages as ops
 * that move no data. */
#ifndef MEMTAPE_PARALLEL_H
#define MEMTAPE_PARALLEL_H

#include "memtape/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif
#endif
