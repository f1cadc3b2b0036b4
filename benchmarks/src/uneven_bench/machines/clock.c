#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t zero = 0;
volatile int64_t *uneven_clock_offset_s = &zero;

int clock_gettime(clockid_t clock, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *) = 0;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, out);
    if (result == 0 && clock == CLOCK_REALTIME) out->tv_sec += *uneven_clock_offset_s;
    return result;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *) = 0;
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (until->tv_sec < 1000000000) return real(cond, mutex, until); /* of the monotonic clock */
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    int64_t left_ns = (until->tv_sec - *uneven_clock_offset_s - now.tv_sec) * 1000000000LL;
    left_ns += until->tv_nsec - now.tv_nsec;
    int more = left_ns > 100000000LL;
    int64_t ns = now.tv_nsec + (more ? 100000000LL : left_ns > 0 ? left_ns : 0);
    struct timespec next = {now.tv_sec + ns / 1000000000LL, ns % 1000000000LL};
    int result = real(cond, mutex, &next);
    return result == ETIMEDOUT && more ? 0 : result; /* a wake-up without a cause, which POSIX allows */
}
