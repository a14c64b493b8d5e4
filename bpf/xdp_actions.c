/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What mrc_receive says of a packet, beside passing it to tc: dropped for a
 * reason, or the ordinary stack's.
 */
static __always_inline int xdp_drop(u32 why)
{
	count(why);
	return SAYS(XDP_DROP, why);
}

/*
 * Let the ordinary stack have a packet that was addressed as MRC's are: to one
 * of our plane addresses, without an outer header.
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
