#include "gpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int32_t burnish_gpu_check_code(const burnish_image *image, const char *language, burnish_error *error) {
  if (burnish_code_is_sound(image->code, image->code_bytes) &&
      burnish_code_view(image->code).header->kernel_count == image->kernel_count &&
      !burnish_plan_view(image).header->prepared_bytes)
    return BURNISH_OK;
  return burnish_fail(error, BURNISH_BAD_PLAN, -1, "broken module: its %s code; compile the model again",
                      language);
}

int burnish_gpu_is_set(const char *name) {
  const char *value = getenv(name);
  return value && *value && strcmp(value, "0") != 0;
}

int32_t burnish_gpu_in_process(pid_t opened_by, const char *language, burnish_error *error) {
  if (getpid() == opened_by) return BURNISH_OK;
  return burnish_fail(error, BURNISH_BAD_DEVICE, -1,
                      "%s was opened before this process was forked, which drivers do not survive; open "
                      "modules for %s in the child only, or start it anew (multiprocessing: spawn)",
                      language, language);
}

int32_t burnish_gpu_check_kernels(const burnish_image *image, const gpu_limits *limits,
                                  burnish_error *error) {
  code_view code = burnish_code_view(image->code);
  for (uint32_t k = 0; k < code.header->kernel_count; k++) {
    const code_kernel *kernel = &code.kernels[k];
    const char *name = code.strings + kernel->name;
    uint64_t block = (uint64_t)kernel->block[0] * kernel->block[1] * kernel->block[2];
    if (block > limits->block_threads || kernel->shared > limits->shared)
      return burnish_fail(
          error, BURNISH_BAD_DEVICE, -1,
          "kernel %s needs %llu threads and %u bytes of shared memory in a block; the %s device "
          "%s has %llu and %llu; compile the model for this machine",
          name, (unsigned long long)block, kernel->shared, limits->language, limits->name,
          (unsigned long long)limits->block_threads, (unsigned long long)limits->shared);
    for (int axis = 0; axis < 3; axis++)
      if (kernel->grid[axis] > limits->grid[axis])
        return burnish_fail(error, BURNISH_BAD_DEVICE, -1,
                            "kernel %s needs %u blocks along %c; the %s device %s allows %llu; compile the "
                            "model for a smaller batch",
                            name,
                            kernel->grid[axis], "xyz"[axis], limits->language, limits->name,
                            (unsigned long long)limits->grid[axis]);
  }
  return BURNISH_OK;
}

const code_kernel *burnish_gpu_kernel(const burnish_context *c, uint32_t step, const char **name) {
  code_view code = burnish_code_view(c->image->code);
  const code_kernel *kernel = &code.kernels[c->plan.steps[step].kernel];
  if (name) *name = code.strings + kernel->name;
  return kernel;
}

int32_t burnish_gpu_start_steps(burnish_context *c, int32_t (*start_step)(burnish_context *, uint32_t),
                                uint32_t *begun, burnish_error *error) {
  for (*begun = 0; *begun < c->plan.step_count; ++*begun) {
    int32_t status = start_step(c, *begun);
    const plan_step *step = &c->plan.steps[*begun];
    const char *kernel = "copy";
    burnish_error why = c->error;
    if (!status) continue;
    if (step->kind == STEP_CALL) burnish_gpu_kernel(c, *begun, &kernel);
    return burnish_fail(error, status, (int32_t)*begun, "node %.150s, kernel %.100s: %.230s",
                        c->plan.strings + step->node, kernel, why.message);
  }
  return BURNISH_OK;
}

int32_t burnish_gpu_noted_error(burnish_context *c, const int32_t *noted) {
  for (uint32_t i = 0; i < c->plan.step_count; i++)
    if (noted[i]) return burnish_step_error(c, i, noted[i]);
  return BURNISH_OK;
}
