/* Walks a plan. The caller is worker 0 and opens one step after another; each worker takes chunks of its own
 * share first and then of the others', so that a worker that comes late delays nobody. A step is done when
 * all its tasks are. Without a pool nothing of this is touched.
 *
 * Each step that workers run together has a number, its epoch, and so have a run's beginning and its end.
 * Only the caller raises it.
 *
 *   open       epoch << 24 | step. STEP_NONE: a run has begun, no step yet. STEP_OVER: the run has ended.
 *   taken      Of each share, epoch << 16 | chunks taken. An older epoch means none, so no share is reset.
 *   completed  Tasks done in this epoch; of a gang step, workers done. The caller waits for all.
 *   ready      Of a gang step, the workers that have come, besides the caller.
 *   failure    (step + 1) << 32 | code of the run's first error; 0: none. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

#define CHUNKS 4 /* per share: the finest balance is 1 / (4 · threads) of a step */
#define CHUNK_BITS 16
#define MOST_EPOCH_BITS 39 /* at the beginning of a run */

static int32_t copy_step(const burnish_context *c, const plan_step *step) {
  memcpy(c->buffers[step->first_arg + 1], c->buffers[step->first_arg],
         (size_t)c->plan.args[step->first_arg].nbytes);
  return BURNISH_OK;
}

/* Every task of a step, on the caller alone. */
static int32_t run_whole(const burnish_context *c, uint32_t s) {
  const plan_step *step = &c->plan.steps[s];
  if (step->kind == STEP_COPY) return copy_step(c, step);
  if (step->gang) {
    burnish_call call = c->calls[s];
    call.workers = 1;
    return c->image->kernels[step->kernel](&call, 0, (int64_t)step->tasks, 0);
  }
  return c->image->kernels[step->kernel](&c->calls[s], 0, (int64_t)step->tasks, 0);
}

static int32_t run_alone(burnish_context *c, uint32_t *failed) {
  int64_t *ns = c->nanoseconds;
  int64_t before = ns ? burnish_now_ns() : 0;
  for (uint32_t s = 0; s < c->plan.step_count; s++) {
    int32_t code = run_whole(c, s);
    if (ns) {
      int64_t now = burnish_now_ns();
      ns[s] = now - before;
      before = now;
    }
    if (code) return *failed = s, code;
  }
  return BURNISH_OK;
}

static void note_failure(burnish_context *c, uint32_t step, int32_t code) {
  uint64_t none = 0;
  atomic_compare_exchange_strong(&c->failure, &none, ((uint64_t)step + 1) << 32 | (uint32_t)code);
}

/* Where part `i` of [0, tasks), cut into `parts`, begins. No overflow: tasks < 2^62, and parts are few. */
static int64_t cut(int64_t tasks, int64_t i, int64_t parts) {
  return tasks / parts * i + tasks % parts * i / parts;
}

/* Takes the next chunk of a share; -1 when there is none. A share that no one has touched in this epoch still
 * shows an older one and is begun by whoever comes first. */
static int64_t take_chunk(share *s, uint64_t epoch, int64_t chunks) {
  uint64_t seen = atomic_load_explicit(&s->taken, memory_order_relaxed);
  for (;;) {
    uint64_t latest = seen >> CHUNK_BITS;
    int64_t taken = latest == epoch ? (int64_t)(seen & (((uint64_t)1 << CHUNK_BITS) - 1)) : 0;
    if (latest > epoch || taken >= chunks) return -1;
    if (atomic_compare_exchange_weak_explicit(&s->taken, &seen, epoch << CHUNK_BITS | (uint64_t)(taken + 1),
                                              memory_order_relaxed, memory_order_relaxed))
      return taken;
  }
}

static void deal(burnish_context *c, uint64_t epoch, uint32_t s, int32_t worker) {
  const plan_step *step = &c->plan.steps[s];
  burnish_kernel kernel = c->image->kernels[step->kernel];
  int64_t done = 0, tasks = (int64_t)step->tasks;
  for (int32_t i = 0; i < c->threads; i++) {
    int32_t owner = (worker + i) % c->threads;
    int64_t begin = cut(tasks, owner, c->threads), size = cut(tasks, owner + 1, c->threads) - begin;
    int64_t chunks = size < CHUNKS ? size : CHUNKS, chunk;
    while (chunks && (chunk = take_chunk(&c->shares[owner], epoch, chunks)) >= 0) {
      int64_t from = cut(size, chunk, chunks), to = cut(size, chunk + 1, chunks);
      int32_t code = kernel(&c->calls[s], begin + from, begin + to, worker);
      if (code) note_failure(c, s, code);
      done += to - from;
    }
  }
  if (done) atomic_fetch_add_explicit(&c->completed, done, memory_order_release);
}

static void gang_part(burnish_context *c, uint32_t s, int32_t worker) {
  const plan_step *step = &c->plan.steps[s];
  int64_t tasks = (int64_t)step->tasks;
  int32_t code = c->image->kernels[step->kernel](&c->calls[s], cut(tasks, worker, c->threads),
                                                 cut(tasks, worker + 1, c->threads), worker);
  if (code) note_failure(c, s, code);
  atomic_fetch_add_explicit(&c->completed, 1, memory_order_release);
}

static void wait_round(burnish_context *c, int64_t *deadline, uint32_t *rounds) {
  if (!burnish_spin(c->pool->spin_ns, deadline, rounds)) sched_yield();
}

void burnish_gang_wait(const burnish_call *call, int32_t worker) {
  burnish_context *c = call->gang;
  gang_barrier *b = c->gang;
  int64_t deadline = 0;
  uint32_t rounds = 0;
  (void)worker;
  if (call->workers == 1) return;
  uint32_t phase = atomic_load_explicit(&b->phase, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) == call->workers - 1) {
    atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&b->phase, phase + 1, memory_order_release);
    return;
  }
  while (atomic_load_explicit(&b->phase, memory_order_acquire) == phase) wait_round(c, &deadline, &rounds);
}

/* Workers 1 … threads-1, called by the pool. */
static int32_t help(void *argument, int32_t worker) {
  burnish_context *c = argument;
  uint64_t *seen = &c->shares[worker].seen;
  for (;;) {
    int64_t deadline = 0;
    uint32_t rounds = 0;
    uint64_t open;
    while ((open = atomic_load_explicit(&c->open, memory_order_acquire)) == *seen)
      if (!burnish_spin(c->pool->spin_ns, &deadline, &rounds)) return 0;
    uint32_t s = (uint32_t)(open & STEP_OVER);
    if (s == STEP_OVER) return 1;
    *seen = open;
    if (s == STEP_NONE) continue;
    if (c->plan.steps[s].gang) {
      atomic_fetch_add_explicit(&c->ready, 1, memory_order_relaxed);
      gang_part(c, s, worker);
    } else {
      deal(c, open >> STEP_BITS, s, worker);
    }
  }
}

static void run_together(burnish_context *c, uint32_t s) {
  const plan_step *step = &c->plan.steps[s];
  int64_t goal = step->gang ? c->threads : (int64_t)step->tasks;
  int64_t deadline = 0;
  uint32_t rounds = 0;
  atomic_store_explicit(&c->completed, 0, memory_order_relaxed);
  atomic_store_explicit(&c->ready, 0, memory_order_relaxed);
  c->epoch++;
  atomic_store(&c->open, c->epoch << STEP_BITS | s);
  c->pool->summon(c->pool);
  if (step->gang) {
    while (atomic_load_explicit(&c->ready, memory_order_relaxed) < c->threads - 1) {
      wait_round(c, &deadline, &rounds);
      c->pool->summon(c->pool);
    }
    gang_part(c, s, 0);
  } else {
    deal(c, c->epoch, s, 0);
  }
  deadline = 0;
  while (atomic_load_explicit(&c->completed, memory_order_acquire) != goal) wait_round(c, &deadline, &rounds);
}

static int32_t run_with_help(burnish_context *c, uint32_t *failed) {
  int64_t *ns = c->nanoseconds;
  int64_t before = ns ? burnish_now_ns() : 0;
  int32_t code = BURNISH_OK;
  for (uint32_t s = 0; s < c->plan.step_count && !code; s++) {
    const plan_step *step = &c->plan.steps[s];
    if (step->kind == STEP_COPY || (!step->gang && step->tasks < 2)) {
      code = run_whole(c, s);
    } else {
      run_together(c, s);
      code = (int32_t)(uint32_t)atomic_load_explicit(&c->failure, memory_order_relaxed);
    }
    if (ns) {
      int64_t now = burnish_now_ns();
      ns[s] = now - before;
      before = now;
    }
    if (code) *failed = s;
  }
  c->epoch++;
  atomic_store(&c->open, c->epoch << STEP_BITS | STEP_OVER);
  return code;
}

/* `open` has 40 bits for the epoch. Beginning anew at 39 leaves room for the 2^24 steps of one run, and
 * between runs no helper looks at shares. */
static void count_anew(burnish_context *c) {
  c->epoch = 0;
  for (int32_t i = 0; i < c->threads; i++) {
    atomic_store_explicit(&c->shares[i].taken, 0, memory_order_relaxed);
    c->shares[i].seen = 0;
  }
}

static int32_t cpu_run(burnish_context *c) {
  uint32_t failed = 0;
  int32_t code;
  pool_job job = {help, c};
  if (c->stale && (code = burnish_cpu_resolve(c))) return code;
  if (c->pool) {
    if (c->epoch >> MOST_EPOCH_BITS) count_anew(c);
    atomic_store_explicit(&c->failure, 0, memory_order_relaxed);
    atomic_store(&c->open, ++c->epoch << STEP_BITS | STEP_NONE);
  }
  if (c->pool && c->pool->enter(c->pool, &job)) {
    code = c->threads > 1 ? run_with_help(c, &failed) : run_alone(c, &failed);
    c->pool->leave(c->pool);
  } else {
    code = run_alone(c, &failed);
  }
  return code ? burnish_step_error(c, failed, code) : BURNISH_OK;
}

const burnish_device burnish_cpu = {"cpu", NULL, NULL, burnish_cpu_start, burnish_cpu_stop, cpu_run, NULL};
