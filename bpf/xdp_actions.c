/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * XDP actions other than passing a packet to tc: drop it for a reason, or leave
 * it to the ordinary stack.
 */

static __always_inline int xdp_drop(u32 why)
{
	count(why);
	return SAYS(XDP_DROP, why);
}

/*
 * Pass a packet with MRC's addressing to the ordinary stack: to one of our plane
 * addresses, without an outer header.
 */
static __always_inline int xdp_to_stack(struct xdp_md *ctx, const struct mrc_plane *pl, u32 counter)
{
	void *data = XDP_DATA(ctx), *end = XDP_END(ctx);
	struct ipv6hdr *outer = data + MRC_OUTER_OFF;
	__u32 link[4];           /* the Ethernet header, which moves */

	if (data + MRC_BTH_OFF > end)
		return xdp_drop(MRC_C_DROP_SHORT);
	if (CFG_ENCAP == MRC_ENCAP_REDUCED)
		copy_addr(outer->daddr.s6_addr32, pl->addr);
	if (CFG_ENCAP == MRC_ENCAP_FULL) {
		copy_link(link, data);
		if (bpf_xdp_adjust_head(ctx, MRC_INNER_OFF - MRC_OUTER_OFF))
			return xdp_drop(MRC_C_DROP_SKB);
		data = XDP_DATA(ctx);
		end = XDP_END(ctx);
		if (data + ETH_HLEN > end)
			return xdp_drop(MRC_C_DROP_SKB);
		copy_link(data, link);
	}
	count(counter);
	return SAYS(XDP_PASS, counter);
}
