#define _GNU_SOURCE
#include "context.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "api.h"

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static void *array(uint64_t count, size_t size) {
  void *memory = NULL;
  uint64_t bytes = round_up((count ? count : 1) * size, 128);
  return posix_memalign(&memory, 128, (size_t)bytes) ? NULL : memset(memory, 0, (size_t)bytes);
}

static unsigned char *weights_of(const burnish_context *c, uint32_t space) {
  return space == SPACE_WEIGHTS    ? (unsigned char *)(uintptr_t)c->image->weights
         : space == SPACE_PREPARED ? c->prepared
                                   : NULL;
}

/* The largest weights that the first kernel after step `s` reads. */
static void find_next_weights(burnish_context *c, uint32_t s) {
  const plan_view *v = &c->plan;
  for (uint32_t next = s + 1; next < v->step_count; next++) {
    if (v->steps[next].kind != STEP_CALL) continue;
    for (uint32_t i = 0; i < v->steps[next].arg_count; i++) {
      const plan_arg *arg = &v->args[v->steps[next].first_arg + i];
      const unsigned char *weights = weights_of(c, arg->space);
      if (!weights || (int64_t)arg->nbytes <= c->calls[s].next_weights_size) continue;
      c->calls[s].next_weights = weights + arg->offset;
      c->calls[s].next_weights_size = (int64_t)arg->nbytes;
    }
    return;
  }
}

static void fill_calls(burnish_context *c) {
  uint64_t stride = round_up(c->plan.scratch_bytes, 128);
  for (uint32_t s = 0; s < c->plan.step_count; s++) {
    burnish_call *call = &c->calls[s];
    call->buffers = (void *const *)&c->buffers[c->plan.steps[s].first_arg];
    call->scratch = (char *)c->memory + c->scratch_at;
    call->scratch_stride = (int64_t)stride;
    call->barrier = burnish_gang_wait;
    call->gang = c;
    call->workers = c->threads;
    find_next_weights(c, s);
  }
}

static int32_t allocate(burnish_context *c, burnish_error *error) {
  const plan_header *h = c->plan.header;
  uint64_t scratch = round_up(c->plan.scratch_bytes, 128) * (uint64_t)c->threads;
  c->scratch_at = round_up(c->plan.arena_bytes, 128);
  c->memory = c->device->allocate(c->scratch_at + scratch);
  c->ios = array((uint64_t)h->input_count + h->output_count, sizeof *c->ios);
  c->buffers = array(h->arg_count, sizeof *c->buffers);
  c->calls = array(c->plan.step_count, sizeof *c->calls);
  c->shares = array((uint64_t)c->threads, sizeof *c->shares);
  c->gang = array(1, sizeof *c->gang);
  if (c->memory && c->ios && c->buffers && c->calls && c->shares && c->gang) return BURNISH_OK;
  return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory: this context needs %llu bytes",
                      (unsigned long long)(c->scratch_at + scratch));
}

/* Maps the pages of the weights that the steps read now, so that they do not fault on them. Only a hint. */
static void populate_weights(const burnish_context *c) {
  uint64_t bytes = burnish_used_bytes(&c->plan, SPACE_WEIGHTS);
#if defined(__linux__)
  const uintptr_t page = 4096, populate_read = 22; /* MADV_POPULATE_READ, Linux 5.14 */
  uintptr_t begin = (uintptr_t)c->image->weights / page * page, end = (uintptr_t)c->image->weights + bytes;
  if (bytes) madvise((void *)begin, end - begin, (int)populate_read);
#else
  (void)bytes;
#endif
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
  if (!status) status = burnish_prepared_take(model->image, &o, &prepared, error);
  if (status) return status;
  status = burnish_context_make(model->image, burnish_plan_view(model->image), prepared, &o, out, error);
  if (status) burnish_prepared_leave(model->image);
  return status;
}

int32_t burnish_context_make(const burnish_image *image, plan_view plan, unsigned char *prepared,
                             const burnish_options *options, burnish_context **out, burnish_error *error) {
  int32_t status = BURNISH_OK;
  burnish_context *c = array(1, sizeof *c);
  if (!c) return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory for a context");
  c->image = image;
  c->device = &burnish_cpu;
  c->plan = plan;
  c->prepared = prepared;
  c->error.step = -1;
  c->stale = 1;
  c->pool = options->pool;
  if (!c->pool && options->threads != 1) {
    status = burnish_pool_create(options->threads, &c->pool, error);
    c->owns_pool = 1;
  } else if (c->pool && c->pool->abi != BURNISH_POOL_ABI) {
    c->pool = NULL;
    status = burnish_fail(error, BURNISH_BAD_VERSION, -1, "the thread pool is of another Burnish version");
  }
  c->threads = c->pool ? c->pool->threads : 1;
  if (!status) status = allocate(c, error);
  if (status) {
    burnish_context_free(c);
    return status;
  }
  if (c->threads == 1 && !c->owns_pool) c->pool = NULL;
  fill_calls(c);
  populate_weights(c);
  *out = c;
  return BURNISH_OK;
}

void burnish_destroy(burnish_context *c) {
  if (!c) return;
  const burnish_image *image = c->image;
  burnish_context_free(c);
  burnish_prepared_leave(image);
}

void burnish_context_free(burnish_context *c) {
  if (c->owns_pool) burnish_pool_destroy(c->pool);
  if (c->ios) {
    uint64_t count = (uint64_t)c->plan.header->input_count + c->plan.header->output_count;
    for (uint64_t i = 0; i < count; i++) c->device->release(c->ios[i].own);
  }
  c->device->release(c->memory);
  free(c->ios);
  free(c->buffers);
  free(c->calls);
  free(c->shares);
  free(c->gang);
  free(c);
}

static void *slot_memory(burnish_context *c, uint64_t slot) {
  io_slot *s = &c->ios[slot];
  if (s->bound) return s->bound;
  if (!s->own) s->own = c->device->allocate(c->plan.ios[slot].nbytes);
  return s->own;
}

static unsigned char *base_of(burnish_context *c, const plan_arg *arg) {
  switch (arg->space) {
    case SPACE_ARENA:
      return c->memory;
    case SPACE_INPUT:
      return slot_memory(c, arg->index);
    case SPACE_OUTPUT:
      return slot_memory(c, (uint64_t)c->plan.header->input_count + arg->index);
    default:
      return weights_of(c, arg->space);
  }
}

int32_t burnish_context_resolve(burnish_context *c) {
  for (uint32_t s = 0; s < c->plan.step_count; s++)
    for (uint32_t i = 0; i < c->plan.steps[s].arg_count; i++) {
      uint32_t number = c->plan.steps[s].first_arg + i;
      const plan_arg *arg = &c->plan.args[number];
      unsigned char *base = base_of(c, arg);
      if (!base) return burnish_fail(&c->error, BURNISH_NO_MEMORY, -1, "no memory for an input or output");
      c->buffers[number] = base + arg->offset;
    }
  c->stale = 0;
  return BURNISH_OK;
}

static int32_t bind(burnish_context *c, int is_output, int32_t index, void *data, int64_t nbytes) {
  const plan_header *h = c->plan.header;
  const char *kind = is_output ? "output" : "input";
  uint32_t count = is_output ? h->output_count : h->input_count;
  if (index < 0 || (uint32_t)index >= count)
    return burnish_fail(&c->error, BURNISH_BAD_ARGUMENT, -1, "there is no %s %d; the model has %u", kind,
                        (int)index, count);
  uint64_t slot = (is_output ? h->input_count : 0) + (uint64_t)index;
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
  return slot_memory(c, (uint64_t)index);
}

void *burnish_output_data(burnish_context *c, int32_t index) {
  if (index < 0 || (uint32_t)index >= c->plan.header->output_count) return NULL;
  return slot_memory(c, (uint64_t)c->plan.header->input_count + (uint64_t)index);
}

int32_t burnish_run(burnish_context *c) {
  int32_t status = c->stale ? burnish_context_resolve(c) : BURNISH_OK;
  return status ? status : c->device->run(c);
}

const burnish_error *burnish_last_error(const burnish_context *c) { return &c->error; }

int32_t burnish_profile(burnish_context *c, int64_t *nanoseconds) {
  c->nanoseconds = nanoseconds;
  return BURNISH_OK;
}

int32_t burnish_threads(const burnish_context *c) { return c->threads; }
