/* One run's memory and state, shared by context.c (memory, bindings) and executor.c (running). */
#ifndef BURNISH_CONTEXT_H
#define BURNISH_CONTEXT_H

#include "plan.h"
#include "pool.h"

/* Who runs plans. `load` makes what all contexts of a module share, `start` what one of them needs; `unload`
 * and `stop` undo them, and also take what has got stuck half way. */
struct burnish_device {
  const char *name;
  int32_t (*load)(const burnish_image *image, void **loaded, burnish_error *error);
  void (*unload)(void *loaded);
  int32_t (*start)(burnish_context *context, const burnish_options *options, burnish_error *error);
  void (*stop)(burnish_context *context);
  int32_t (*run)(burnish_context *context);
  /* The context's memory of an input or output on the device, where that has addresses; else NULL. */
  void *(*device_memory)(burnish_context *context, uint64_t slot);
};

extern const burnish_device burnish_cpu, burnish_opencl, burnish_cuda;

/* The user's or the context's own memory of one input or output. */
typedef struct io_slot {
  void *bound, *own;
} io_slot;

/* A worker's share of a step's tasks, cut into chunks. */
typedef struct share {
  _Alignas(128) _Atomic uint64_t taken;
  uint64_t seen; /* the worker's own: what it last saw in `open` */
} share;

typedef struct gang_barrier {
  _Alignas(128) _Atomic int32_t arrived;
  _Alignas(128) _Atomic uint32_t phase;
} gang_barrier;

struct burnish_context {
  const burnish_image *image;
  const burnish_device *device;
  plan_view plan;
  int32_t threads;
  unsigned char *prepared; /* the module's */
  io_slot *ios;            /* by slot */
  int stale;               /* a binding changed since the last run */
  int64_t *nanoseconds;    /* the user's, by step, or NULL */
  burnish_error error;
  void *state; /* of a device that is no CPU */

  /* The CPU's. */
  burnish_pool *pool; /* NULL where the caller alone runs, and waits for nobody */
  int owns_pool;
  unsigned char *memory; /* arena, then scratch of each worker */
  uint64_t scratch_at;
  void **buffers;      /* by argument number */
  burnish_call *calls; /* by step */
  share *shares;       /* by worker */
  gang_barrier *gang;

  /* What workers count together: executor.c says how. */
  uint64_t epoch; /* the latest one; only the caller's */
  _Alignas(128) _Atomic uint64_t open;
  _Alignas(128) _Atomic int64_t completed;
  _Atomic int32_t ready;
  _Atomic uint64_t failure;
};

#define STEP_BITS 24
#define STEP_OVER (((uint32_t)1 << STEP_BITS) - 1)
#define STEP_NONE (STEP_OVER - 1)

void burnish_gang_wait(const burnish_call *call, int32_t worker);

/* A context for the steps of `plan`, one of the image's views, both of which were checked. */
int32_t burnish_context_make(const burnish_image *image, plan_view plan, unsigned char *prepared,
                             const burnish_options *options, burnish_context **context, burnish_error *error);
void burnish_context_free(burnish_context *context);

/* The memory bound to an input or output, else the context's own; NULL if there is none. */
void *burnish_context_memory(burnish_context *context, uint64_t slot);

/* Fails where an output shares memory with another input or output: steps write outputs while others still
 * read inputs. `at` says where each lies; 0 is nowhere yet. */
int32_t burnish_check_apart(burnish_context *context, uint64_t (*at)(const burnish_context *, uint64_t slot));

/* Zeroed, aligned to 128 bytes; for tables. free() takes it. */
void *burnish_array(uint64_t count, size_t size);

/* Zeroed, 64-byte aligned, in huge pages where it is large. free() takes it. */
void *burnish_allocate(uint64_t bytes);

/* Fails with the code and its meaning, the step's node and kernel. */
int32_t burnish_step_error(burnish_context *context, uint32_t step, int32_t code);

/* One user more or less of an image's shared parts. The first one, whose options these are, waits until they
 * are made; `prepared`, which may be NULL, gets the weights of the setup steps, NULL where there are none. */
int32_t burnish_parts_take(const burnish_image *image, const burnish_options *options,
                           unsigned char **prepared, burnish_error *error);
void burnish_parts_leave(const burnish_image *image);

#endif
