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
	struct ip6_hdr *outer = data + MRC_OUTER_OFF;
	struct eth_hdr keep;

	if (data + MRC_BTH_OFF > end)
		return xdp_drop(MRC_C_DROP_SHORT);
	if (CFG_ENCAP == MRC_ENCAP_REDUCED)
		copy_addr(outer->dst, pl->addr);
	if (CFG_ENCAP == MRC_ENCAP_FULL) {
		keep = *(struct eth_hdr *)data;
		if (bpf_xdp_adjust_head(ctx, MRC_INNER_OFF - MRC_OUTER_OFF))
			return xdp_drop(MRC_C_DROP_SKB);
		data = XDP_DATA(ctx);
		end = XDP_END(ctx);
		if (data + sizeof(keep) > end)
			return xdp_drop(MRC_C_DROP_SKB);
		*(struct eth_hdr *)data = keep;
	}
	count(counter);
	return SAYS(XDP_PASS, counter);
}
