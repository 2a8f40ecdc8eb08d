/* What the devices of GPUs share: checks of a module against a device, the walk over a plan's steps, and the
 * errors that kernels note. */
#ifndef BURNISH_GPU_H
#define BURNISH_GPU_H

#include <sys/types.h>

#include "context.h"
#include "device_code.h"

/* What one device allows. `language` begins every message: OpenCL or CUDA. */
typedef struct gpu_limits {
  const char *language, *name;
  uint64_t block_threads, shared; /* threads and bytes of shared memory of a block, at most */
  uint64_t grid[3];               /* blocks along each axis, at most */
} gpu_limits;

/* BURNISH_OK only if code and plan are sound and have no setup steps, which GPUs do not run. */
int32_t burnish_gpu_check_code(const burnish_image *image, const char *language, burnish_error *error);

/* Whether an environment variable says yes: neither empty nor 0. */
int burnish_gpu_is_set(const char *name);

/* BURNISH_OK in the process that opened the driver: drivers have threads, which a forked process lacks. */
int32_t burnish_gpu_in_process(pid_t opened_by, const char *language, burnish_error *error);

/* BURNISH_OK if the device can start every kernel of the module. */
int32_t burnish_gpu_check_kernels(const burnish_image *image, const gpu_limits *limits, burnish_error *error);

/* The kernel of a step that calls one, and its name. */
const code_kernel *burnish_gpu_kernel(const burnish_context *c, uint32_t step, const char **name);

/* Starts all steps in order by `start_step`, which fails with a status and what happened in `error`; the
 * message gets the step's node and kernel. `begun`: the steps that were started. */
int32_t burnish_gpu_start_steps(burnish_context *c, int32_t (*start_step)(burnish_context *, uint32_t),
                                uint32_t *begun, burnish_error *error);

/* Fails with the first error in `noted`, the error words of all steps, else BURNISH_OK. */
int32_t burnish_gpu_noted_error(burnish_context *c, const int32_t *noted);

#endif
