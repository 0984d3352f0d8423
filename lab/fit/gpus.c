/* gpus.c: the GPUs that are known, and those of a file. */
#include <ctype.h>
#include <math.h>
#include <string.h>
#include "files/files.h"
#include "files/json_text.h"
#include "fit/search.h"

#define GIB(x) ((size_t)((x)*1073741824.0))

/* Rates are those of dense products of 16-bit floats with sums in f32. Bandwidths are of one
 * direction: half of what a datasheet gives for both. What a process can have of the memory is what
 * PyTorch reports as the total where a report was found (docs/fit.md), else the datasheet's GB as
 * 10^9 bytes. Host memory is a node's. */
#define GB           1000000000u
#define RATES(...)   __VA_ARGS__ /* FLOP/s, then bytes/s: memory, link, network, host */
#define NODE(n, mem) n, (size_t)(mem)*GB
/* What PyTorch takes for cuBLAS from Hopper on: aten/src/ATen/cuda/CublasHandlePool.cpp. */
#define MIB    ((size_t)1 << 20)
#define HOPPER .gemm_workspace = 32 * MIB
/* docs/fit.md, "Against published throughput" */
#define AS_A100              .least_reached = 0.65, .most_reached = 0.78
#define AS_H100              .least_reached = 0.5, .most_reached = 0.6
#define CONTEXT(mib, source) .context = (mib)*MIB, .context_source = source
static const mt_gpu known[] = {
    {"t4", GIB(14.56), RATES(65e12, 320e9, 16e9, 12.5e9, 16e9), NODE(8, 384), true,
     "NVIDIA T4 datasheet (PCIe 3; f16 only); node: AWS g4dn.metal"},
    {"v100", GIB(31.74), RATES(125e12, 900e9, 150e9, 12.5e9, 16e9), NODE(8, 512), true,
     "NVIDIA V100 datasheet (SXM2 32 GB; f16 only); node: DGX-1"},
    {"a10g", GIB(22.20), RATES(70e12, 600e9, 32e9, 12.5e9, 32e9), NODE(8, 768), false,
     "NVIDIA A10G datasheet (PCIe 4); node: AWS g5.48xlarge"},
    {"l4", GIB(22.03), RATES(121e12, 300e9, 32e9, 12.5e9, 32e9), NODE(8, 768), false,
     "NVIDIA L4 datasheet (PCIe 4); node: AWS g6.48xlarge"},
    {"rtx2080ti", GIB(10.76), RATES(53.8e12, 616e9, 16e9, 12.5e9, 16e9), NODE(8, 512), true,
     "NVIDIA Turing whitepaper (PCIe 3; f16 only); network: 100 Gb/s a GPU, and node, assumed"},
    {"rtx3060", GIB(11.76), RATES(25.5e12, 360e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX 3060's page: twice its 12.74 TFLOP/s (PCIe 4); network and node assumed"},
    {"rtx3070", GIB(7.78), RATES(40.6e12, 448e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ampere GA102 whitepaper (PCIe 4); network and node assumed"},
    {"rtx3090", GIB(23.70), RATES(71e12, 936e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ampere GA102 whitepaper (PCIe 4); node assumed",
     CONTEXT(256, "invoke-ai/InvokeAI issue 9413")},
    {"rtx4060", GIB(7.75), RATES(30.2e12, 272e9, 16e9, 12.5e9, 16e9), NODE(8, 512), false,
     "NVIDIA RTX 4060's page: twice its 15.11 TFLOP/s (PCIe 4 x8); network and node assumed"},
    {"rtx4080", 16 * (size_t)GB, RATES(97.5e12, 716.8e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ada whitepaper (PCIe 4); network: 100 Gb/s a GPU, and node, assumed"},
    {"rtx4090", GIB(23.64), RATES(165.2e12, 1008e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ada whitepaper (PCIe 4); network: 100 Gb/s a GPU, and node, assumed"},
    {"rtx5090", GIB(31.37), RATES(209.5e12, 1792e9, 64e9, 12.5e9, 64e9), NODE(8, 512), false,
     "NVIDIA RTX Blackwell whitepaper (PCIe 5); network: 100 Gb/s a GPU, and node, assumed",
     HOPPER},
    {"a6000", 48 * (size_t)GB, RATES(154.8e12, 768e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX A6000 datasheet (PCIe 4); network: 100 Gb/s a GPU, and node, assumed"},
    {"l40s", GIB(44.42), RATES(362.05e12, 864e9, 32e9, 12.5e9, 32e9), NODE(8, 1000), false,
     "NVIDIA L40S datasheet (PCIe 4); network: 100 Gb/s a GPU, and node, assumed",
     CONTEXT(426, "unslothai/unsloth-zoo pull 1053 (Ada)")},
    {"a100-40", GIB(39.50), RATES(312e12, 1555e9, 300e9, 25e9, 32e9), NODE(8, 1000), false,
     "NVIDIA A100 datasheet (SXM 40 GB); network: DGX A100, 200 Gb/s a GPU", AS_A100},
    {"a100-80", GIB(79.25), RATES(312e12, 2039e9, 300e9, 25e9, 32e9), NODE(8, 2000), false,
     "NVIDIA A100 datasheet (SXM 80 GB); network: DGX A100, 200 Gb/s a GPU", AS_A100},
    {"h100-pcie", 80 * (size_t)GB, RATES(756.5e12, 2000e9, 64e9, 12.5e9, 64e9), NODE(8, 1000),
     false, "NVIDIA H100 datasheet (PCIe 5); network: 100 Gb/s a GPU, and node, assumed", HOPPER},
    {"h100", GIB(79.11), RATES(989.4e12, 3350e9, 450e9, 50e9, 64e9), NODE(8, 2000), false,
     "NVIDIA H100 datasheet (SXM); network: DGX H100, 400 Gb/s a GPU", HOPPER, AS_H100},
    {"h200", 141 * (size_t)GB, RATES(989.4e12, 4800e9, 450e9, 50e9, 64e9), NODE(8, 2000), false,
     "NVIDIA H200 datasheet (SXM); network: DGX H200, 400 Gb/s a GPU", HOPPER, AS_H100},
    {"b200", 180 * (size_t)GB, RATES(2250e12, 8000e9, 900e9, 50e9, 64e9), NODE(8, 2000), false,
     "NVIDIA HGX B200 datasheet; network: DGX B200, 400 Gb/s a GPU", HOPPER},
    {"b300", 270 * (size_t)GB, RATES(2250e12, 8000e9, 900e9, 100e9, 64e9), NODE(8, 2000), false,
     "NVIDIA HGX B300 datasheet (2.1 TB of 8); network: DGX B300, 800 Gb/s a GPU", HOPPER},
    {"gb200", 186 * (size_t)GB, RATES(2500e12, 8000e9, 900e9, 50e9, 450e9), NODE(72, 17280), false,
     "NVIDIA GB200 NVL72 datasheet; host: NVLink-C2C, half of 900 GB/s", HOPPER},
    {"mi300x", 192 * (size_t)GB, RATES(1307.4e12, 5300e9, 448e9, 50e9, 64e9), NODE(8, 2000), false,
     "AMD Instinct MI300X datasheet; network: 400 Gb/s a GPU, and node, assumed"},
};
#define N_KNOWN (sizeof known / sizeof *known)

const mt_gpu *mt_gpu_at(size_t i) { return i < N_KNOWN ? &known[i] : NULL; }

/* Other names of a few. */
static const struct {
    const char *name, *known;
} others[] = {{"h100-80", "h100"},         {"h100-sxm", "h100"},
              {"h100-sxm5", "h100"},       {"a100-sxm-80", "a100-80"},
              {"a100-sxm4-80", "a100-80"}, {"a100-sxm4-40", "a100-40"},
              {"v100-32", "v100"},         {"l4-24", "l4"}};

/* "NVIDIA GeForce RTX 4090", "4090", "A100-80GB": the name as the table has it, if it is one. */
static const char *known_as(const char *name, char text[64])
{
    static const char *const dropped[] = {"nvidia", "geforce", "tesla", "amd", "instinct", "gb"};
    mti_format(text, 64, "%s", name);
    for (char *c = text; *c; c++) *c = (char)tolower((unsigned char)*c);
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++) {
        char *at = strstr(text, dropped[i]);
        const size_t n = strlen(dropped[i]);
        const bool unit = !strcmp(dropped[i], "gb"); /* at the end: gb200 begins so */
        if (at && (!unit || (at > text && !at[n]))) memmove(at, at + n, strlen(at + n) + 1);
    }
    for (size_t i = 0; i < N_KNOWN; i++)
        if (!strncmp(known[i].name, "rtx", 3) && mti_same_word(known[i].name + 3, text))
            return known[i].name;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (mti_same_word(others[i].name, text)) return others[i].known;
    return text;
}

mt_status mt_gpu_find(const char *name, mt_gpu *out)
{
    const char *names[N_KNOWN];
    char text[64];
    if (!name || !out)
        return mti_fail(MT_ERR_ARGUMENT, "gpu_find: the %s is NULL", name ? "result" : "name");
    for (size_t i = 0; i < N_KNOWN; i++) names[i] = known[i].name;
    int which = mti_find_word(names, (int)N_KNOWN, known_as(name, text));
    if (which < 0) which = mti_choose("gpu", names, (int)N_KNOWN, text);
    if (which < 0) return mt_last_status();
    *out = known[which];
    return MT_OK;
}

void mti_gpu_reached(const mt_gpu *g, double *least, double *most)
{
    *least = g->least_reached > 0 ? g->least_reached : 0.5;
    *most = g->most_reached > 0 ? g->most_reached : 0.78;
}

size_t mti_gpu_host_memory(const mt_gpu *g, int64_t gpus)
{
    size_t node = (size_t)g->in_a_node, n = (size_t)gpus < node ? (size_t)gpus : node;
    return g->host_memory / node * n;
}

/* ---- a file ---- */

#define MOST_BYTES ((size_t)1 << 20)

static const struct rate {
    const char *key;
    size_t at;
} rates[] = {{"flops", offsetof(mt_gpu, flops)},
             {"bandwidth", offsetof(mt_gpu, bandwidth)},
             {"link", offsetof(mt_gpu, link)},
             {"network", offsetof(mt_gpu, network)},
             {"host", offsetof(mt_gpu, host)}};
#define N_RATES (sizeof rates / sizeof *rates)

static bool wrong(const char *path, const char *name, const char *key, const char *needed)
{
    return mti_fail_bool(MT_ERR_FORMAT, "%s: \"%.40s\": \"%.40s\" is not %s", path, name, key,
                         needed);
}

static bool read_rate(const char *path, mt_gpu *g, const struct rate *r, const json_t *value)
{
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x > 0) || !isfinite(x))
        return wrong(path, g->name, r->key, "a number above 0");
    *(double *)((char *)g + r->at) = x;
    return true;
}

static bool read_memory(const char *path, const mt_gpu *g, const char *key, const json_t *value,
                        size_t *out)
{
    uint64_t n = 0;
    bool ok = json_is_integer(value)
                  ? json_integer_value(value) > 0
                  : json_is_string(value) && mti_bytes_parse(json_string_value(value), &n) && n > 0;
    if (json_is_integer(value)) n = (uint64_t)json_integer_value(value);
    *out = (size_t)n;
    return ok || wrong(path, g->name, key, "bytes above 0, such as \"80GiB\" or 80000000000");
}

static bool read_count(const char *path, mt_gpu *g, const json_t *value)
{
    g->in_a_node = json_integer_value(value);
    return (json_is_integer(value) && g->in_a_node >= 1 && g->in_a_node <= 1 << 20) ||
           wrong(path, g->name, "in_a_node", "a whole number from 1 on");
}

static bool read_field(const char *path, mt_gpu *g, const char *key, const json_t *value)
{
    for (size_t i = 0; i < N_RATES; i++)
        if (!strcmp(rates[i].key, key)) return read_rate(path, g, &rates[i], value);
    if (!strcmp(key, "memory")) return read_memory(path, g, key, value, &g->memory);
    if (!strcmp(key, "host_memory")) return read_memory(path, g, key, value, &g->host_memory);
    if (!strcmp(key, "gemm_workspace")) return read_memory(path, g, key, value, &g->gemm_workspace);
    if (!strcmp(key, "context")) {
        snprintf(g->context_source, sizeof g->context_source, "%.*s",
                 (int)sizeof g->context_source - 1, path);
        return read_memory(path, g, key, value, &g->context);
    }
    if (!strcmp(key, "f16_only")) {
        g->f16_only = json_is_true(value);
        return json_is_boolean(value) || wrong(path, g->name, key, "true or false");
    }
    if (!strcmp(key, "in_a_node")) return read_count(path, g, value);
    if (strcmp(key, "source") != 0)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: \"%.40s\": unknown \"%.40s\"; need memory, flops, bandwidth, "
                             "link, network, host, in_a_node, host_memory, context, "
                             "gemm_workspace, f16_only or source",
                             path, g->name, key);
    if (!json_is_string(value)) return wrong(path, g->name, key, "a string");
    snprintf(g->source, sizeof g->source, "%s", json_string_value(value));
    mti_make_printable(g->source);
    return true;
}

static bool is_complete(const char *path, const mt_gpu *g)
{
    const char *missing = !g->memory ? "memory" : !g->in_a_node ? "in_a_node" : NULL;
    for (size_t i = 0; i < N_RATES && !missing; i++)
        if (!(*(const double *)((const char *)g + rates[i].at) > 0)) missing = rates[i].key;
    return !missing || mti_fail_bool(MT_ERR_FORMAT,
                                     "%s: \"%.40s\" has no \"%s\", and no known GPU has that name",
                                     path, g->name, missing);
}

static bool read_gpu(const char *path, const char *name, json_t *fields, mt_gpu *out)
{
    const char *key;
    json_t *value;
    mt_gpu g = {.source = "the file"};
    for (size_t i = 0; i < N_KNOWN; i++)
        if (!strcmp(known[i].name, name)) g = known[i];
    if (strlen(name) >= sizeof g.name)
        return mti_fail_bool(MT_ERR_FORMAT, "%s: the name \"%.60s\" is longer than %zu bytes", path,
                             name, sizeof g.name - 1);
    snprintf(g.name, sizeof g.name, "%s", name);
    if (!json_is_object(fields))
        return mti_fail_bool(MT_ERR_FORMAT, "%s: \"%.40s\" is not an object", path, name);
    json_object_foreach(fields, key, value) if (!read_field(path, &g, key, value)) return false;
    if (!is_complete(path, &g)) return false;
    *out = g;
    return true;
}

mt_status mt_gpu_find_in(const char *path, const char *name, mt_gpu *out)
{
    if (!path || !name || !out)
        return mti_fail(MT_ERR_ARGUMENT, "gpu_find_in: the %s is NULL",
                        !path  ? "path"
                        : name ? "result"
                               : "name");
    json_t *root = mti_json_file(path, MOST_BYTES);
    bool ok = root != NULL;
    if (ok && !json_is_object(root))
        ok = mti_fail_bool(MT_ERR_FORMAT, "%s: not an object of GPUs by name", path);
    json_t *fields = ok ? json_object_get(root, name) : NULL;
    if (ok) ok = fields ? read_gpu(path, name, fields, out) : mt_gpu_find(name, out) == MT_OK;
    json_decref(root);
    return ok ? MT_OK : mt_last_status();
}
