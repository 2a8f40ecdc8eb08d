/* Opens module files. Stands alone: an application compiles this file (with -ldl where libc needs it). */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "burnish.h"
#include "checksum.h"
#include "cpu.h"
#include "digest.h"

#define MODULE_VERSION 1u

/* The last bytes of a module file, after the shared object itself; docs/module-format.md. */
typedef struct trailer {
  unsigned char sha256[32]; /* of all bytes before the trailer */
  char features[392];       /* names separated by spaces, padded by zeros */
  char target[48];
  uint32_t version, trailer_bytes;
  uint64_t file_bytes, reserved;
  uint64_t checksum; /* of all bytes before this field */
  char magic[8];
} trailer;

_Static_assert(sizeof(trailer) == 512, "module format");

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static int32_t fail(burnish_error *error, int32_t code, const char *format, ...) {
  if (error) {
    va_list arguments;
    error->code = code;
    error->step = -1;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    for (char *at = error->message; (at = strpbrk(at, "\r\n"));) *at = ' '; /* paths may have line breaks */
  }
  return code;
}

static int32_t check_cpu(const char *path, trailer *t, burnish_error *error) {
  char *state = NULL;
  t->features[sizeof t->features - 1] = t->target[sizeof t->target - 1] = 0;
  for (char *f = strtok_r(t->features, " ", &state); f; f = strtok_r(NULL, " ", &state))
    if (!cpu_has(f))
      return fail(error, BURNISH_BAD_CPU,
                  "%.200s: compiled for %s, but this CPU lacks %s; compile the model for this machine", path,
                  t->target, f);
  return BURNISH_OK;
}

static int32_t check_bytes(const char *path, const unsigned char *data, uint64_t bytes, int digest,
                           uint64_t *checksum, burnish_error *error) {
  trailer t;
  unsigned char sha256[32];
  memcpy(&t, data + bytes - sizeof t, sizeof t);
  if (memcmp(t.magic, "BURNISHM", 8) || t.trailer_bytes != sizeof t)
    return fail(error, BURNISH_NOT_A_MODULE, "%.200s: not a Burnish module, cut short, or stripped", path);
  if (t.version != MODULE_VERSION)
    return fail(error, BURNISH_BAD_VERSION,
                "%.200s: has module format %u, this opener reads %u; compile the model again", path,
                t.version, MODULE_VERSION);
  if (t.file_bytes != bytes)
    return fail(error, BURNISH_NOT_A_MODULE, "%.200s: has %llu bytes, expected %llu; copy it again", path,
                (unsigned long long)bytes, (unsigned long long)t.file_bytes);
  if (t.checksum != burnish_checksum(data, bytes - 16))
    return fail(error, BURNISH_BAD_CHECKSUM,
                "%.200s: its checksum is wrong, so it was damaged; copy it again", path);
  *checksum = t.checksum;
  if (digest) {
    burnish_sha256(data, bytes - sizeof t, sha256);
    if (memcmp(sha256, t.sha256, sizeof sha256))
      return fail(error, BURNISH_BAD_CHECKSUM, "%.200s: its SHA-256 digest is wrong, so it was changed",
                  path);
  }
  return check_cpu(path, &t, error);
}

static int32_t check_file(const char *path, int digest, uint64_t *checksum, burnish_error *error) {
  struct stat status;
  int32_t result;
  int flags = MAP_PRIVATE;
#if defined(MAP_POPULATE)
  flags |= MAP_POPULATE;
#endif
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe may have no writer */
  if (file < 0 || fstat(file, &status)) {
    result = fail(error, BURNISH_BAD_FILE, "%.200s: cannot open: %s", path, strerror(errno));
  } else if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size <= sizeof(trailer)) {
    result = fail(error, BURNISH_NOT_A_MODULE, "%.200s: not a Burnish module", path);
  } else {
    size_t bytes = (size_t)status.st_size;
    void *data = mmap(NULL, bytes, PROT_READ, flags, file, 0);
    if (data == MAP_FAILED) {
      result = fail(error, BURNISH_BAD_FILE, "%.200s: cannot map: %s", path, strerror(errno));
    } else {
      result = check_bytes(path, data, bytes, digest, checksum, error);
      munmap(data, bytes);
    }
  }
  if (file >= 0) close(file);
  return result;
}

/* The same file by another name: dir/m.so → dir/.//./…/m.so, by the bits of `checksum`. The loader takes a
 * name that it has loaded for the same module, even if the file was replaced since; and it would search its
 * own folders for a name without a slash. */
static const char *own_name(const char *path, uint64_t checksum, char *name, size_t bytes) {
  const char *slash = strrchr(path, '/');
  size_t folder = slash ? (size_t)(slash - path) + 1 : 0, used = folder;
  if (folder + strlen(path + folder) + 64 * 2 + 3 > bytes) return path;
  memcpy(name, path, folder);
  if (!slash) {
    name[used++] = '.';
    name[used++] = '/';
  }
  for (int bit = 0; bit < 64; bit++) {
    if (checksum >> bit & 1) name[used++] = '.';
    name[used++] = '/';
  }
  strcpy(name + used, path + folder);
  return name;
}

/* Whether the loader takes a part of the path for a variable, and so another file than was checked. */
static int is_expanded(const char *path) {
  static const char *const names[] = {"ORIGIN", "LIB", "PLATFORM"};
  for (const char *at = path; (at = strchr(at, '$')); at++) {
    int braced = at[1] == '{';
    for (int i = 0; i < 3; i++) {
      size_t length = strlen(names[i]);
      const char *name = at + 1 + braced;
      if (strncmp(name, names[i], length)) continue;
      if (braced ? name[length] == '}' : !isalnum((unsigned char)name[length]) && name[length] != '_')
        return 1;
    }
  }
  return 0;
}

static int32_t load(const char *path, uint64_t checksum, burnish_file *file, burnish_error *error) {
  char buffer[4096];
  const char *name = own_name(path, checksum, buffer, sizeof buffer);
  if (is_expanded(path))
    return fail(error, BURNISH_BAD_FILE,
                "%.200s: cannot load: the system's loader would put something in the place of what follows "
                "the $; give the file another name",
                path);
  file->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!file->handle) {
    const char *reason = dlerror();
    size_t length = strlen(name);
    if (reason && !strncmp(reason, name, length) && !strncmp(reason + length, ": ", 2)) reason += length + 2;
    return fail(error, BURNISH_BAD_LOAD, "%.200s: cannot load: %.200s", path,
                reason ? reason : "unknown reason");
  }
  file->api = dlsym(file->handle, "burnish_module");
  if (!file->api || file->api->magic != BURNISH_API_MAGIC)
    return fail(error, BURNISH_NOT_A_MODULE, "%.200s: exports no burnish_module", path);
  if (file->api->version != BURNISH_API_VERSION || file->api->size < sizeof(burnish_api))
    return fail(error, BURNISH_BAD_VERSION,
                "%.200s: was made by another version of Burnish: its function table %u has %llu bytes, "
                "expected %u with %zu; compile the model again",
                path, file->api->version, (unsigned long long)file->api->size, BURNISH_API_VERSION,
                sizeof(burnish_api));
  return file->api->check(file->api, error);
}

static int32_t prepare(burnish_file *file, int32_t threads, burnish_error *error) {
  burnish_options options = BURNISH_OPTIONS;
  options.threads = threads;
  return file->api->prepare(file->api, &options, error);
}

static void unload(burnish_file *file) {
  if (file->handle) dlclose(file->handle);
  file->api = NULL;
  file->handle = NULL;
}

int32_t burnish_open(const char *path, const burnish_open_options *options, burnish_file *file,
                     burnish_error *error) {
  int32_t status;
  uint64_t checksum = 0;
  if (file) file->api = NULL, file->handle = NULL; /* so that closing it is no harm, whatever happens */
  if (!path || !file || (options && options->size < sizeof *options))
    return fail(error, BURNISH_BAD_ARGUMENT, "burnish_open: `path` and `file` must be given, and `size` set");
  status = check_file(path, options && options->verify_digest, &checksum, error);
  if (!status) status = load(path, checksum, file, error);
  if (!status) status = prepare(file, options ? options->threads : 0, error);
  if (status) unload(file);
  return status;
}

void burnish_close(burnish_file *file) {
  if (!file) return;
  if (file->api) file->api->unprepare(file->api);
  unload(file);
}
