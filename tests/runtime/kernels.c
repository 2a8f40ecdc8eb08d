/* Hand-written kernels that stand in for generated ones. A task is one row of 16 floats. */
#define _POSIX_C_SOURCE 200809L
#include "burnish.h"

#include <time.h>

#define ROW 16

/* Touches no memory, whatever the plan says. */
int32_t nothing(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  (void)call, (void)begin, (void)end, (void)worker;
  return 0;
}

/* y = x + 1 */
int32_t add_one(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  const float *x = call->buffers[0];
  float *y = call->buffers[1];
  (void)worker;
  for (int64_t i = begin * ROW; i < end * ROW; i++) y[i] = x[i] + 1;
  return 0;
}

/* z = x * y */
int32_t multiply(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  const float *x = call->buffers[0], *y = call->buffers[1];
  float *z = call->buffers[2];
  (void)worker;
  for (int64_t i = begin * ROW; i < end * ROW; i++) z[i] = x[i] * y[i];
  return 0;
}

/* Reverses every row by way of the worker's scratch. */
int32_t reverse(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  const float *x = call->buffers[0];
  float *y = call->buffers[1];
  float *scratch = (float *)(void *)(call->scratch + worker * call->scratch_stride);
  for (int64_t row = begin; row < end; row++) {
    for (int i = 0; i < ROW; i++) scratch[i] = x[row * ROW + i];
    for (int i = 0; i < ROW; i++) y[row * ROW + i] = scratch[ROW - 1 - i];
  }
  return 0;
}

/* Gang: y[0] = the number of tasks, y[1] = workers; ten rounds in which every task reads its neighbour's last
 * value. */
int32_t rotate(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  const int32_t *x = call->buffers[0];
  int32_t *y = call->buffers[1], *work = call->buffers[2];
  const int32_t n = 64;
  for (int64_t i = begin; i < end; i++) work[i] = x[i];
  for (int round = 0; round < 10; round++) {
    const int32_t *from = work + round % 2 * n;
    int32_t *to = work + (round + 1) % 2 * n;
    call->barrier(call, worker);
    for (int64_t i = begin; i < end; i++) to[i] = from[(i + 1) % n] + 1;
  }
  for (int64_t i = begin; i < end; i++) y[i] = work[i];
  return 0;
}

/* y[row] = x[index[row]] for 64 rows; an index outside of 0 … 63 is the error 1. */
int32_t gather(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  const float *x = call->buffers[0];
  const int64_t *index = call->buffers[1];
  float *y = call->buffers[2];
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    if (index[row] < 0 || index[row] >= 64) return BURNISH_INDEX_OUT_OF_RANGE;
    for (int i = 0; i < ROW; i++) y[row * ROW + i] = x[index[row] * ROW + i];
  }
  return 0;
}

/* y[0 … 3] = size of the next kernel's weights, their first byte, scratch alignment, workers. */
int32_t inspect(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  int64_t *y = call->buffers[0];
  y[0] = call->next_weights_size;
  y[1] = call->next_weights ? *(const unsigned char *)call->next_weights : -1;
  y[2] = (int64_t)((uintptr_t)(call->scratch + worker * call->scratch_stride) % 64);
  y[3] = call->workers;
  return begin == 0 && end == 1 ? 0 : 7;
}

/* Counts how often each of its tasks is run: y[task] += 1. */
int32_t tally(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  int64_t *y = call->buffers[0];
  (void)worker;
  for (int64_t i = begin; i < end; i++) y[i]++;
  return 0;
}

/* Error 7 where another run of it is under way; takes a millisecond. */
int32_t by_turns(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  static _Atomic int32_t inside;
  int32_t others = inside++;
  struct timespec wait = {0, 1000000};
  (void)call, (void)begin, (void)end, (void)worker;
  nanosleep(&wait, NULL);
  inside--;
  return others ? 7 : 0;
}

/* Error 7 for less than all of its 64 tasks. */
int32_t whole(const burnish_call *call, int64_t begin, int64_t end, int32_t worker) {
  (void)call, (void)worker;
  return begin == 0 && end == 64 ? 0 : 7;
}
