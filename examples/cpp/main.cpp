// Runs a module file from C++17 on two contexts at once: main MODULE.so
#include <burnish.h>

#include <cstdio>
#include <future>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

// A context that destroys itself; throws what the runtime says.
class Context {
 public:
  explicit Context(const burnish_api *model) : model_(model) {
    burnish_error error;
    burnish_context *context = nullptr;
    if (model->create(model, nullptr, &context, &error)) throw std::runtime_error(error.message);
    context_ = std::unique_ptr<burnish_context, void (*)(burnish_context *)>(context, model->destroy);
  }

  std::vector<char> run(int repeat) {
    for (int i = 0; i < repeat; i++)
      if (model_->run(context_.get())) throw std::runtime_error(model_->last_error(context_.get())->message);
    burnish_tensor tensor;
    if (model_->output(model_, 0, &tensor)) return {};
    const char *data = static_cast<const char *>(model_->output_data(context_.get(), 0));
    return {data, data + tensor.nbytes};
  }

 private:
  const burnish_api *model_;
  std::unique_ptr<burnish_context, void (*)(burnish_context *)> context_{nullptr, nullptr};
};

}  // namespace

int main(int argc, char **argv) {
  burnish_error error;
  burnish_file file;
  if (argc != 2 || burnish_open(argv[1], nullptr, &file, &error)) {
    std::fprintf(stderr, "%s\n", argc != 2 ? "usage: main MODULE.so" : error.message);
    return 1;
  }
  int status = 1;
  try {
    Context first(file.api), second(file.api);
    auto other = std::async(std::launch::async, [&] { return second.run(20); });
    auto output = first.run(20);
    status = output == other.get() ? 0 : 1;
    std::printf("two contexts %s\n", status ? "differ" : "agree");
  } catch (const std::exception &problem) {
    std::fprintf(stderr, "%s\n", problem.what());
  }
  burnish_close(&file);
  return status;
}
