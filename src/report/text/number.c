/* number.c: numbers shortened for readers. */
#include <math.h>
#include <string.h>
#include "report/text.h"

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
