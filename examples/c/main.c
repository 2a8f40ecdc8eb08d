/* Runs a module file: main MODULE.so [--threads N] [--repeat N] [INPUT=FILE …]
 *
 * An input without a FILE (raw bytes in the input's type, row-major) is zero. Prints every output's summary
 * and the time of a run. */
#define _POSIX_C_SOURCE 200809L
#include <burnish.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void print_tensor(const char *kind, const burnish_tensor *t) {
  printf("%s %s: dtype %d, shape [", kind, t->name, (int)t->dtype);
  for (int32_t d = 0; d < t->rank; d++) printf("%s%lld", d ? "," : "", (long long)t->shape[d]);
  printf("]");
}

static void print_summary(const burnish_tensor *t, const void *data) {
  print_tensor("output", t);
  if (t->dtype == BURNISH_F32 && t->nbytes) {
    const float *x = data;
    int64_t count = t->nbytes / 4, best = 0;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
      sum += x[i];
      if (x[i] > x[best]) best = i;
    }
    printf(", mean %g, largest %g at %lld", sum / (double)count, (double)x[best], (long long)best);
  } else {
    const unsigned char *bytes = data;
    for (int64_t i = 0; i < t->nbytes && i < 8; i++)
      printf("%s%02x", i ? " " : ", begins with bytes ", bytes[i]);
  }
  printf("\n");
}

/* Fills one input from NAME=FILE; 0 on success. */
static int read_input(const burnish_api *model, burnish_context *context, const char *setting) {
  const char *equals = strchr(setting, '=');
  size_t length = equals ? (size_t)(equals - setting) : 0;
  burnish_tensor t;
  for (int32_t i = 0; equals && i < model->input_count(model); i++) {
    model->input(model, i, &t);
    if (strlen(t.name) != length || strncmp(t.name, setting, length)) continue;
    FILE *file = fopen(equals + 1, "rb");
    void *data = model->input_data(context, i);
    size_t got = file && data ? fread(data, 1, (size_t)t.nbytes, file) : 0;
    if (file) fclose(file);
    if (got == (size_t)t.nbytes) return 0;
    fprintf(stderr, "%s: expected %lld bytes, read %zu\n", equals + 1, (long long)t.nbytes, got);
    return 1;
  }
  fprintf(stderr, "%s: expected INPUT=FILE with the name of an input\n", setting);
  return 1;
}

static int run_all(const burnish_api *model, burnish_context *context, int repeat) {
  double best = INFINITY, first = 0;
  burnish_tensor t;
  for (int i = 0; i < repeat; i++) {
    double start = now_ms();
    if (model->run(context)) {
      fprintf(stderr, "%s\n", model->last_error(context)->message);
      return 1;
    }
    double took = now_ms() - start;
    if (!i) first = took;
    if (took < best) best = took;
  }
  for (int32_t i = 0; i < model->output_count(model); i++) {
    model->output(model, i, &t);
    print_summary(&t, model->output_data(context, i));
  }
  printf("first run %.3f ms, best of %d runs %.3f ms, %d threads\n", first, repeat, best,
         (int)model->threads(context));
  return 0;
}

int main(int argc, char **argv) {
  burnish_error error;
  burnish_file file;
  burnish_context *context;
  burnish_options options = BURNISH_OPTIONS;
  int repeat = 10, status = 0;
  if (argc < 2) {
    fprintf(stderr, "usage: %s MODULE.so [--threads N] [--repeat N] [INPUT=FILE ...]\n", argv[0]);
    return 2;
  }
  for (int i = 2; i + 1 < argc; i++) {
    if (!strcmp(argv[i], "--threads")) options.threads = atoi(argv[i + 1]);
    if (!strcmp(argv[i], "--repeat") && atoi(argv[i + 1]) > 0) repeat = atoi(argv[i + 1]);
  }
  double start = now_ms();
  if (burnish_open(argv[1], NULL, &file, &error)) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  double opened = now_ms();
  const burnish_api *model = file.api;
  if (model->create(model, &options, &context, &error)) {
    fprintf(stderr, "%s\n", error.message);
    burnish_close(&file);
    return 1;
  }
  printf("%s for %s: opened in %.3f ms, context in %.3f ms\n", model->name(model), model->target(model),
         opened - start, now_ms() - opened);
  for (int i = 2; i < argc && !status; i++) {
    if (!strncmp(argv[i], "--", 2))
      i++;
    else
      status = read_input(model, context, argv[i]);
  }
  if (!status) status = run_all(model, context, repeat);
  model->destroy(context);
  burnish_close(&file);
  return status;
}
