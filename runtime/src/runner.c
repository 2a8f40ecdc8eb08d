/* Runs the module that is linked with it: runner INPUTS OUTPUTS THREADS RUNS
 *
 * INPUTS holds all inputs one after another, as raw bytes; OUTPUTS gets all outputs in the same way. A
 * failure is its code and message on standard error. */
#include <stdio.h>
#include <stdlib.h>

#include "burnish.h"

extern const burnish_api burnish_module;
static const burnish_api *const model = &burnish_module;

static int fail(int32_t code, const char *message) {
  fprintf(stderr, "%d %s\n", (int)code, message);
  return 1;
}

static int read_inputs(burnish_context *context, FILE *file) {
  burnish_tensor t;
  for (int32_t i = 0; i < model->input_count(model); i++) {
    model->input(model, i, &t);
    size_t bytes = (size_t)t.nbytes;
    void *data = bytes ? model->input_data(context, i) : NULL;
    if (bytes && (!data || fread(data, 1, bytes, file) != bytes)) return fail(BURNISH_BAD_ARGUMENT, t.name);
  }
  return 0;
}

static int write_outputs(burnish_context *context, FILE *file) {
  burnish_tensor t;
  for (int32_t i = 0; i < model->output_count(model); i++) {
    model->output(model, i, &t);
    size_t bytes = (size_t)t.nbytes;
    const void *data = bytes ? model->output_data(context, i) : NULL;
    if (bytes && (!data || fwrite(data, 1, bytes, file) != bytes)) return fail(BURNISH_BAD_FILE, t.name);
  }
  return 0;
}

static int run(burnish_context *context, char **argv) {
  FILE *file = fopen(argv[1], "rb");
  if (!file) return fail(BURNISH_BAD_FILE, argv[1]);
  int status = read_inputs(context, file);
  fclose(file);
  for (int n = 0; !status && n < atoi(argv[4]); n++) {
    int32_t code = model->run(context);
    if (code) status = fail(code, model->last_error(context)->message);
  }
  if (status) return status;
  file = fopen(argv[2], "wb");
  if (!file) return fail(BURNISH_BAD_FILE, argv[2]);
  status = write_outputs(context, file);
  return fclose(file) ? fail(BURNISH_BAD_FILE, argv[2]) : status;
}

int main(int argc, char **argv) {
  burnish_context *context;
  burnish_error error;
  burnish_options options = BURNISH_OPTIONS;
  if (argc != 5) return fail(BURNISH_BAD_ARGUMENT, "usage: runner INPUTS OUTPUTS THREADS RUNS");
  options.threads = atoi(argv[3]);
  int32_t code = model->create(model, &options, &context, &error);
  if (code) return fail(code, error.message);
  int status = run(context, argv);
  model->destroy(context);
  return status;
}
