#define __SYSCALL_LL_E(x) (x)
#define __SYSCALL_LL_O(x) (x)
/* In posix.c; the fifth and sixth arguments of no call that it knows matter. */
long mt_page_call(long n, long a, long b, long c, long d);
static inline long __syscall0(long n) { return mt_page_call(n, 0, 0, 0, 0); }
static inline long __syscall1(long n, long a) { return mt_page_call(n, a, 0, 0, 0); }
static inline long __syscall2(long n, long a, long b) { return mt_page_call(n, a, b, 0, 0); }
static inline long __syscall3(long n, long a, long b, long c)
{
    return mt_page_call(n, a, b, c, 0);
}
static inline long __syscall4(long n, long a, long b, long c, long d)
{
    return mt_page_call(n, a, b, c, d);
}
static inline long __syscall5(long n, long a, long b, long c, long d, long e)
{
    return mt_page_call(n, a, b, c, d);
}
static inline long __syscall6(long n, long a, long b, long c, long d, long e, long f)
{
    return mt_page_call(n, a, b, c, d);
}
