/* The plan as it lies in the module; docs/module-format.md describes every field. Read in place. */
#ifndef BURNISH_PLAN_H
#define BURNISH_PLAN_H

#include <pthread.h>
#include <stddef.h>

#include "burnish.h"

#define BURNISH_PLAN_VERSION 2u

enum { STEP_CALL = 0, STEP_COPY = 1 };
enum { SPACE_INPUT = 0, SPACE_OUTPUT = 1, SPACE_ARENA = 2, SPACE_WEIGHTS = 3, SPACE_PREPARED = 4 };

typedef struct plan_header {
  char magic[8];
  uint32_t version, header_bytes;
  uint64_t total_bytes;
  uint64_t arena_bytes, weights_bytes, prepared_bytes, scratch_bytes;
  uint32_t input_count, output_count, kernel_count, feature_count;
  uint32_t step_count, setup_count, arg_count, dim_count, string_bytes;
  uint32_t name, target, reserved;
} plan_header;

typedef struct plan_io {
  uint32_t name, dtype, rank, first_dim;
  uint64_t nbytes;
} plan_io;

typedef struct plan_step {
  uint32_t kind, kernel, node, first_arg, arg_count, gang;
  uint64_t tasks, scratch, flops, bytes;
} plan_step;

typedef struct plan_arg {
  uint32_t space, index;
  uint64_t offset, nbytes;
} plan_arg;

/* What the users of a module share: made for the first of them, gone after the last. */
typedef struct burnish_shared_parts {
  pthread_mutex_t lock;
  int64_t users;
  unsigned char *prepared_weights; /* that the setup steps made */
  void *device_module;             /* what a device other than the CPU has loaded */
} burnish_shared_parts;

typedef struct burnish_device burnish_device;

/* What a module consists of; the table's private pointer. */
typedef struct burnish_image {
  const unsigned char *plan;
  uint64_t plan_bytes;
  const unsigned char *weights; /* 64-byte aligned */
  uint64_t weights_bytes;
  const burnish_kernel *kernels;
  uint64_t kernel_count;
  burnish_shared_parts *parts;
  int32_t mapped; /* the weights are pages of a file, which can be read again */
  const burnish_device *device;
  const unsigned char *code; /* of a device that is no CPU, instead of kernels; 8-byte aligned */
  uint64_t code_bytes;
} burnish_image;

typedef struct plan_view {
  const plan_header *header;
  const plan_io *ios; /* by slot */
  const plan_step *steps;
  uint32_t step_count;
  uint64_t arena_bytes, scratch_bytes; /* that the steps need */
  const plan_arg *args;
  const int64_t *dims;
  const uint32_t *kernel_names;
  const uint32_t *features;
  const char *strings;
} plan_view;

/* A slot is an input, or an output counted behind the inputs. */
static inline uint64_t plan_slots(const plan_header *h) { return (uint64_t)h->input_count + h->output_count; }

static inline uint64_t plan_output_slot(const plan_header *h, uint32_t index) {
  return (uint64_t)h->input_count + index;
}

/* Pointers into a plan that plan_check has accepted. */
plan_view burnish_plan_view(const burnish_image *image);

/* The same, with the setup steps as its steps. */
plan_view burnish_setup_view(const burnish_image *image);

/* The end of what the steps of a view touch of a space. */
uint64_t burnish_used_bytes(const plan_view *plan, uint32_t space);

/* BURNISH_OK only if every number in the plan is in range, so that no later code needs to check. */
int32_t burnish_plan_check(const burnish_image *image, burnish_error *error);

/* Bytes of one element; 0 for an unknown dtype. */
uint64_t burnish_element_bytes(uint32_t dtype);

/* Fills `error` (may be NULL) like printf and returns `code`. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
int32_t burnish_fail(burnish_error *error, int32_t code, int32_t step, const char *format, ...);

#endif
