/* traffic.h: what moved between two points of a program. */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include "mtt_engine.h"

/* Returns what the device has moved since *before, and sets *before to all so far. */
mt_traffic traffic_since(const mt_device *device, mt_traffic *before);
/* Zeros that require grad. */
mt_tensor *traffic_leaf(mt_device *device, int rank, const int64_t *shape);
/* Backward from y with a gradient of zeros. */
void traffic_backward(mt_tensor *y);

#endif
