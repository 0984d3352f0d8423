/* expression.c: reads an expression. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "expression/expression.h"

#define LONGEST 1000 /* characters of an expression */
#define DEEPEST 100  /* brackets and signs within each other */

/* ---- the reader ---- */

typedef struct reader {
    mti_expression *e;
    const char *text;
    size_t at;
    int depth;
    bool dtypes; /* within cast: a name may be that of a dtype */
} reader;

/* A term and the text it takes, brackets around it included. */
typedef struct part {
    size_t term, from, to;
} part;

static const part failed = {.term = MTI_NO_TERM};

static part read_sum(reader *r);

static bool ok(part p) { return p.term != MTI_NO_TERM; }
static mti_term *term_of(const reader *r, part p) { return &r->e->terms[p.term]; }
static bool is_number(const reader *r, part p) { return term_of(r, p)->kind == MTI_TERM_NUMBER; }

/* The next character that is no space. */
static char peek(reader *r)
{
    while (isspace((unsigned char)r->text[r->at])) r->at++;
    return r->text[r->at];
}

static bool refuse_next(reader *r, const char *wanted)
{
    char next = peek(r), what[16] = "the end";
    if (next && isprint((unsigned char)next)) snprintf(what, sizeof what, "\"%c\"", next);
    if (next && !isprint((unsigned char)next)) snprintf(what, sizeof what, "this character");
    return mti_point_at("expr", r->text, r->at, "%s is not expected here; need %s", what, wanted);
}

/* There is a term for each character at most. */
static part add(reader *r, mti_term term)
{
    size_t place = r->e->n_terms++;
    term.next = term.last_use = MTI_NO_TERM;
    r->e->terms[place] = term;
    return (part){place, term.from, term.to};
}

static part add_number(reader *r, size_t from, double number)
{
    return add(r, (mti_term){.kind = MTI_TERM_NUMBER,
                             .at = from,
                             .from = from,
                             .to = r->at,
                             .number = number,
                             .first = MTI_NO_TERM});
}

/* ---- factors ---- */

static size_t digits(const char *text) { return strspn(text, "0123456789"); }

/* The length of a number such as 2, .5 or 1e-5; 0 if none begins there. */
static size_t number_length(const char *text)
{
    size_t whole = digits(text), n = whole, part_of = 0;
    if (text[n] == '.') part_of = digits(text + n + 1), n += 1 + part_of;
    if (!whole && !part_of) return 0;
    if (text[n] == 'e' || text[n] == 'E') {
        size_t sign = text[n + 1] == '-' || text[n + 1] == '+';
        size_t exponent = digits(text + n + 1 + sign);
        if (exponent) n += 1 + sign + exponent;
    }
    return n;
}

static part read_number(reader *r, size_t n)
{
    char copy[LONGEST + 1];
    size_t from = r->at;
    snprintf(copy, sizeof copy, "%.*s", (int)n, r->text + from);
    double value = mti_strtod(copy, NULL);
    if (!isfinite(value)) {
        mti_point_at("expr", r->text, from, "the number is too large");
        return failed;
    }
    r->at += n;
    return add_number(r, from, value);
}

/* The latest line that has named its value so; MTI_NO_TERM: none. */
static size_t find_named(const reader *r, const char *name, size_t n)
{
    size_t i = r->e->n_terms;
    while (i--) {
        const mti_term *t = &r->e->terms[i];
        if (t->name_length == n && !strncmp(r->text + t->name, name, n)) return i;
    }
    return MTI_NO_TERM;
}

static part read_named(reader *r, size_t source, size_t n)
{
    size_t from = r->at;
    r->at += n;
    r->e->terms[source].last_use = r->e->n_terms;
    return add(r, (mti_term){.kind = MTI_TERM_NAME,
                             .at = from,
                             .from = from,
                             .to = r->at,
                             .source = source,
                             .first = MTI_NO_TERM});
}

static part read_leaf(reader *r, size_t n)
{
    size_t from = r->at, named = find_named(r, r->text + from, n);
    if (named != MTI_NO_TERM) return read_named(r, named, n);
    char name[MTI_LEAF_NAME];
    mt_dtype dtype;
    snprintf(name, sizeof name, "%.*s", (int)n, r->text + from);
    int leaf = mti_leaf_find(r->e, r->text + from, n);
    r->at += n;
    if (leaf < 0 && r->dtypes && mt_dtype_parse(name, &dtype)) return add_number(r, from, dtype);
    if (leaf < 0) {
        mti_point_at("expr", r->text, from,
                     "\"%.*s\" has no shape; give it one, such as --shapes %s=10x100",
                     (int)(n < 60 ? n : 60), r->text + from, name);
        return failed;
    }
    r->e->leaves[leaf].used = true;
    return add(r, (mti_term){.kind = MTI_TERM_LEAF,
                             .at = from,
                             .from = from,
                             .to = r->at,
                             .leaf = leaf,
                             .first = MTI_NO_TERM});
}

/* The op of that name; -1 with an error. */
static int find_op(reader *r, size_t n)
{
    const char *names[256], *text = r->text + r->at;
    char all[1024] = "";
    size_t n_names = 0;
    char name[64];
    for (int i = 0; i < mt_all_ops_count() && n_names < 256; i++) {
        names[n_names++] = mt_all_ops_get(i).name;
        mti_append(all, sizeof all, "%s%s", *all ? ", " : "", mt_all_ops_get(i).name);
        if (strlen(names[i]) == n && !strncmp(names[i], text, n)) return i;
    }
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    const char *near = mti_nearest(names, n_names, name);
    if (near)
        mti_point_at("expr", r->text, r->at, "\"%s\" is not an op; did you mean %s?", name, near);
    else
        mti_point_at("expr", r->text, r->at, "\"%s\" is not an op; these are: %s", name, all);
    return -1;
}

/* One argument: a tensor joins the call's operands, a number its numbers. */
static bool read_argument(reader *r, mti_term *call, size_t *last, int *n_tensors)
{
    part p = read_sum(r);
    if (!ok(p)) return false;
    mti_term *t = term_of(r, p);
    if (t->kind == MTI_TERM_NUMBER && call->n_numbers == MTI_CASE_PARAMETERS)
        return mti_point_at("expr", r->text, t->at, "no op takes more than %d numbers",
                            MTI_CASE_PARAMETERS);
    if (t->kind == MTI_TERM_NUMBER) {
        call->numbers[call->n_numbers++] = t->number;
        r->e->n_terms--; /* it was the last */
        return true;
    }
    if (call->n_numbers)
        return mti_point_at("expr", r->text, t->at,
                            "a tensor after a number; an op takes its tensors first");
    if (*n_tensors == MTI_CASE_INPUTS)
        return mti_point_at("expr", r->text, t->at, "a call takes at most %d tensors",
                            MTI_CASE_INPUTS);
    if (*last == MTI_NO_TERM)
        call->first = p.term;
    else
        r->e->terms[*last].next = p.term;
    *last = p.term;
    (*n_tensors)++;
    return true;
}

/* op(...), at the name. */
static part read_call(reader *r, size_t n)
{
    size_t from = r->at, last = MTI_NO_TERM;
    int n_tensors = 0, op = find_op(r, n);
    bool outer = r->dtypes;
    if (op < 0) return failed;
    mti_term call = {
        .kind = MTI_TERM_CALL, .at = from, .from = from, .op = op, .first = MTI_NO_TERM};
    r->dtypes = !strcmp(mt_all_ops_get(op).name, "cast");
    r->at += n;
    peek(r), r->at++; /* the bracket */
    bool more = peek(r) != ')';
    while (more) {
        if (!read_argument(r, &call, &last, &n_tensors)) return failed;
        more = peek(r) == ',';
        if (more) r->at++;
    }
    if (peek(r) != ')') {
        refuse_next(r, "a sign, \",\" or \")\"");
        return failed;
    }
    call.to = ++r->at;
    r->dtypes = outer;
    return mti_call_check(r->e, &call, n_tensors) ? add(r, call) : failed;
}

static part read_bracket(reader *r)
{
    size_t from = r->at++;
    part p = read_sum(r);
    if (!ok(p)) return p;
    if (peek(r) != ')') {
        refuse_next(r, "a sign or \")\"");
        return failed;
    }
    p.from = from;
    p.to = ++r->at;
    return p;
}

/* checkpoint(sum), at the name. */
static part read_checkpoint(reader *r, size_t n)
{
    size_t from = r->at, source = r->e->n_terms;
    r->at += n;
    peek(r);
    part p = read_bracket(r);
    if (!ok(p)) return p;
    if (is_number(r, p)) {
        mti_point_at("expr", r->text, from, "checkpoint takes a tensor, and this is a number");
        return failed;
    }
    return add(r, (mti_term){.kind = MTI_TERM_CHECKPOINT,
                             .at = from,
                             .from = from,
                             .to = p.to,
                             .source = source,
                             .first = p.term});
}

static part read_factor(reader *r);

static part read_negated(reader *r)
{
    size_t from = r->at++;
    part p = read_factor(r);
    if (!ok(p)) return p;
    if (is_number(r, p)) {
        term_of(r, p)->number = -term_of(r, p)->number;
        p.from = term_of(r, p)->from = from;
        return p;
    }
    return add(
        r, (mti_term){
               .kind = MTI_TERM_NEGATED, .at = from, .from = from, .to = p.to, .first = p.term});
}

static part read_plain_factor(reader *r)
{
    char next = peek(r);
    if (next == '-') return read_negated(r);
    if (next == '(') return read_bracket(r);
    size_t n = number_length(r->text + r->at);
    if (n) return read_number(r, n);
    n = mti_name_length(r->text + r->at);
    if (!n) {
        refuse_next(r, "a number, a name, an op, \"-\" or \"(\"");
        return failed;
    }
    size_t after = r->at + n;
    while (isspace((unsigned char)r->text[after])) after++;
    if (r->text[after] != '(') return read_leaf(r, n);
    bool checkpoint = n == strlen("checkpoint") && !strncmp(r->text + r->at, "checkpoint", n);
    return checkpoint ? read_checkpoint(r, n) : read_call(r, n);
}

static part read_factor(reader *r)
{
    peek(r);
    if (r->depth == DEEPEST) {
        mti_point_at("expr", r->text, r->at, "more than %d brackets or signs within each other",
                     DEEPEST);
        return failed;
    }
    r->depth++;
    part p = read_plain_factor(r);
    r->depth--;
    return p;
}

/* ---- sums and products ---- */

static double compute(double a, char sign, double b)
{
    return sign == '+' ? a + b : sign == '-' ? a - b : sign == '*' ? a * b : a / b;
}

static bool is_zero(const reader *r, part p)
{
    return is_number(r, p) && term_of(r, p)->number == 0;
}

/* Two numbers become one. */
static part fold(reader *r, part a, char sign, size_t at, part b)
{
    double value = compute(term_of(r, a)->number, sign, term_of(r, b)->number);
    if (!isfinite(value)) {
        mti_point_at("expr", r->text, at, "the result is too large for a number");
        return failed;
    }
    r->e->n_terms--;
    term_of(r, a)->number = value;
    term_of(r, a)->from = a.from;
    a.to = term_of(r, a)->to = b.to;
    return a;
}

static part join(reader *r, part a, char sign, size_t at, part b)
{
    bool numbers = is_number(r, a) && is_number(r, b);
    if (sign == '@' && (is_number(r, a) || is_number(r, b))) {
        mti_point_at("expr", r->text, at,
                     "@ is the product of two matrices, and one side is a number; * scales");
        return failed;
    }
    if (sign == '/' && is_zero(r, b)) {
        mti_point_at("expr", r->text, at, "a division by 0");
        return failed;
    }
    if (numbers) return fold(r, a, sign, at, b);
    term_of(r, a)->next = b.term;
    return add(r, (mti_term){.kind = MTI_TERM_BINARY,
                             .at = at,
                             .from = a.from,
                             .to = b.to,
                             .sign = sign,
                             .first = a.term});
}

/* { sign operand }, from the left. */
static part read_chain(reader *r, const char *signs, part (*operand)(reader *r))
{
    part p = operand(r);
    while (ok(p) && peek(r) && strchr(signs, r->text[r->at])) {
        size_t at = r->at++;
        part right = operand(r);
        p = ok(right) ? join(r, p, r->text[at], at, right) : right;
    }
    return p;
}

static part read_product(reader *r) { return read_chain(r, "*/@", read_factor); }
static part read_sum(reader *r) { return read_chain(r, "+-", read_product); }

/* ---- all of it ---- */

/* [name =] sum. A name for a number is refused with the number. */
static part read_line(reader *r)
{
    peek(r);
    size_t from = r->at, n = mti_name_length(r->text + from), after = from + n;
    while (isspace((unsigned char)r->text[after])) after++;
    bool named = n && r->text[after] == '=';
    if (named) r->at = after + 1;
    part p = read_sum(r);
    if (ok(p) && named) term_of(r, p)->name = from, term_of(r, p)->name_length = n;
    return p;
}

/* Whether another line follows; a new line before a sign is but a space. */
static bool line_follows(reader *r, part line)
{
    char next = peek(r);
    if (next == ';') r->at++;
    return next == ';' ? peek(r) != 0 : next && memchr(r->text + line.to, '\n', r->at - line.to);
}

static bool read_whole(reader *r)
{
    for (bool more = true; more;) {
        part line = read_line(r);
        if (!ok(line)) return false;
        more = line_follows(r, line);
        if (!more && peek(r)) return refuse_next(r, "a sign (+ - * / @), a new line or the end");
        if (is_number(r, line))
            return mti_point_at("expr", r->text, line.from,
                                "this is the number %g, which keeps nothing; name a tensor",
                                term_of(r, line)->number);
        if (more && !term_of(r, line)->name_length)
            return mti_point_at("expr", r->text, line.from,
                                "nothing uses this line; name its value, as in y = x+1");
    }
    for (size_t i = 0; i + 1 < r->e->n_terms; i++) {
        const mti_term *t = &r->e->terms[i];
        if (t->name_length && t->last_use == MTI_NO_TERM)
            return mti_point_at("expr", r->text, t->name, "nothing uses \"%.*s\" after this line",
                                (int)(t->name_length < 60 ? t->name_length : 60),
                                r->text + t->name);
    }
    return mti_leaves_settle(r->e);
}

bool mti_expression_read(mti_expression *e, const mti_expression_options *options)
{
    *e = (mti_expression){.options = *options};
    size_t n = strlen(options->text);
    if (n > LONGEST)
        return mti_fail_bool(MT_ERR_ARGUMENT, "--expr: %zu characters; at most %d are read", n,
                             LONGEST);
    e->terms = mti_calloc(n + 1, sizeof *e->terms);
    reader r = {.e = e, .text = options->text};
    return e->terms && mti_leaves_read(e) && read_whole(&r);
}

void mti_expression_free(mti_expression *e)
{
    mti_free(e->terms);
    e->terms = NULL;
}
