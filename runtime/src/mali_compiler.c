/* mali_compiler OPTIONS FILE…: builds each program of OpenCL C on the first device that there is, after a
 * line with its place on standard error, where the driver says what it made of it. Runs where the driver is
 * Mesa's for Mali, with a simulated kernel (runtime/mali.py); nothing is executed on the device. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl_api.h"

static opencl_api cl;

static void fail(const char *what, const char *detail) {
  fprintf(stderr, "error: %s%s\n", what, detail);
  exit(1);
}

static void load(void) {
  void *library = dlopen("libOpenCL.so.1", RTLD_NOW);
  if (!library) fail("", dlerror());
#define X(result, name, parameters) \
  if (!(*(void **)(void *)&cl.name = dlsym(library, #name))) fail("", dlerror());
  CL_FUNCTIONS(X)
#undef X
}

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) fail("cannot read ", path);
  *size = (size_t)ftell(file);
  char *text = malloc(*size + 1);
  rewind(file);
  if (!text || fread(text, 1, *size, file) != *size) fail("cannot read ", path);
  fclose(file);
  return text;
}

static void build(cl_context context, cl_device device, const char *path, const char *options) {
  static char log[1 << 16];
  size_t size;
  int32_t status;
  char *text = read_file(path, &size);
  cl_program program = cl.clCreateProgramWithSource(context, 1, (const char **)&text, &size, &status);
  if (status) fail("no program of ", path);
  if (cl.clBuildProgram(program, 1, &device, options, NULL, NULL)) {
    cl.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
    char *found = strstr(log, "error: ");
    if (found) found[strcspn(found, "\n")] = 0;
    fail("", found ? found + strlen("error: ") : log);
  }
  cl.clReleaseProgram(program);
  free(text);
}

int main(int count, char **arguments) {
  cl_platform platform;
  cl_device device;
  int32_t status;
  load();
  if (cl.clGetPlatformIDs(1, &platform, NULL)) fail("the OpenCL loader finds no driver", "");
  if (cl.clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, 1, &device, NULL))
    fail("the OpenCL driver does not know this chip", "");
  cl_context context = cl.clCreateContext(NULL, 1, &device, NULL, NULL, &status);
  if (status) fail("the OpenCL driver makes no context", "");
  for (int n = 2; n < count; n++) {
    fprintf(stderr, "program %d\n", n - 2);
    build(context, device, arguments[n], arguments[1]);
  }
  return 0;
}
