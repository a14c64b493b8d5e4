/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Copies: the packets that both rings keep, and how a packet is made of one
 * again. A single packet has a slot of its own; the packets of a cell share one.
 * Whoever sends or delivers a copy gets a packet each time, with the lengths, flags
 * and checksums that the NIC would have given it: the copy of a packet that had
 * still to get its checksum from a NIC holds only half of it. What goes to a socket of
 * this host may be several packets of a cell in one.
 */

#define SUM_STEP 512             /* most bytes that bpf_csum_diff takes before Linux 6.13 */
#define IP_TCP 6
#define IP_UDP 17
#define UNCOUNTED 1536           /* more than the buffer of an acknowledgement holds, with all headers of ours */
#define LONGEST_SKB 16000        /* bpf_skb_change_tail() makes an skb no longer than 16 KiB with what skbs end with */

/* A packet as it lies in a ring. */
struct copy_at {
	u8 *data;                /* the IP packet, that of the whole cell if it is one of several */
	__u64 *tag;              /* of the slot, which is .is while the packet is in it */
	u64 is;
	u64 head;                /* bytes of headers, IP and transport; 0: none to mend */
	u64 from;                /* the payload: where it begins in .data ... */
	u64 len;                 /* ... and its bytes ... */
	u64 rest;                /* ... and those of the cell from there on */
	u32 l4;                  /* bytes of IP header */
	u32 proto;
	u64 most;                /* most bytes of payload that may be read, a constant */
	u32 at;                  /* place in the cell */
	u32 left;                /* packets of the cell from this one on */
	u32 last;                /* 1: the last one of the cell */
	u32 mss;
	u32 ace;                 /* 1: all packets of the cell have its flags of ECN */
	u32 partial;             /* 1: its checksum may be the half that is left to a NIC */
	u32 damaged;             /* 1: its checksum is wrong, as write_copy() finds */
	__u64 *expires;          /* in the retransmit ring, of a single packet: when it is too old to be sent */
};

/* A length that the verifier sees to be below a power of two, `mask` + 1. */
#define MASKED(n, mask) ({ \
	u64 masked = (n); \
	asm volatile("%0 &= %1" : "+r"(masked) : "i"(mask)); \
	masked; })

/* Free what a packet held of a ring. `ring` is constant: 0 the retransmit ring, 1 the other. */
static __always_inline void free_copy(u32 slot, u32 packets, u32 ring)
{
	u32 index = slot & MRC_SLOT_INDEX;
	struct mrc_big *big;

	if (!(slot & MRC_SLOT_BIG)) {
		if (ring)
			rx_slot_give(MRC_ROOM_PACKETS, index);
		else
			tx_free.push(&index, 0);
		return;
	}
	big = ring ? rx_cells.lookup(&index) : tx_cells.lookup(&index);
	if (!big || __sync_fetch_and_add(&big->left, -(u64)packets) != packets)
		return;
	big->tag = ~0ull;
	if (ring)
		rx_slot_give(MRC_ROOM_CELLS, index);
	else
		tx_cells_free.push(&index, 0);
}

/*
 * Find the transport header among the headers at `head`, if there is one whose
 * checksum NICs fill in. `len` is that of the IP packet.
 */
static __always_inline void find_transport(const u8 *head, u32 len, struct copy_at *c)
{
	u32 l4 = (head[0] & 15) * 4, l4_len;

	c->proto = head[9];
	if ((head[0] >> 4) == 6) {
		l4 = MRC_IP6_LEN;
		c->proto = head[6];
	} else if (*(const __be16 *)(head + 6) & bpf_htons(MRC_IP4_FRAGMENT)) {
		c->proto = 0;
	}
	c->head = 0;
	c->l4 = l4;
	if (c->proto == IP_TCP)
		l4_len = (head[(l4 + 12) & (MRC_HEAD_MAX - 1)] >> 4) * 4;
	else if (c->proto == IP_UDP && *(const u16 *)(head + ((l4 + 6) & (MRC_HEAD_MAX - 2))))
		l4_len = MRC_UDP_LEN;
	else
		return;
	if (l4 >= 20 && l4_len >= MRC_UDP_LEN && l4 + l4_len <= len)
		c->head = l4 + l4_len;
}

/*
 * Sum the payload of a copy, whose first byte is at an even place of the packet. What
 * is left behind the last whole step comes first: the verifier walks what follows the loop
 * once for each number of steps, unless all of these leave the same behind. Steps are
 * counted, and the count compared with a bound that stays: Linux 6.1 knows little of
 * differences, and Linux 6.12 does not see how few multiples of a step fit.
 */
static __always_inline u64 sum_payload(u8 *payload, u64 len)
{
	u64 steps = MASKED(len / SUM_STEP, 31), rest = MASKED(len, 0x1fc), sum, i;
	u8 *left = payload + steps * SUM_STEP;

	sum = (u32)bpf_csum_diff(0, 0, (void *)left, rest, 0);
	sum += *(u32 *)(left + rest) & bpf_htonl((u32)(~0ull << (32 - 8 * (len & 3))));
	for (i = 0; i < MRC_PIECE_BYTES / SUM_STEP; i++) {
		if (i >= steps)
			break;
		COMPARED(i);
		sum += (u32)bpf_csum_diff(0, 0, (void *)(payload + i * SUM_STEP), SUM_STEP, 0);
	}
	return sum;
}

static __always_inline u16 folded(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The sum of the pseudo header of a packet of `len` bytes. */
static __always_inline u64 pseudo_sum(u8 *head, const struct copy_at *c, u32 len)
{
	u64 sum = bpf_htons(c->proto) + bpf_htons(len - c->l4);

	if ((head[0] >> 4) == 6)
		return sum + (u32)bpf_csum_diff(0, 0, (void *)(head + 8), 32, 0);
	return sum + (u32)bpf_csum_diff(0, 0, (void *)(head + 12), 8, 0);
}

/* Make the IP header that of one packet of a cell, of `len` bytes. */
static __always_inline void mend_ip(u8 *head, const struct copy_at *c, u32 len)
{
	u64 ihl;

	if ((head[0] >> 4) == 6) {
		*(__be16 *)(head + 4) = bpf_htons(len - MRC_IP6_LEN);
		return;
	}
	*(__be16 *)(head + 2) = bpf_htons(len);
	*(__be16 *)(head + 4) = bpf_htons(bpf_ntohs(*(__be16 *)(head + 4)) + c->at);
	*(u16 *)(head + 10) = 0;
	ihl = MASKED(c->l4, 0x3c);
	*(u16 *)(head + 10) = folded((u32)bpf_csum_diff(0, 0, (void *)head, ihl, 0));
}

/* As bcc declares it, half of all sums would look like errors. */
static __s64 (*csum_update)(void *ctx, __u32 csum) = (void *)BPF_FUNC_csum_update;

/* Does the kernel hold a sum of the packet's bytes (CHECKSUM_COMPLETE)? */
static __always_inline u32 is_complete(struct __sk_buff *skb)
{
	return csum_update(skb, 0) >= 0;
}

/*
 * Is the rest of the packet's checksum left to a NIC (CHECKSUM_PARTIAL)? Only between
 * interfaces of one machine does such a packet arrive. No helper tells, but each of
 * the other three states of a checksum answers to one. The state stays as it was.
 */
static __always_inline u32 is_partial(struct __sk_buff *skb)
{
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)   /* CHECKSUM_UNNECESSARY */
		return 0;
	bpf_csum_level(skb, BPF_CSUM_LEVEL_INC);
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0) { /* CHECKSUM_NONE */
		bpf_csum_level(skb, BPF_CSUM_LEVEL_RESET);
		return 0;
	}
	return !is_complete(skb);
}

/*
 * Make ready a packet that is about to become another one: if the rest of its checksum is
 * left to a NIC, the next NIC would overwrite two bytes of what it becomes. The kernel
 * forgets a sum when its first byte comes off, so headers come off and on again. Returns 0,
 * or an error.
 */
#define SUM_WITHIN 120           /* behind the Ethernet header: an outer header, an inner one and options */

static __always_inline long forget_partial(struct __sk_buff *skb)
{
	u32 least = MRC_ETH_LEN + SUM_WITHIN + MRC_IP6_LEN + 1;

	if (!is_partial(skb))
		return 0;
	if (skb->len < least && bpf_skb_change_tail(skb, least, 0))
		return -1;
	return bpf_skb_adjust_room(skb, -SUM_WITHIN, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_adjust_room(skb, SUM_WITHIN, BPF_ADJ_ROOM_MAC, 0);
}

/*
 * Has the single packet the half of a checksum that mend_headers() would fill in? Only
 * TCP and UDP right behind an IP header without options are looked at: of all else,
 * is_partial() is to be asked. A datagram around a packet that lacks its own checksum has that half
 * as its sum by chance, once in 65,536. Flows that use AccECN are noted in `flows`.
 */
static __always_inline u32 has_half(struct __sk_buff *skb, u64 *flows)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u32 len = skb->len - MRC_ETH_LEN, proto, i;
	u8 *ip = data + MRC_ETH_LEN, *l4;
	u64 sum;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		l4 = ip + MRC_IP4_LEN;
		if ((void *)l4 > end || ip[0] != 0x45 ||
		    (*(__be16 *)(ip + 6) & bpf_htons(MRC_IP4_FRAGMENT)))
			return 0;
		proto = ip[9];
		len -= MRC_IP4_LEN;
		sum = (u64)*(u32 *)(ip + 12) + *(u32 *)(ip + 16);
	} else {
		l4 = ip + MRC_IP6_LEN;
		if ((void *)l4 > end)
			return 0;
		proto = ip[6];
		len -= MRC_IP6_LEN;
		sum = 0;
		#pragma unroll
		for (i = 8; i < MRC_IP6_LEN; i += 4)
			sum += *(u32 *)(ip + i);
	}
	sum += bpf_htons(proto) + bpf_htons(len);
	if (proto == IP_TCP) {
		if ((void *)(l4 + TCP_LEN) > end)
			return 0;
		has_accurate_ecn(l4, flows);
		return *(u16 *)(l4 + 16) == (u16)~folded(sum);
	}
	return proto == IP_UDP && (void *)(l4 + MRC_UDP_LEN) <= end &&
	       *(u16 *)(l4 + 6) == (u16)~folded(sum);
}

/*
 * Make the headers those of one packet, with the checksum over its payload. The
 * checksum of a packet that travelled alone is filled in only if it is the half that
 * is left to a NIC: over a packet that was damaged on its way, a new one would hide
 * the damage. One in 65,536 damaged packets has that half by chance, so a reader who holds
 * what came over a network asks is_partial() as well. Returns 1 if there is damage.
 */
static __always_inline u32 mend_headers(u8 *head, const struct copy_at *c)
{
	u64 sum = pseudo_sum(head, c, c->head + c->len), place = MASKED(c->l4, 0x3c), l4_len;
	u8 *l4 = head + place;
	u16 *check = (u16 *)(l4 + (c->proto == IP_TCP ? 16 : 6)), was = *check;
	u32 fill = c->mss || (c->partial && was == (u16)~folded(sum));

	FORGET(fill, sum);
	if (c->mss) {
		mend_ip(head, c, c->head + c->len);
		*(__be32 *)(l4 + 4) = bpf_htonl(bpf_ntohl(*(__be32 *)(l4 + 4)) + c->at * c->mss);
		if (!c->last)
			l4[13] &= ~(TCP_FIN | TCP_PSH);
		if (c->at && !c->ace)
			l4[13] &= ~TCP_CWR;
	}
	*check = 0;
	l4_len = MASKED(c->head - c->l4, 0x3c);
	sum += (u32)bpf_csum_diff(0, 0, (void *)l4, l4_len, 0);
	sum += sum_payload(c->data + c->from, c->len);
	*check = fill ? folded(sum) : was;
	if (fill && c->proto == IP_UDP && !*check)
		*check = 0xffff;
	return !fill && folded(sum + was);
}

/*
 * Find a packet of a ring. `head` is memory for its headers. Returns 0, or -1 if
 * the slot holds something else by now. `ring` is constant, as for free_copy().
 */
static __always_inline int open_copy(u32 slot, u32 qp, u32 psn, u32 len, u8 *head, u32 ring,
				     struct copy_at *c)
{
	u32 index = slot & MRC_SLOT_INDEX, at = 0;
	struct mrc_slot *one;
	struct mrc_big *big;

	c->at = 0;
	c->mss = 0;
	c->ace = 0;
	c->partial = 0;
	c->last = 1;
	c->left = 1;
	c->rest = 0;             /* Linux 6.1 does not see that a single packet is never widened */
	c->damaged = 0;
	c->expires = 0;
	if (slot & MRC_SLOT_BIG) {
		big = ring ? rx_cells.lookup(&index) : tx_cells.lookup(&index);
		at = slot >> MRC_SLOT_AT_SHIFT & (MRC_CELL_PACKETS - 1);
		c->is = (u64)qp << 32 | (u32)(psn - at);
		if (!big || big->tag != c->is)
			return -1;
		c->tag = &big->tag;
		c->data = big->data;
		__builtin_memcpy(head, big->data, MRC_HEAD_MAX);
		find_transport(head, big->len, c);
		c->most = MRC_PIECE_BYTES;
		c->mss = big->mss;
		c->ace = big->ace;
		c->at = at;
		c->left = big->count - at;
		c->last = c->left == 1;
		c->from = c->head + at * c->mss;
		c->rest = big->len - c->from;
		c->len = c->rest < c->mss ? c->rest : c->mss;
		return c->head && c->proto == IP_TCP ? 0 : -1;
	}
	one = ring ? rx_ring.lookup(&index) : tx_ring.lookup(&index);
	c->is = (u64)qp << 32 | psn;
	if (!one)
		return -1;
	if (ring)
		c->is |= one->tag & MRC_TAG_PARTIAL;
	if (one->tag != c->is)
		return -1;
	c->partial = !ring || (c->is & MRC_TAG_PARTIAL);
	c->tag = &one->tag;
	c->expires = &one->expires_ns;
	c->data = one->data;
	c->most = CFG_MTU;
	__builtin_memcpy(head, one->data, MRC_HEAD_MAX);
	find_transport(head, len, c);
	c->from = c->head;
	c->len = len - c->head;
	return 0;
}

/*
 * Is the TCP packet with these headers for a connection of this host? A socket that listens
 * is none: what is for a published port may be led on to a container.
 */
static __always_inline int socket_is_here(struct __sk_buff *skb, u8 *head, const struct copy_at *c)
{
	u64 place = MASKED(c->l4, 0x3c);
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	u32 listens;

	if ((head[0] >> 4) == 6) {
		__builtin_memcpy(&tuple.ipv6.saddr, head + 8, 32);
		__builtin_memcpy(&tuple.ipv6.sport, head + place, 4);
		sk = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(&tuple.ipv4.saddr, head + 12, 8);
		__builtin_memcpy(&tuple.ipv4.sport, head + place, 4);
		sk = bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 0;
	listens = sk->state == BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return !listens;
}

/*
 * Take the following packets of the cell along in one, if that goes to a socket
 * here, which does not mind its size. What is forwarded must stay as it was.
 * Returns the number of packets.
 */
static __always_inline u32 widen_copy(struct __sk_buff *skb, u8 *head, struct copy_at *c)
{
	u32 packets = MRC_PIECE_BYTES / (c->mss ? c->mss : MRC_PIECE_BYTES);

	if (packets > c->left)
		packets = c->left;
	if (packets < 2 || !socket_is_here(skb, head, c))
		return 1;
	c->last = packets == c->left;
	c->len = c->last ? c->rest : packets * c->mss;
	return packets;
}

/*
 * Write `len` bytes, none to `most`, into the skb. The verifier of Linux 6.1 does not
 * learn from a comparison with zero that there are some. Returns 0 or an error.
 */
static __always_inline long store_some(struct __sk_buff *skb, u32 off, void *from, u64 len,
				       u32 most)
{
	u64 last = len - 1;

	asm volatile("" : "+r"(last));
	return last < most ? bpf_skb_store_bytes(skb, off, from, last + 1, 0) : 0;
}

/*
 * Give the skb this length. TCP's acknowledgements without data have a truesize of 2, a
 * beat made of one has it, too, and growing adds no more than the buffer grows by. From a
 * packet that is longer than its truesize, the receiving TCP takes a ratio of both that
 * overflows its eight bits, and the window that it offers can be 0 from then on: what
 * grows gets as much more as the buffer of an acknowledgement holds.
 */
static __always_inline long fit_length(struct __sk_buff *skb, u32 len)
{
	u32 more = len + UNCOUNTED < LONGEST_SKB ? len + UNCOUNTED : LONGEST_SKB;

	if (skb->len < len && len < more && bpf_skb_change_tail(skb, more, 0))
		return -1;
	return bpf_skb_change_tail(skb, len, 0);
}

/*
 * Write the packet behind `off` bytes, a constant, and cut the skb behind it, with
 * `tail` bytes more. Returns the packet's length, or -1.
 */
static __always_inline s32 write_copy(struct __sk_buff *skb, u32 off, u32 tail, u8 *head,
				      struct copy_at *c)
{
	u64 headers = MASKED(c->head, MRC_HEAD_MAX - 1), len = MASKED(c->len, 0x3fff), from;

	if (len > c->most)
		return -1;
	COMPARED(len);
	from = MASKED(c->from, 0xffff);
	c->len = len;
	if (fit_length(skb, off + headers + len + tail))
		return -1;
	if (store_some(skb, off + headers, c->data + from, len, c->most))
		return -1;
	if (headers) {
		c->from = from;
		c->damaged = mend_headers(head, c);
		if (store_some(skb, off, head, headers, MRC_HEAD_MAX - 1))
			return -1;
	}
	/* The slot may have been given away while it was read. */
	barrier();
	return *c->tag == c->is ? headers + len : -1;
}
