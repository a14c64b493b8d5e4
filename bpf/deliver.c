/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Deliver: the receive window. Packets in order go to mrc0, packets ahead of a
 * gap wait in the reorder ring until it is filled.
 *
 * Several CPUs may hold packets of one QP. "busy" makes one of them the owner
 * of rx->next: only the owner delivers and moves next. Who is not the owner
 * stores its packet and leaves. Storing sets the received bit, and the owner
 * looks at that bit and gives up ownership, under one lock, so no packet is
 * stored unseen. An owner that leaves early (bound reached, mrc0 full) is
 * followed by the next arrival or the clock.
 */
#define DRAIN_MAX 32             /* held packets released by one program run */
#define UNSACKED_MAX 64          /* packets that arrive without a SACK, however fast; or MPR / 4 */

/* Mark a PSN as received, and unmark it when next passes it. Lock of rx held. */
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

/* Send one held packet to mrc0, the skb is the carrier. Returns 0 if it went. */
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
 * Release held packets as long as they are in order. The caller is the owner
 * and the packet rx->next is held; on return it is no longer the owner.
 */
static __always_inline void drain(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				  struct mrc_rx *rx)
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
			count(MRC_C_DELIVER_RETRY);
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
	count_by(MRC_C_RX_PACKETS, packets);
	count_by(MRC_C_RX_BYTES, bytes);
}

#define VERDICT_DELIVER 0
#define VERDICT_STORE 1
#define VERDICT_DUPLICATE 2
#define VERDICT_OUTSIDE 3
#define VERDICT_NO_BUFFER 4

static __always_inline u32 rx_verdict(const struct mrc_rx *rx, u32 psn)
{
	s32 ahead = psn - rx->next;

	if (ahead < 0)
		return VERDICT_DUPLICATE;
	if (ahead >= CFG_WINDOW / 2)
		return VERDICT_OUTSIDE;
	if (rx_bit(rx, psn))
		return VERDICT_DUPLICATE;
	return ahead == 0 && !rx->busy ? VERDICT_DELIVER : VERDICT_STORE;
}

/* The counter that says it. */
static __always_inline u32 verdict_says(u32 verdict)
{
	switch (verdict) {
	case VERDICT_DELIVER:
		return MRC_C_RX_PACKETS;
	case VERDICT_STORE:
		return MRC_C_RX_HELD;
	case VERDICT_DUPLICATE:
		return MRC_C_RX_DUPLICATE;
	}
	return MRC_C_DROP_BUFFER;
}

static __always_inline int deliver_drop(u32 key, u32 qp, u32 why)
{
	count(why);
	capture_verdict(key, qp, why);
	return TC_ACT_SHOT;
}

/*
 * Is it time for a SACK? Enough has arrived, and not only just before: at high
 * rates SACKs would be half of all packets and say little that is new. But the
 * sender's window must not fill meanwhile, and a window wider than the bits of
 * one SACK is told in several, which are not held back.
 * Lock of rx held.
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

/* Say what has arrived; what is pending is said with it. Lock of rx held. */
static __always_inline void take_sack(struct mrc_rx *rx, struct sack_body *sack, u64 now)
{
	sack_from_rx(rx, next_slice(rx), sack);
	rx->pending_packets = 0;
	rx->pending_bytes = 0;
	rx->sacked_ns = now;
}

static __always_inline int on_data(struct __sk_buff *skb, const struct mrc_mark *mark, u32 key)
{
	u32 qp = mark->qp, wire_psn = mark_psn(mark), len, verdict, psn;
	u32 held = 0, owner = 0, want, ifindex, more;
	u64 now;
	struct mrc_host *h = host_get();
	struct sack_body sack = {};
	struct mrc_rx_entry *entry;
	struct mrc_rx *rx;
	struct mrc_qp *q;

	q = qps.lookup(&qp);
	rx = rxs.lookup(&qp);
	if (!h || !q || !rx)
		return TC_ACT_SHOT;
	if (q->state == MRC_QP_DOWN)
		return deliver_drop(key, qp, MRC_C_DROP_STATE);
	len = skb->len - MRC_ETH_LEN - MRC_ICRC_LEN;
	if (len < 20 || len > CFG_MTU) /* shorter than the ICRC word wraps round */
		return deliver_drop(key, qp, MRC_C_DROP_LENGTH);
	if (bpf_skb_change_tail(skb, MRC_ETH_LEN + len, 0))
		return deliver_drop(key, qp, MRC_C_DROP_SKB);
	/* GRO sorts by hash; the packets of the reorder ring come with another one. */
	bpf_set_hash_invalid(skb);

	bpf_spin_lock(&rx->lock);
	psn = rx->next + psn_diff(wire_psn, rx->next);
	verdict = rx_verdict(rx, psn);
	if (verdict == VERDICT_DELIVER) {
		rx->busy = owner = 1;
		/* A copy that comes now must not be taken for a packet still missing. */
		rx_set(rx, psn);
	}
	bpf_spin_unlock(&rx->lock);

	if (verdict == VERDICT_OUTSIDE)
		return deliver_drop(key, qp, MRC_C_DROP_PSN);
	if (verdict == VERDICT_DELIVER) {
		if (put_link(skb, h, skb->protocol) ||
		    bpf_clone_redirect(skb, h->link_ifindex, 0)) {
			count(MRC_C_DELIVER_RETRY);
			verdict = VERDICT_STORE;
		} else {
			count(MRC_C_RX_PACKETS);
			count_by(MRC_C_RX_BYTES, len);
		}
	}
	if (verdict == VERDICT_STORE)
		held = hold_packet(skb, qp, psn, len);
	entry = rx_entry_get(qp, psn);
	if (!entry)
		return TC_ACT_SHOT;

	now = bpf_ktime_get_ns();
	want = mark->flags & (MRC_BTH_RTX | MRC_BTH_ACKREQ | MRC_MARK_CE);
	more = 0;
	bpf_spin_lock(&rx->lock);
	if (owner)
		rx_clear(rx, psn);
	if (verdict == VERDICT_STORE) {
		if (rx_verdict(rx, psn) >= VERDICT_DUPLICATE) {
			verdict = VERDICT_DUPLICATE;
		} else if (!held) {
			verdict = VERDICT_NO_BUFFER;
		} else {
			entry->psn = psn;
			entry->slot = held;
			entry->len = len;
			rx_set(rx, psn);
			rx->waiting++;
		}
	} else if (verdict == VERDICT_DELIVER) {
		rx->next = psn + 1;
	}
	if (verdict < VERDICT_DUPLICATE) {
		rx->packets++;
		rx->bytes += len;
		rx->pending_packets++;
		rx->pending_bytes += len;
		if ((s32)(psn + 1 - rx->high) > 0)
			rx->high = psn + 1;
		rx->ev = mark_ev(mark);
	}
	if (owner || !rx->busy) {
		/* A retry after mrc0 was full is left to the next arrival. */
		more = rx_bit(rx, rx->next) && !(owner && verdict == VERDICT_STORE);
		rx->busy = more;
	}
	want |= verdict == VERDICT_DUPLICATE || sack_is_due(rx, h, q, now);
	if (want && !more)
		take_sack(rx, &sack, now);
	bpf_spin_unlock(&rx->lock);

	if (verdict == VERDICT_STORE)
		count(MRC_C_RX_HELD);
	if (verdict == VERDICT_NO_BUFFER)
		count(MRC_C_DROP_BUFFER);
	if (verdict == VERDICT_DUPLICATE) {
		count(MRC_C_RX_DUPLICATE);
		if (held) {
			held--;
			rx_free.push(&held, 0);
		}
	}
	capture_verdict(key, qp, verdict_says(verdict));
	if (more) {
		drain(skb, h, qp, rx);
		if (want) {      /* it says what is left of the window now */
			bpf_spin_lock(&rx->lock);
			take_sack(rx, &sack, now);
			bpf_spin_unlock(&rx->lock);
		}
	}

	/* answer? */
	if (!want) {
		watch(qp);
		return TC_ACT_SHOT;
	}
	if (sack.ooo)
		watch(qp);
	sack.ev = mark_ev(mark);
	sack.ts = mark->ts;
	if (verdict == VERDICT_DUPLICATE)
		sack.cc_flags = MRC_CC_FLAG_DUPLICATE;
	if (mark->flags & MRC_MARK_CE) {
		sack.m = MRC_SETH_M_SKIP_ONCE;
		count(MRC_C_ECHO_TX);
	}
	sack.ack_off = psn - sack.cack;
	ifindex = write_sack(skb, h, qp, q, &sack);
	if (!ifindex)
		return TC_ACT_SHOT;
	count(MRC_C_SACK_TX);
	return bpf_redirect(ifindex, 0);
}
