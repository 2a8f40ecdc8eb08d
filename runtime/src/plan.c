#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "plans are little-endian"
#endif

_Static_assert(sizeof(plan_header) == 104, "module format");
_Static_assert(sizeof(plan_io) == 24, "module format");
_Static_assert(sizeof(plan_step) == 56, "module format");
_Static_assert(sizeof(plan_arg) == 24, "module format");

#define MAX_BYTES ((uint64_t)1 << 46)
#define MAX_RANK 64u
#define MAX_STEPS 0xFFFFFDu /* the executor packs step numbers into 24 bits and keeps two */

int32_t burnish_fail(burnish_error *error, int32_t code, int32_t step, const char *format, ...) {
  if (error) {
    va_list arguments;
    error->code = code;
    error->step = step;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    for (char *at = error->message; (at = strpbrk(at, "\r\n"));) *at = ' '; /* names may have line breaks */
  }
  return code;
}

plan_view burnish_plan_view(const burnish_image *image) {
  plan_view v;
  const unsigned char *at = image->plan;
  v.header = (const plan_header *)(const void *)at;
  at += sizeof(plan_header);
  v.ios = (const plan_io *)(const void *)at;
  at += plan_slots(v.header) * sizeof(plan_io);
  v.steps = (const plan_step *)(const void *)at;
  v.step_count = v.header->step_count;
  v.arena_bytes = v.header->arena_bytes;
  v.scratch_bytes = v.header->scratch_bytes;
  at += ((uint64_t)v.header->step_count + v.header->setup_count) * sizeof(plan_step);
  v.args = (const plan_arg *)(const void *)at;
  at += (uint64_t)v.header->arg_count * sizeof(plan_arg);
  v.dims = (const int64_t *)(const void *)at;
  at += (uint64_t)v.header->dim_count * sizeof(int64_t);
  v.kernel_names = (const uint32_t *)(const void *)at;
  v.features = v.kernel_names + v.header->kernel_count;
  v.strings = (const char *)(v.features + v.header->feature_count);
  return v;
}

static plan_view setup_steps(const burnish_image *image) {
  plan_view v = burnish_plan_view(image);
  v.steps += v.step_count;
  v.step_count = v.header->setup_count;
  return v;
}

plan_view burnish_setup_view(const burnish_image *image) {
  plan_view v = setup_steps(image);
  v.arena_bytes = burnish_used_bytes(&v, SPACE_ARENA);
  v.scratch_bytes = 0;
  for (uint32_t s = 0; s < v.step_count; s++)
    if (v.steps[s].scratch > v.scratch_bytes) v.scratch_bytes = v.steps[s].scratch;
  return v;
}

uint64_t burnish_used_bytes(const plan_view *plan, uint32_t space) {
  uint64_t end = 0;
  for (uint32_t s = 0; s < plan->step_count; s++)
    for (uint32_t i = 0; i < plan->steps[s].arg_count; i++) {
      const plan_arg *arg = &plan->args[plan->steps[s].first_arg + i];
      if (arg->space == space && arg->offset + arg->nbytes > end) end = arg->offset + arg->nbytes;
    }
  return end;
}

static int32_t bad(burnish_error *error, const char *what) {
  return burnish_fail(error, BURNISH_BAD_PLAN, -1, "broken module: %s; compile the model again", what);
}

uint64_t burnish_element_bytes(uint32_t dtype) {
  switch (dtype) {
    case BURNISH_U8:
    case BURNISH_I8:
    case BURNISH_BOOL:
      return 1;
    case BURNISH_U16:
    case BURNISH_I16:
    case BURNISH_F16:
    case BURNISH_BF16:
      return 2;
    case BURNISH_F32:
    case BURNISH_I32:
    case BURNISH_U32:
      return 4;
    case BURNISH_F64:
    case BURNISH_I64:
    case BURNISH_U64:
      return 8;
    default:
      return 0;
  }
}

static int32_t check_header(const burnish_image *image, burnish_error *error) {
  const plan_header *h = (const plan_header *)(const void *)image->plan;
  uint64_t sections;
  if (image->plan_bytes < sizeof *h || (uintptr_t)image->plan % 8) return bad(error, "the plan is cut short");
  if (memcmp(h->magic, "BURNPLAN", 8)) return bad(error, "the plan does not begin with BURNPLAN");
  if (h->version != BURNISH_PLAN_VERSION || h->header_bytes != sizeof *h)
    return burnish_fail(error, BURNISH_BAD_VERSION, -1,
                        "the plan has format version %u, this runtime reads %u; compile the model again",
                        h->version, BURNISH_PLAN_VERSION);
  sections = sizeof *h + plan_slots(h) * sizeof(plan_io) +
             ((uint64_t)h->step_count + h->setup_count) * sizeof(plan_step) +
             (uint64_t)h->arg_count * sizeof(plan_arg) + (uint64_t)h->dim_count * 8 +
             ((uint64_t)h->kernel_count + h->feature_count) * 4 + h->string_bytes;
  if (h->total_bytes != image->plan_bytes || sections != image->plan_bytes)
    return bad(error, "the plan's sections do not add up to its size");
  if (h->input_count > INT32_MAX || h->output_count > INT32_MAX || h->step_count > MAX_STEPS ||
      h->setup_count > MAX_STEPS)
    return bad(error, "the plan counts too many steps, inputs or outputs");
  if (h->arena_bytes > MAX_BYTES || h->prepared_bytes > MAX_BYTES || h->scratch_bytes > MAX_BYTES)
    return bad(error, "the plan asks for too much memory");
  if (h->weights_bytes != image->weights_bytes || (uintptr_t)image->weights % 64)
    return bad(error, "the weights' size or alignment is not the plan's");
  if (h->kernel_count != image->kernel_count) return bad(error, "the kernels' number is not the plan's");
  if (!h->string_bytes || ((const char *)image->plan)[image->plan_bytes - 1])
    return bad(error, "the plan's strings do not end");
  return BURNISH_OK;
}

static int32_t check_ios(const plan_view *v, burnish_error *error) {
  const plan_header *h = v->header;
  for (uint64_t i = 0; i < plan_slots(h); i++) {
    const plan_io *io = &v->ios[i];
    uint64_t bytes = burnish_element_bytes(io->dtype);
    if (!bytes) return bad(error, "an input or output has an unknown element type");
    if (io->rank > MAX_RANK || io->first_dim > h->dim_count || io->rank > h->dim_count - io->first_dim)
      return bad(error, "an input's or output's shape lies outside of the plan");
    for (uint32_t d = 0; d < io->rank; d++) {
      uint64_t size = (uint64_t)v->dims[io->first_dim + d];
      if (size > MAX_BYTES || (size && bytes > MAX_BYTES / size))
        return bad(error, "an input's or output's shape is negative or too large");
      bytes *= size;
    }
    if (bytes != io->nbytes) return bad(error, "an input's or output's size contradicts its shape");
    if (io->name >= h->string_bytes) return bad(error, "a name lies outside of the plan");
  }
  return BURNISH_OK;
}

static int arg_is_inside(const plan_view *v, const plan_arg *arg) {
  const plan_header *h = v->header;
  uint64_t limit;
  switch (arg->space) {
    case SPACE_INPUT:
      if (arg->index >= h->input_count) return 0;
      limit = v->ios[arg->index].nbytes;
      break;
    case SPACE_OUTPUT:
      if (arg->index >= h->output_count) return 0;
      limit = v->ios[plan_output_slot(h, arg->index)].nbytes;
      break;
    case SPACE_ARENA:
    case SPACE_WEIGHTS:
    case SPACE_PREPARED:
      if (arg->index || arg->offset % 64) return 0;
      limit = arg->space == SPACE_ARENA     ? h->arena_bytes
              : arg->space == SPACE_WEIGHTS ? h->weights_bytes
                                            : h->prepared_bytes;
      break;
    default:
      return 0;
  }
  return arg->offset <= limit && arg->nbytes <= limit - arg->offset;
}

static int32_t check_args(const plan_view *v, burnish_error *error) {
  for (uint32_t i = 0; i < v->header->arg_count; i++)
    if (!arg_is_inside(v, &v->args[i])) return bad(error, "a kernel's argument lies outside of its memory");
  return BURNISH_OK;
}

static int is_writable(const plan_arg *arg, int setup) {
  return arg->space == SPACE_ARENA || arg->space == (setup ? SPACE_PREPARED : SPACE_OUTPUT);
}

static int32_t check_steps(const plan_view *v, int setup, burnish_error *error) {
  const plan_header *h = v->header;
  for (uint32_t i = 0; i < v->step_count; i++) {
    const plan_step *s = &v->steps[i];
    const plan_arg *args = v->args + s->first_arg;
    if (s->kind != STEP_CALL && s->kind != STEP_COPY)
      return burnish_fail(error, BURNISH_BAD_VERSION, (int32_t)i,
                          "step %u has kind %u, which this runtime does not know; update Burnish", i,
                          s->kind);
    if (s->first_arg > h->arg_count || s->arg_count > h->arg_count - s->first_arg)
      return bad(error, "a step's arguments lie outside of the plan");
    if (s->node >= h->string_bytes) return bad(error, "a node's name lies outside of the plan");
    if (s->kind == STEP_CALL && s->kernel >= h->kernel_count) return bad(error, "a step names no kernel");
    if (s->tasks > (uint64_t)INT64_MAX / 2 || s->scratch > h->scratch_bytes || s->gang > 1)
      return bad(error, "a step's tasks or scratch memory are out of range");
    for (uint32_t a = 0; setup && a < s->arg_count; a++)
      if (args[a].space == SPACE_INPUT || args[a].space == SPACE_OUTPUT)
        return bad(error, "a setup step takes an input or output");
    if (s->kind == STEP_COPY &&
        (s->arg_count != 2 || args[0].nbytes != args[1].nbytes || !is_writable(&args[1], setup)))
      return bad(error, "a copy does not have a source and a target of one size");
  }
  return BURNISH_OK;
}

static int32_t check_setup(const burnish_image *image, burnish_error *error) {
  plan_view v = setup_steps(image);
  int32_t status = check_steps(&v, 1, error);
  if (!status && (burnish_used_bytes(&v, SPACE_PREPARED) + 63) / 64 * 64 != v.header->prepared_bytes)
    return bad(error, "the setup steps' memory is not what they use");
  return status;
}

int32_t burnish_plan_check(const burnish_image *image, burnish_error *error) {
  plan_view v;
  int32_t status = check_header(image, error);
  if (status) return status;
  v = burnish_plan_view(image);
  for (uint64_t i = 0; i < (uint64_t)v.header->kernel_count + v.header->feature_count; i++)
    if (v.kernel_names[i] >= v.header->string_bytes) return bad(error, "a name lies outside of the plan");
  if (v.header->name >= v.header->string_bytes || v.header->target >= v.header->string_bytes)
    return bad(error, "a name lies outside of the plan");
  status = check_ios(&v, error);
  if (!status) status = check_args(&v, error);
  if (!status) status = check_steps(&v, 0, error);
  return status ? status : check_setup(image, error);
}
