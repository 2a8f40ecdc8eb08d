/* Threads that help with runs. A pool made by one module's copy of the runtime may serve another's, so a
 * runtime only touches a pool through the functions in its head, whose layout stays as it is. */
#ifndef BURNISH_POOL_H
#define BURNISH_POOL_H

#include <stdatomic.h>

#include "burnish.h"

#define BURNISH_POOL_ABI 1u

typedef struct pool_job {
  /* Called on workers 1 … threads-1, each at any time between enter and leave, maybe repeatedly, maybe never.
   * Returns 1 when the run is over, 0 when it found no work for so long that the worker should sleep. */
  int32_t (*work)(void *arg, int32_t worker);
  void *arg;
} pool_job;

struct burnish_pool {
  uint32_t abi;
  int32_t threads;
  int64_t spin_ns; /* how long to wait actively; 0 where there are fewer CPUs than threads */
  /* Waits for the pool's turn and offers `job` to its workers. False in a forked child: it has no threads. */
  int32_t (*enter)(burnish_pool *pool, const pool_job *job);
  /* Wakes workers that went to sleep; cheap when none does. */
  void (*summon)(burnish_pool *pool);
  /* Returns when no worker is inside of the job any more. */
  void (*leave)(burnish_pool *pool);
  void (*destroy)(burnish_pool *pool);
};

int32_t burnish_pool_create(int32_t threads, burnish_pool **pool, burnish_error *error);
void burnish_pool_destroy(burnish_pool *pool);

/* Monotonic clock. */
int64_t burnish_now_ns(void);

/* One round of an active wait that began with both counters at 0; false once `spin_ns` have gone by. */
int burnish_spin(int64_t spin_ns, int64_t *deadline, uint32_t *rounds);

#endif
