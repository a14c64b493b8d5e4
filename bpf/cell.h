/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The frame of a cell (mrc_wire.h): written and read in place, and which PSNs a
 * piece of a cell has. Pure functions of their arguments; no map is touched
 * here.
 */
#ifndef MRC_CELL_H
#define MRC_CELL_H

#define TCP_LEN 20               /* without options */
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_CWR 0x80
#define TCP_AE 0x01              /* in the byte before the others */

/*
 * Does the flow of a TCP header use AccECN (RFC 9768)? There AE, CWR and ECE are a number,
 * the same in all packets of a segment. In classic ECN, CWR is a signal that only the first
 * one has. Only AccECN sets AE: its number begins at 5, and it moves when marked packets
 * arrive. `flows` are those that have set it, a bit by their ports each. Where a classic flow
 * has the bit of another one, copies repeat its CWR, which costs it an echo at most.
 */
static __always_inline __u32 has_accurate_ecn(const __u8 *tcp, __u64 *flows)
{
	__u64 bit = 1ull << (*(const __u32 *)tcp * 0x9e3779b1u >> 26);

	if (tcp[12] & TCP_AE && !(*flows & bit))
		*flows |= bit;
	return (*flows & bit) != 0;
}

/* The length of an IP packet, by its header. */
static __always_inline __u32 inner_len(const __u8 *ip, __u32 v6)
{
	return v6 ? bpf_ntohs(*(const __be16 *)(ip + 4)) + MRC_IP6_LEN :
		    bpf_ntohs(*(const __be16 *)(ip + 2));
}

/* Packets that `payload` bytes take. */
static __always_inline __u32 packets_of(__u32 payload, __u32 mss)
{
	return (payload + mss - 1) / mss;
}

/*
 * The place of a piece in its cell, from its TCP sequence number and the state's.
 * MRC_CELL_PACKETS if the number cannot be right: the tag does not cover it,
 * and the place of a packet that was never sent would put the QP out of step.
 */
static __always_inline __u32 cell_place(__u32 tcp_seq, __u32 seq, __u32 mss)
{
	__u32 distance = (tcp_seq - (seq << 8)) & 0xffff;
	__u32 place = ((distance & 0xff00) + 255) / mss;

	/* The first number lies in the 256 from seq << 8 on. */
	return distance - place * mss > 255 ? MRC_CELL_PACKETS : place;
}

/* The headers of MRC_CELL_UDP, from the outer IP header on. `state` holds all but .block. */
static __always_inline void put_cell_udp(void *data, const struct mrc_host *h,
					 const struct mrc_plane *pl, const struct mrc_peer_plane *pp,
					 __u32 ev, __u32 tclass, const struct mrc_cell *state,
					 __u32 label, __u32 len, __u8 next)
{
	__be32 *vxlan = data + MRC_LINK_AND_OUTER + MRC_UDP_LEN;
	__u32 *to = data + CELL_STATE_OFF;
	const __u32 *from = (const void *)&state->mss;

	len += MRC_CELL_TAIL;
	if (ENCAP_IPV4)
		put_ip4(data + MRC_OUTER_OFF, pl->addr[3], pp->addr[3], tclass, MRC_IP4_LEN + len);
	else
		put_ip6(data + MRC_OUTER_OFF, pl->addr, ENCAP_SRV6 ? pp->usids : pp->addr, ev >> 16,
			tclass, IPPROTO_UDP, len);
	put_udp(data + MRC_LINK_AND_OUTER, MRC_CELL_SPORT | ev >> 16, h->cell_port, len);
	vxlan[0] = bpf_htonl(MRC_CELL_VXLAN);
	vxlan[1] = bpf_htonl(label << MRC_CELL_VNI_SHIFT);
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	*(__be16 *)(to + 3) = bpf_htons(next == IPPROTO_IPV6 ? ETH_P_IPV6 : ETH_P_IP);
}

/*
 * Write the Ethernet header, the outer headers and the state in them. Returns 0,
 * or -1 if the frame is too short.
 */
static __always_inline int put_cell(void *data, void *end, const struct mrc_host *h,
				    const struct mrc_keys *k, const struct mrc_plane *pl,
				    const struct mrc_peer_plane *pp, __u32 ev, __u32 tclass,
				    __u32 flags, __u32 qpn, __u32 psn, const struct cell *c,
				    __u8 next)
{
	struct ipv6hdr *ip = data + MRC_ETH_LEN;
	__u32 phase = tx_phase(k), label = flags | (ev >> 16 & CELL_LABEL_EV);
	struct ethhdr *eth = data;
	struct mrc_cell state;

	if (data + CELL_OFF > end)
		return -1;
	state.block = h->cell_block;
	state.mss = bpf_htons(MRC_CELL_MARK | c->mss);
	state.psn_hi = bpf_htons(psn >> 8);
	state.psn_lo = psn;
	state.seq = c->seq >> 8;
	state.qp = bpf_htons(qpn);
	if (phase)
		label |= MRC_CELL_PHASE;
	state.tag = cell_tag(&k->tx[2 * phase], &state, label, psn, qpn);
	copy_mac(eth->h_dest, next_hop(pl, pp));
	copy_mac(eth->h_source, pl->mac);
	*eth_proto(data) = MRC_ETH_PROTO;
	if (CELL_UDP)
		put_cell_udp(data, h, pl, pp, ev, tclass, &state, label, c->len, next);
	else
		put_ip6(ip, (__be32 *)&state, ENCAP_SRV6 ? pp->usids : pp->addr, label, tclass,
			next, c->len);
	if (ENCAP_SRV6)
		ip->daddr.s6_addr32[1] |= bpf_htonl((ev >> MRC_EV_T1_SHIFT) & MRC_EV_T1_MASK &
						    MRC_USID_INDEX_MASK);
	return 0;
}

#endif
