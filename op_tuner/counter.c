/* A plugin of qemu 7 (its interface, version 1; Debian packages no header): what an AArch64 program executes, and
 * what it misses in two levels of caches, as names and numbers in the log.
 *
 * cc -shared -fPIC -O2 -o counter.so counter.c
 * qemu-aarch64 -d plugin -D LOG -plugin ./counter.so[,l1=BYTES,l2=BYTES][,blocks=SHARE] PROGRAM
 *
 * Of a block whose instructions are at least one of SHARE instructions that are executed, the name is
 * block:ADDRESS:ARITHMETIC:CODE, address and code in hexadecimal, and the number how often it was executed. */
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void memory_callback(unsigned cpu, uint32_t info, uint64_t address, void *data);
enum { ADD_U64 = 0, NO_REGISTERS = 0, READS_AND_WRITES = 3 };

extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int op, void *, uint64_t);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, memory_callback *, int, int, void *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
extern void qemu_plugin_outs(const char *);

int qemu_plugin_version = 1;
int qemu_plugin_install(plugin_id, const void *, int, char **);

enum { ALL, FMLA, ARITHMETIC, LOAD, STORE, L1_MISS, L1_STREAM, L2_MISS, L2_STREAM, KINDS };
static const char *const names[KINDS] = {"instructions",  "fmla",      "arithmetic", "vector_loads",
                                         "vector_stores", "l1_misses", "l1_streams", "l2_misses",
                                         "l2_streams"};
static uint64_t counts[KINDS];

typedef struct block {
  struct block *next;
  uint64_t executed, address;
  size_t length, arithmetic; /* instructions */
  uint8_t code[];
} block;
static block *blocks;
static uint64_t share; /* 0: blocks are not counted */

/* Lines of 64 bytes; the least recently used one of a set goes. A miss next to a line that is there belongs to a
 * stream, which hardware prefetches. */
typedef struct cache {
  uint64_t *lines; /* by set, the latest first; line numbers plus one */
  size_t sets, ways;
} cache;
static cache l1 = {NULL, 0, 4}, l2 = {NULL, 0, 16};

static void make(cache *c, size_t bytes) {
  c->sets = bytes / (64 * c->ways);
  c->lines = calloc(c->sets * c->ways, sizeof *c->lines);
  if (!c->sets || !c->lines) abort();
}

static int holds(const cache *c, uint64_t line) {
  const uint64_t *set = c->lines + line % c->sets * c->ways;
  for (size_t w = 0; w < c->ways; w++)
    if (set[w] == line + 1) return 1;
  return 0;
}

/* Whether the line was there; from now on it is. */
static int touch(cache *c, uint64_t line) {
  uint64_t *set = c->lines + line % c->sets * c->ways;
  size_t w = 0;
  while (w < c->ways - 1 && set[w] != line + 1) w++;
  int hit = set[w] == line + 1;
  memmove(set + 1, set, w * sizeof *set);
  set[0] = line + 1;
  return hit;
}

static void accessed(unsigned cpu, uint32_t info, uint64_t address, void *data) {
  static uint64_t latest;
  uint64_t line = address >> 6;
  (void)cpu;
  (void)info;
  (void)data;
  if (line == latest || touch(&l1, latest = line)) return;
  int stream = holds(&l1, line - 1) || holds(&l1, line + 1);
  counts[stream ? L1_STREAM : L1_MISS]++;
  if (!touch(&l2, line)) counts[stream ? L2_STREAM : L2_MISS]++;
}

/* Arm ARM, C4.1: encodings of A64. */
static int kind(uint32_t code) {
  if ((code & 0xBFA0FC00) == 0x0E20CC00) return FMLA;       /* of vectors */
  if ((code & 0xBF80F400) == 0x0F801000) return FMLA;       /* by a lane */
  if ((code & 0x0E000000) == 0x0E000000) return ARITHMETIC; /* other SIMD and floating point */
  if ((code & 0x0E000000) == 0x0C000000) {                  /* loads and stores of vector registers */
    int literal = (code & 0x3B000000) == 0x18000000;
    return literal || code >> 22 & 1 ? LOAD : STORE;
  }
  return ALL;
}

static block *new_block(const struct qemu_plugin_tb *tb) {
  size_t n = qemu_plugin_tb_n_insns(tb);
  block *b = calloc(1, sizeof *b + 4 * n);
  if (!b) abort();
  b->length = n;
  b->address = qemu_plugin_tb_vaddr(tb);
  b->next = blocks;
  return blocks = b;
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb) {
  uint64_t found[KINDS] = {0};
  size_t n = qemu_plugin_tb_n_insns(tb);
  block *b = share ? new_block(tb) : NULL;
  (void)id;
  for (size_t i = 0; i < n; i++) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    uint32_t code;
    memcpy(&code, qemu_plugin_insn_data(insn), sizeof code);
    int k = kind(code);
    if (b) memcpy(b->code + 4 * i, &code, 4);
    if (k != ALL) found[k]++;
    if (l1.lines && (code & 0x0A000000) == 0x08000000)
      qemu_plugin_register_vcpu_mem_cb(insn, accessed, NO_REGISTERS, READS_AND_WRITES, NULL);
  }
  found[ALL] = n;
  if (b) {
    b->arithmetic = found[FMLA] + found[ARITHMETIC];
    qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &b->executed, 1);
  }
  for (int k = 0; k < KINDS; k++)
    if (found[k]) qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &counts[k], found[k]);
}

static void tell(const block *b) {
  char *text = malloc(8 * b->length + 80);
  if (!text) abort();
  int used = sprintf(text, "block:%" PRIx64 ":%zu:", b->address, b->arithmetic);
  for (size_t i = 0; i < 4 * b->length; i++) used += sprintf(text + used, "%02x", b->code[i]);
  sprintf(text + used, " %" PRIu64 "\n", b->executed);
  qemu_plugin_outs(text);
  free(text);
}

static void ended(plugin_id id, void *unused) {
  char text[512] = "";
  (void)id;
  (void)unused;
  for (int k = 0; k < KINDS; k++) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s %" PRIu64 "%s", names[k], counts[k],
             k + 1 < KINDS ? " " : "\n");
  }
  qemu_plugin_outs(text);
  for (const block *b = blocks; b; b = b->next)
    if (b->executed && b->executed * b->length >= counts[ALL] / share) tell(b);
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info;
  for (int i = 0; i < argc; i++) {
    if (!strncmp(argv[i], "l1=", 3)) make(&l1, strtoull(argv[i] + 3, NULL, 10));
    if (!strncmp(argv[i], "l2=", 3)) make(&l2, strtoull(argv[i] + 3, NULL, 10));
    if (!strncmp(argv[i], "blocks=", 7)) share = strtoull(argv[i] + 7, NULL, 10);
  }
  if (!l1.lines != !l2.lines) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
