/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * PSNs, and bit sets over them and over EVs. Pure functions; BPF has no
 * instruction that counts trailing zeroes.
 */
#ifndef MRC_BITS_H
#define MRC_BITS_H

#define CFG_WINDOW_MASK (CFG_WINDOW - 1)
#define CFG_WORD_MASK (CFG_WINDOW / 64 - 1)

/* Distance of two 24-bit PSNs as a signed number. */
static __always_inline __s32 psn_diff(__u32 a, __u32 b)
{
	return (__s32)((a - b) << 8) >> 8;
}

/* The PSN of which the wire carries 24 bits, the one nearest to `near`. */
static __always_inline __u32 full_psn(__u32 wire, __u32 near)
{
	return near + psn_diff(wire, near);
}

/*
 * Index of the lowest set bit of a word, 64 if there is none: the population count of the
 * bits below it. Without branches, because the verifier follows each branch in
 * each round of a loop.
 */
static __always_inline __u32 lowest_bit(__u64 v)
{
	v = (v & -v) - 1;
	v = v - ((v >> 1) & 0x5555555555555555ull);
	v = (v & 0x3333333333333333ull) + ((v >> 2) & 0x3333333333333333ull);
	v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return (v * 0x0101010101010101ull) >> 56;
}

/* Index of the highest set bit of a non-zero word. */
static __always_inline __u32 highest_bit(__u64 v)
{
	v |= v >> 1;
	v |= v >> 2;
	v |= v >> 4;
	v |= v >> 8;
	v |= v >> 16;
	v |= v >> 32;
	return lowest_bit(v - (v >> 1));
}

/*
 * 1 if a word is not zero, else 0, without a branch: the compiler would generate
 * one, and the verifier would walk everything behind it twice.
 */
static __always_inline __u64 not_zero(__u64 v)
{
	__u64 negative = -v;

	asm volatile("" : "+r"(negative));
	return (v | negative) >> 63;
}

/* Gather bit 7 of each byte i in bit i: no two products of the multiplication collide. */
static __always_inline __u64 gather_tops(__u64 v)
{
	return ((v >> 7 & 0x0101010101010101ull) * 0x0102040810204080ull) >> 56;
}

/* Set bit i if byte i of `v` is not zero. */
static __always_inline __u64 gather_bytes(__u64 v)
{
	return gather_tops(v | ((v & 0x7f7f7f7f7f7f7f7full) + 0x7f7f7f7f7f7f7f7full));
}

/* `n` where that is from 0 to 64, else the nearer of the two, without a branch. */
static __always_inline __u64 within_word(__s64 n)
{
	__s64 beyond = n >> 63;

	asm volatile("" : "+r"(beyond)); /* or the compiler would see what it is, and branch */
	n &= ~beyond;
	beyond = (64 - n) >> 63;
	asm volatile("" : "+r"(beyond));
	return n + ((64 - n) & beyond);
}

/* The lowest `n` bits, none to 64. */
static __always_inline __u64 lowest_bits(__u64 n)
{
	return (1ull << (n >> 1) << (n - (n >> 1))) - 1;
}

/* Bits of the 64 PSNs from the aligned number `word` that lie in [from, to). */
static __always_inline __u64 range_mask(__u32 word, __u32 from, __u32 to)
{
	__s32 lo = from - word, hi = to - word;

	return lowest_bits(within_word(hi)) & ~lowest_bits(within_word(lo));
}

/* A bitmap whose bit 0 is PSN `base`, seen from the aligned number `word`. */
static __always_inline __u64 shifted(__u64 bitmap, __u32 base, __u32 word)
{
	__s64 d = (__s32)(base - word);
	__u64 up = within_word(d), down = within_word(-d);

	bitmap = bitmap << (up >> 1) << (up - (up >> 1));
	return bitmap >> (down >> 1) >> (down - (down >> 1));
}

/*
 * Numbers that the loader writes into instructions, where EVS_PLACE and others stand for them
 * (mrcd/datapath/bytecode.py): one compilation serves fabrics of any size, and all kernels.
 */
#define IN_TEXT(number) #number
#define MOVE_TEXT(place) "%0 = " IN_TEXT(place)
#define PATCHED(place) ({ \
	u32 number_; \
	asm(MOVE_TEXT(place) : "=r"(number_)); \
	number_; \
})

/*
 * A number below mask + 1, bounded by an AND that the compiler cannot optimize
 * away: the verifier of Linux 6.1 loses the bounds of both operands at an OR, XOR
 * or product of two registers.
 */
#define BOUNDED(number, mask) ({ \
	__u64 bounded = (number); \
	asm volatile("" : "+r"(bounded)); \
	bounded & (mask); })

/*
 * Have a value that was compared just now move into a register of its own. Linux 6.1
 * forgets what a comparison has shown when the value comes back from the stack, where
 * the compiler may have put it before.
 */
#define COMPARED(n) asm volatile("" : "+r"(n))

/*
 * Have the verifier forget what it knows of a number, by means of another that it knows
 * nothing of. Where several ways meet that differ in this number only, it then walks
 * what follows once, and not once for each way.
 */
#define FORGET(n, unknown) ({ \
	__u64 forgotten = (n); \
	asm volatile("%0 ^= %1\n%0 ^= %1" : "+r"(forgotten) : "r"(unknown)); \
	(n) = forgotten; })

/*
 * Is `len` a length that a slot can hold? The verifier loses bounds that the
 * compiler merges into one subtraction and comparison, so each bound is made
 * visible on the value itself. `len` must be a 64-bit variable: a 32-bit one is
 * zero-extended into a copy, and the test would apply to the copy.
 */
#define LEN_OK(len) ({ \
	int ok = 1; \
	asm volatile("%0 &= 0x3fff" : "+r"(len)); \
	if ((len) > CFG_MTU) \
		ok = 0; \
	asm volatile("" : "+r"(len)); \
	if ((len) < 20) \
		ok = 0; \
	ok; })

/* The same for a cell, which fits into MRC_CELL_BYTES. */
#define CELL_LEN_OK(len) ({ \
	int ok = 1; \
	asm volatile("%0 &= 0xffff" : "+r"(len)); \
	if ((len) < 20) \
		ok = 0; \
	ok; })

#endif
