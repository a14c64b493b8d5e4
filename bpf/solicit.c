/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Questions for SACKs. A SACK is made of the skb of the packet that causes it. The
 * skb of a large cell cannot be turned into a small packet without copying all of
 * it, and the kernel refuses that for packets out of a tunnel. So the sender of
 * cells asks: a packet that arrives from the peer, a SACK or an acknowledgement of
 * TCP, becomes a question, and the peer makes the SACK of that. Where nothing
 * arrives, the receiver's clock sends SACKs.
 */

#define SOLICIT_PARTS 2          /* questions of a QP in a round trip, at most */

/* The QP of a peer that is asked about next, if it is time; or -1. */
static __always_inline s32 next_wanting(const struct mrc_host *h, const struct mrc_peer *peer,
					struct mrc_balance *b, u64 now)
{
	u64 wants = b->wants, later = wants & (~0ull << (now >> 12 & 15));
	struct mrc_tx *tx;
	u32 q, qp, gap;

	if (!wants)
		return -1;
	q = lowest_bit(later ? later : wants);
	qp = peer->qp_base + (q & peer->qp_mask);
	tx = txs.lookup(&qp);
	if (!tx)
		return -1;
	gap = tx->srtt_ns / SOLICIT_PARTS;
	if (gap < h->solicit_ns)
		gap = h->solicit_ns;
	if (now - tx->solicit_ns < gap)
		return -1;
	if (tx->una != tx->next)
		return qp;
	__sync_fetch_and_and(&b->wants, ~(1ull << (q & 63)));
	return -1;
}

/* Have mrc_solicit turn the skb into a question, if any QP of the peer wants a SACK. */
static __always_inline void go_ask(struct __sk_buff *skb, struct mrc_chain *chain,
				   const struct mrc_host *h, u32 peer_index, struct mrc_balance *b,
				   u64 now)
{
	struct mrc_peer *peer = peer_get(peer_index);
	s32 found;

	if (!peer)
		return;
	found = next_wanting(h, peer, b, now);
	if (found < 0)
		return;
	chain->ask = found;
	tails.call(skb, TAIL_SOLICIT);
}

/* Send a question for a SACK of a QP. */
static __always_inline void ask(struct __sk_buff *skb, const struct mrc_host *h, u32 qp)
{
	struct mrc_qp *q = qps.lookup(&qp);
	struct mrc_tx *tx = txs.lookup(&qp);
	u64 up, spare, now = bpf_ktime_get_ns();
	struct mrc_peer *peer;
	struct mrc_balance *b;
	void *data, *end;
	struct route r;
	u32 id;

	if (!q || !tx || q->state != MRC_QP_READY)
		return;
	peer = peer_get(q->peer);
	b = balance_get(q->peer);
	if (!peer || !b || forget_partial(skb) || bpf_skb_change_tail(skb, MRC_PROBE_FRAME_LEN, 0))
		return;
	up = usable_planes(h, peer, b);
	spare = spare_planes(h, peer);
	bpf_spin_lock(&tx->lock);
	up = serving_planes(tx, up, spare);
	id = pick_path(tx, up, up, b->turns, 1);
	bpf_spin_unlock(&tx->lock);
	id &= 0xffff;
	if (id == MRC_NO_PATH || find_route(qp, q, id, &r))
		return;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	/* Its round trip stands for that of data, so it waits in the queues of data. */
	if (put_headers(data, end, h, r.pl, r.pp, r.path->ev, h->dscp_whole << MRC_DSCP_SHIFT,
			MRC_PROBE_BODY, MRC_OP_PROBE, tx_phase(r.keys), q->remote_qpn, 0) ||
	    put_probe(data, end, r.keys, next_count(qp, r.path->ev), MRC_PETH_SOLICIT, 0, now))
		return;
	tx->solicit_path = id;
	tx->solicit_ns = now;
	count(MRC_C_SOLICIT_TX);
	capture_skb(skb, RECORD_PACKET, path_plane(id), qp, q->peer, MRC_C_SOLICIT_TX);
	as_data(skb);
	bpf_clone_redirect(skb, r.pl->ifindex, 0);
}

/* Send a question, then go on with mrc_resend, whose packets need the skb, too. */
int mrc_solicit(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	struct mrc_host *h = host_get();

	if (!chain || !h)
		return TC_ACT_SHOT;
	ask(skb, h, chain->ask);
	return go_on(skb, chain);
}

/* A peer asks: release what waits, which needs an skb, too, and answer. */
static __always_inline int on_solicit(struct __sk_buff *skb, const struct mrc_mark *mark, u32 key)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	u32 qp = mark->qp;
	struct mrc_qp *q = qps.lookup(&qp);

	if (!chain || !q || q->state < MRC_QP_RECEIVE)
		return TC_ACT_SHOT;
	skb->cb[0] = CHAIN_PACKET;
	begin_drain(chain, qp, 1);
	answer_to(&chain->drain, 0, mark_ev(mark), mark->ts, 0, MRC_CC_FLAG_SOLICITED);
	count(MRC_C_SOLICIT_RX);
	capture_outcome(key, qp, MRC_C_SOLICIT_RX);
	tails.call(skb, TAIL_DRAIN);
	return TC_ACT_SHOT;
}
