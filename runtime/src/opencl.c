/* Runs plans on a device of OpenCL 1.2. A module's program and weights are made once, for all of its
 * contexts; a context has a queue, an arena, a device buffer for each input and output, and a kernel with its
 * arguments for each step, so that a run only enqueues. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpu.h"
#include "opencl_api.h"
#include "program_cache.h"

#define MOST_DEVICES 32

/* What the contexts of a module share. */
typedef struct loaded_module {
  cl_device device;
  cl_context context;
  cl_program program;
  cl_buffer weights;
} loaded_module;

/* What one context has for itself. */
typedef struct cl_state {
  cl_queue queue;
  cl_buffer arena, errors;
  cl_buffer *ios;     /* by slot */
  cl_kernel *kernels; /* by step */
  cl_event *events;   /* by step, while profiling */
  int32_t *noted;     /* the errors that kernels noted, by step */
  int reports;        /* whether any kernel may note one */
} cl_state;

static opencl_api cl;
static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t opened_by;

static int is_about_memory(int32_t code) {
  return code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES ||
         code == CL_OUT_OF_HOST_MEMORY || code == CL_INVALID_BUFFER_SIZE;
}

/* As the standard's header calls it; of what programs that are right may meet. */
static const char *name_of(int32_t code) {
  switch (code) {
    case CL_DEVICE_NOT_AVAILABLE:
      return ", CL_DEVICE_NOT_AVAILABLE";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
      return ", CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case CL_OUT_OF_RESOURCES:
      return ", CL_OUT_OF_RESOURCES";
    case CL_OUT_OF_HOST_MEMORY:
      return ", CL_OUT_OF_HOST_MEMORY";
    case CL_INVALID_WORK_GROUP_SIZE:
      return ", CL_INVALID_WORK_GROUP_SIZE";
    case CL_INVALID_BUFFER_SIZE:
      return ", CL_INVALID_BUFFER_SIZE";
    default:
      return "";
  }
}

static int32_t failed(burnish_error *error, const char *what, int32_t code) {
  int32_t status = is_about_memory(code) ? BURNISH_NO_MEMORY : BURNISH_BAD_DEVICE;
  return burnish_fail(error, status, -1, "OpenCL: %s failed with code %d%s", what, (int)code, name_of(code));
}

/* Some drivers run out of resources where kernels leave their memory or take too long. */
static int32_t failed_run(burnish_error *error, const char *what, int32_t code) {
  if (code != CL_OUT_OF_RESOURCES) return failed(error, what, code);
  return burnish_fail(error, BURNISH_BAD_DEVICE, -1,
                      "OpenCL: %s failed with code %d%s; a kernel may have taken longer than the driver "
                      "allows, or left its memory",
                      what, (int)code, name_of(code));
}

/* --- the driver and its devices --- */

static int32_t in_opening_process(burnish_error *error) {
  return burnish_gpu_in_process(opened_by, "OpenCL", error);
}

static int32_t open_library(burnish_error *error) {
  static int loaded;
  int32_t status = BURNISH_OK;
  pthread_mutex_lock(&library_lock);
  if (!loaded) {
    void *handle = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) handle = dlopen("libOpenCL.so", RTLD_NOW | RTLD_LOCAL);
    loaded = handle != NULL;
#define X(result, name, parameters)                                     \
  if (loaded && !(*(void **)(void *)&cl.name = dlsym(handle, #name))) { \
    dlclose(handle);                                                    \
    loaded = 0;                                                         \
  }
    CL_FUNCTIONS(X)
#undef X
    if (loaded)
      opened_by = getpid();
    else
      status = burnish_fail(error, BURNISH_NO_DEVICE, -1,
                            "this module needs OpenCL, but there is no libOpenCL.so.1 here; install the "
                            "driver of the GPU and the OpenCL loader (Debian: ocl-icd-libopencl1)");
  }
  pthread_mutex_unlock(&library_lock);
  return status ? status : in_opening_process(error);
}

static int32_t find_devices(cl_device *devices, uint32_t *count) {
  static const uint64_t kinds[] = {CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_CPU};
  cl_platform platforms[MOST_DEVICES];
  uint32_t platform_count = 0;
  *count = 0;
  if (cl.clGetPlatformIDs(MOST_DEVICES, platforms, &platform_count)) return 0;
  if (platform_count > MOST_DEVICES) platform_count = MOST_DEVICES;
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
    for (uint32_t p = 0; p < platform_count && *count < MOST_DEVICES; p++) {
      uint32_t found = 0, room = MOST_DEVICES - *count;
      if (cl.clGetDeviceIDs(platforms[p], kinds[k], room, devices + *count, &found)) continue;
      *count += found < room ? found : room;
    }
  return (int32_t)*count;
}

static uint64_t device_number(cl_device device, uint32_t what) {
  uint64_t value = 0; /* sizes have 32 bits on 32-bit devices, and little-endian order */
  cl.clGetDeviceInfo(device, what, sizeof value, &value, NULL);
  return value;
}

/* Whether kernels can be compiled and run there now. */
static int is_usable(cl_device device) {
  return device_number(device, CL_DEVICE_AVAILABLE) && device_number(device, CL_DEVICE_COMPILER_AVAILABLE);
}

/* GPUs come first; the environment variable BURNISH_OPENCL_DEVICE picks another by a part of its name. */
static int32_t choose_device(cl_device *device, burnish_error *error) {
  const char *wanted = getenv("BURNISH_OPENCL_DEVICE");
  cl_device devices[MOST_DEVICES];
  uint32_t count;
  if (!find_devices(devices, &count))
    return burnish_fail(error, BURNISH_NO_DEVICE, -1,
                        "this module needs an OpenCL device, but no driver offers one; install the driver of "
                        "the GPU (or PoCL, which runs on the CPU)");
  for (uint32_t i = 0; i < count; i++) {
    char name[256] = "";
    cl.clGetDeviceInfo(devices[i], CL_DEVICE_NAME, sizeof name - 1, name, NULL);
    if ((wanted && *wanted && !strstr(name, wanted)) || !is_usable(devices[i])) continue;
    *device = devices[i];
    return BURNISH_OK;
  }
  if (wanted && *wanted)
    return burnish_fail(
        error, BURNISH_NO_DEVICE, -1,
        "BURNISH_OPENCL_DEVICE=%.64s names none of the OpenCL devices that can be used, of %u", wanted,
        count);
  return burnish_fail(error, BURNISH_NO_DEVICE, -1,
                      "none of this machine's OpenCL devices (%u) is available and has a compiler", count);
}

static int device_has(cl_device device, const char *extension) {
  size_t bytes = 0;
  int32_t code = cl.clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, 0, NULL, &bytes);
  char *text = code ? NULL : calloc(bytes + 1, 1);
  int found = text && !cl.clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS, bytes, text, NULL) &&
              strstr(text, extension) != NULL;
  free(text);
  return found;
}

static int32_t check_limits(const burnish_image *image, cl_device device, burnish_error *error) {
  code_view code = burnish_code_view(image->code);
  plan_view plan = burnish_plan_view(image);
  uint64_t largest = device_number(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  char name[128] = "";
  gpu_limits limits = {.language = "OpenCL",
                       .name = name,
                       .block_threads = device_number(device, CL_DEVICE_MAX_WORK_GROUP_SIZE),
                       .shared = device_number(device, CL_DEVICE_LOCAL_MEM_SIZE),
                       .grid = {UINT32_MAX, UINT32_MAX, UINT32_MAX}};
  cl.clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, NULL);
  if (code.header->needs & CODE_NEEDS_F64 && !device_has(device, "cl_khr_fp64"))
    return burnish_fail(error, BURNISH_BAD_DEVICE, -1,
                        "the OpenCL device %s has no double precision, which this module needs", name);
  if (plan.header->weights_bytes > largest || plan.arena_bytes > largest)
    return burnish_fail(error, BURNISH_NO_MEMORY, -1,
                        "this module needs buffers of %llu bytes (weights) and %llu (arena), but the OpenCL "
                        "device %s allows at most %llu",
                        (unsigned long long)plan.header->weights_bytes, (unsigned long long)plan.arena_bytes,
                        name, (unsigned long long)largest);
  return burnish_gpu_check_kernels(image, &limits, error);
}

/* --- a module --- */

static int32_t build_failed(const loaded_module *m, int32_t code, burnish_error *error) {
  size_t bytes = 0;
  cl.clGetProgramBuildInfo(m->program, m->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
  char *log = calloc(bytes + 1, 1);
  char *line = log;
  if (log) {
    cl.clGetProgramBuildInfo(m->program, m->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    char *found = strstr(log, "error");
    if (found) line = found;
    line[strcspn(line, "\n")] = 0;
  }
  int32_t status = burnish_fail(error, BURNISH_BAD_DEVICE, -1,
                                "the OpenCL driver does not compile this module (code %d): %.300s", (int)code,
                                line ? line : "");
  free(log);
  return status;
}

/* Those of the code, and that quotients and roots are rounded as everywhere else, where the device can do
 * that: an integer that is rounded from a quotient may differ by one otherwise. */
static const char *options_of(code_view code, cl_device device, char *text, size_t bytes) {
  uint64_t able = 0;
  cl.clGetDeviceInfo(device, CL_DEVICE_SINGLE_FP_CONFIG, sizeof able, &able, NULL);
  snprintf(text, bytes, "%s%s", code.strings + code.header->options,
           able & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT ? " -cl-fp32-correctly-rounded-divide-sqrt" : "");
  return text;
}

static program_key key_of(code_view code, cl_device device, const char *options) {
  char platform_name[256] = "", name[256] = "", driver[256] = "";
  cl_platform platform = NULL;
  cl.clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL);
  cl.clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof platform_name - 1, platform_name, NULL);
  cl.clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name - 1, name, NULL);
  cl.clGetDeviceInfo(device, CL_DRIVER_VERSION, sizeof driver - 1, driver, NULL);
  const char *parts[] = {platform_name, name, driver, options};
  return burnish_program_key(code.source, (size_t)code.header->source_bytes, parts, 4);
}

/* Whether the program is now what an earlier process built; whatever the driver refuses is built again. */
static int build_cached(const program_key *key, const char *options, loaded_module *m) {
  size_t bytes = 0;
  int32_t status = 0, accepted = 0;
  unsigned char *data = burnish_cached_program(key, &bytes);
  if (!data) return 0;
  const unsigned char *binary = data;
  m->program = cl.clCreateProgramWithBinary(m->context, 1, &m->device, &bytes, &binary, &accepted, &status);
  free(data);
  if (m->program && !status && !accepted &&
      !cl.clBuildProgram(m->program, 1, &m->device, options, NULL, NULL))
    return 1;
  if (m->program) cl.clReleaseProgram(m->program);
  m->program = NULL;
  return 0;
}

static void keep_program(const program_key *key, const loaded_module *m) {
  size_t bytes = 0;
  if (cl.clGetProgramInfo(m->program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) || !bytes) return;
  unsigned char *data = malloc(bytes);
  if (data && !cl.clGetProgramInfo(m->program, CL_PROGRAM_BINARIES, sizeof data, &data, NULL))
    burnish_keep_program(key, data, bytes);
  free(data);
}

static int32_t build_program(const burnish_image *image, loaded_module *m, burnish_error *error) {
  code_view code = burnish_code_view(image->code);
  char text[1024];
  const char *source = code.source, *options = options_of(code, m->device, text, sizeof text);
  const size_t bytes = (size_t)code.header->source_bytes;
  const program_key key = key_of(code, m->device, options);
  int32_t status;
  if (build_cached(&key, options, m)) return BURNISH_OK;
  m->program = cl.clCreateProgramWithSource(m->context, 1, &source, &bytes, &status);
  if (!m->program) return failed(error, "clCreateProgramWithSource", status);
  status = cl.clBuildProgram(m->program, 1, &m->device, options, NULL, NULL);
  if (status) return build_failed(m, status, error);
  keep_program(&key, m);
  return BURNISH_OK;
}

static int32_t new_buffer(cl_context context, uint64_t bytes, const void *data, cl_buffer *buffer,
                          burnish_error *error) {
  int32_t status;
  uint64_t flags = data && bytes ? CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR : CL_MEM_READ_WRITE;
  void *host = flags & CL_MEM_COPY_HOST_PTR ? (void *)(uintptr_t)data : NULL;
  *buffer = cl.clCreateBuffer(context, flags, bytes ? (size_t)bytes : 64, host, &status);
  if (*buffer) return BURNISH_OK;
  return burnish_fail(error, BURNISH_NO_MEMORY, -1,
                      "the OpenCL device has no memory for %llu bytes (code %d)", (unsigned long long)bytes,
                      (int)status);
}

static void opencl_unload(void *loaded) {
  loaded_module *m = loaded;
  if (!m) return;
  if (getpid() != opened_by) return free(m);
  if (m->weights) cl.clReleaseMemObject(m->weights);
  if (m->program) cl.clReleaseProgram(m->program);
  if (m->context) cl.clReleaseContext(m->context);
  free(m);
}

static int32_t load(const burnish_image *image, loaded_module *m, burnish_error *error) {
  int32_t status = choose_device(&m->device, error);
  if (!status) status = check_limits(image, m->device, error);
  if (status) return status;
  m->context = cl.clCreateContext(NULL, 1, &m->device, NULL, NULL, &status);
  if (!m->context) return failed(error, "clCreateContext", status);
  status = build_program(image, m, error);
  if (status) return status;
  return new_buffer(m->context, image->weights_bytes, image->weights, &m->weights, error);
}

static int32_t opencl_load(const burnish_image *image, void **loaded, burnish_error *error) {
  int32_t status = burnish_gpu_check_code(image, "OpenCL", error);
  if (!status) status = open_library(error);
  if (status) return status;
  *loaded = calloc(1, sizeof(loaded_module));
  if (!*loaded) return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a module");
  return load(image, *loaded, error);
}

/* --- a context --- */

static cl_buffer buffer_of(const burnish_context *c, const plan_arg *arg) {
  const cl_state *s = c->state;
  const loaded_module *m = c->image->parts->device_module;
  return arg->space == SPACE_INPUT    ? s->ios[arg->index]
         : arg->space == SPACE_OUTPUT ? s->ios[plan_output_slot(c->plan.header, arg->index)]
         : arg->space == SPACE_ARENA  ? s->arena
                                      : m->weights;
}

static int32_t new_kernel(burnish_context *c, uint32_t number, burnish_error *error) {
  const plan_step *step = &c->plan.steps[number];
  const loaded_module *m = c->image->parts->device_module;
  cl_state *s = c->state;
  const char *name;
  const code_kernel *code = burnish_gpu_kernel(c, number, &name);
  int32_t status = 0;
  uint32_t at = 0;
  cl_kernel kernel = s->kernels[number] = cl.clCreateKernel(m->program, name, &status);
  if (!kernel) return failed(error, "clCreateKernel", status);
  for (uint32_t i = 0; i < step->arg_count; i++) {
    const plan_arg *arg = &c->plan.args[step->first_arg + i];
    cl_buffer buffer = buffer_of(c, arg);
    if (!status) status = cl.clSetKernelArg(kernel, at++, sizeof buffer, &buffer);
    if (!status) status = cl.clSetKernelArg(kernel, at++, sizeof arg->offset, &arg->offset);
  }
  if (!status) status = cl.clSetKernelArg(kernel, at++, sizeof s->errors, &s->errors);
  if (!status) status = cl.clSetKernelArg(kernel, at++, sizeof number, &number);
  s->reports |= code->flags & KERNEL_REPORTS;
  return status ? failed(error, "clSetKernelArg", status) : BURNISH_OK;
}

/* So that what kernels do not write shows. */
static int32_t poison(const burnish_context *c, cl_buffer buffer, uint64_t bytes, burnish_error *error) {
  static const unsigned char value = 0xFF;
  const cl_state *s = c->state;
  int32_t code = 0;
  if (bytes)
    code = cl.clEnqueueFillBuffer(s->queue, buffer, &value, sizeof value, 0, (size_t)bytes, 0, NULL, NULL);
  return code ? failed(error, "clEnqueueFillBuffer", code) : BURNISH_OK;
}

static int32_t new_buffers(burnish_context *c, burnish_error *error) {
  const loaded_module *m = c->image->parts->device_module;
  cl_state *s = c->state;
  uint64_t count = plan_slots(c->plan.header), errors = c->plan.step_count * sizeof *s->noted;
  int32_t status = new_buffer(m->context, c->plan.arena_bytes, NULL, &s->arena, error);
  if (!status) status = new_buffer(m->context, errors, s->noted, &s->errors, error);
  for (uint64_t i = 0; i < count && !status; i++)
    status = new_buffer(m->context, c->plan.ios[i].nbytes, NULL, &s->ios[i], error);
  if (status || !burnish_gpu_is_set("BURNISH_GPU_POISON")) return status;
  status = poison(c, s->arena, c->plan.arena_bytes, error);
  for (uint64_t i = 0; i < count && !status; i++)
    status = poison(c, s->ios[i], c->plan.ios[i].nbytes, error);
  return status;
}

static int32_t opencl_start(burnish_context *c, const burnish_options *options, burnish_error *error) {
  const loaded_module *m = c->image->parts->device_module;
  cl_state *s = c->state = calloc(1, sizeof *s);
  int32_t status = in_opening_process(error);
  (void)options;
  if (status) return status;
  if (s) {
    s->ios = burnish_array(plan_slots(c->plan.header), sizeof *s->ios);
    s->kernels = burnish_array(c->plan.step_count, sizeof *s->kernels);
    s->events = burnish_array(c->plan.step_count, sizeof *s->events);
    s->noted = burnish_array(c->plan.step_count, sizeof *s->noted);
  }
  if (!s || !s->ios || !s->kernels || !s->events || !s->noted)
    return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  s->queue = cl.clCreateCommandQueue(m->context, m->device, CL_QUEUE_PROFILING_ENABLE, &status);
  if (!s->queue) return failed(error, "clCreateCommandQueue", status);
  status = new_buffers(c, error);
  for (uint32_t i = 0; i < c->plan.step_count && !status; i++)
    if (c->plan.steps[i].kind == STEP_CALL) status = new_kernel(c, i, error);
  return status;
}

static void release(const burnish_context *c, const cl_state *s) {
  uint64_t count = plan_slots(c->plan.header);
  for (uint32_t i = 0; s->kernels && i < c->plan.step_count; i++)
    if (s->kernels[i]) cl.clReleaseKernel(s->kernels[i]);
  for (uint64_t i = 0; s->ios && i < count; i++)
    if (s->ios[i]) cl.clReleaseMemObject(s->ios[i]);
  if (s->arena) cl.clReleaseMemObject(s->arena);
  if (s->errors) cl.clReleaseMemObject(s->errors);
  if (s->queue) cl.clReleaseCommandQueue(s->queue);
}

static void opencl_stop(burnish_context *c) {
  cl_state *s = c->state;
  if (!s) return;
  if (getpid() == opened_by) release(c, s);
  free(s->ios);
  free(s->kernels);
  free(s->events);
  free(s->noted);
  free(s);
}

/* --- a run --- */

static int32_t copy_step(burnish_context *c, const plan_step *step, cl_event *event) {
  const cl_state *s = c->state;
  const plan_arg *from = &c->plan.args[step->first_arg], *to = from + 1;
  if (!from->nbytes) return 0;
  return cl.clEnqueueCopyBuffer(s->queue, buffer_of(c, from), buffer_of(c, to), (size_t)from->offset,
                                (size_t)to->offset, (size_t)from->nbytes, 0, NULL, event);
}

static int32_t call_step(burnish_context *c, uint32_t number, cl_event *event) {
  const cl_state *s = c->state;
  const code_kernel *kernel = burnish_gpu_kernel(c, number, NULL);
  size_t global[3], local[3];
  for (int axis = 0; axis < 3; axis++) {
    local[axis] = kernel->block[axis];
    global[axis] = local[axis] * kernel->grid[axis];
  }
  return cl.clEnqueueNDRangeKernel(s->queue, s->kernels[number], 3, NULL, global, local, 0, NULL, event);
}

static int32_t start_step(burnish_context *c, uint32_t number) {
  const cl_state *s = c->state;
  const plan_step *step = &c->plan.steps[number];
  cl_event *event = c->nanoseconds ? &s->events[number] : NULL;
  int32_t code = step->kind == STEP_COPY ? copy_step(c, step, event) : call_step(c, number, event);
  return code ? failed_run(&c->error, "starting it", code) : BURNISH_OK;
}

/* Inputs to the device, or outputs from it. */
static int32_t transfer(burnish_context *c, int to_device) {
  const plan_header *h = c->plan.header;
  const cl_state *s = c->state;
  uint64_t begin = to_device ? 0 : plan_output_slot(h, 0), end = to_device ? h->input_count : plan_slots(h);
  int32_t status = 0;
  for (uint64_t i = begin; i < end && !status; i++) {
    size_t bytes = (size_t)c->plan.ios[i].nbytes;
    void *memory = burnish_context_memory(c, i);
    if (!bytes) continue;
    if (!memory) return burnish_fail(&c->error, BURNISH_NO_MEMORY, -1, "no memory for an input or output");
    status = to_device ? cl.clEnqueueWriteBuffer(s->queue, s->ios[i], 0, 0, bytes, memory, 0, NULL, NULL)
                       : cl.clEnqueueReadBuffer(s->queue, s->ios[i], 0, 0, bytes, memory, 0, NULL, NULL);
  }
  return status ? failed_run(&c->error, "a transfer", status) : BURNISH_OK;
}

static int32_t enqueue(burnish_context *c, uint32_t *begun) {
  const cl_state *s = c->state;
  int32_t status = transfer(c, 1);
  *begun = 0;
  if (!status) status = burnish_gpu_start_steps(c, start_step, begun, &c->error);
  if (!status) status = transfer(c, 0);
  if (!status && s->reports) {
    size_t bytes = c->plan.step_count * sizeof *s->noted;
    int32_t code = cl.clEnqueueReadBuffer(s->queue, s->errors, 0, 0, bytes, s->noted, 0, NULL, NULL);
    if (code) status = failed_run(&c->error, "a transfer", code);
  }
  return status;
}

static void take_times(burnish_context *c, uint32_t steps) {
  cl_state *s = c->state;
  for (uint32_t i = 0; i < steps; i++) {
    uint64_t begin = 0, end = 0;
    if (s->events[i]) {
      cl.clGetEventProfilingInfo(s->events[i], CL_PROFILING_COMMAND_START, sizeof begin, &begin, NULL);
      cl.clGetEventProfilingInfo(s->events[i], CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
      cl.clReleaseEvent(s->events[i]);
      s->events[i] = NULL;
    }
    c->nanoseconds[i] = (int64_t)(end - begin);
  }
}

/* None are noted before the next run. */
static void clear_errors(const burnish_context *c) {
  const cl_state *s = c->state;
  size_t bytes = c->plan.step_count * sizeof *s->noted;
  memset(s->noted, 0, bytes);
  cl.clEnqueueWriteBuffer(s->queue, s->errors, 1, 0, bytes, s->noted, 0, NULL, NULL);
}

static int32_t opencl_run(burnish_context *c) {
  const cl_state *s = c->state;
  uint32_t begun;
  int32_t status = in_opening_process(&c->error), code;
  if (status) return status;
  status = enqueue(c, &begun);
  code = cl.clFinish(s->queue);
  if (!status && code) status = failed_run(&c->error, "a run", code);
  if (c->nanoseconds) take_times(c, begun);
  if (!status && s->reports) status = burnish_gpu_noted_error(c, s->noted);
  if (status && s->reports) clear_errors(c);
  return status;
}

const burnish_device burnish_opencl = {"opencl",    opencl_load, opencl_unload, opencl_start,
                                       opencl_stop, opencl_run,  NULL};
