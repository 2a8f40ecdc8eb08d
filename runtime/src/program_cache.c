#define _GNU_SOURCE
#include "program_cache.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checksum.h"
#include "digest.h"

#define MOST_BYTES ((size_t)1 << 30)
#define MOST_PATH 4096

typedef struct entry_header {
  char magic[8];
  unsigned char digest[32]; /* the key */
  uint64_t bytes, checksum; /* of what follows */
} entry_header;

static const char magic[8] = "BURNPRG1";

program_key burnish_program_key(const char *source, size_t bytes, const char *const *parts, size_t count) {
  program_key key = {{0}};
  unsigned char text[64];
  burnish_sha256((const unsigned char *)source, bytes, key.digest);
  for (size_t i = 0; i < count; i++) { /* of the digest so far and the next part's */
    memcpy(text, key.digest, 32);
    burnish_sha256((const unsigned char *)parts[i], strlen(parts[i]), text + 32);
    burnish_sha256(text, sizeof text, key.digest);
  }
  return key;
}

/* The folder that Burnish's Python package calls its cache; 0 if there is none. `make` makes it. */
static int folder(char path[MOST_PATH], int make) {
  const char *own = getenv("BURNISH_CACHE_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int length = own && *own       ? snprintf(path, MOST_PATH, "%s/programs", own)
               : cache && *cache ? snprintf(path, MOST_PATH, "%s/burnish/programs", cache)
               : home && *home   ? snprintf(path, MOST_PATH, "%s/.cache/burnish/programs", home)
                                 : 0;
  if (length <= 0 || length >= MOST_PATH - 100) return 0;
  for (char *at = path; make && at; *at = '/') {
    at = strchr(at + 1, '/');
    if (at) *at = 0;
    if (mkdir(path, 0700) && errno != EEXIST) return 0;
    if (!at) break;
  }
  return 1;
}

static int path_of(const program_key *key, char path[MOST_PATH], int make) {
  const char *wanted = getenv("BURNISH_OPENCL_CACHE");
  if ((wanted && !strcmp(wanted, "0")) || !folder(path, make)) return 0;
  size_t at = strlen(path);
  path[at++] = '/';
  for (int i = 0; i < 32; i++) at += (size_t)snprintf(path + at, 3, "%02x", key->digest[i]);
  return 1;
}

static unsigned char *whole_entry(const program_key *key, FILE *file, size_t *bytes) {
  entry_header header;
  if (fread(&header, sizeof header, 1, file) != 1 || memcmp(header.magic, magic, sizeof magic)) return NULL;
  if (memcmp(header.digest, key->digest, sizeof header.digest)) return NULL;
  if (!header.bytes || header.bytes > MOST_BYTES) return NULL;
  unsigned char *data = malloc((size_t)header.bytes + 1);
  if (!data) return NULL;
  *bytes = fread(data, 1, (size_t)header.bytes + 1, file);
  if (*bytes == header.bytes && burnish_checksum(data, *bytes) == header.checksum) return data;
  free(data);
  return NULL;
}

unsigned char *burnish_cached_program(const program_key *key, size_t *bytes) {
  char path[MOST_PATH];
  FILE *file = path_of(key, path, 0) ? fopen(path, "rbe") : NULL;
  if (!file) return NULL;
  unsigned char *data = whole_entry(key, file, bytes);
  fclose(file);
  return data;
}

void burnish_keep_program(const program_key *key, const unsigned char *data, size_t bytes) {
  char path[MOST_PATH], partial[MOST_PATH];
  entry_header header;
  if (!bytes || bytes > MOST_BYTES || !path_of(key, path, 1)) return;
  memcpy(header.magic, magic, sizeof magic);
  memcpy(header.digest, key->digest, sizeof header.digest);
  header.bytes = bytes;
  header.checksum = burnish_checksum(data, bytes);
  size_t name = (size_t)(strrchr(path, '/') + 1 - path);
  snprintf(partial, sizeof partial, "%.*spartial-XXXXXX", (int)name, path);
  int descriptor = mkstemp(partial);
  if (descriptor < 0) return;
  FILE *file = fdopen(descriptor, "wb");
  if (!file) {
    close(descriptor);
    unlink(partial);
    return;
  }
  int whole = fwrite(&header, sizeof header, 1, file) == 1 && fwrite(data, 1, bytes, file) == bytes;
  whole &= !fclose(file);
  if (!whole || rename(partial, path)) unlink(partial);
}
