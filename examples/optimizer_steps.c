/* Where does the memory of four training steps go?
 *
 * One linear layer, 256 -> 250, f32, a batch of 100, stepped with SGD and with Adam. At each event
 * the bytes of each kind are computed by hand, in blocks of 512, and compared with the
 * allocator's: they are equal, on a device with data and on one without. With a path as its
 * argument the program draws what was measured on the one with data, a bar an event. */
#include <string.h>
#include "expect.h"
#include "svg.h"

enum { IN = 256, OUT = 250, BATCH = 100, STEPS = 4, FLOAT = 4 };

static const mt_category kinds[] = {MT_PARAMETER, MT_INPUT, MT_OUTPUT, MT_GRADIENT, MT_OPTIMIZER};
enum { PARAMETER, INPUT, OUTPUT, GRADIENT, OPTIMIZER, KINDS };
static const char *const colours[] = {SVG_PARAMETER, SVG_INPUT, SVG_OUTPUT, SVG_GRADIENT,
                                      SVG_OPTIMIZER};

/* The predicted bytes, event by event. */
typedef struct books {
    mt_device *device;
    size_t expected[KINDS];
    int64_t borrowed; /* by the optimizer's steps */
    int n_events, n_wrong;
    svg picture;
    double left; /* of the picture's bars */
} books;

/* The measured bytes of each kind, one on top of the other. */
static void draw_bar(const books *b, const char *label, const mt_mem_stats *measured)
{
    double x = b->left + 24 * b->n_events, y = 360;
    for (int k = 0; k < KINDS; k++) {
        double height = (double)measured->by_category[kinds[k]] / 4000;
        y -= height;
        if (height > 0) svg_rect(b->picture, x, y, 18, height, colours[k]);
    }
    svg_text(b->picture, x + 5, 372, "start", 60, label);
}

static void event(books *b, const char *name, int step)
{
    mt_mem_stats measured;
    size_t expected = 0;
    bool equal = true;
    mt_mem_get_stats(b->device, &measured);
    char label[24];
    snprintf(label, sizeof label, "%s%s%.0d", name, step ? "_" : "", step);
    printf("  %-15s", label);
    for (int k = 0; k < KINDS; k++) {
        expected += b->expected[k];
        equal = equal && measured.by_category[kinds[k]] == b->expected[k];
        printf(" %9zu", b->expected[k]);
    }
    equal = equal && measured.allocated.current == expected;
    printf(" %9zu %9zu  %s\n", expected, measured.allocated.current, equal ? "equal" : "WRONG");
    draw_bar(b, label, &measured);
    b->n_events++;
    b->n_wrong += !equal;
}

static void train_step(books *b, mt_module *model, mt_optimizer *optimizer, mt_tensor *x, int step)
{
    const size_t weights = (size_t)(blocks(OUT * IN * FLOAT) + blocks(OUT * FLOAT));
    mt_module_zero_grad(model);
    b->expected[GRADIENT] = 0; /* freed, not filled with zeros */
    event(b, "zero_grad", step);

    mt_tensor *y = mt_forward(model, x); /* linear keeps x, which exists anyway */
    mt_set_category(y, MT_OUTPUT);
    b->expected[OUTPUT] = blocks(BATCH * OUT * FLOAT);
    event(b, "forward", step);

    mt_tensor *loss = mt_sum_all(y);
    mt_backward(loss);
    mt_release(loss);
    b->expected[GRADIENT] = weights;
    event(b, "backward", step);

    /* What a step borrows is more than what it leaves: here nothing is. */
    mt_mem_region region;
    mt_mem_region_begin(&region, b->device);
    mt_optimizer_step(optimizer);
    mt_mem_region_end(&region);
    b->borrowed += region.delta.peak - region.delta.current;
    mt_release(y);
    b->expected[OUTPUT] = 0;
    if (!strcmp(mt_optimizer_kind(optimizer), "adamw")) b->expected[OPTIMIZER] = 2 * weights;
    event(b, "step", step);
}

/* Whether every event came out as predicted. */
static bool four_steps(const char *kind, bool adam, svg picture)
{
    books b = {.device = mt_device_open(kind), .picture = picture, .left = adam ? 560 : 40};
    svg_text(picture, b.left, 20, "start", 0, adam ? "Adam" : "SGD");
    printf("%s on %s\n  %-15s %9s %9s %9s %9s %9s %9s %9s\n", adam ? "Adam" : "SGD", kind, "after",
           "parameter", "input", "output", "gradient", "optimizer", "expected", "measured");
    event(&b, "baseline", 0);
    mt_module *model = mt_linear_new(b.device, MT_F32, IN, OUT, true, 0);
    b.expected[PARAMETER] = blocks(OUT * IN * FLOAT) + blocks(OUT * FLOAT);
    event(&b, "model", 0);
    mt_optimizer *optimizer = adam ? mt_adamw_new(model, &(mt_adamw_options){.lr = 1e-3})
                                   : mt_sgd_new(model, &(mt_sgd_options){.lr = 1e-3});
    event(&b, "optimizer", 0); /* its state is made at the first step */
    mt_tensor *x = mt_normal(b.device, MT_F32, MT_SHAPE(BATCH, IN), 0, 1);
    b.expected[INPUT] = blocks(BATCH * IN * FLOAT);
    event(&b, "input", 0);
    for (int step = 1; step <= STEPS; step++) train_step(&b, model, optimizer, x, step);
    mt_release(x);
    mt_optimizer_free(optimizer);
    mt_module_free(model);
    mt_device_release(b.device);
    printf("  borrowed within the four steps: %lld\n\n", (long long)b.borrowed);
    return b.n_wrong == 0 && b.borrowed == 0 && b.n_events == 4 + 4 * STEPS;
}

int main(int argc, char **argv)
{
    const char *path = svg_path(argc, argv);
    svg picture = svg_begin(path, 1080, 450, "Allocated bytes of four training steps");
    for (int k = 0; k < KINDS; k++) {
        svg_rect(picture, 40 + 110 * k, 34, 12, 12, colours[k]);
        svg_text(picture, 58 + 110 * k, 45, "start", 0, mt_category_name(kinds[k]));
    }
    const svg none = {0};
    bool ok = true;
    for (int adam = 0; adam < 2; adam++) {
        ok = four_steps("cpu", adam, picture) && ok;
        ok = four_steps("meta", adam, none) && ok;
    }
    ok = svg_end(picture, path) && ok;
    if (mt_last_status() != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    return ok && mt_last_status() == MT_OK ? 0 : 1;
}
