/* The functions of the table, and the table itself as an initialiser. */
#ifndef BURNISH_API_H
#define BURNISH_API_H

#include "plan.h"

const char *burnish_name(const burnish_api *model);
const char *burnish_target(const burnish_api *model);
int32_t burnish_check(const burnish_api *model, burnish_error *error);
int32_t burnish_input_count(const burnish_api *model);
int32_t burnish_output_count(const burnish_api *model);
int32_t burnish_input(const burnish_api *model, int32_t index, burnish_tensor *tensor);
int32_t burnish_output(const burnish_api *model, int32_t index, burnish_tensor *tensor);
int32_t burnish_step_count(const burnish_api *model);
int32_t burnish_step_info(const burnish_api *model, int32_t index, burnish_step *step);
int32_t burnish_pool_create(int32_t threads, burnish_pool **pool, burnish_error *error);
void burnish_pool_destroy(burnish_pool *pool);
int32_t burnish_create(const burnish_api *model, const burnish_options *options, burnish_context **context,
                       burnish_error *error);
void burnish_destroy(burnish_context *context);
int32_t burnish_bind_input(burnish_context *context, int32_t index, const void *data, int64_t nbytes);
int32_t burnish_bind_output(burnish_context *context, int32_t index, void *data, int64_t nbytes);
void *burnish_input_data(burnish_context *context, int32_t index);
void *burnish_output_data(burnish_context *context, int32_t index);
void *burnish_device_data(burnish_context *context, int32_t is_output, int32_t index);
int32_t burnish_run(burnish_context *context);
const burnish_error *burnish_last_error(const burnish_context *context);
int32_t burnish_profile(burnish_context *context, int64_t *nanoseconds);
int32_t burnish_threads(const burnish_context *context);
int32_t burnish_prepare(const burnish_api *model, const burnish_options *options, burnish_error *error);
void burnish_unprepare(const burnish_api *model);

#define BURNISH_TABLE(image)                                                             \
  {BURNISH_API_MAGIC,    BURNISH_API_VERSION, sizeof(burnish_api),  image,               \
   burnish_name,         burnish_target,      burnish_check,        burnish_input_count, \
   burnish_output_count, burnish_input,       burnish_output,       burnish_step_count,  \
   burnish_step_info,    burnish_pool_create, burnish_pool_destroy, burnish_create,      \
   burnish_destroy,      burnish_bind_input,  burnish_bind_output,  burnish_input_data,  \
   burnish_output_data,  burnish_run,         burnish_last_error,   burnish_profile,     \
   burnish_threads,      burnish_prepare,     burnish_unprepare,    burnish_device_data}

#endif
