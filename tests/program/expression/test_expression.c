/* Expressions: what they keep, their values, and the places that errors point to. */
#include <string.h>
#include "expression/walk.h"
#include "mtt.h"

/* ---- what is kept ---- */

/* Bytes of the distinct storages that are kept, without weights. */
static size_t kept_by(const char *text, const char *shapes)
{
    mti_expression e;
    mti_tape t;
    size_t bytes = 0;
    mt_device *device = mt_device_open("meta");
    assert_true(mti_expression_read(&e, &(mti_expression_options){.text = text, .shapes = shapes}));
    assert_true(mti_expression_record(&t, device, &e));
    for (size_t i = 0; i < t.saves.n; i++)
        if (t.saves.at[i].payer == &t.saves.at[i] && !t.saves.at[i].parameter)
            bytes += t.saves.at[i].bytes;
    mti_tape_free(&t);
    mti_expression_free(&e);
    assert_int_equal(mtt_allocated(device), 0);
    mt_device_release(device);
    return bytes;
}

static void the_expressions_of_the_documents_keep_the_stated_bytes(void **state)
{
    (void)state;
    assert_int_equal(kept_by("x@w", "x=10x100,w=100x10"), 4000);
    assert_int_equal(kept_by("x+w", "x=10x100,w=100"), 0);
    assert_int_equal(kept_by("(x*2)@w", "x=10x100,w=100x10"), 4000);
    assert_int_equal(kept_by("(((x+2)@w1)+3)*w2", "x=10x100,w1=100x50,w2=10x50"), 4000 + 2000);
    assert_int_equal(kept_by("x*x", "x=10x100"), 4000); /* one storage */
}

static void lines_name_values_and_checkpoints_keep_what_comes_from_outside(void **state)
{
    (void)state;
    assert_int_equal(kept_by("h = x@w1\nh = gelu(h) ; y = h@w2", "x=10x100,w1=100x50,w2=50x10"),
                     4000 + 2000 + 2000);
    assert_int_equal(kept_by("h = checkpoint(gelu(x@w1)); h@w2", "x=10x100,w1=100x50,w2=50x10"),
                     4000 + 2000);
    assert_int_equal(kept_by("h = x*2; checkpoint(h*checkpoint(exp(h)*x))", "x=10x100"), 8000);
    assert_int_equal(kept_by("h = x@w\n-x*2", "x=10x10,w=10x10"), 4 * 100); /* one line */
}

/* ---- a step ---- */

/* gradients: "h x w ", those of terms in the order of backward, then those of leaves. */
static void steps_of(const char *text, size_t n, const char *const *wanted, const char *gradients)
{
    mti_expression e;
    mti_expression_walk walk;
    mt_device *device = mt_device_open("meta");
    assert_true(mti_expression_read(
        &e, &(mti_expression_options){.text = text, .shapes = "x=10x100,w=100x10"}));
    assert_true(mti_expression_walk_of(&walk, device, &e));
    assert_int_equal(walk.steps.n, n);
    for (size_t i = 0; i < n; i++) {
        const mti_expression_step *s = &walk.steps.at[i];
        const mti_term *t = &e.terms[s->term];
        char step[80];
        snprintf(step, sizeof step, "%s %.*s", s->phase, (int)(t->to - t->from), text + t->from);
        assert_string_equal(step, wanted[i]);
        if (i) assert_true(s->n_events >= s[-1].n_events);
    }
    char of[160] = "";
    for (size_t i = 0; i < walk.gradients.n; i++) {
        const mti_expression_gradient *g = &walk.gradients.at[i];
        mti_append(of, sizeof of, "%.*s ", (int)g->length, g->of);
        bool made = false;
        for (size_t k = 0; k < walk.timeline.events.n; k++)
            made = made || walk.timeline.events.at[k].serial == g->storage;
        assert_true(made);
    }
    assert_string_equal(of, gradients);
    mti_expression_walk_free(&walk);
    mti_expression_free(&e);
    assert_int_equal(mtt_allocated(device), 0);
    mt_device_release(device);
}

static void a_step_goes_term_by_term_and_back(void **state)
{
    (void)state;
    steps_of("h = x@w; relu(h)+relu(h)", 8,
             (const char *const[]){"forward x@w", "forward relu(h)", "forward relu(h)",
                                   "forward relu(h)+relu(h)", "backward relu(h)+relu(h)",
                                   "backward relu(h)", "backward relu(h)", "backward x@w"},
             "relu(h)+relu(h) relu(h) relu(h) h x w ");
    steps_of("checkpoint(gelu(x@w))", 5,
             (const char *const[]){"forward x@w", "forward gelu(x@w)", "recompute x@w",
                                   "backward gelu(x@w)", "backward x@w"},
             "gelu(x@w) x@w x w ");
}

/* ---- values ---- */

/* The value of the expression with A = 7, B = 3, C = 2, each [1,1], in f64. */
static double value_of(const char *text)
{
    static const double values[] = {7, 3, 2};
    mti_expression e;
    mt_tensor *leaves[MTI_MAX_LEAVES];
    mt_device *device = mtt_device();
    char shapes[64] = "";
    for (const char *c = "ABC"; *c; c++)
        if (strchr(text, *c))
            snprintf(shapes + strlen(shapes), sizeof shapes - strlen(shapes), "%s%c=1x1",
                     *shapes ? "," : "", *c);
    assert_true(mti_expression_read(
        &e, &(mti_expression_options){.text = text, .shapes = shapes, .dtype = MT_F64}));
    for (int i = 0; i < e.n_leaves; i++)
        leaves[i] = mtt_made(mt_from_data(device, MT_F64, MT_SHAPE(1, 1),
                                          &values[e.leaves[i].name[0] - 'A'], sizeof(double)));
    mt_tensor *y = mtt_made(mti_expression_run(&e, leaves, NULL));
    double value = mt_item(y);
    mt_release(y);
    for (int i = 0; i < e.n_leaves; i++) mt_release(leaves[i]);
    mti_expression_free(&e);
    mt_device_release(device);
    return value;
}

static void signs_bind_as_in_python(void **state)
{
    (void)state;
    const struct {
        const char *text;
        double value;
    } cases[] = {
        {"A-B-C", 2},        {"A-(B-C)", 6},       {"A+B*C", 13},
        {"(A+B)*C", 20},     {"A/B/C", 7.0 / 6},   {"A/(B/C)", 14.0 / 3},
        {"A/B*C", 14.0 / 3}, {"A*B/C", 10.5},      {"A@B+C", 23},
        {"A+B@C", 13},       {"A*B@C", 42},        {"A-B@C-C", -1},
        {"-A*B", -21},       {"A*-B", -21},        {"-A-B", -10},
        {"--A", 7},          {"-(A+B)*-C", 20},    {"-A@B", -21},
        {"2-A", -5},         {"A-2", 5},           {"2+A", 9},
        {"2*A", 14},         {"A/2", 3.5},         {"14/A", 2},
        {"2*3+A", 13},       {"A-2-3", 2},         {"A*(2-3)/4", -1.75},
        {"-2+A", 5},         {"2--A", 9},          {"1e1+A", 17},
        {".5*A", 3.5},       {"5.*A", 35},         {"1.5e+1-A", 8},
        {"25e-2*A", 1.75},   {" A\t+ B ", 10},     {"((((A))))", 7},
        {"(2)*(A)", 14},     {"pow(A, 2)", 49},    {"pow(A,4/2)-B", 46},
        {"relu(-A)+C", 2},   {"clamp(A,-1,1)", 1}, {"sum(A*B)+1", 22},
        {"max(A)", 7},       {"abs(-A-B)", 10},    {"affine(A, 2, -1)", 13},
        {"mul(A, B)", 21},   {"mse(A, B)", 16},    {"2*relu(A@B-C)*C", 76},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double value = value_of(cases[i].text);
        if (value != cases[i].value)
            fail_msg("%s: %.17g instead of %.17g", cases[i].text, value, cases[i].value);
    }
}

/* ---- every op ---- */

/* Writes "op(a,b, 1,2)" and the shapes "a=2x3,b=3" of the op's case. */
static void write_call(const mti_case *c, char *text, size_t n_text, char *shapes, size_t n_shapes)
{
    bool inplace = strstr(c->op, "_inplace") != NULL, turned = !strcmp(c->op, "contiguous");
    size_t n = (size_t)snprintf(text, n_text, "%s(", c->op), m = 0;
    for (int i = 0; i < c->n_in; i++) {
        n += (size_t)snprintf(text + n, n_text - n,
                              turned    ? "permute(%c,1,0)"
                              : inplace ? "(%c*2)"
                              : i       ? ",%c"
                                        : "%c",
                              'a' + i);
        m += (size_t)snprintf(shapes + m, n_shapes - m, "%s%c=", i ? "," : "", 'a' + i);
        for (int d = 0; d < c->in[i].rank; d++)
            m += (size_t)snprintf(shapes + m, n_shapes - m, "%s%lld", d ? "x" : "",
                                  (long long)c->in[i].shape[d]);
    }
    for (int i = 0; i < c->n_p; i++)
        n += (size_t)snprintf(text + n, n_text - n, ", %.17g", c->p[i]);
    snprintf(text + n, n_text - n, ")");
}

static const mti_case_sizes sizes = {6, 6, 4, 6, 2, 2, 6, 8};

static void every_op_of_the_table_can_be_called(void **state)
{
    (void)state;
    mti_case c;
    int n = 0;
    for (; mti_case_get(&mti_all_cases, MTI_CASE_AUDIT, n, sizes, &c); n++) {
        char text[256], shapes[256];
        mti_expression e;
        mti_tape t;
        mt_device *device = mtt_device();
        write_call(&c, text, sizeof text, shapes, sizeof shapes);
        bool read = mti_expression_read(
            &e, &(mti_expression_options){.text = text, .shapes = shapes, .weights = "none"});
        if (!read || !mti_expression_record(&t, device, &e))
            fail_msg("%s with %s: %s", text, shapes, mt_last_error());
        bool boolean = strlen(c.op) == 2; /* a comparison: no gradient */
        const char *last = t.nodes.n ? t.nodes.at[t.nodes.n - 1].op : "nothing";
        if (strcmp(last, boolean ? "nothing" : c.op) != 0) fail_msg("%s recorded %s", text, last);
        mti_tape_free(&t);
        mti_expression_free(&e);
        assert_int_equal(mtt_allocated(device), 0);
        mt_device_release(device);
    }
    assert_true(n >= mt_all_ops_count());
}

/* ---- errors ---- */

static const struct {
    const char *text, *shapes, *no_grad, *weights, *words;
    int place; /* column of the caret */
} refusals[] = {
    {"", "x=3", .words = "the end is not expected here; need a number, a name", .place = 0},
    {"x+", "x=3", .words = "the end is not expected here", .place = 2},
    {"x +* y", "x=3,y=3", .words = "\"*\" is not expected here", .place = 3},
    {"x y", "x=3,y=3", .words = "\"y\" is not expected here; need a sign", .place = 2},
    {"2x", "x=3", .words = "\"x\" is not expected here; need a sign", .place = 1},
    {"x**2", "x=3", .words = "\"*\" is not expected here", .place = 2},
    {"(x", "x=3", .words = "need a sign or \")\"", .place = 2},
    {"x)", "x=3", .words = "\")\" is not expected here", .place = 1},
    {"()", "x=3", .words = "\")\" is not expected here", .place = 1},
    {"x$", "x=3", .words = "\"$\" is not expected here", .place = 1},
    {"x\x01", "x=3", .words = "this character is not expected here", .place = 1},
    {"x + \xc3\xa9", "x=3", .words = "this character is not expected here", .place = 4},
    {"x*q", "x=3", .words = "\"q\" has no shape; give it one, such as --shapes q=10x100",
     .place = 2},
    {"x*q", .words = "\"x\" has no shape", .place = 0},
    {"x+gelu", "x=3", .words = "\"gelu\" has no shape", .place = 2},
    {"x+geul(x)", "x=3", .words = "\"geul\" is not an op; did you mean gelu?", .place = 2},
    {"zzzzz(x)", "x=3", .words = "\"zzzzz\" is not an op; these are: add, sub, mul", .place = 0},
    {"x(x)", "x=3", .words = "\"x\" is not an op", .place = 0},
    {"relu()", "x=3", .words = "call it as relu(x)", .place = 0},
    {"relu(x,x)", "x=3", .words = "call it as relu(x)", .place = 0},
    {"1+relu(x,2)", "x=3", .words = "call it as relu(x)", .place = 2},
    {"relu(x,)", "x=3", .words = "\")\" is not expected here", .place = 7},
    {"relu(x", "x=3", .words = "the end is not expected here; need a sign, \",\" or \")\"",
     .place = 6},
    {"linear(x)", "x=3", .words = "call it as linear(x, w[, b])", .place = 0},
    {"clamp(x,1)", "x=3", .words = "call it as clamp(x, low, high)", .place = 0},
    {"softmax(x,1,0,1)", "x=3",
     .words = "call it as softmax(x[, scale, causal]): tensors, then numbers", .place = 0},
    {"clamp(1,x,2)", "x=3", .words = "a tensor after a number", .place = 8},
    {"sum(x,0.5)", "x=3", .words = "sum takes whole numbers, and 0.5 is not one", .place = 0},
    {"topk(x,1e10)", "x=3", .words = "whole numbers", .place = 0},
    {"affine(x,1e300,0)", "x=3", .words = "smaller numbers", .place = 0},
    {"sum(x,1,2,3,4,5,6,7,8,9)", "x=3", .words = "no op takes more than 8 numbers", .place = 22},
    {"cat(x,x,x,x,x,x,x)", "x=3", .words = "at most 6 tensors", .place = 16},
    {"x@2", "x=3", .words = "one side is a number", .place = 1},
    {"2@x", "x=3", .words = "one side is a number", .place = 1},
    {"x/0", "x=3", .words = "a division by 0", .place = 1},
    {"x/(2-2)", "x=3", .words = "a division by 0", .place = 1},
    {"1e300*1e300*x", "x=3", .words = "too large for a number", .place = 5},
    {"1e999*x", "x=3", .words = "the number is too large", .place = 0},
    {"2+3", "x=3", .words = "this is the number 5", .place = 0},
    {"x@y", "x=3x4,y=3x4", .words = "matmul: a is [3,4], b is [3,4]", .place = 1},
    {"x+(x - y)", "x=3,y=4", .words = "sub: a is [3], b is [4]", .place = 5},
    {"x+sum(y,0,3)", "x=3,y=4", .words = "sum", .place = 2},
    {"relu_inplace(x)", "x=3", .words = "leaf", .place = 0},
    {"split(x,0,5,3)", "x=3", .words = "no result with these numbers", .place = 0},
    {"cast(x,99)", "x=3", .words = "dtype 99 is unknown", .place = 0},
    {"cast(x,f99)", "x=3", .words = "\"f99\" has no shape", .place = 7},
    {"x", "", .words = "a name is missing", .place = 0},
    {"x", "x", .words = "\"=\" is missing", .place = 1},
    {"x", "x=", .words = "an extent is missing", .place = 2},
    {"x", "x=3x", .words = "an extent is missing", .place = 4},
    {"x", "x=0", .words = "an extent of 0", .place = 2},
    {"x", "x=3x99999999999999999999", .words = "the extent is too large", .place = 4},
    {"x", "x=3,", .words = "a name is missing", .place = 4},
    {"x", "x=3 ", .words = "not expected here", .place = 3},
    {"x", "x=3,x=4", .words = "the name is there already", .place = 4},
    {"x", "3=3", .words = "a name is missing", .place = 0},
    {"x", "x=1x1x1x1x1x1x1x1x1", .words = "too many extents", .place = 18},
    {"x", "x=3,y=4", .words = "\"y\" is not in the expression", .place = 4},
    {"x", "a234567890123456789012345678901b=3", .words = "the name is too long", .place = 0},
    {"x", "x=3", .no_grad = "y", .words = "not a name of --shapes", .place = 0},
    {"x", "x=3", .no_grad = "x,", .words = "not a name of --shapes", .place = 2},
    {"x", "x=3", .weights = "x,y", .words = "not a name of --shapes", .place = 2},
};

static bool read_and_record(mt_device *device, const mti_expression_options *options)
{
    mti_expression e;
    mti_tape t = {0};
    bool ok = mti_expression_read(&e, options) && mti_expression_record(&t, device, &e);
    mti_tape_free(&t);
    mti_expression_free(&e);
    return ok;
}

static void an_error_points_to_its_place(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const char *text = refusals[i].text;
        assert_false(
            read_and_record(device, &(mti_expression_options){.text = text,
                                                              .shapes = refusals[i].shapes,
                                                              .no_grad = refusals[i].no_grad,
                                                              .weights = refusals[i].weights}));
        char error[1024];
        snprintf(error, sizeof error, "%s", mt_last_error());
        const char *last = strrchr(error, '\n');
        int place = last ? (int)strlen(last) - 4 : -1; /* a newline, two spaces, the caret */
        if (place != refusals[i].place || last[strlen(last) - 1] != '^')
            fail_msg("\"%s\": place %d instead of %d: %s", text, place, refusals[i].place, error);
        mtt_failed(MT_ERR_ARGUMENT, refusals[i].words);
        assert_int_equal(mtt_allocated(device), 0);
    }
    mt_device_release(device);
}

static void a_long_expression_is_shown_around_the_place(void **state)
{
    (void)state;
    char text[1202] = "";
    mt_device *device = mt_device_open("meta");
    mti_expression_options options = {.text = text, .shapes = "x=3"};
    for (int i = 0; i < 400; i++) strcat(text, "x+");
    strcpy(text + 600, "?");
    assert_false(read_and_record(device, &options));
    char error[1024];
    snprintf(error, sizeof error, "%s", mt_last_error());
    mtt_failed(MT_ERR_ARGUMENT, "\"?\" is not expected here", "x+x+x+?\n");
    const char *line = strchr(error, '\n') + 1;
    assert_true(strchr(line, '?') - line == strchr(line, '^') - strchr(line, '\n') - 1);
    memset(text, '(', 101), strcpy(text + 101, "x");
    assert_false(read_and_record(device, &options));
    mtt_failed(MT_ERR_ARGUMENT, "more than 100 brackets");
    memset(text, '-', 500), strcpy(text + 500, "x");
    assert_false(read_and_record(device, &options));
    mtt_failed(MT_ERR_ARGUMENT, "more than 100 brackets or signs");
    memset(text, 'x', 1201), text[1201] = 0;
    assert_false(read_and_record(device, &options));
    mtt_failed(MT_ERR_ARGUMENT, "1201 characters");
    mt_device_release(device);
}

/* ---- random texts ---- */

#define STRINGS 20000

#define PICK(list, seed) (list)[(size_t)mtt_draw(seed, 0, sizeof(list) / sizeof *(list))]

/* A short text that is an expression about half of the time: operands and signs stand where they
 * may and brackets are closed, but one piece in 20 is a random one. */
static void draw_text(uint64_t *seed, char text[256])
{
    static const char *const operands[] = {"x",     "w",        "y",        "x",      "2",
                                           "0",     ".5",       "1e9",      "-",      "(",
                                           "relu(", "sum(",     "linear(",  "where(", "cat(",
                                           "pow(",  "softmax(", "permute(", "lt(",    "embedding("};
    static const char *const signs[] = {"+", "-", "*", "/", "@", ")", ")", ",", " "};
    static const char *const others[] = {"split(", "cast(", "bf16", "$", "\xff", "**", "reshape("};
    int n = (int)mtt_draw(seed, 1, 10), open = 0;
    bool operand = true;
    *text = 0;
    for (int k = 0; k < n; k++) {
        const char *piece = operand ? PICK(operands, seed) : PICK(signs, seed);
        if (mtt_draw(seed, 0, 20) < 1) piece = PICK(others, seed);
        char last = piece[strlen(piece) - 1];
        open += (last == '(') - (last == ')');
        operand = last != ')' && strchr("+-*/@(,", last);
        strcat(text, piece);
    }
    if (operand) strcat(text, "x");
    for (; open > 0; open--) strcat(text, ")");
}

/* Each text is read, and run if it is an expression. */
static void any_text_is_read_or_refused(void **state)
{
    (void)state;
    uint64_t seed = 20261122;
    int n_read = 0;
    mt_device *device = mt_device_open("meta");
    for (int i = 0; i < STRINGS; i++) {
        char text[256];
        draw_text(&seed, text);
        char shapes[64] = "";
        for (const char *c = "xwy"; *c; c++)
            if (strchr(text, *c))
                snprintf(shapes + strlen(shapes), sizeof shapes - strlen(shapes), "%s%c=4x4",
                         *shapes ? "," : "", *c);
        mt_clear_error();
        bool ok = read_and_record(
            device, &(mti_expression_options){.text = text, .shapes = *shapes ? shapes : NULL});
        n_read += ok;
        if (!ok && (mt_last_status() != MT_ERR_ARGUMENT || !strchr(mt_last_error(), '^')))
            fail_msg("\"%s\": %s", text, mt_last_error());
        assert_int_equal(mtt_allocated(device), 0);
    }
    mt_device_release(device);
    assert_true(n_read > STRINGS / 8);
}

static bool read_and_walk(mt_device *device, const mti_expression_options *options)
{
    mti_expression e;
    mti_expression_walk walk = {0};
    bool ok = mti_expression_read(&e, options) && mti_expression_walk_of(&walk, device, &e);
    mti_expression_walk_free(&walk);
    mti_expression_free(&e);
    return ok;
}

static void memory_may_run_out_anywhere_in(const char *text,
                                           bool (*act)(mt_device *, const mti_expression_options *))
{
    mt_device *device = mtt_device();
    const mti_expression_options options = {
        .text = text, .shapes = "x=2x3,w1=4x3,y=2x4", .no_grad = "y"};
    bool refused = true;
    uint64_t nth = 0;
    while (refused) {
        mti_fail_nth_alloc(++nth);
        bool ok = act(device, &options);
        refused = mti_alloc_count() >= nth;
        mti_fail_nth_alloc(0);
        assert_true(ok || refused);
        if (!ok) mtt_failed(MT_ERR_MEMORY, ""); /* the pool asks again for a refused segment */
        assert_int_equal(mtt_allocated(device), 0);
        mt_mem_empty_cache(device);
    }
    assert_true(nth > 40);
    mt_device_release(device);
}

static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    memory_may_run_out_anywhere_in("mse(linear(relu(x)*2, w1), -y/2)", read_and_record);
    memory_may_run_out_anywhere_in("h = relu(x)*2; mse(checkpoint(linear(h, w1)), -y/2)",
                                   read_and_walk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_expressions_of_the_documents_keep_the_stated_bytes),
        cmocka_unit_test(lines_name_values_and_checkpoints_keep_what_comes_from_outside),
        cmocka_unit_test(a_step_goes_term_by_term_and_back),
        cmocka_unit_test(signs_bind_as_in_python),
        cmocka_unit_test(every_op_of_the_table_can_be_called),
        cmocka_unit_test(an_error_points_to_its_place),
        cmocka_unit_test(a_long_expression_is_shown_around_the_place),
        cmocka_unit_test(any_text_is_read_or_refused),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
