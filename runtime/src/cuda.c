/* Runs plans on an NVIDIA GPU through the driver. A context records its whole run once as a CUDA graph:
 * inputs from pinned memory, every step, outputs to pinned memory; where steps are timed, once more with an
 * event before each that has a node's name. A run copies what the user bound into that memory, launches the
 * graph and waits. Memory of the device that the user binds is read and written in place. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>

#define VECTOR_BYTES 16 /* kernels read and write so much at once: operands begin at multiples of it */

/* --- what a run consists of --- */

static cu_pointer address_of(const burnish_context *c, const plan_arg *arg) {
  const cuda_state *s = c->state;
  cu_pointer base = arg->space == SPACE_INPUT    ? s->used[arg->index]
                    : arg->space == SPACE_OUTPUT ? s->used[plan_output_slot(c->plan.header, arg->index)]
                    : arg->space == SPACE_ARENA  ? s->memory
                                                 : module_of(c)->weights;
  return base + arg->offset;
}

/* Whether a step's time is its own. One without a node's name counts as a part of the step before it: an
 * event takes longer than many a kernel, and keeps the next one from beginning. */
static int is_timed(const burnish_context *c, uint32_t step) {
  return !step || c->plan.strings[c->plan.steps[step].node];
}

/* Whether a kernel follows another one, with nothing in between, and neither needs the whole GPU. */
static int follows(const burnish_context *c, uint32_t number) {
  const cuda_state *s = c->state;
  int apart = !number || c->plan.steps[number - 1].kind != STEP_CALL || (s->timed && is_timed(c, number)) ||
              s->step_by_step;
  if (apart || !burnish_cu.cuLaunchKernelEx) return 0;
  uint32_t flags = burnish_gpu_kernel(c, number, NULL)->flags;
  uint32_t before = burnish_gpu_kernel(c, number - 1, NULL)->flags;
  return flags & KERNEL_OVERLAPS && !((flags | before) & KERNEL_TOGETHER);
}

static cu_result call_step(burnish_context *c, uint32_t number) {
  cuda_state *s = c->state;
  const plan_step *step = &c->plan.steps[number];
  const code_kernel *kernel = burnish_gpu_kernel(c, number, NULL);
  const uint32_t *grid = kernel->grid, *block = kernel->block, shared = launched_shared(kernel);
  cu_pointer *values = s->values;
  for (uint32_t i = 0; i < step->arg_count; i++)
    values[i] = address_of(c, &c->plan.args[step->first_arg + i]);
  values[step->arg_count] = (cu_pointer)(uintptr_t)s->noted;
  for (uint32_t i = 0; i <= step->arg_count; i++) s->parameters[i] = &values[i];
  s->parameters[step->arg_count + 1] = &number;
  if (kernel->flags & KERNEL_TOGETHER)
    return burnish_cu.cuLaunchCooperativeKernel(s->functions[number], grid[0], grid[1], grid[2], block[0],
                                                block[1], block[2], shared, s->submit_to, s->parameters);
  if (follows(c, number)) {
    cu_attribute overlaps = {.what = CU_PROGRAMMATIC_STREAM_SERIALIZATION, .value.number = 1};
    cu_launch launch = {
        {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, s->submit_to, &overlaps, 1};
    return burnish_cu.cuLaunchKernelEx(&launch, s->functions[number], s->parameters, NULL);
  }
  return burnish_cu.cuLaunchKernel(s->functions[number], grid[0], grid[1], grid[2], block[0], block[1],
                                   block[2], shared, s->submit_to, s->parameters, NULL);
}

static cu_result copy_step(burnish_context *c, uint32_t number) {
  const cuda_state *s = c->state;
  const plan_arg *from = &c->plan.args[c->plan.steps[number].first_arg], *to = from + 1;
  if (!from->nbytes) return 0;
  return burnish_cu.cuMemcpyDtoDAsync_v2(address_of(c, to), address_of(c, from), (size_t)from->nbytes,
                                         s->submit_to);
}

static int32_t start_step(burnish_context *c, uint32_t number) {
  const cuda_state *s = c->state;
  const char *what = "cuEventRecord";
  cu_result code = 0;
  if (s->timed && is_timed(c, number))
    code = burnish_cu.cuEventRecordWithFlags(s->events[number], s->submit_to, CU_EVENT_RECORD_EXTERNAL);
  if (!code && c->plan.steps[number].kind == STEP_COPY) {
    what = "cuMemcpyDtoDAsync";
    code = copy_step(c, number);
  } else if (!code) {
    what = "launching the kernel";
    code = call_step(c, number);
  }
  if (!code && s->step_by_step) {
    what = "its run";
    code = burnish_cu.cuStreamSynchronize(s->submit_to);
  }
  return code ? burnish_cuda_failed(&c->error, what, code) : BURNISH_OK;
}

/* Inputs to the device, or outputs from it, except those that the user bound there. */
static cu_result transfer(burnish_context *c, int to_device) {
  const plan_header *h = c->plan.header;
  const cuda_state *s = c->state;
  uint64_t begin = to_device ? 0 : plan_output_slot(h, 0), end = to_device ? h->input_count : plan_slots(h);
  cu_result code = 0;
  for (uint64_t i = begin; i < end && !code; i++) {
    size_t bytes = (size_t)c->plan.ios[i].nbytes;
    if (!bytes || s->resident[i]) continue;
    code = to_device ? burnish_cu.cuMemcpyHtoDAsync_v2(s->used[i], c->ios[i].own, bytes, s->submit_to)
                     : burnish_cu.cuMemcpyDtoHAsync_v2(c->ios[i].own, s->used[i], bytes, s->submit_to);
  }
  return code;
}

/* The whole run to a stream. */
static int32_t submit(burnish_context *c, cu_stream stream) {
  cuda_state *s = c->state;
  uint32_t begun, steps = c->plan.step_count;
  s->submit_to = stream;
  cu_result code = transfer(c, 1);
  if (code) return burnish_cuda_failed(&c->error, "copying the inputs", code);
  int32_t status = burnish_gpu_start_steps(c, start_step, &begun, &c->error);
  if (status) return status;
  if (s->timed) code = burnish_cu.cuEventRecordWithFlags(s->events[steps], stream, CU_EVENT_RECORD_EXTERNAL);
  if (!code) code = transfer(c, 0);
  return code ? burnish_cuda_failed(&c->error, "copying the outputs", code) : BURNISH_OK;
}

static int32_t record(burnish_context *c, cu_executable *recorded) {
  const cuda_state *s = c->state;
  cu_graph graph = NULL;
  cu_result code = burnish_cu.cuStreamBeginCapture_v2(s->recorder, CU_CAPTURE_THREAD_LOCAL);
  if (code) return burnish_cuda_failed(&c->error, "cuStreamBeginCapture", code);
  int32_t status = submit(c, s->recorder);
  code = burnish_cu.cuStreamEndCapture(s->recorder, &graph);
  if (!status && code) status = burnish_cuda_failed(&c->error, "cuStreamEndCapture", code);
  if (!status && (code = burnish_cu.cuGraphInstantiateWithFlags(recorded, graph, 0))) {
    *recorded = NULL;
    status = burnish_cuda_failed(&c->error, "cuGraphInstantiate", code);
  }
  if (graph) burnish_cu.cuGraphDestroy(graph);
  return status;
}

/* --- a run --- */

/* The device that memory lies on; -1 for what is no memory of a device. Of memory that the driver does not
   know this is no error, as it is where a single attribute is asked for. */
static int32_t find_device(burnish_context *c, const void *memory, int32_t *device) {
  static const int32_t asked[] = {CU_POINTER_MEMORY_TYPE, CU_POINTER_DEVICE_ORDINAL};
  uint32_t type = 0;
  int32_t ordinal = -1;
  void *found[] = {&type, &ordinal};
  cu_result code = burnish_cu.cuPointerGetAttributes(2, asked, found, (cu_pointer)(uintptr_t)memory);
  *device = !code && type == CU_MEMORY_OF_DEVICE ? ordinal : -1;
  return code && code != CU_INVALID_VALUE ? burnish_cuda_failed(&c->error, "cuPointerGetAttributes", code)
                                          : BURNISH_OK;
}

static uint64_t used_by(const burnish_context *c, uint64_t slot) {
  const cuda_state *s = c->state;
  return s->used[slot];
}

/* The one of the addresses of now, or else the place of the one that was not wanted for longest. */
static void choose_recording(const burnish_context *c) {
  cuda_state *s = c->state;
  size_t count = (size_t)plan_slots(c->plan.header), bytes = count * sizeof *s->used;
  recording *oldest = s->recordings, *found = NULL;
  for (recording *r = s->recordings; r < s->recordings + RECORDINGS; r++) {
    if (r->chosen && !memcmp(r->used, s->used, bytes) && !memcmp(r->resident, s->resident, count)) found = r;
    if (r->chosen < oldest->chosen) oldest = r;
  }
  s->now = found ? found : oldest;
  s->now->chosen = ++s->choices;
  if (found) return;
  burnish_cuda_drop_graphs(oldest);
  memcpy(oldest->used, s->used, bytes);
  memcpy(oldest->resident, s->resident, count);
}

/* Where the inputs and outputs lie from now on. Graphs refer to the device's memory alone. */
static int32_t resolve(burnish_context *c) {
  cuda_state *s = c->state;
  for (uint64_t i = 0; i < plan_slots(c->plan.header); i++) {
    void *bound = c->ios[i].bound;
    int32_t device = -1, status = bound ? find_device(c, bound, &device) : BURNISH_OK;
    if (status) return status;
    cu_pointer used = device >= 0 ? (cu_pointer)(uintptr_t)bound : s->own[i];
    if (device >= 0 && device != module_of(c)->device)
      return burnish_fail(&c->error, BURNISH_BAD_ARGUMENT, -1,
                          "%s lies on CUDA device %d, but this module runs on device %d, the first that "
                          "CUDA_VISIBLE_DEVICES leaves",
                          c->plan.strings + c->plan.ios[i].name, (int)device, (int)module_of(c)->device);
    if (used % VECTOR_BYTES)
      return burnish_fail(
          &c->error, BURNISH_BAD_ARGUMENT, -1,
          "%s begins at an address that is no multiple of %d bytes, as a part of another array "
          "may; copy it to memory of its own",
          c->plan.strings + c->plan.ios[i].name, VECTOR_BYTES);
    s->used[i] = used;
    s->resident[i] = device >= 0;
  }
  choose_recording(c);
  int32_t status = burnish_check_apart(c, used_by);
  c->stale = status != BURNISH_OK;
  return status;
}

/* Between the user's memory and the pinned one, where the user bound some. */
static void stage(burnish_context *c, int to_device) {
  const plan_header *h = c->plan.header;
  const cuda_state *s = c->state;
  uint64_t begin = to_device ? 0 : plan_output_slot(h, 0), end = to_device ? h->input_count : plan_slots(h);
  for (uint64_t i = begin; i < end; i++) {
    void *user = c->ios[i].bound, *own = c->ios[i].own;
    size_t bytes = (size_t)c->plan.ios[i].nbytes;
    if (user && user != own && bytes && !s->resident[i])
      memcpy(to_device ? own : user, to_device ? user : own, bytes);
  }
}

static int32_t new_events(burnish_context *c) {
  cuda_state *s = c->state;
  cu_result code = 0;
  if (s->events) return BURNISH_OK;
  s->events = burnish_array((uint64_t)c->plan.step_count + 1, sizeof *s->events);
  if (!s->events) return burnish_fail(&c->error, BURNISH_NO_MEMORY, -1, "no memory for events");
  for (uint32_t i = 0; i <= c->plan.step_count && !code; i++)
    code = burnish_cu.cuEventCreate(&s->events[i], 0);
  if (!code) return BURNISH_OK;
  burnish_cuda_free_events(c);
  return burnish_cuda_failed(&c->error, "cuEventCreate", code);
}

static int32_t take_times(burnish_context *c) {
  const cuda_state *s = c->state;
  for (uint32_t i = 0, next; i < c->plan.step_count; i = next) {
    float ms = 0;
    for (next = i + 1; next < c->plan.step_count && !is_timed(c, next);) c->nanoseconds[next++] = 0;
    cu_result code = burnish_cu.cuEventElapsedTime(&ms, s->events[i], s->events[next]);
    if (code) return burnish_cuda_failed(&c->error, "cuEventElapsedTime", code);
    c->nanoseconds[i] = (int64_t)((double)ms * 1e6);
  }
  return BURNISH_OK;
}

/* Starts a run: by the graph, which is recorded first where it is not there. */
static int32_t launch(burnish_context *c) {
  cuda_state *s = c->state;
  int timed = c->nanoseconds != NULL;
  cu_executable *graph = &s->now->graphs[timed];
  int32_t status = timed ? new_events(c) : BURNISH_OK;
  s->timed = timed && !status;
  s->step_by_step = s->blocking && !timed;
  if (!status && s->step_by_step) return submit(c, s->stream);
  if (!status && !*graph) status = record(c, graph);
  if (status) return status;
  cu_result code = burnish_cu.cuGraphLaunch(*graph, s->stream);
  return code ? burnish_cuda_failed(&c->error, "cuGraphLaunch", code) : BURNISH_OK;
}

static int32_t finish(burnish_context *c, int32_t status) {
  const cuda_state *s = c->state;
  cu_result code = burnish_cu.cuStreamSynchronize(s->stream);
  if (status || !code) return status;
  burnish_error why;
  burnish_cuda_failed(&why, "a run", code);
  return burnish_fail(&c->error, why.code, -1, "%.300s; run with CUDA_LAUNCH_BLOCKING=1 to see which kernel",
                      why.message);
}

static int32_t run(burnish_context *c) {
  cuda_state *s = c->state;
  int32_t status = c->stale ? resolve(c) : BURNISH_OK;
  if (status) return status;
  stage(c, 1);
  status = finish(c, launch(c));
  if (!status && s->timed) status = take_times(c);
  if (!status && s->reports) status = burnish_gpu_noted_error(c, s->noted);
  if (status) memset(s->noted, 0, errors_size(c)); /* none before the next run */
  if (!status) stage(c, 0);
  return status;
}

static void *cuda_device_memory(burnish_context *c, uint64_t slot) {
  const cuda_state *s = c->state;
  return (void *)(uintptr_t)s->own[slot];
}

static int32_t cuda_run(burnish_context *c) {
  int32_t status = burnish_cuda_enter(c, &c->error);
  if (status) return status;
  status = run(c);
  burnish_cuda_leave();
  return status;
}

const burnish_device burnish_cuda = {
    "cuda",   burnish_cuda_load, burnish_cuda_unload, burnish_cuda_start, burnish_cuda_stop,
    cuda_run, cuda_device_memory};
