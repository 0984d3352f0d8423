extern struct __pthread mt_page_thread; /* of posix.c */
static inline unsigned long __get_tp(void) { return (unsigned long)&mt_page_thread; }
#define MC_PC pc
