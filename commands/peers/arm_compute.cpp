/* A convolution by Arm Compute Library (NEConvolutionLayer, which picks the method), on one thread:
 *
 *   arm_compute LAYOUT INPUTS OUTPUTS METHOD N C H W K R S OH OW STRIDE_H STRIDE_W TOP LEFT BOTTOM RIGHT
 *               DILATION_H DILATION_W RUNS
 *
 * LAYOUT is nchw or nhwc. INPUTS holds image, weights (output channels outermost, then as LAYOUT) and bias, OUTPUTS
 * gets the result, all f32; METHOD gets the method's name. */
#include <arm_compute/runtime/NEON/NEFunctions.h>
#include <arm_compute/runtime/NEON/NEScheduler.h>
#include <arm_compute/runtime/Tensor.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace arm_compute;

static const char *const methods[] = {"gemm", "direct", "winograd", "fft"}; /* ConvolutionMethod */

static TensorInfo described(bool nhwc, size_t n, size_t c, size_t h, size_t w) {
  TensorShape shape = nhwc ? TensorShape(c, w, h, n) : TensorShape(w, h, c, n);
  TensorInfo info(shape, 1, DataType::F32);
  info.set_data_layout(nhwc ? DataLayout::NHWC : DataLayout::NCHW);
  return info;
}

/* Between a file and a tensor, whose rows may be padded. */
template <typename Transfer> static bool each_row(Tensor &tensor, Transfer transfer) {
  const TensorShape &shape = tensor.info()->tensor_shape();
  for (size_t l = 0; l < shape[3]; l++)
    for (size_t k = 0; k < shape[2]; k++)
      for (size_t j = 0; j < shape[1]; j++)
        if (transfer(tensor.ptr_to_element(Coordinates(0, j, k, l)), shape[0]) != shape[0]) return false;
  return true;
}

int main(int argc, char **argv) {
  size_t v[18];
  if (argc != 5 + 18) return fprintf(stderr, "expected 22 arguments\n"), 2;
  for (int i = 0; i < 18; i++) v[i] = strtoull(argv[5 + i], nullptr, 10);
  bool nhwc = !strcmp(argv[1], "nhwc");
  NEScheduler::get().set_num_threads(1);

  Tensor x, w, b, y;
  x.allocator()->init(described(nhwc, v[0], v[1], v[2], v[3]));
  w.allocator()->init(described(nhwc, v[4], v[1], v[5], v[6]));
  b.allocator()->init(TensorInfo(TensorShape(v[4]), 1, DataType::F32));
  y.allocator()->init(described(nhwc, v[0], v[4], v[7], v[8]));
  PadStrideInfo window(v[10], v[9], v[12], v[14], v[11], v[13], DimensionRoundingType::FLOOR);
  Size2D dilation(v[16], v[15]);
  Status status = NEConvolutionLayer::validate(x.info(), w.info(), b.info(), y.info(), window, WeightsInfo(), dilation);
  if (!bool(status)) return fprintf(stderr, "%s\n", status.error_description().c_str()), 1;
  ConvolutionMethod method =
      NEConvolutionLayer::get_convolution_method(x.info(), w.info(), y.info(), window, WeightsInfo(), dilation);
  NEConvolutionLayer convolution;
  convolution.configure(&x, &w, &b, &y, window, WeightsInfo(), dilation);
  for (Tensor *tensor : {&x, &w, &b, &y}) tensor->allocator()->allocate();

  FILE *in = fopen(argv[2], "rb"), *out = fopen(argv[3], "wb"), *name = fopen(argv[4], "w");
  auto read = [&](void *data, size_t n) { return fread(data, sizeof(float), n, in); };
  auto write = [&](void *data, size_t n) { return fwrite(data, sizeof(float), n, out); };
  if (!in || !out || !name) return perror("files"), 1;
  for (Tensor *tensor : {&x, &w, &b})
    if (!each_row(*tensor, read)) return fprintf(stderr, "%s is too short\n", argv[2]), 1;
  for (size_t run = 0; run < v[17]; run++) convolution.run();
  if (!each_row(y, write) || fclose(out)) return perror(argv[3]), 1;
  fputs(methods[static_cast<int>(method)], name);
  return 0;
}
