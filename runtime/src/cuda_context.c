/* What a context of the CUDA device has for itself: memory, streams, functions. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "cuda.h"

#define ALIGNMENT 256 /* of what lies in one allocation */

static uint64_t round_up(uint64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

int32_t burnish_cuda_enter(const burnish_context *c, burnish_error *error) {
  int32_t status = burnish_cuda_in_opening_process(error);
  cu_result code;
  if (status) return status;
  code = burnish_cu.cuCtxPushCurrent_v2(module_of(c)->context);
  return code ? burnish_cuda_failed(error, "cuCtxPushCurrent", code) : BURNISH_OK;
}

void burnish_cuda_leave(void) {
  cu_context current;
  burnish_cu.cuCtxPopCurrent_v2(&current);
}

static uint32_t most_arguments(const burnish_context *c) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < c->plan.step_count; i++)
    if (c->plan.steps[i].arg_count > most) most = c->plan.steps[i].arg_count;
  return most;
}

static int32_t new_tables(burnish_context *c, burnish_error *error) {
  cuda_state *s = c->state;
  uint64_t values = (uint64_t)most_arguments(c) + 2, slots = plan_slots(c->plan.header);
  s->own = burnish_array(slots, sizeof *s->own);
  s->used = burnish_array(slots, sizeof *s->used);
  s->resident = burnish_array(slots, 1);
  for (int n = 0; n < RECORDINGS; n++) {
    recording *r = &s->recordings[n];
    r->used = burnish_array(slots, sizeof *r->used);
    r->resident = burnish_array(slots, 1);
    if (!r->used || !r->resident)
      return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  }
  s->functions = burnish_array(c->plan.step_count, sizeof *s->functions);
  s->values = burnish_array(values, sizeof *s->values);
  s->parameters = burnish_array(values, sizeof *s->parameters);
  if (s->own && s->used && s->resident && s->functions && s->values && s->parameters) return BURNISH_OK;
  return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
}

/* At once: the legacy stream does it, for which not every stream waits that may reach the memory. */
static cu_result set_memory(cu_pointer memory, unsigned char value, uint64_t bytes) {
  cu_result code = burnish_cu.cuMemsetD8_v2(memory, value, (size_t)bytes);
  return code ? code : burnish_cu.cuStreamSynchronize(NULL);
}

/* Two allocations: one on the device, zero at first unless what kernels do not write shall show, and a pinned
 * one, in which inputs and outputs have the same places relative to each other. */
static int32_t new_memory(burnish_context *c, burnish_error *error) {
  cuda_state *s = c->state;
  uint64_t arena = round_up(c->plan.arena_bytes + 1), ios = 0;
  void *pinned = NULL;
  for (uint64_t i = 0; i < plan_slots(c->plan.header); i++) ios += round_up(c->plan.ios[i].nbytes);
  size_t total = (size_t)(arena + ios), host = (size_t)(ios + errors_size(c) + 1);
  cu_result code = burnish_cu.cuMemAlloc_v2(&s->memory, total);
  if (code) return burnish_cuda_failed(error, "cuMemAlloc of a context", code);
  code = set_memory(s->memory, burnish_gpu_is_set("BURNISH_GPU_POISON") ? 0xFF : 0, total);
  if (code) return burnish_cuda_failed(error, "cuMemsetD8", code);
  code = burnish_cu.cuMemHostAlloc(&pinned, host, 0);
  if (code) return burnish_cuda_failed(error, "cuMemHostAlloc", code);
  s->staging = memset(pinned, 0, host);
  s->noted = (int32_t *)(void *)(s->staging + ios);
  for (uint64_t i = 0, at = 0; i < plan_slots(c->plan.header); at += round_up(c->plan.ios[i++].nbytes)) {
    s->own[i] = s->used[i] = s->memory + arena + at;
    c->ios[i].own = s->staging + at;
  }
  return BURNISH_OK;
}

/* Whether all blocks of a kernel that wait for each other can run at once. */
static int32_t check_room(const burnish_context *c, uint32_t step, burnish_error *error) {
  const cuda_state *s = c->state;
  const char *name, *what = "cuDeviceGetAttribute";
  const code_kernel *kernel = burnish_gpu_kernel(c, step, &name);
  uint64_t blocks = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2], room;
  int32_t threads = (int32_t)(kernel->block[0] * kernel->block[1] * kernel->block[2]);
  int32_t able = 0, units = 0, each = 0;
  cu_device device = module_of(c)->device;
  cu_result code = burnish_cu.cuDeviceGetAttribute(&able, CU_COOPERATIVE_LAUNCH, device);
  if (!code) code = burnish_cu.cuDeviceGetAttribute(&units, CU_MULTIPROCESSOR_COUNT, device);
  if (!code) {
    what = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    code = burnish_cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, s->functions[step], threads,
                                                                  launched_shared(kernel));
  }
  if (code) return burnish_cuda_failed(error, what, code);
  if (!able)
    return burnish_fail(error, BURNISH_BAD_DEVICE, (int32_t)step,
                        "the blocks of kernel %.100s wait for each other, which the driver of this GPU does "
                        "not allow; compile the model with --target cuda-sm80 or a newer one by name",
                        name);
  room = (uint64_t)units * (uint64_t)each;
  if (blocks <= room) return BURNISH_OK;
  return burnish_fail(error, BURNISH_BAD_DEVICE, (int32_t)step,
                      "kernel %.100s needs %llu blocks at once, but this GPU has room for %llu; compile the "
                      "model on this machine, with --target cuda",
                      name, (unsigned long long)blocks, (unsigned long long)room);
}

static int32_t find_functions(burnish_context *c, burnish_error *error) {
  cuda_state *s = c->state;
  for (uint32_t i = 0; i < c->plan.step_count; i++) {
    const char *name;
    if (c->plan.steps[i].kind != STEP_CALL) continue;
    const code_kernel *kernel = burnish_gpu_kernel(c, i, &name);
    uint32_t shared = launched_shared(kernel);
    s->reports |= kernel->flags & KERNEL_REPORTS;
    const char *what = "cuModuleGetFunction";
    cu_result code = burnish_cu.cuModuleGetFunction(&s->functions[i], module_of(c)->code, name);
    if (!code && shared) {
      what = "cuFuncSetAttribute";
      code =
          burnish_cu.cuFuncSetAttribute(s->functions[i], CU_FUNC_MAX_DYNAMIC_SHARED_BYTES, (int32_t)shared);
    }
    if (code) {
      burnish_error why;
      burnish_cuda_failed(&why, what, code);
      return burnish_fail(error, why.code, (int32_t)i, "kernel %.100s: %.300s", name, why.message);
    }
    int32_t status = kernel->flags & KERNEL_TOGETHER ? check_room(c, i, error) : BURNISH_OK;
    if (status) return status;
  }
  return BURNISH_OK;
}

static int32_t new_streams(cuda_state *s, burnish_error *error) {
  cu_result code = burnish_cu.cuStreamCreate(&s->stream, 0);
  if (!code) code = burnish_cu.cuStreamCreate(&s->recorder, CU_STREAM_NON_BLOCKING);
  return code ? burnish_cuda_failed(error, "cuStreamCreate", code) : BURNISH_OK;
}

int32_t burnish_cuda_start(burnish_context *c, const burnish_options *options, burnish_error *error) {
  cuda_state *s = c->state = calloc(1, sizeof *s);
  int32_t status;
  (void)options;
  if (!s) return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  s->blocking = burnish_gpu_is_set("CUDA_LAUNCH_BLOCKING");
  status = new_tables(c, error);
  if (!status) status = burnish_cuda_enter(c, error);
  if (status) return status;
  status = new_memory(c, error);
  if (!status) status = new_streams(s, error);
  if (!status) status = find_functions(c, error);
  burnish_cuda_leave();
  return status;
}

void burnish_cuda_drop_graphs(recording *r) {
  for (int kind = 0; kind < 2; kind++) {
    if (r->graphs[kind]) burnish_cu.cuGraphExecDestroy(r->graphs[kind]);
    r->graphs[kind] = NULL;
  }
}

void burnish_cuda_free_events(burnish_context *c) {
  cuda_state *s = c->state;
  for (uint32_t i = 0; s->events && i <= c->plan.step_count; i++)
    if (s->events[i]) burnish_cu.cuEventDestroy_v2(s->events[i]);
  free(s->events);
  s->events = NULL;
}

void burnish_cuda_stop(burnish_context *c) {
  cuda_state *s = c->state;
  burnish_error ignored;
  if (!s) return;
  if (!burnish_cuda_enter(c, &ignored)) {
    for (int n = 0; n < RECORDINGS; n++) burnish_cuda_drop_graphs(&s->recordings[n]);
    burnish_cuda_free_events(c);
    if (s->recorder) burnish_cu.cuStreamDestroy_v2(s->recorder);
    if (s->stream) burnish_cu.cuStreamDestroy_v2(s->stream);
    if (s->staging) burnish_cu.cuMemFreeHost(s->staging);
    if (s->memory) burnish_cu.cuMemFree_v2(s->memory);
    burnish_cuda_leave();
  }
  for (uint64_t i = 0; i < plan_slots(c->plan.header); i++) c->ios[i].own = NULL; /* was in `staging` */
  for (int n = 0; n < RECORDINGS; n++) {
    free(s->recordings[n].used);
    free(s->recordings[n].resident);
  }
  free(s->own);
  free(s->used);
  free(s->resident);
  free(s->functions);
  free(s->events);
  free(s->values);
  free(s->parameters);
  free(s);
}
