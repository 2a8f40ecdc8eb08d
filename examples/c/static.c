/* Links a model into the application: burnish compile NAME.onnx -o NAME.a, then make static MODEL=NAME.
 * The Makefile passes MODEL_HEADER ("NAME.h") and MODEL (burnish_NAME, the table that NAME.a defines). */
#include MODEL_HEADER
#include <stdio.h>

int main(void) {
  const burnish_api *model = &MODEL;
  burnish_context *context;
  burnish_error error;
  if (model->create(model, NULL, &context, &error)) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  int32_t status = model->run(context); /* all inputs are zero here; see input_data and bind_input */
  if (status)
    fprintf(stderr, "%s\n", model->last_error(context)->message);
  else
    printf("%s: ran %d kernels\n", model->name(model), (int)model->step_count(model));
  model->destroy(context);
  return status != 0;
}
