/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The hook of mrc_receive. A data path is compiled for one of two, CFG_XDP:
 *
 *   1   native XDP of each plane NIC. What it passes on comes to mrc_deliver at tc
 *       ingress of the same NIC.
 *   0   tc ingress of each plane NIC, from where it ends in mrc_deliver. Nothing
 *       runs before GRO, which puts the packets of a cell together again.
 *
 * mrc_receive uses the names below and does not know which one it runs at.
 */
#ifndef MRC_HOOK_H
#define MRC_HOOK_H

#if CFG_XDP

#define hook_ctx xdp_md
#define HOOK_DATA(ctx) CTX_WORD(ctx, struct xdp_md, data)
#define HOOK_END(ctx) CTX_WORD(ctx, struct xdp_md, data_end)

#define HOOK_DROP XDP_DROP
#define HOOK_STACK XDP_PASS      /* to the ordinary stack */
#define HOOK_DELIVER XDP_PASS    /* to mrc_deliver */
#define HOOK_CELL XDP_PASS       /* to mrc_cell, by way of mrc_deliver */

static __always_inline u32 hook_len(struct xdp_md *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

static __always_inline u32 hook_ifindex(const struct xdp_md *ctx)
{
	return ctx->ingress_ifindex;
}

/* The skb's mark. There is no skb before XDP, and what goes round comes by tc. */
static __always_inline u32 hook_mark(const struct xdp_md *ctx)
{
	return 0;
}

/* Has the kernel merged several packets into this one? Not before XDP. */
static __always_inline int hook_merged(const struct xdp_md *ctx)
{
	return 0;
}

static __always_inline long hook_load(struct xdp_md *ctx, u32 from, void *to, u32 len)
{
	return bpf_xdp_load_bytes(ctx, from, to, len);
}

/* Headers lie in the first fragment. */
static __always_inline void hook_pull(struct xdp_md *ctx, u32 len)
{
}

/* Cut or lengthen the packet to `len` bytes. Returns 0, or else it is as it was. */
static __always_inline long hook_resize(struct xdp_md *ctx, u32 len)
{
	return bpf_xdp_adjust_tail(ctx, (int)len - (int)hook_len(ctx));
}

/*
 * Take `len` bytes off behind the Ethernet header; an IP packet of EtherType
 * `proto` follows. The caller writes that into the header. Returns 0, or the
 * packet is to be dropped.
 */
static __always_inline long hook_strip(struct xdp_md *ctx, u32 len, __be16 proto)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	__u32 link[4];           /* the Ethernet header, which moves */

	if (data + ETH_HLEN > end)
		return -1;
	copy_link(link, data);
	if (bpf_xdp_adjust_head(ctx, len))
		return -1;
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	if (data + ETH_HLEN > end)
		return -1;
	copy_link(data, link);
	return 0;
}

/*
 * Mark a packet as one that the daemon's sockets take. There is no skb yet: its source
 * address tells mrc_deliver, which marks the skb. Returns 0, or the packet is to be dropped.
 */
static __always_inline int hook_admit(struct xdp_md *ctx)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_mark *mark = data;

	if (data + sizeof(*mark) > end)
		return -1;
	mark->magic0 = MRC_MARK_MAGIC0;
	mark->magic1 = MRC_MARK_MAGIC1;
	mark->flags = MRC_MARK_STACK;
	return 0;
}

/* Send the packet out of a plane's interface. Returns the action. */
static __always_inline int hook_send(const struct xdp_md *ctx, u32 ifindex)
{
	return ifindex == ctx->ingress_ifindex ? XDP_TX : bpf_redirect(ifindex, 0);
}

#else

#define hook_ctx __sk_buff
#define HOOK_DATA(ctx) SKB_DATA(ctx)
#define HOOK_END(ctx) SKB_END(ctx)

#define HOOK_DROP TC_ACT_SHOT
#define HOOK_STACK 0x10          /* these three are no actions of tc: leave() carries them out */
#define HOOK_DELIVER 0x11
#define HOOK_CELL 0x12

static __always_inline u32 hook_len(const struct __sk_buff *skb)
{
	return skb->len;
}

static __always_inline u32 hook_ifindex(const struct __sk_buff *skb)
{
	return skb->ifindex;
}

static __always_inline u32 hook_mark(const struct __sk_buff *skb)
{
	return skb->mark;
}

static __always_inline int hook_merged(const struct __sk_buff *skb)
{
	return skb->gso_size != 0;
}

static __always_inline long hook_load(struct __sk_buff *skb, u32 from, void *to, u32 len)
{
	return bpf_skb_load_bytes(skb, from, to, len);
}

static __always_inline void hook_pull(struct __sk_buff *skb, u32 len)
{
	skb_pull_headers(skb, len);
}

static __always_inline long hook_resize(struct __sk_buff *skb, u32 len)
{
	return bpf_skb_change_tail(skb, len, 0);
}

static __always_inline long hook_strip_part(struct __sk_buff *skb, u32 len)
{
	return bpf_skb_adjust_room(skb, -(s32)len, BPF_ADJ_ROOM_MAC, 0);
}

/*
 * IP headers come off before the others. GRO has set the skb's transport header
 * behind them, and it moves with the network header only if both are in the same
 * place. If it lay in front of the packet, older kernels would refuse to change
 * the packet's length ever after (__bpf_skb_min_len).
 *
 * bpf_skb_adjust_room() keeps skb->protocol, which mrc0's Ethernet header is
 * written from, and asks for 40 bytes behind IPv6's. bpf_skb_change_proto()
 * changes it, and the length by the difference of the two headers.
 */
static __always_inline long hook_strip(struct __sk_buff *skb, u32 len, __be16 proto)
{
	u32 ip = MRC_UDP_OFF - MRC_OUTER_OFF;

	if (len > ip) {
		if (hook_strip_part(skb, ip))
			return -1;
		len -= ip;
	}
	if (proto != MRC_ETH_PROTO) {
		if (bpf_skb_change_proto(skb, proto, 0))
			return -1;
		len += ENCAP_IPV4 ? MRC_IP6_LEN - MRC_IP4_LEN : MRC_IP4_LEN - MRC_IP6_LEN;
	}
	return hook_strip_part(skb, len);
}

static __always_inline int hook_admit(struct __sk_buff *skb)
{
	skb->mark = MRC_ADMITTED_MARK;
	return 0;
}

static __always_inline int hook_send(const struct __sk_buff *skb, u32 ifindex)
{
	return bpf_redirect(ifindex, 0);
}

#endif
#endif
