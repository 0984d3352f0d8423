/* jansson_private_config.h: what jansson's configure would find. */
#define HAVE_LOCALE_H           1
#define HAVE_STDINT_H           1
#define INITIAL_HASHTABLE_ORDER 3
