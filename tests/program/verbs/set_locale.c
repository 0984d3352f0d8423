/* Preloaded: the program has the locale that NUMBERS_LOCALE names, as one that uses the library may
 * have. */
#include <locale.h>
#include <stdlib.h>

__attribute__((constructor)) static void set_locale(void)
{
    const char *name = getenv("NUMBERS_LOCALE");
    if (name && !setlocale(LC_NUMERIC, name)) abort();
}
