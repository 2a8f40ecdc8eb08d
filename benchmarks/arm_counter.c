/* A plugin of qemu 7 (its interface, version 1; Debian packages no header): how many instructions of which kind
 * a program executes, as one line on standard error.
 *
 * cc -shared -fPIC -O2 -o counter.so arm_counter.c; qemu-aarch64 -d plugin -D LOG -plugin ./counter.so PROGRAM */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { ADD_U64 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int op, void *, uint64_t);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
extern void qemu_plugin_outs(const char *);

int qemu_plugin_version = 1;
int qemu_plugin_install(plugin_id, const void *, int, char **);

enum { ALL, FMLA, LOAD, STORE, KINDS };
static const char *const names[KINDS] = {"instructions", "fmla", "vector_loads", "vector_stores"};
static uint64_t counts[KINDS];

/* Arm ARM, C4.1: encodings of A64. */
static int kind(uint32_t code) {
  if ((code & 0xBFA0FC00) == 0x0E20CC00) return FMLA; /* of vectors */
  if ((code & 0xBF80F400) == 0x0F801000) return FMLA; /* by a lane */
  if ((code & 0x0E000000) == 0x0C000000) {            /* loads and stores of vector registers */
    int structure = (code & 0x3E000000) == 0x0C000000, pair = (code & 0x3A000000) == 0x28000000;
    if (structure || pair) return code >> 22 & 1 ? LOAD : STORE;
    return code >> 22 & 1 || (code & 0x3B000000) == 0x18000000 ? LOAD : STORE;
  }
  return ALL;
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb) {
  uint64_t found[KINDS] = {0};
  size_t n = qemu_plugin_tb_n_insns(tb);
  (void)id;
  for (size_t i = 0; i < n; i++) {
    uint32_t code;
    memcpy(&code, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(tb, i)), sizeof code);
    int k = kind(code);
    if (k != ALL) found[k]++;
  }
  found[ALL] = n;
  for (int k = 0; k < KINDS; k++)
    if (found[k]) qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &counts[k], found[k]);
}

static void ended(plugin_id id, void *unused) {
  char text[256] = "";
  (void)id;
  (void)unused;
  for (int k = 0; k < KINDS; k++) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s %" PRIu64 "%s", names[k], counts[k], k + 1 < KINDS ? " " : "\n");
  }
  qemu_plugin_outs(text);
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info;
  (void)argc;
  (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
