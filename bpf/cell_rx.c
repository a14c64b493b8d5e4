/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Deliver, second part: cells, whole or in the pieces in which GRO or the wire
 * brings them. mrc_cell finds which PSNs a piece has, takes the outer header off
 * and sends it to mrc0 as large as it came.
 *
 * A piece that is early mostly lacks its predecessor by some microseconds. Then it
 * goes round through the CPU's backlog until its turn has come (struct mrc_host,
 * circle_ns), since a copy of it could only be delivered packet by packet. A gap
 * that lasts longer is a loss or a slow plane: then a copy is held.
 */

/* Flags of bpf_skb_adjust_room since Linux 6.3, which bcc's headers lack. */
#define DECAP_L3_IPV4 (1ull << 7)
#define DECAP_L3_IPV6 (1ull << 8)

/* A cell on its way through mrc_cell. */
struct cell_in {
	struct mrc_host *h;
	struct mrc_chain *chain;
	struct mrc_qp *q;
	struct mrc_rx *rx;
	struct mrc_keys *k;
	struct piece *p;         /* in the chain */
	u32 plane;               /* ours, by which it came */
	u32 key;                 /* of its record in a capture */
};

static __always_inline int cell_drop(const struct cell_in *in, u32 why)
{
	count(why);
	capture_outcome(in->key, in->p->qp, why);
	return TC_ACT_SHOT;
}

/*
 * Drop a piece for the reason `why`. Its sender is told by a NACK if it is a single
 * packet: the kernel lets no program make a small packet of a larger piece.
 */
static __always_inline int cell_refuse(struct __sk_buff *skb, const struct cell_in *in, u32 why,
				       u32 reason)
{
	cell_drop(in, why);
	if (in->p->c.count > 1 || skb->gso_size || !may_refuse_now(in->rx))
		return TC_ACT_SHOT;
	return go_refuse(skb, in->p->qp, reason, in->p->psn, piece_ev(in->p),
			 in->p->label >> MRC_CELL_ATTEMPT_SHIFT);
}

/* What the outer headers of a cell say. */
struct cell_outer {
	u32 tclass;
	s32 told;                /* the length of the packet inside ... */
	s32 ip_told;             /* ... and by the IP header, whose length a switch that trims may correct */
};

/*
 * Read the headers and the state of a cell, its label, and the version of the packet inside.
 * Returns the counter of what is wrong with them, or 0.
 */
static __always_inline u32 read_outer(const void *data, struct cell_in *in, struct mrc_cell *st,
				      struct cell_outer *out)
{
	const struct iphdr *ip4 = data + MRC_OUTER_OFF;
	const struct ipv6hdr *ip = data + MRC_OUTER_OFF;
	const struct udphdr *udp = data + MRC_LINK_AND_OUTER;
	const __be32 *vxlan = (const void *)(udp + 1);
	const __u32 *from = data + CELL_STATE_OFF;
	__u32 *to = (void *)&st->mss;
	__be16 inner;

	out->tclass = envelope_tclass(data);
	if (!CELL_UDP) {
		copy_addr((__be32 *)st, ip->saddr.s6_addr32);
		in->p->label = bpf_ntohl(ip6_word(ip)) & 0xfffff;
		in->p->v6 = ip->nexthdr == IPPROTO_IPV6;
		out->told = bpf_ntohs(ip->payload_len);
		out->ip_told = out->told;
		return 0;
	}
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	inner = *(const __be16 *)(from + 3);
	in->p->label = bpf_ntohl(vxlan[1]) >> MRC_CELL_VNI_SHIFT;
	in->p->v6 = inner == bpf_htons(ETH_P_IPV6);
	out->told = bpf_ntohs(udp->len) - MRC_CELL_TAIL;
	out->ip_told = (ENCAP_IPV4 ? bpf_ntohs(ip4->tot_len) - MRC_IP4_LEN :
				     bpf_ntohs(ip->payload_len)) - MRC_CELL_TAIL;
	if (!envelope_sums(data))
		return MRC_C_DROP_CHECKSUM;
	/* A single value of every bit that says nothing. */
	if (vxlan[0] != bpf_htonl(MRC_CELL_VXLAN) || vxlan[1] & bpf_htonl(0xf00000ff) ||
	    (st->mss & bpf_htons(MRC_CELL_MARK)) != bpf_htons(MRC_CELL_MARK) ||
	    (!in->p->v6 && inner != bpf_htons(ETH_P_IP)))
		return MRC_C_DROP_CELL;
	return 0;
}

/* Check the outer headers. Returns the counter of what is wrong with them, or 0. */
static __always_inline u32 check_outer(struct __sk_buff *skb, struct cell_in *in, struct mrc_cell *st)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u32 plane, why = MRC_C_DROP_SHORT;
	struct ipv6hdr *ip = data + MRC_ETH_LEN;
	struct cell_outer out = {};
	struct mrc_plane *pl;
	s32 len;

	if (data + CELL_KNOWN > end)
		return MRC_C_DROP_SHORT;
	if (data + CELL_OFF + 20 <= end) {
		why = read_outer(data, in, st, &out);
		in->key = capture_cell_key(skb, st);
		in->p->qp = bpf_ntohs(st->qp);
	}
	plane = ENCAP_SRV6 ? bpf_ntohl(ip->daddr.s6_addr32[1]) >> (16 + MRC_USID_PLANE_SHIFT) :
			     plane_of(skb->ifindex);
	pl = planes.lookup(&plane);
	if (!pl || pl->ifindex != skb->ifindex || !outer_is_for(data, pl))
		return MRC_C_DROP_SID;
	if (why)
		return why;
	in->p->ce = (out.tclass & MRC_ECN_MASK) == MRC_ECN_CE;
	len = skb->len - CELL_OFF;
	in->p->c.len = len;
	in->p->cut = 0;
	if (inner_len(data + CELL_OFF, in->p->v6) > in->p->c.len)
		in->p->cut = trimmed_by(in->h, out.tclass);
	if (in->p->cut) {        /* a switch may have corrected the outer length */
		in->p->c.len = inner_len(data + CELL_OFF, in->p->v6);
		if (skb->gso_size || out.told < len || out.ip_told < len)
			return MRC_C_DROP_LENGTH;
	} else if (out.told != len || out.ip_told != len) {
		return MRC_C_DROP_LENGTH;
	}
	in->plane = plane;
	return 0;
}

/* Find the QP, and check the state. Returns the counter of what is wrong, or 0. */
static __always_inline u32 check_state(struct cell_in *in, const struct mrc_cell *st)
{
	u32 qp = in->p->qp, psn = bpf_ntohs(st->psn_hi) << 8 | st->psn_lo;
	const u64 *key;

	in->q = qps.lookup(&qp);
	in->rx = rxs.lookup(&qp);
	in->k = keys.lookup(&qp);
	if (!in->q || !in->rx || !in->k || in->q->state < MRC_QP_RECEIVE)
		return MRC_C_DROP_QPN;
	if (our_plane(peer_get(in->q->peer), ev_plane(piece_ev(in->p))) != in->plane)
		return MRC_C_DROP_ENTROPY;
	/* Where data comes in packets, trials tell its sender whether cells get through again. */
	if (in->q->framing != MRC_FRAMING_CELL && st->mss != bpf_htons(MRC_CELL_MARK | MRC_CELL_STUB))
		return MRC_C_DROP_FRAMING;
	key = rx_key(in->h, in->k, (in->p->label & MRC_CELL_PHASE) != 0);
	in->p->psn = psn;
	psn = full_psn(psn, in->rx->next);
	if (!key || st->tag != cell_tag(key, st, in->p->label, psn, in->q->qpn))
		return MRC_C_DROP_CELL;
	if (in->q->framing != MRC_FRAMING_CELL && (s32)(psn - in->rx->next) >= 0)
		return MRC_C_DROP_FRAMING;
	in->p->c.mss = bpf_ntohs(st->mss) & MRC_CELL_MSS;
	return 0;
}

/* Check the inner header's length. Returns the counter of what is wrong, or 0; *l3: its own bytes. */
static __always_inline u32 check_inner(struct __sk_buff *skb, const struct cell_in *in, u32 *l3,
				       u32 *proto)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u8 *ip = data + CELL_OFF;

	if (data + CELL_OFF + 20 > end)
		return MRC_C_DROP_SHORT;
	*proto = ip[9];
	*l3 = (ip[0] & 15) * 4;
	if (in->p->v6) {
		*proto = ip[6];
		*l3 = MRC_IP6_LEN;
		if ((ip[0] >> 4) != 6 || in->p->c.len < MRC_IP6_LEN ||
		    *(__be16 *)(ip + 4) != bpf_htons(in->p->c.len - MRC_IP6_LEN))
			return MRC_C_DROP_INNER;
		return 0;
	}
	if ((ip[0] >> 4) != 4 || *l3 < 20 || *(__be16 *)(ip + 2) != bpf_htons(in->p->c.len))
		return MRC_C_DROP_INNER;
	if (in->p->c.mss && (*(__be16 *)(ip + 6) & bpf_htons(MRC_IP4_FRAGMENT)))
		return MRC_C_DROP_INNER;
	return 0;
}

/* Find the PSNs of a piece. Returns the counter of what is wrong with it, or 0. */
static __always_inline u32 find_place(struct __sk_buff *skb, struct cell_in *in, u32 seq)
{
	u32 why, l3, proto, mss = in->p->c.mss, payload, place;
	u8 tcp[TCP_LEN];

	in->p->c.count = 1;
	in->p->wrong = INNER_OK;
	if (mss == MRC_CELL_STUB) {
		in->p->c.mss = mss = 0;
		in->p->wrong = INNER_STUB;
	}
	why = check_inner(skb, in, &l3, &proto);
	if (why)
		return why;
	if (!mss)
		return skb->gso_size || in->p->c.len > CFG_MTU ? MRC_C_DROP_LENGTH : 0;
	if (mss < MRC_CELL_MSS_MIN || proto != IP_TCP ||
	    bpf_skb_load_bytes(skb, CELL_OFF + l3, tcp, sizeof(tcp)) || (tcp[12] >> 4) * 4 < TCP_LEN)
		return MRC_C_DROP_INNER;
	in->p->c.head = l3 + (tcp[12] >> 4) * 4;
	if (in->p->c.len <= in->p->c.head || in->p->c.head + mss > CFG_MTU)
		return MRC_C_DROP_LENGTH;
	payload = in->p->c.len - in->p->c.head;
	if (payload > mss && skb->gso_size != mss)
		return MRC_C_DROP_LENGTH;
	in->p->c.count = packets_of(payload, mss);
	place = cell_place(bpf_ntohl(*(__be32 *)(tcp + 4)), seq, mss);
	if (place + in->p->c.count > MRC_CELL_PACKETS)
		return MRC_C_DROP_LENGTH;
	in->p->ace = has_accurate_ecn(tcp, &in->rx->ace_flows);
	in->p->psn = (in->p->psn + place) & MRC_PSN_MASK;
	return 0;
}

/*
 * Take the outer headers off. Returns 0 or an error. bpf_skb_adjust_room() keeps
 * skb->protocol, unless a flag that came in Linux 6.3 says what follows.
 * Without it, where one version of IP is inside the other, a part comes off, or is added, by
 * bpf_skb_change_proto(), which changes the protocol and, by the difference of the
 * two headers, the length.
 */
static __always_inline int undress(struct __sk_buff *skb, const struct cell_in *in)
{
	u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	u32 v6 = in->p->v6, outer6 = CELL_IP_LEN == MRC_IP6_LEN;
	s32 len = CELL_HEAD;

	if (PATCHED(DECAP_PLACE)) {
		flags |= v6 ? DECAP_L3_IPV6 : DECAP_L3_IPV4;
	} else if (v6 != outer6) {
		if (bpf_skb_change_proto(skb, bpf_htons(v6 ? ETH_P_IPV6 : ETH_P_IP), 0))
			return -1;
		len += v6 ? MRC_IP6_LEN - MRC_IP4_LEN : MRC_IP4_LEN - MRC_IP6_LEN;
	}
	return bpf_skb_adjust_room(skb, -len, BPF_ADJ_ROOM_MAC, flags);
}

/* Copy a piece of several packets into the reorder ring. Returns the slot + 1, or 0. */
static __always_inline u32 hold_cell(struct __sk_buff *skb, const struct cell_in *in, u32 psn)
{
	u64 len = in->p->c.len;
	struct mrc_big *big;
	u32 slot;

	if (rx_slot_take(MRC_ROOM_CELLS, &slot))
		return 0;
	big = rx_cells.lookup(&slot);
	if (!big)
		return 0;
	if (!CELL_LEN_OK(len) || bpf_skb_load_bytes(skb, CELL_OFF, big->data, len)) {
		rx_slot_give(MRC_ROOM_CELLS, slot);
		return 0;
	}
	big->left = in->p->c.count;
	big->len = len;
	big->head = in->p->c.head;
	big->mss = in->p->c.mss;
	big->count = in->p->c.count;
	big->ace = in->p->ace;
	big->tag = (u64)in->p->qp << 32 | psn;
	return (slot | MRC_SLOT_BIG) + 1;
}

/* Say where the packets of a held piece are. Only entries of PSNs that are not received change. */
static __always_inline void enter_held(const struct cell_in *in, u32 psn, u32 held)
{
	u32 i, len = in->p->c.head + in->p->c.mss;
	struct mrc_rx_entry *entry;

	for (i = 0; i < MRC_CELL_PACKETS; i++) {
		if (i >= in->p->c.count)
			break;
		if (i + 1 == in->p->c.count)
			len = in->p->c.len - i * in->p->c.mss;
		entry = rx_entry_get(in->p->qp, psn + i);
		if (!entry)
			break;
		entry->slot = held + (i << MRC_SLOT_AT_SHIFT);
		entry->len = len | in->p->wrong << MRC_RX_WHY_SHIFT;
		entry->psn = psn + i;
	}
}

/* Hold a copy of a piece that is early, unless another did meanwhile. Returns its disposition. */
static __always_inline u32 hold_piece(struct __sk_buff *skb, struct cell_in *in, u32 psn)
{
	struct mrc_rx_entry *entry = rx_entry_get(in->p->qp, psn);
	struct mrc_rx *rx = in->rx;
	u32 held, disposition;

	if (!entry)
		return RX_NO_BUFFER;
	if (in->p->c.count == 1)
		held = hold_packet(skb, CELL_OFF, in->p->qp, psn, in->p->c.len, is_partial(skb));
	else
		held = hold_cell(skb, in, psn);
	if (!held)
		return RX_NO_BUFFER;
	/*
	 * Two copies of a piece may be here at once: bits decide, and entries of several packets
	 * follow. mrc_drain takes an entry only if it is whole.
	 */
	bpf_spin_lock(&rx->lock);
	disposition = enter_piece(rx, in->p, psn, entry, held);
	bpf_spin_unlock(&rx->lock);
	if (disposition != RX_HOLD)
		free_copy(held - 1, in->p->c.count, 1);
	else if (in->p->c.count > 1)
		enter_held(in, psn, held);
	return disposition;
}

/*
 * The next piece: send it to mrc0 as the owner of rx->next, so that another CPU
 * cannot overtake. Returns 0, or -1 if it is not delivered and nobody knows of it.
 */
static __always_inline int deliver_piece(struct __sk_buff *skb, struct cell_in *in,
					 const struct place *at)
{
	struct mrc_rx *rx = in->rx;
	int failed;

	skb->mark = 0;
	bpf_set_hash_invalid(skb);
	failed = !in->p->wrong &&
		 (undress(skb, in) ||
		  put_link(skb, in->h, bpf_htons(in->p->v6 ? ETH_P_IPV6 : ETH_P_IP)) ||
		  to_mrc0(skb, in->h, 1));
	bpf_spin_lock(&rx->lock);
	pass_piece(rx, in->p, at, failed);
	bpf_spin_unlock(&rx->lock);
	if (failed)
		return -1;
	if (in->p->wrong) {
		count_by(inner_counter(in->p->wrong), in->p->c.count);
		return 0;
	}
	count_by(MRC_C_RX_PACKETS, in->p->c.count);
	count_by(MRC_C_RX_BYTES, in->p->c.len);
	if (in->p->c.count > 1)
		count(MRC_C_RX_CELLS);
	return 0;
}

/* Note what mrc_drain should do with the skb of a single packet. */
static __always_inline int cell_drain(struct __sk_buff *skb, const struct cell_in *in, u32 psn,
				      u32 want, u32 duplicate)
{
	struct mrc_chain *chain = in->chain;

	if (forget_partial(skb))
		return TC_ACT_SHOT;
	skb->cb[0] = CHAIN_PACKET;
	begin_drain(chain, in->p->qp, want);
	answer_to(&chain->drain, psn, piece_ev(in->p), in->p->label >> MRC_CELL_ATTEMPT_SHIFT,
		  in->p->ce, duplicate ? MRC_CC_FLAG_DUPLICATE : 0);
	tails.call(skb, TAIL_DRAIN);
	return TC_ACT_SHOT;
}

/* Make use of the skb of a single packet: release what waits, send a SACK, or ask for one. */
static __always_inline int cell_done(struct __sk_buff *skb, const struct cell_in *in, u32 psn,
				     u32 disposition, u64 now)
{
	u32 want = in->p->ce || (in->p->label & (MRC_CELL_ACKREQ | 3 << MRC_CELL_ATTEMPT_SHIFT));
	struct mrc_chain *chain = in->chain;
	struct mrc_rx *rx = in->rx;
	struct mrc_balance *b;

	if (disposition == RX_DUPLICATE && in->p->c.count == 1) {
		bpf_spin_lock(&rx->lock);
		want = may_answer_copy(rx, now);
		bpf_spin_unlock(&rx->lock);
	} else {
		want |= sack_is_due(rx, in->h, in->q, now);
	}
	if (in->p->c.count > 1 || skb->gso_size) {
		watch_only(in->p->qp);
		return TC_ACT_SHOT;
	}
	if (!want || rx->waiting)
		watch(skb, in->p->qp);
	if (want || rx_bit(rx, rx->next))
		return cell_drain(skb, in, psn, want, disposition == RX_DUPLICATE);
	b = balance_get(in->q->peer);
	if (!b)
		return TC_ACT_SHOT;
	begin_chain(chain);
	skb->cb[0] = CHAIN_PACKET;
	go_ask(skb, chain, in->h, in->q->peer, b, now);
	return TC_ACT_SHOT;
}

/* Deliver, hold, send round or drop a piece whose state has been checked. */
static __always_inline int place_cell(struct __sk_buff *skb, struct cell_in *in)
{
	struct mrc_rx *rx = in->rx;
	u64 now = bpf_ktime_get_ns();
	u32 stamp = (u32)(now >> CIRCLE_SHIFT) | 1, mark = skb->mark, disposition;
	struct place at;

	bpf_spin_lock(&rx->lock);
	place_piece(rx, in->h->circle_ns, in->p, mark, stamp, now, &at);
	bpf_spin_unlock(&rx->lock);
	if (at.circle) {
		count(MRC_C_RX_CIRCLED);
		if (!mark)
			skb->mark = stamp;
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	}
	disposition = at.disposition;
	if (disposition <= RX_HOLD && !in->p->wrong)
		in->p->wrong = check_inner_of(skb, CELL_OFF, in->h, in->q->peer, in->p->v6);
	if (disposition == RX_HOLD)
		disposition = hold_piece(skb, in, at.psn);
	else if (disposition == RX_DELIVER && deliver_piece(skb, in, &at))
		return cell_refuse(skb, in, MRC_C_DELIVER_RETRY, MRC_NACK_NO_RESOURCE);
	switch (disposition) {
	case RX_OUTSIDE:
		return cell_refuse(skb, in, MRC_C_DROP_PSN, MRC_NACK_PSN_OOR_WINDOW);
	case RX_OVERLAP:
		return cell_drop(in, MRC_C_RX_OVERLAP);
	case RX_NO_BUFFER:
		return cell_refuse(skb, in, MRC_C_DROP_BUFFER, MRC_NACK_NO_PKT_BUFFER);
	case RX_DUPLICATE:
		count(in->p->wrong == INNER_STUB ? MRC_C_TRIAL_RX : MRC_C_RX_DUPLICATE);
		break;
	case RX_HOLD:
		count_by(MRC_C_RX_HELD, in->p->c.count);
		break;
	}
	capture_outcome(in->key, in->p->qp,
			in->p->wrong && disposition <= RX_HOLD ?
			inner_counter(in->p->wrong) : disposition_counter(disposition));
	return cell_done(skb, in, at.psn, disposition, now);
}

/* A switch has cut the packet: answer with a NACK instead of taking it. */
static __always_inline int refuse_cut(struct __sk_buff *skb, const struct cell_in *in)
{
	u32 ifindex = 0, why = MRC_C_DROP_SKB;

	if (!forget_partial(skb))
		why = nack_cell(skb, in->h, in->q, in->rx, in->p, &ifindex);
	if (why != MRC_C_NACK_TX)
		return cell_drop(in, why);
	capture_outcome(in->key, in->p->qp, why);
	return bpf_redirect(ifindex, 0);
}

int mrc_cell(struct __sk_buff *skb)
{
	struct cell_in in = { .h = host_get(), .chain = chain_get(CHAIN_PACKET) };
	struct mrc_cell state;
	u32 why;

	if (!in.h || !in.chain)
		return TC_ACT_SHOT;
	in.p = &in.chain->piece;
	skb_pull_headers(skb, CELL_OFF + 20);
	why = check_outer(skb, &in, &state);
	if (!why)
		why = check_state(&in, &state);
	if (!why)
		why = find_place(skb, &in, state.seq);
	if (CELL_UDP && !ENCAP_SRV6 && why == MRC_C_DROP_SID)
		return TC_ACT_UNSPEC; /* for a host behind this one */
	if (why)
		return cell_drop(&in, why);
	return in.p->cut ? refuse_cut(skb, &in) : place_cell(skb, &in);
}
