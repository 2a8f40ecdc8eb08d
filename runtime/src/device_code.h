/* The kernels of a module for a GPU as they lie in it; docs/module-format.md describes every field. */
#ifndef BURNISH_DEVICE_CODE_H
#define BURNISH_DEVICE_CODE_H

#include <string.h>

#include "plan.h"

#define BURNISH_CODE_VERSION 1u

enum { CODE_NEEDS_F64 = 1 };
enum {
  KERNEL_REPORTS = 1,  /* may note an error */
  KERNEL_TOGETHER = 2, /* its blocks wait for each other, so all must run at once */
  KERNEL_OVERLAPS = 4  /* may begin before the kernel before it has ended, and waits for that itself */
};

typedef struct code_header {
  char magic[8];
  uint32_t version, header_bytes;
  uint64_t total_bytes, source_bytes, string_bytes;
  uint32_t kernel_count, needs, options, reserved; /* options: a string for the device's compiler */
} code_header;

typedef struct code_kernel {
  uint32_t name, flags;
  uint32_t grid[3], block[3]; /* blocks of the grid, threads of a block */
  uint32_t shared, reserved;  /* bytes of shared memory of a block */
} code_kernel;

typedef struct code_view {
  const code_header *header;
  const code_kernel *kernels;
  const char *source, *strings;
} code_view;

_Static_assert(sizeof(code_header) == 56, "module format");
_Static_assert(sizeof(code_kernel) == 40, "module format");

/* Pointers into code that burnish_code_is_sound has accepted. */
static inline code_view burnish_code_view(const unsigned char *code) {
  code_view v;
  v.header = (const code_header *)(const void *)code;
  v.kernels = (const code_kernel *)(const void *)(code + sizeof(code_header));
  v.source = (const char *)(const void *)(v.kernels + v.header->kernel_count);
  v.strings = v.source + v.header->source_bytes;
  return v;
}

static inline int burnish_code_is_sound(const unsigned char *code, uint64_t bytes) {
  const code_header *h = (const code_header *)(const void *)code;
  code_view v;
  if (!code || bytes < sizeof *h || (uintptr_t)code % 8 || memcmp(h->magic, "BURNCODE", 8)) return 0;
  if (h->version != BURNISH_CODE_VERSION || h->header_bytes != sizeof *h || h->total_bytes != bytes) return 0;
  bytes -= sizeof *h;
  if (bytes / sizeof(code_kernel) < h->kernel_count) return 0;
  bytes -= (uint64_t)h->kernel_count * sizeof(code_kernel);
  if (h->source_bytes > bytes || h->string_bytes != bytes - h->source_bytes || !h->string_bytes) return 0;
  v = burnish_code_view(code);
  if (v.strings[h->string_bytes - 1] || h->options >= h->string_bytes) return 0;
  for (uint32_t k = 0; k < h->kernel_count; k++) {
    if (v.kernels[k].name >= h->string_bytes) return 0;
    for (int axis = 0; axis < 3; axis++)
      if (!v.kernels[k].grid[axis] || !v.kernels[k].block[axis]) return 0;
  }
  return 1;
}

static inline uint64_t burnish_code_kernels(const unsigned char *code, uint64_t bytes) {
  return burnish_code_is_sound(code, bytes) ? burnish_code_view(code).header->kernel_count : 0;
}

#endif
