/* A module made in memory: kernels that were compiled in this process, run by the library of this file. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "checksum.h"

/* The table without a module, for thread pools. */
extern const burnish_api burnish_runtime;
const burnish_api burnish_runtime = BURNISH_TABLE(NULL);

typedef struct memory_module {
  burnish_api api; /* first: its address is the module's */
  burnish_image image;
  burnish_prepared prepared;
} memory_module;

int32_t burnish_module_create(const void *plan, uint64_t plan_bytes, const void *weights,
                              uint64_t weights_bytes, const burnish_kernel *kernels, uint64_t kernel_count,
                              const burnish_api **out, burnish_error *error);
void burnish_module_destroy(const burnish_api *model);
uint64_t burnish_checksum_of(const void *data, uint64_t bytes);

static void destroy(memory_module *m) {
  pthread_mutex_destroy(&m->prepared.lock);
  free((void *)(uintptr_t)m->image.plan);
  free((void *)(uintptr_t)m->image.kernels);
  free(m);
}

/* Copies plan and kernel table; `weights` (64-byte aligned) and the kernels must outlive the module. */
int32_t burnish_module_create(const void *plan, uint64_t plan_bytes, const void *weights,
                              uint64_t weights_bytes, const burnish_kernel *kernels, uint64_t kernel_count,
                              const burnish_api **out, burnish_error *error) {
  static const _Alignas(64) unsigned char no_weights[64];
  memory_module *m = calloc(1, sizeof *m);
  unsigned char *plan_copy = malloc((size_t)plan_bytes + 1);
  burnish_kernel *kernels_copy = malloc(((size_t)kernel_count + 1) * sizeof *kernels);
  *out = NULL;
  if (!m || !plan_copy || !kernels_copy) {
    free(m);
    free(plan_copy);
    free(kernels_copy);
    return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a module's plan of %llu bytes",
                        (unsigned long long)plan_bytes);
  }
  if (plan_bytes) memcpy(plan_copy, plan, (size_t)plan_bytes);
  if (kernel_count) memcpy(kernels_copy, kernels, (size_t)kernel_count * sizeof *kernels);
  m->image = (burnish_image){plan_copy,     plan_bytes,   weights_bytes ? weights : no_weights,
                             weights_bytes, kernels_copy, kernel_count, &m->prepared, 0};
  pthread_mutex_init(&m->prepared.lock, NULL);
  m->api = (burnish_api)BURNISH_TABLE(&m->image);
  burnish_options all_cores = BURNISH_OPTIONS;
  all_cores.threads = 0;
  int32_t status = burnish_prepare(&m->api, &all_cores, error);
  if (status)
    destroy(m);
  else
    *out = &m->api;
  return status;
}

void burnish_module_destroy(const burnish_api *model) {
  if (!model) return;
  burnish_unprepare(model);
  destroy((memory_module *)(uintptr_t)model);
}

uint64_t burnish_checksum_of(const void *data, uint64_t bytes) { return burnish_checksum(data, bytes); }
