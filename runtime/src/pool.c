#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "plan.h"

#define SPIN_NS 50000

typedef struct pool_thread {
  struct pool *pool;
  pthread_t thread;
  int32_t worker;
} pool_thread;

typedef struct pool {
  burnish_pool head;
  pid_t process;
  unsigned char *mark; /* 1 where the threads are; 0 in a forked child, whose number may be the same */
  int32_t started;
  pthread_mutex_t turn; /* one run at a time */
  pthread_mutex_t lock; /* guards sleeping on `wake` */
  pthread_cond_t wake;
  pool_thread *members;
  _Alignas(128) _Atomic uint64_t ticket; /* grows with every reason to look for work */
  _Atomic(const pool_job *) job;         /* NULL between runs */
  _Atomic int32_t sleepers;
  _Atomic int32_t stop;
  _Alignas(128) _Atomic int32_t inside; /* workers that may be looking at `job` */
} pool;

int64_t burnish_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int burnish_spin(int64_t spin_ns, int64_t *deadline, uint32_t *rounds) {
  if (!spin_ns) return 0;
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
  if (++*rounds % 64) return 1;
  int64_t now = burnish_now_ns();
  if (!*deadline) *deadline = now + spin_ns;
  return now < *deadline;
}

/* Sleeps until the ticket is no longer `seen`. The order of the two counters against summon's is what
 * matters: either the sleeper sees the new ticket, or the summoner sees the sleeper. */
static void sleep_until_summoned(pool *p, uint64_t seen) {
  pthread_mutex_lock(&p->lock);
  atomic_fetch_add(&p->sleepers, 1);
  while (atomic_load(&p->ticket) == seen) pthread_cond_wait(&p->wake, &p->lock);
  atomic_fetch_sub(&p->sleepers, 1);
  pthread_mutex_unlock(&p->lock);
}

static void *thread_main(void *argument) {
  pool_thread *self = argument;
  pool *p = self->pool;
  uint64_t seen = 0;
  int idle = 0;
  for (;;) {
    int64_t deadline = 0;
    uint32_t rounds = 0;
    while (atomic_load_explicit(&p->ticket, memory_order_acquire) == seen)
      if (idle || !burnish_spin(p->head.spin_ns, &deadline, &rounds)) sleep_until_summoned(p, seen);
    seen = atomic_load(&p->ticket);
    if (atomic_load(&p->stop)) return NULL;
    atomic_fetch_add(&p->inside, 1);
    const pool_job *job = atomic_load(&p->job);
    idle = job && !job->work(job->arg, self->worker);
    atomic_fetch_sub(&p->inside, 1);
  }
}

static void announce(pool *p) {
  atomic_fetch_add(&p->ticket, 1);
  if (!atomic_load(&p->sleepers)) return;
  pthread_mutex_lock(&p->lock);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->lock);
}

/* Also where nobody sleeps: somebody who has just looked for work in vain may be about to. */
static void pool_summon(burnish_pool *head) { announce((pool *)head); }

/* In memory that forks wipe, from Linux 4.14 on. */
static unsigned char *new_mark(void) {
  void *mark = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mark == MAP_FAILED) return NULL;
#if defined(MADV_WIPEONFORK)
  madvise(mark, 1, MADV_WIPEONFORK);
#endif
  return memset(mark, 1, 1);
}

static int has_threads(const pool *p) { return p->mark && *p->mark && p->process == getpid(); }

static int32_t pool_enter(burnish_pool *head, const pool_job *job) {
  pool *p = (pool *)head;
  if (!has_threads(p)) return 0;
  pthread_mutex_lock(&p->turn);
  atomic_store(&p->job, job);
  announce(p);
  return 1;
}

static void pool_leave(burnish_pool *head) {
  pool *p = (pool *)head;
  int64_t deadline = 0;
  uint32_t rounds = 0;
  atomic_store(&p->job, NULL);
  while (atomic_load(&p->inside))
    if (!burnish_spin(head->spin_ns, &deadline, &rounds)) sched_yield();
  pthread_mutex_unlock(&p->turn);
}

static void pool_destroy(burnish_pool *head) {
  pool *p = (pool *)head;
  if (has_threads(p)) {
    atomic_store(&p->stop, 1);
    announce(p);
    for (int32_t i = 0; i < p->started; i++) pthread_join(p->members[i].thread, NULL);
    pthread_mutex_destroy(&p->turn);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
  }
  if (p->mark) munmap(p->mark, 1);
  free(p->members);
  free(p);
}

#ifndef CPU_LIMIT
#define CPU_LIMIT "/sys/fs/cgroup/cpu.max" /* of a container: "QUOTA PERIOD", "max PERIOD" */
#endif

static int32_t limited(int32_t cpus) {
  long quota, period;
  FILE *f = fopen(CPU_LIMIT, "re");
  if (!f) return cpus;
  if (fscanf(f, "%ld %ld", &quota, &period) == 2 && quota > 0 && period > 0 && quota / period < cpus)
    cpus = (int32_t)(quota / period + (quota % period != 0));
  fclose(f);
  return cpus;
}

static int32_t available_cpus(void) { /* `host_threads` in target.py */
#if defined(__linux__)
  for (size_t most = CPU_SETSIZE; most <= 1 << 20; most *= 2) { /* the kernel may know of more */
    cpu_set_t *set = CPU_ALLOC(most);
    if (!set) break;
    int refused = sched_getaffinity(0, CPU_ALLOC_SIZE(most), set);
    int32_t found = refused ? 0 : CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
    CPU_FREE(set);
    if (!refused) return limited(found);
    if (errno != EINVAL) break;
  }
#endif
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return limited(n < 1 ? 1 : (int32_t)n);
}

static int start_threads(pool *p) {
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}; /* a thread's faults */
  sigset_t others, before;
  sigfillset(&others); /* are for the application's threads */
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&others, own[i]);
  pthread_sigmask(SIG_SETMASK, &others, &before);
  for (; p->started < p->head.threads - 1; p->started++) {
    pool_thread *member = &p->members[p->started];
    member->pool = p;
    member->worker = p->started + 1;
    if (pthread_create(&member->thread, NULL, thread_main, member)) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return p->started == p->head.threads - 1;
}

int32_t burnish_pool_create(int32_t threads, burnish_pool **out, burnish_error *error) {
  int32_t cpus = available_cpus();
  void *memory = NULL;
  if (!out) return burnish_fail(error, BURNISH_BAD_ARGUMENT, -1, "pool_create: `pool` is NULL");
  *out = NULL;
  if (threads < 0 || threads > BURNISH_MAX_THREADS)
    return burnish_fail(error, BURNISH_BAD_ARGUMENT, -1, "threads is %d, expected 0 to %d", (int)threads,
                        BURNISH_MAX_THREADS);
  if (!threads) threads = cpus < BURNISH_MAX_THREADS ? cpus : BURNISH_MAX_THREADS;
  if (posix_memalign(&memory, 128, sizeof(pool)))
    return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a thread pool");
  pool *p = memory;
  *p = (pool){.head = {BURNISH_POOL_ABI, threads, threads > cpus ? 0 : SPIN_NS, pool_enter, pool_summon,
                       pool_leave, pool_destroy},
              .process = getpid(),
              .mark = new_mark()};
  pthread_mutex_init(&p->turn, NULL);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->wake, NULL);
  p->members = calloc((size_t)threads, sizeof *p->members);
  if (!p->mark || !p->members || !start_threads(p)) {
    int32_t code = p->mark && p->members ? BURNISH_NO_THREAD : BURNISH_NO_MEMORY;
    pool_destroy(&p->head);
    return burnish_fail(error, code, -1, "cannot start %d threads; ask for fewer", (int)threads);
  }
  *out = &p->head;
  return BURNISH_OK;
}

void burnish_pool_destroy(burnish_pool *pool) {
  if (pool) pool->destroy(pool);
}
