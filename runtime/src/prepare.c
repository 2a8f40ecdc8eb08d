/* Weights that a module stores in one form and uses in another: its setup steps make them, once. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api.h"
#include "context.h"

/* The stored weights that only the setup steps read stand behind the others; their pages may go. */
static void drop_sources(const burnish_image *image) {
#if defined(MADV_DONTNEED)
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  plan_view run = burnish_plan_view(image);
  uintptr_t begin = (uintptr_t)image->weights + burnish_used_bytes(&run, SPACE_WEIGHTS),
            end = ((uintptr_t)image->weights + image->weights_bytes) / page * page;
  begin = (begin + page - 1) / page * page;
  if (image->mapped && begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
#else
  (void)image;
#endif
}

static int32_t run_setup(const burnish_image *image, unsigned char *memory, const burnish_options *options,
                         burnish_error *error) {
  burnish_context *c;
  const burnish_options alone = BURNISH_OPTIONS;
  int32_t status = burnish_context_make(image, burnish_setup_view(image), memory, options, &c, error);
  if (status == BURNISH_NO_THREAD)
    status = burnish_context_make(image, burnish_setup_view(image), memory, &alone, &c, error);
  if (status) return status;
  status = burnish_run(c);
  if (status && error) {
    *error = c->error;
    error->step = -1; /* it counts the steps of another plan */
  }
  burnish_context_free(c);
  return status;
}

static int32_t prepare(const burnish_image *image, const burnish_options *options, burnish_error *error) {
  uint64_t bytes = burnish_plan_view(image).header->prepared_bytes;
  unsigned char *memory = burnish_allocate(bytes);
  int32_t status;
  if (!memory)
    return burnish_fail(error, BURNISH_NO_MEMORY, -1, "no memory: this module's weights need %llu bytes",
                        (unsigned long long)bytes);
  status = run_setup(image, memory, options, error);
  if (status) {
    free(memory);
    return status;
  }
  drop_sources(image);
  image->parts->prepared_weights = memory;
  return BURNISH_OK;
}

static int has_parts(const burnish_image *image) {
  return image->device->load || burnish_plan_view(image).header->prepared_bytes;
}

static void free_parts(const burnish_image *image) {
  burnish_shared_parts *p = image->parts;
  if (image->device->unload) image->device->unload(p->device_module);
  free(p->prepared_weights);
  p->device_module = p->prepared_weights = NULL;
}

static int32_t make_parts(const burnish_image *image, const burnish_options *options, burnish_error *error) {
  int32_t status = BURNISH_OK;
  if (image->device->load) status = image->device->load(image, &image->parts->device_module, error);
  if (!status && burnish_plan_view(image).header->prepared_bytes) status = prepare(image, options, error);
  if (status) free_parts(image);
  return status;
}

int32_t burnish_parts_take(const burnish_image *image, const burnish_options *options,
                           unsigned char **prepared, burnish_error *error) {
  burnish_shared_parts *p = image->parts;
  int32_t status = BURNISH_OK;
  if (!has_parts(image)) return BURNISH_OK;
  pthread_mutex_lock(&p->lock);
  if (!p->users) status = make_parts(image, options, error);
  if (!status) p->users++;
  if (prepared) *prepared = p->prepared_weights;
  pthread_mutex_unlock(&p->lock);
  return status;
}

void burnish_parts_leave(const burnish_image *image) {
  burnish_shared_parts *p = image->parts;
  if (!has_parts(image)) return;
  pthread_mutex_lock(&p->lock);
  if (p->users && !--p->users) free_parts(image); /* none: an unprepare too many */
  pthread_mutex_unlock(&p->lock);
}

int32_t burnish_prepare(const burnish_api *model, const burnish_options *options, burnish_error *error) {
  burnish_options o = BURNISH_OPTIONS;
  int32_t status;
  if (options && options->size < sizeof o)
    return burnish_fail(error, BURNISH_BAD_ARGUMENT, -1,
                        "prepare: start from BURNISH_OPTIONS, which sets `size`");
  if (options) o = *options;
  if (!o.pool && (o.threads < 0 || o.threads > BURNISH_MAX_THREADS))
    return burnish_fail(error, BURNISH_BAD_ARGUMENT, -1, "prepare: threads is %d, expected 0 to %d",
                        (int)o.threads, BURNISH_MAX_THREADS);
  status = burnish_check(model, error);
  return status ? status : burnish_parts_take(model->image, &o, NULL, error);
}

void burnish_unprepare(const burnish_api *model) { burnish_parts_leave(model->image); }
