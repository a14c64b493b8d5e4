/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Refusals: a data packet that arrived whole, but finds no room or has no place in
 * the window, becomes a NACK, so that its sender need not wait for evidence of a
 * loss. Trimmed packets and refused opcodes are answered in receive.c.
 *
 * A receiver that is short of room is short of time, too. So refusals of a QP have
 * a bounded rate; what exceeds it is dropped, and found missing like any other loss.
 */

#define ANSWER_GAP_NS 100000ull  /* time between two refusals of a QP, or two SACKs for copies, in the long run ... */
#define ANSWER_BURST 8           /* ... of which this number may leave at once */

/* May an answer leave now? `paid_ns` is the time until which those before are paid for. Lock of rx held. */
static __always_inline u32 may_answer(u64 *paid_ns, u64 now)
{
	u64 from = *paid_ns > now ? *paid_ns : now;

	if (from - now > (ANSWER_BURST - 1) * ANSWER_GAP_NS)
		return 0;
	*paid_ns = from + ANSWER_GAP_NS;
	return 1;
}

/* May a packet be refused now? Lock of rx held. */
static __always_inline u32 may_refuse(struct mrc_rx *rx, u64 now)
{
	return may_answer(&rx->nack_ns, now);
}

/*
 * May a packet that had arrived before be answered now? Anyone can repeat what a
 * plane has carried. Beyond the budget the clock answers. Lock of rx held.
 */
static __always_inline u32 may_answer_copy(struct mrc_rx *rx, u64 now)
{
	u32 may = may_answer(&rx->copy_ns, now);

	rx->pending_packets += !may;
	return may;
}

/* The same for a caller that does not hold the lock. */
static __always_inline u32 may_refuse_now(struct mrc_rx *rx)
{
	u64 now = bpf_ktime_get_ns();
	u32 may;

	bpf_spin_lock(&rx->lock);
	may = may_refuse(rx, now);
	bpf_spin_unlock(&rx->lock);
	return may;
}

/* The counter of NACKs sent for a reason. */
static __always_inline u32 refusal_counter(u32 reason)
{
	switch (reason) {
	case MRC_NACK_NO_PKT_BUFFER:
		return MRC_C_NACK_TX_BUFFER;
	case MRC_NACK_PSN_OOR_WINDOW:
		return MRC_C_NACK_TX_WINDOW;
	}
	return MRC_C_NACK_TX_RESOURCE;
}

/*
 * Have mrc_refuse turn the skb of packet `psn`, which came by `ev` with the time
 * stamp `ts`, into a NACK. The caller has counted the packet and asked may_refuse().
 */
static __always_inline int go_refuse(struct __sk_buff *skb, u32 qp, u32 reason, u32 psn, u32 ev,
				     u32 ts)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);

	if (!chain)
		return TC_ACT_SHOT;
	chain->refuse.qp = qp;
	chain->refuse.reason = reason;
	chain->refuse.psn = psn & MRC_PSN_MASK;
	chain->refuse.ev = ev;
	chain->refuse.ts = ts;
	tails.call(skb, TAIL_REFUSE);
	return TC_ACT_SHOT;
}

/* Send a NACK, on the way that a SACK would take. */
int mrc_refuse(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	struct mrc_host *h = host_get();
	struct refuse_args *in;
	struct mrc_peer_plane *pp;
	struct mrc_plane *pl;
	u32 qp, plane, back, why;
	struct mrc_keys *k;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	void *data, *end;

	if (!chain || !h)
		return TC_ACT_SHOT;
	in = &chain->refuse;
	qp = in->qp;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	k = keys.lookup(&qp);
	if (!q || !tx || !k || q->state < MRC_QP_RECEIVE || forget_partial(skb) ||
	    bpf_skb_change_tail(skb, MRC_NACK_FRAME_LEN, 0))
		return TC_ACT_SHOT;
	back = way_back(qp, h, q, tx, in->ev, in->psn);
	plane = ev_plane(back);
	pl = planes.lookup(&plane);
	pp = peer_plane_get(q->peer, plane);
	if (!pl || !pp)
		return TC_ACT_SHOT;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_nack_frame(data, end, h, q, k, pl, pp, back, next_count(qp, back), in->reason,
			   in->psn, in->ev, in->ts))
		return TC_ACT_SHOT;
	why = refusal_counter(in->reason);
	count(why);
	capture_skb(skb, RECORD_PACKET, plane, qp, q->peer, why);
	as_control(skb);
	return bpf_redirect(pl->ifindex, 0);
}
