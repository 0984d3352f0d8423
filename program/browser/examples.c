/* examples.c: the programs of the page's module, the lessons' and memtape. */
#include <string.h>
#include "verbs/verbs.h"

int mt_page_main(int argc, char **argv);
#define EXAMPLE(name, parameters, arguments)                                                       \
    int mt_example_##name parameters;                                                              \
    static int run_##name(int argc, char **argv) { return mt_example_##name arguments; }
#include "browser/examples.def"
#undef EXAMPLE

static const struct {
    const char *name;
    mti_main_fn *run;
} examples[] = {
#define EXAMPLE(name, parameters, arguments) {"build/examples/" #name, run_##name},
#include "browser/examples.def"
#undef EXAMPLE
};

/* Runs the program that the first word names: one of the lessons' or memtape. */
int mt_page_run(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        if (argc > 0 && !strcmp(argv[0], examples[i].name)) return examples[i].run(argc, argv);
    return mt_page_main(argc, argv);
}
