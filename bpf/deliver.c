/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Deliver: the receive window. Packets in order go to mrc0, packets ahead of a
 * gap wait in the reorder ring until it is filled.
 *
 * Several CPUs may hold packets of one QP. "busy" makes one of them the owner
 * of rx->next: only the owner delivers and moves next. A CPU that is not the
 * owner stores its packet and leaves. Storing sets the received bit, and the
 * owner checks that bit and gives up ownership, under one lock, so no packet is
 * stored unseen. If an owner leaves early (bound reached, mrc0 full), the next
 * arrival or the clock goes on.
 */

/* Write the Ethernet header that mrc0 expects. */
static __always_inline int put_link(struct __sk_buff *skb, const struct mrc_host *h, __be16 proto)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct ethhdr *eth = data;

	if (data + sizeof(*eth) > end)
		return -1;
	copy_mac(eth->h_dest, h->link_mac);
	copy_mac(eth->h_source, h->link_mac);
	*eth_proto(data) = proto;
	return 0;
}

/*
 * Copy the packet behind `off` bytes into the reorder ring. `partial`: its checksum is
 * left to a NIC. Returns the slot + 1, or 0.
 */
static __always_inline u32 hold_packet(struct __sk_buff *skb, u32 off, u32 qp, u32 psn, u64 len,
				       u32 partial)
{
	struct mrc_slot *buf;
	u32 slot;

	if (rx_slot_take(MRC_ROOM_PACKETS, &slot))
		return 0;
	buf = rx_ring.lookup(&slot);
	if (!buf)
		return 0;
	if (!LEN_OK(len) || bpf_skb_load_bytes(skb, off, buf->data, len)) {
		rx_slot_give(MRC_ROOM_PACKETS, slot);
		return 0;
	}
	buf->tag = (u64)qp << 32 | psn | (partial ? MRC_TAG_PARTIAL : 0);
	return slot + 1;
}

/* Become the owner of rx->next if that packet is held. */
static __always_inline u32 own_held(struct mrc_rx *rx)
{
	u32 owner;

	bpf_spin_lock(&rx->lock);
	owner = take_next(rx);
	bpf_spin_unlock(&rx->lock);
	return owner;
}

/*
 * Hand a clone of the skb to mrc0. Packets in MRC's framing go through a veth, behind
 * which GRO merges them. Cells are large enough, and enter at once.
 */
static __always_inline long to_mrc0(struct __sk_buff *skb, const struct mrc_host *h, u32 cells)
{
	if (cells) {
		/* The receive queue is the NIC's. What has a higher one than mrc0p is not steered. */
		skb->queue_mapping = 0;
		return bpf_clone_redirect(skb, h->lower_ifindex, BPF_F_INGRESS);
	}
	return bpf_clone_redirect(skb, h->link_ifindex, 0);
}

/*
 * Send a held packet to mrc0, with the skb as the carrier; several packets of a
 * cell, if they may go as one. What is known of the carrier's checksums does not
 * hold for the packet: a damaged one is dropped here, because TCP might not look.
 * Returns the length, 0 if it was dropped, or -1; *packets is their number.
 */
static __always_inline s32 emit_held(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				     u32 psn, const struct mrc_rx_entry *entry, u8 *head,
				     u32 cells, u32 *packets)
{
	struct copy_at c;
	s32 len;

	/* The entries of a piece are written after its bits are set. */
	if (entry->psn != (psn & 0xffff) ||
	    open_copy(entry->slot - 1, qp, psn, entry->len & MRC_RX_LEN, head, 1, &c))
		return -1;
	*packets = cells ? widen_copy(skb, head, &c) : 1;
	/* A sum of the carrier's bytes stays if the length does; growing ends it. */
	if (is_complete(skb) && bpf_skb_change_tail(skb, skb->len + 1, 0))
		return -1;
	len = write_copy(skb, MRC_ETH_LEN, 0, head, &c);
	if (len > 0 && (c.damaged | entry->len >> MRC_RX_WHY_SHIFT))
		return 0;
	bpf_csum_level(skb, BPF_CSUM_LEVEL_RESET);
	/* The carrier's own: steering and GRO sort by hash, rules of the host by mark. */
	bpf_set_hash_invalid(skb);
	skb->mark = 0;
	skb->priority = 0;
	if (len < 0 || put_link(skb, h, bpf_htons((head[0] >> 4) == 6 ? ETH_P_IPV6 : ETH_P_IP)) ||
	    to_mrc0(skb, h, cells))
		return -1;
	return len;
}

/* The counter of a held packet that does not enter mrc0: by its addresses, or else damaged. */
static __always_inline u32 dropped_counter(const struct mrc_rx_entry *entry)
{
	u32 wrong = entry->len >> MRC_RX_WHY_SHIFT;

	return wrong ? inner_counter(wrong) : MRC_C_DROP_CHECKSUM;
}

/*
 * Release held packets while they are in order, a few of them. The caller is the
 * owner, and the packet rx->next is held; on return it is no longer the owner.
 * Returns 1 if there is more to release.
 */
static __always_inline u32 drain(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				 struct mrc_rx *rx, u8 *head, u32 cells)
{
	u32 i, slot, next, n = 1, more = 1;
	struct mrc_rx_entry *entry;
	s32 len;

	for (i = 0; i < DRAIN_PACKETS; i++) {
		next = rx->next;
		entry = rx_entry_get(qp, next);
		if (!entry)
			break;
		slot = entry->slot - 1;
		len = emit_held(skb, h, qp, next, entry, head, cells, &n);
		if (len < 0) {
			count_atomic(MRC_C_DELIVER_RETRY);
			more = 0;
			break;
		}
		count_atomic_by(len ? MRC_C_RX_PACKETS : dropped_counter(entry), n);
		count_atomic_by(MRC_C_RX_BYTES, len);
		free_copy(slot, n, 1);
		bpf_spin_lock(&rx->lock);
		more = pass_held(rx, next, n);
		bpf_spin_unlock(&rx->lock);
		if (!more)
			return 0;
	}
	bpf_spin_lock(&rx->lock);
	rx->busy = 0;
	bpf_spin_unlock(&rx->lock);
	return more;
}

/* The counter of a disposition. */
static __always_inline u32 disposition_counter(u32 disposition)
{
	switch (disposition) {
	case RX_DELIVER:
		return MRC_C_RX_PACKETS;
	case RX_HOLD:
		return MRC_C_RX_HELD;
	case RX_DUPLICATE:
		return MRC_C_RX_DUPLICATE;
	}
	return MRC_C_DROP_BUFFER;
}

static __always_inline int deliver_drop(u32 key, u32 qp, u32 why)
{
	count(why);
	capture_outcome(key, qp, why);
	return TC_ACT_SHOT;
}

/* Drop a packet for the reason `why`, and tell its sender by a NACK. */
static __always_inline int refuse_data(struct __sk_buff *skb, struct mrc_rx *rx,
				       const struct mrc_mark *mark, u32 key, u32 why, u32 reason)
{
	deliver_drop(key, mark->qp, why);
	if (!may_refuse_now(rx))
		return TC_ACT_SHOT;
	return go_refuse(skb, mark->qp, reason, mark_psn(mark), mark_ev(mark), mark->ts);
}

/* Cut the ICRC word off. Returns the counter of what prevents it, or 0. */
static __always_inline u32 cut_to_packet(struct __sk_buff *skb, const struct mrc_qp *q,
					 struct arrival *a)
{
	if (q->state < MRC_QP_RECEIVE)
		return MRC_C_DROP_STATE;
	a->len = skb->len - MRC_ETH_LEN - MRC_ICRC_LEN;
	if (a->len < 20 || a->len > CFG_MTU) /* shorter than the ICRC word wraps round */
		return MRC_C_DROP_LENGTH;
	if (bpf_skb_change_tail(skb, MRC_ETH_LEN + a->len, 0))
		return MRC_C_DROP_SKB;
	/* GRO sorts by hash, and packets from the reorder ring come with another one. */
	bpf_set_hash_invalid(skb);
	return 0;
}

/* Find the packet's place in the window, under the lock; as place_packet(). */
static __always_inline void claim_next(struct mrc_rx *rx, u32 wire_psn, struct arrival *a)
{
	bpf_spin_lock(&rx->lock);
	place_packet(rx, wire_psn, a);
	bpf_spin_unlock(&rx->lock);
}

/* Send the packet to mrc0, or have it held if mrc0 refuses it. */
static __always_inline void deliver_now(struct __sk_buff *skb, const struct mrc_host *h,
					struct arrival *a)
{
	if (a->wrong)
		count(inner_counter(a->wrong));
	else if (put_link(skb, h, skb->protocol) || to_mrc0(skb, h, 0)) {
		count(MRC_C_DELIVER_RETRY);
		a->disposition = RX_HOLD;
	} else {
		count(MRC_C_RX_PACKETS);
		count_by(MRC_C_RX_BYTES, a->len);
	}
}

/* Deliver or hold the packet, as its place in the window is. */
static __always_inline void take_data(struct __sk_buff *skb, const struct mrc_host *h,
				      const struct mrc_qp *q, u32 qp, struct arrival *a)
{
	u32 v6 = skb->protocol == bpf_htons(ETH_P_IPV6);

	if (a->disposition <= RX_HOLD && !a->wrong)
		a->wrong = check_inner_of(skb, MRC_ETH_LEN, h, q->peer, v6);
	if (a->disposition == RX_DELIVER)
		deliver_now(skb, h, a);
	if (a->disposition == RX_HOLD)
		a->held = hold_packet(skb, MRC_ETH_LEN, qp, a->psn, a->len, 0);
}

/* Count what became of the packet; a duplicate gives back the slot that it took. */
static __always_inline void settle_arrival(u32 key, u32 qp, const struct arrival *a)
{
	u32 slot = a->held - 1;

	if (a->disposition == RX_HOLD)
		count(MRC_C_RX_HELD);
	if (a->disposition == RX_NO_BUFFER)
		count(MRC_C_DROP_BUFFER);
	if (a->disposition == RX_DUPLICATE) {
		count(a->wrong == INNER_STUB ? MRC_C_TRIAL_RX : MRC_C_RX_DUPLICATE);
		if (a->held)
			rx_slot_give(MRC_ROOM_PACKETS, slot);
	}
	capture_outcome(key, qp, a->wrong && a->disposition <= RX_HOLD ?
			inner_counter(a->wrong) : disposition_counter(a->disposition));
}

/* Answer with the SACK that is due. */
static __always_inline int answer_arrival(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
					  const struct mrc_qp *q, const struct mrc_mark *mark,
					  const struct arrival *a, struct sack_body *sack)
{
	u32 ifindex;

	sack->ev = mark_ev(mark);
	sack->ts = mark->ts;
	if (a->disposition == RX_DUPLICATE)
		sack->cc_flags = MRC_CC_FLAG_DUPLICATE;
	if (mark->flags & MRC_MARK_CE) {
		sack->m = MRC_SETH_M_SKIP_ONCE;
		count(MRC_C_ECHO_TX);
	}
	name_trigger(sack, a->psn);
	ifindex = write_sack(skb, h, qp, q, sack, CHAIN_PACKET);
	if (!ifindex)
		return TC_ACT_SHOT;
	count(MRC_C_SACK_TX);
	return bpf_redirect(ifindex, 0);
}

/* Have mrc_drain release what waited, and answer. */
static __always_inline int go_on_with_drain(struct __sk_buff *skb, u32 qp,
					    const struct mrc_mark *mark, const struct arrival *a)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);

	if (!chain)
		return TC_ACT_SHOT;
	skb->cb[0] = CHAIN_PACKET;
	begin_drain(chain, qp, !!a->want);
	answer_to(&chain->drain, a->psn, mark_ev(mark), mark->ts, mark->flags & MRC_MARK_CE,
		  a->disposition == RX_DUPLICATE ? MRC_CC_FLAG_DUPLICATE : 0);
	tails.call(skb, TAIL_DRAIN);
	return TC_ACT_SHOT;
}

/* Answer with a SACK that describes the window after what waited has been released. */
static __always_inline int answer_drained(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
					  const struct mrc_qp *q, struct mrc_rx *rx,
					  const struct drain_args *in)
{
	struct sack_body sack = {};
	u32 ifindex, psn = in->psn, asked = in->cc_flags & MRC_CC_FLAG_SOLICITED;
	u64 now = bpf_ktime_get_ns();

	sack.ev = in->ev;
	sack.ts = in->ts;
	sack.m = in->m;
	sack.cc_flags = in->cc_flags;
	bpf_spin_lock(&rx->lock);
	take_sack(rx, &sack, now);
	if (asked) {
		psn = sack.cack;
		take_mark(rx, &sack, &psn);
	}
	bpf_spin_unlock(&rx->lock);
	name_trigger(&sack, psn);
	if (sack.m)
		count(MRC_C_ECHO_TX);
	ifindex = write_sack(skb, h, qp, q, &sack, skb->cb[0]);
	if (!ifindex)
		return TC_ACT_SHOT;
	count(MRC_C_SACK_TX);
	return bpf_redirect(ifindex, 0);
}

static __always_inline int on_data(struct __sk_buff *skb, const struct mrc_mark *mark, u32 key)
{
	struct mrc_host *h = host_get();
	struct sack_body sack = {};
	struct arrival a = {};
	struct mrc_rx_entry *entry;
	u32 qp = mark->qp, why;
	struct mrc_rx *rx;
	struct mrc_qp *q;
	u64 now;

	/* look up and check */
	q = qps.lookup(&qp);
	rx = rxs.lookup(&qp);
	if (!h || !q || !rx)
		return TC_ACT_SHOT;
	why = cut_to_packet(skb, q, &a);
	if (why == MRC_C_DROP_SKB)
		return refuse_data(skb, rx, mark, key, why, MRC_NACK_NO_RESOURCE);
	if (why)
		return deliver_drop(key, qp, why);

	/* deliver or hold */
	a.wrong = mark->flags & MRC_MARK_STUB ? INNER_STUB : INNER_OK;
	claim_next(rx, mark_psn(mark), &a);
	if (a.disposition == RX_OUTSIDE)
		return refuse_data(skb, rx, mark, key, MRC_C_DROP_PSN, MRC_NACK_PSN_OOR_WINDOW);
	take_data(skb, h, q, qp, &a);
	entry = rx_entry_get(qp, a.psn);
	if (!entry)
		return TC_ACT_SHOT;

	/* record */
	now = bpf_ktime_get_ns();
	a.want = mark->flags & (MRC_BTH_RTX | MRC_BTH_ACKREQ | MRC_MARK_CE);
	bpf_spin_lock(&rx->lock);
	record_arrival(rx, entry, mark_ev(mark), &a);
	if (a.disposition == RX_DUPLICATE)
		a.want = may_answer_copy(rx, now);
	else
		a.want |= sack_is_due(rx, h, q, now);
	if (a.disposition == RX_NO_BUFFER && !a.more)
		a.refuse = may_refuse(rx, now);
	if (a.want && !a.more && !a.refuse)
		take_sack(rx, &sack, now);
	bpf_spin_unlock(&rx->lock);
	settle_arrival(key, qp, &a);

	/* release what waited, and answer */
	if (!a.want || a.refuse || sack.ooo)
		watch(skb, qp);
	if (a.more)
		return go_on_with_drain(skb, qp, mark, &a);
	if (a.refuse)
		return go_refuse(skb, qp, MRC_NACK_NO_PKT_BUFFER, mark_psn(mark), mark_ev(mark),
				 mark->ts);
	if (!a.want)
		return TC_ACT_SHOT;
	return answer_arrival(skb, h, qp, q, mark, &a, &sack);
}

/*
 * Release held packets, then call itself for more. At the end the skb becomes the
 * SACK that is wanted. Any packet may bring a program here that has an skb to
 * spare: one that fills a gap, a question for a SACK, or the clock's.
 */
int mrc_drain(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(skb->cb[0]);
	struct mrc_host *h = host_get();
	struct drain_args *in;
	struct mrc_qp *q;
	struct mrc_rx *rx;
	u32 qp, more = 0;

	if (!chain || !h)
		return TC_ACT_SHOT;
	in = &chain->drain;
	qp = in->qp;
	q = qps.lookup(&qp);
	rx = rxs.lookup(&qp);
	if (!q || !rx || q->state < MRC_QP_RECEIVE)
		return TC_ACT_SHOT;
	in->due = 0;
	if (own_held(rx))
		more = drain(skb, h, qp, rx, chain->head,
			     CELLS && q->framing == MRC_FRAMING_CELL);
	in->runs++;
	if (more && in->runs < DRAIN_RUNS)
		tails.call(skb, TAIL_DRAIN);
	return in->want ? answer_drained(skb, h, qp, q, rx, in) : go_on(skb, chain);
}
