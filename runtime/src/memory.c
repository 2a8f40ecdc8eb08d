/* A module made in memory: kernels that were compiled in this process, run by the library of this file. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "checksum.h"
#include "context.h"
#include "device_code.h"

/* The table without a module, for thread pools. */
extern const burnish_api burnish_runtime;
const burnish_api burnish_runtime = BURNISH_TABLE(NULL);

typedef struct memory_module {
  burnish_api api; /* first: its address is the module's */
  burnish_image image;
  burnish_shared_parts parts;
} memory_module;

int32_t burnish_module_create(const void *plan, uint64_t plan_bytes, const void *weights,
                              uint64_t weights_bytes, const burnish_kernel *kernels, uint64_t kernel_count,
                              const burnish_api **out, burnish_error *error);
int32_t burnish_device_module_create(const void *plan, uint64_t plan_bytes, const void *weights,
                                     uint64_t weights_bytes, const char *device, const void *code,
                                     uint64_t code_bytes, const burnish_api **out, burnish_error *error);
void burnish_module_destroy(const burnish_api *model);
uint64_t burnish_checksum_of(const void *data, uint64_t bytes);

static void destroy(memory_module *m) {
  pthread_mutex_destroy(&m->parts.lock);
  free((void *)(uintptr_t)m->image.plan);
  free((void *)(uintptr_t)m->image.kernels);
  free((void *)(uintptr_t)m->image.code);
  free(m);
}

static void *copy(const void *data, uint64_t bytes) {
  void *result = malloc((size_t)bytes + 8);
  return result && bytes ? memcpy(result, data, (size_t)bytes) : result;
}

/* An image without kernels and code. `weights`, 64-byte aligned, must outlive it. */
static memory_module *new_module(const void *plan, uint64_t plan_bytes, const void *weights,
                                 uint64_t weights_bytes, burnish_error *error) {
  static const _Alignas(64) unsigned char no_weights[64];
  memory_module *m = calloc(1, sizeof *m);
  unsigned char *plan_copy = copy(plan, plan_bytes);
  if (!m || !plan_copy) {
    free(m);
    free(plan_copy);
    burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a module's plan of %llu bytes",
                 (unsigned long long)plan_bytes);
    return NULL;
  }
  m->image.plan = plan_copy;
  m->image.plan_bytes = plan_bytes;
  m->image.weights = weights_bytes ? weights : no_weights;
  m->image.weights_bytes = weights_bytes;
  m->image.parts = &m->parts;
  pthread_mutex_init(&m->parts.lock, NULL);
  m->api = (burnish_api)BURNISH_TABLE(&m->image);
  return m;
}

static int32_t finish(memory_module *m, int complete, const burnish_api **out, burnish_error *error) {
  burnish_options all_cores = BURNISH_OPTIONS;
  int32_t status;
  all_cores.threads = 0;
  status = complete ? burnish_prepare(&m->api, &all_cores, error)
                    : burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a module's kernels");
  if (status)
    destroy(m);
  else
    *out = &m->api;
  return status;
}

/* Copies plan and kernel table; the kernels must outlive the module. */
int32_t burnish_module_create(const void *plan, uint64_t plan_bytes, const void *weights,
                              uint64_t weights_bytes, const burnish_kernel *kernels, uint64_t kernel_count,
                              const burnish_api **out, burnish_error *error) {
  memory_module *m = new_module(plan, plan_bytes, weights, weights_bytes, error);
  *out = NULL;
  if (!m) return BURNISH_NO_MEMORY;
  m->image.device = &burnish_cpu;
  m->image.kernels = copy(kernels, kernel_count * sizeof *kernels);
  m->image.kernel_count = kernel_count;
  return finish(m, m->image.kernels != NULL, out, error);
}

/* A module for the device of that name, whose kernels are in `code`. */
int32_t burnish_device_module_create(const void *plan, uint64_t plan_bytes, const void *weights,
                                     uint64_t weights_bytes, const char *device, const void *code,
                                     uint64_t code_bytes, const burnish_api **out, burnish_error *error) {
  static const burnish_device *const devices[] = {&burnish_opencl, &burnish_cuda};
  memory_module *m = new_module(plan, plan_bytes, weights, weights_bytes, error);
  *out = NULL;
  if (!m) return BURNISH_NO_MEMORY;
  for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
    if (!strcmp(devices[i]->name, device)) m->image.device = devices[i];
  if (!m->image.device) {
    destroy(m);
    return burnish_fail(error, BURNISH_BAD_ARGUMENT, -1, "this runtime knows no device %.64s", device);
  }
  m->image.code = copy(code, code_bytes);
  m->image.code_bytes = code_bytes;
  m->image.kernel_count = burnish_code_kernels(m->image.code, code_bytes);
  return finish(m, m->image.code != NULL, out, error);
}

void burnish_module_destroy(const burnish_api *model) {
  if (!model) return;
  burnish_unprepare(model);
  destroy((memory_module *)(uintptr_t)model);
}

uint64_t burnish_checksum_of(const void *data, uint64_t bytes) { return burnish_checksum(data, bytes); }
