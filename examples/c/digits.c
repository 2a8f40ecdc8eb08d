/* Reads handwritten digits: digits MODULE.so IMAGES LABELS
 *
 * IMAGES holds raw float32 images one after another, each as large as one image of the model's first input,
 * whose first axis is the batch; LABELS holds one byte per image. Prints the accuracy. */
#include <burnish.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The position of the largest of `count` scores. */
static int64_t largest(const float *scores, int64_t count) {
  int64_t best = 0;
  for (int64_t i = 1; i < count; i++)
    if (scores[i] > scores[best]) best = i;
  return best;
}

static int classify(const burnish_api *model, burnish_context *context, FILE *images, FILE *labels) {
  burnish_tensor x, y;
  long long right = 0, total = 0;
  if (model->input(model, 0, &x) || model->output(model, 0, &y) || x.dtype != BURNISH_F32 ||
      y.dtype != BURNISH_F32 || x.rank < 1 || y.rank < 1 || x.shape[0] < 1 || x.shape[0] != y.shape[0]) {
    fprintf(stderr, "expected a model with a batch of float images and of float scores\n");
    return 1;
  }
  int64_t batch = x.shape[0], classes = y.nbytes / 4 / batch;
  size_t image_bytes = (size_t)(x.nbytes / batch), got;
  unsigned char *wanted = malloc((size_t)batch);
  char *input = model->input_data(context, 0);
  const float *scores = model->output_data(context, 0);
  while (wanted && input && scores && (got = fread(input, image_bytes, (size_t)batch, images)) > 0) {
    memset(input + got * image_bytes, 0, ((size_t)batch - got) * image_bytes);
    if (fread(wanted, 1, got, labels) != got) {
      fprintf(stderr, "there are fewer labels than images\n");
      total = 0;
      break;
    }
    if (model->run(context)) {
      fprintf(stderr, "%s\n", model->last_error(context)->message);
      total = 0;
      break;
    }
    for (size_t i = 0; i < got; i++) right += largest(scores + (int64_t)i * classes, classes) == wanted[i];
    total += (long long)got;
  }
  free(wanted);
  if (!total || !feof(images)) return 1;
  printf("%lld of %lld right, accuracy %.4f\n", right, total, (double)right / (double)total);
  return 0;
}

int main(int argc, char **argv) {
  burnish_error error;
  burnish_file file;
  burnish_context *context;
  if (argc != 4) {
    fprintf(stderr, "usage: %s MODULE.so IMAGES LABELS\n", argv[0]);
    return 2;
  }
  FILE *images = fopen(argv[2], "rb"), *labels = fopen(argv[3], "rb");
  int status = 1;
  if (!images || !labels) {
    fprintf(stderr, "cannot open %s\n", images ? argv[3] : argv[2]);
  } else if (burnish_open(argv[1], NULL, &file, &error)) {
    fprintf(stderr, "%s\n", error.message);
  } else {
    if (file.api->create(file.api, NULL, &context, &error)) {
      fprintf(stderr, "%s\n", error.message);
    } else {
      status = classify(file.api, context, images, labels);
      file.api->destroy(context);
    }
    burnish_close(&file);
  }
  if (images) fclose(images);
  if (labels) fclose(labels);
  return status;
}
