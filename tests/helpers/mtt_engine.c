#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "mtt_engine.h"

mt_device *mtt_device(void)
{
    const char *kind = getenv("MTT_DEVICE");
    return mt_device_open(kind ? kind : "cpu");
}

size_t mtt_allocated(const mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.allocated.current;
}

size_t mtt_allocated_as(const mt_device *device, mt_category category)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.by_category[category];
}

bool mtt_long(void)
{
    const char *value = getenv("MTT_LONG");
    return value && strcmp(value, "1") == 0;
}

/* `name` of the environment says which fourth runs, on the CPU. */
static bool is_due(const char *name, size_t nth)
{
    const char *quarter = getenv("MTT_DEVICE") ? NULL : getenv(name);
    return !quarter || !*quarter || nth % 4 == strtoul(quarter, NULL, 10);
}

bool mtt_turn(size_t nth) { return is_due("MTT_QUARTER", nth); }
bool mtt_case(size_t nth) { return mtt_long() || is_due("MTT_CASES", nth); }

bool mtt_short_simulation(void)
{
    const char *kind = getenv("MTT_DEVICE");
    return !mtt_long() && kind && strcmp(kind, "cudasim") == 0;
}

double mtt_draw(uint64_t *state, double lo, double hi)
{
    /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return lo + (hi - lo) * ((double)(z >> 11) * 0x1p-53);
}

static int64_t count(int rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
}

mt_tensor *mtt_from_doubles(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                            const double *values)
{
    size_t n_bytes = (size_t)count(rank, shape) * sizeof *values;
    MT_AUTO mt_tensor *wide = mt_from_data(device, MT_F64, rank, shape, values, n_bytes);
    return mt_cast(wide, dtype);
}

mt_tensor *mtt_random(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                      uint64_t seed, double lo, double hi)
{
    size_t n = (size_t)count(rank, shape);
    double *values = malloc((n + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++) values[i] = mtt_draw(&seed, lo, hi);
    mt_tensor *t = mtt_from_doubles(device, dtype, rank, shape, values);
    free(values);
    return t;
}

const char *mtt_layout_name(mtt_layout layout)
{
    static const char *const names[] = {"dense", "reversed", "sliced"};
    return names[layout];
}

static mt_tensor *strided(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                          mtt_layout layout)
{
    int64_t stored[MT_MAX_RANK];
    int order[MT_MAX_RANK];
    if (layout == MTT_REVERSED) {
        for (int i = 0; i < rank; i++) {
            stored[i] = shape[rank - 1 - i];
            order[i] = rank - 1 - i;
        }
        MT_AUTO mt_tensor *base = mt_zeros(device, dtype, rank, stored);
        return mt_permute(base, order);
    }
    memcpy(stored, shape, (size_t)rank * sizeof *stored);
    stored[rank - 1] += 2;
    MT_AUTO mt_tensor *base = mt_zeros(device, dtype, rank, stored);
    return mt_slice(base, rank - 1, 1, shape[rank - 1]);
}

mt_tensor *mtt_laid_out(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                        const double *values, mtt_layout layout)
{
    mt_tensor *dense = mtt_from_doubles(device, dtype, rank, shape, values);
    if (layout == MTT_DENSE || rank == 0) return dense;
    mt_tensor *t = strided(device, dtype, rank, shape, layout);
    if (t && dense && mt_copy(t, dense) != MT_OK) mt_set(&t, NULL);
    mt_release(dense);
    return t;
}

double *mtt_doubles(mt_tensor *t)
{
    if (!t) return NULL;
    bool mode = mt_set_grad_mode(false);
    MT_AUTO mt_tensor *wide = mt_cast(t, MT_F64);
    mt_set_grad_mode(mode);
    size_t n_bytes = (size_t)mt_numel(t) * sizeof(double);
    double *values = malloc(n_bytes + 1);
    if (!wide || !values || mt_to_host(wide, values, n_bytes) != MT_OK) {
        free(values);
        return NULL;
    }
    return values;
}

bool mtt_same_bits(mt_tensor *a, mt_tensor *b)
{
    if (!a || !b || mt_rank(a) != mt_rank(b) || mt_dtype_of(a) != mt_dtype_of(b)) return false;
    if (memcmp(mt_shape(a), mt_shape(b), (size_t)mt_rank(a) * sizeof(int64_t)) != 0) return false;
    size_t n_bytes = (size_t)mt_numel(a) * mt_dtype_size(mt_dtype_of(a));
    char *x = malloc(n_bytes + 1), *y = malloc(n_bytes + 1);
    bool same = x && y && mt_to_host(a, x, n_bytes) == MT_OK &&
                mt_to_host(b, y, n_bytes) == MT_OK && memcmp(x, y, n_bytes) == 0;
    free(x);
    free(y);
    return same;
}

mt_tensor *mtt_made_at(mt_tensor *t, const char *what, const char *file, int line)
{
    if (!t) {
        print_error("%s gave NULL: %s\n", what, mt_last_error());
        _fail(file, line);
    }
    return t;
}

void mtt_ok_at(mt_status status, const char *what, const char *file, int line)
{
    if (status != MT_OK) {
        print_error("%s: %s: %s\n", what, mt_status_name(status), mt_last_error());
        _fail(file, line);
    }
}

void mtt_failed_at(mt_status status, const char *const *words, const char *file, int line)
{
    bool as_told = mt_last_status() == status;
    for (; *words; words++) as_told = as_told && strstr(mt_last_error(), *words);
    if (!as_told) {
        print_error("expected %s, got %s: \"%s\"\n", mt_status_name(status),
                    mt_status_name(mt_last_status()), mt_last_error());
        _fail(file, line);
    }
    mt_clear_error();
}

void mtt_temporary_file(char path[MTT_PATH])
{
    const char *folder = getenv("TMPDIR");
    int n = snprintf(path, MTT_PATH, "%s/memtape-XXXXXX", folder ? folder : P_tmpdir);
    assert_true(n > 0 && n < MTT_PATH);
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
}
