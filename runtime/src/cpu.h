/* Does this CPU have a feature? Names are LLVM's. Shared by the module and the opener, hence all static. */
#ifndef BURNISH_CPU_H
#define BURNISH_CPU_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { CPU_EAX, CPU_EBX, CPU_ECX, CPU_EDX };

typedef struct cpu_feature {
  const char *name;
  uint32_t leaf, subleaf;
  uint8_t word, bit;
  uint8_t state; /* what the system must save: 0 nothing, 1 ymm, 2 zmm, 3 tiles */
} cpu_feature;

/* Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E. */
static const cpu_feature cpu_features[] = {
    {"cx8", 1, 0, CPU_EDX, 8, 0},
    {"cmov", 1, 0, CPU_EDX, 15, 0},
    {"mmx", 1, 0, CPU_EDX, 23, 0},
    {"fxsr", 1, 0, CPU_EDX, 24, 0},
    {"sse", 1, 0, CPU_EDX, 25, 0},
    {"sse2", 1, 0, CPU_EDX, 26, 0},
    {"sse3", 1, 0, CPU_ECX, 0, 0},
    {"pclmul", 1, 0, CPU_ECX, 1, 0},
    {"ssse3", 1, 0, CPU_ECX, 9, 0},
    {"fma", 1, 0, CPU_ECX, 12, 1},
    {"cx16", 1, 0, CPU_ECX, 13, 0},
    {"sse4.1", 1, 0, CPU_ECX, 19, 0},
    {"sse4.2", 1, 0, CPU_ECX, 20, 0},
    {"crc32", 1, 0, CPU_ECX, 20, 0},
    {"movbe", 1, 0, CPU_ECX, 22, 0},
    {"popcnt", 1, 0, CPU_ECX, 23, 0},
    {"aes", 1, 0, CPU_ECX, 25, 0},
    {"xsave", 1, 0, CPU_ECX, 27, 0},
    {"avx", 1, 0, CPU_ECX, 28, 1},
    {"f16c", 1, 0, CPU_ECX, 29, 1},
    {"bmi", 7, 0, CPU_EBX, 3, 0},
    {"avx2", 7, 0, CPU_EBX, 5, 1},
    {"bmi2", 7, 0, CPU_EBX, 8, 0},
    {"avx512f", 7, 0, CPU_EBX, 16, 2},
    {"avx512dq", 7, 0, CPU_EBX, 17, 2},
    {"avx512ifma", 7, 0, CPU_EBX, 21, 2},
    {"avx512cd", 7, 0, CPU_EBX, 28, 2},
    {"avx512bw", 7, 0, CPU_EBX, 30, 2},
    {"avx512vl", 7, 0, CPU_EBX, 31, 2},
    {"avx512vbmi", 7, 0, CPU_ECX, 1, 2},
    {"avx512vbmi2", 7, 0, CPU_ECX, 6, 2},
    {"gfni", 7, 0, CPU_ECX, 8, 0},
    {"avx512vnni", 7, 0, CPU_ECX, 11, 2},
    {"avx512bitalg", 7, 0, CPU_ECX, 12, 2},
    {"avx512vpopcntdq", 7, 0, CPU_ECX, 14, 2},
    {"amx-bf16", 7, 0, CPU_EDX, 22, 3},
    {"avx512fp16", 7, 0, CPU_EDX, 23, 2},
    {"amx-tile", 7, 0, CPU_EDX, 24, 3},
    {"amx-int8", 7, 0, CPU_EDX, 25, 3},
    {"avxvnni", 7, 1, CPU_EAX, 4, 1},
    {"avx512bf16", 7, 1, CPU_EAX, 5, 2},
    {"sahf", 0x80000001u, 0, CPU_ECX, 0, 0},
    {"lzcnt", 0x80000001u, 0, CPU_ECX, 5, 0},
    {"prfchw", 0x80000001u, 0, CPU_ECX, 8, 0},
    {"64bit", 0x80000001u, 0, CPU_EDX, 29, 0},
};

/* Linux, Documentation/arch/x86/xstate.rst: a process asks once for the room that tiles take. */
static int cpu_may_use_tiles(void) {
#if defined(__linux__)
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
#else
  return 0;
#endif
}

static int cpu_saves_state(int state) {
  static const uint32_t masks[] = {0, 0x6, 0xE6, 0x60000}; /* bits of XCR0 */
  uint32_t words[4] = {0, 0, 0, 0}, low, high;
  if (!state) return 1;
  if (!__get_cpuid(1, &words[0], &words[1], &words[2], &words[3]) || !(words[CPU_ECX] >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  (void)high;
  return (low & masks[state]) == masks[state] && (state < 3 || cpu_may_use_tiles());
}

static int cpu_has(const char *name) {
  for (size_t i = 0; i < sizeof cpu_features / sizeof *cpu_features; i++) {
    const cpu_feature *f = &cpu_features[i];
    uint32_t words[4] = {0, 0, 0, 0};
    if (strcmp(f->name, name)) continue;
    return __get_cpuid_count(f->leaf, f->subleaf, &words[0], &words[1], &words[2], &words[3]) &&
           (words[f->word] >> f->bit & 1) && cpu_saves_state(f->state);
  }
  return 0;
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

/* Linux, Documentation/arch/arm64/elf_hwcaps.rst: {name, word, bit}; word 1 is HWCAP2. */
typedef struct cpu_feature {
  const char *name;
  uint8_t word, bit;
} cpu_feature;

static const cpu_feature cpu_features[] = {
    {"fp-armv8", 0, 0}, {"neon", 0, 1},      {"aes", 0, 3},   {"sha2", 0, 6},     {"crc", 0, 7},
    {"lse", 0, 8},      {"fullfp16", 0, 10}, {"rdm", 0, 12},  {"dotprod", 0, 20}, {"sve", 0, 22},
    {"fp16fml", 0, 23}, {"sve2", 1, 1},      {"i8mm", 1, 13}, {"bf16", 1, 14},
};

static int cpu_has(const char *name) {
  for (size_t i = 0; i < sizeof cpu_features / sizeof *cpu_features; i++)
    if (!strcmp(cpu_features[i].name, name))
      return (int)(getauxval(cpu_features[i].word ? 26 /* AT_HWCAP2 */ : 16 /* AT_HWCAP */) >>
                       cpu_features[i].bit &
                   1);
  return 0;
}

#else
static int cpu_has(const char *name) {
  (void)name;
  return 0;
}
#endif
#endif
