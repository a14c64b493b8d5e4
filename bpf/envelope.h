/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The envelope: Ethernet, IP and UDP around an MRC packet, written and read in
 * place. Pure functions of their arguments; no map is touched here.
 *
 * There are four, and a data path is compiled for one of them, CFG_ENCAP:
 *
 *   MRC_ENCAP_FULL     Ethernet | IPv6 to the uSID list | IPv6 to the peer | UDP
 *   MRC_ENCAP_REDUCED  Ethernet | IPv6 to the uSID list | UDP
 *   MRC_ENCAP_ECMP6    Ethernet | IPv6 to the peer | UDP
 *   MRC_ENCAP_ECMP4    Ethernet | IPv4 to the peer | UDP
 *
 * Everything that depends on it is a constant expression, so the compiler
 * leaves the other three out. A single IP header is both the outer and the inner
 * one. Addresses in structs are 128 bits wide; IPv4's are
 * written as ::ffff:a.b.c.d.
 */
#ifndef MRC_ENVELOPE_H
#define MRC_ENVELOPE_H

#define MRC_HOPS 64
#define MRC_TC_SHIFT 20          /* traffic class in the first word of an IPv6 header */
#define MRC_IP4_DF 0x4000
#define MRC_IP4_FRAGMENT 0x3fff  /* more to come, or not the first */

#define ENCAP_IPV4 (CFG_ENCAP == MRC_ENCAP_ECMP4)
#define ENCAP_SRV6 (CFG_ENCAP == MRC_ENCAP_FULL || CFG_ENCAP == MRC_ENCAP_REDUCED)
#define CELL_UDP CFG_CELL_UDP    /* cells in MRC_CELL_UDP, not MRC_CELL_IP6 (mrc_wire.h) */
#define CELLS (CELL_UDP || !ENCAP_IPV4) /* the state of MRC_CELL_IP6 fills an IPv6 address */
#define NEXT_HOPS (CFG_NEXT_HOPS && !ENCAP_SRV6) /* each peer has a next hop of its own on a plane */

#define MRC_ETH_PROTO bpf_htons(ENCAP_IPV4 ? ETH_P_IP : ETH_P_IPV6)
#define MRC_IP_LEN (ENCAP_IPV4 ? MRC_IP4_LEN : MRC_IP6_LEN)
#define MRC_OUTER_OFF MRC_ETH_LEN
#define MRC_LINK_AND_OUTER (MRC_OUTER_OFF + MRC_IP_LEN)
#define MRC_INNER_OFF (MRC_OUTER_OFF + (CFG_ENCAP == MRC_ENCAP_FULL ? MRC_IP6_LEN : 0))
#define MRC_UDP_OFF (MRC_INNER_OFF + MRC_IP_LEN)
#define MRC_BTH_OFF (MRC_UDP_OFF + MRC_UDP_LEN)
#define MRC_BODY_OFF (MRC_BTH_OFF + MRC_BTH_LEN)      /* METH, SETH, NETH or PETH */
#define MRC_PAYLOAD_OFF (MRC_BODY_OFF + MRC_WRITE_LEN) /* the application's IP packet */
#define CELL_STATE_OFF (MRC_LINK_AND_OUTER + 16)      /* in MRC_CELL_UDP, from .mss on: the inner addresses */
#define CELL_IP_LEN (CELL_UDP ? MRC_IP_LEN : MRC_IP6_LEN)
#define CELL_HEAD (CELL_IP_LEN + (CELL_UDP ? MRC_CELL_TAIL : 0)) /* between Ethernet and the application's packet */
#define CELL_OFF (MRC_ETH_LEN + CELL_HEAD)            /* the application's packet in a cell */
#define CELL_KNOWN (MRC_LINK_AND_OUTER + (CELL_UDP ? 4 : 0)) /* bytes that envelope_is_cell() reads */
#define MRC_STRIP (MRC_PAYLOAD_OFF - MRC_ETH_LEN)     /* headers between Ethernet and payload */

/*
 * The EtherType. Clang reads and writes a member of struct ethhdr, which is
 * packed, byte by byte; behind this pointer it is one access.
 */
static __always_inline __be16 *eth_proto(void *data)
{
	return data + __builtin_offsetof(struct ethhdr, h_proto);
}

/* The first word of an IPv6 header: version 4 | traffic class 8 | flow label 20. */
static __always_inline __be32 ip6_word(const struct ipv6hdr *ip)
{
	return *(const __be32 *)ip;
}

/* The first byte of an IPv4 header: version 4 | header length 4. */
static __always_inline __u8 ip4_byte(const struct iphdr *ip)
{
	return *(const __u8 *)ip;
}

static __always_inline int same_addr(const __be32 *a, const __be32 *b)
{
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]));
}

static __always_inline void copy_addr(__be32 *to, const __be32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline void copy_mac(__u8 *to, const __u8 *from)
{
	*(__u32 *)to = *(const __u32 *)from;
	*(__u16 *)(to + 4) = *(const __u16 *)(from + 4);
}

/* An Ethernet header, in words: clang copies struct ethhdr, which is packed, byte by byte. */
static __always_inline void copy_link(void *to, const void *from)
{
	copy_mac(to, from);
	copy_mac(to + ETH_ALEN, from + ETH_ALEN);
	*(__be16 *)(to + 2 * ETH_ALEN) = *(const __be16 *)(from + 2 * ETH_ALEN);
}

/* ---- writing */

static __always_inline __u32 fold16(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* No options, not to be fragmented; with that, no identification either (RFC 6864). */
static __always_inline void put_ip4(struct iphdr *ip, __be32 src, __be32 dst, __u32 tos,
				    __u32 len)
{
	__u32 sum;

	*(__u8 *)ip = 0x45;
	ip->tos = tos;
	ip->tot_len = bpf_htons(len);
	ip->id = 0;
	ip->frag_off = bpf_htons(MRC_IP4_DF);
	ip->ttl = MRC_HOPS;
	ip->protocol = IPPROTO_UDP;
	ip->saddr = src;
	ip->daddr = dst;
	/* Byte order does not matter to the sum, as long as all its words share it. */
	sum = bpf_htons(0x4500 | tos) + bpf_htons(MRC_IP4_DF) +
	      bpf_htons(MRC_HOPS << 8 | IPPROTO_UDP) + bpf_htons(len) +
	      (src & 0xffff) + (src >> 16) + (dst & 0xffff) + (dst >> 16);
	ip->check = ~fold16(sum);
}

static __always_inline void put_udp(struct udphdr *udp, __u32 source, __be16 dest, __u32 len)
{
	udp->source = bpf_htons(source);
	udp->dest = dest;
	udp->len = bpf_htons(len);
	udp->check = 0;          /* RFC 6935: the inner packet has its own */
}

static __always_inline void put_ip6(struct ipv6hdr *ip, const __be32 *src, const __be32 *dst,
				    __u32 label, __u32 tclass, __u8 next, __u32 len)
{
	*(__be32 *)ip = bpf_htonl(0x60000000 | tclass << MRC_TC_SHIFT | label);
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = next;
	ip->hop_limit = MRC_HOPS;
	copy_addr(ip->saddr.s6_addr32, src);
	copy_addr(ip->daddr.s6_addr32, dst);
}

/*
 * The MAC address that frames to a peer are for: its gateway's, one for all peers of
 * a plane, or that of the neighbour that leads to it, where there is no fabric.
 */
static __always_inline const __u8 *next_hop(const struct mrc_plane *pl,
					    const struct mrc_peer_plane *pp)
{
	return NEXT_HOPS ? (const __u8 *)pp->usids : pl->gateway_mac;
}

/*
 * Everything in front of the BTH: MRC_BTH_OFF bytes, which the caller has
 * checked to be there. udp_len: from the UDP header to the ICRC word.
 */
static __always_inline void put_envelope(void *data, const struct mrc_host *h,
					 const struct mrc_plane *pl,
					 const struct mrc_peer_plane *pp, __u32 ev, __u32 tclass,
					 __u32 udp_len)
{
	struct ethhdr *eth = data;
	struct ipv6hdr *outer = data + MRC_OUTER_OFF;
	struct udphdr *udp = data + MRC_UDP_OFF;
	__u32 label = ev & 0xffff;

	copy_mac(eth->h_dest, next_hop(pl, pp));
	copy_mac(eth->h_source, pl->mac);
	*eth_proto(data) = MRC_ETH_PROTO;

	if (CFG_ENCAP == MRC_ENCAP_ECMP4)
		put_ip4(data + MRC_OUTER_OFF, pl->addr[3], pp->addr[3], tclass,
			MRC_IP4_LEN + udp_len);
	if (CFG_ENCAP == MRC_ENCAP_ECMP6)
		/* This also steers switches that hash the label instead of the ports. */
		put_ip6(outer, pl->addr, pp->addr, ev >> 16, tclass, IPPROTO_UDP, udp_len);
	if (CFG_ENCAP == MRC_ENCAP_REDUCED)
		put_ip6(outer, pl->addr, pp->usids, label, tclass, IPPROTO_UDP, udp_len);
	if (CFG_ENCAP == MRC_ENCAP_FULL) {
		put_ip6(outer, pl->addr, pp->usids, label, tclass, IPPROTO_IPV6,
			MRC_IP6_LEN + udp_len);
		put_ip6(data + MRC_INNER_OFF, pl->addr, pp->addr, label, 0, IPPROTO_UDP,
			udp_len);
	}
	/* The second uSID is the T1's if an EV has a T1 part: OR it in. */
	if (ENCAP_SRV6)
		outer->daddr.s6_addr32[1] |= bpf_htonl((ev >> MRC_EV_T1_SHIFT) & MRC_EV_T1_MASK &
					   MRC_USID_INDEX_MASK);

	put_udp(udp, ev >> 16, h->udp_port, udp_len);
}

/* ---- reading; the caller has checked that MRC_BTH_OFF bytes are there */

/* Is it unfragmented UDP in the headers that we use? Addresses are not checked. */
static __always_inline int envelope_is_udp(const void *data)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *outer = data + MRC_OUTER_OFF, *inner = data + MRC_INNER_OFF;

	if (ENCAP_IPV4)
		return ip4_byte(ip4) == 0x45 && ip4->protocol == IPPROTO_UDP &&
		       !(ip4->frag_off & bpf_htons(MRC_IP4_FRAGMENT));
	if ((ip6_word(outer) & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
		return 0;
	if (CFG_ENCAP == MRC_ENCAP_FULL &&
	    (outer->nexthdr != IPPROTO_IPV6 ||
	     (ip6_word(inner) & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000)))
		return 0;
	return inner->nexthdr == IPPROTO_UDP;
}

/* Is the outer header addressed to us, on this plane? A cell has no other one. */
static __always_inline int outer_is_for(const void *data, const struct mrc_plane *pl)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *outer = data + MRC_OUTER_OFF;

	return ENCAP_IPV4 ? ip4->daddr == pl->addr[3] :
			    same_addr(outer->daddr.s6_addr32, ENCAP_SRV6 ? pl->sid : pl->addr);
}

/* Is it addressed to us, on this plane? */
static __always_inline int envelope_is_for(const void *data, const struct mrc_plane *pl)
{
	const struct ipv6hdr *inner = data + MRC_INNER_OFF;

	return outer_is_for(data, pl) && (CFG_ENCAP != MRC_ENCAP_FULL ||
					  same_addr(inner->daddr.s6_addr32, pl->addr));
}

/* The sender's address, as the structs hold addresses. */
static __always_inline void envelope_source(const void *data, __be32 *addr)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *inner = data + MRC_INNER_OFF;

	if (ENCAP_IPV4) {
		addr[0] = 0;
		addr[1] = 0;
		addr[2] = bpf_htonl(0xffff);
		addr[3] = ip4->saddr;
	} else {
		copy_addr(addr, inner->saddr.s6_addr32);
	}
}

static __always_inline int envelope_is_from(const void *data, const __be32 *addr)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *inner = data + MRC_INNER_OFF;

	return ENCAP_IPV4 ? ip4->saddr == addr[3] : same_addr(inner->saddr.s6_addr32, addr);
}

/* DSCP and ECN as the last switch left them. */
static __always_inline __u32 envelope_tclass(const void *data)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *outer = data + MRC_OUTER_OFF;

	return ENCAP_IPV4 ? ip4->tos : bpf_ntohl(ip6_word(outer)) >> MRC_TC_SHIFT & 0xff;
}

/* The hop limit as the last switch left it. */
static __always_inline __u32 envelope_hops(const void *data)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *outer = data + MRC_OUTER_OFF;

	return ENCAP_IPV4 ? ip4->ttl : outer->hop_limit;
}

/*
 * Is it a cell (mrc_wire.h)? Ask before anything else: a cell has no port of MRC's. Only
 * CELL_KNOWN bytes must be there, and the EtherType must be MRC_ETH_PROTO.
 * Planes without a fabric have addresses of any prefix, and the source's block decides, or the
 * port: mrc_cell lets go what is for another host.
 */
static __always_inline int envelope_is_cell(const void *data, const struct mrc_host *h)
{
	const struct ipv6hdr *outer = data + MRC_OUTER_OFF;
	const struct udphdr *udp = data + MRC_LINK_AND_OUTER;
	const struct mrc_cell *cell = (const void *)&outer->saddr;

	if (!CELLS)
		return 0;
	if (CELL_UDP && ENCAP_IPV4)
		return envelope_is_udp(data) && udp->dest == h->cell_port;
	if (ENCAP_SRV6 && outer->daddr.s6_addr32[0] != h->block)
		return 0;
	if (CELL_UDP)
		return outer->nexthdr == IPPROTO_UDP && udp->dest == h->cell_port;
	return (NEXT_HOPS || ENCAP_SRV6 || outer->daddr.s6_addr32[0] == h->cell_block) &&
	       (outer->nexthdr == IPPROTO_IPIP || outer->nexthdr == IPPROTO_IPV6) &&
	       cell->block == h->cell_block &&
	       (cell->mss & bpf_htons(MRC_CELL_MARK)) == bpf_htons(MRC_CELL_MARK);
}

/*
 * The EV. In ecmp modes only the source port holds it: an EV's low half is 0,
 * and the label repeats the high half.
 */
static __always_inline __u32 envelope_ev(const void *data)
{
	const struct ipv6hdr *inner = data + MRC_INNER_OFF;
	const struct udphdr *udp = data + MRC_UDP_OFF;
	__u32 high = bpf_ntohs(udp->source) << 16;

	return ENCAP_SRV6 ? high | (bpf_ntohl(ip6_word(inner)) & 0xffff) : high;
}

/*
 * Do the lengths agree? A switch that trims changes the frame's length, and
 * may correct that of the header it routes by.
 */
static __always_inline int envelope_lengths(const void *data, __u32 frame_len, int trimmed)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *outer = data + MRC_OUTER_OFF, *inner = data + MRC_INNER_OFF;
	const struct udphdr *udp = data + MRC_UDP_OFF;
	__u32 udp_len = bpf_ntohs(udp->len);

	if (CFG_ENCAP == MRC_ENCAP_FULL && inner->payload_len != udp->len)
		return 0;
	if (trimmed)
		return 1;
	if (frame_len != MRC_UDP_OFF + udp_len)
		return 0;
	if (ENCAP_IPV4)
		return bpf_ntohs(ip4->tot_len) == MRC_IP4_LEN + udp_len;
	return bpf_ntohs(outer->payload_len) == udp_len + MRC_INNER_OFF - MRC_OUTER_OFF;
}

/* Does the IPv4 header match its checksum? IPv6 has none. */
static __always_inline int envelope_sums(const void *data)
{
	const __u32 *word = data + MRC_OUTER_OFF;
	__u32 sum = 0, i;

	if (!ENCAP_IPV4)
		return 1;
	#pragma unroll
	for (i = 0; i < MRC_IP4_LEN / 4; i++)
		sum += (word[i] & 0xffff) + (word[i] >> 16);
	return fold16(sum) == 0xffff;
}

#endif
