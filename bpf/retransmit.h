/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sender's side of SACKs: what arrived, what is lost, and sending it again
 * from the ring on another path, with the SACK's own skb as the carrier.
 *
 * Three rules say that a packet is lost (docs/protocol.md):
 *   fifo    a packet sent later on the same path arrived; a path keeps order
 *   guard   a packet sent at least a reorder guard later arrived on any path
 *   timeout nothing was heard for a retransmission time-out (tick only)
 */
#ifndef MRC_RETRANSMIT_H
#define MRC_RETRANSMIT_H

#define RESEND_MAX 16            /* packets sent again by one program run */
#define SCAN_MAX 80              /* holes looked at by one program run */
#define ACK_STEPS 200
#define REO_FORGET_NS 100000000ull

static __always_inline int tx_bit(const struct mrc_tx *tx, u32 psn)
{
	return tx->sacked[(psn >> 6) & CFG_WORD_MASK] >> (psn & 63) & 1;
}

static __always_inline u32 guard_ns(const struct mrc_tx *tx, const struct mrc_host *h)
{
	u32 guard = tx->srtt_ns / 2;

	if (guard < h->reo_min_ns)
		return h->reo_min_ns;
	if (guard > h->reo_max_ns)
		return h->reo_max_ns;
	return guard;
}

/*
 * Does this packet count as lost? Returns the counter of the rule that says
 * so, or 0. With timeout_ns only the time counts, without it only the evidence
 * of the SACK that has just reported the packet missing.
 */
static __always_inline u32 lost_by(const struct mrc_tx_entry *entry, const struct mrc_path *path,
				   const struct mrc_tx *tx, const struct mrc_host *h, u64 now,
				   u64 timeout_ns)
{
	u64 sent = entry->sent_ns;

	if (timeout_ns)
		return now > sent + timeout_ns ? MRC_C_RTX_TIMEOUT : 0;
	if (path->delivered_ns > sent + h->fifo_slack_ns + tx->fifo_extra_ns)
		return MRC_C_RTX_FIFO;
	if (tx->delivered_ns > sent + guard_ns(tx, h) + tx->guard_extra_ns)
		return MRC_C_RTX_GUARD;
	return 0;
}

/* Send PSN `psn` again if it counts as lost. Returns 1 if it was sent. */
static __always_inline int resend(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				  const struct mrc_qp *q, struct mrc_tx *tx, u32 psn, u64 now,
				  u64 plane_mask, u64 timeout_ns)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);
	u32 why, old_id, new_id, slot, plane, mine = 0, gone = 0;
	u64 len, sent, others, tag = (u64)qp << 32 | psn;
	struct mrc_peer_plane *pp;
	struct mrc_path *path;
	struct mrc_plane *pl;
	struct mrc_slot *buf;
	__u32 icrc = 0;
	void *data, *end;

	if (!entry || entry->psn != psn)
		return 0;
	sent = entry->sent_ns;
	old_id = entry->path;
	path = path_get(qp, old_id);
	slot = entry->slot;
	buf = tx_ring.lookup(&slot);
	if (!path || !buf)
		return 0;
	why = lost_by(entry, path, tx, h, now, timeout_ns);
	if (!why)
		return 0;

	/* claim it: two SACKs on two CPUs may have come to the same conclusion */
	new_id = 0;
	bpf_spin_lock(&tx->lock);
	if (entry->sent_ns == sent && psn - tx->una < tx->next - tx->una && !tx_bit(tx, psn)) {
		mine = 1;
		tx->retransmits++;
		gone = withdraw_path(tx, path, old_id, now, h);
		/* another plane where one is left: what took this packet may
		 * have taken the whole plane */
		others = plane_mask & ~(1ull << (old_id >> 8 & 7));
		new_id = pick_path(tx, tx->plane_good & others ? others : plane_mask);
		entry->sent_ns = now;
		entry->sends++;
		entry->rule = why;
		entry->path = new_id;
	}
	bpf_spin_unlock(&tx->lock);
	if (!mine)
		return 0;
	__sync_fetch_and_add(&path->lost, 1);
	count(why);
	if (gone) {
		struct mrc_event ev = { .kind = MRC_EVENT_PATH, .qp = qp, .ev = path->ev,
					.state = MRC_PATH_ASSUMED_BAD, .time_ns = now };

		count(MRC_C_PATH_WITHDRAWN);
		events.ringbuf_output(&ev, sizeof(ev), 0);
	}

	/* The slot may be given away while it is read: look at its tag before and after. */
	len = entry->len;
	if (!LEN_OK(len) || buf->tag != tag)
		return 0;
	plane = new_id >> 8;
	path = path_get(qp, new_id);
	pl = planes.lookup(&plane);
	pp = peer_plane_get(q->peer, plane);
	if (!path || !pl || !pp)
		return 0;
	if (bpf_skb_change_tail(skb, MRC_PAYLOAD_OFF + len + MRC_ICRC_LEN, 0) ||
	    bpf_skb_store_bytes(skb, MRC_PAYLOAD_OFF, buf->data, len, 0) ||
	    bpf_skb_store_bytes(skb, MRC_PAYLOAD_OFF + len, &icrc, sizeof(icrc), 0))
		return 0;
	barrier();
	if (buf->tag != tag)
		return 0;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_headers(data, end, h, pl, pp, path->ev, MRC_WRITE_LEN + len,
			MRC_OP_WRITE_ONLY, MRC_BTH_RTX, q->remote_qpn, psn) ||
	    put_write(data, end, psn, len, now))
		return 0;
	__sync_fetch_and_add(&path->sent, 1);
	bpf_clone_redirect(skb, pl->ifindex, 0);
	return 1;
}

/*
 * One packet of ours has arrived: give its slot back, learn from it. Its bit
 * was set in tx->sacked by us, so nobody else does this.
 */
static __always_inline void acked(u32 qp, u32 psn, struct mrc_tx *tx, u64 now, u64 *latest)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);
	struct mrc_slot *buf;
	struct mrc_path *path;
	u32 slot;

	if (!entry || entry->psn != psn)
		return;
	slot = entry->slot;
	buf = tx_ring.lookup(&slot);
	if (buf)
		buf->tag = ~0ull;
	tx_free.push(&slot, 0);
	/* After a retransmission the first sending may be what arrived: then it
	 * says nothing about the second one's time or path (as RACK, RFC 8985). */
	if (entry->sends > 1 && now - entry->sent_ns < tx->min_rtt_ns)
		return;
	if (entry->sent_ns > *latest)
		*latest = entry->sent_ns;
	path = path_get(qp, entry->path);
	if (!path)
		return;
	if (entry->sent_ns > path->delivered_ns)
		path->delivered_ns = entry->sent_ns;
	path->loss_ppm -= path->loss_ppm >> 8;
	tx->loss_ppm -= tx->loss_ppm >> 8;
	__sync_fetch_and_add(&path->acked, 1);
}

/* Round trip of the packet that caused a SACK (RFC 6298). Lock of tx held. */
static __always_inline void rtt_sample(struct mrc_tx *tx, u32 rtt)
{
	s32 err = rtt - tx->srtt_ns;

	if (!tx->min_rtt_ns || rtt < tx->min_rtt_ns)
		tx->min_rtt_ns = rtt;
	if (!tx->srtt_ns) {
		tx->srtt_ns = rtt;
		tx->rttvar_ns = rtt / 2;
		return;
	}
	tx->srtt_ns += err >> 3;
	tx->rttvar_ns += ((err < 0 ? -err : err) - (s32)tx->rttvar_ns) >> 2;
}

/*
 * How far packets overtake each other, learnt as RACK does it (RFC 8985,
 * 7.2): each round trip with a needless retransmission widens the rule that
 * caused it, each quiet tenth of a second narrows both again. `rule` is 0
 * where there was none. Lock of tx held.
 */
static __always_inline void learn_reordering(struct mrc_tx *tx, const struct mrc_host *h, u64 now,
					     u32 rule)
{
	if (rule && now - tx->reo_ns > tx->srtt_ns) {
		u32 *extra = rule == MRC_C_RTX_FIFO ? &tx->fifo_extra_ns : &tx->guard_extra_ns;
		u32 most = rule == MRC_C_RTX_FIFO ? h->reo_min_ns : h->reo_max_ns;

		*extra = *extra * 2 + h->reo_min_ns / 4;
		if (*extra > most)
			*extra = most;
		tx->reo_ns = now;
	} else if (now - tx->reo_ns > REO_FORGET_NS) {
		tx->fifo_extra_ns /= 2;
		tx->guard_extra_ns /= 2;
		tx->reo_ns = now;
	}
}

/* Move una over everything that arrived. Lock of tx held. */
static __always_inline void advance_una(struct mrc_tx *tx, u64 now)
{
	u32 i, word, shift, n, una = tx->una;
	u64 missing, mask;

	for (i = 0; i < 8; i++) {
		word = (una >> 6) & CFG_WORD_MASK;
		shift = una & 63;
		missing = ~tx->sacked[word] >> shift;
		n = missing ? lowest_bit(missing) : 64 - shift;
		mask = n >= 64 ? ~0ull : ((1ull << (n & 63)) - 1) << shift;
		tx->sacked[word] &= ~mask;
		una += n;
		if (missing)
			break;
	}
	if (una != tx->una) {
		tx->una = una;
		tx->progress_ns = now;
		tx->backoff = 0;
	}
}

/*
 * Send again what counts as lost among the PSNs from `from` up to `to`, at
 * most RESEND_MAX packets. Returns how many were due; scratch has the last one.
 */
static __always_inline u32 repair(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				  const struct mrc_qp *q, struct mrc_tx *tx, u64 now,
				  u64 plane_mask, u32 from, u32 to, u64 timeout_ns)
{
	struct mrc_scratch *sc = scratch_get();
	struct mrc_tx_entry *entry;
	struct mrc_path *path;
	u32 i, word, psn, n;
	u64 holes = 0;

	/* Look first, send afterwards: one loop with both in it has more paths
	 * through it than the verifier is willing to walk. */
	if (!sc)
		return 0;
	sc->found = 0;
	word = (from & ~63u) - 64;
	for (i = 0; i < SCAN_MAX; i++) {
		if (!holes) {
			word += 64;
			if ((s32)(word - to) >= 0)
				break;
			holes = ~tx->sacked[(word >> 6) & CFG_WORD_MASK] &
				range_mask(word, from, to);
			continue;
		}
		psn = word + lowest_bit(holes);
		holes &= holes - 1;
		entry = tx_entry_get(qp, psn);
		if (!entry || entry->psn != psn)
			continue;
		path = path_get(qp, entry->path);
		if (!path || !lost_by(entry, path, tx, h, now, timeout_ns))
			continue;
		n = sc->found;
		sc->due[n & (RESEND_MAX - 1)] = psn;
		sc->found = n + 1;
		sc->last = psn;
		if (n + 1 >= RESEND_MAX)
			break;
	}
	for (i = 0; i < RESEND_MAX; i++) {
		if (i >= sc->found)
			break;
		resend(skb, h, qp, q, tx, sc->due[i], now, plane_mask, timeout_ns);
	}
	return sc->found;
}

static __always_inline int on_sack(struct __sk_buff *skb, const struct mrc_mark *mark)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_seth *seth = data + MRC_BODY_OFF;
	u32 qp = mark->qp, una, next, cack, base, i, step, word = 0, psn, trigger, high, delayed;
	u32 needless, rule, heard;
	u64 bitmap, now, fresh = 0, mask, latest = 0, rtt, plane_mask;
	struct mrc_tx_entry *entry;
	struct mrc_host *h = host_get();
	struct mrc_peer *peer;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	struct mrc_scratch *sc = scratch_get();
	struct mrc_path *path;
	s32 ahead;
	u32 peer_index;

	if (data + MRC_SACK_FRAME_LEN > end || !h || !sc)
		return TC_ACT_SHOT;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!q || !tx || q->state != MRC_QP_READY)
		return TC_ACT_SHOT;
	peer_index = q->peer;
	peer = peers.lookup(&peer_index);
	if (!peer)
		return TC_ACT_SHOT;
	plane_mask = h->plane_mask & peer->plane_mask;
	delayed = seth->cc & (MRC_CC_FLAG_DELAYED | MRC_CC_FLAG_DUPLICATE);
	needless = seth->cc & MRC_CC_FLAG_DUPLICATE;
	heard = bpf_ntohl(((struct mrc_cc_state *)(seth + 1))->bytes) & 0xffffff;
	bitmap = (u64)bpf_ntohl(seth->bitmap_hi) << 32 | bpf_ntohl(seth->bitmap_lo);

	bpf_spin_lock(&tx->lock);
	una = tx->una;
	next = tx->next;
	bpf_spin_unlock(&tx->lock);
	ahead = psn_diff(bpf_ntohl(seth->cack) & MRC_PSN_MASK, una - 1);
	if (ahead > (s32)(next - una)) {
		count(MRC_C_DROP_SACK);
		return TC_ACT_SHOT;
	}
	if (una == next) {       /* nothing is on its way: nothing to learn */
		count(MRC_C_SACK_STALE);
		return TC_ACT_SHOT;
	}
	cack = una - 1 + ahead;
	base = cack + (s16)bpf_ntohs(seth->sack_offset);
	trigger = cack + (s16)(bpf_ntohl(seth->head) & 0xffff);
	count(ahead < 0 ? MRC_C_SACK_STALE : MRC_C_SACK_RX);
	now = bpf_ktime_get_ns();
	sc->rule = 0;
	if (needless) {
		count(MRC_C_RTX_NEEDLESS);
		entry = tx_entry_get(qp, trigger);
		if (entry && (s32)(next - trigger) > 0 && entry->psn == trigger)
			sc->rule = entry->rule;
	}

	/* a round trip, measured on the packet that caused this SACK */
	sc->rtt = 0;
	if (!delayed && trigger - una < next - una && !tx_bit(tx, trigger)) {
		entry = tx_entry_get(qp, trigger);
		if (entry && entry->psn == trigger && entry->sends == 1) {
			sc->rtt = now - entry->sent_ns;
			path = path_get(qp, entry->path);
			if (path)
				path->srtt_ns += path->srtt_ns ?
					(s32)((u32)sc->rtt - path->srtt_ns) >> 3 : (u32)sc->rtt;
		}
	}

	/* what has arrived: four words of cumulative news, two of the bitmap; what
	 * is left over comes again with the next SACK */
	high = una;
	sc->step = 0;
	for (i = 0; i < ACK_STEPS; i++) {
		if (!fresh) {
			step = sc->step;
			if (step >= 6 || i > ACK_STEPS - 68)
				break;
			if (step < 4) {
				word = (una & ~63u) + 64 * step;
				mask = range_mask(word, una, cack + 1);
			} else {
				word = (base & ~63u) + 64 * (step - 4);
				mask = shifted(bitmap, base, word);
			}
			sc->step = step + 1;
			if (!mask)
				continue;
			mask &= range_mask(word, una, next);
			bpf_spin_lock(&tx->lock);
			/* una may have moved since; what it passed is done */
			if ((s32)(tx->una - word) > 0)
				mask &= (s32)(tx->una - word) >= 64 ?
					0 : ~0ull << ((tx->una - word) & 63);
			fresh = mask & ~tx->sacked[(word >> 6) & CFG_WORD_MASK];
			tx->sacked[(word >> 6) & CFG_WORD_MASK] |= fresh;
			bpf_spin_unlock(&tx->lock);
			continue;
		}
		psn = word + lowest_bit(fresh);
		fresh &= fresh - 1;
		acked(qp, psn, tx, now, &latest);
		if ((s32)(psn + 1 - high) > 0)
			high = psn + 1;
	}

	rtt = sc->rtt;
	rule = sc->rule;
	bpf_spin_lock(&tx->lock);
	if (latest > tx->delivered_ns)
		tx->delivered_ns = latest;
	if ((s32)(high - tx->high) > 0)
		tx->high = high;
	if (rtt)
		rtt_sample(tx, rtt);
	learn_reordering(tx, h, now, rule);
	/* SACKs overtake each other too: what an older one misses may be here by now */
	fresh = ((heard - tx->heard) & 0xffffff) < 0x800000;
	if (fresh)
		tx->heard = heard;
	advance_una(tx, now);
	high = tx->high;
	una = tx->una;
	bpf_spin_unlock(&tx->lock);

	/* what this SACK reports missing, and may be lost */
	next = base + MRC_SACK_BITS;
	if ((s32)(next - high) > 0)
		next = high;
	if ((s32)(base - una) < 0)
		base = una;
	if (fresh && (s32)(next - base) > 0)
		repair(skb, h, qp, q, tx, now, plane_mask, base, next, 0);
	return TC_ACT_SHOT;
}

#endif
