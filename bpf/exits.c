/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Exits of mrc_receive: drop a packet for a reason, leave it to the ordinary
 * stack, or end in another program.
 */

static __always_inline int drop(u32 why)
{
	count(why);
	return SAYS(HOOK_DROP, why);
}

/*
 * Pass a packet with MRC's addressing to the ordinary stack: to one of our plane
 * addresses, without an outer header. The daemon's sockets take nothing that did not come this way.
 */
static __always_inline int to_stack(struct hook_ctx *ctx, const struct mrc_plane *pl, u32 counter)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct ipv6hdr *outer = data + MRC_OUTER_OFF;

	if (data + MRC_BTH_OFF > end)
		return drop(MRC_C_DROP_SHORT);
	if (CFG_ENCAP == MRC_ENCAP_REDUCED)
		copy_addr(outer->daddr.s6_addr32, pl->addr);
	if (CFG_ENCAP == MRC_ENCAP_FULL &&
	    hook_strip(ctx, MRC_INNER_OFF - MRC_OUTER_OFF, MRC_ETH_PROTO))
		return drop(MRC_C_DROP_SKB);
	if (hook_admit(ctx))
		return drop(MRC_C_DROP_SKB);
	count(counter);
	return SAYS(HOOK_STACK, counter);
}

/* The first program at tc has found a cell: mrc_cell takes it. */
static __always_inline int end_in_cell(struct __sk_buff *skb)
{
	tails.call(skb, TAIL_CELL);
	count(MRC_C_DROP_FRAMING);
	return TC_ACT_SHOT;
}

/* Do what receive() decided. */
#if CFG_XDP
static __always_inline int leave(struct xdp_md *ctx, int action)
{
	return action;
}
#else
static __always_inline int leave(struct __sk_buff *skb, int action)
{
	switch (action) {
	case HOOK_STACK:
		return TC_ACT_UNSPEC;
	case HOOK_CELL:
		return end_in_cell(skb);
	case HOOK_DELIVER:
		tails.call(skb, TAIL_DELIVER);
		return TC_ACT_SHOT;
	}
	return action;
}
#endif
