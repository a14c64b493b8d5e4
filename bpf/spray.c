/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spray: an IP packet that an application sent to mrc0 becomes an MRC data
 * packet, or a cell (cell_tx.c), on the next path. With cells mrc_spray runs at tc
 * egress of the interface under mrc0, in the sender's context, and gets TCP's
 * segments as large as TCP makes them. What cannot leave as it is goes out of the
 * cutting interface, where the kernel makes single packets of it, and comes back.
 * Without cells it runs at tc ingress of mrc0's other end, for all packets of a
 * flow on one CPU. Like the programs of the planes it runs in a softirq, or in
 * another context with softirqs disabled.
 */

/* The kept copy of a packet. */
struct copy {
	struct mrc_slot *buf;
	u32 slot;                /* in the retransmit ring */
	u64 len;                 /* of the application's packet, bytes */
};

/* Find the peer that owns the inner destination; `ends` becomes both addresses, as IPv6 has them. */
static __always_inline u32 *find_peer(struct __sk_buff *skb, u32 *tcp, u32 *ends)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (data + MRC_ETH_LEN + 20 > end)
			return 0;
		*tcp = *(u8 *)(data + MRC_ETH_LEN + 9) == IP_TCP;
		map_ends(ends, *(__be32 *)(data + MRC_ETH_LEN + 12),
			 *(__be32 *)(data + MRC_ETH_LEN + 16));
	} else {
		if (data + MRC_ETH_LEN + MRC_IP6_LEN > end)
			return 0;
		*tcp = *(u8 *)(data + MRC_ETH_LEN + 6) == IP_TCP;
		copy_addr(ends, data + MRC_ETH_LEN + 8);
		copy_addr(ends + 4, data + MRC_ETH_LEN + 24);
	}
	return owner_of(ends + 4);
}

/*
 * Would the peer take the packet from this host? It takes what comes from an address of
 * this host's or of a prefix behind it, and ICMP errors of routers there.
 */
static __always_inline int comes_from_here(struct __sk_buff *skb, const u32 *from)
{
	u32 *owner = owner_of(from);

	return (owner && *owner == MRC_OWNER_SELF) ||
	       is_icmp_error(skb, MRC_ETH_LEN, skb->protocol == bpf_htons(ETH_P_IPV6));
}

/* Does the program run in the sender's context, and not where packets come in? */
static __always_inline int at_egress(struct __sk_buff *skb, const struct mrc_host *h)
{
	return h->cut_back_ifindex && skb->ifindex != h->cut_back_ifindex;
}

/* What becomes of a packet that spray_flow() does not send; no actions: end_spray() carries them out. */
#define SPRAY_HELD 0x10          /* a copy of it waits for the window */
#define SPRAY_CUT 0x11           /* it goes out of the cutting interface */
#define SPRAY_REFUSED 0x12       /* too much waits */

/*
 * At tc egress the sender is told: TCP keeps the packet for later, others see ENOBUFS. Where too
 * much waits, end_spray() may have it pay as well.
 */
static __always_inline int spray_drop(u32 why)
{
	count(why);
	return why == MRC_C_DROP_BACKLOG ? SPRAY_REFUSED : TC_ACT_SHOT;
}

/* Does the daemon say that it does not hear the peer? */
static __always_inline int is_unheard(const struct mrc_peer *peer)
{
	return peer->unheard_ns && peer->unheard_ns > bpf_ktime_get_ns();
}

/*
 * Drop a packet that cannot be sent. If its destination is unreachable by what is known, or
 * for packets from its source, its sender is told (unreachable.c).
 */
static __always_inline int spray_refuse(struct __sk_buff *skb, const struct flow *f, u32 why)
{
	if (why == MRC_C_DROP_NO_PEER || why == MRC_C_DROP_NOT_OURS || is_unheard(f->peer)) {
		skb->cb[1] = why;
		tails.call(skb, TAIL_UNREACHABLE);
	}
	return spray_drop(why);
}

#define TRIAL_NS 500000000ull    /* time that a peer, which the daemon does not hear, has to answer something new */

/*
 * Is the peer really away? Its daemon may be dead while its data path works. So the first
 * new thing is sent, and the peer is away while that is not answered. The clock repeats it,
 * and its acknowledgement ends this.
 */
static __always_inline int is_away(const struct mrc_peer *peer, struct mrc_balance *b)
{
	u64 now;

	if (!is_unheard(peer))
		return 0;
	now = bpf_ktime_get_ns();
	if (b->heard_ns >= b->tried_ns) {
		b->tried_ns = now;
		return 0;
	}
	return now - b->tried_ns > TRIAL_NS;
}

/* Is it a segment of TCP that begins a connection? */
static __always_inline int begins_tcp(struct __sk_buff *skb, const struct flow *f)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u32 l4 = MRC_IP6_LEN;
	u8 flags;

	if (!f->tcp || data + MRC_ETH_LEN + 1 > end)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		l4 = (*(u8 *)(data + MRC_ETH_LEN) & 15) * 4;
	return !bpf_skb_load_bytes(skb, MRC_ETH_LEN + l4 + 13, &flags, 1) &&
	       (flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* A packet that got a slot but cannot be sent gives it back. */
static __always_inline void spray_free(u32 slot)
{
	if (slot & MRC_SLOT_BIG) {
		slot &= MRC_SLOT_INDEX;
		tx_cells_free.push(&slot, 0);
	} else {
		tx_free.push(&slot, 0);
	}
}

static __always_inline int spray_undo(u32 slot, u32 why)
{
	spray_free(slot);
	return spray_drop(why);
}

#define FLOW_QPS 4               /* QPs among which a flow chooses */

/*
 * The QP that takes a packet, where packets wait in `own`, which the flow's hash names, or
 * the flow may be in another. A flow stays where it has packets on their way, which keeps
 * its order. With none on their way, it goes where nothing waits: what is sent now and then
 * does not queue behind a flow that fills its QP.
 */
static __always_inline u32 find_seat(const struct mrc_peer *peer, struct mrc_balance *b, u32 own,
				     u32 own_holds, u64 seat)
{
	u32 i, qp, load, best = own, least = own_holds ? ~0u : 0;
	struct mrc_tx *tx;
	struct mrc_qp *q;

	#pragma unroll
	for (i = 1; i < FLOW_QPS; i++) {
		qp = peer->qp_base + (((own - peer->qp_base) ^ i) & peer->qp_mask);
		tx = txs.lookup(&qp);
		q = qps.lookup(&qp);
		if (!tx || !q || q->state != MRC_QP_READY)
			continue;
		load = tx->held ? ~0u : tx->inflight;
		if (flow_is_in(tx, seat)) {
			best = qp;
			break;
		}
		if (load < least) {
			least = load;
			best = qp;
		}
	}
	if (best != own)
		__sync_fetch_and_or(&b->away, seat);
	else if (b->away & seat)
		__sync_fetch_and_and(&b->away, ~seat);
	return best;
}

#define SMALL_CWND 10             /* packets of TCP's window that are not made fewer */

/* Ask TCP what its connection has on its way, and how much it may have. */
static __always_inline void ask_tcp(struct __sk_buff *skb, struct flow *f)
{
	struct bpf_sock *sk = skb->sk;
	struct bpf_tcp_sock *tcp;

	if (!sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return;
	tcp = bpf_tcp_sock(sk);
	if (!tcp)
		return;
	f->small = tcp->snd_cwnd <= SMALL_CWND;
	if (!tcp->packets_out)
		f->keeps = KEEPS_QUIET;
}

/*
 * Find where a packet goes, and which of the peer's QPs takes it. Returns the
 * counter of what prevents it, or 0.
 */
static __always_inline u32 find_flow(struct __sk_buff *skb, struct flow *f, u32 *qp_index)
{
	u32 *peer_index, qp, hash, ends[8];

	peer_index = find_peer(skb, &f->tcp, ends);
	f->h = host_get();
	if (!peer_index || !f->h)
		return MRC_C_DROP_NO_PEER;
	f->small = 0;
	f->peer = peer_get(*peer_index);
	f->b = balance_get(*peer_index);
	if (!f->peer || !f->b)
		return MRC_C_DROP_NO_PEER;
	if (f->h->inner && !comes_from_here(skb, ends))
		return MRC_C_DROP_NOT_OURS;
	hash = bpf_get_hash_recalc(skb);
	f->bit = 1ull << (hash >> 8 & 63); /* the lowest bits choose the QP */
	qp = f->peer->qp_base + (hash & f->peer->qp_mask);
	f->seat = 1ull << (hash & 63);
	f->tx = txs.lookup(&qp);
	if (!f->tx)
		return MRC_C_DROP_NOT_READY;
	if ((f->tx->held || (f->b->away & f->seat)) && !flow_is_in(f->tx, f->seat))
		qp = find_seat(f->peer, f->b, qp, f->tx->held, f->seat);
	/* Look it up in any case, or the verifier walks all that follows twice. */
	f->tx = txs.lookup(&qp);
	f->q = qps.lookup(&qp);
	if (!f->q || !f->tx)
		return MRC_C_DROP_NOT_READY;
	if (f->q->state != MRC_QP_READY)
		return f->q->state == MRC_QP_ERROR ? MRC_C_DROP_QP_ERROR : MRC_C_DROP_NOT_READY;
	f->keeps = f->tcp && at_egress(skb, f->h) && skb->sk ? KEEPS : 0;
	if (f->keeps)
		ask_tcp(skb, f);
	f->pays = !f->tcp && f->h->park_ifindex && at_egress(skb, f->h) && skb->sk;
	*qp_index = qp;
	return 0;
}

/* May the flow send now? Returns the counter of what prevents it, or 0. */
static __always_inline u32 admit(struct __sk_buff *skb, const struct flow *f)
{
	if (!(f->b->ports & 0xff)) /* the peer says that it takes packets on no plane */
		return MRC_C_DROP_NO_PLANE;
	if (f->tx->next - f->tx->una >= numbered_at_once(f))
		return MRC_C_DROP_WINDOW;
	/* take_psn() looks again; here it saves a copy. */
	if (f->tx->backlog && nscc_full(f->h, f->tx, skb->len - MRC_ETH_LEN, f->tcp,
					f->keeps, f->pays, f->bit, bpf_ktime_get_ns()))
		return MRC_C_DROP_BACKLOG;
	if (!f->small && signal_queue(skb, f->h, f->q, f->tx, f->b, f->peer) == QUEUE_DROP)
		return MRC_C_DROP_EARLY;
	return 0;
}

/* Copy the packet into a free slot. Returns the counter of what prevents it, or 0. */
static __always_inline u32 keep_copy(struct __sk_buff *skb, const struct flow *f, struct copy *c)
{
	u64 len = skb->len - MRC_ETH_LEN;
	u32 slot;

	if (tx_free.pop(&slot))
		return MRC_C_DROP_RING;
	c->buf = tx_ring.lookup(&slot);
	if (!c->buf)
		return MRC_C_DROP_RING;
	c->slot = slot;
	c->buf->tag = ~0ull;
	c->buf->expires_ns = expiry_of(f->h, f->tcp);
	barrier();
	if (!LEN_OK(len)) {
		tx_free.push(&slot, 0);
		return MRC_C_DROP_TOO_BIG;
	}
	if (bpf_skb_load_bytes(skb, MRC_ETH_LEN, c->buf->data, len)) {
		tx_free.push(&slot, 0);
		return MRC_C_DROP_SKB;
	}
	c->len = len;
	return 0;
}

/* Take PSNs and a path, under the lock; as number_packets(). */
static __always_inline u32 take_psn(const struct flow *f, u64 now, u32 packets, u32 len,
				    u32 price, u32 *psn, u32 *id)
{
	u64 up = usable_planes(f->h, f->peer, f->b);
	u32 why;

	bpf_spin_lock(&f->tx->lock);
	why = number_packets(f, up, now, packets, len, price, psn, id);
	bpf_spin_unlock(&f->tx->lock);
	if (why)
		return why;
	return *id == MRC_NO_PATH ? MRC_C_DROP_NO_PATH : 0;
}

/* Note what was sent where. The PSN is written last: it makes the entry valid. */
static __always_inline int record_packet(u32 qp, u32 psn, u32 id, u32 slot, u32 len, u64 now)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);

	if (!entry)
		return -1;
	entry->sent_ns = now;
	entry->slot = slot;
	entry->len = len;
	entry->path = id;
	entry->sends = 1;
	entry->rule = 0;
	barrier();
	entry->psn = psn;
	return 0;
}

static __always_inline int record_sent(struct __sk_buff *skb, u32 qp, u32 psn, u32 id,
				       const struct copy *c, u64 now)
{
	if (record_packet(qp, psn, id, c->slot, c->len, now))
		return -1;
	c->buf->tag = (u64)qp << 32 | psn;
	watch(skb, qp);
	return 0;
}

/* Send a packet out of a plane's NIC. */
static __always_inline int to_plane(struct __sk_buff *skb, const struct mrc_plane *pl)
{
	as_data(skb);
	return bpf_redirect(pl->ifindex, 0);
}

/* Note for mrc_redundant what is sent. */
static __always_inline void note_sent(struct __sk_buff *skb, u32 qp, u32 psn, u32 id)
{
	skb->cb[1] = qp;
	skb->cb[2] = psn;
	skb->cb[3] = id;
}

/* Turn the packet into an MRC one and send it. If that fails, it is found missing and sent again. */
static __always_inline int spray_out(struct __sk_buff *skb, const struct flow *f, u32 qp, u32 psn,
				     u32 id, u64 len, u64 now)
{
	/* Few packets take a slow path: ask each for a SACK, to learn whether it still is slow. */
	u32 aux = id & (PATH_SLOW | PATH_LAST) ? MRC_BTH_ACKREQ : 0;
	struct route r;

	if (f->redundant) /* the EV of each SACK tells which of the two has arrived */
		aux = MRC_BTH_ACKREQ;
	id &= 0xffff;
	if (find_route(qp, f->q, id, &r))
		return spray_drop(MRC_C_DROP_STATE);
	if (bpf_skb_change_tail(skb, skb->len + MRC_ICRC_LEN, 0) ||
	    bpf_skb_change_head(skb, MRC_STRIP, 0) ||
	    dress_data(skb, f->h, f->q, &r, psn, len, aux, now, MRC_RKEY_NETDEV))
		return spray_drop(MRC_C_DROP_SKB);
	count(MRC_C_TX_PACKETS);
	count_by(MRC_C_TX_BYTES, len);
	capture_skb(skb, RECORD_PACKET, path_plane(id), qp, f->q->peer, MRC_C_TX_PACKETS);
	if (f->redundant)
		note_sent(skb, qp, psn, id);
	return to_plane(skb, r.pl);
}

/*
 * Have the sender's socket go on paying for a packet, of which a copy waits or a clone is being
 * cut, or which was refused: `len` bytes of it are to leave the parking interface.
 */
static __always_inline int park(struct __sk_buff *skb, const struct flow *f, u32 len)
{
	if (len > CFG_MTU && !skb->gso_size) /* no more leaves at once */
		len = CFG_MTU;
	if (len < skb->len)
		bpf_skb_change_tail(skb, len, 0);
	count(MRC_C_TX_PARKED);
	return bpf_redirect(f->h->park_ifindex, 0);
}

/*
 * How much of a packet is to leave the parking interface, after end_spray()'s verdict; 0: it need
 * not be parked. What is being cut will wait, too. A large datagram leaves in parts; a
 * shorter one of it would leave at once.
 */
static __always_inline u32 parked_len(struct __sk_buff *skb, const struct flow *f, int verdict)
{
	u32 waits = f->tx->others, len;
	s64 cut = f->tx->cut_pending;

	if (!f->pays)
		return 0;
	if (verdict == SPRAY_REFUSED)
		return skb->len;
	if (verdict == SPRAY_CUT && cut > 0)
		waits += cut * CFG_MTU;
	len = nscc_parked(f->h, f->tx, waits, skb->len, bpf_ktime_get_ns());
	return len && skb->gso_size ? skb->len : len;
}

/*
 * The copy is sent when the clock finds it missing, or when the window has room, and the
 * packet itself tells its sender that the peer is not heard.
 */
static __always_inline int spray_kept(u32 id, u64 len)
{
	if (!(id & PATH_HELD)) { /* else counted by mrc_release */
		count(MRC_C_TX_PACKETS);
		count_by(MRC_C_TX_BYTES, len);
	}
	return TC_ACT_SHOT;
}

/* Send a packet in MRC's framing. */
static __always_inline int spray_packet(struct __sk_buff *skb, const struct flow *f, u32 qp)
{
	u32 psn, id, why;
	struct copy c;
	u64 now;

	why = keep_copy(skb, f, &c);
	if (why)
		return spray_drop(why);
	now = bpf_ktime_get_ns();
	why = take_psn(f, now, 1, c.len, WHOLE_TURN, &psn, &id);
	if (why)
		return spray_undo(c.slot, why);
	if (record_sent(skb, qp, psn, id & 0xffff, &c, now))
		return TC_ACT_SHOT;
	if (f->tell)
		return spray_kept(id, c.len);
	if (id & PATH_HELD) {
		count(MRC_C_TX_HELD);
		return SPRAY_HELD;
	}
	return spray_out(skb, f, qp, psn, id, c.len, now);
}

#define CUT_LATEST_NS 100000000ll /* what has not come back from being cut by then is lost */

/* Count what goes out of the cutting interface. Its parts come back one by one. */
static __always_inline void count_cut(struct __sk_buff *skb, const struct flow *f)
{
	__sync_fetch_and_add(&f->tx->cut_pending, skb->gso_segs ? skb->gso_segs : 1);
	bpf_spin_lock(&f->tx->lock);
	note_flow(f->tx, f->seat);
	bpf_spin_unlock(&f->tx->lock);
	if (skb->gso_size)
		count(MRC_C_TX_CUT);
}

/*
 * Have the kernel cut a large packet into single ones, and fill in their checksums. They
 * come back to mrc_spray.
 */
static __always_inline int spray_cut(struct __sk_buff *skb, const struct flow *f)
{
	if (!f->h->cut_ifindex)
		return spray_drop(MRC_C_DROP_TOO_BIG);
	f->tx->cut_flows |= f->bit;
	f->tx->cut_ns = bpf_ktime_get_ns();
	return SPRAY_CUT;
}

/* Has this packet come back from being cut? */
static __always_inline int is_back(struct __sk_buff *skb, const struct flow *f)
{
	return skb->ifindex == f->h->cut_back_ifindex;
}

/*
 * Must this packet take the same way as a large one of its flow? What is cut comes
 * back by a CPU's backlog, and the next packet of the flow would overtake it.
 */
static __always_inline int follows_cut(struct __sk_buff *skb, const struct flow *f)
{
	struct mrc_tx *tx = f->tx;

	if (!tx->cut_flows || is_back(skb, f))
		return 0;
	if ((s64)(bpf_ktime_get_ns() - tx->cut_ns) > CUT_LATEST_NS) {
		tx->cut_flows = 0;
		tx->cut_pending = 0;
		return 0;
	}
	return (s64)tx->cut_pending > 0 && (tx->cut_flows & f->bit);
}

/*
 * Must the kernel fill in a checksum before a copy is kept? A copy is sent without the NIC
 * to which the rest of a checksum is left, and only those of TCP and UDP are completed in
 * it: not those of a packet within another one, of SCTP, or behind extension headers. In
 * MRC's framing no NIC would find the packet. The way through the cutting interface
 * completes any checksum.
 */
static __always_inline int is_unfinished(struct __sk_buff *skb, const struct flow *f)
{
	if (!f->h->cut_ifindex || is_back(skb, f) ||
	    (f->q->framing == MRC_FRAMING_CELL && has_half(skb, &f->tx->ace_flows)))
		return 0;
	return is_partial(skb);
}

/* A packet that has come back has its PSN: those that follow it may go their own way again. */
static __always_inline void end_cut(struct __sk_buff *skb, const struct flow *f)
{
	if (is_back(skb, f) && (s64)f->tx->cut_pending > 0)
		__sync_fetch_and_add(&f->tx->cut_pending, -1);
}
