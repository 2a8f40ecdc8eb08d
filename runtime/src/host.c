/* What a run on the CPU needs: arena, scratch memory, threads, and the addresses of every step's operands. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "host.h"

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

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
  c->memory = burnish_allocate(c->scratch_at + scratch);
  c->buffers = burnish_array(h->arg_count, sizeof *c->buffers);
  c->calls = burnish_array(c->plan.step_count, sizeof *c->calls);
  c->shares = burnish_array((uint64_t)c->threads, sizeof *c->shares);
  c->gang = burnish_array(1, sizeof *c->gang);
  if (c->memory && c->buffers && c->calls && c->shares && c->gang) return BURNISH_OK;
  return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory: this context needs %llu bytes",
                      (unsigned long long)(c->scratch_at + scratch));
}

/* Maps the pages of the weights that the steps read now, so that they do not fault on them. Only a hint. */
static void populate_weights(const burnish_context *c) {
  uint64_t bytes = burnish_used_bytes(&c->plan, SPACE_WEIGHTS);
#if defined(__linux__)
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const int populate_read = 22; /* MADV_POPULATE_READ, Linux 5.14 */
  uintptr_t begin = (uintptr_t)c->image->weights / page * page, end = (uintptr_t)c->image->weights + bytes;
  if (bytes) madvise((void *)begin, end - begin, populate_read);
#else
  (void)bytes;
#endif
}

int32_t burnish_cpu_start(burnish_context *c, const burnish_options *options, burnish_error *error) {
  int32_t status = BURNISH_OK;
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
  if (status) return status;
  if (c->threads == 1 && c->owns_pool) { /* a pool of others stays: runs take turns by it */
    burnish_pool_destroy(c->pool);
    c->pool = NULL;
    c->owns_pool = 0;
  }
  fill_calls(c);
  populate_weights(c);
  return BURNISH_OK;
}

void burnish_cpu_stop(burnish_context *c) {
  if (c->owns_pool) burnish_pool_destroy(c->pool);
  free(c->memory);
  free(c->buffers);
  free(c->calls);
  free(c->shares);
  free(c->gang);
}

static unsigned char *base_of(burnish_context *c, const plan_arg *arg) {
  switch (arg->space) {
    case SPACE_ARENA:
      return c->memory;
    case SPACE_INPUT:
      return burnish_context_memory(c, arg->index);
    case SPACE_OUTPUT:
      return burnish_context_memory(c, plan_output_slot(c->plan.header, arg->index));
    default:
      return weights_of(c, arg->space);
  }
}

int32_t burnish_cpu_resolve(burnish_context *c) {
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
