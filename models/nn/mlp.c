/* mlp.c: [..,d] -> [..,f] -> [..,d], with an activation or a gate. */
#include "nn/model.h"
#include "memtape/ops.h"

/* User data of a gated MLP. */
typedef struct gated {
    mti_swiglu_fn *swiglu;
} gated;

/* What follows the last product; h is taken over. */
static mt_tensor *finish(mt_module *self, mt_tensor *h)
{
    mt_set(&h, mt_forward_child(self, "drop", h));
    if (mt_module_child(self, "out")) mt_set(&h, mt_forward_child(self, "out", h));
    return h;
}

static bool add_end(mt_module *m, const mt_model_config *c)
{
    return mti_add_dropout(m, c) &&
           (!c->has_out_act || mt_module_add_child(m, "out", mt_activation_new(c->out_act, false)));
}

static mt_tensor *plain_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "fc", x);
    mt_set(&h, mt_forward_child(self, "act", h));
    mt_set(&h, mt_forward_child(self, "proj", h));
    return finish(self, h);
}

/* *gate and *up of x; false on failure */
static bool gate_and_up(mt_module *self, mt_tensor *x, mt_tensor **gate, mt_tensor **up)
{
    mt_tensor *half[2] = {NULL, NULL};
    if (!mt_module_child(self, "gate_up")) {
        *gate = mt_forward_child(self, "gate", x);
        *up = *gate ? mt_forward_child(self, "up", x) : NULL;
        return *up != NULL;
    }
    MT_AUTO mt_tensor *both = mt_forward_child(self, "gate_up", x);
    const int64_t f = both ? mt_shape(both)[mt_rank(both) - 1] / 2 : 0;
    bool ok = both && mt_split(both, -1, 2, (const int64_t[]){f, f}, half) == MT_OK;
    *gate = half[0], *up = half[1];
    return ok;
}

static mt_tensor *gated_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *gate, *h;
    const gated *user = mt_module_user(self);
    bool ok = gate_and_up(self, x, &gate, &h);
    if (ok && mt_module_child(self, "act")) {
        mt_set(&gate, mt_forward_child(self, "act", gate));
        mt_set(&h, mt_mul(gate, h));
    } else {
        mt_set(&h, user->swiglu(gate, h));
    }
    mt_release(gate);
    mt_set(&h, mt_forward_child(self, "down", h));
    return finish(self, h);
}

static bool add_gate_and_up(mt_module *m, mt_device *device, const mt_model_config *c)
{
    const int64_t d = c->hidden, f = c->ffn;
    if (c->joint_products) return mti_add_linear(m, "gate_up", device, c, d, 2 * f, MTI_INIT_STD);
    return mti_add_linear(m, "gate", device, c, d, f, MTI_INIT_STD) &&
           mti_add_linear(m, "up", device, c, d, f, MTI_INIT_STD);
}

static mt_module *gated_new(mt_device *device, const mt_model_config *c)
{
    gated *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    user->swiglu = mti_forms_of(&c->ops, c->forms).swiglu;
    mt_module *m = mt_module_new("mlp", gated_forward, user, mti_free);
    return mti_module_complete(
        m, m && add_gate_and_up(m, device, c) &&
               (c->mlp == MT_MLP_SWIGLU || mti_add_activation(m, "act", c, false)) &&
               mti_add_linear(m, "down", device, c, c->ffn, c->hidden, mti_residual_std(c)) &&
               add_end(m, c));
}

mt_module *mti_mlp_new(mt_device *device, const mt_model_config *c)
{
    if (c->mlp != MT_MLP_PLAIN) return gated_new(device, c);
    mt_module *m = mt_module_new("mlp", plain_forward, NULL, NULL);
    return mti_module_complete(
        m, m && mti_add_linear(m, "fc", device, c, c->hidden, c->ffn, MTI_INIT_STD) &&
               mti_add_activation(m, "act", c, c->inplace) &&
               mti_add_linear(m, "proj", device, c, c->ffn, c->hidden, mti_residual_std(c)) &&
               add_end(m, c));
}
