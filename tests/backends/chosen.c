/* chosen.c: the backend that a run of the tests is for. */
#include "views.h"

const mti_backend *mtt_backend(mti_ctx **ctx)
{
    const char *kind = getenv("MTT_DEVICE");
    const mti_backend *backend = mti_backend_find(kind ? kind : "cpu");
    assert_non_null(backend);
    *ctx = backend->open();
    assert_non_null(*ctx);
    return backend;
}
