/* generate.c: `memtape generate`: continues a prompt with a trained model. */
#include "cli/run_file.h"
#include "cli/verbs.h"
#include "report/report.h"

/* user: whether this is a terminal, which control characters must not reach. */
static bool write_byte(void *user, unsigned char byte)
{
    const bool *terminal = user;
    bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    fputc(*terminal && control ? '?' : byte, stdout);
    return fflush(stdout) == 0;
}

static mt_module *load_model(const mti_options *o, mt_device *device, mt_model_config *config)
{
    mt_safetensors *file = mti_run_open(o->model_file);
    mt_module *model = NULL;
    if (file && mti_run_read_config(file, config)) model = mt_model_new(device, config);
    if (model && mt_safetensors_load_module(file, model) != MT_OK) {
        mt_module_free(model);
        model = NULL;
    }
    mt_safetensors_free(file);
    return model;
}

int mti_generate(const mti_options *o)
{
    mt_model_config config = {0};
    mt_device *device = mti_open_device(o);
    mt_module *model = device ? load_model(o, device, &config) : NULL;
    const mti_sampling how = {
        .temperature = o->temperature, .top_k = o->top_k, .seed = (uint64_t)o->seed};
    bool terminal = mti_style_of(stdout).live;
    if (model && !o->quiet) fputs(o->prompt, stdout);
    bool ok = model && mti_sample(model, device, config.context, o->prompt, o->tokens, &how,
                                  write_byte, &terminal);
    if (ok) fputc('\n', stdout);
    int status = ok ? MTI_EXIT_OK : mti_report_failure(o);
    mt_module_free(model);
    mt_device_release(device);
    return status;
}
