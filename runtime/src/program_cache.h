/* Programs of GPUs as their drivers built them, on disk. An entry that is damaged, or of another program,
 * device or driver, is none. */
#ifndef BURNISH_PROGRAM_CACHE_H
#define BURNISH_PROGRAM_CACHE_H

#include <stddef.h>

/* What a binary depends on besides the source. */
typedef struct program_key {
  unsigned char digest[32];
} program_key;

/* `parts` are strings: the platform, the device, the driver's version, the compiler's options. */
program_key burnish_program_key(const char *source, size_t bytes, const char *const *parts, size_t count);

/* The binary, for free(); NULL if there is none. */
unsigned char *burnish_cached_program(const program_key *key, size_t *bytes);

/* Keeps a binary, or does nothing where that cannot be: whole or not at all. */
void burnish_keep_program(const program_key *key, const unsigned char *data, size_t bytes);

#endif
