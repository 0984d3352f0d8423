/* Every row of ops.def against central differences; the checker finds planted faults. */
#include <stdlib.h>
#include <string.h>
#include "gradcheck.h"
#include "mtt_fixture.h"

static void every_case_agrees_with_central_differences(void **state)
{
    (void)state;
    int n_wrong = 0;
    long n_gradients = 0;
    const grad_case *list;
    int n_cases = grad_cases(&list);
    for (int i = 0; i < n_cases; i++) {
        const grad_case *c = &list[i];
        grad_result r = grad_check(device, c, NULL);
        n_gradients += r.n_gradients;
        if (!r.fault[0]) continue;
        print_error("%s, %s: %s\n", c->of.op, c->of.note, r.fault);
        n_wrong++;
    }
    print_message("gradcheck: %d cases, %ld gradients compared, %d cases wrong\n", n_cases,
                  n_gradients, n_wrong);
    assert_int_equal(n_wrong, 0);
}

static bool has_case(const char *row)
{
    const grad_case *list;
    for (int i = grad_cases(&list) - 1; i >= 0; i--)
        if (strcmp(list[i].of.op, row) == 0) return true;
    print_error("no case for %s\n", row);
    return false;
}

static void every_row_of_the_table_has_a_case(void **state)
{
    (void)state;
    int n_without = 0;
    assert_true(mt_op_count() > 0);
    for (int i = 0; i < mt_op_count(); i++) n_without += !has_case(mt_op_get(i).name);
    assert_int_equal(n_without, 0);
}

static void every_case_names_a_row_of_the_table(void **state)
{
    (void)state;
    const grad_case *list;
    for (int j = grad_cases(&list) - 1; j >= 0; j--) {
        bool found = false;
        for (int i = 0; i < mt_op_count() && !found; i++)
            found = strcmp(list[j].of.op, mt_op_get(i).name) == 0;
        if (!found) print_error("no row %s in the table\n", list[j].of.op);
        assert_true(found);
    }
}

static void each_case_leaves_no_memory_behind(void **state)
{
    (void)state;
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    assert_int_equal(stats.allocated.current, 0);
}

/* ---- planted faults ---- */

static mt_tensor *a_thousandth_too_large(void *user, mt_tensor *grad)
{
    (void)user;
    return mt_mul_scalar(grad, 1.001);
}

static mt_tensor *last_element_off(void *user, mt_tensor *grad)
{
    (void)user;
    mt_tensor *wrong = mt_clone(grad);
    if (!wrong) return NULL;
    double *values = mtt_doubles(grad);
    values[mt_numel(grad) - 1] += 1e-5;
    mt_status status = mt_copy_from_host(wrong, values, (size_t)mt_numel(grad) * sizeof *values);
    free(values);
    if (status != MT_OK) mt_set(&wrong, NULL);
    return wrong;
}

static const grad_case *find_case(const char *row)
{
    const grad_case *list;
    int n = grad_cases(&list);
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].of.op, row) == 0) return &list[i];
    fail_msg("no case %s", row);
    return NULL;
}

static void a_derivative_wrong_by_a_thousandth_is_found(void **state)
{
    (void)state;
    static const char *const rows[] = {"gelu", "matmul", "layer_norm", "mul", "flash_attention"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        grad_result r = grad_check(device, find_case(rows[i]), a_thousandth_too_large);
        assert_non_null(strstr(r.fault, "by backward"));
    }
}

static void one_wrong_element_is_found(void **state)
{
    (void)state;
    grad_result r = grad_check(device, find_case("gelu"), last_element_off);
    assert_non_null(strstr(r.fault, "by backward"));
}

/* The result is x^2, but the tape records only one of the two x. */
static mt_tensor *half_detached(mt_tensor **in)
{
    MT_AUTO mt_tensor *still = mt_detach(in[0]);
    return mt_mul(in[0], still);
}

static grad_case planted(const char *made_by)
{
    return (grad_case){.of = {.op = made_by, .n_in = 1, .in = {MTI_CASE_INPUT(MTI_CASE_ANY, 3, 5)}},
                       .composed = half_detached};
}

static void a_path_missing_from_the_tape_is_found(void **state)
{
    (void)state;
    const grad_case c = planted("mul");
    grad_result r = grad_check(device, &c, NULL);
    assert_non_null(strstr(r.fault, "by backward"));
}

static void a_result_of_another_op_is_found(void **state)
{
    (void)state;
    const grad_case c = planted("add");
    grad_result r = grad_check(device, &c, NULL);
    assert_non_null(strstr(r.fault, "not by this row"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(every_case_agrees_with_central_differences),
        mtt_test(every_row_of_the_table_has_a_case),
        mtt_test(every_case_names_a_row_of_the_table),
        mtt_test(each_case_leaves_no_memory_behind),
        mtt_test(a_derivative_wrong_by_a_thousandth_is_found),
        mtt_test(one_wrong_element_is_found),
        mtt_test(a_path_missing_from_the_tape_is_found),
        mtt_test(a_result_of_another_op_is_found),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
