/* A module's part of the CUDA device, shared by cuda_module.c (driver, device, code, weights) and cuda.c
 * (runs). */
#ifndef BURNISH_CUDA_H
#define BURNISH_CUDA_H

#include "cuda_api.h"
#include "gpu.h"

/* What the contexts of a module share. */
typedef struct cuda_module {
  cu_device device;
  cu_context context; /* the device's primary one, which torch and cupy use, too */
  cu_module code;
  cu_pointer weights;
} cuda_module;

/* The driver; set once a module was loaded. */
extern cuda_api burnish_cu;

/* Fails with the driver's name and text of a code. */
int32_t burnish_cuda_failed(burnish_error *error, const char *what, cu_result code);

/* Fails in children of the process that opened the driver. */
int32_t burnish_cuda_in_opening_process(burnish_error *error);

/* `load` and `unload` of the device. */
int32_t burnish_cuda_load(const burnish_image *image, void **loaded, burnish_error *error);
void burnish_cuda_unload(void *loaded);

#endif
