/* folder.c: a folder whose index, parts and adapters are any bytes is opened as a model, or refused
 * with a message. The input has one file after the other, each behind its length in 2 bytes. */
#include <stdio.h>
#include <stdlib.h>
#include "memtape/models/io.h"
#include "memtape/models/lora.h"
#include "memtape/models/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

enum { FILES = 5 };
static const char *const names[FILES] = {
    "model.safetensors.index.json", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "adapter_config.json", "adapter_model.safetensors"};
static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":4,\"intermediate_size\":3,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":5,"
    "\"max_position_embeddings\":8,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true}";
static char folder[] = "/tmp/memtape-fuzz-XXXXXX";

static void write_file(const char *name, const void *data, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) abort();
}

static void remove_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    remove(path);
}

static void clean_up(void)
{
    for (int i = 0; i < FILES; i++) remove_file(names[i]);
    remove_file("config.json");
    remove(folder);
}

static void set_up(void)
{
    if (!mkdtemp(folder)) abort();
    write_file("config.json", config, sizeof config - 1);
    atexit(clean_up);
}

static void write_files(const uint8_t *data, size_t n_bytes)
{
    for (int i = 0; i < FILES; i++) {
        remove_file(names[i]);
        if (n_bytes < 2) continue;
        size_t n = (size_t)data[0] << 8 | data[1];
        data += 2, n_bytes -= 2;
        if (n > n_bytes) n = n_bytes;
        write_file(names[i], data, n);
        data += n, n_bytes -= n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    mt_device *device = mt_device_open("cpu");
    mt_model_config c;
    char left[256];
    if (!device) abort();
    if (folder[sizeof folder - 2] == 'X') set_up();
    write_files(data, n_bytes);
    mt_clear_error();
    mt_module *m = mt_model_open(device, folder, NULL, left, sizeof left);
    if (!m && !*mt_last_error()) abort();
    mt_module_free(m);
    if (mt_model_config_from_hf(config, &c, NULL, 0) != MT_OK) abort();
    m = mt_model_new(device, &c);
    mt_clear_error();
    if (!m || (mt_lora_load(folder, m) != MT_OK && !*mt_last_error())) abort();
    mt_module_free(m);
    mt_device_release(device);
    return 0;
}
