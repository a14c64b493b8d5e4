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

#define DRAIN_MAX 32             /* held packets released by one program run */
#define UNSACKED_MAX 64          /* packets, or MPR / 4 if less, that may arrive without a SACK at any rate */

/* Mark a PSN as received; rx_clear() unmarks it when next passes it. Lock of rx held. */
static __always_inline void rx_set(struct mrc_rx *rx, u32 psn)
{
	rx->received[(psn >> 6) & CFG_WORD_MASK] |= 1ull << (psn & 63);
}

static __always_inline void rx_clear(struct mrc_rx *rx, u32 psn)
{
	rx->received[(psn >> 6) & CFG_WORD_MASK] &= ~(1ull << (psn & 63));
}

static __always_inline int rx_bit(const struct mrc_rx *rx, u32 psn)
{
	return rx->received[(psn >> 6) & CFG_WORD_MASK] >> (psn & 63) & 1;
}

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

/* Copy the skb's inner packet into the reorder ring. Returns the slot + 1. */
static __always_inline u32 hold_packet(struct __sk_buff *skb, u32 qp, u32 psn, u64 len)
{
	struct mrc_slot *buf;
	u32 slot;

	if (rx_free.pop(&slot))
		return 0;
	buf = rx_ring.lookup(&slot);
	if (!buf)
		return 0;
	if (!LEN_OK(len) || bpf_skb_load_bytes(skb, MRC_ETH_LEN, buf->data, len)) {
		rx_free.push(&slot, 0);
		return 0;
	}
	buf->tag = (u64)qp << 32 | psn;
	return slot + 1;
}

/* Send one held packet to mrc0, with the skb as the carrier. Returns 0 if it was sent. */
static __always_inline int emit_held(struct __sk_buff *skb, const struct mrc_host *h,
				     struct mrc_slot *buf, u64 len)
{
	__be16 proto = bpf_htons(ETH_P_IP);

	if (!LEN_OK(len))
		return -1;
	if ((buf->data[0] >> 4) == 6)
		proto = bpf_htons(ETH_P_IPV6);
	if (bpf_skb_change_tail(skb, MRC_ETH_LEN + len, 0) || put_link(skb, h, proto) ||
	    bpf_skb_store_bytes(skb, MRC_ETH_LEN, buf->data, len, 0))
		return -1;
	return bpf_clone_redirect(skb, h->link_ifindex, 0);
}

/*
 * Release held packets while they are in order. The caller is the owner, and
 * the packet rx->next is held; on return it is no longer the owner. `chain` is a
 * constant.
 */
static __always_inline void drain(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				  struct mrc_rx *rx, u32 chain)
{
	u32 i, slot, next, more, packets = 0;
	struct mrc_rx_entry *entry;
	struct mrc_slot *buf;
	u64 bytes = 0;

	for (i = 0; i < DRAIN_MAX; i++) {
		next = rx->next;
		entry = rx_entry_get(qp, next);
		if (!entry)
			break;
		slot = entry->slot - 1;
		buf = rx_ring.lookup(&slot);
		if (!buf || emit_held(skb, h, buf, entry->len)) {
			count_in(chain, MRC_C_DELIVER_RETRY, 1);
			break;
		}
		packets++;
		bytes += entry->len;
		rx_free.push(&slot, 0);
		bpf_spin_lock(&rx->lock);
		rx_clear(rx, next);
		rx->next = next + 1;
		rx->waiting--;
		more = rx_bit(rx, next + 1);
		if (!more)
			rx->busy = 0;
		bpf_spin_unlock(&rx->lock);
		if (!more)
			goto out;
	}
	bpf_spin_lock(&rx->lock);
	rx->busy = 0;
	bpf_spin_unlock(&rx->lock);
out:
	count_in(chain, MRC_C_RX_PACKETS, packets);
	count_in(chain, MRC_C_RX_BYTES, bytes);
}

/* What becomes of a data packet. From RX_DUPLICATE on, it is dropped. */
#define RX_DELIVER 0             /* the next in order */
#define RX_HOLD 1                /* ahead of a gap, or mrc0 refused it for the moment */
#define RX_DUPLICATE 2
#define RX_OUTSIDE 3             /* beyond the receive window */
#define RX_NO_BUFFER 4           /* the reorder ring is full */

/* A data packet on its way through on_data(). */
struct arrival {
	u32 psn;
	u32 len;                 /* of the application's packet, bytes */
	u32 disposition;         /* RX_... */
	u32 owner;               /* 1: this program owns rx->next */
	u32 held;                /* slot of the reorder ring that holds it, plus one; 0: none */
	u32 want;                /* not 0: a SACK is due */
	u32 more;                /* 1: this program owns rx->next, and that packet is held */
};

/* What to do with a PSN as the window stands. Lock of rx held. */
static __always_inline u32 rx_disposition(const struct mrc_rx *rx, u32 psn)
{
	s32 ahead = psn - rx->next;

	if (ahead < 0)
		return RX_DUPLICATE;
	if (ahead >= CFG_WINDOW / 2)
		return RX_OUTSIDE;
	if (rx_bit(rx, psn))
		return RX_DUPLICATE;
	return ahead == 0 && !rx->busy ? RX_DELIVER : RX_HOLD;
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

/*
 * Is a SACK due? It is if enough has arrived and the last one left some time
 * ago: at high rates SACKs would otherwise be half of all packets and tell
 * little that is new. But the sender's window must not fill in the meantime, and
 * a window that takes several SACKs to describe is not held back. Lock of rx
 * held.
 */
static __always_inline u32 sack_is_due(const struct mrc_rx *rx, const struct mrc_host *h,
				       const struct mrc_qp *q, u64 now)
{
	u32 pending = rx->pending_packets;

	if (pending < h->sack_packets && rx->pending_bytes < h->sack_bytes)
		return 0;
	return now - rx->sacked_ns >= h->sack_gap_ns || pending >= UNSACKED_MAX ||
	       pending >= q->mpr / 4 || rx->high - rx->next > MRC_SACK_BITS;
}

/* Fill in a SACK; it covers everything that was pending. Lock of rx held. */
static __always_inline void take_sack(struct mrc_rx *rx, struct sack_body *sack, u64 now)
{
	sack_from_rx(rx, next_slice(rx), sack);
	rx->pending_packets = 0;
	rx->pending_bytes = 0;
	rx->sacked_ns = now;
}

/* Cut the ICRC word off. Returns the counter of what prevents it, or 0. */
static __always_inline u32 cut_to_packet(struct __sk_buff *skb, const struct mrc_qp *q,
					 struct arrival *a)
{
	if (q->state == MRC_QP_DOWN)
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

/* Find the packet's place in the window; become the owner if it is the next. */
static __always_inline void claim_next(struct mrc_rx *rx, u32 wire_psn, struct arrival *a)
{
	bpf_spin_lock(&rx->lock);
	a->psn = rx->next + psn_diff(wire_psn, rx->next);
	a->disposition = rx_disposition(rx, a->psn);
	if (a->disposition == RX_DELIVER) {
		rx->busy = a->owner = 1;
		/* A copy that arrives now must not pass for a missing packet. */
		rx_set(rx, a->psn);
	}
	bpf_spin_unlock(&rx->lock);
}

/* Send the packet to mrc0, or have it held if mrc0 refuses it. */
static __always_inline void deliver_now(struct __sk_buff *skb, const struct mrc_host *h,
					struct arrival *a)
{
	if (put_link(skb, h, skb->protocol) || bpf_clone_redirect(skb, h->link_ifindex, 0)) {
		count(MRC_C_DELIVER_RETRY);
		a->disposition = RX_HOLD;
	} else {
		count(MRC_C_RX_PACKETS);
		count_by(MRC_C_RX_BYTES, a->len);
	}
}

/* Enter a held packet in the window, unless a copy came first. Lock of rx held. */
static __always_inline void record_held(struct mrc_rx *rx, struct mrc_rx_entry *entry,
					struct arrival *a)
{
	if (rx_disposition(rx, a->psn) >= RX_DUPLICATE) {
		a->disposition = RX_DUPLICATE;
	} else if (!a->held) {
		a->disposition = RX_NO_BUFFER;
	} else {
		entry->psn = a->psn;
		entry->slot = a->held;
		entry->len = a->len;
		rx_set(rx, a->psn);
		rx->waiting++;
	}
}

/* Bring the window up to date, and give up or take ownership. Lock of rx held. */
static __always_inline void record_arrival(struct mrc_rx *rx, struct mrc_rx_entry *entry,
					   const struct mrc_mark *mark, struct arrival *a)
{
	if (a->owner)
		rx_clear(rx, a->psn);
	if (a->disposition == RX_HOLD)
		record_held(rx, entry, a);
	else if (a->disposition == RX_DELIVER)
		rx->next = a->psn + 1;
	if (a->disposition < RX_DUPLICATE) {
		rx->packets++;
		rx->bytes += a->len;
		rx->pending_packets++;
		rx->pending_bytes += a->len;
		if ((s32)(a->psn + 1 - rx->high) > 0)
			rx->high = a->psn + 1;
		rx->ev = mark_ev(mark);
	}
	if (a->owner || !rx->busy) {
		/* A retry after mrc0 was full is left to the next arrival. */
		a->more = rx_bit(rx, rx->next) && !(a->owner && a->disposition == RX_HOLD);
		rx->busy = a->more;
	}
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
		count(MRC_C_RX_DUPLICATE);
		if (a->held)
			rx_free.push(&slot, 0);
	}
	capture_outcome(key, qp, disposition_counter(a->disposition));
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
	sack->ack_off = a->psn - sack->cack;
	ifindex = write_sack(skb, h, qp, q, sack, CHAIN_PACKET);
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
	if (why)
		return deliver_drop(key, qp, why);

	/* deliver or hold */
	claim_next(rx, mark_psn(mark), &a);
	if (a.disposition == RX_OUTSIDE)
		return deliver_drop(key, qp, MRC_C_DROP_PSN);
	if (a.disposition == RX_DELIVER)
		deliver_now(skb, h, &a);
	if (a.disposition == RX_HOLD)
		a.held = hold_packet(skb, qp, a.psn, a.len);
	entry = rx_entry_get(qp, a.psn);
	if (!entry)
		return TC_ACT_SHOT;

	/* record */
	now = bpf_ktime_get_ns();
	a.want = mark->flags & (MRC_BTH_RTX | MRC_BTH_ACKREQ | MRC_MARK_CE);
	bpf_spin_lock(&rx->lock);
	record_arrival(rx, entry, mark, &a);
	a.want |= a.disposition == RX_DUPLICATE || sack_is_due(rx, h, q, now);
	if (a.want && !a.more)
		take_sack(rx, &sack, now);
	bpf_spin_unlock(&rx->lock);
	settle_arrival(key, qp, &a);

	/* release what waited, and answer */
	if (a.more) {
		drain(skb, h, qp, rx, CHAIN_PACKET);
		if (a.want) {    /* the SACK describes what is left of the window now */
			bpf_spin_lock(&rx->lock);
			take_sack(rx, &sack, now);
			bpf_spin_unlock(&rx->lock);
		}
	}
	if (!a.want || sack.ooo)
		watch(qp);
	if (!a.want)
		return TC_ACT_SHOT;
	return answer_arrival(skb, h, qp, q, mark, &a, &sack);
}
