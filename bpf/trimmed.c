/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trimmed packets: where a queue is full, a switch cuts data down to its headers, writes a
 * DSCP that says so, and sends it on ahead of the queue. The receiver turns it round as a
 * NACK: receive.c in MRC's framing, and mrc_cell by nack_cell() a packet of a cell.
 */

/* Where a packet was trimmed, as a NACK says it; 0: its traffic class does not say so. */
static __always_inline u32 trimmed_by(const struct mrc_host *h, u32 tclass)
{
	u32 dscp = tclass >> MRC_DSCP_SHIFT;

	if (dscp == h->dscp_trimmed)
		return MRC_NACK_TRIMMED;
	return dscp == h->dscp_lasthop ? MRC_NACK_TRIMMED_LASTHOP : 0;
}

/*
 * Is a trimmed packet missing here? A copy of what has arrived is not. The program that
 * delivers may be a packet further by now, but a superfluous NACK does no harm. Returns 0,
 * or the counter of what the packet is instead.
 */
static __always_inline u32 not_missing(const struct mrc_rx *rx, u32 psn)
{
	s32 ahead = psn_diff(psn, rx->next);
	u32 full = rx->next + ahead;

	if (ahead >= CFG_WINDOW / 2)
		return MRC_C_DROP_PSN;
	if (ahead < 0 || (rx->received[(full >> 6) & CFG_WORD_MASK] >> (full & 63) & 1))
		return MRC_C_RX_DUPLICATE;
	return 0;
}

/* Count a trimmed packet that is answered. */
static __always_inline void count_trimmed(u32 reason)
{
	count(reason == MRC_NACK_TRIMMED ? MRC_C_TRIM_RX : MRC_C_TRIM_RX_LASTHOP);
	count(MRC_C_NACK_TX);
}

/*
 * Turn a trimmed packet of a cell round as a NACK on the same path. It carries no time stamp;
 * its attempt takes the place, as in SACKs. Returns MRC_C_NACK_TX, or the counter of what
 * prevents it.
 */
static __always_inline u32 nack_cell(struct __sk_buff *skb, const struct mrc_host *h,
				     const struct mrc_qp *q, const struct mrc_rx *rx,
				     const struct piece *p, u32 *ifindex)
{
	u32 ev = piece_ev(p), qp = p->qp, why;
	u32 plane = our_plane(peer_get(q->peer), ev_plane(ev)), back = ev_on(plane, ev);
	struct mrc_keys *k = keys.lookup(&qp);
	struct mrc_plane *pl = planes.lookup(&plane);
	struct mrc_peer_plane *pp = peer_plane_get(q->peer, plane);
	void *data, *end;

	if (!pl || !pp || !k)
		return MRC_C_DROP_SID;
	why = not_missing(rx, p->psn);
	if (why)
		return why;
	if (bpf_skb_change_tail(skb, MRC_NACK_FRAME_LEN, 0))
		return MRC_C_DROP_SKB;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_nack_frame(data, end, h, q, k, pl, pp, back, next_count(qp, back), p->cut, p->psn,
			   ev, p->label >> MRC_CELL_ATTEMPT_SHIFT))
		return MRC_C_DROP_SKB;
	count_trimmed(p->cut);
	capture_skb(skb, RECORD_PACKET, plane, qp, q->peer, MRC_C_NACK_TX);
	as_control(skb);
	*ifindex = pl->ifindex;
	return MRC_C_NACK_TX;
}
