/* For LD_PRELOAD: the wall clock of one process, so many seconds ahead of the machine's as the file SET_CLOCK says, one long that
 * may change at any time. All else stays the machine's: the clock that nobody sets, sleeps, the times of files. (libfaketime, also
 * 0.9.11, takes the deadlines of sleeps by CLOCK_MONOTONIC for wall times: after a jump, Python's time.sleep fails or never ends.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const volatile long none, *ahead = &none;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SET_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) abort();
  ahead = mapped;
}

int clock_gettime(clockid_t id, struct timespec *at) {
  if (!real_clock) real_clock = REAL(clock_gettime);
  int failed = real_clock(id, at);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *ahead;
  return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

/* The machine's time of a deadline. One by the clock that nobody sets, which counts from the machine's start, is smaller. */
static struct timespec machine(const struct timespec *until) {
  struct timespec real = *until;
  if (real.tv_sec > 1000000000) real.tv_sec -= *ahead;
  return real;
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict until) {
  struct timespec real = machine(until);
  return REAL(pthread_cond_timedwait)(c, m, &real);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
  struct timespec real = machine(until);
  return REAL(sem_timedwait)(sem, &real);
}

/* gRPC's locks call futex directly. */
long syscall(long number, ...) {
  long a[6];
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
  va_end(rest);
  struct timespec real;
  if (number == SYS_futex && a[3] && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && (a[1] & FUTEX_CLOCK_REALTIME)) {
    real = machine((const struct timespec *)a[3]);
    a[3] = (long)&real;
  }
  return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
