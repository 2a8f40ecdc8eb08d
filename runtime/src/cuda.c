/* Runs plans on an NVIDIA GPU through the driver. A context records its whole run once as a CUDA graph:
 * inputs from pinned memory, every step, outputs to pinned memory; where steps are timed, once more with an
 * event before each that has a node's name. A run copies what the user bound into that memory, launches the
 * graph and waits. Memory of the device that the user binds is read and written in place. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>

#define ALIGNMENT 256             /* of what lies in one allocation */
#define STATIC_SHARED (48u << 10) /* bytes that a kernel declares; more come with its launch */
#define VECTOR_BYTES 16 /* kernels read and write so much at once: operands begin at multiples of it */

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

static const cuda_module *module_of(const burnish_context *c) { return c->image->parts->device_module; }

static size_t errors_size(const burnish_context *c) { return c->plan.step_count * sizeof(int32_t); }

static uint64_t round_up(uint64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int32_t enter(const burnish_context *c, burnish_error *error) {
  int32_t status = burnish_cuda_in_opening_process(error);
  cu_result code;
  if (status) return status;
  code = burnish_cu.cuCtxPushCurrent_v2(module_of(c)->context);
  return code ? burnish_cuda_failed(error, "cuCtxPushCurrent", code) : BURNISH_OK;
}

static void leave(void) {
  cu_context current;
  burnish_cu.cuCtxPopCurrent_v2(&current);
}

/* --- a context --- */

static uint32_t most_arguments(const burnish_context *c) {
  uint32_t most = 0;
  for (uint32_t i = 0; i < c->plan.step_count; i++)
    if (c->plan.steps[i].arg_count > most) most = c->plan.steps[i].arg_count;
  return most;
}

static int32_t new_tables(burnish_context *c, burnish_error *error) {
  cuda_state *s = c->state;
  uint64_t values = (uint64_t)most_arguments(c) + 2;
  s->own = burnish_array(plan_slots(c->plan.header), sizeof *s->own);
  s->used = burnish_array(plan_slots(c->plan.header), sizeof *s->used);
  s->resident = burnish_array(plan_slots(c->plan.header), 1);
  for (int n = 0; n < RECORDINGS; n++) {
    recording *r = &s->recordings[n];
    r->used = burnish_array(plan_slots(c->plan.header), sizeof *r->used);
    r->resident = burnish_array(plan_slots(c->plan.header), 1);
    if (!r->used || !r->resident)
      return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  }
  s->functions = burnish_array(c->plan.step_count, sizeof *s->functions);
  s->values = burnish_array(values, sizeof *s->values);
  s->parameters = burnish_array(values, sizeof *s->parameters);
  if (s->own && s->used && s->resident && s->functions && s->values && s->parameters) return BURNISH_OK;
  return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
}

static int is_set(const char *name) {
  const char *value = getenv(name);
  return value && *value && strcmp(value, "0") != 0;
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
  code = set_memory(s->memory, is_set("BURNISH_GPU_POISON") ? 0xFF : 0, total);
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

static uint32_t launched_shared(const code_kernel *kernel) {
  return kernel->shared > STATIC_SHARED ? kernel->shared : 0;
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
  room = able ? (uint64_t)units * (uint64_t)each : 0;
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

static int32_t cuda_start(burnish_context *c, const burnish_options *options, burnish_error *error) {
  cuda_state *s = c->state = calloc(1, sizeof *s);
  int32_t status;
  (void)options;
  if (!s) return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  s->blocking = is_set("CUDA_LAUNCH_BLOCKING");
  status = new_tables(c, error);
  if (!status) status = enter(c, error);
  if (status) return status;
  status = new_memory(c, error);
  if (!status) status = new_streams(s, error);
  if (!status) status = find_functions(c, error);
  leave();
  return status;
}

static void drop_graphs(recording *r) {
  for (int kind = 0; kind < 2; kind++) {
    if (r->graphs[kind]) burnish_cu.cuGraphExecDestroy(r->graphs[kind]);
    r->graphs[kind] = NULL;
  }
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
  drop_graphs(oldest);
  memcpy(oldest->used, s->used, bytes);
  memcpy(oldest->resident, s->resident, count);
}

static void free_events(burnish_context *c) {
  cuda_state *s = c->state;
  for (uint32_t i = 0; s->events && i <= c->plan.step_count; i++)
    if (s->events[i]) burnish_cu.cuEventDestroy_v2(s->events[i]);
  free(s->events);
  s->events = NULL;
}

static void cuda_stop(burnish_context *c) {
  cuda_state *s = c->state;
  burnish_error ignored;
  if (!s) return;
  if (!enter(c, &ignored)) {
    for (int n = 0; n < RECORDINGS; n++) drop_graphs(&s->recordings[n]);
    free_events(c);
    if (s->recorder) burnish_cu.cuStreamDestroy_v2(s->recorder);
    if (s->stream) burnish_cu.cuStreamDestroy_v2(s->stream);
    if (s->staging) burnish_cu.cuMemFreeHost(s->staging);
    if (s->memory) burnish_cu.cuMemFree_v2(s->memory);
    leave();
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

static void *cuda_device_memory(burnish_context *c, uint64_t slot) {
  const cuda_state *s = c->state;
  return (void *)(uintptr_t)s->own[slot];
}

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
  free_events(c);
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

static int32_t cuda_run(burnish_context *c) {
  int32_t status = enter(c, &c->error);
  if (status) return status;
  status = run(c);
  leave();
  return status;
}

const burnish_device burnish_cuda = {"cuda",    burnish_cuda_load, burnish_cuda_unload, cuda_start,
                                     cuda_stop, cuda_run,          cuda_device_memory};
