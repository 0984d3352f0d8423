#include "traffic.h"

mt_traffic traffic_since(const mt_device *device, mt_traffic *before)
{
    mt_traffic now = mt_traffic_get(device), x = now;
    x.products -= before->products, x.others -= before->others;
    *before = now;
    return x;
}

mt_tensor *traffic_leaf(mt_device *device, int rank, const int64_t *shape)
{
    mt_tensor *t = mt_zeros(device, MT_F32, rank, shape);
    mtt_ok(mt_set_requires_grad(t, true));
    return t;
}

void traffic_backward(mt_tensor *y)
{
    mt_tensor *dy = mt_zeros(mt_device_of(y), MT_F32, mt_rank(y), mt_shape(y));
    mtt_ok(mt_backward_from(1, &y, &dy, false));
    mt_release(dy);
}
