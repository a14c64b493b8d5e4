/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spray, second part: cells. A large segment of TCP goes out as it is, with one
 * header more, by one path; the NIC cuts it, and each of its packets has a PSN.
 * All other packets are cells of one packet.
 */

/* The kept copy of a cell. */
struct cell_copy {
	struct mrc_slot *one;    /* of a single packet ... */
	struct mrc_big *big;     /* ... or of several */
	u32 slot;                /* in the retransmit ring, MRC_SLOT_... */
	u32 ace;                 /* 1: its flow uses AccECN */
};

/*
 * Measure a packet from mrc0. Returns 0, or -1 if it is large, but no segment of
 * TCP that can be a cell.
 */
static __always_inline int measure_cell(struct __sk_buff *skb, struct mrc_tx *tx, struct cell *c,
					struct cell_copy *copy)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u8 *ip = data + MRC_ETH_LEN, tcp[TCP_LEN];
	u32 l3;

	c->len = skb->len - MRC_ETH_LEN;
	c->count = 1;
	c->head = 0;
	c->mss = 0;
	c->seq = 0;
	if (!skb->gso_size)
		return 0;
	if (data + MRC_ETH_LEN + MRC_IP6_LEN > end) /* IPv4 with TCP is as long */
		return -1;
	l3 = (ip[0] & 15) * 4;
	if ((ip[0] >> 4) == 6 ? ip[6] != IP_TCP : ip[9] != IP_TCP)
		return -1;
	if ((ip[0] >> 4) == 6)
		l3 = MRC_IP6_LEN;
	if (bpf_skb_load_bytes(skb, MRC_ETH_LEN + l3, tcp, sizeof(tcp)))
		return -1;
	c->head = l3 + (tcp[12] >> 4) * 4;
	c->mss = skb->gso_size;
	if (c->mss < MRC_CELL_MSS_MIN || c->mss > CFG_MTU || c->len <= c->head)
		return -1;
	c->count = packets_of(c->len - c->head, c->mss);
	c->seq = bpf_ntohl(*(__be32 *)(tcp + 4));
	copy->ace = has_accurate_ecn(tcp, &tx->ace_flows);
	if (c->count >= MRC_CELL_PACKETS || c->head + c->mss > CFG_MTU)
		return -1;
	if (c->count == 1) {
		c->mss = 0;
		c->seq = 0;
	}
	return 0;
}

/* Copy a cell of several packets. Returns 0, or -1 if there is no room for it. */
static __always_inline int keep_cell(struct __sk_buff *skb, const struct cell *c,
				     struct cell_copy *copy)
{
	u64 len = c->len;
	struct mrc_big *big;
	u32 slot;

	if (tx_cells_free.pop(&slot))
		return -1;
	big = tx_cells.lookup(&slot);
	if (!big)
		return -1;
	big->tag = ~0ull;
	barrier();
	if (!CELL_LEN_OK(len) || bpf_skb_load_bytes(skb, MRC_ETH_LEN, big->data, len)) {
		tx_cells_free.push(&slot, 0);
		return -1;
	}
	big->left = c->count;
	big->len = len;
	big->head = c->head;
	big->mss = c->mss;
	big->count = c->count;
	big->resent = 0;
	big->ace = copy->ace;
	copy->big = big;
	copy->slot = slot | MRC_SLOT_BIG;
	return 0;
}

/* Flags of bpf_skb_adjust_room: what the new headers are. The last is of Linux 5.13. */
#define ENCAP_L2_ETH (1ull << 6)
#define CELL_ENCAP (BPF_F_ADJ_ROOM_FIXED_GSO | \
		    (CELL_IP_LEN == MRC_IP4_LEN ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : \
						  BPF_F_ADJ_ROOM_ENCAP_L3_IPV6) | \
		    (CELL_UDP ? BPF_F_ADJ_ROOM_ENCAP_L4_UDP | \
				BPF_F_ADJ_ROOM_ENCAP_L2(MRC_ETH_LEN) | ENCAP_L2_ETH : 0))

/*
 * Make room for the outer headers. A NIC fills the checksum of a packet inside
 * another only if the skb says that it is inside another; veth passes it on, and
 * there the skb is better off without the hint, because at the other end it would
 * keep a program from making an answer of it. An skb that is inside something
 * already cannot have the hint once more; a large one of those is cut.
 */
static __always_inline int make_room(struct __sk_buff *skb, const struct cell *c)
{
	u32 zero = 0;
	struct mrc_plane *pl = planes.lookup(&zero);

	if (!pl)
		return -1;
	if ((skb->gso_size || !pl->bare) &&
	    !bpf_skb_adjust_room(skb, CELL_HEAD, BPF_ADJ_ROOM_MAC, CELL_ENCAP))
		return 0;
	return skb->gso_size ? -1 : bpf_skb_change_head(skb, CELL_HEAD, 0);
}

/* Note what was sent where, for each packet of a cell. */
static __always_inline int record_cell(u32 qp, u32 psn, u32 id, const struct cell *c,
				       const struct cell_copy *copy, u64 now)
{
	u32 i, len = c->head + c->mss;

	if (c->count == 1) {
		if (!copy->one || record_packet(qp, psn, id, copy->slot, c->len, now))
			return -1;
		copy->one->tag = (u64)qp << 32 | psn;
		return 0;
	}
	for (i = 0; i < MRC_CELL_PACKETS; i++) {
		if (i >= c->count)
			break;
		if (i + 1 == c->count)
			len = c->len - i * c->mss;
		if (record_packet(qp, psn + i, id, copy->slot | i << MRC_SLOT_AT_SHIFT, len, now))
			return -1;
	}
	if (!copy->big)
		return -1;
	copy->big->tag = (u64)qp << 32 | psn;
	return 0;
}

/* Tell arriving packets that this QP would like to hear of what it sent. */
static __always_inline void want_sack(const struct flow *f, u32 qp)
{
	u64 bit = 1ull << ((qp - f->peer->qp_base) & 63);

	if (!(f->b->wants & bit))
		__sync_fetch_and_or(&f->b->wants, bit);
}

/* Write the headers of a cell and send it. If that fails, it is found missing and sent again. */
static __always_inline int cell_out(struct __sk_buff *skb, const struct flow *f, u32 qp, u32 psn,
				    u32 id, const struct cell *c, u8 next)
{
	u32 flags = id & (PATH_SLOW | PATH_LAST) ? MRC_CELL_ACKREQ : 0;
	struct route r;
	void *data, *end;

	if (f->redundant) /* as in spray_out() */
		flags = MRC_CELL_ACKREQ;
	id &= 0xffff;
	if (find_route(qp, f->q, id, &r))
		return spray_drop(MRC_C_DROP_STATE);
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_cell(data, end, f->h, r.keys, r.pl, r.pp, r.path->ev, data_class(f->h, f->q, 0), flags,
		     f->q->remote_qpn, psn, c, next))
		return spray_drop(MRC_C_DROP_SKB);
	__sync_fetch_and_add(&r.path->sent, 1);
	count_by(MRC_C_TX_PACKETS, c->count);
	count_by(MRC_C_TX_BYTES, c->len);
	if (c->count > 1)
		count(MRC_C_TX_CELLS);
	capture_skb(skb, RECORD_PACKET, path_plane(id), qp, f->q->peer, MRC_C_TX_PACKETS);
	if (f->redundant)
		note_sent(skb, qp, psn, id);
	return to_plane(skb, r.pl);
}

static __always_inline int spray_cell(struct __sk_buff *skb, const struct flow *f, u32 qp)
{
	u8 next = skb->protocol == bpf_htons(ETH_P_IP) ? IPPROTO_IPIP : IPPROTO_IPV6;
	struct cell_copy kept = {};
	struct copy single;
	u32 psn, id, why;
	struct cell c;
	u64 now;

	if (measure_cell(skb, f->tx, &c, &kept))
		return spray_cut(skb, f);
	if (c.count > 1) {
		if (c.len > f->h->cell_bytes || keep_cell(skb, &c, &kept))
			return spray_cut(skb, f);
	} else {
		why = keep_copy(skb, f, &single);
		if (why)
			return spray_drop(why);
		kept.one = single.buf;
		kept.slot = single.slot;
	}
	if (!f->tell && make_room(skb, &c)) {
		if (c.count == 1)
			return spray_undo(kept.slot, MRC_C_DROP_SKB);
		spray_free(kept.slot);
		return spray_cut(skb, f);
	}
	now = bpf_ktime_get_ns();
	/* Each packet is acknowledged, or released, with headers of its own. */
	why = take_psn(f, now, c.count, c.len + (c.count - 1) * c.head,
		       turn_price(c.len, f->h->cell_bytes), &psn, &id);
	if (why)
		return spray_undo(kept.slot, why);
	FORGET(id, now); /* record_cell() has a long loop */
	FORGET(next, now);
	if (record_cell(qp, psn, id & 0xffff, &c, &kept, now))
		return TC_ACT_SHOT;
	watch(skb, qp);
	if (f->tell)
		return spray_kept(id, c.len);
	if (id & PATH_HELD) {
		count_by(MRC_C_TX_HELD, c.count);
		return SPRAY_HELD;
	}
	if (c.count > 1)
		want_sack(f, qp);
	return cell_out(skb, f, qp, psn, id, &c, next);
}

/* Is this a packet that spray_hold() has sent to its end? */
static __always_inline int is_held(struct __sk_buff *skb)
{
	struct mrc_host *h;

	if (skb->mark != MRC_HELD_MARK)
		return 0;
	h = host_get();
	return h && skb->ifindex == h->cut_back_ifindex;
}

/* Send a packet of a flow that may send. */
static __always_inline int spray_flow(struct __sk_buff *skb, const struct flow *f, u32 qp)
{
	u32 why;

	if (f->tell && at_egress(skb, f->h)) /* where it comes back its sender can be told */
		return spray_cut(skb, f);
	if (CELLS && follows_cut(skb, f))
		return SPRAY_CUT;
	if (skb->gso_size && !(CELLS && f->q->framing == MRC_FRAMING_CELL))
		return spray_cut(skb, f);
	if (CELLS && !skb->gso_size && is_unfinished(skb, f))
		return spray_cut(skb, f);
	why = admit(skb, f);
	if (why)
		return spray_drop(why);
	if (CELLS && f->q->framing == MRC_FRAMING_CELL)
		return spray_cell(skb, f, qp);
	return spray_packet(skb, f, qp);
}

/*
 * Do with a packet what spray_flow() has decided. The copy of one that waits is sent when the
 * window has room (release.c), and the packet itself is done with. At egress a drop would tell the
 * sender that it was not taken, so it goes to an ingress of ours and is dropped there, unless its
 * sender's socket goes on paying for it.
 */
static __always_inline int end_spray(struct __sk_buff *skb, const struct flow *f, int verdict)
{
	u32 len;

	if (verdict != SPRAY_HELD && verdict != SPRAY_CUT && verdict != SPRAY_REFUSED)
		return verdict;
	len = parked_len(skb, f, verdict);
	if (CELLS && verdict == SPRAY_CUT) {
		count_cut(skb, f);
		if (!len)
			return bpf_redirect(f->h->cut_ifindex, 0);
		bpf_clone_redirect(skb, f->h->cut_ifindex, 0);
	}
	if (len)
		return park(skb, f, len);
	if (verdict == SPRAY_REFUSED || !at_egress(skb, f->h))
		return TC_ACT_SHOT;
	skb->mark = MRC_HELD_MARK;
	return bpf_redirect(f->h->cut_back_ifindex, BPF_F_INGRESS);
}

int mrc_spray(struct __sk_buff *skb)
{
	struct flow f;
	int verdict;
	u32 qp, why;

	if (is_held(skb))
		return TC_ACT_SHOT;
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return spray_drop(MRC_C_DROP_NOT_IP);
	if (skb->len > MRC_ETH_LEN + CFG_MTU && !skb->gso_size)
		return spray_drop(MRC_C_DROP_TOO_BIG);
	why = find_flow(skb, &f, &qp);
	if (why)
		return spray_refuse(skb, &f, why);
	f.tell = is_away(f.peer, f.b);
	if (f.tell && begins_tcp(skb, &f))
		return spray_refuse(skb, &f, MRC_C_DROP_UNREACHABLE);
	f.tell &= !f.tcp;
	f.redundant = !f.tell && is_redundant(skb, f.h);
	FORGET(f.redundant, f.seat);
	FORGET(f.tell, f.seat); /* or the verifier would walk what follows once for each value */
	FORGET(f.keeps, f.seat);
	FORGET(f.small, f.seat);
	FORGET(f.pays, f.seat);
	verdict = spray_flow(skb, &f, qp);
	if (CELLS)
		end_cut(skb, &f);
	if (f.tell && (verdict == TC_ACT_SHOT || verdict == SPRAY_REFUSED)) {
		skb->cb[1] = 0;
		tails.call(skb, TAIL_UNREACHABLE);
	}
	if (f.redundant && verdict == TC_ACT_REDIRECT)
		tails.call(skb, TAIL_REDUNDANT);
	return end_spray(skb, &f, verdict);
}
