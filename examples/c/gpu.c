/* Classifies an image on an NVIDIA GPU: gpu MODULE.so IMAGE [RUNS]
 *
 * IMAGE holds the first input as raw float32 (3x224x224 for ResNet-18), MODULE is for CUDA:
 *
 *     burnish zoo resnet18 && burnish compile resnet18.onnx --target cuda-sm80 -o resnet18.so
 *
 * Only the driver is needed to run this, no CUDA toolkit. The image is uploaded once; then input and output
 * stay in the context's memory on the GPU, where other code could write and read them. Prints the five classes
 * with the largest scores, and what a run takes. */
#define _POSIX_C_SOURCE 200809L
#include <burnish.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BEST 5

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int fail(const burnish_api *model, const burnish_context *context) {
  fprintf(stderr, "%s\n", model->last_error(context)->message);
  return 1;
}

/* 0 on success. */
static int read_image(const char *path, float *image, int64_t nbytes) {
  FILE *file = fopen(path, "rb");
  size_t got = file && image ? fread(image, 1, (size_t)nbytes, file) : 0;
  if (file) fclose(file);
  if (got == (size_t)nbytes) return 0;
  fprintf(stderr, "%s: expected %lld bytes, read %zu\n", path, (long long)nbytes, got);
  return 1;
}

static void print_best(const float *scores, int64_t count) {
  int64_t last = -1;
  for (int n = 0; n < BEST && n < count; n++) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
      int printed = last >= 0 && (scores[i] > scores[last] || (scores[i] == scores[last] && i <= last));
      if (!printed && (best < 0 || scores[i] > scores[best])) best = i;
    }
    if (best < 0) return;
    printf("class %lld: %.6f\n", (long long)best, (double)scores[best]);
    last = best;
  }
}

/* Runs with input and output on the GPU; the fastest in milliseconds, or a negative number. */
static double time_runs(const burnish_api *model, burnish_context *context, int64_t in, int64_t out,
                        int runs) {
  void *image = model->device_data(context, 0, 0), *scores = model->device_data(context, 1, 0);
  double best = -1;
  if (model->bind_input(context, 0, image, in) || model->bind_output(context, 0, scores, out)) return -1;
  for (int i = 0; i < runs; i++) {
    double start = now_ms();
    if (model->run(context)) return -1;
    double took = now_ms() - start;
    if (best < 0 || took < best) best = took;
  }
  return best;
}

static int classify(const burnish_api *model, burnish_context *context, const char *path, int runs) {
  burnish_tensor x, y;
  if (model->input(model, 0, &x) || model->output(model, 0, &y) || x.dtype != BURNISH_F32 ||
      y.dtype != BURNISH_F32 || !model->device_data(context, 0, 0)) {
    fprintf(stderr, "expected a module for CUDA with an image and scores of float32\n");
    return 1;
  }
  if (read_image(path, model->input_data(context, 0), x.nbytes)) return 1;
  if (model->run(context)) return fail(model, context);
  print_best(model->output_data(context, 0), y.nbytes / 4);
  double best = time_runs(model, context, x.nbytes, y.nbytes, runs);
  if (best < 0) return fail(model, context);
  printf("best of %d runs on the GPU: %.3f ms\n", runs, best);
  return 0;
}

int main(int argc, char **argv) {
  burnish_error error;
  burnish_file file;
  burnish_context *context;
  int runs = argc > 3 ? atoi(argv[3]) : 100;
  if (argc < 3 || runs < 1) {
    fprintf(stderr, "usage: %s MODULE.so IMAGE [RUNS]\n", argv[0]);
    return 2;
  }
  if (burnish_open(argv[1], NULL, &file, &error)) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  int status = file.api->create(file.api, NULL, &context, &error);
  if (status) {
    fprintf(stderr, "%s\n", error.message);
  } else {
    status = classify(file.api, context, argv[2], runs);
    file.api->destroy(context);
  }
  burnish_close(&file);
  return status != 0;
}
