/* A curve of cost against bytes: its marks, its texts, and failed writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "files/files.h"
#include "mtt.h"
#include "report/pictures.h"

#define MIB 1048576.0

static const mti_svg_point front[] = {{1 * MIB, 20, NULL}, {3 * MIB, 5, NULL}, {4 * MIB, 0, NULL}};
static const mti_svg_point others[] = {
    {2 * MIB, 20, "full <a>"}, {2 * MIB, 20, "sqrt"}, {4 * MIB, 4, "selective"}};
static const mti_svg_curve curve = {.title = "a & b",
                                    .bytes_name = "peak",
                                    .percent_name = "again",
                                    .front_name = "least",
                                    .others_name = "presets",
                                    .n_front = 3,
                                    .n_others = 3,
                                    .front = front,
                                    .others = others};

static char *picture(const mti_svg_curve *c)
{
    char path[MTT_PATH];
    size_t n;
    mtt_temporary_file(path);
    mtt_ok(mti_svg_curve_write(c, path));
    char *text = mti_file_read(path, 1 << 20, &n);
    unlink(path);
    assert_non_null(text);
    return text;
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("the picture lacks %s", part);
}

static void marks_lie_at_the_places_of_their_values(void **state)
{
    (void)state;
    char *text = picture(&curve);
    assert_contains(text, "<circle cx=\"259.0\" cy=\"96.0\"");  /* 84 + 700/4, the top: 20 % */
    assert_contains(text, "<circle cx=\"784.0\" cy=\"476.0\""); /* 84 + 700, the bottom: 0 % */
    assert_contains(text, "d=\"M259.0 96.0H609.0V381.0H784.0V476.0H784\"");
    assert_contains(text, "<rect x=\"430.0\" y=\"92.0\" width=\"8\"");
    assert_contains(text, ">4 MiB</text>");
    assert_contains(text, ">20 %</text>");
    mti_free(text);
}

static void labels_of_near_marks_do_not_overlap_and_markup_is_escaped(void **state)
{
    (void)state;
    char *text = picture(&curve);
    assert_contains(text, "y=\"89.0\" font-size=\"12\" fill=\"#5a6570\">full &lt;a&gt;<");
    assert_contains(text,
                    "y=\"113.0\" font-size=\"12\" fill=\"#5a6570\" text-anchor=\"end\">sqrt<");
    assert_contains(text, "text-anchor=\"end\">selective<"); /* at the right edge */
    assert_contains(text, ">a &amp; b<");
    mti_free(text);
}

static void a_front_alone_has_no_second_legend(void **state)
{
    (void)state;
    mti_svg_curve alone = curve;
    alone.n_others = 0;
    char *text = picture(&alone);
    assert_contains(text, ">least<");
    assert_null(strstr(text, "presets"));
    mti_free(text);
}

static void a_picture_that_cannot_be_written_is_an_error(void **state)
{
    (void)state;
    assert_int_not_equal(mti_svg_curve_write(&curve, "/nowhere/at/all.svg"), MT_OK);
    mtt_failed(mt_last_status(), "/nowhere/at/all.svg");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_lie_at_the_places_of_their_values),
        cmocka_unit_test(labels_of_near_marks_do_not_overlap_and_markup_is_escaped),
        cmocka_unit_test(a_front_alone_has_no_second_legend),
        cmocka_unit_test(a_picture_that_cannot_be_written_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
