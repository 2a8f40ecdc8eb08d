/* What the OpenCL device uses of OpenCL 1.2, declared here so that no header is needed to build, and loaded
 * when the first module asks for it, so that no library is needed to run others. */
#ifndef BURNISH_OPENCL_API_H
#define BURNISH_OPENCL_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct cl_platform_s *cl_platform;
typedef struct cl_device_s *cl_device;
typedef struct cl_context_s *cl_context;
typedef struct cl_queue_s *cl_queue;
typedef struct cl_buffer_s *cl_buffer;
typedef struct cl_program_s *cl_program;
typedef struct cl_kernel_s *cl_kernel;
typedef struct cl_event_s *cl_event;
typedef void (*cl_notify)(const char *, const void *, size_t, void *);
typedef void (*cl_built)(cl_program, void *);

enum {
  CL_DEVICE_NOT_AVAILABLE = -2,
  CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
  CL_OUT_OF_RESOURCES = -5,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_INVALID_WORK_GROUP_SIZE = -54,
  CL_INVALID_BUFFER_SIZE = -61,
  CL_DEVICE_TYPE_CPU = 1 << 1,
  CL_DEVICE_TYPE_GPU = 1 << 2,
  CL_DEVICE_TYPE_ACCELERATOR = 1 << 3,
  CL_PLATFORM_VERSION = 0x0901,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_AVAILABLE = 0x1027,
  CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
  CL_DEVICE_NAME = 0x102B,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_DEVICE_PLATFORM = 0x1031,
  CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT = 1 << 7,
  CL_QUEUE_PROFILING_ENABLE = 1 << 1,
  CL_MEM_READ_WRITE = 1 << 0,
  CL_MEM_COPY_HOST_PTR = 1 << 5,
  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_PROFILING_COMMAND_START = 0x1282,
  CL_PROFILING_COMMAND_END = 0x1283
};

/* X(result, name, parameters) */
#define CL_FUNCTIONS(X)                                                                                      \
  X(int32_t, clGetPlatformIDs, (uint32_t, cl_platform *, uint32_t *))                                        \
  X(int32_t, clGetPlatformInfo, (cl_platform, uint32_t, size_t, void *, size_t *))                           \
  X(int32_t, clGetDeviceIDs, (cl_platform, uint64_t, uint32_t, cl_device *, uint32_t *))                     \
  X(int32_t, clGetDeviceInfo, (cl_device, uint32_t, size_t, void *, size_t *))                               \
  X(cl_context, clCreateContext,                                                                             \
    (const intptr_t *, uint32_t, const cl_device *, cl_notify, void *, int32_t *))                           \
  X(int32_t, clReleaseContext, (cl_context))                                                                 \
  X(cl_queue, clCreateCommandQueue, (cl_context, cl_device, uint64_t, int32_t *))                            \
  X(int32_t, clReleaseCommandQueue, (cl_queue))                                                              \
  X(cl_buffer, clCreateBuffer, (cl_context, uint64_t, size_t, void *, int32_t *))                            \
  X(int32_t, clReleaseMemObject, (cl_buffer))                                                                \
  X(cl_program, clCreateProgramWithSource, (cl_context, uint32_t, const char **, const size_t *, int32_t *)) \
  X(cl_program, clCreateProgramWithBinary,                                                                   \
    (cl_context, uint32_t, const cl_device *, const size_t *, const unsigned char **, int32_t *, int32_t *)) \
  X(int32_t, clBuildProgram, (cl_program, uint32_t, const cl_device *, const char *, cl_built, void *))      \
  X(int32_t, clGetProgramInfo, (cl_program, uint32_t, size_t, void *, size_t *))                             \
  X(int32_t, clGetProgramBuildInfo, (cl_program, cl_device, uint32_t, size_t, void *, size_t *))             \
  X(int32_t, clReleaseProgram, (cl_program))                                                                 \
  X(cl_kernel, clCreateKernel, (cl_program, const char *, int32_t *))                                        \
  X(int32_t, clSetKernelArg, (cl_kernel, uint32_t, size_t, const void *))                                    \
  X(int32_t, clReleaseKernel, (cl_kernel))                                                                   \
  X(int32_t, clEnqueueNDRangeKernel,                                                                         \
    (cl_queue, cl_kernel, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,                \
     const cl_event *, cl_event *))                                                                          \
  X(int32_t, clEnqueueWriteBuffer,                                                                           \
    (cl_queue, cl_buffer, uint32_t, size_t, size_t, const void *, uint32_t, const cl_event *, cl_event *))   \
  X(int32_t, clEnqueueReadBuffer,                                                                            \
    (cl_queue, cl_buffer, uint32_t, size_t, size_t, void *, uint32_t, const cl_event *, cl_event *))         \
  X(int32_t, clEnqueueCopyBuffer,                                                                            \
    (cl_queue, cl_buffer, cl_buffer, size_t, size_t, size_t, uint32_t, const cl_event *, cl_event *))        \
  X(int32_t, clEnqueueFillBuffer,                                                                            \
    (cl_queue, cl_buffer, const void *, size_t, size_t, size_t, uint32_t, const cl_event *, cl_event *))     \
  X(int32_t, clFinish, (cl_queue))                                                                           \
  X(int32_t, clGetEventProfilingInfo, (cl_event, uint32_t, size_t, void *, size_t *))                        \
  X(int32_t, clReleaseEvent, (cl_event))

typedef struct opencl_api {
#define X(result, name, parameters) result(*name) parameters;
  CL_FUNCTIONS(X)
#undef X
} opencl_api;

#endif
