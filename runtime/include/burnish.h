/* Burnish: running a compiled model from C11 or C++.
 *
 * A module is one file, model.so, or an archive model.a with its header model.h. Both give one table of
 * functions, a `const burnish_api`, and need nothing but libc, pthreads and, of some models, libm. Usage
 * (error handling cut short):
 *
 *     #include <burnish.h>                        // compile open.c of Burnish's runtime into the application
 *
 *     burnish_error error;
 *     burnish_file file;
 *     if (burnish_open("resnet18.so", NULL, &file, &error)) { puts(error.message); return 1; }
 *     const burnish_api *model = file.api;        // with an archive: = &burnish_resnet18;
 *
 *     burnish_options options = BURNISH_OPTIONS;
 *     options.threads = 2;
 *     burnish_context *context;
 *     if (model->create(model, &options, &context, &error)) { puts(error.message); return 1; }
 *
 *     float *x = model->input_data(context, 0);   // or bind your own memory with bind_input
 *     for (int i = 0; i < 3 * 224 * 224; i++) x[i] = 0.5f;
 *     if (model->run(context)) { puts(model->last_error(context)->message); return 1; }
 *     const float *scores = model->output_data(context, 0);
 *
 *     model->destroy(context);
 *     burnish_close(&file);
 *
 * Several contexts of one module may run at the same time, each used by one thread at a time.
 */
#ifndef BURNISH_H
#define BURNISH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BURNISH_API_MAGIC 0x48534E52u /* "RNSH" */
#define BURNISH_API_VERSION 1u
#define BURNISH_MAX_THREADS 1024

/* Status of every function that returns int32_t. Positive codes come from kernels. */
enum burnish_status {
  BURNISH_OK = 0,
  BURNISH_INDEX_OUT_OF_RANGE = 1, /* an index tensor holds a value outside of the indexed axis */
  BURNISH_BAD_VALUE = 2,          /* another input value that the operator does not allow */
  BURNISH_BAD_ARGUMENT = -1,      /* a wrong index, size, pointer or option was passed */
  BURNISH_NO_MEMORY = -2,
  BURNISH_NO_THREAD = -3,    /* the system refused to start a thread */
  BURNISH_BAD_FILE = -4,     /* the file cannot be read */
  BURNISH_NOT_A_MODULE = -5, /* the file is not a Burnish module, or is cut short */
  BURNISH_BAD_VERSION = -6,  /* written by a Burnish whose format this one does not read */
  BURNISH_BAD_CPU = -7,      /* this machine lacks a CPU feature that the module needs */
  BURNISH_BAD_CHECKSUM = -8, /* the file's bytes have changed since it was written */
  BURNISH_BAD_PLAN = -9,     /* the module's plan contradicts itself */
  BURNISH_BAD_LOAD = -10,    /* the system's loader refused the file */
  BURNISH_NO_DEVICE = -11,   /* the module is for a GPU, and there is none, or no driver for it */
  BURNISH_BAD_DEVICE = -12   /* the GPU cannot run the module, or its driver failed */
};

typedef struct burnish_error {
  int32_t code;
  int32_t step;      /* the step of the plan that failed, or -1 */
  char message[504]; /* one line; names the ONNX node where a step failed */
} burnish_error;

/* Element types, numbered as ONNX's TensorProto.DataType. A bool is one byte, 0 or 1. */
enum burnish_dtype {
  BURNISH_F32 = 1,
  BURNISH_U8 = 2,
  BURNISH_I8 = 3,
  BURNISH_U16 = 4,
  BURNISH_I16 = 5,
  BURNISH_I32 = 6,
  BURNISH_I64 = 7,
  BURNISH_BOOL = 9,
  BURNISH_F16 = 10,
  BURNISH_F64 = 11,
  BURNISH_U32 = 12,
  BURNISH_U64 = 13,
  BURNISH_BF16 = 16
};

typedef struct burnish_tensor {
  const char *name;
  const int64_t *shape; /* `rank` sizes; memory is row-major without gaps */
  int32_t dtype;        /* enum burnish_dtype */
  int32_t rank;
  int64_t nbytes;
} burnish_tensor;

typedef struct burnish_step {
  const char *kernel; /* "copy" for a plain copy */
  const char *node;   /* names of the ONNX nodes that it computes */
  int64_t tasks;      /* parts that threads share out, on a GPU the blocks; 1 for a copy */
  int64_t flops;      /* of sums of products, a multiply-add being two; a node's last kernel has them all */
  int64_t bytes;      /* of all buffers that the node's kernels read or write, each once */
  int32_t gang;       /* 1: all threads run it at once, as they wait for each other */
  int32_t reserved;   /* 0 */
} burnish_step;

typedef struct burnish_context burnish_context; /* one run's memory and state */
typedef struct burnish_pool burnish_pool;       /* threads, to be shared by contexts of any modules */

typedef struct burnish_options {
  uint32_t size;      /* sizeof(burnish_options) */
  int32_t threads;    /* threads per run, the caller's included; 0: one per available CPU; unused with `pool`
                       * and by modules for GPUs */
  burnish_pool *pool; /* NULL: the context starts its own threads */
} burnish_options;

#define BURNISH_OPTIONS {(uint32_t)sizeof(burnish_options), 1, 0}

/* A module's table. `error` may be NULL everywhere. Later versions only append to it. */
typedef struct burnish_api burnish_api;
struct burnish_api {
  uint32_t magic;
  uint32_t version;
  uint64_t size;                     /* bytes of this table */
  const struct burnish_image *image; /* private */

  const char *(*name)(const burnish_api *model);
  const char *(*target)(const burnish_api *model); /* the machine that it was compiled for */

  /* BURNISH_OK if the module is sound and this CPU can run it; `create` checks the same. */
  int32_t (*check)(const burnish_api *model, burnish_error *error);

  int32_t (*input_count)(const burnish_api *model);
  int32_t (*output_count)(const burnish_api *model);
  int32_t (*input)(const burnish_api *model, int32_t index, burnish_tensor *tensor);
  int32_t (*output)(const burnish_api *model, int32_t index, burnish_tensor *tensor);
  int32_t (*step_count)(const burnish_api *model);
  int32_t (*step)(const burnish_api *model, int32_t index, burnish_step *step);

  /* Contexts made from one pool share its threads; their runs take turns (not those of modules for GPUs,
   * nor in a forked child, where the threads are not). Destroy the contexts, then the pool, and only then
   * unload the module whose table made it. `threads` as in burnish_options. */
  int32_t (*pool_create)(int32_t threads, burnish_pool **pool, burnish_error *error);
  void (*pool_destroy)(burnish_pool *pool);

  /* Takes all memory that runs need, except that of inputs and outputs that are not bound, which input_data,
   * output_data or the first run take (CUDA: the recording of a run, too). `options` may be NULL: runs take
   * one thread. */
  int32_t (*create)(const burnish_api *model, const burnish_options *options, burnish_context **context,
                    burnish_error *error);
  void (*destroy)(burnish_context *context);

  /* Runs read and write the user's memory in place (modules for GPUs through a copy, unless it is memory of
   * the same GPU, which only modules for CUDA take), from now on and until bound anew. It must be aligned to
   * its element size (of a GPU to 16 bytes), and `nbytes` must be the tensor's. Runs refuse outputs that
   * overlap other inputs or outputs. NULL: back to the context's own memory, to be filled anew: copies may
   * have gone through it. */
  int32_t (*bind_input)(burnish_context *context, int32_t index, const void *data, int64_t nbytes);
  int32_t (*bind_output)(burnish_context *context, int32_t index, void *data, int64_t nbytes);

  /* The memory in use: the bound one, else the context's own, zeroed when first asked for. NULL if there is
   * no such index or no memory. */
  void *(*input_data)(burnish_context *context, int32_t index);
  void *(*output_data)(burnish_context *context, int32_t index);

  /* On a CPU the calling thread works, too, and needs 128 KiB of stack. */
  int32_t (*run)(burnish_context *context);
  const burnish_error *(*last_error)(const burnish_context *context);

  /* From now on a run writes each step's nanoseconds to `nanoseconds[0 .. step_count)`, 0 for those behind
   * one that fails; NULL ends that. (CUDA: a step without a node's name takes 0, and counts with the one
   * before.) */
  int32_t (*profile)(burnish_context *context, int64_t *nanoseconds);
  int32_t (*threads)(const burnish_context *context);

  /* A module compiled with compact weights transforms them into memory of its own, once, for all its
   * contexts. burnish_open does that; with an archive the first `create` does, and the last `destroy` undoes
   * it, unless the application calls `prepare` first. Each `prepare` that succeeds needs its `unprepare`.
   * `options` are those of the threads that help; NULL: one thread. */
  int32_t (*prepare)(const burnish_api *model, const burnish_options *options, burnish_error *error);
  void (*unprepare)(const burnish_api *model);

  /* Modules for CUDA: the context's own memory on the GPU of an input (`is_output` 0) or an output (1); NULL
   * for other modules and where there is no such index. Bound by bind_input or bind_output, as any memory of
   * that GPU may be, it is read and written in place. */
  void *(*device_data)(burnish_context *context, int32_t is_output, int32_t index);
};

/* The opener, for applications that load module files (open.c). */
typedef struct burnish_file {
  const burnish_api *api;
  void *handle;
} burnish_file;

typedef struct burnish_open_options {
  uint32_t size;         /* sizeof(burnish_open_options) */
  int32_t verify_digest; /* nonzero: also check the SHA-256 digest, at some 0.3 GB/s */
  int32_t threads;       /* that transform compact weights; 0: one per available CPU */
} burnish_open_options;

/* Checks the file's size, format, CPU features and checksum, then loads it. The checks find accidents; they
 * cannot make a file from an untrusted source safe, since a module is native code. `options` may be NULL:
 * no digest is checked, and one thread per available CPU transforms compact weights. */
int32_t burnish_open(const char *path, const burnish_open_options *options, burnish_file *file,
                     burnish_error *error);
void burnish_close(burnish_file *file);

/* What follows is the contract with generated kernels, no concern of applications.
 *
 * A kernel computes the tasks [begin, end) as worker `worker`. Buffers in arena and weights are aligned to 64
 * bytes, inputs and outputs to their element size. */
typedef struct burnish_call {
  void *const *buffers; /* one pointer per argument, in the kernel's argument order */
  char *scratch;        /* worker w's scratch starts at scratch + w * scratch_stride, 64-byte aligned */
  int64_t scratch_stride;
  const void *next_weights; /* weights of the following kernel, for prefetching; may be NULL */
  int64_t next_weights_size;
  /* Gang steps only: all workers wait for each other. */
  void (*barrier)(const struct burnish_call *call, int32_t worker);
  void *gang;
  int32_t workers;
} burnish_call;

/* Nonzero is a status that ends the run. A gang kernel must pass the same number of barriers on every worker,
 * in case of an error too. */
typedef int32_t (*burnish_kernel)(const burnish_call *call, int64_t begin, int64_t end, int32_t worker);

#ifdef __cplusplus
}
#endif
#endif
