/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The least that programs between TCP and several NICs can do: an outer header on, a plane chosen in
 * turn, and the header off again. No state, no copy, no order, no acknowledgement. What mrcd's
 * programs reach is measured against it (bench/compare/ceiling.py).
 *
 *   ceiling_out   at tc egress of the device below the one that applications use
 *   ceiling_in    at tc ingress of the NICs
 */
#include <uapi/linux/bpf.h>
#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>
#include <uapi/linux/in6.h>
#include <uapi/linux/ip.h>
#include <uapi/linux/ipv6.h>
#include <uapi/linux/pkt_cls.h>

#define PLANES_MAX 8
#define OUTER (sizeof(struct ipv6hdr))
#define HOPS 64
#define DECAP_L3_IPV4 (1ull << 7) /* of bpf_skb_adjust_room() since Linux 6.3, which bcc's headers lack */

/* What a host does; bench/compare/ceiling.py writes it. */
struct ceiling_host {
	u32 planes;       /* planes that take turns */
	u32 header;       /* 0: no outer header; packets leave as they are */
	u32 lower;        /* index of the interface below the applications' */
	u32 network;      /* of the applications' addresses, the first 24 bits, network order */
	u8 mac[8];        /* of the applications' interface, the same in all hosts */
};

/* A plane, and the other host on it. */
struct ceiling_plane {
	u32 ifindex;
	u8 target[6], source[6];
	u8 from[16], to[16];
};

BPF_ARRAY(ceiling_hosts, struct ceiling_host, 1);
BPF_ARRAY(ceiling_planes, struct ceiling_plane, PLANES_MAX);
BPF_PERCPU_ARRAY(ceiling_turns, u32, 1);

static __always_inline void put_ethernet(struct ethhdr *eth, const u8 *target, const u8 *source,
					 __be16 proto)
{
	__builtin_memcpy(eth->h_dest, target, ETH_ALEN);
	__builtin_memcpy(eth->h_source, source, ETH_ALEN);
	eth->h_proto = proto;
}

/* Put the outer header on. Returns 0 or an error. */
static __always_inline int dress(struct __sk_buff *skb, const struct ceiling_plane *plane)
{
	u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	struct ipv6hdr *ip;
	struct ethhdr *eth;

	if (bpf_skb_adjust_room(skb, OUTER, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	eth = (void *)(long)skb->data;
	ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return -1;
	put_ethernet(eth, plane->target, plane->source, bpf_htons(ETH_P_IPV6));
	*(__be32 *)ip = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(skb->len - ETH_HLEN - OUTER);
	ip->nexthdr = IPPROTO_IPIP;
	ip->hop_limit = HOPS;
	__builtin_memcpy(&ip->saddr, plane->from, sizeof(plane->from));
	__builtin_memcpy(&ip->daddr, plane->to, sizeof(plane->to));
	return 0;
}

int ceiling_out(struct __sk_buff *skb)
{
	u32 zero = 0, number;
	struct ceiling_host *host = ceiling_hosts.lookup(&zero);
	u32 *turn = ceiling_turns.lookup(&zero);
	struct ceiling_plane *plane;

	if (!host || !turn || !host->planes || skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_SHOT;
	number = (*turn)++ % host->planes;
	plane = ceiling_planes.lookup(&number);
	if (!plane || (host->header && dress(skb, plane)))
		return TC_ACT_SHOT;
	return bpf_redirect(plane->ifindex, 0);
}

/* Take the outer header off. Returns 0, 1 if the packet is none of ours, or an error. */
static __always_inline int undress(struct __sk_buff *skb, const struct ceiling_host *host)
{
	u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET | DECAP_L3_IPV4;
	struct ethhdr *eth = (void *)(long)skb->data;
	struct ipv6hdr *outer = (void *)(eth + 1);
	struct iphdr *inner = (void *)(outer + 1);

	if ((void *)(inner + 1) > (void *)(long)skb->data_end || outer->nexthdr != IPPROTO_IPIP ||
	    (inner->daddr & bpf_htonl(0xffffff00)) != host->network)
		return 1;
	if (bpf_skb_adjust_room(skb, -(s32)OUTER, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	eth = (void *)(long)skb->data;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return -1;
	put_ethernet(eth, host->mac, host->mac, bpf_htons(ETH_P_IP));
	return 0;
}

/* Is this packet, which never had an outer header, one of ours? */
static __always_inline int is_bare(struct __sk_buff *skb, const struct ceiling_host *host)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(eth + 1);

	return (void *)(ip + 1) <= (void *)(long)skb->data_end &&
	       (ip->daddr & bpf_htonl(0xffffff00)) == host->network;
}

int ceiling_in(struct __sk_buff *skb)
{
	struct ceiling_host *host;
	u32 zero = 0;
	int failed;

	host = ceiling_hosts.lookup(&zero);
	if (!host)
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		failed = undress(skb, host);
		if (failed)
			return failed > 0 ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	} else if (skb->protocol != bpf_htons(ETH_P_IP) || !is_bare(skb, host)) {
		return TC_ACT_UNSPEC;
	}
	skb->queue_mapping = 0; /* or the receiver's steering would not know the queue */
	return bpf_redirect(host->lower, BPF_F_INGRESS);
}
