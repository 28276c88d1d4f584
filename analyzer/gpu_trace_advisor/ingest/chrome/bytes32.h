/* Which of 32 bytes are wanted: one bit each, the first byte lowest. Reads exactly 32 bytes. */
#ifndef BYTES32_H
#define BYTES32_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <emmintrin.h>
typedef __m128i block16;
#define LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define IS(block, byte) _mm_cmpeq_epi8(block, _mm_set1_epi8(byte))
#define OR(a, b) _mm_or_si128(a, b)
#define BITS(block) ((uint32_t)_mm_movemask_epi8(block))
#elif defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
typedef uint8x16_t block16;
#define LOAD(p) vld1q_u8(p)
#define IS(block, byte) vceqq_u8(block, vdupq_n_u8(byte))
#define OR(a, b) vorrq_u8(a, b)
static inline uint32_t BITS(uint8x16_t block) {
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t set = vandq_u8(block, vld1q_u8(bit));
    return (uint32_t)vaddv_u8(vget_low_u8(set)) | (uint32_t)vaddv_u8(vget_high_u8(set)) << 8;
}
#else
typedef struct { uint8_t byte[16]; } block16;
static inline block16 LOAD(const uint8_t *p) { block16 block; memcpy(block.byte, p, 16); return block; }
static inline block16 IS(block16 block, uint8_t byte) {
    for (int i = 0; i < 16; i++) block.byte[i] = block.byte[i] == byte;
    return block;
}
static inline block16 OR(block16 a, block16 b) {
    for (int i = 0; i < 16; i++) a.byte[i] |= b.byte[i];
    return a;
}
static inline uint32_t BITS(block16 block) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++) bits |= (uint32_t)block.byte[i] << i;
    return bits;
}
#endif

/* Quotes and backslashes. */
static inline uint32_t quotes32(const uint8_t *p) {
    block16 low = LOAD(p), high = LOAD(p + 16);
    return BITS(OR(IS(low, '"'), IS(low, '\\'))) | BITS(OR(IS(high, '"'), IS(high, '\\'))) << 16;
}

/* The white space of JSON. */
static inline uint32_t spaces32(const uint8_t *p) {
    block16 low = LOAD(p), high = LOAD(p + 16);
    return BITS(OR(OR(IS(low, ' '), IS(low, '\n')), OR(IS(low, '\r'), IS(low, '\t')))) |
           BITS(OR(OR(IS(high, ' '), IS(high, '\n')), OR(IS(high, '\r'), IS(high, '\t')))) << 16;
}

/* The number of the lowest bit that is set; bits is not 0. */
static inline int lowest_bit(uint32_t bits) {
#if defined(_MSC_VER)
    unsigned long at;
    _BitScanForward(&at, bits);
    return (int)at;
#else
    return __builtin_ctz(bits);
#endif
}

/* Eight bytes as one number, the first byte lowest. */
static inline uint64_t word8(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

#endif
