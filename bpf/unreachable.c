/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Unreachable destinations: a sender learns of one by an ICMP message, as it does on
 * Ethernet after ARP has failed, and need not wait for time-outs of its own.
 *
 * The destination is unreachable if it belongs to no peer, or if the daemon says in map
 * `peers` that it has not heard the peer for long, or never. The daemon of a peer may be
 * dead while its data path works. So where QPs are set up, the first new thing is sent
 * all the same, and the next ones are only refused if that is not answered.
 *
 * Packets from a source that the peer takes nothing from are prohibited, as routers say it.
 *
 * Only what begins something is answered: TCP's SYN, and packets of all else but ICMP
 * messages other than echo requests. An established connection waits for the peer as it
 * always did.
 *
 * The message enters at mrc0. There its source must not be an address of this host, since
 * the kernel drops such packets as martians. It is the destination that is unreachable,
 * towards which every route and reverse-path filter leads.
 */

/* Messages in the long run, and at once: 1,000 a second and 50, as the kernel's own (icmp_msgs_per_sec). */
#define UNREACHABLES ((struct allowance){ MS, 50 * MS })
#define QUOTE_MAX 124            /* most bytes of the packet, in whole words: more than any receiver looks at */
#define TTL 64
#define TOS_CONTROL 0xc0         /* internetwork control (RFC 1812, 4.3.2.5) */

_Static_assert(QUOTE_MAX == 0x7c && QUOTE_MAX <= MRC_HEAD_MAX, "a mask is what the verifier understands");

/* Is the first byte of an address, with its version, that of a group? */
static __always_inline u32 is_group(u32 first, u32 v6)
{
	return v6 ? first == 0xff : first >= 0xe0;
}

/*
 * Does the packet begin something, and is its sender to be told? `ip` has MRC_HEAD_MAX
 * bytes, of which the first are the packet's.
 */
static __always_inline u32 begins_something(const u8 *ip, u32 v6)
{
	u32 l4 = v6 ? MRC_IP6_LEN : (ip[0] & 15) * 4, proto = v6 ? ip[6] : ip[9], type, flags;
	const u8 *from = ip + (v6 ? 8 : 12), *to = ip + (v6 ? 24 : 16);

	if (is_group(to[0], v6) || is_group(from[0], v6))
		return 0;
	if (!v6 && !from[0])     /* the unspecified address, or others that no sender has */
		return 0;
	if (v6 && !(*(const u64 *)from | *(const u64 *)(from + 8)))
		return 0;
	if (!v6 && (*(const __be16 *)(ip + 6) & bpf_htons(0x1fff))) /* not the first fragment */
		return 0;
	type = ip[l4 & (MRC_HEAD_MAX - 1)];
	flags = ip[(l4 + 13) & (MRC_HEAD_MAX - 1)];
	if (proto == IP_TCP)
		return (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
	if (v6)
		return proto == IPPROTO_ICMPV6 ? type == ICMP6_ECHO :
		       proto != IPPROTO_HOPOPTS && proto != IPPROTO_ROUTING &&
		       proto != IPPROTO_FRAGMENT && proto != IPPROTO_DSTOPTS;
	return proto != IPPROTO_ICMP || type == ICMP4_ECHO;
}

/* Load `len` bytes of the packet, one to QUOTE_MAX, as store_some() stores them. Returns 0 or an error. */
static __always_inline long load_ip(struct __sk_buff *skb, u8 *ip, u64 len)
{
	u64 last = len - 1;

	asm volatile("" : "+r"(last));
	return last < QUOTE_MAX ? bpf_skb_load_bytes(skb, MRC_ETH_LEN, ip, last + 1) : -1;
}

/* May one more message be sent? */
static __always_inline int may_tell(void)
{
	u32 zero = 0;
	struct mrc_budget *b = told.lookup(&zero);

	return b && budget_take(b, &b->due_ns, UNREACHABLES);
}

/* Write the headers of the message about the packet at `ip`, of which `quoted` bytes follow. */
static __always_inline int put_unreachable(void *data, void *end, const u8 *ip, u32 v6, u32 quoted,
					   u64 sum, u32 code)
{
	u8 *out = data + MRC_ETH_LEN, *icmp = out + (v6 ? MRC_IP6_LEN : MRC_IP4_LEN);
	u32 len = ICMP_LEN + quoted;

	if (data + MRC_ETH_LEN + MRC_IP6_LEN + ICMP_LEN > end)
		return -1;
	if (v6) {
		*(__be32 *)out = bpf_htonl(6 << 28);
		*(__be16 *)(out + 4) = bpf_htons(len);
		out[6] = IPPROTO_ICMPV6;
		out[7] = TTL;
		copy_addr((__be32 *)(out + 8), (const __be32 *)(ip + 24));
		copy_addr((__be32 *)(out + 24), (const __be32 *)(ip + 8));
		sum += (u32)bpf_csum_diff(0, 0, (void *)(ip + 8), 32, 0);
		sum += bpf_htons(len) + bpf_htons(IPPROTO_ICMPV6);
	} else {
		*(__be16 *)out = bpf_htons(0x4500 | TOS_CONTROL);
		*(__be16 *)(out + 2) = bpf_htons(MRC_IP4_LEN + len);
		*(__be16 *)(out + 4) = 0;
		*(__be16 *)(out + 6) = bpf_htons(0x4000);
		out[8] = TTL;
		out[9] = IPPROTO_ICMP;
		*(u16 *)(out + 10) = 0;
		*(__be32 *)(out + 12) = *(const __be32 *)(ip + 16);
		*(__be32 *)(out + 16) = *(const __be32 *)(ip + 12);
		*(u16 *)(out + 10) = folded(*(u16 *)out + *(u16 *)(out + 2) + *(u16 *)(out + 6) +
					    *(u16 *)(out + 8) + *(u16 *)(out + 12) +
					    *(u16 *)(out + 14) + *(u16 *)(out + 16) +
					    *(u16 *)(out + 18));
	}
	*(__be16 *)icmp = bpf_htons((v6 ? ICMP6_UNREACHABLE : ICMP4_UNREACHABLE) << 8 | code);
	*(u16 *)(icmp + 2) = 0;
	*(u32 *)(icmp + 4) = 0;
	*(u16 *)(icmp + 2) = folded(sum + *(u16 *)icmp);
	return 0;
}

/* The code of the message about a packet that was dropped for the reason `why`. */
static __always_inline u32 message_code(u32 why, u32 v6)
{
	if (why == MRC_C_DROP_NOT_OURS)
		return v6 ? ICMP6_SOURCE : ICMP4_PROHIBITED;
	return v6 ? ICMP6_ADDRESS : ICMP4_HOST;
}

/*
 * Turn the packet, of which `ip` holds the beginning, into the message that its
 * destination is unreachable. Returns 0 or -1.
 */
static __always_inline int make_unreachable(struct __sk_buff *skb, const struct mrc_host *h, u8 *ip,
					    u32 v6, u32 code)
{
	u64 quoted = skb->len - MRC_ETH_LEN, head = (v6 ? MRC_IP6_LEN : MRC_IP4_LEN) + ICMP_LEN, sum;

	if (quoted > QUOTE_MAX)
		quoted = QUOTE_MAX;
	quoted = MASKED(quoted, QUOTE_MAX); /* sums are of whole words */
	if (bpf_skb_change_tail(skb, MRC_ETH_LEN + head + quoted, 0) ||
	    store_some(skb, MRC_ETH_LEN + head, ip, quoted, QUOTE_MAX))
		return -1;
	sum = (u32)bpf_csum_diff(0, 0, (void *)ip, quoted, 0);
	return put_link(skb, h, skb->protocol) ||
	       put_unreachable(SKB_DATA(skb), SKB_END(skb), ip, v6, quoted, sum,
			       code);
}

/*
 * Drop a packet whose destination is unreachable, and tell its sender. skb->cb[1] is the
 * counter of the drop; 0: a copy of it is kept. A packet that is still to get its checksum
 * from a NIC, as at tc egress, gets it from the kernel first, and comes back: no
 * program can take that promise off it, and a NIC would write into the message.
 */
int mrc_unreachable(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	u32 why = skb->cb[1], v6 = skb->protocol == bpf_htons(ETH_P_IPV6), here;
	struct mrc_host *h = host_get();
	u64 len = skb->len - MRC_ETH_LEN;

	if (!h || !chain)
		return TC_ACT_SHOT;
	if (len > QUOTE_MAX)
		len = QUOTE_MAX;
	here = len >= (v6 ? MRC_IP6_LEN : MRC_IP4_LEN) &&
	       !load_ip(skb, chain->head, len) &&
	       begins_something(chain->head, v6);
	if (here && at_egress(skb, h))
		return bpf_redirect(h->cut_ifindex, 0);
	if (why)
		count(why);
	if (!here || !may_tell() || make_unreachable(skb, h, chain->head, v6, message_code(why, v6)))
		return TC_ACT_SHOT;
	count(MRC_C_UNREACHABLE_TX);
	skb->mark = 0;
	bpf_set_hash_invalid(skb);
	return h->cut_back_ifindex ? bpf_redirect(h->lower_ifindex, BPF_F_INGRESS) :
				     bpf_redirect(h->link_ifindex, 0);
}
