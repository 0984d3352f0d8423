/* train_gpt.c: a GPT in one process, from a text to its loss, a line of its own, and its bytes.
 *
 *   train_gpt FILE [STEPS]
 *
 * A byte is a token. Each step draws sequences from the text, predicts each next byte, and lets
 * AdamW step. At the end it writes a line, and says what the last step needed in memory, and what
 * the tape kept for backward. */
#include <stdio.h>
#include <stdlib.h>
#include <memtape/all.h>

enum { BATCH = 8, SEQUENCE = 64, SAMPLE = 60 };

/* Reads a file's bytes as tokens, which the caller frees; NULL on failure. */
static int64_t *read_text(const char *path, size_t *n)
{
    int64_t *text = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "rb");
    *n = 0;
    for (int c; f && (c = getc(f)) != EOF; text[(*n)++] = c)
        if (*n == room) {
            int64_t *more = realloc(text, (room = 2 * room + 4096) * sizeof *text);
            if (!more) break;
            text = more;
        }
    if (f) fclose(f);
    return text;
}

/* Draws sequences and, as targets, the same ones a byte later. */
static void draw(const int64_t *text, size_t n, int64_t x[][SEQUENCE], int64_t y[][SEQUENCE])
{
    for (int b = 0; b < BATCH; b++) {
        const int64_t *from = text + (size_t)rand() % (n - SEQUENCE);
        for (int s = 0; s < SEQUENCE; s++) x[b][s] = from[s], y[b][s] = from[s + 1];
    }
}

/* Prints a token as it is made. */
static bool print_token(void *user, const int64_t *token)
{
    (void)user;
    return putchar(*token >= 32 && *token < 127 ? (int)*token : ' ') != EOF;
}

int main(int argc, char **argv)
{
    const bool option = (argc > 1 && *argv[1] == '-') || (argc > 2 && *argv[2] == '-');
    if (argc > 3 || option) return fprintf(stderr, "usage: train_gpt [FILE [STEPS]]\n"), 2;
    size_t n;
    int64_t *text = read_text(argc > 1 ? argv[1] : __FILE__, &n), x[BATCH][SEQUENCE],
            y[BATCH][SEQUENCE];
    const int steps = argc > 2 ? atoi(argv[2]) : 300;
    if (n <= SEQUENCE || steps < 1)
        return fprintf(stderr, "train_gpt FILE [STEPS]: a text of over %d bytes\n", SEQUENCE), 2;

    mt_device *device = mt_device_open("cpu");
    mt_model_config config = {.kind = MT_MODEL_GPT,
                              .layers = 2,
                              .heads = 4,
                              .hidden = 64,
                              .vocab = 256,
                              .context = 2 * SEQUENCE};
    mt_module *model = mt_model_new(device, &config);
    mt_optimizer *adamw = mt_adamw_new(model, &(mt_adamw_options){.lr = 3e-3, .weight_decay = 0.1});
    mt_ledger *ledger = mt_ledger_new(device);
    mt_status status = model && adamw && ledger ? MT_OK : mt_last_status();
    mt_mem_stats memory;
    for (int step = 1; step <= steps && status == MT_OK; step++) {
        draw(text, n, x, y);
        mt_optimizer_set_lr(adamw, mt_cosine_lr(step - 1, 20, steps, 3e-3, 3e-4));
        mt_mem_reset_peak(device), mt_ledger_reset(ledger);
        mt_tensor *tokens = mt_from_data(device, MT_I64, MT_SHAPE(BATCH, SEQUENCE), x, sizeof x);
        mt_tensor *target = mt_from_data(device, MT_I64, MT_SHAPE(BATCH, SEQUENCE), y, sizeof y);
        mt_ledger_begin(ledger); /* from here to its end it sees every tensor that is saved */
        mt_tensor *loss = mt_model_forward_loss(model, tokens, target);
        mt_ledger_end(ledger);
        if (loss && (step == 1 || step % 100 == 0))
            printf("step %d: loss %.3f\n", step, mt_item(loss));
        status = mt_backward(loss);
        if (status == MT_OK) status = mt_clip_grad_norm(model, 1, NULL);
        if (status == MT_OK) status = mt_optimizer_step(adamw);
        if (status == MT_OK) status = mt_module_zero_grad(model);
        mt_release(loss), mt_release(target), mt_release(tokens);
    }
    mt_mem_get_stats(device, &memory);
    printf("peak of a step %zu bytes; parameters %zu, optimizer %zu, kept for backward %zu\n",
           memory.allocated.peak, memory.by_category[MT_PARAMETER],
           memory.by_category[MT_OPTIMIZER], mt_ledger_bytes(ledger));
    if (status == MT_OK)
        status = mt_generate(model, 1, SEQUENCE, text, SAMPLE,
                             &(mt_generate_options){.temperature = 0.7}, print_token, NULL, NULL);
    puts("");
    if (status != MT_OK) fprintf(stderr, "train_gpt: %s\n", mt_last_error());
    mt_ledger_free(ledger), mt_optimizer_free(adamw), mt_module_free(model);
    mt_device_release(device);
    free(text);
    return status != MT_OK;
}
