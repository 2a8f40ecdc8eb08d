// After the kernels and their table `emulator::kernels`: what the fake driver calls.
extern "C" const void *kernel_named(const char *name) {
  for (const emulator::Entry &kernel : emulator::kernels)
    if (!std::strcmp(kernel.name, name)) return &kernel;
  return nullptr;
}

extern "C" unsigned kernel_parameters(const void *kernel, const unsigned **sizes, unsigned *threads) {
  const emulator::Entry &entry = *static_cast<const emulator::Entry *>(kernel);
  *sizes = entry.sizes.data();
  *threads = entry.threads;
  return unsigned(entry.sizes.size());
}

extern "C" int kernel_meets(const void *kernel) {
  return static_cast<const emulator::Entry *>(kernel)->meets;
}

extern "C" int kernel_run(const void *kernel, const unsigned grid[3], const unsigned block[3],
                          void **parameters) {
  return emulator::run(*static_cast<const emulator::Entry *>(kernel), grid, block, parameters);
}
