/* Queries of a module. */
#define _GNU_SOURCE
#include "api.h"
#include "cpu.h"

static plan_view view(const burnish_api *model) { return burnish_plan_view(model->image); }

const char *burnish_name(const burnish_api *model) { return view(model).strings + view(model).header->name; }

const char *burnish_target(const burnish_api *model) {
  return view(model).strings + view(model).header->target;
}

int32_t burnish_check(const burnish_api *model, burnish_error *error) {
  int32_t status = burnish_plan_check(model->image, error);
  if (status) return status;
  plan_view v = view(model);
  for (uint32_t i = 0; i < v.header->feature_count; i++) {
    const char *feature = v.strings + v.features[i];
    if (!cpu_has(feature))
      return burnish_fail(error, BURNISH_BAD_CPU, -1,
                          "module %s was compiled for %s, but this CPU lacks %s; compile it for this machine",
                          burnish_name(model), burnish_target(model), feature);
  }
  return BURNISH_OK;
}

int32_t burnish_input_count(const burnish_api *model) { return (int32_t)view(model).header->input_count; }

int32_t burnish_output_count(const burnish_api *model) { return (int32_t)view(model).header->output_count; }

static int32_t describe(const plan_view *v, uint64_t slot, burnish_tensor *tensor) {
  const plan_io *io = &v->ios[slot];
  tensor->name = v->strings + io->name;
  tensor->shape = v->dims + io->first_dim;
  tensor->dtype = (int32_t)io->dtype;
  tensor->rank = (int32_t)io->rank;
  tensor->nbytes = (int64_t)io->nbytes;
  return BURNISH_OK;
}

int32_t burnish_input(const burnish_api *model, int32_t index, burnish_tensor *tensor) {
  plan_view v = view(model);
  if (index < 0 || (uint32_t)index >= v.header->input_count) return BURNISH_BAD_ARGUMENT;
  return describe(&v, (uint64_t)index, tensor);
}

int32_t burnish_output(const burnish_api *model, int32_t index, burnish_tensor *tensor) {
  plan_view v = view(model);
  if (index < 0 || (uint32_t)index >= v.header->output_count) return BURNISH_BAD_ARGUMENT;
  return describe(&v, plan_output_slot(v.header, (uint32_t)index), tensor);
}

int32_t burnish_step_count(const burnish_api *model) { return (int32_t)view(model).header->step_count; }

int32_t burnish_step_info(const burnish_api *model, int32_t index, burnish_step *out) {
  plan_view v = view(model);
  if (index < 0 || (uint32_t)index >= v.header->step_count) return BURNISH_BAD_ARGUMENT;
  const plan_step *step = &v.steps[index];
  out->kernel = step->kind == STEP_COPY ? "copy" : v.strings + v.kernel_names[step->kernel];
  out->node = v.strings + step->node;
  out->tasks = (int64_t)step->tasks;
  out->flops = (int64_t)step->flops;
  out->bytes = (int64_t)step->bytes;
  out->gang = (int32_t)step->gang;
  out->reserved = 0;
  return BURNISH_OK;
}
