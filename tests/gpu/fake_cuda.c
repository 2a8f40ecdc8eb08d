/* A libcuda.so.1 without a GPU: memory of the device is the host's, kernels are those of emulated_nvcc.py. It
 * checks how it is used (fake_violations), counts what is alive and what was called, and fails on demand. One
 * thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_api.h"

#define MOST 4096
#define MOST_OPERATIONS 256

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500 };
enum { MOST_THREADS = 1024, STATIC_SHARED = 48 << 10, MOST_SHARED = 160 << 10 };

/* --- what a test says and asks --- */

static char violations[1 << 16];
static char called[MOST][40];
static pid_t owner; /* the process that began to use the driver: its children cannot */
static int32_t call_count, fail_at = -1, fail_with, devices = 1, units = 108, arch = 80, version = 12040, launches, overlaps;

static void violation(const char *format, ...) {
  size_t used = strlen(violations);
  va_list list;
  va_start(list, format);
  vsnprintf(violations + used, sizeof violations - used - 1, format, list);
  va_end(list);
  strncat(violations, "\n", sizeof violations - strlen(violations) - 1);
}

/* Notes a call that may fail; the code it has to fail with, or 0. */
static cu_result enter(const char *name) {
  int32_t number = call_count++;
  if (owner && owner != getpid()) return violation("%s in a child", name), NOT_INITIALIZED;
  if (number < MOST) snprintf(called[number], sizeof called[number], "%s", name);
  return number == fail_at ? fail_with : 0;
}
#define ENTER()                        \
  do {                                 \
    cu_result code_ = enter(__func__); \
    if (code_) return code_;           \
  } while (0)

/* --- what is alive --- */

typedef struct object {
  const char *kind; /* NULL: a free place */
  void *address;
  size_t bytes;
  int32_t device;
} object;
static object objects[MOST];

static void *keep(const char *kind, void *address, size_t bytes, int32_t device) {
  for (int i = 0; i < MOST; i++)
    if (!objects[i].kind) return objects[i] = (object){kind, address, bytes, device}, address;
  abort();
}

static object *find(const char *kind, const void *address, size_t bytes) {
  for (int i = 0; i < MOST; i++) {
    object *o = &objects[i];
    const char *begin = o->address, *at = address;
    if (o->kind && !strcmp(o->kind, kind) && at >= begin && at + bytes <= begin + o->bytes) return o;
  }
  return NULL;
}

static cu_result drop(const char *kind, void *address) {
  object *o = find(kind, address, 0);
  if (!o || o->address != address) return violation("no live %s to free", kind), INVALID_VALUE;
  free(address);
  *o = (object){0};
  return 0;
}

/* --- streams, graphs, events --- */

typedef struct operation {
  char kind; /* k kernel, u up, d down, c copy on the device, e event */
  void *to;
  const void *from;
  size_t bytes;
  cu_function function;
  uint32_t grid[3], block[3];
  void *parameters[64];
  uint64_t values[64];
} operation;

struct cu_graph_s {
  int32_t count;
  operation operations[MOST_OPERATIONS];
};
struct cu_executable_s {
  struct cu_graph_s graph;
};
struct cu_stream_s {
  uint32_t flags;
  cu_graph capturing;
};
struct cu_event_s {
  float recorded;
};
struct cu_module_s {
  void *library;
  int file;
  const void *(*named)(const char *);
  unsigned (*parameters)(const void *, const unsigned **, unsigned *);
  int (*meets)(const void *);
  int (*run)(const void *, const unsigned *, const unsigned *, void **);
};
struct cu_function_s {
  cu_module module;
  const void *kernel;
  const unsigned *sizes;
  unsigned count, threads, shared; /* arguments; of a block; bytes that come with a launch */
};
struct cu_context_s {
  int retained;
};

static struct cu_context_s primary;
static int depth; /* of the stack of current contexts */
static int under_way; /* what the legacy stream sets, for which not all streams wait */
static float clock_ms;
static struct cu_function_s functions[MOST];
static int function_count;

static cu_result need_context(const char *name) {
  if (depth > 0) return 0;
  violation("%s without a current context", name);
  return INVALID_CONTEXT;
}
#define ENTER_CONTEXT()                                 \
  do {                                                  \
    ENTER();                                            \
    if (need_context(__func__)) return INVALID_CONTEXT; \
  } while (0)

static int capturing(void) {
  for (int i = 0; i < MOST; i++)
    if (objects[i].kind && !strcmp(objects[i].kind, "stream") && ((cu_stream)objects[i].address)->capturing)
      return 1;
  return 0;
}

static void check_range(const char *kind, const void *address, size_t bytes, const char *what) {
  if (!find(kind, address, bytes))
    violation("%s: %zu bytes are not within one live allocation of %s", what, bytes, kind);
}

static void execute(operation *o) {
  static const char *const from_kind[] = {"pinned", "device", "device"}, *const to_kind[] = {
                                                                             "device", "pinned", "device"};
  const char *names = "udc", *at = strchr(names, o->kind);
  if (o->kind == 'e') {
    ((cu_event)o->to)->recorded = clock_ms += 0.5f;
  } else if (o->kind == 'k') {
    launches++;
    for (unsigned i = 0; i + 1 < o->function->count; i++)
      check_range(i + 2 < o->function->count ? "device" : "pinned", (void *)(uintptr_t)o->values[i], 0,
                  "a kernel's argument"); /* errors lie where the host reads them, too */
    if (!o->function->module->run(o->function->kernel, o->grid, o->block, o->parameters))
      violation("not all threads of a block come to a barrier");
  } else if (at) {
    check_range(from_kind[at - names], o->from, o->bytes, "the source of a copy");
    check_range(to_kind[at - names], o->to, o->bytes, "the target of a copy");
    memcpy(o->to, o->from, o->bytes);
  }
}

static cu_result submit(cu_stream stream, operation o) {
  if (!find("stream", stream, 0)) return violation("work for a stream that is not alive"), INVALID_VALUE;
  if (!stream->capturing) return execute(&o), 0;
  cu_graph graph = stream->capturing;
  if (graph->count == MOST_OPERATIONS) abort();
  operation *kept = &graph->operations[graph->count++];
  *kept = o;
  for (int i = 0; i < 64; i++) kept->parameters[i] = &kept->values[i];
  return 0;
}

/* --- for tests --- */

const char *fake_violations(void) { return violations; }
const char *fake_called(int32_t n) { return n < call_count && n < MOST ? called[n] : NULL; }
int32_t fake_launches(void) { return launches; }
int32_t fake_overlaps(void) { return overlaps; } /* kernels that may begin before the one before has ended */
void fake_set_arch(int32_t number) { arch = number; }
void fake_set_version(int32_t number) { version = number; } /* before the runtime opens the driver */
void fake_set_devices(int32_t count) { devices = count; }
void fake_set_units(int32_t count) { units = count; } /* with none, blocks may not wait for each other */

void fake_fail(int32_t call, int32_t code) {
  call_count = launches = overlaps = 0;
  fail_at = call;
  fail_with = code;
  violations[0] = 0, under_way = 0;
}

/* Text: kinds of what is alive, but what tests allocated. */
const char *fake_alive(void) {
  static char text[4096];
  text[0] = 0;
  for (int i = 0; i < MOST; i++)
    if (objects[i].kind && strcmp(objects[i].kind, "test"))
      strncat(strncat(text, objects[i].kind, sizeof text - strlen(text) - 1), " ",
              sizeof text - strlen(text) - 1);
  if (primary.retained) strcat(text, "context ");
  if (depth) strcat(text, "pushed ");
  return text;
}

void *fake_allocate(size_t bytes, int32_t device) { return keep("device", malloc(bytes), bytes, device); }
void fake_free(void *memory) { drop("device", memory); }

/* --- the driver --- */

cu_result cuInit(uint32_t flags) {
  ENTER();
  owner = getpid();
  return flags ? INVALID_VALUE : devices ? 0 : NO_DEVICE;
}

cu_result cuDriverGetVersion(int32_t *number) { return *number = version, 0; }

cu_result cuGetErrorName(cu_result code, const char **name) {
  *name = code == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == NO_DEVICE      ? "CUDA_ERROR_NO_DEVICE"
                                   : "CUDA_ERROR_FAKE";
  return 0;
}

cu_result cuGetErrorString(cu_result code, const char **text) {
  *text = "a fake error";
  return code == 0;
}

cu_result cuDeviceGetCount(int32_t *count) {
  ENTER();
  return *count = devices, 0;
}

cu_result cuDeviceGet(cu_device *device, int32_t ordinal) {
  ENTER();
  return *device = ordinal, ordinal >= devices ? INVALID_VALUE : 0;
}

cu_result cuDeviceGetName(char *name, int32_t size, cu_device device) {
  (void)device;
  return snprintf(name, (size_t)size, "Fake A100"), 0;
}

cu_result cuDeviceGetPCIBusId(char *bus, int32_t size, cu_device device) {
  return snprintf(bus, (size_t)size, "0000:0%d:00.0", (int)device), 0;
}

cu_result cuDeviceGetAttribute(int32_t *value, int32_t what, cu_device device) {
  (void)device;
  ENTER();
  *value = what == CU_COMPUTE_CAPABILITY_MAJOR      ? arch / 10
           : what == CU_COMPUTE_CAPABILITY_MINOR    ? arch % 10
           : what == CU_MAX_THREADS_PER_BLOCK       ? MOST_THREADS
           : what == CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? MOST_SHARED
           : what == CU_MAX_GRID_DIM_X              ? 0x7fffffff
           : what == CU_COOPERATIVE_LAUNCH          ? units > 0
           : what == CU_MULTIPROCESSOR_COUNT        ? units
                                                    : 65535;
  return 0;
}

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device) {
  (void)device;
  ENTER();
  primary.retained++;
  return *context = &primary, 0;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device) {
  (void)device;
  if (--primary.retained < 0) violation("a context is released too often");
  return 0;
}

cu_result cuCtxPushCurrent_v2(cu_context context) {
  ENTER();
  if (context != &primary || !primary.retained)
    return violation("a context that is not alive is pushed"), INVALID_CONTEXT;
  return depth++, 0;
}

cu_result cuCtxPopCurrent_v2(cu_context *context) {
  if (--depth < 0) violation("no context to pop");
  if (under_way) violation("memory that may not be set yet is left to others"), under_way = 0;
  return *context = &primary, 0;
}

cu_result cuCtxSynchronize(void);
cu_result cuCtxSynchronize(void) {
  ENTER_CONTEXT();
  return 0;
}

cu_result cuModuleLoadDataEx(cu_module *module, const void *image, uint32_t count, const int32_t *options,
                             void **values) {
  uint64_t bytes;
  char path[64];
  if (count == 2 && options[0] == CU_JIT_ERROR_LOG_BUFFER)
    snprintf(values[0], (size_t)(uintptr_t)values[1], "log");
  ENTER_CONTEXT();
  if (memcmp(image, "EMULATED", 8)) return INVALID_IMAGE;
  memcpy(&bytes, (const char *)image + 8, 8);
  struct cu_module_s made = {.file = memfd_create("kernels", 0)};
  if (write(made.file, (const char *)image + 16, bytes) != (ssize_t)bytes) abort();
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), made.file);
  made.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!made.library) return violation("%s", dlerror()), INVALID_IMAGE;
  *(void **)&made.named = dlsym(made.library, "kernel_named");
  *(void **)&made.parameters = dlsym(made.library, "kernel_parameters");
  *(void **)&made.meets = dlsym(made.library, "kernel_meets");
  *(void **)&made.run = dlsym(made.library, "kernel_run");
  *module = keep("module", memcpy(malloc(sizeof made), &made, sizeof made), sizeof made, 0);
  return 0; /* the file stays open meanwhile: a library is known by its file's number */
}

cu_result cuModuleUnload(cu_module module) {
  if (find("module", module, 0)) {
    dlclose(module->library);
    close(module->file);
  }
  return drop("module", module);
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name) {
  ENTER_CONTEXT();
  struct cu_function_s made = {.module = module, .kernel = module->named(name)};
  if (!made.kernel) return NOT_FOUND;
  made.count = module->parameters(made.kernel, &made.sizes, &made.threads);
  *function = &functions[function_count++ % MOST];
  **function = made;
  return 0;
}

cu_result cuFuncSetAttribute(cu_function function, int32_t what, int32_t value) {
  ENTER_CONTEXT();
  if (what != CU_FUNC_MAX_DYNAMIC_SHARED_BYTES || value <= STATIC_SHARED || value > MOST_SHARED)
    violation("attribute %d of a function set to %d", what, value);
  return function->shared = (unsigned)value, 0;
}

cu_result cuMemAlloc_v2(cu_pointer *memory, size_t bytes) {
  ENTER_CONTEXT();
  if (!bytes || capturing()) violation("cuMemAlloc of %zu bytes", bytes);
  *memory = (cu_pointer)(uintptr_t)keep("device", memset(malloc(bytes), 0xff, bytes), bytes, 0);
  return 0;
}

cu_result cuMemFree_v2(cu_pointer memory) { return drop("device", (void *)(uintptr_t)memory); }

cu_result cuMemHostAlloc(void **memory, size_t bytes, uint32_t flags) {
  ENTER_CONTEXT();
  if (!bytes || flags || capturing()) violation("cuMemHostAlloc of %zu bytes", bytes);
  *memory = keep("pinned", memset(malloc(bytes), 0xFF, bytes), bytes, 0);
  return 0;
}

cu_result cuMemFreeHost(void *memory) { return drop("pinned", memory); }

cu_result cuMemsetD8_v2(cu_pointer memory, unsigned char value, size_t bytes) {
  ENTER_CONTEXT();
  check_range("device", (void *)(uintptr_t)memory, bytes, "cuMemsetD8");
  if (capturing()) violation("cuMemsetD8 while capturing");
  memset((void *)(uintptr_t)memory, value, bytes);
  under_way = 1;
  return 0;
}

cu_result cuMemcpyHtoD_v2(cu_pointer to, const void *from, size_t bytes) {
  ENTER_CONTEXT();
  check_range("device", (void *)(uintptr_t)to, bytes, "cuMemcpyHtoD");
  if (capturing()) violation("cuMemcpyHtoD while capturing");
  memcpy((void *)(uintptr_t)to, from, bytes);
  return 0;
}

cu_result cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t bytes, cu_stream stream) {
  ENTER_CONTEXT();
  return submit(stream, (operation){.kind = 'u', .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t bytes, cu_stream stream) {
  ENTER_CONTEXT();
  return submit(stream, (operation){.kind = 'd', .to = to, .from = (void *)(uintptr_t)from, .bytes = bytes});
}

cu_result cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream) {
  ENTER_CONTEXT();
  return submit(
      stream,
      (operation){.kind = 'c', .to = (void *)(uintptr_t)to, .from = (void *)(uintptr_t)from, .bytes = bytes});
}

cu_result cuPointerGetAttributes(uint32_t count, const int32_t *what, void **data, cu_pointer address) {
  ENTER_CONTEXT();
  const object *o = find("device", (void *)(uintptr_t)address, 0);
  for (uint32_t n = 0; n < count; n++) {
    int32_t value = what[n] == CU_POINTER_MEMORY_TYPE ? CU_MEMORY_OF_DEVICE : o ? o->device : -2;
    *(int32_t *)data[n] = o || what[n] != CU_POINTER_MEMORY_TYPE ? value : 0;
  }
  return 0;
}

cu_result cuStreamCreate(cu_stream *stream, uint32_t flags) {
  ENTER_CONTEXT();
  *stream = keep("stream", calloc(1, sizeof **stream), sizeof **stream, 0);
  (*stream)->flags = flags;
  return 0;
}

cu_result cuStreamDestroy_v2(cu_stream stream) { return drop("stream", stream); }

cu_result cuStreamSynchronize(cu_stream stream) {
  if (!stream) under_way = 0;
  ENTER_CONTEXT();
  if (!stream) return 0;
  if (stream->capturing) violation("cuStreamSynchronize of a stream that is capturing");
  return 0;
}

cu_result cuStreamBeginCapture_v2(cu_stream stream, int32_t mode) {
  ENTER_CONTEXT();
  if (stream->capturing || mode != CU_CAPTURE_THREAD_LOCAL)
    violation("cuStreamBeginCapture in mode %d", mode);
  if (!(stream->flags & CU_STREAM_NON_BLOCKING))
    violation("a capture on a stream that waits for the legacy one");
  stream->capturing = keep("graph", calloc(1, sizeof(struct cu_graph_s)), sizeof(struct cu_graph_s), 0);
  return 0;
}

/* Ends a capture even where it fails, as the driver does. */
cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph) {
  cu_result code = enter(__func__);
  if (!stream->capturing) violation("cuStreamEndCapture without a capture");
  if (code)
    drop("graph", stream->capturing);
  else
    *graph = stream->capturing;
  stream->capturing = NULL;
  return code;
}

cu_result cuGraphInstantiateWithFlags(cu_executable *executable, cu_graph graph, unsigned long long flags) {
  ENTER_CONTEXT();
  if (!find("graph", graph, 0) || flags) return violation("no graph to instantiate"), INVALID_VALUE;
  cu_executable made = keep("executable", malloc(sizeof *made), sizeof *made, 0);
  made->graph = *graph;
  for (int32_t n = 0; n < graph->count; n++)
    for (int i = 0; i < 64; i++)
      made->graph.operations[n].parameters[i] = &made->graph.operations[n].values[i];
  return *executable = made, 0;
}

cu_result cuGraphDestroy(cu_graph graph) { return drop("graph", graph); }
cu_result cuGraphExecDestroy(cu_executable executable) { return drop("executable", executable); }

cu_result cuGraphLaunch(cu_executable executable, cu_stream stream) {
  ENTER_CONTEXT();
  if (!find("executable", executable, 0) || !find("stream", stream, 0) || stream->capturing)
    return violation("cuGraphLaunch of what is not alive"), INVALID_VALUE;
  for (int32_t n = 0; n < executable->graph.count; n++) execute(&executable->graph.operations[n]);
  return 0;
}

cu_result cuEventCreate(cu_event *event, uint32_t flags) {
  ENTER_CONTEXT();
  if (flags) violation("an event with flags %u", flags);
  return *event = keep("event", calloc(1, sizeof **event), sizeof **event, 0), 0;
}

cu_result cuEventDestroy_v2(cu_event event) { return drop("event", event); }

cu_result cuEventRecordWithFlags(cu_event event, cu_stream stream, uint32_t flags) {
  ENTER_CONTEXT();
  if (!stream->capturing != !(flags & CU_EVENT_RECORD_EXTERNAL)) violation("an event with flags %u", flags);
  return submit(stream, (operation){.kind = 'e', .to = event});
}

cu_result cuEventElapsedTime(float *ms, cu_event begin, cu_event end) {
  ENTER_CONTEXT();
  if (!begin->recorded || !end->recorded) return INVALID_VALUE;
  return *ms = end->recorded - begin->recorded, 0;
}

static cu_result start(cu_function function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                       uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared,
                       cu_stream stream, void **parameters, void **extra) {
  operation o = {.kind = 'k',
                 .function = function,
                 .grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z}};
  uint64_t threads = (uint64_t)block_x * block_y * block_z;
  if (!grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535)
    violation("a grid beyond the limits");
  if (!threads || threads > function->threads || threads > MOST_THREADS || block_z > 64)
    violation("a block beyond the limits");
  if (shared != function->shared || extra || function->count > 64)
    violation("a launch with other shared memory than was asked for, or with extras");
  for (unsigned i = 0; i < function->count; i++) {
    unsigned expected = i + 1 < function->count ? 8 : 4;
    if (function->sizes[i] != expected) violation("argument %u has %u bytes", i, function->sizes[i]);
    memcpy(&o.values[i], parameters[i], function->sizes[i]);
    o.parameters[i] = &o.values[i];
  }
  if (o.values[function->count - 1] >= MOST) violation("the last argument is no step");
  return submit(stream, o);
}

cu_result cuLaunchKernel(cu_function function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                         uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared,
                         cu_stream stream, void **parameters, void **extra) {
  ENTER_CONTEXT();
  if (function->module->meets(function->kernel)) violation("blocks that meet need a cooperative launch");
  return start(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra);
}

cu_result cuLaunchKernelEx(const cu_launch *l, cu_function function, void **parameters, void **extra) {
  ENTER_CONTEXT();
  cu_graph graph = l->stream->capturing;
  if (arch < 90 || l->attribute_count != 1 || l->attributes->what != CU_PROGRAMMATIC_STREAM_SERIALIZATION ||
      l->attributes->value.number != 1)
    violation("a launch with attributes that this device does not have");
  if (!graph || !graph->count || graph->operations[graph->count - 1].kind != 'k')
    violation("a kernel that may overlap, behind what is none");
  if (function->module->meets(function->kernel)) violation("blocks that meet need a cooperative launch");
  overlaps++;
  return start(function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared,
               l->stream, parameters, extra);
}

cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int32_t *blocks, cu_function function, int32_t threads,
                                                      size_t shared) {
  ENTER_CONTEXT();
  if (shared != function->shared || (unsigned)threads > function->threads)
    violation("the occupancy of another launch");
  return *blocks = 1, 0;
}

cu_result cuLaunchCooperativeKernel(cu_function function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                                    uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared,
                                    cu_stream stream, void **parameters) {
  ENTER_CONTEXT();
  if ((uint64_t)grid_x * grid_y * grid_z > (uint64_t)units) violation("more blocks than run at once");
  return start(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, NULL);
}
