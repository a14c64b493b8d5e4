/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is inside: which of the packets that arrive may enter mrc0. A stub may not. The inner source
 * must belong to the peer that sent the packet, and the inner destination to this
 * host; maps addresses and prefixes tell. An ICMP error may come from anywhere if it is
 * about a packet to the peer: routers behind it have addresses of their own.
 *
 * What fails the check is acknowledged all the same, and dropped where it would be
 * delivered: a packet that can never be delivered would otherwise be sent again until its
 * QP gives up. A packet that waits in the reorder ring was checked before. There is no
 * room for it in mrc_drain, where the verifier would walk the rest of the program once
 * for each outcome.
 */

/* What is wrong with the addresses of a packet. */
#define INNER_OK 0
#define INNER_FOREIGN 1          /* the source is not the peer's */
#define INNER_NOT_HERE 2         /* the destination is not this host's */
#define INNER_STUB 3             /* the packet is a stub, of one that was too old at its sender */

/* The counter of what is wrong. */
static __always_inline u32 inner_counter(u32 wrong)
{
	_Static_assert(MRC_C_DROP_NOT_HERE - MRC_C_DROP_FOREIGN == INNER_NOT_HERE - INNER_FOREIGN,
		       "without a branch, of which the verifier would walk both sides");
	return MRC_C_DROP_FOREIGN - INNER_FOREIGN + wrong +
	       (wrong & wrong >> 1) * (MRC_C_STUB_RX - MRC_C_DROP_NOT_HERE - 1);
}

/* Check both addresses, the source first. Returns INNER_... */
static __always_inline u32 check_ends(u32 peer, const u32 *ends)
{
	u32 *owner = owner_of(ends);

	if (!owner || (*owner & MRC_OWNER) != peer)
		return INNER_FOREIGN;
	owner = owner_of(ends + 4);
	return owner && *owner == MRC_OWNER_SELF ? INNER_OK : INNER_NOT_HERE;
}

/*
 * Have the destination of the packet that an ICMP error quotes in place of the error's
 * source. Returns 0, or an error if it is none.
 */
static __always_inline long take_quoted(struct __sk_buff *skb, u32 off, u32 *ends, u32 v6)
{
	if (!is_icmp_error(skb, off, v6))
		return -1;
	if (v6)
		return bpf_skb_load_bytes(skb, off + MRC_IP6_LEN + ICMP_LEN + 24, ends, 16);
	return bpf_skb_load_bytes(skb, off + MRC_IP4_LEN + ICMP_LEN + 16, ends + 3, 4);
}

/* May the IP packet behind `off` bytes enter mrc0? Returns INNER_... */
static __always_inline u32 check_inner_of(struct __sk_buff *skb, u32 off, const struct mrc_host *h,
					  u32 peer, u32 v6)
{
	u32 ends[8], pair[2], wrong;

	if (!h->inner)
		return INNER_OK;
	if (v6) {
		if (bpf_skb_load_bytes(skb, off + 8, ends, sizeof(ends)))
			return INNER_FOREIGN;
	} else {
		if (bpf_skb_load_bytes(skb, off + 12, pair, sizeof(pair)))
			return INNER_FOREIGN;
		map_ends(ends, pair[0], pair[1]);
	}
	wrong = check_ends(peer, ends);
	if (wrong == INNER_FOREIGN && !take_quoted(skb, off, ends, v6))
		wrong = check_ends(peer, ends);
	return wrong;
}
