#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda.h"

cuda_api burnish_cu;
static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t opened_by;

/* Whether every later call of the process fails with it, too (cuda.h: the process must be terminated). */
static int is_lasting(cu_result code) {
  return code == CU_ILLEGAL_ADDRESS || code == CU_LAUNCH_TIMEOUT ||
         (code >= CU_HARDWARE_STACK_ERROR && code <= CU_LAUNCH_FAILED);
}

int32_t burnish_cuda_failed(burnish_error *error, const char *what, cu_result code) {
  const char *name = NULL, *text = NULL;
  if (burnish_cu.cuGetErrorName(code, &name) || !name) name = "an unknown error";
  if (burnish_cu.cuGetErrorString(code, &text) || !text) text = "no description";
  return burnish_fail(error, code == CU_OUT_OF_MEMORY ? BURNISH_NO_MEMORY : BURNISH_BAD_DEVICE, -1,
                      "CUDA: %s failed with code %d, %s (%s)%s", what, (int)code, name, text,
                      is_lasting(code) ? "; this process can use the GPU no more: start it anew" : "");
}

/* --- the driver and its device --- */

int32_t burnish_cuda_in_opening_process(burnish_error *error) {
  return burnish_gpu_in_process(opened_by, "CUDA", error);
}

static int32_t load_library(burnish_error *error) {
  void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return burnish_fail(
        error, BURNISH_NO_DEVICE, -1,
        "this module needs an NVIDIA GPU, but there is no libcuda.so.1 here; install the driver "
        "of the GPU (Debian: libcuda1)");
#define X(name, parameters)                                                                           \
  if (!(*(void **)(void *)&burnish_cu.name = dlsym(handle, #name))) {                                 \
    dlclose(handle);                                                                                  \
    return burnish_fail(error, BURNISH_NO_DEVICE, -1,                                                 \
                        "the driver of the NVIDIA GPU has no %s; install one for CUDA 11.4 or newer", \
                        #name);                                                                       \
  }
  CU_FUNCTIONS(X)
#undef X
#define X(name, parameters) *(void **)(void *)&burnish_cu.name = dlsym(handle, #name);
  CU_NEWER_FUNCTIONS(X)
#undef X
  int32_t version = 0;
  if (burnish_cu.cuDriverGetVersion(&version) || version < 12030) burnish_cu.cuLaunchKernelEx = NULL;
  opened_by = getpid();
  return BURNISH_OK;
}

static int32_t open_library(burnish_error *error) {
  static int loaded;
  int32_t status = BURNISH_OK;
  pthread_mutex_lock(&library_lock);
  if (!loaded) status = load_library(error);
  loaded = !status;
  pthread_mutex_unlock(&library_lock);
  return status ? status : burnish_cuda_in_opening_process(error);
}

static int32_t no_device(burnish_error *error, cu_result code) {
  const char *name = "no device";
  if (code && (burnish_cu.cuGetErrorName(code, &name) || !name)) name = "an unknown error";
  return burnish_fail(error, BURNISH_NO_DEVICE, -1,
                      "this module needs an NVIDIA GPU, but the driver offers none (%s); see nvidia-smi and "
                      "CUDA_VISIBLE_DEVICES",
                      name);
}

/* The first device; the driver's CUDA_VISIBLE_DEVICES says which that is. */
static int32_t choose_device(cu_device *device, burnish_error *error) {
  int32_t count = 0;
  cu_result code = burnish_cu.cuInit(0);
  if (!code) code = burnish_cu.cuDeviceGetCount(&count);
  if (!code && count) code = burnish_cu.cuDeviceGet(device, 0);
  return !code && count ? BURNISH_OK : no_device(error, code);
}

/* What a device allows, and its architecture as a number: 80 for sm_80. */
static int32_t describe(cu_device device, gpu_limits *limits, uint64_t *arch, burnish_error *error) {
  static const int32_t wanted[] = {CU_COMPUTE_CAPABILITY_MAJOR, CU_COMPUTE_CAPABILITY_MINOR,
                                   CU_MAX_THREADS_PER_BLOCK,    CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                   CU_MAX_GRID_DIM_X,           CU_MAX_GRID_DIM_X + 1,
                                   CU_MAX_GRID_DIM_X + 2};
  int32_t values[7] = {0};
  for (int i = 0; i < 7; i++) {
    cu_result code = burnish_cu.cuDeviceGetAttribute(&values[i], wanted[i], device);
    if (code) return burnish_cuda_failed(error, "cuDeviceGetAttribute", code);
  }
  *arch = (uint64_t)values[0] * 10 + (uint64_t)values[1];
  limits->block_threads = (uint64_t)values[2];
  limits->shared = (uint64_t)values[3];
  for (int axis = 0; axis < 3; axis++) limits->grid[axis] = (uint64_t)values[4 + axis];
  return BURNISH_OK;
}

/* Code for sm_80 runs there and, through its PTX, on whatever is newer. */
static int32_t check_device(const burnish_image *image, cu_device device, burnish_error *error) {
  code_view code = burnish_code_view(image->code);
  const char *arch = code.strings + code.header->options;
  char name[128] = "";
  gpu_limits limits = {.language = "CUDA", .name = name};
  uint64_t number = 0;
  int32_t status = describe(device, &limits, &number, error);
  if (status) return status;
  burnish_cu.cuDeviceGetName(name, sizeof name - 1, device);
  if (strncmp(arch, "sm_", 3) || strtoull(arch + 3, NULL, 10) > number)
    return burnish_fail(
        error, BURNISH_BAD_DEVICE, -1,
        "this module is for NVIDIA GPUs from %.16s on, but the %s is sm_%u; compile the model for it", arch,
        name, (unsigned)number);
  return burnish_gpu_check_kernels(image, &limits, error);
}

/* --- a module --- */

static int32_t load_code(const burnish_image *image, cuda_module *m, burnish_error *error) {
  static const int32_t options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  char log[1024] = "";
  void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
  int32_t version = 0;
  cu_result code =
      burnish_cu.cuModuleLoadDataEx(&m->code, burnish_code_view(image->code).source, 2, options, values);
  if (!code) return BURNISH_OK;
  burnish_error why;
  burnish_cuda_failed(&why, "cuModuleLoadDataEx", code);
  burnish_cu.cuDriverGetVersion(&version);
  log[strcspn(log, "\n")] = 0;
  return burnish_fail(
      error, why.code, -1,
      "%.200s; the driver is for CUDA %d.%d: if that is older than the compiler of this module, "
      "update it%s%.120s",
      why.message, (int)(version / 1000), (int)(version % 1000 / 10), *log ? "; it says: " : "", log);
}

static int32_t upload_weights(const burnish_image *image, cuda_module *m, burnish_error *error) {
  size_t bytes = (size_t)image->weights_bytes;
  if (!bytes) return BURNISH_OK;
  cu_result code = burnish_cu.cuMemAlloc_v2(&m->weights, bytes);
  if (code) return burnish_cuda_failed(error, "cuMemAlloc of the weights", code);
  code = burnish_cu.cuMemcpyHtoD_v2(m->weights, image->weights, bytes);
  return code ? burnish_cuda_failed(error, "cuMemcpyHtoD of the weights", code) : BURNISH_OK;
}

static int32_t load(const burnish_image *image, cuda_module *m, burnish_error *error) {
  int32_t status = choose_device(&m->device, error);
  cu_context current;
  cu_result code;
  if (!status) status = check_device(image, m->device, error);
  if (status) return status;
  code = burnish_cu.cuDevicePrimaryCtxRetain(&m->context, m->device);
  if (code) {
    m->context = NULL;
    if (code == CU_OUT_OF_MEMORY || is_lasting(code))
      return burnish_cuda_failed(error, "cuDevicePrimaryCtxRetain", code);
    return no_device(error, code); /* another process has it to itself */
  }
  code = burnish_cu.cuCtxPushCurrent_v2(m->context);
  if (code) return burnish_cuda_failed(error, "cuCtxPushCurrent", code);
  status = load_code(image, m, error);
  if (!status) status = upload_weights(image, m, error);
  burnish_cu.cuCtxPopCurrent_v2(&current);
  return status;
}

int32_t burnish_cuda_load(const burnish_image *image, void **loaded, burnish_error *error) {
  int32_t status = burnish_gpu_check_code(image, "CUDA", error);
  if (!status) status = open_library(error);
  if (status) return status;
  *loaded = calloc(1, sizeof(cuda_module));
  if (!*loaded) return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a module");
  return load(image, *loaded, error);
}

void burnish_cuda_unload(void *loaded) {
  cuda_module *m = loaded;
  cu_context current;
  if (!m) return;
  if (getpid() != opened_by) return free(m);
  if (m->context && !burnish_cu.cuCtxPushCurrent_v2(m->context)) {
    if (m->weights) burnish_cu.cuMemFree_v2(m->weights);
    if (m->code) burnish_cu.cuModuleUnload(m->code);
    burnish_cu.cuCtxPopCurrent_v2(&current);
  }
  if (m->context) burnish_cu.cuDevicePrimaryCtxRelease_v2(m->device);
  free(m);
}
