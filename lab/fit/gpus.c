/* gpus.c: the GPUs that are known, and those of a file. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
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
    /* GeForce, then those of workstations, then those of data centres */
    {"gtx1080ti", 11 * (size_t)GB, RATES(11.34e12, 484.4e9, 16e9, 12.5e9, 16e9), NODE(8, 512), true,
     "NVIDIA's page: the f32 rate, f16 has no tensor cores (PCIe 3); network and node assumed"},
    {"rtx2080ti", GIB(10.76), RATES(53.8e12, 616e9, 16e9, 12.5e9, 16e9), NODE(8, 512), true,
     "NVIDIA Turing whitepaper (PCIe 3; f16 only); network: 100 Gb/s a GPU, and node, assumed"},
    {"rtx3060", GIB(11.76), RATES(25.5e12, 360e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX 3060's page: twice its 12.74 TFLOP/s (PCIe 4); network and node assumed"},
    {"rtx3070", GIB(7.78), RATES(40.6e12, 448e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ampere GA102 whitepaper (PCIe 4); network and node assumed"},
    {"rtx3080", GIB(9.78), RATES(59.5e12, 760e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ampere GA102 whitepaper (10 GB; PCIe 4); network and node assumed"},
    {"rtx3080ti", 12 * (size_t)GB, RATES(68.2e12, 912e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX 3080 Ti's page: twice its 34.1 TFLOP/s (PCIe 4); network and node assumed"},
    {"rtx3090", GIB(23.70), RATES(71e12, 936e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ampere GA102 whitepaper (PCIe 4); node assumed",
     CONTEXT(256, "invoke-ai/InvokeAI issue 9413")},
    {"rtx3090ti", 24 * (size_t)GB, RATES(80e12, 1008e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ada whitepaper, beside the 4090 (PCIe 4); network and node assumed"},
    {"rtx4060", GIB(7.75), RATES(30.2e12, 272e9, 16e9, 12.5e9, 16e9), NODE(8, 512), false,
     "NVIDIA RTX 4060's page: twice its 15.11 TFLOP/s (PCIe 4 x8); network and node assumed"},
    {"rtx4060ti", GIB(15.55), RATES(44.1e12, 288e9, 16e9, 12.5e9, 16e9), NODE(8, 512), false,
     "NVIDIA RTX 4060 Ti's page (16 GB; PCIe 4 x8): twice 22.06 TFLOP/s; network and node assumed"},
    {"rtx4070", 12 * (size_t)GB, RATES(58.3e12, 504.2e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX 4070's page: twice its 29.15 TFLOP/s (PCIe 4); network and node assumed"},
    {"rtx4070ti", GIB(11.70), RATES(80.2e12, 504.2e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX 4070 Ti's page: twice its 40.09 TFLOP/s (PCIe 4); network and node assumed"},
    {"rtx4080", 16 * (size_t)GB, RATES(97.5e12, 716.8e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ada whitepaper (PCIe 4); network: 100 Gb/s a GPU, and node, assumed"},
    {"rtx4080s", 16 * (size_t)GB, RATES(104.4e12, 736.3e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX 4080 SUPER's page: twice 52.22 TFLOP/s (PCIe 4); network and node assumed"},
    {"rtx4090", GIB(23.64), RATES(165.2e12, 1008e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA Ada whitepaper (PCIe 4); network: 100 Gb/s a GPU, and node, assumed"},
    {"rtx5070", 12 * (size_t)GB, RATES(61.7e12, 672e9, 64e9, 12.5e9, 64e9), NODE(8, 512), false,
     "NVIDIA RTX Blackwell whitepaper (PCIe 5); network and node assumed", HOPPER},
    {"rtx5080", GIB(15.48), RATES(112.6e12, 960e9, 64e9, 12.5e9, 64e9), NODE(8, 512), false,
     "NVIDIA RTX Blackwell whitepaper (PCIe 5); network and node assumed", HOPPER},
    {"rtx5090", GIB(31.37), RATES(209.5e12, 1792e9, 64e9, 12.5e9, 64e9), NODE(8, 512), false,
     "NVIDIA RTX Blackwell whitepaper (PCIe 5); network: 100 Gb/s a GPU, and node, assumed",
     HOPPER},
    {"a4000", GIB(15.61), RATES(76.7e12, 448e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX A4000 datasheet (PCIe 4); network and node assumed"},
    {"a5000", GIB(23.68), RATES(111.1e12, 768e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX A5000 datasheet (PCIe 4); network and node assumed"},
    {"a6000", GIB(47.53), RATES(154.8e12, 768e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX A6000 datasheet (PCIe 4); network: 100 Gb/s a GPU, and node, assumed"},
    {"rtx6000-ada", GIB(44.43), RATES(364.2e12, 960e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA RTX 6000 Ada datasheet (PCIe 4); network and node assumed"},
    {"p100", GIB(15.90), RATES(9.3e12, 732e9, 16e9, 12.5e9, 16e9), NODE(8, 512), true,
     "NVIDIA P100 datasheet (PCIe 16 GB): the f32 rate, for sums in f32; network and node assumed"},
    {"v100-16", GIB(15.78), RATES(125e12, 900e9, 150e9, 12.5e9, 16e9), NODE(8, 512), true,
     "NVIDIA V100 datasheet (SXM2 16 GB; f16 only); node: DGX-1"},
    {"v100", GIB(31.74), RATES(125e12, 900e9, 150e9, 12.5e9, 16e9), NODE(8, 512), true,
     "NVIDIA V100 datasheet (SXM2 32 GB; f16 only); node: DGX-1"},
    {"t4", GIB(14.56), RATES(65e12, 320e9, 16e9, 12.5e9, 16e9), NODE(8, 384), true,
     "NVIDIA T4 datasheet (PCIe 3; f16 only); node: AWS g4dn.metal"},
    {"a10", GIB(22.20), RATES(125e12, 600e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA A10 datasheet (PCIe 4); network and node assumed"},
    {"a10g", GIB(22.20), RATES(70e12, 600e9, 32e9, 12.5e9, 32e9), NODE(8, 768), false,
     "NVIDIA A10G datasheet (PCIe 4); node: AWS g5.48xlarge"},
    {"a30", GIB(23.53), RATES(165e12, 933e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA A30 datasheet (PCIe 4); network and node assumed"},
    {"a40", GIB(44.35), RATES(149.7e12, 696e9, 32e9, 12.5e9, 32e9), NODE(8, 512), false,
     "NVIDIA A40 datasheet (PCIe 4); network and node assumed"},
    {"l4", GIB(22.03), RATES(121e12, 300e9, 32e9, 12.5e9, 32e9), NODE(8, 768), false,
     "NVIDIA L4 datasheet (PCIe 4); node: AWS g6.48xlarge"},
    {"l40", GIB(44.40), RATES(181.05e12, 864e9, 32e9, 12.5e9, 32e9), NODE(8, 1000), false,
     "NVIDIA L40 datasheet (PCIe 4); network and node assumed"},
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
    {"h200", GIB(139.80), RATES(989.4e12, 4800e9, 450e9, 50e9, 64e9), NODE(8, 2000), false,
     "NVIDIA H200 datasheet (SXM); network: DGX H200, 400 Gb/s a GPU", HOPPER, AS_H100},
    {"b200", GIB(178.35), RATES(2250e12, 8000e9, 900e9, 50e9, 64e9), NODE(8, 2000), false,
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

/* Other names of a few; of what has two sizes, that which is taken and the other. */
static const struct {
    const char *name, *known, *other;
} others[] = {
    {"4080super", "rtx4080s", NULL}, {"a100", "a100-80", "a100-40"}, {"v100", "v100", "v100-16"}};

/* What a vendor's tools write beside the kind; the form of a card whose kind has one. */
static const char *const makers[] = {"nvidia", "geforce",  "tesla",      "quadro",
                                     "amd",    "instinct", "generation", "vram"};
static const char *const forms[] = {"sxm5", "sxm4", "sxm2", "sxm", "pcie", "hbm3"};

static void drop(char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *at = strstr(text, words[i]);
        if (at) memmove(at, at + strlen(words[i]), strlen(at + strlen(words[i])) + 1);
    }
}

#define SEPARATORS "-_. /"

/* "a100-80gb", "a100 80 g": without the unit; a10g has none, and gb200 no number before it. */
static void drop_unit(char *text)
{
    static const char *const units[] = {"gib", "gb", "g"};
    for (char *at = text; *at; at++) {
        if (at == text || !strchr(SEPARATORS, at[-1]) || !isdigit((unsigned char)*at)) continue;
        char *end = at + strspn(at, "0123456789");
        char *unit = end + strspn(end, " ");
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            const char *rest = unit + strlen(units[i]);
            if (strncmp(unit, units[i], strlen(units[i])) != 0) continue;
            if (!*rest || strchr(SEPARATORS, *rest)) memmove(end, rest, strlen(rest) + 1);
            break;
        }
    }
}

/* Past "rtx" and "gtx", which people leave out or write for a card that has none: "RTX A6000". */
static const char *series_left_out(const char *name)
{
    return !strncmp(name, "rtx", 3) || !strncmp(name, "gtx", 3) ? name + 3 : name;
}

static const mt_gpu *same_name(const char *text)
{
    text += strspn(text, SEPARATORS);
    for (size_t i = 0; i < N_KNOWN; i++)
        if (mti_same_word(series_left_out(known[i].name), series_left_out(text))) return &known[i];
    return NULL;
}

/* With the memory in its name, "RTX 3090 24GB": the kind, if it has so much. */
static const mt_gpu *named_with_size(const char *text)
{
    char name[64];
    mti_format(name, sizeof name, "%s", text);
    char *end = name + strlen(name);
    while (end > name && strchr(SEPARATORS, end[-1])) *--end = 0;
    char *digits = end;
    while (digits > name && isdigit((unsigned char)digits[-1])) digits--;
    const double sold = (double)strtol(digits, NULL, 10) * 1073741824.0;
    if (digits == name || digits == end || !strchr(SEPARATORS, digits[-1])) return NULL;
    *digits = 0;
    const mt_gpu *g = same_name(name);
    return g && (double)g->memory <= sold && (double)g->memory > 0.9 * sold ? g : NULL;
}

/* "NVIDIA GeForce RTX 4090", "4090", "Tesla V100-SXM2-16GB": the kind, if it is one. text: the
 * name in small letters, without what says nothing of the kind. */
static const mt_gpu *known_as(const char *name, char text[64])
{
    mti_format(text, 64, "%s", name + strspn(name, " "));
    for (char *c = text; *c; c++) *c = (char)tolower((unsigned char)*c);
    drop(text, makers, sizeof makers / sizeof *makers);
    const size_t blank = strspn(text, SEPARATORS);
    memmove(text, text + blank, strlen(text + blank) + 1);
    drop_unit(text);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (mti_same_word(others[i].name, series_left_out(text))) return same_name(others[i].known);
    for (int i = 0; i < 2; i++) {
        const mt_gpu *g = same_name(text);
        if (!g) g = named_with_size(text);
        if (g) return g;
        drop(text, forms, sizeof forms / sizeof *forms);
    }
    return NULL;
}

const char *mti_gpu_other_size(const char *name)
{
    char text[64];
    const mt_gpu *g = known_as(name, text);
    for (size_t i = 0; g && i < sizeof others / sizeof *others; i++)
        if (mti_same_word(others[i].name, text)) return others[i].other;
    return NULL;
}

mt_status mt_gpu_find(const char *name, mt_gpu *out)
{
    const char *names[N_KNOWN];
    char text[64];
    if (!name || !out)
        return mti_fail(MT_ERR_ARGUMENT, "gpu_find: the %s is NULL", name ? "result" : "name");
    const mt_gpu *g = known_as(name, text);
    for (size_t i = 0; i < N_KNOWN; i++) names[i] = known[i].name;
    const int which = g ? (int)(g - known) : mti_choose("gpu", names, (int)N_KNOWN, text);
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
