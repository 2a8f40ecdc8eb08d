/* The CUDA device: cuda_module.c (driver, device, code, weights), cuda_context.c (memory, streams, functions)
 * and cuda.c (runs). */
#ifndef BURNISH_CUDA_H
#define BURNISH_CUDA_H

#include "cuda_api.h"
#include "gpu.h"

/* What the contexts of a module share. */
typedef struct cuda_module {
  cu_device device;
  cu_context context; /* the device's primary one, which torch and cupy use, too */
  cu_module code;
  cu_pointer weights;
} cuda_module;

#define RECORDINGS 4 /* that are kept, so that a caller whose operands take turns need not record again */

/* A run with operands at some addresses. */
typedef struct recording {
  cu_executable graphs[2]; /* a run, and one that records events; NULL before it was recorded */
  cu_pointer *used;        /* as those of the state */
  unsigned char *resident;
  uint64_t chosen; /* when it was chosen last, as the state counts */
} recording;

/* What one context has for itself. */
typedef struct cuda_state {
  cu_stream stream;   /* runs; waits for work on the legacy stream, as torch's and cupy's is by default */
  cu_stream recorder; /* records; waits for nothing, so that recording disturbs nobody */
  recording recordings[RECORDINGS], *now;
  uint64_t choices;        /* of a recording */
  int timed;               /* whether this run is of the second kind */
  cu_pointer memory;       /* arena, inputs and outputs */
  cu_pointer *own;         /* by slot: the context's memory on the device */
  cu_pointer *used;        /* by slot: that, or the user's */
  unsigned char *resident; /* by slot: whether the user bound memory of the device */
  unsigned char *staging;  /* pinned: inputs and outputs, then error words */
  int32_t *noted;          /* in there, where the device reaches it, too: what kernels noted, by step */
  cu_function *functions;  /* by step */
  cu_event *events;        /* one for each step and one behind the last; made by the first timed run */
  cu_pointer *values;      /* one step's arguments, and their addresses */
  void **parameters;
  int reports;         /* KERNEL_REPORTS if any kernel may note an error */
  int blocking;        /* CUDA_LAUNCH_BLOCKING: no graph, so that an error names its kernel */
  int step_by_step;    /* whether this run waits for each step */
  cu_stream submit_to; /* while steps are started */
} cuda_state;

/* The driver; set once a module was loaded. */
extern cuda_api burnish_cu;

/* Fails with the driver's name and text of a code. */
int32_t burnish_cuda_failed(burnish_error *error, const char *what, cu_result code);

/* Fails in children of the process that opened the driver. */
int32_t burnish_cuda_in_opening_process(burnish_error *error);

/* `load` and `unload` of the device. */
int32_t burnish_cuda_load(const burnish_image *image, void **loaded, burnish_error *error);
void burnish_cuda_unload(void *loaded);

/* `start` and `stop` of the device. */
int32_t burnish_cuda_start(burnish_context *c, const burnish_options *options, burnish_error *error);
void burnish_cuda_stop(burnish_context *c);

/* Makes the module's context the thread's current one, until left. */
int32_t burnish_cuda_enter(const burnish_context *c, burnish_error *error);
void burnish_cuda_leave(void);

void burnish_cuda_drop_graphs(recording *r);
void burnish_cuda_free_events(burnish_context *c);

static inline const cuda_module *module_of(const burnish_context *c) {
  return c->image->parts->device_module;
}

static inline size_t errors_size(const burnish_context *c) { return c->plan.step_count * sizeof(int32_t); }

#define STATIC_SHARED (48u << 10) /* bytes that a kernel declares; more come with its launch */

static inline uint32_t launched_shared(const code_kernel *kernel) {
  return kernel->shared > STATIC_SHARED ? kernel->shared : 0;
}

#endif
