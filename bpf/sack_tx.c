/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SACKs, the receiver's side: by which path they leave, and what they say beside the
 * window (window.h).
 */

#define CONTROL_PRIORITY 7       /* of the kernel's priorities that for control */

/*
 * What tells of packets does not wait behind data in this host's own queues, as it does not
 * in those of switches: queueing disciplines and queues of NICs sort by priority.
 */
static __always_inline void as_control(struct __sk_buff *skb)
{
	skb->priority = CONTROL_PRIORITY;
}

/*
 * The EV on which to answer something that came by `ev`, the peer's. The mirrored path is
 * the best known one if its plane works in our direction. It alternates with the
 * reverse EV, the path of that plane that last brought an answer to us, in case
 * the mirrored path works in one direction only. If the plane is down here or
 * does not work for us, take another plane's reverse EV.
 */
static __always_inline u32 way_back(u32 qp, const struct mrc_host *h, const struct mrc_qp *q,
				    const struct mrc_tx *tx, u32 ev, u32 turn)
{
	struct mrc_balance *b = balance_get(q->peer);
	struct mrc_peer *peer = peer_get(q->peer);
	u32 plane = our_plane(peer, ev_plane(ev)) & 7, other = plane, id;
	struct mrc_path *path;
	u64 open, live;

	ev = ev_on(plane, ev);
	if (!b || !peer)
		return ev;
	open = tx->plane_use & usable_planes(h, peer, b);
	if (!(open >> plane & 1)) {
		/* the next plane that works and has answered */
		open &= gather_bytes(*(const u64 *)tx->live);
		if (!open)
			return ev;
		other = (plane + lowest_bit((open >> plane | open << (8 - plane)) & 0xff)) & 7;
	} else if (turn & 1) {
		return ev;
	}
	live = tx->live[other];
	if (!live)
		return ev;
	id = path_id(other, (live - 1) & SLOT_MASK);
	path = path_get(qp, id);
	return path && path->ev ? path->ev : ev;
}

/* Our planes that are down, a bit each. */
static __always_inline u32 planes_down(const struct mrc_host *h)
{
	return ~h->plane_mask & ((1u << (h->planes & 15)) - 1);
}

/* Have the SACK ask for a smaller window, or give back what was asked for before. */
static __always_inline void ask_to_shrink(struct mrc_rx *rx, struct sack_body *sack, u32 penalty,
					  u32 ample)
{
	if (penalty) {
		rx->pressed = 1;
		sack->press = penalty << MRC_CC_PENALTY_SHIFT;
		count_atomic(MRC_C_PENALTY_TX);
	} else if (ample && rx->pressed) {
		sack->press = MRC_CC_RESTORE;
	}
}

/*
 * The window that a SACK grants: what waits is in a reorder ring already, and as much
 * more as the rings have free, which all QPs share. In a ring for cells a slot counts
 * as its part of the window, so that an empty ring grants all of it. Never 0: the next
 * packet in order needs no ring, and a sender that may send nothing would hear nothing.
 * Before that, the penalty shrinks what the sender has in flight.
 */
static __always_inline void grant_window(const struct mrc_qp *q, struct mrc_rx *rx,
					 struct sack_body *sack)
{
	u32 packets = MRC_ROOM_PACKETS, cells = MRC_ROOM_CELLS, mpr = q->mpr, penalty = 0;
	struct mrc_room *room = rooms.lookup(&packets);
	u32 waiting = sack->ooo, ample = 1;
	u64 grant = mpr, can;

	can = room ? waiting + room->free : 0;
	if (can < grant)
		grant = can;
	if (room)
		penalty = ring_penalty(room, waiting, can, mpr, &ample);
	room = rooms.lookup(&cells);
	if (CELLS && q->framing == MRC_FRAMING_CELL && room && room->all) {
		can = waiting + room->free * mpr / room->all;
		if (can < grant)
			grant = can;
		can = ring_penalty(room, waiting, can, mpr, &ample);
		if (can > penalty)
			penalty = can;
	}
	sack->mpr = grant < MRC_MPR_UNIT ? 1 : grant / MRC_MPR_UNIT;
	ask_to_shrink(rx, sack, penalty, ample);
}

/*
 * Turn the skb into a SACK about what came by sack->ev. Returns the interface
 * to which the caller redirects it, or 0 on failure. `chain` is a constant.
 */
static __always_inline u32 write_sack(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				      const struct mrc_qp *q, struct sack_body *sack,
				      u32 chain)
{
	struct mrc_tx *tx = txs.lookup(&qp);
	struct mrc_rx *rx = rxs.lookup(&qp);
	struct mrc_keys *k = keys.lookup(&qp);
	struct mrc_peer_plane *pp;
	struct mrc_plane *pl;
	u32 plane, back;
	void *data, *end;

	if (!tx || !rx || !k || bpf_skb_change_tail(skb, MRC_SACK_FRAME_LEN, 0))
		return 0;
	back = way_back(qp, h, q, tx, sack->ev, sack->cack);
	plane = ev_plane(back);
	pl = planes.lookup(&plane);
	pp = peer_plane_get(q->peer, plane);
	if (!pl || !pp)
		return 0;
	sack->down = planes_down(h);
	grant_window(q, rx, sack);
	if (CELLS && q->timed &&
	    !(sack->cc_flags & (MRC_CC_FLAG_DELAYED | MRC_CC_FLAG_SOLICITED)))
		sack->ts = back_stamp(sack->ts, bpf_ktime_get_ns());
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_headers(data, end, h, pl, pp, back, control_class(h), MRC_SACK_BODY, MRC_OP_SACK,
			tx_phase(k), q->remote_qpn, 0) ||
	    put_sack(data, end, k, next_count(qp, back), sack))
		return 0;
	capture_skb(skb, chain, plane, qp, q->peer, MRC_C_SACK_TX);
	as_control(skb);
	return pl->ifindex;
}
