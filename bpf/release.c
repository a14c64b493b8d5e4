/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Release: packets that found the congestion window full have their PSNs and wait
 * in the retransmit ring. Whoever has an skb to spare, a SACK or the clock, sends
 * them when the window has room, in the order of their PSNs.
 */

/* Take the next packet that waits out of the backlog, under the lock; as release_packet(). */
static __always_inline u32 take_held(struct resending *r)
{
	u32 id, price = WHOLE_TURN, len = r->entry->len;

	if (r->q->framing == MRC_FRAMING_CELL)
		price = turn_price(len, r->h->cell_bytes);
	bpf_spin_lock(&r->tx->lock);
	id = release_packet(r, price, len);
	bpf_spin_unlock(&r->tx->lock);
	return id;
}

/* Send the next packet that waits. Returns 0, or -1 if there is none or the window is full. */
static __always_inline int release(struct __sk_buff *skb, u32 qp, struct resending *r, u8 *head)
{
	u32 id;

	r->psn = sent_up_to(r->tx);
	r->entry = tx_entry_get(qp, r->psn);
	/* Its numbering on another CPU may not be complete. */
	if (!r->tx->held || !r->entry || r->entry->psn != r->psn)
		return -1;
	part_cell(r->entry->slot);
	id = take_held(r);
	if (id == MRC_NO_PATH)
		return -1;
	r->new_id = id & 0xffff;
	r->ask = id & (PATH_SLOW | PATH_LAST);
	r->why = MRC_C_TX_PACKETS;
	count_atomic(MRC_C_TX_PACKETS);
	count_atomic_by(MRC_C_TX_BYTES, r->entry->len);
	send_copy(skb, qp, r, head);
	return 0;
}

/*
 * Go on in another chain of programs: a chain has a limited number of tail calls, and what
 * waits must leave faster than anything can come.
 */
static __always_inline int release_on(struct __sk_buff *skb, const struct mrc_host *h, u32 qp)
{
	skb->mark = MRC_RELEASE_MARK | (qp & MRC_MARK_NUMBER);
	skb->queue_mapping = 0;
	return bpf_redirect(h->rest_ifindex, BPF_F_INGRESS);
}

/* The packet of a chain that goes on: see release_on(). */
static __always_inline int go_on_with_release(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);

	if (!chain)
		return TC_ACT_SHOT;
	skb->cb[0] = CHAIN_PACKET;
	begin_chain(chain);
	chain->release.qp = skb->mark & MRC_MARK_NUMBER;
	chain->release.due = 1;
	chain->release.done = 0;
	tails.call(skb, TAIL_RELEASE);
	return TC_ACT_SHOT;
}

int mrc_release(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(skb->cb[0]);
	struct resending r = { .h = host_get() };
	struct mrc_peer *peer;
	u32 qp;

	if (!chain || !r.h)
		return TC_ACT_SHOT;
	qp = chain->release.qp;
	r.q = qps.lookup(&qp);
	r.tx = txs.lookup(&qp);
	if (!r.q || !r.tx || r.q->state != MRC_QP_READY)
		return TC_ACT_SHOT;
	peer = peer_get(r.q->peer);
	r.b = balance_get(r.q->peer);
	if (!peer || !r.b)
		return TC_ACT_SHOT;
	r.now = bpf_ktime_get_ns();
	r.up = usable_planes(r.h, peer, r.b);
	r.spare = spare_planes(r.h, peer);
	if (chain->release.done < RELEASE_MAX && !release(skb, qp, &r, chain->head)) {
		chain->release.done++;
		tails.call(skb, TAIL_RELEASE);
	}
	if (chain->release.done >= RELEASE_MAX && r.tx->held && nscc_open(r.h, r.tx, 0))
		return release_on(skb, r.h, qp);
	return TC_ACT_SHOT;
}
