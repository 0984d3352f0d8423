/* layers.c: the modules that models are made of: one op each, with its parameters. */
#include <math.h>
#include "nn/model.h"
#include "memtape/ops.h"

/* A module whose user data is a number. */
static mt_module *with_number(const char *kind, mt_forward_fn *forward, double value)
{
    double *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = value;
    return mt_module_new(kind, forward, user, mti_free);
}

static double number(const mt_module *self) { return *(const double *)mt_module_user(self); }

/* ---- linear ---- */

static mt_tensor *linear_forward(mt_module *self, mt_tensor *x)
{
    return mt_linear(x, mt_module_param(self, "weight"), mt_module_param(self, "bias"));
}

mt_module *mti_linear_of(mt_tensor *weight)
{
    mt_module *m = weight ? mt_module_new("linear", linear_forward, NULL, NULL) : NULL;
    if (!m) mt_release(weight);
    return mti_module_complete(m, m && mt_module_add_param(m, "weight", weight));
}

mt_module *mt_linear_new(mt_device *device, mt_dtype dtype, int64_t in, int64_t out, bool bias,
                         double std)
{
    if (in < 1 || out < 1)
        return mti_fail_null(MT_ERR_ARGUMENT, "linear: %lld -> %lld; both must be at least 1",
                             (long long)in, (long long)out);
    if (std == 0) std = 1 / sqrt((double)in);
    mt_module *m = mti_linear_of(mt_normal(device, dtype, MT_SHAPE(out, in), 0, std));
    return mti_module_complete(
        m, m && (!bias || mt_module_add_param(m, "bias", mt_zeros(device, dtype, MT_SHAPE(out)))));
}

/* ---- a linear in 8 or 4 bits ---- */

static mt_tensor *low_forward(mt_module *self, mt_tensor *x)
{
    mti_linear_low *low = mt_module_user(self);
    low->training = mt_module_training(self);
    return mti_linear_low_run(low, x, mt_module_param(self, "weight"),
                              mt_module_param(self, "bias"));
}

static void free_low(void *user)
{
    const mti_linear_low *low = user;
    for (int i = 0; i < 2; i++) mt_release(low->times[i]);
    mti_free(user);
}

bool mti_is_linear_low(const mt_module *m) { return mti_module_runs(m, low_forward); }

static bool add_history(mt_module *m, mti_linear_low *low, mt_device *device)
{
    static const char *const names[] = {"largest_forward", "largest_backward"};
    static const int64_t widths[] = {MTI_LOW_FORWARD, MTI_LOW_BACKWARD};
    for (int i = 0; mti_linear_remembers(low->form) && i < 2; i++) {
        mt_tensor *zeros = mt_zeros(device, MT_F32, MT_SHAPE(MTI_LOW_HISTORY, widths[i]));
        low->history[i] = mti_module_add_state(m, names[i], zeros);
        low->times[i] = low->history[i] ? mt_full(device, MT_F32, 1, &widths[i], 1) : NULL;
        if (!low->times[i]) return false;
    }
    return true;
}

static mt_module *linear_low_new(mt_device *device, const mt_model_config *c, int64_t in,
                                 int64_t out, double std)
{
    mti_linear_low *low = mti_calloc(1, sizeof *low);
    if (!low) return NULL;
    low->form = c->ops.linear;
    mt_module *m = mt_module_new("linear", low_forward, low, free_low);
    bool ok =
        m && add_history(m, low, device) &&
        mt_module_add_param(m, "weight", mt_normal(device, c->dtype, MT_SHAPE(out, in), 0, std)) &&
        (c->no_bias || mt_module_add_param(m, "bias", mt_zeros(device, c->dtype, MT_SHAPE(out))));
    return mti_module_complete(m, ok);
}

/* ---- layer norm ---- */

static mt_tensor *layer_norm_forward(mt_module *self, mt_tensor *x)
{
    return mt_layer_norm(x, mt_module_param(self, "weight"), mt_module_param(self, "bias"),
                         number(self));
}

mt_module *mt_layer_norm_new(mt_device *device, mt_dtype dtype, int64_t n, bool bias, double eps)
{
    if (n < 1 || !(eps >= 0))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "layer_norm: n %lld, eps %g; n must be at least 1, eps not negative",
                             (long long)n, eps);
    mt_module *m = with_number("layer_norm", layer_norm_forward, eps > 0 ? eps : 1e-5);
    return mti_module_complete(
        m, m && mt_module_add_param(m, "weight", mt_full(device, dtype, MT_SHAPE(n), 1)) &&
               (!bias || mt_module_add_param(m, "bias", mt_zeros(device, dtype, MT_SHAPE(n)))));
}

/* ---- batch norm ---- */

typedef struct batch_norm {
    double momentum, eps;
} batch_norm;

static mt_tensor *batch_norm_forward(mt_module *self, mt_tensor *x)
{
    const batch_norm *user = mt_module_user(self);
    return mt_batch_norm(x, mt_module_param(self, "weight"), mt_module_param(self, "bias"),
                         mt_module_param(self, "running_mean"),
                         mt_module_param(self, "running_var"), mt_module_training(self),
                         user->momentum, user->eps);
}

/* A tensor of the module that is no parameter to train. */
static bool add_statistic(mt_module *m, const char *name, mt_tensor *value)
{
    mt_tensor *t = mt_module_add_param(m, name, value);
    return t && mt_set_requires_grad(t, false) == MT_OK;
}

mt_module *mt_batch_norm_new(mt_device *device, mt_dtype dtype, int64_t n, double momentum,
                             double eps)
{
    if (n < 1 || !(eps >= 0) || !(momentum >= 0 && momentum <= 1))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "batch_norm: n %lld, momentum %g, eps %g; n must be at least 1, "
                             "momentum from 0 to 1, eps not negative",
                             (long long)n, momentum, eps);
    batch_norm *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (batch_norm){momentum > 0 ? momentum : 0.1, eps > 0 ? eps : 1e-5};
    mt_dtype stats = dtype == MT_F64 ? MT_F64 : MT_F32;
    mt_module *m = mt_module_new("batch_norm", batch_norm_forward, user, mti_free);
    return mti_module_complete(
        m, m && mt_module_add_param(m, "weight", mt_full(device, dtype, MT_SHAPE(n), 1)) &&
               mt_module_add_param(m, "bias", mt_zeros(device, dtype, MT_SHAPE(n))) &&
               add_statistic(m, "running_mean", mt_zeros(device, stats, MT_SHAPE(n))) &&
               add_statistic(m, "running_var", mt_full(device, stats, MT_SHAPE(n), 1)));
}

/* ---- rms norm ---- */

typedef struct rms_norm {
    mti_rms_norm_fn *fn;
    double eps;
} rms_norm;

static mt_tensor *rms_norm_forward(mt_module *self, mt_tensor *x)
{
    const rms_norm *user = mt_module_user(self);
    return user->fn(x, mt_module_param(self, "weight"), user->eps);
}

/* weight: what it begins with. */
static mt_module *rms_norm_new(mt_device *device, mt_dtype dtype, int64_t n, rms_norm norm,
                               double weight)
{
    rms_norm *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = norm;
    mt_module *m = mt_module_new("rms_norm", rms_norm_forward, user, mti_free);
    return mti_module_complete(
        m, m && mt_module_add_param(m, "weight", mt_full(device, dtype, MT_SHAPE(n), weight)));
}

mt_module *mt_rms_norm_new(mt_device *device, mt_dtype dtype, int64_t n, double eps)
{
    if (n < 1 || !(eps >= 0))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "rms_norm: n %lld, eps %g; n must be at least 1, eps not negative",
                             (long long)n, eps);
    return rms_norm_new(device, dtype, n, (rms_norm){mt_rms_norm, eps > 0 ? eps : 1e-6}, 1);
}

/* ---- embedding ---- */

static mt_tensor *embedding_forward(mt_module *self, mt_tensor *index)
{
    return mt_embedding(index, mt_module_param(self, "weight"), mt_module_user(self));
}

/* options: taken over; NULL for all zero. */
static mt_module *embedding_new(mt_device *device, mt_dtype dtype, int64_t rows, int64_t n,
                                double std, mt_embedding_options *options)
{
    if (rows < 1 || n < 1) {
        mti_free(options);
        return mti_fail_null(MT_ERR_ARGUMENT, "embedding: %lld rows of %lld; need at least 1 of 1",
                             (long long)rows, (long long)n);
    }
    mt_module *m = mt_module_new("embedding", embedding_forward, options, mti_free);
    return mti_module_complete(
        m,
        m && mt_module_add_param(
                 m, "weight", mt_normal(device, dtype, MT_SHAPE(rows, n), 0, std == 0 ? 1 : std)));
}

mt_module *mt_embedding_new(mt_device *device, mt_dtype dtype, int64_t rows, int64_t n, double std)
{
    return embedding_new(device, dtype, rows, n, std, NULL);
}

/* ---- activation ---- */

#define LEAKY_SLOPE 0.01

typedef struct activation {
    mt_act act;
    bool inplace;
    mti_activation_fn *gelu_tanh;
} activation;

static mt_tensor *activation_forward(mt_module *self, mt_tensor *x)
{
    const activation *a = mt_module_user(self);
    if (a->inplace) {
        mt_status status =
            a->act == MT_ACT_RELU ? mt_relu_inplace(x) : mt_leaky_relu_inplace(x, LEAKY_SLOPE);
        return status == MT_OK ? mt_retain(x) : NULL;
    }
    switch (a->act) {
    case MT_ACT_RELU: return mt_relu(x);
    case MT_ACT_LEAKY_RELU: return mt_leaky_relu(x, LEAKY_SLOPE);
    case MT_ACT_GELU: return mt_gelu(x);
    case MT_ACT_GELU_TANH: return a->gelu_tanh(x);
    case MT_ACT_SILU: return mt_silu(x);
    case MT_ACT_TANH: return mt_tanh(x);
    case MT_ACT_SIGMOID: return mt_sigmoid(x);
    case MT_ACT_COUNT: break;
    }
    return mti_fail_null(MT_ERR_INTERNAL, "activation: %d is unknown", (int)a->act);
}

static mt_module *activation_new(mt_act act, bool inplace, mti_activation_fn *gelu_tanh)
{
    if ((unsigned)act >= MT_ACT_COUNT)
        return mti_fail_null(MT_ERR_ARGUMENT, "activation: %d is unknown", (int)act);
    if (inplace && act != MT_ACT_RELU && act != MT_ACT_LEAKY_RELU)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "activation: %s cannot run in place; relu and leaky_relu can",
                             mt_act_name(act));
    activation *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (activation){act, inplace, gelu_tanh};
    return mt_module_new(mt_act_name(act), activation_forward, user, mti_free);
}

bool mti_acts_in_place(const mt_module *m)
{
    const activation *a = mti_module_runs(m, activation_forward) ? mt_module_user(m) : NULL;
    return a && a->inplace;
}

mt_module *mt_activation_new(mt_act act, bool inplace)
{
    return activation_new(act, inplace, mt_gelu_tanh);
}

/* ---- dropout ---- */

static mt_tensor *dropout_forward(mt_module *self, mt_tensor *x)
{
    return mt_module_training(self) ? mt_dropout(x, number(self)) : mt_retain(x);
}

mt_module *mt_dropout_new(double p)
{
    if (!(p >= 0 && p < 1))
        return mti_fail_null(MT_ERR_ARGUMENT, "dropout: p is %g; need 0 <= p < 1", p);
    return with_number("dropout", dropout_forward, p);
}

/* ---- as children of models ---- */

mt_module *mti_linear_new(mt_device *device, const mt_model_config *c, int64_t in, int64_t out,
                          double std)
{
    return c->ops.linear ? linear_low_new(device, c, in, out, std)
                         : mt_linear_new(device, c->dtype, in, out, !c->no_bias, std);
}

mt_module *mti_add_linear(mt_module *m, const char *name, mt_device *device,
                          const mt_model_config *c, int64_t in, int64_t out, double std)
{
    return mt_module_add_child(m, name, mti_linear_new(device, c, in, out, std));
}

static mt_module *norm_new(mt_device *device, const mt_model_config *c, int64_t n)
{
    const mti_forms forms = mti_forms_of(&c->ops, c->forms);
    const double eps = c->norm_eps;
    switch (c->norm_kind) {
    case MT_NORM_RMS: return rms_norm_new(device, c->dtype, n, (rms_norm){forms.rms_norm, eps}, 1);
    case MT_NORM_RMS_ONE: /* by 1 + weight */
        return rms_norm_new(device, c->dtype, n, (rms_norm){forms.rms_norm_one, eps}, 0);
    default: return mt_layer_norm_new(device, c->dtype, n, !c->no_bias, eps);
    }
}

mt_module *mti_add_norm_of(mt_module *m, const char *name, mt_device *device,
                           const mt_model_config *c, int64_t n)
{
    return mt_module_add_child(m, name, norm_new(device, c, n));
}

mt_module *mti_add_norm(mt_module *m, const char *name, mt_device *device, const mt_model_config *c)
{
    return mti_add_norm_of(m, name, device, c, c->hidden);
}

mt_module *mti_add_activation(mt_module *m, const char *name, const mt_model_config *c,
                              bool inplace)
{
    return mt_module_add_child(
        m, name, activation_new(c->act, inplace, mti_forms_of(&c->ops, c->forms).gelu_tanh));
}

mt_module *mti_add_embedding(mt_module *m, const char *name, mt_device *device,
                             const mt_model_config *c, int64_t rows)
{
    return mt_module_add_child(m, name,
                               mt_embedding_new(device, c->dtype, rows, c->hidden, MTI_INIT_STD));
}

mt_module *mti_add_tokens(mt_module *m, mt_device *device, const mt_model_config *c)
{
    mt_embedding_options *options = c->padded ? mti_malloc(sizeof *options) : NULL;
    if (c->padded && !options) return NULL;
    if (options) *options = (mt_embedding_options){.padded = true, .padding = c->pad_token};
    return mt_module_add_child(
        m, "wte", embedding_new(device, c->dtype, c->vocab, c->hidden, MTI_INIT_STD, options));
}

mt_module *mti_add_dropout(mt_module *m, const mt_model_config *c)
{
    return mt_module_add_child(m, "drop", mt_dropout_new(c->dropout));
}

double mti_inner_dropout(const mt_model_config *c) { return c->branch_dropout ? 0 : c->dropout; }

mt_module *mti_add_embedding_dropout(mt_module *m, const mt_model_config *c)
{
    return mt_module_add_child(m, "drop", mt_dropout_new(mti_inner_dropout(c)));
}

double mti_residual_std(const mt_model_config *c)
{
    return MTI_INIT_STD / sqrt(2 * (double)c->layers);
}
