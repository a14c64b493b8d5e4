/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tags (mrc_wire.h): SipHash-2-4 over what the transport acts on, and the headers
 * that carry it. Pure functions of their arguments; no map is touched here.
 */
#ifndef MRC_TAG_H
#define MRC_TAG_H

#define TAG_WORDS 8

struct sip {                     /* the state of SipHash */
	__u64 v0;
	__u64 v1;
	__u64 v2;
	__u64 v3;
};

static __always_inline __u64 rotl64(__u64 x, __u32 by)
{
	return x << by | x >> (64 - by);
}

static __always_inline void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v2 += s->v3;
	s->v1 = rotl64(s->v1, 13) ^ s->v0;
	s->v3 = rotl64(s->v3, 16) ^ s->v2;
	s->v0 = rotl64(s->v0, 32);
	s->v2 += s->v1;
	s->v0 += s->v3;
	s->v1 = rotl64(s->v1, 17) ^ s->v2;
	s->v3 = rotl64(s->v3, 21) ^ s->v0;
	s->v2 = rotl64(s->v2, 32);
}

/*
 * SipHash-2-4 of n words, a constant, as a little-endian machine loads them. They are on
 * the stack, so that the loops stay loops: a program has this in several places.
 */
static __always_inline __u64 siphash(const __u64 *key, const __u64 *words, __u32 n)
{
	struct sip s = {
		.v0 = key[0] ^ 0x736f6d6570736575,
		.v1 = key[1] ^ 0x646f72616e646f6d,
		.v2 = key[0] ^ 0x6c7967656e657261,
		.v3 = key[1] ^ 0x7465646279746573,
	};
	__u64 word;
	__u32 i;

	#pragma clang loop unroll(disable)
	for (i = 0; i <= n; i++) {
		word = i < n ? words[i] : (__u64)n << 59; /* at the end the length in bytes, << 56 */
		s.v3 ^= word;
		sip_round(&s);
		sip_round(&s);
		s.v0 ^= word;
	}
	s.v2 ^= 0xff;
	#pragma clang loop unroll(disable)
	for (i = 0; i < 4; i++)
		sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

/* The phase to send in. */
static __always_inline __u32 tx_phase(const struct mrc_keys *k)
{
	return k->state & MRC_KEYS_TX_PHASE;
}

/* The key of the phase that the packet's BTH names already. The phase to send in may change at any time. */
static __always_inline const __u64 *tx_key(const struct mrc_keys *k, const void *data)
{
	const struct mrc_bth *bth = data + MRC_BTH_OFF;

	return &k->tx[2 * (bth->aux & MRC_BTH_PHASE)];
}

/* The key of a phase that comes in; NULL if there is none. */
static __always_inline const __u64 *rx_key(const struct mrc_host *h, const struct mrc_keys *k,
					   __u32 phase)
{
	phase &= 1;
	if (h->keyed && !(k->state & (__u64)MRC_KEYS_RX << phase))
		return 0;
	return &k->rx[2 * phase];
}

/* The tag of data, MRC_PAYLOAD_OFF bytes of which are there. `psn` counts in 32 bits. */
static __always_inline __u64 data_tag(const __u64 *key, const void *data, __u32 psn)
{
	const void *at = data + MRC_UDP_OFF;
	__u64 words[5];

	words[0] = *(const __u64 *)at;
	words[1] = *(const __u64 *)(at + 8);
	words[2] = *(const __u64 *)(at + 16);
	words[3] = *(const __u32 *)(at + 24) | (__u64)bpf_htonl(psn) << 32;
	words[4] = *(const __u64 *)(at + 36);
	return siphash(key, words, 5);
}

/* The tag of a packet with `len` bytes of headers between BTH and struct mrc_auth, a constant. */
static __always_inline __u64 control_tag(const __u64 *key, const void *data, __u32 len)
{
	__u32 i, bytes = MRC_UDP_LEN + MRC_BTH_LEN + len + sizeof(__u32);
	const void *at = data + MRC_UDP_OFF;
	__u64 words[TAG_WORDS];

	#pragma unroll
	for (i = 0; i < TAG_WORDS; i++)
		if (8 * i + 8 <= bytes)
			words[i] = *(const __u64 *)(at + 8 * i);
		else if (8 * i < bytes)
			words[i] = *(const __u32 *)(at + 8 * i);
	return siphash(key, words, (bytes + 7) / 8);
}

/* The tag of a cell. `psn` counts in 32 bits. */
static __always_inline __be32 cell_tag(const __u64 *key, const struct mrc_cell *cell, __u32 label,
				       __u32 psn, __u32 qpn)
{
	__u32 last = bpf_htonl((psn & 0xff000000) | (qpn & MRC_QPN_MASK));
	__u64 words[2];

	words[0] = *(const __u64 *)&cell->mss;
	words[1] = bpf_htonl(label) | (__u64)last << 32;
	return siphash(key, words, 2);
}

/* Does a packet end with the tag of `key`? `len` as for control_tag(); the caller has checked the room. */
static __always_inline int has_tag(const void *data, const __u64 *key, __u32 len)
{
	const struct mrc_auth *auth = data + MRC_BODY_OFF + len;
	__u64 tag = control_tag(key, data, len);

	return auth->tag_hi == (__u32)tag && auth->tag_lo == tag >> 32;
}

/*
 * Is the count of a packet new? It is if it is above all others, or near below the highest
 * and did not arrive; and is noted. A word of bits is cleared as a whole when the highest
 * count enters it, so the window is one word shorter than the bits (RFC 6479). Lock of r held.
 */
static __always_inline int replay_note(struct mrc_replay *r, __u32 count)
{
	__s32 ahead = count - r->high;
	__u64 bit = 1ull << (count & 63);
	__u32 i, word = count >> 6 & (MRC_REPLAY_WORDS - 1), words;

	if (ahead <= -MRC_REPLAY_WINDOW)
		return 0;
	if (ahead > 0) {         /* forget the words between */
		words = ((count >> 6) - (r->high >> 6)) & (~0u >> 6); /* counts wrap */
		#pragma unroll
		for (i = 0; i < MRC_REPLAY_WORDS; i++)
			if (i < words)
				r->seen[(word - i) & (MRC_REPLAY_WORDS - 1)] = 0;
		r->high = count;
	}
	if (r->seen[word] & bit)
		return 0;
	r->seen[word] |= bit;
	return 1;
}

#endif
