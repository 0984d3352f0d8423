/* Every row of ops.def in every layout; the scan finds planted faults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "mtt_fixture.h"
#include "scan.h"

static scan_breadth breadth;
static const char *only; /* this op's cases; NULL: all */
static mt_device *cpu;   /* computes the references */

static int open_devices(void **state)
{
    cpu = mt_device_open("cpu");
    return cpu ? mtt_open_device(state) : -1;
}

static int close_devices(void **state)
{
    mt_device_release(cpu);
    return mtt_close_device(state);
}

/* Counts what is written to standard output, and hides it. */
typedef struct silence {
    FILE *file;
    int output;
} silence;

static silence begin_silence(void)
{
    silence s = {tmpfile(), dup(STDOUT_FILENO)};
    assert_non_null(s.file);
    fflush(stdout);
    assert_true(s.output >= 0 && dup2(fileno(s.file), STDOUT_FILENO) >= 0);
    return s;
}

static long end_silence(silence *s)
{
    fflush(stdout);
    long n_bytes = (long)lseek(STDOUT_FILENO, 0, SEEK_END);
    assert_true(dup2(s->output, STDOUT_FILENO) >= 0);
    close(s->output);
    fclose(s->file);
    return n_bytes;
}

static void every_row_is_right_in_every_layout(void **state)
{
    (void)state;
    scan_result all = {0};
    int n_without = 0;
    silence quiet = begin_silence();             /* OpenBLAS complains where an extent is 0 */
    mtt_ok(mt_set_balance_check(device, false)); /* gradcheck runs with it */
    const grad_case *list;
    int n_cases = grad_cases(&list);
    for (int i = 0; i < n_cases; i++) {
        scan_result r = {0};
        if (only ? strcmp(list[i].of.op, only) != 0 : !mtt_case((size_t)i)) continue;
        scan_layouts(device, cpu, &list[i], breadth, &r);
        if (r.fault[0])
            print_error("%s, %s: %s (%ld of %ld)\n", list[i].of.op, list[i].of.note, r.fault,
                        r.n_wrong, r.n_runs);
        n_without += r.n_runs == 0;
        all.n_runs += r.n_runs, all.n_wrong += r.n_wrong;
        all.n_shapes += r.n_shapes, all.n_refused += r.n_refused;
    }
    assert_int_equal(end_silence(&quiet), 0);
    print_message("layouts: %d cases in %ld shapes (%ld more refused), %ld runs, %ld disagree\n",
                  n_cases, all.n_shapes - all.n_refused, all.n_refused, all.n_runs, all.n_wrong);
    assert_int_equal(all.n_wrong, 0);
    assert_int_equal(n_without, 0);
    assert_true(all.n_runs > 0);
    mtt_ok(mt_set_balance_check(device, true));
}

/* ---- planted faults ---- */

/* The elements at the places that they would have in a dense tensor. */
static mt_tensor *as_if_dense(mt_tensor *t)
{
    mt_layout l = mt_layout_of(t);
    int64_t gap = 1;
    for (int d = l.rank - 1; d >= 0; d--) {
        l.strides[d] = gap;
        gap *= l.shape[d];
    }
    mt_tensor *dense = mt_view_as(t, &l);
    if (dense) return dense;
    mt_clear_error(); /* it may lie beyond the end of the storage */
    return mt_zeros(mt_device_of(t), l.dtype, l.rank, l.shape);
}

/* in[0] holds integers, which cannot require grad. */
static mt_tensor *times(mt_tensor *whole, mt_tensor *x)
{
    MT_AUTO mt_tensor *cast = whole ? mt_cast(whole, mt_dtype_of(x)) : NULL;
    return cast ? mt_mul(x, cast) : NULL;
}

static mt_tensor *reads_its_input_as_if_dense(mt_tensor **in)
{
    MT_AUTO mt_tensor *other = as_if_dense(in[0]);
    return times(other, in[1]);
}

static mt_tensor *dense_gradient(void *user, mt_tensor *grad)
{
    (void)user;
    return as_if_dense(grad);
}

static mt_tensor *reads_its_gradient_as_if_dense(mt_tensor **in)
{
    mt_tensor *y = mt_mul_scalar(in[0], 3);
    if (y && mt_requires_grad(y) && !mt_add_grad_hook(y, dense_gradient, NULL)) mt_set(&y, NULL);
    return y;
}

/* A fault that as_matrix once had: it gives an outer dimension stride 0, as its neighbour has. */
static mt_tensor *loses_the_dimension_outside_an_expanded_one(mt_tensor **in)
{
    mt_layout l = mt_layout_of(in[0]);
    if (l.strides[1] == 0 && l.shape[1] > 1) l.strides[0] = 0;
    MT_AUTO mt_tensor *other = mt_view_as(in[0], &l);
    return times(other, in[1]);
}

static void functions_that_ignore_the_layout_are_found(void **state)
{
    (void)state;
#define WHOLE MTI_CASE_INPUT(.below = 9, 2, 3, 4)
#define X     MTI_CASE_INPUT(MTI_CASE_ANY, 2, 3, 4)
    static const grad_case planted[] = {
        {{.op = "mul", .n_in = 2, .in = {WHOLE, X}}, reads_its_input_as_if_dense},
        {{.op = "affine", .n_in = 1, .in = {X}}, reads_its_gradient_as_if_dense},
        {{.op = "mul", .n_in = 2, .in = {WHOLE, X}}, loses_the_dimension_outside_an_expanded_one},
    };
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        scan_result r = {0};
        scan_layouts(device, cpu, &planted[i], SCAN_NARROW, &r);
        assert_true(r.n_wrong > 0 && r.n_wrong < r.n_runs);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        mtt_test(every_row_is_right_in_every_layout),
        mtt_test(functions_that_ignore_the_layout_are_found),
    };
    /* On a simulated device a run takes a hundred times as long, so all operands change at once;
     * `test_layouts 1` runs more, and `test_layouts 2 relu` all that there is of one op. */
    const char *kind = getenv("MTT_DEVICE");
    bool simulated = kind && strcmp(kind, "cpu") != 0;
    breadth = simulated ? SCAN_NARROW : getenv("MTT_LONG") ? SCAN_WIDE : SCAN_USUAL;
    if (argc > 2) only = argv[2];
    if (argc > 1) breadth = (scan_breadth)atoi(argv[1]);
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
