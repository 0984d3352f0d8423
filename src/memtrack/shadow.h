/* shadow.h: tells AddressSanitizer which cached bytes are free. To malloc a cached block is
 * in use; without this no sanitizer could see a tensor used after its release or
 * a kernel that runs past the end of one. Empty in ordinary builds. */
#ifndef MTI_SHADOW_H
#define MTI_SHADOW_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define MTI_HAS_SHADOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MTI_HAS_SHADOW 1
#endif
#endif

#ifdef MTI_HAS_SHADOW
#include <sanitizer/asan_interface.h>
#define MTI_FORBID(p, n_bytes) __asan_poison_memory_region((p), (n_bytes))
#define MTI_ALLOW(p, n_bytes)  __asan_unpoison_memory_region((p), (n_bytes))
#else
#define MTI_FORBID(p, n_bytes) ((void)(p), (void)(n_bytes))
#define MTI_ALLOW(p, n_bytes)  ((void)(p), (void)(n_bytes))
#endif

#endif
