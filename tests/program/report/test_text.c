/* test_text.c: figures, widths, tables and the progress bar, read back as text. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "mtt.h"
#include "report/json.h"
#include "report/terminal.h"
#include "report/pictures.h"

static const mti_sheet plain = {.width = 100};

/* A stream whose text can be read. */
typedef struct page {
    char *text;
    size_t n;
    FILE *out;
} page;

/* The sheet, with the page as its stream. */
static const mti_sheet *on(const page *p, mti_sheet sheet)
{
    static mti_sheet with;
    with = sheet;
    with.out = p->out;
    return &with;
}

static void open_page(page *p)
{
    p->out = open_memstream(&p->text, &p->n);
    assert_non_null(p->out);
}

static void assert_page(page *p, const char *expected)
{
    fclose(p->out);
    assert_string_equal(p->text, expected);
    free(p->text);
}

static void thousands_are_separated(void **state)
{
    (void)state;
    char buf[MTI_NUMBER];
    assert_string_equal(mti_thousands(buf, 0), "0");
    assert_string_equal(mti_thousands(buf, 999), "999");
    assert_string_equal(mti_thousands(buf, 1000), "1,000");
    assert_string_equal(mti_thousands(buf, 83886080), "83,886,080");
    assert_string_equal(mti_thousands(buf, -1024), "-1,024");
    assert_string_equal(mti_thousands(buf, INT64_MIN), "-9,223,372,036,854,775,808");
}

static void scaled_numbers_keep_three_digits(void **state)
{
    (void)state;
    char buf[MTI_NUMBER];
    assert_string_equal(mti_scaled(buf, 0), "0");
    assert_string_equal(mti_scaled(buf, 999), "999");
    assert_string_equal(mti_scaled(buf, 999.7), "1.00 k");
    assert_string_equal(mti_scaled(buf, 12345), "12.3 k");
    assert_string_equal(mti_scaled(buf, 137438953472.0), "137 G");
    assert_string_equal(mti_scaled(buf, 1e30), "1000000000000 E");
}

static void durations_have_readable_units(void **state)
{
    (void)state;
    char buf[MTI_NUMBER];
    assert_string_equal(mti_duration(buf, 0.2), "0 s");
    assert_string_equal(mti_duration(buf, 59.4), "59 s");
    assert_string_equal(mti_duration(buf, 59.6), "1:00");
    assert_string_equal(mti_duration(buf, 3723), "1:02:03");
    assert_string_equal(mti_duration(buf, -1), "--");
    assert_string_equal(mti_duration(buf, 1e300), "--");
}

static void widths_count_columns_not_bytes(void **state)
{
    (void)state;
    assert_int_equal(mti_text_width(""), 0);
    assert_int_equal(mti_text_width("abs\u00b2"), 4);
    assert_int_equal(mti_text_width("e\u0301"), 1);       /* a combining accent */
    assert_int_equal(mti_text_width("\u8a18\u61b6"), 4);  /* wide characters */
    assert_int_equal(mti_text_width("\xff\xfe"), 2);      /* not UTF-8: each byte shows */
    assert_int_equal(mti_text_fit("a\u00b2b", 2), 3);     /* bytes; no character is cut */
    assert_int_equal(mti_text_fit("\u8a18\u61b6", 3), 3); /* half of a wide one does not fit */
}

static void columns_are_aligned(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    mti_table *t = mti_table_new("lr", "name|bytes");
    mti_table_cell(t, "x\u00b2");
    mti_table_bytes(t, 16384);
    mti_table_cell(t, "mask");
    mti_table_bytes(t, 5);
    mti_table_note(t, 0, "a note");
    mti_table_rule(t);
    mti_table_skip(t, 1);
    mti_table_bytes(t, 16389);
    mtt_ok(mti_table_print(t, on(&p, plain)));
    mti_table_free(t);
    assert_page(&p, "  name   bytes\n"
                    "  x\u00b2    16,384\n"
                    "  mask       5\n"
                    "  a note\n"
                    "  \u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\n"
                    "        16,389\n");
}

static void elidable_columns_shrink_on_a_narrow_page(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    const mti_sheet narrow = {.width = 20, .elides = true}, piped = {.width = 20};
    mti_table *t = mti_table_new("er", NULL);
    mti_table_cell(t, "gpt.h.11.attn.heads");
    mti_table_bytes(t, 49152);
    mti_table_note(t, 0, "one storage with k, v");
    mtt_ok(mti_table_print(t, on(&p, narrow)));
    assert_page(&p, "  gpt\u2026.heads  49,152\n" /* the end tells paths apart */
                    "  one storage with\n"
                    "  k, v\n");
    open_page(&p);
    mtt_ok(mti_table_print(t, on(&p, piped)));
    mti_table_free(t);
    assert_page(&p, "  gpt.h.11.attn.heads  49,152\n"
                    "  one storage with k, v\n");
}

static bool add_section(mti_screen *s, const char *text, bool needed)
{
    const mti_sheet *to = mti_screen_open(s);
    assert_non_null(to);
    fputs(text, to->out);
    return mti_screen_close(s, true, needed);
}

static void cells_go_on_below_and_columns_are_left_out_on_a_narrow_page(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    const mti_sheet narrow = {.width = 25, .elides = true}, piped = {.width = 25};
    mti_table *t = mti_table_new("lowr", NULL);
    mti_table_cell(t, "zero=3");
    mti_table_cell(t, "6bsf");
    mti_table_cell(t, "inputs held, and more");
    mti_table_bytes(t, 1024);
    mtt_ok(mti_table_print(t, on(&p, narrow)));
    assert_page(&p, "  zero=3  inputs    1,024\n"
                    "          held,\n"
                    "          and more\n");
    open_page(&p);
    mtt_ok(mti_table_print(t, on(&p, piped)));
    mti_table_free(t);
    assert_page(&p, "  zero=3  6bsf  inputs held, and more  1,024\n");
}

static void lines_go_on_on_a_narrow_page(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    const mti_sheet narrow = {.width = 20, .elides = true}, piped = {.width = 20};
    const mti_sheet coloured = {.width = 20, .elides = true, .colour = true};
    mti_print_line(on(&p, narrow), "  rank 0  stage 0 of 4, 8 ranks");
    assert_page(&p, "  rank 0  stage 0 of\n  4, 8 ranks\n");
    open_page(&p);
    mti_print_line(on(&p, piped), "rank 0  stage 0 of 4, 8 ranks");
    assert_page(&p, "rank 0  stage 0 of 4, 8 ranks\n");
    open_page(&p);
    mti_print_headed(on(&p, coloured), MTI_BOLD, "rank 0  stage 0 of 4, 8 ranks", 6);
    assert_page(&p, "\x1b[1mrank 0\x1b[0m  stage 0 of\n4, 8 ranks\n");
    open_page(&p);
    mti_print_lines(on(&p, narrow), MTI_PLAIN, "a\nrank 0  stage 0 of 4, 8 ranks\n");
    assert_page(&p, "a\nrank 0  stage 0 of\n4, 8 ranks\n");
}

static void sections_are_printed_while_they_fit_on_the_screen(void **state)
{
    (void)state;
    page p;
    mti_screen s;
    const mti_sheet small = {.width = 10, .height = 6}; /* a line is kept free */
    open_page(&p);
    mti_screen_begin(&s, on(&p, small), false);
    assert_true(add_section(&s, "answer\n", true));
    assert_true(add_section(&s, "1\n2\n3\n4\n5\n", false));
    assert_true(s.less);
    assert_true(
        add_section(&s, "\x1b[1mtenletters\x1b[0m\nelevenlette\nend\n", false)); /* 4 lines */
    assert_true(add_section(&s, "more\n", false));
    assert_true(add_section(&s, "needed\n", true));
    assert_page(&p, "answer\n\x1b[1mtenletters\x1b[0m\nelevenlette\nend\nneeded\n");
    open_page(&p);
    mti_screen_begin(&s, on(&p, small), true);
    assert_true(add_section(&s, "1\n2\n3\n4\n5\n6\n", false));
    assert_false(s.less);
    assert_non_null(mti_screen_open(&s));
    assert_false(mti_screen_close(&s, false, true)); /* it was not made */
    assert_page(&p, "1\n2\n3\n4\n5\n6\n");
}

static void a_table_reports_that_memory_ran_out(void **state)
{
    (void)state;
    bool whole = false;
    for (uint64_t nth = 1; !whole; nth++) {
        page p;
        open_page(&p);
        mti_fail_nth_alloc(nth);
        mti_table *t = mti_table_new("ll", "a|b");
        for (int i = 0; i < 20; i++) mti_table_cell(t, "cell %d", i);
        mti_table_note(t, 1, "note");
        mt_status status = mti_table_print(t, on(&p, plain));
        mti_fail_nth_alloc(0);
        whole = status == MT_OK;
        if (!whole) mtt_failed(MT_ERR_MEMORY, "");
        mti_table_free(t);
        fclose(p.out);
        assert_true(whole == (p.n > 0)); /* either everything is written or nothing */
        free(p.text);
    }
}

static void control_characters_do_not_reach_a_terminal(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    const unsigned char text[] = "a\x1b[2J\xc3\xa9\n\xff\t\x7f\xc2\x9b";
    mti_print_bytes(p.out, text, sizeof text - 1);
    assert_page(&p, "a?[2J\xc3\xa9\n?\t??");
}

static void paragraphs_break_at_spaces(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    mti_print_wrapped(on(&p, (mti_sheet){.width = 12}), 2, "one two  three four");
    assert_page(&p, "  one two\n  three four\n");
}

static void without_a_terminal_progress_is_one_line_per_interval(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    mti_progress progress = {.sheet = {.out = p.out}, .total = 5, .every = 2, .began = mti_now()};
    for (int64_t i = 1; i <= 5; i++) mti_progress_step(&progress, i, "loss 1");
    mti_progress_say(&progress, "saved %s", "x");
    mti_progress_end(&progress);
    assert_page(&p,
                "step 2/5  loss 1  ETA 0 s\nstep 4/5  loss 1  ETA 0 s\nstep 5/5  loss 1  ETA 0 s\n"
                "saved x\n");
}

static void on_a_terminal_the_bar_is_redrawn_within_its_width(void **state)
{
    (void)state;
    page p;
    open_page(&p);
    mti_progress progress = {.sheet = {.out = p.out, .live = true, .width = 40},
                             .total = 2,
                             .every = 1,
                             .began = mti_now()};
    mti_progress_step(&progress, 1, "loss 1.2345");
    mti_progress_say(&progress, "a line");
    mti_progress_step(&progress, 2, "loss 1.2345");
    mti_progress_end(&progress);
    fclose(p.out);
    assert_null(strchr(p.text, '\t'));
    assert_non_null(strstr(p.text, "\u2588\u2588"));
    assert_non_null(strstr(p.text, "\r\x1b[Ka line\n"));
    for (char *line = strtok(p.text, "\r\n"); line; line = strtok(NULL, "\r\n"))
        assert_true(mti_text_width(line) <=
                    40 + 3); /* the sequence that clears the line counts as 3 */
    free(p.text);
}

static void json_is_written_whole_or_not_at_all(void **state)
{
    (void)state;
    json_t *root = json_object();
    mti_json_put_int(root, "bytes", 83886080);
    mti_json_put_text(root, "preset", NULL);
    mti_json_put(root, "broken", NULL); /* as if memory had run out */
    assert_int_equal(mti_json_write(root, "never-written.json"), MT_ERR_MEMORY);
    mtt_failed(MT_ERR_MEMORY, "json");
    assert_null(fopen("never-written.json", "r"));
}

/* The text of a picture; the caller frees it. */
static char *picture_of(const mti_svg_bars *bars)
{
    char path[MTT_PATH];
    mtt_temporary_file(path);
    mtt_ok(mti_svg_write(bars, path));
    size_t n;
    char *text = mti_file_read(path, 1 << 20, &n);
    assert_non_null(text);
    unlink(path);
    return text;
}

static void bars_are_to_scale_and_labels_are_escaped(void **state)
{
    (void)state;
    const mti_svg_row rows[] = {{"a < b & c", "note", {1024 * 1024, 512 * 1024}},
                                {"none", NULL, {0, 0}}};
    char *text = picture_of(&(mti_svg_bars){.title = "bytes \"so\"",
                                            .n_series = 2,
                                            .series = {"saved", "peak"},
                                            .n_rows = 2,
                                            .rows = rows});
    assert_non_null(strstr(text, "a &lt; b &amp; c"));
    assert_non_null(strstr(text, "bytes &quot;so&quot;"));
    assert_non_null(strstr(text, "1 MiB"));
    assert_non_null(strstr(text, "0.5 MiB"));
    assert_non_null(strstr(text, "width=\"560.00\"")); /* the longest fills the plot, ... */
    assert_non_null(strstr(text, "width=\"280.00\"")); /* ... half of it is half as long */
    assert_non_null(strstr(text, "width=\"0.00\""));
    assert_null(strstr(text, "nan"));
    mti_free(text);
}

static void a_scale_ends_at_a_round_number_past_the_longest_bar(void **state)
{
    (void)state;
    const struct {
        double most;
        const char *end;
    } cases[] = {{0, ">1 B<"},
                 {7, ">7 B<"},
                 {1000, ">1000 B<"},
                 {3.1 * 1024, "3.5 KiB"},
                 {1023.0 * 1024, ">1250 KiB<"},
                 {0x1p40 * 9.9, ">10 TiB<"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mti_svg_row row = {"x", NULL, {cases[i].most}};
        char *text = picture_of(&(mti_svg_bars){
            .title = "t", .n_series = 1, .series = {"s"}, .n_rows = 1, .rows = &row});
        const char *found = strstr(text, cases[i].end);
        if (!found) fail_msg("%g: no %s in %s", cases[i].most, cases[i].end, text);
        mti_free(text);
    }
}

static void a_picture_that_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    const mti_svg_row row = {"x", NULL, {1}};
    const mti_svg_bars bars = {
        .title = "t", .n_series = 1, .series = {"s"}, .n_rows = 1, .rows = &row};
    assert_int_equal(mti_svg_write(&bars, "/nonexistent/x.svg"), MT_ERR_IO);
    mtt_failed(MT_ERR_IO, "/nonexistent");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousands_are_separated),
        cmocka_unit_test(scaled_numbers_keep_three_digits),
        cmocka_unit_test(durations_have_readable_units),
        cmocka_unit_test(widths_count_columns_not_bytes),
        cmocka_unit_test(columns_are_aligned),
        cmocka_unit_test(elidable_columns_shrink_on_a_narrow_page),
        cmocka_unit_test(cells_go_on_below_and_columns_are_left_out_on_a_narrow_page),
        cmocka_unit_test(lines_go_on_on_a_narrow_page),
        cmocka_unit_test(sections_are_printed_while_they_fit_on_the_screen),
        cmocka_unit_test(a_table_reports_that_memory_ran_out),
        cmocka_unit_test(control_characters_do_not_reach_a_terminal),
        cmocka_unit_test(paragraphs_break_at_spaces),
        cmocka_unit_test(without_a_terminal_progress_is_one_line_per_interval),
        cmocka_unit_test(on_a_terminal_the_bar_is_redrawn_within_its_width),
        cmocka_unit_test(json_is_written_whole_or_not_at_all),
        cmocka_unit_test(bars_are_to_scale_and_labels_are_escaped),
        cmocka_unit_test(a_scale_ends_at_a_round_number_past_the_longest_bar),
        cmocka_unit_test(a_picture_that_cannot_be_written_is_an_error),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
