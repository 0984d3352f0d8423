/* terminal.c: inks, numbers, widths of UTF-8 text, and safe printing of unknown bytes. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "report/terminal.h"

const char *const mti_ink_codes[MTI_INK_COUNT] = {"", "\x1b[1m", "\x1b[2m", "\x1b[32m",
                                                  "\x1b[1;31m"};

mti_sheet mti_sheet_of(FILE *out)
{
    mti_sheet sheet = {.out = out, .width = MTI_REPORT_WIDTH, .height = MTI_REPORT_HEIGHT};
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    /* Open MPI gives ranks a terminal of its own, whatever its output is. */
    if (!isatty(fileno(out)) || getenv("OMPI_COMM_WORLD_SIZE")) return sheet;
    bool dumb = !term || !strcmp(term, "dumb");
    sheet.elides = true;
    sheet.live = !dumb;
    sheet.colour = !dumb && !(no_color && *no_color);
    struct winsize size;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0) return sheet;
    if (size.ws_col > 0) sheet.width = size.ws_col;
    if (size.ws_row > 0) sheet.height = size.ws_row;
    return sheet;
}

static void inked(const mti_sheet *to, mti_ink ink, const char *fmt, va_list args)
{
    bool on = to->colour && ink != MTI_PLAIN;
    if (on) fputs(mti_ink_codes[ink], to->out);
    mti_vprint(to->out, fmt, args);
    if (on) fputs("\x1b[0m", to->out);
}

void mti_inked(const mti_sheet *to, mti_ink ink, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    inked(to, ink, fmt, args);
    va_end(args);
}

void mti_heading(const mti_sheet *to, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputc('\n', to->out);
    inked(to, MTI_BOLD, fmt, args);
    fputc('\n', to->out);
    va_end(args);
}

static int char_width(uint32_t c)
{
    static const uint32_t none[][2] = {{0x300, 0x36F}, {0x200B, 0x200F}, {0xFE00, 0xFE0F}};
    static const uint32_t wide[][2] = {{0x1100, 0x115F}, {0x2E80, 0xA4CF},   {0xAC00, 0xD7A3},
                                       {0xF900, 0xFAFF}, {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
                                       {0xFFE0, 0xFFE6}, {0x1F300, 0x1FAFF}, {0x20000, 0x3FFFD}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (c >= none[i][0] && c <= none[i][1]) return 0;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (c >= wide[i][0] && c <= wide[i][1]) return 2;
    return 1;
}

/* How many bytes of text fit in `columns`; *used: the columns they take. */
static size_t measure(const char *text, int columns, int *used)
{
    const unsigned char *start = (const unsigned char *)text, *s = start, *end = s + strlen(text);
    int width = 0;
    while (s < end) {
        size_t length;
        int w = char_width(mti_next_char(s, end, &length));
        if (width + w > columns) break;
        width += w;
        s += length;
    }
    *used = width;
    return (size_t)(s - start);
}

int mti_text_width(const char *text)
{
    int used;
    measure(text, INT32_MAX - 2, &used);
    return used;
}

size_t mti_text_fit(const char *text, int columns)
{
    int used;
    return measure(text, columns, &used);
}

size_t mti_text_skip(const char *text, int columns)
{
    const unsigned char *start = (const unsigned char *)text, *s = start, *end = s + strlen(text);
    int width = mti_text_width(text);
    while (s < end && width > columns) {
        size_t length;
        width -= char_width(mti_next_char(s, end, &length));
        s += length;
    }
    return (size_t)(s - start);
}

size_t mti_text_line(const char *text, int columns)
{
    size_t most = mti_text_fit(text, columns), n = most;
    if (!text[most]) return most;
    while (n > 0 && text[n] != ' ') n--;
    return n ? n : most;
}

void mti_print_lines(const mti_sheet *to, mti_ink ink, const char *text)
{
    char line[2048];
    while (*text) {
        size_t n = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        mti_print_headed(to, ink, line, n);
        text += n + (text[n] == '\n');
    }
}

void mti_print_wrapped(const mti_sheet *to, int indent, const char *text)
{
    int column = 0;
    while (*(text += strspn(text, " \n"))) {
        size_t length = strcspn(text, " \n");
        char word[128];
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        int w = mti_text_width(word);
        if (column && column + 1 + w > to->width) {
            fputc('\n', to->out);
            column = 0;
        }
        if (column)
            fputc(' ', to->out);
        else
            mti_print(to->out, "%*s", indent, "");
        mti_print_bytes(to->out, text, length);
        column += (column ? 1 : indent) + w;
        text += length;
    }
    if (column) fputc('\n', to->out);
}

void mti_print_line(const mti_sheet *to, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    mti_vformat(text, sizeof text, fmt, args);
    va_end(args);
    mti_print_headed(to, MTI_PLAIN, text, 0);
}

void mti_print_headed(const mti_sheet *to, mti_ink ink, const char *text, size_t head)
{
    size_t n = to->elides ? mti_text_line(text, to->width) : strlen(text);
    if (head > n) head = n;
    if (head) mti_inked(to, ink, "%.*s", (int)head, text);
    mti_print(to->out, "%.*s\n", (int)(n - head), text + head);
    if (text[n]) mti_print_wrapped(to, (int)strspn(text, " "), text + n);
}

mt_status mti_finish_file(mti_file *file, FILE *out)
{
    bool ok = out && !ferror(out);
    ok = out && fclose(out) == 0 && ok;
    if (ok) return mti_file_commit(file) ? MT_OK : mt_last_status();
    mti_file_abandon(file);
    return mt_last_status();
}

/* ---- numbers, shortened for readers ---- */

const char *mti_scaled(char buf[MTI_NUMBER], double value)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
    size_t unit = 0;
    while (fabs(value) >= 999.5 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1000;
        unit++;
    }
    int decimals = unit == 0 ? 0 : fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0;
    mti_format(buf, MTI_NUMBER, "%.*f%s", decimals, value, units[unit]);
    return buf;
}

const char *mti_power_of_ten(char buf[MTI_NUMBER], double value)
{
    mti_format(buf, MTI_NUMBER, "%.2e", value);
    char *sign = strchr(buf, '+');
    if (sign) memmove(sign, sign + 1, strlen(sign));
    return buf;
}

const char *mti_duration(char buf[MTI_NUMBER], double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(buf, MTI_NUMBER, "--");
        return buf;
    }
    int64_t s = (int64_t)(seconds + 0.5);
    if (s < 60)
        snprintf(buf, MTI_NUMBER, "%d s", (int)s);
    else if (s < 3600)
        snprintf(buf, MTI_NUMBER, "%d:%02d", (int)(s / 60), (int)(s % 60));
    else
        snprintf(buf, MTI_NUMBER, "%lld:%02d:%02d", (long long)(s / 3600), (int)(s / 60 % 60),
                 (int)(s % 60));
    return buf;
}
