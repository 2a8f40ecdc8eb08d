#define _GNU_SOURCE
#include "context.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "api.h"

void *burnish_array(uint64_t count, size_t size) {
  void *memory = NULL;
  uint64_t bytes = ((count ? count : 1) * size + 127) / 128 * 128;
  return posix_memalign(&memory, 128, (size_t)bytes) ? NULL : memset(memory, 0, (size_t)bytes);
}

void *burnish_allocate(uint64_t bytes) {
  const uint64_t huge = (uint64_t)1 << 21;
  void *memory = NULL;
  if (bytes > SIZE_MAX / 2 || posix_memalign(&memory, bytes < huge ? 64 : huge, bytes ? (size_t)bytes : 64))
    return NULL;
#if defined(MADV_HUGEPAGE)
  if (bytes >= huge) madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
#endif
  return memset(memory, 0, (size_t)bytes);
}

int32_t burnish_create(const burnish_api *model, const burnish_options *options, burnish_context **out,
                       burnish_error *error) {
  burnish_options o = BURNISH_OPTIONS;
  unsigned char *prepared = NULL;
  int32_t status;
  if (!out) return burnish_fail(error, BURNISH_BAD_ARGUMENT, -1, "create: `context` is NULL");
  *out = NULL;
  if (options && options->size < sizeof o)
    return burnish_fail(error, BURNISH_BAD_ARGUMENT, -1,
                        "create: start from BURNISH_OPTIONS, which sets `size`");
  if (options) o = *options;
  status = burnish_check(model, error);
  if (!status) status = burnish_parts_take(model->image, &o, &prepared, error);
  if (status) return status;
  status = burnish_context_make(model->image, burnish_plan_view(model->image), prepared, &o, out, error);
  if (status) burnish_parts_leave(model->image);
  return status;
}

int32_t burnish_context_make(const burnish_image *image, plan_view plan, unsigned char *prepared,
                             const burnish_options *options, burnish_context **out, burnish_error *error) {
  int32_t status;
  burnish_context *c = burnish_array(1, sizeof *c);
  if (!c) return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  c->image = image;
  c->device = image->device;
  c->plan = plan;
  c->prepared = prepared;
  c->error.step = -1;
  c->stale = 1;
  c->threads = 1;
  c->ios = burnish_array(plan_slots(plan.header), sizeof *c->ios);
  status = c->ios ? c->device->start(c, options, error)
                  : burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  if (status) {
    burnish_context_free(c);
    return status;
  }
  *out = c;
  return BURNISH_OK;
}

void burnish_destroy(burnish_context *c) {
  if (!c) return;
  const burnish_image *image = c->image;
  burnish_context_free(c);
  burnish_parts_leave(image);
}

void burnish_context_free(burnish_context *c) {
  uint64_t count = plan_slots(c->plan.header);
  c->device->stop(c);
  for (uint64_t i = 0; c->ios && i < count; i++) free(c->ios[i].own);
  free(c->ios);
  free(c);
}

static void *memory_of(const burnish_context *c, uint64_t slot) {
  const io_slot *s = &c->ios[slot];
  return s->bound ? s->bound : s->own;
}

void *burnish_context_memory(burnish_context *c, uint64_t slot) {
  if (!memory_of(c, slot)) c->ios[slot].own = burnish_allocate(c->plan.ios[slot].nbytes);
  return memory_of(c, slot);
}

static int32_t bind(burnish_context *c, int is_output, int32_t index, void *data, int64_t nbytes) {
  const plan_header *h = c->plan.header;
  const char *kind = is_output ? "output" : "input";
  uint32_t count = is_output ? h->output_count : h->input_count;
  if (index < 0 || (uint32_t)index >= count)
    return burnish_fail(&c->error, BURNISH_BAD_ARGUMENT, -1, "there is no %s %d; the model has %u", kind,
                        (int)index, count);
  uint64_t slot = is_output ? plan_output_slot(h, (uint32_t)index) : (uint64_t)index;
  const plan_io *io = &c->plan.ios[slot];
  const char *name = c->plan.strings + io->name;
  if (data && nbytes != (int64_t)io->nbytes)
    return burnish_fail(&c->error, BURNISH_BAD_ARGUMENT, -1, "%s %s has %lld bytes, expected %llu", kind,
                        name, (long long)nbytes, (unsigned long long)io->nbytes);
  if (data && io->nbytes && (uintptr_t)data % burnish_element_bytes(io->dtype))
    return burnish_fail(&c->error, BURNISH_BAD_ARGUMENT, -1, "%s %s is not aligned to its element size", kind,
                        name);
  if (c->ios[slot].bound != data) {
    c->ios[slot].bound = data;
    c->stale = 1;
  }
  return BURNISH_OK;
}

int32_t burnish_bind_input(burnish_context *c, int32_t index, const void *data, int64_t nbytes) {
  return bind(c, 0, index, (void *)(uintptr_t)data, nbytes);
}

int32_t burnish_bind_output(burnish_context *c, int32_t index, void *data, int64_t nbytes) {
  return bind(c, 1, index, data, nbytes);
}

void *burnish_input_data(burnish_context *c, int32_t index) {
  if (index < 0 || (uint32_t)index >= c->plan.header->input_count) return NULL;
  return burnish_context_memory(c, (uint64_t)index);
}

void *burnish_output_data(burnish_context *c, int32_t index) {
  if (index < 0 || (uint32_t)index >= c->plan.header->output_count) return NULL;
  return burnish_context_memory(c, plan_output_slot(c->plan.header, (uint32_t)index));
}

void *burnish_device_data(burnish_context *c, int32_t is_output, int32_t index) {
  const plan_header *h = c->plan.header;
  if (!c->device->device_memory || index < 0) return NULL;
  if ((uint32_t)index >= (is_output ? h->output_count : h->input_count)) return NULL;
  return c->device->device_memory(c, is_output ? plan_output_slot(h, (uint32_t)index) : (uint64_t)index);
}

int32_t burnish_check_apart(burnish_context *c, uint64_t (*at)(const burnish_context *, uint64_t)) {
  uint64_t inputs = c->plan.header->input_count;
  for (uint64_t o = inputs; o < plan_slots(c->plan.header); o++)
    for (uint64_t i = 0; i < o; i++) {
      uint64_t mine = at(c, o), other = at(c, i);
      uint64_t bytes = c->plan.ios[o].nbytes, others = c->plan.ios[i].nbytes;
      if (mine && other && bytes && others && mine < other + others && other < mine + bytes)
        return burnish_fail(&c->error, BURNISH_BAD_ARGUMENT, -1,
                            "output %s overlaps %s %s in memory; give each its own",
                            c->plan.strings + c->plan.ios[o].name, i < inputs ? "input" : "output",
                            c->plan.strings + c->plan.ios[i].name);
    }
  return BURNISH_OK;
}

static uint64_t address_of(const burnish_context *c, uint64_t slot) {
  return (uint64_t)(uintptr_t)memory_of(c, slot);
}

int32_t burnish_run(burnish_context *c) {
  int32_t status = c->stale ? burnish_check_apart(c, address_of) : BURNISH_OK;
  if (c->nanoseconds) memset(c->nanoseconds, 0, c->plan.step_count * sizeof *c->nanoseconds);
  return status ? status : c->device->run(c);
}

const burnish_error *burnish_last_error(const burnish_context *c) { return &c->error; }

int32_t burnish_profile(burnish_context *c, int64_t *nanoseconds) {
  c->nanoseconds = nanoseconds;
  return BURNISH_OK;
}

int32_t burnish_threads(const burnish_context *c) { return c->threads; }

int32_t burnish_step_error(burnish_context *c, uint32_t s, int32_t code) {
  const plan_step *step = &c->plan.steps[s];
  const char *what = code == BURNISH_INDEX_OUT_OF_RANGE ? "an index is out of range"
                     : code == BURNISH_BAD_VALUE ? "an input holds a value that the operator does not allow"
                                                 : "the kernel failed";
  const char *kernel =
      step->kind == STEP_CALL ? c->plan.strings + c->plan.kernel_names[step->kernel] : "copy";
  return burnish_fail(&c->error, code, (int32_t)s, "node %.300s: %s (code %d, kernel %.80s)",
                      c->plan.strings + step->node, what, (int)code, kernel);
}
