/* main.c: finds the verb, reads its options, runs it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "options/option_table.h"
#include "verbs/together.h"
#include "verbs/verbs.h"
#include "files/json_text.h"
#include "memtape/openblas.h"
#include "report/terminal.h"

typedef int verb_fn(const mti_options *o);

static verb_fn *const runs[MTI_VERB_COUNT] = {
#define VERB(id, name, args, run, ...) [MTI_##id] = run,
#include "options/verbs.def"
#undef VERB
};

static void print_help(FILE *out)
{
    mti_sheet sheet = mti_sheet_of(out);
    fputs("memtape: trains transformers and keeps exact books on their memory\n", out);
    mti_heading(&sheet, "Usage");
    fputs("  memtape VERB [OPTION...]      memtape VERB --help lists its options\n", out);
    mti_heading(&sheet, "Verbs");
    for (int v = 0; v < MTI_VERB_COUNT; v++) {
        const mti_verb_info *info = mti_verb_get((mti_verb)v);
        char usage[64];
        snprintf(usage, sizeof usage, "%s %s", info->name, info->args);
        mti_print(out, "  %-21s %s\n", usage, info->summary);
    }
    mti_heading(&sheet, "For a start");
    for (int v = 0; v < MTI_VERB_COUNT; v++)
        mti_print(out, "  %s\n", mti_verb_get((mti_verb)v)->example);
}

static int refuse_verb(const char *word)
{
    bool in_fewer_bits;
    if (mti_preset_meant(word, &in_fewer_bits) || mti_is_model_path(word)) {
        mti_print(
            stderr,
            "memtape: \"%s\" is a model; give a verb, too: memtape profile %s for the memory of "
            "a training step, memtape fit %s for the GPUs that it trains on, memtape plan %s "
            "for its costs\n",
            word, word, word, word);
        return MTI_EXIT_USAGE;
    }
    if (!strcmp(word, "audit")) {
        mti_print(stderr,
                  "memtape: audit is a program of the course now: ./run lesson builds it, and "
                  "build/examples/audit OP says what an op keeps, and whether it has to\n");
        return MTI_EXIT_USAGE;
    }
    const char *names[MTI_VERB_COUNT];
    for (int v = 0; v < MTI_VERB_COUNT; v++) names[v] = mti_verb_get((mti_verb)v)->name;
    mti_choose("memtape: verb", names, MTI_VERB_COUNT, word);
    mti_print(stderr, "%s\n", mt_last_error());
    return MTI_EXIT_USAGE;
}

/* The library's version is cut after "OpenBLAS 0.3.21"; how it was built follows. */
static void print_version(void)
{
    mt_openblas blas = mt_openblas_get();
    const char *chosen = getenv(MTI_CORETYPE), *end = blas.version;
    for (int words = 0; *end && (*end != ' ' || ++words < 2);) end++;
    mti_print(stdout, "memtape " MTI_VERSION "\n%.*s, kernels for %s%s%s\n",
              (int)(end - blas.version), blas.version, blas.core,
              chosen ? ", " MTI_CORETYPE "=" : "", chosen ? chosen : "");
}

/* Whether standard output is a pipe that nobody reads any more, as with `| head`. */
static bool is_unread(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) > 0 && (out.revents & POLLERR);
}

/* Output that was not written is a failure: a full disk must not look like success. What a reader
 * has left is none of that: the status is that of a program which SIGPIPE has ended. */
static int flushed(int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    if (is_unread()) return status == MTI_EXIT_OK ? MTI_EXIT_SIGNALLED + SIGPIPE : status;
    mti_print(stderr, "memtape: standard output: %s\n",
              errno ? strerror(errno) : "not all of it could be written");
    return status == MTI_EXIT_OK ? MTI_EXIT_FAILED : status;
}

/* `memtape help profile`, `memtape help profile all`, `memtape help recipes`, `... recipes hf` */
static int print_verb_help(const char *word, const char *all)
{
    char name[64];
    mti_verb verb = mti_verb_find(word);
    if (!strcmp(word, "--json")) {
        json_set_alloc_funcs(mti_json_malloc, mti_free);
        const bool written = mti_help_json(stdout);
        if (!written) mti_print(stderr, "memtape help: %s\n", mt_last_error());
        return flushed(written ? MTI_EXIT_OK : MTI_EXIT_FAILED);
    }
    if (!strcmp(word, "recipes") && mti_recipes_help(stdout, all)) return flushed(MTI_EXIT_OK);
    if (!strcmp(word, "recipes")) {
        mti_print(
            stderr,
            "memtape help recipes: there is no recipe \"%s\"; without a name all are listed\n",
            all);
        return MTI_EXIT_USAGE;
    }
    if (verb == MTI_VERB_COUNT) return refuse_verb(word);
    snprintf(name, sizeof name, "memtape %s", word);
    mti_options_help(mti_verb_rules_of(verb), name, all && !strcmp(all, "all"), stdout);
    return flushed(MTI_EXIT_OK);
}

/* A closed pipe and a file at its size limit become errors of the write, not signals: `| head` does
 * not kill a run, and its other files are still written. */
static void report_write_errors(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

/* What the reader of a config.json passed over, beside the answer. */
static void print_notes(const mti_options *o)
{
    const mti_sheet sheet = mti_sheet_of(stderr);
    if (!o->output.quiet) mti_keys_tell(o, stderr);
    if (!*o->notes || o->output.quiet) return;
    mti_print(stderr, "%s:\n", o->workload.name);
    mti_print_lines(&sheet, MTI_PLAIN, o->notes);
}

/* Whether the options divide the model among just so many ranks. */
static bool check_division(mti_options *o)
{
    const mt_parallel *h = &o->workload.parallel;
    int64_t started = mt_comm_group(o->world).ranks, all = 1;
    const int64_t n[] = {h->tensor, h->context, h->data, h->pipeline};
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(all, n[i] ? n[i] : 1, &all)) all = -1;
    return o->help || all == started ||
           mti_options_refuse(o,
                              "--tp %lld, --cp %lld, --dp %lld, --pp %lld: their product has to be "
                              "the number of ranks, and mpirun has started %lld",
                              (long long)(n[0] ? n[0] : 1), (long long)(n[1] ? n[1] : 1),
                              (long long)(n[2] ? n[2] : 1), (long long)(n[3] ? n[3] : 1),
                              (long long)started);
}

/* argv[1] is the verb's. `world`: of several ranks, of which rank 0 prints; NULL: none. */
static int run_verb(mt_comm *world, mti_verb verb, int argc, char **argv)
{
    char name[64];
    mti_options o;
    bool prints = !world || mt_comm_group(world).rank == 0;
    snprintf(name, sizeof name, "memtape %s", argv[1]);
    argv[1] = name;
    json_set_alloc_funcs(mti_json_malloc, mti_free);
    bool ok = mti_options_parse(&o, mti_verb_rules_of(verb), world, argc - 1, argv + 1);
    ok = ok && (o.help || mti_files_apart(&o)) && (!world || check_division(&o));
    bool full = !ok && mt_last_status() == MT_ERR_MEMORY;
    int status = ok ? MTI_EXIT_OK : full ? MTI_EXIT_FAILED : MTI_EXIT_USAGE;
    if (world)
        status = mti_together_end(world, name, status, o.error);
    else if (*o.error)
        mti_print(stderr, "%s: %s\n", name, o.error);
    if (status == MTI_EXIT_OK && o.help) {
        if (prints) mti_options_help(mti_verb_rules_of(verb), name, o.help_all, stdout);
    } else if (status == MTI_EXIT_OK) {
        o.program = argv[0];
        if (prints) print_notes(&o);
        status = world && verb == MTI_PROFILE ? mti_profile_together(&o) : runs[verb](&o);
    }
    mti_options_free(&o);
    return status;
}

static int run_alone(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word) {
        print_help(stderr);
        return MTI_EXIT_USAGE;
    }
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help"))
        return argc > 2 ? print_verb_help(argv[2], argv[3])
                        : (print_help(stdout), flushed(MTI_EXIT_OK));
    if (!strcmp(word, "--version")) {
        print_version();
        return flushed(MTI_EXIT_OK);
    }
    mti_verb verb = mti_verb_find(word);
    if (verb == MTI_VERB_COUNT) return refuse_verb(word);
    return flushed(run_verb(NULL, verb, argc, argv));
}

/* ---- one of several ranks, of which rank 0 prints ---- */

/* What prints something about the program, of which there is only one. */
static int print_once(mt_comm *world, int argc, char **argv)
{
    mti_verb verb = argc > 1 ? mti_verb_find(argv[1]) : MTI_VERB_COUNT;
    mt_group group = mt_comm_group(world);
    int status = MTI_EXIT_OK;
    if (group.rank == 0 && verb == MTI_VERB_COUNT) status = run_alone(argc, argv);
    if (group.rank == 0 && verb != MTI_VERB_COUNT) {
        mti_print(stderr,
                  "memtape %s: mpirun has started %lld ranks, and of the verbs only profile, with "
                  "--tp, --pp, --cp or --dp, and train, with --tp or --dp, have several; start it "
                  "without mpirun\n",
                  argv[1], (long long)group.ranks);
        status = MTI_EXIT_USAGE;
    }
    return mti_together_end(world, "memtape", status, "");
}

static int run_as_rank(const mti_launch *launch, int argc, char **argv)
{
    int status;
    mt_comm *world = mti_together_begin(launch, argc, argv, &status);
    if (!world) return status;
    mti_verb verb = argc > 1 ? mti_verb_find(argv[1]) : MTI_VERB_COUNT;
    status = verb == MTI_PROFILE || verb == MTI_TRAIN ? run_verb(world, verb, argc, argv)
                                                      : print_once(world, argc, argv);
    bool first = mt_comm_group(world).rank == 0;
    if (first) status = flushed(status);
    /* Hydra loses the status of ranks that end at once after a signal. */
    if (first && status > MTI_EXIT_SIGNALLED) mti_launch_abort(status);
    mt_comm_free(world);
    return first ? status : flushed(status);
}

static int run_program(int argc, char **argv)
{
    mti_launch launch = mti_launch_get();
    return launch.ranks > 1 ? run_as_rank(&launch, argc, argv) : run_alone(argc, argv);
}

/* A file that is opened takes the lowest free descriptor. Were that a standard stream which the
 * caller has closed, what is printed would go into a user's file. So each is there; that it cannot
 * be used still fails, as if it were closed. */
static void occupy_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return;
}

int main(int argc, char **argv)
{
    int status;
    occupy_standard_streams();
    mti_launch launch = mti_launch_get();
    if (!mti_start_with_fast_kernels(argv)) return MTI_EXIT_FAILED;
    if (mti_launch_watch(&launch, &status)) return status;
    report_write_errors();
    return mti_on_enough_stack(run_program, argc, argv);
}
