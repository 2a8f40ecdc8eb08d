/* The fast checksum of module files. Shared by the opener and the library of the Python package. */
#ifndef BURNISH_CHECKSUM_H
#define BURNISH_CHECKSUM_H

#include <stdint.h>
#include <string.h>

/* Eight lanes of xor, multiply, rotate over 64-byte blocks, the tail padded by zeros; each step is a
 * bijection of its lane, so that no change of a single word can go unseen. Finds accidents, not attackers. */
static uint64_t burnish_checksum(const void *data, uint64_t bytes) {
  const uint64_t prime = UINT64_C(0x9E3779B97F4A7C15);
  const unsigned char *at = data;
  unsigned char tail[64] = {0};
  uint64_t lanes[8], words[8], sum = bytes * prime;
  for (int i = 0; i < 8; i++) lanes[i] = prime * (uint64_t)(2 * i + 1);
  for (uint64_t left = bytes; left; left -= left < 64 ? left : 64, at += 64) {
    if (left < 64) memcpy(tail, at, (size_t)left);
    memcpy(words, left < 64 ? tail : at, 64);
    for (int i = 0; i < 8; i++) {
      uint64_t x = (lanes[i] ^ words[i]) * prime;
      lanes[i] = x << 29 | x >> 35;
    }
  }
  for (int i = 0; i < 8; i++) {
    sum = (sum ^ lanes[i]) * prime;
    sum ^= sum >> 32;
  }
  return sum;
}

#endif
