/* reading.c: a figure in a line of text, by the name that a program gives it. */
#include <ctype.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include "compare/readings.h"

const mti_choice mti_reading_kinds = {"figure",
                                      MTI_NAMES("peak allocated", "peak active", "peak requested",
                                                "peak reserved", "allocated", "reserved", "weights",
                                                "reserved after loading", "used of the device")};

#define KIB 1024.0
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)

/* When a name counts. */
typedef enum naming {
    ALWAYS,
    WITH_UNIT,   /* the number has to have one: the name is a common word */
    WITH_SHARE,  /* and a share of the device behind it, as torchtitan's has: "42.08GiB(44.27%)" */
    OF_MEMORY,   /* the number has a unit, and the line speaks of memory */
    MEMORY_LINE, /* the line says "memory (MB)", as Megatron-LM's does: MB are MiB there; or it is
                  * DeepSpeed's or vLLM's, whose GB are GiB */
} naming;

/* In small letters; _ stands for any of "_- ./". unit: of a number without one. */
static const struct {
    const char *name;
    mti_reading_kind kind;
    double unit;
    naming rule;
} names[] = {
    /* torch.cuda.memory and torch.cuda.memory_stats() */
    {"max_memory_allocated", MTI_READ_PEAK_ALLOCATED, 1, ALWAYS},
    {"max_memory_reserved", MTI_READ_PEAK_RESERVED, 1, ALWAYS},
    {"max_memory_cached", MTI_READ_PEAK_RESERVED, 1, ALWAYS},
    {"memory_allocated", MTI_READ_ALLOCATED, 1, ALWAYS},
    {"memory_reserved", MTI_READ_RESERVED, 1, ALWAYS},
    {"allocated_bytes.all.peak", MTI_READ_PEAK_ALLOCATED, 1, ALWAYS},
    {"active_bytes.all.peak", MTI_READ_PEAK_ACTIVE, 1, ALWAYS},
    {"requested_bytes.all.peak", MTI_READ_PEAK_REQUESTED, 1, ALWAYS},
    {"reserved_bytes.all.peak", MTI_READ_PEAK_RESERVED, 1, ALWAYS},
    {"allocated_bytes.all.current", MTI_READ_ALLOCATED, 1, ALWAYS},
    {"reserved_bytes.all.current", MTI_READ_RESERVED, 1, ALWAYS},
    /* Megatron-LM: golden values, and report_memory */
    {"mem_max_allocated_bytes", MTI_READ_PEAK_ALLOCATED, 1, ALWAYS},
    {"mem_allocated_bytes", MTI_READ_ALLOCATED, 1, ALWAYS},
    {"mem_reserved_bytes", MTI_READ_RESERVED, 1, ALWAYS},
    {"max_allocated", MTI_READ_PEAK_ALLOCATED, MIB, MEMORY_LINE},
    {"max_reserved", MTI_READ_PEAK_RESERVED, MIB, MEMORY_LINE},
    {"allocated", MTI_READ_ALLOCATED, MIB, MEMORY_LINE},
    {"reserved", MTI_READ_RESERVED, MIB, MEMORY_LINE},
    /* DeepSpeed's see_memory_usage: "MA 14.96 GB  Max_MA 28.1 GB  CA 29.03 GB  Max_CA 29 GB" */
    {"ma", MTI_READ_ALLOCATED, GIB, MEMORY_LINE},
    {"max_ma", MTI_READ_PEAK_ALLOCATED, GIB, MEMORY_LINE},
    {"ca", MTI_READ_RESERVED, GIB, MEMORY_LINE},
    {"max_ca", MTI_READ_PEAK_RESERVED, GIB, MEMORY_LINE},
    /* vLLM: "model weights take 14.99GiB; ...", "Loading model weights took 14.9888 GB" */
    {"model_weights_take", MTI_READ_WEIGHTS, GIB, MEMORY_LINE},
    {"model_weights_took", MTI_READ_WEIGHTS, GIB, MEMORY_LINE},
    {"model_loading_took", MTI_READ_WEIGHTS, GIB, MEMORY_LINE},
    /* torchtitan: its line, and its metrics "memory/max_reserved(GiB)" */
    {"memory", MTI_READ_PEAK_RESERVED, 1, WITH_SHARE},
    {"max_reserved", MTI_READ_PEAK_RESERVED, 1, WITH_UNIT},
    {"max_active", MTI_READ_PEAK_ACTIVE, 1, WITH_UNIT},
    /* PEFT's method comparison */
    {"accelerator_memory_max", MTI_READ_PEAK_RESERVED, 1, ALWAYS},
    {"cuda_memory_max", MTI_READ_PEAK_RESERVED, 1, ALWAYS},
    {"peak_reserved", MTI_READ_PEAK_RESERVED, 1, ALWAYS},
    /* torchtune, axolotl, LitGPT */
    {"peak_memory_alloc", MTI_READ_PEAK_ALLOCATED, GIB, ALWAYS},
    {"peak_memory_active", MTI_READ_PEAK_ACTIVE, GIB, ALWAYS},
    {"peak_memory_reserved", MTI_READ_PEAK_RESERVED, GIB, ALWAYS},
    {"max_mem_allocated", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
    {"max_mem_active", MTI_READ_PEAK_ACTIVE, 1, WITH_UNIT},
    {"max_mem_reserved", MTI_READ_PEAK_RESERVED, 1, WITH_UNIT},
    {"memory_used", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
    /* Composer's MemoryMonitor */
    {"peak_allocated_mem", MTI_READ_PEAK_ALLOCATED, 1e9, ALWAYS},
    {"peak_active_mem", MTI_READ_PEAK_ACTIVE, 1e9, ALWAYS},
    {"peak_reserved_mem", MTI_READ_PEAK_RESERVED, 1e9, ALWAYS},
    {"current_allocated_mem", MTI_READ_ALLOCATED, 1e9, ALWAYS},
    {"current_reserved_mem", MTI_READ_RESERVED, 1e9, ALWAYS},
    /* what people print, and notebooks: "Peak reserved memory = 7.535 GB." */
    {"allocated", MTI_READ_ALLOCATED, 1, OF_MEMORY},
    {"reserved", MTI_READ_RESERVED, 1, OF_MEMORY},
    {"allocated_memory", MTI_READ_ALLOCATED, 1, WITH_UNIT},
    {"reserved_memory", MTI_READ_RESERVED, 1, WITH_UNIT},
    {"peak_memory", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
    {"peak_memory_usage", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
    {"peak_gpu_memory", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
    {"peak_gpu_memory_usage", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
    {"peak_vram", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
    {"max_gpu_memory", MTI_READ_PEAK_ALLOCATED, 1, WITH_UNIT},
};
#define N_NAMES (sizeof names / sizeof *names)

/* ---- names ---- */

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The bytes of the text that the name takes at its beginning; 0: it is not there. */
static size_t match(const char *name, const char *text)
{
    size_t i = 0;
    for (; name[i]; i++) {
        const char c = (char)tolower((unsigned char)text[i]);
        const bool gap = name[i] == '_' && c && strchr("_- ./", c);
        if (!gap && c != name[i]) return 0;
    }
    return is_word(text[i]) || text[i] == '-' ? 0 : i;
}

bool mti_reading_find(const char *name, mti_reading_kind *kind)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        if (names[i].rule != ALWAYS || names[i].unit > 1) continue;
        const size_t n = match(names[i].name, name);
        *kind = names[i].kind;
        if (n && !name[n]) return true;
    }
    return false;
}

/* ---- numbers and units ---- */

static const struct {
    const char *text;
    double factor, otherwise; /* otherwise: what programs mean by it that do not mean this */
} units[] = {{"bytes", 1, 0},        {"KiB", KIB, 0},  {"MiB", MIB, 0},  {"GiB", GIB, 0},
             {"TiB", KIB *GIB, 0},   {"KB", 1e3, KIB}, {"MB", 1e6, MIB}, {"GB", 1e9, GIB},
             {"TB", 1e12, KIB *GIB}, {"B", 1, 0}};
#define N_UNITS (sizeof units / sizeof *units)

/* The unit at the beginning of the text, in any case; N_UNITS: there is none. */
static size_t find_unit(const char *text, size_t *length)
{
    for (size_t i = 0; i < N_UNITS; i++) {
        *length = strlen(units[i].text);
        if (!strncasecmp(text, units[i].text, *length) && !is_word(text[*length]) &&
            text[*length] != '-')
            return i;
    }
    return N_UNITS;
}

/* A number in digits at the beginning of the text, and how many are behind its point. Thousands may
 * be separated by commas. */
static bool take_number(const char *text, size_t *length, double *value, int *decimals)
{
    char copy[64];
    size_t n = 0, k = 0;
    *decimals = -1;
    for (; k + 1 < sizeof copy; n++) {
        const bool point = text[n] == '.' && *decimals < 0 && isdigit((unsigned char)text[n + 1]);
        const bool comma =
            text[n] == ',' && n && *decimals < 0 && strspn(text + n + 1, "0123456789") == 3;
        if (comma) continue;
        if (!point && !isdigit((unsigned char)text[n])) break;
        if (point || *decimals >= 0) ++*decimals;
        copy[k++] = text[n];
    }
    copy[k] = 0;
    if (*decimals < 0) *decimals = 0;
    if (!k || copy[0] == '.' || isdigit((unsigned char)text[n])) return false;
    if (text[n] == 'e' || text[n] == 'E') return false; /* none of these programs writes it so */
    *value = mti_strtod(copy, NULL);
    *length = n;
    return true;
}

/* Whole bytes that are written so: half of the last digit up and down. */
static bool set_bytes(mti_reading *f, double value, int decimals, double unit)
{
    const double half = unit == 1 && !decimals ? 0 : 0.5 * pow(10, -decimals) * unit;
    const double bytes = value * unit;
    if (!(bytes + half < 0x1p60)) return false;
    f->low = (uint64_t)(bytes > half ? ceil(bytes - half) : 0);
    f->high = (uint64_t)floor(bytes + half);
    if (f->low > f->high) f->low = f->high = (uint64_t)llround(bytes);
    return true;
}

bool mti_byte_range_read(const char *text, size_t *length, mti_byte_range *out)
{
    size_t n, unit_length;
    double value;
    int decimals;
    mti_reading f;
    if (!take_number(text, &n, &value, &decimals)) return false;
    n += strspn(text + n, " ");
    const size_t unit = find_unit(text + n, &unit_length);
    if (unit == N_UNITS || !set_bytes(&f, value, decimals, units[unit].factor)) return false;
    *length = n + unit_length;
    *out = (mti_byte_range){f.low, f.high};
    return true;
}

/* ---- lines ---- */

static const char *find(const char *line, const char *text)
{
    for (; *line; line++) {
        size_t i = 0;
        while (text[i] && tolower((unsigned char)line[i]) == text[i]) i++;
        if (!text[i]) return line + i;
    }
    return NULL;
}

/* "step: 10", "(after 10 iterations)", "iteration 10/ 500"; -1: none. */
static int64_t step_of(const char *line)
{
    static const char *const before[] = {"step", "after ", "iteration"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        for (const char *at = line; (at = find(at, before[i]));) {
            const char *digits = at + strspn(at, " :=\"'");
            const size_t n = strspn(digits, "0123456789");
            int64_t step = 0;
            for (size_t k = 0; k < n && k < 18; k++) step = 10 * step + (digits[k] - '0');
            if (n && n <= 18) return step;
        }
    }
    return -1;
}

/* The unit of a line like Megatron-LM's, "memory (MB) | allocated: ...", DeepSpeed's or vLLM's; 0:
 * it is none. */
static double unit_of_line(const char *line)
{
    static const char *const of_gib[] = {"max_ma ", "model weights t", "model loading took "};
    for (size_t i = 0; i < sizeof of_gib / sizeof *of_gib; i++)
        if (find(line, of_gib[i])) return GIB;
    const char *at = find(line, "memory (");
    size_t length, unit = at ? find_unit(at, &length) : N_UNITS;
    if (unit == N_UNITS) return 0;
    return units[unit].otherwise > 0 ? units[unit].otherwise : units[unit].factor;
}

/* What is known of the line that a name stands in. */
typedef struct line_facts {
    double unit;    /* unit_of_line */
    bool of_memory; /* it speaks of memory */
} line_facts;

/* The unit behind a number, "GiB", "(MB)", or that of the whole of which it is a part, "5.2 / 23.6
 * GiB". Moves *at to its end. */
static size_t unit_behind(const char **at)
{
    size_t length, n;
    double whole;
    int decimals;
    const char *text = *at + strspn(*at, " ");
    if (*text == '/' && take_number(text + 1 + strspn(text + 1, " "), &n, &whole, &decimals)) {
        text += 1 + strspn(text + 1, " ") + n;
        text += strspn(text, " ");
    }
    const bool open = *text == '(';
    const size_t unit = find_unit(text + open, &length);
    if (unit == N_UNITS) return unit;
    *at = text + open + length;
    *at += open && **at == ')';
    return unit;
}

/* Whether a number alone is understood: bytes have no fraction. */
static bool is_clear(mti_readings *out, const mti_reading *f, const char *name, size_t n,
                     int decimals, double unit, bool named)
{
    if (named || unit > 1 || !decimals) return true;
    if (!*out->unclear)
        mti_format(out->unclear, sizeof out->unclear,
                   "line %lld: %.*s %s has a fraction and no unit; write MiB or GiB behind it",
                   (long long)f->line, (int)(n < 60 ? n : 60), name, f->text);
    return false;
}

/* What follows a name of n bytes, up to its number: "(GiB): 42.08", "\": 123", " = 42.08 GiB". */
static bool read_value(mti_readings *out, mti_reading *f, const char *name, size_t n, double unit,
                       naming rule, const line_facts *line)
{
    size_t length, named = N_UNITS, written;
    double value;
    int decimals;
    const char *at = name + n;
    at += strspn(at, " \t");
    if (*at == '(' && (named = find_unit(at + 1, &length)) < N_UNITS) at += 1 + length;
    at += strspn(at, " \t\"'`)(:=|");
    const char *begin = at;
    if (!take_number(at, &length, &value, &decimals)) return false;
    const char *number_end = at += length;
    written = unit_behind(&at);
    if (written < N_UNITS) named = written;
    if (rule != ALWAYS && rule != MEMORY_LINE && named == N_UNITS) return false;
    if (rule == OF_MEMORY && !line->of_memory) return false;
    if (rule == WITH_SHARE && (at[0] != '(' || !isdigit((unsigned char)at[1]))) return false;
    const bool plain =
        written == N_UNITS || at[-1] == ')' || memchr(number_end, '/', (size_t)(at - number_end));
    const char *end = plain ? number_end : at;
    snprintf(f->text, sizeof f->text, "%.*s", (int)(end - begin < 40 ? end - begin : 40), begin);
    if (!is_clear(out, f, name, n, decimals, unit, named < N_UNITS || rule == MEMORY_LINE))
        return false;
    if (named < N_UNITS) unit = units[named].factor;
    if (rule == MEMORY_LINE) unit = line->unit;
    if (named < N_UNITS && plain) mti_append(f->text, sizeof f->text, " %s", units[named].text);
    if (rule == MEMORY_LINE && named == N_UNITS) strcat(f->text, " MB");
    if (rule != MEMORY_LINE && named < N_UNITS && units[named].otherwise > 0)
        f->otherwise = (uint64_t)llround(fmin(value * units[named].otherwise, 0x1p60));
    return set_bytes(f, value, decimals, unit);
}

/* A word that says peak makes a peak of what is one at an instant. */
static mti_reading_kind kind_within(const char *line, const char *name, mti_reading_kind kind)
{
    static const char *const words[] = {"peak", "max", "highest"};
    if (kind != MTI_READ_ALLOCATED && kind != MTI_READ_RESERVED) return kind;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *end = find(line, words[i]);
        if (!end || end > name) continue;
        return kind == MTI_READ_ALLOCATED ? MTI_READ_PEAK_ALLOCATED : MTI_READ_PEAK_RESERVED;
    }
    return kind;
}

/* The longest name at the beginning of the text, with its figure. */
static size_t read_name(mti_readings *out, mti_reading *f, const char *line, const char *text,
                        const line_facts *facts)
{
    size_t longest = 0;
    for (size_t i = 0; i < N_NAMES; i++) {
        const size_t n = match(names[i].name, text);
        const naming rule = names[i].rule;
        mti_reading one = {.kind = names[i].kind, .line = f->line, .step = f->step};
        if (n <= longest || (rule == MEMORY_LINE && facts->unit == 0)) continue;
        if (!read_value(out, &one, text, n, names[i].unit, rule, facts)) continue;
        if (rule != MEMORY_LINE) one.kind = kind_within(line, text, one.kind);
        snprintf(one.name, sizeof one.name, "%.*s", (int)n, text);
        *f = one;
        longest = n;
    }
    return longest;
}

/* ---- tables ---- */

/* A row of torch.cuda.memory_summary(): "| Active memory | 5120 MiB | 6144 MiB | ...", what there
 * is now and the peak, whole units rounded down. False if memory runs out; *found: it is one. */
static bool read_summary(mti_readings *out, const char *path, const char *line, int64_t number,
                         bool *found)
{
    static const struct {
        const char *name;
        mti_reading_kind now, peak;
    } rows[] = {{"allocated memory", MTI_READ_ALLOCATED, MTI_READ_PEAK_ALLOCATED},
                {"active memory", MTI_READ_COUNT, MTI_READ_PEAK_ACTIVE},
                {"requested memory", MTI_READ_COUNT, MTI_READ_PEAK_REQUESTED},
                {"gpu reserved memory", MTI_READ_RESERVED, MTI_READ_PEAK_RESERVED}};
    const char *text = line + strspn(line, " \t");
    *found = false;
    if (*text != '|') return true;
    text += 1 + strspn(text + 1, " ");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = match(rows[i].name, text);
        const mti_reading_kind kinds[] = {rows[i].now, rows[i].peak};
        for (int k = 0; n && k < 2; k++) {
            size_t length, unit_length, unit;
            double value;
            int decimals;
            text += n;
            text += strspn(text, " |");
            if (!take_number(text, &length, &value, &decimals) || decimals) return true;
            const size_t gap = length + strspn(text + length, " ");
            if ((unit = find_unit(text + gap, &unit_length)) == N_UNITS) return true;
            n = gap + unit_length;
            *found = true;
            if (kinds[k] == MTI_READ_COUNT) continue;
            mti_reading f = {.kind = kinds[k], .line = number, .step = -1};
            snprintf(f.name, sizeof f.name, "%s, %s", rows[i].name, k ? "peak usage" : "cur usage");
            snprintf(f.text, sizeof f.text, "%.*s", (int)(n < 40 ? n : 40), text);
            if (!(value * units[unit].factor < 0x1p60)) return true;
            f.low = (uint64_t)(value * units[unit].factor);
            f.high = f.low + (uint64_t)units[unit].factor - 1;
            if (!mti_reading_add(out, path, &f)) return false;
        }
        if (*found) return true;
    }
    return true;
}

/* "13.270GB (+56.066GB cache, ...": what is allocated, and with the cache reserved, of axolotl,
 * whose GB are GiB. False if memory runs out; *found: it is such a line. */
static bool read_usage(mti_readings *out, const char *path, const char *line, int64_t number,
                       bool *found)
{
    static const struct {
        const char *name;
        mti_reading_kind kinds[2];
    } instants[] = {{"memory usage while training: ", {MTI_READ_ALLOCATED, MTI_READ_RESERVED}},
                    {"memory usage after model load: ", {MTI_READ_WEIGHTS, MTI_READ_LOADED}}};
    *found = false;
    for (size_t i = 0; i < sizeof instants / sizeof *instants; i++) {
        mti_reading used = {.kind = instants[i].kinds[0], .line = number, .step = -1}, all = used;
        const char *at = find(line, instants[i].name), *begin = at;
        size_t length, more;
        double value, cache;
        int decimals;
        if (!at || !take_number(at, &length, &value, &decimals)) continue;
        if (!set_bytes(&used, value, decimals, GIB)) return true;
        *found = true;
        mti_format(used.name, sizeof used.name, "GPU %.*s", (int)strlen(instants[i].name) - 2,
                   instants[i].name);
        mti_format(used.text, sizeof used.text, "%.*sGB", (int)(length < 40 ? length : 40), begin);
        if (!mti_reading_add(out, path, &used)) return false;
        at = find(at, "(+");
        if (!at || !take_number(at, &more, &cache, &decimals) || !find(at, "gb cache")) return true;
        all.kind = instants[i].kinds[1];
        if (!set_bytes(&all, cache, decimals, GIB)) return true;
        all.low += used.low, all.high += used.high;
        mti_format(all.name, sizeof all.name, "%s, with cache", used.name);
        mti_format(all.text, sizeof all.text, "%s + %.*sGB", used.text,
                   (int)(more < 20 ? more : 20), at);
        return mti_reading_add(out, path, &all);
    }
    return true;
}

/* ---- differences ---- */

/* What Trainer's memory tracker says: each is a difference to what was there before. */
static const char *const deltas[MTI_DELTAS] = {
    "init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta"};

/* Its log has whole MiB, rounded down, and calls them MB; its JSON has bytes. */
static void read_deltas(mti_readings *out, const char *line, int64_t number)
{
    for (int i = 0; i < MTI_DELTAS; i++) {
        const char *at = find(line, deltas[i]);
        size_t length, unit_length;
        double value;
        int decimals;
        if (!at) continue;
        at += strspn(at, " \t\"'`:=");
        if (!take_number(at, &length, &value, &decimals) || decimals || !(value < 0x1p40)) continue;
        const bool in_mib = find_unit(at + length, &unit_length) < N_UNITS;
        const uint64_t n = (uint64_t)value * (in_mib ? (uint64_t)MIB : 1);
        out->deltas[i] = (mti_byte_range){n, n + (in_mib ? (uint64_t)MIB - 1 : 0)};
        out->has_delta[i] = true;
        out->delta_line = number;
    }
}

bool mti_readings_add_deltas(mti_readings *out, const char *path)
{
    mti_reading f = {.kind = MTI_READ_PEAK_ALLOCATED, .line = out->delta_line, .step = -1};
    if (!out->has_delta[1] || !out->has_delta[2]) return true;
    if (!out->has_delta[0]) {
        if (!*out->unclear)
            mti_format(out->unclear, sizeof out->unclear,
                       "line %lld: train_mem_gpu_* are beyond what was there before; with "
                       "init_mem_gpu_alloc_delta they are a peak",
                       (long long)out->delta_line);
        return true;
    }
    for (int i = 0; i < MTI_DELTAS; i++) f.low += out->deltas[i].low, f.high += out->deltas[i].high;
    snprintf(f.name, sizeof f.name, "init and train_mem_gpu_*_delta");
    snprintf(f.text, sizeof f.text, "%s", MTI_THOUSANDS(f.low));
    return mti_reading_add(out, path, &f);
}

/* "12345MiB / 81559MiB" of nvidia-smi's table, or "12345 MiB" alone of its --query-gpu. */
static bool read_smi(mti_reading *f, const char *line)
{
    for (const char *at = line; *at; at++) {
        size_t length, gap;
        double value;
        int decimals;
        if (!isdigit((unsigned char)*at) || (at > line && (is_word(at[-1]) || at[-1] == '.')))
            continue;
        if (!take_number(at, &length, &value, &decimals)) continue;
        gap = strspn(at + length, " ");
        if (!match("mib", at + length + gap)) continue;
        const char *end = at + length + gap + 3, *rest = end + strspn(end, " ");
        const bool table = *rest == '/' && find(rest, "mib");
        const bool alone = at == line + strspn(line, " ") && !rest[strspn(rest, " \r")];
        if (!table && !alone) continue;
        f->kind = MTI_READ_DEVICE;
        snprintf(f->name, sizeof f->name, "nvidia-smi");
        snprintf(f->text, sizeof f->text, "%.*s", (int)(end - at < 40 ? end - at : 40), at);
        return set_bytes(f, value, decimals, MIB);
    }
    return false;
}

bool mti_readings_of_line(mti_readings *out, const char *path, const char *line, int64_t number)
{
    const line_facts facts = {unit_of_line(line),
                              find(line, "mem") || find(line, "gpu") || find(line, "cuda")};
    mti_reading f = {.line = number, .step = step_of(line)};
    bool summary;
    if (!read_summary(out, path, line, number, &summary)) return false;
    if (!summary && !read_usage(out, path, line, number, &summary)) return false;
    if (summary) return true;
    read_deltas(out, line, number);
    if (find(line, "reserved for kv cache") && !*out->unclear)
        mti_format(
            out->unclear, sizeof out->unclear,
            "line %lld: vLLM's activations and KV cache are of a server; `memtape serve` has "
            "them",
            (long long)number);
    if (read_smi(&f, line)) return mti_reading_add(out, path, &f);
    for (const char *at = line; *at;) {
        const bool begins = at == line || !is_word(at[-1]);
        const size_t n = begins ? read_name(out, &f, line, at, &facts) : 0;
        if (n && !mti_reading_add(out, path, &f)) return false;
        at += n ? n : 1;
    }
    return true;
}

bool mti_reading_add(mti_readings *out, const char *path, const mti_reading *figure)
{
    mti_reading *same[2] = {NULL, NULL};
    int n = 0;
    for (size_t i = 0; i < out->n && n < 2; i++)
        if (!strcmp(out->at[i].name, figure->name)) same[n++] = &out->at[i];
    if (n == 2) {
        if (figure->high > same[1]->high) *same[1] = *figure;
        return true;
    }
    if (out->n == MTI_MOST_READINGS)
        return mti_fail_bool(MT_ERR_FORMAT,
                             "%s: it has figures of more than %d names; give a part of it", path,
                             MTI_MOST_READINGS);
    return MTI_PUSH(out, *figure);
}
