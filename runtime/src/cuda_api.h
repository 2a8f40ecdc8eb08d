/* What the CUDA device uses of the driver's interface, declared here so that no toolkit is needed to build,
 * and loaded when the first module asks for it. Names and versions are those of the exported symbols,
 * CUDA 11.4 on. */
#ifndef BURNISH_CUDA_API_H
#define BURNISH_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cu_result; /* 0: success */
typedef int32_t cu_device;
typedef uint64_t cu_pointer; /* an address in the device's memory */
typedef struct cu_context_s *cu_context;
typedef struct cu_module_s *cu_module;
typedef struct cu_function_s *cu_function;
typedef struct cu_stream_s *cu_stream;
typedef struct cu_event_s *cu_event;
typedef struct cu_graph_s *cu_graph;
typedef struct cu_executable_s *cu_executable; /* CUgraphExec */

enum {
  CU_INVALID_VALUE = 1,
  CU_OUT_OF_MEMORY = 2,
  CU_ILLEGAL_ADDRESS = 700,
  CU_LAUNCH_TIMEOUT = 702,
  CU_HARDWARE_STACK_ERROR = 714,
  CU_LAUNCH_FAILED = 719,
  CU_MAX_THREADS_PER_BLOCK = 1,
  CU_MAX_GRID_DIM_X = 5,
  CU_MULTIPROCESSOR_COUNT = 16,
  CU_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_COMPUTE_CAPABILITY_MINOR = 76,
  CU_COOPERATIVE_LAUNCH = 95,
  CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  CU_FUNC_MAX_DYNAMIC_SHARED_BYTES = 8,
  CU_JIT_ERROR_LOG_BUFFER = 5,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
  CU_POINTER_MEMORY_TYPE = 2,
  CU_POINTER_DEVICE_ORDINAL = 9,
  CU_MEMORY_OF_DEVICE = 2,
  CU_STREAM_NON_BLOCKING = 1,
  CU_CAPTURE_THREAD_LOCAL = 1,
  CU_EVENT_RECORD_EXTERNAL = 1,
  CU_PROGRAMMATIC_STREAM_SERIALIZATION = 6
};

typedef struct cu_attribute { /* CUlaunchAttribute */
  int32_t what, padding;
  union {
    int32_t number;
    char bytes[64];
    void *pointer; /* which gives it CUDA's alignment */
  } value;
} cu_attribute;

typedef struct cu_launch { /* CUlaunchConfig */
  uint32_t grid[3], block[3], shared;
  cu_stream stream;
  cu_attribute *attributes;
  uint32_t attribute_count;
} cu_launch;

/* X(name, parameters) */
#define CU_FUNCTIONS(X)                                                                                 \
  X(cuInit, (uint32_t))                                                                                 \
  X(cuDriverGetVersion, (int32_t *))                                                                    \
  X(cuGetErrorName, (cu_result, const char **))                                                         \
  X(cuGetErrorString, (cu_result, const char **))                                                       \
  X(cuDeviceGetCount, (int32_t *))                                                                      \
  X(cuDeviceGet, (cu_device *, int32_t))                                                                \
  X(cuDeviceGetName, (char *, int32_t, cu_device))                                                      \
  X(cuDeviceGetAttribute, (int32_t *, int32_t, cu_device))                                              \
  X(cuDevicePrimaryCtxRetain, (cu_context *, cu_device))                                                \
  X(cuDevicePrimaryCtxRelease_v2, (cu_device))                                                          \
  X(cuCtxPushCurrent_v2, (cu_context))                                                                  \
  X(cuCtxPopCurrent_v2, (cu_context *))                                                                 \
  X(cuModuleLoadDataEx, (cu_module *, const void *, uint32_t, const int32_t *, void **))                \
  X(cuModuleUnload, (cu_module))                                                                        \
  X(cuModuleGetFunction, (cu_function *, cu_module, const char *))                                      \
  X(cuMemAlloc_v2, (cu_pointer *, size_t))                                                              \
  X(cuMemFree_v2, (cu_pointer))                                                                         \
  X(cuMemHostAlloc, (void **, size_t, uint32_t))                                                        \
  X(cuMemFreeHost, (void *))                                                                            \
  X(cuMemsetD8_v2, (cu_pointer, unsigned char, size_t))                                                 \
  X(cuMemcpyHtoD_v2, (cu_pointer, const void *, size_t))                                                \
  X(cuMemcpyHtoDAsync_v2, (cu_pointer, const void *, size_t, cu_stream))                                \
  X(cuMemcpyDtoHAsync_v2, (void *, cu_pointer, size_t, cu_stream))                                      \
  X(cuMemcpyDtoDAsync_v2, (cu_pointer, cu_pointer, size_t, cu_stream))                                  \
  X(cuPointerGetAttributes, (uint32_t, const int32_t *, void **, cu_pointer))                           \
  X(cuStreamCreate, (cu_stream *, uint32_t))                                                            \
  X(cuStreamDestroy_v2, (cu_stream))                                                                    \
  X(cuStreamSynchronize, (cu_stream))                                                                   \
  X(cuStreamBeginCapture_v2, (cu_stream, int32_t))                                                      \
  X(cuStreamEndCapture, (cu_stream, cu_graph *))                                                        \
  X(cuGraphInstantiateWithFlags, (cu_executable *, cu_graph, unsigned long long))                       \
  X(cuGraphDestroy, (cu_graph))                                                                         \
  X(cuGraphLaunch, (cu_executable, cu_stream))                                                          \
  X(cuGraphExecDestroy, (cu_executable))                                                                \
  X(cuEventCreate, (cu_event *, uint32_t))                                                              \
  X(cuEventDestroy_v2, (cu_event))                                                                      \
  X(cuEventRecordWithFlags, (cu_event, cu_stream, uint32_t))                                            \
  X(cuEventElapsedTime, (float *, cu_event, cu_event))                                                  \
  X(cuFuncSetAttribute, (cu_function, int32_t, int32_t))                                                \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int32_t *, cu_function, int32_t, size_t))             \
  X(cuLaunchCooperativeKernel, (cu_function, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t,          \
                                uint32_t, uint32_t, cu_stream, void **))                                \
  X(cuLaunchKernel, (cu_function, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, \
                     cu_stream, void **, void **))

/* Of newer drivers; NULL in others. Graphs keep what kernels may do ahead from CUDA 12.3 on. */
#define CU_NEWER_FUNCTIONS(X) X(cuLaunchKernelEx, (const cu_launch *, cu_function, void **, void **))

typedef struct cuda_api {
#define X(name, parameters) cu_result(*name) parameters;
  CU_FUNCTIONS(X)
  CU_NEWER_FUNCTIONS(X)
#undef X
} cuda_api;

#endif
