/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is lost, and sending it again from the ring on another path, with the
 * skb of the SACK or of the clock as the carrier.
 *
 * Three rules say that a packet is lost (docs/protocol.md):
 *   fifo    a packet sent later on the same path arrived; a path keeps order
 *   guard   it is late by more than a guard for its plane as it is now, and
 *           one sent later arrived on any path
 *   timeout nothing was heard for a retransmission time-out (tick only)
 */
#define RESEND_MAX 16            /* packets sent again by one program run */
#define SCAN_MAX 80              /* holes looked at by one program run */
#define NACKED (~0ull)           /* for timeout_ns: a switch trimmed the packet ... */
#define REFUSED (~0ull - 1)      /* ... or the receiver could not take it: not the path's fault */

static __always_inline int tx_bit(const struct mrc_tx *tx, u32 psn)
{
	return tx->sacked[(psn >> 6) & CFG_WORD_MASK] >> (psn & 63) & 1;
}

static __always_inline u32 guard_ns(const struct mrc_tx *tx, const struct mrc_host *h)
{
	u32 guard = tx->srtt_ns / 4;

	if (guard < h->reo_min_ns)
		return h->reo_min_ns;
	if (guard > h->reo_max_ns)
		return h->reo_max_ns;
	return guard;
}

/* A time-out: a round trip and four of its deviations (RFC 6298), doubled `backoff` times. */
static __always_inline u64 timeout_ns(const struct mrc_tx *tx, u64 min, u32 backoff, u64 max)
{
	u64 timeout = tx->srtt_ns + 4ull * tx->rttvar_ns;

	if (timeout < min)
		timeout = min;
	timeout <<= backoff & 7;
	return timeout > max ? max : timeout;
}

/*
 * Does this packet count as lost? Returns the counter of the rule that says
 * so, or 0. With timeout_ns only the time counts, without it only the evidence
 * of the SACK that has just reported the packet missing.
 */
static __always_inline u32 lost_by(const struct mrc_tx_entry *entry, const struct mrc_path *path,
				   const struct mrc_tx *tx, const struct mrc_balance *b,
				   const struct mrc_host *h, u64 now, u64 timeout_ns)
{
	u64 sent = entry->sent_ns;
	u32 rtt;

	if (timeout_ns >= REFUSED)
		return MRC_C_RTX_NACK;
	if (timeout_ns)
		return now > sent + timeout_ns ? MRC_C_RTX_TIMEOUT : 0;
	if (path->delivered_ns > sent + h->fifo_slack_ns + tx->fifo_extra_ns)
		return MRC_C_RTX_FIFO;
	/* by now it should have been heard of, as planes are now, and later ones were */
	rtt = b->now_ns[path_plane(entry->path)];
	if (!rtt)
		rtt = tx->srtt_ns;
	if (tx->delivered_ns > sent && now > sent + rtt + guard_ns(tx, h) + tx->guard_extra_ns)
		return MRC_C_RTX_GUARD;
	return 0;
}

/* Send PSN `psn` again if it counts as lost. */
static __always_inline void resend(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				  const struct mrc_qp *q, struct mrc_tx *tx,
				  struct mrc_balance *b, u32 psn, u64 now, u64 seen_ns, u64 up,
				  u64 timeout_ns)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);
	u32 why, old_id, new_id, slot, plane, mine = 0, cause = MRC_ON_LOSS;
	u64 len, sent, tag = (u64)qp << 32 | psn;
	struct path_move move = {};
	struct mrc_peer_plane *pp;
	struct mrc_path *path;
	struct mrc_plane *pl;
	struct mrc_slot *buf;
	void *data, *end;
	__be32 check;

	if (!entry || entry->psn != psn)
		return;
	sent = entry->sent_ns;
	old_id = entry->path;
	path = path_get(qp, old_id);
	slot = entry->slot;
	buf = tx_ring.lookup(&slot);
	if (!path || !buf)
		return;
	why = lost_by(entry, path, tx, b, h, seen_ns, timeout_ns);
	if (!why)
		return;

	/* claim it: two SACKs on two CPUs may have come to the same conclusion */
	new_id = MRC_NO_PATH;
	bpf_spin_lock(&tx->lock);
	if (entry->sent_ns == sent && psn - tx->una < tx->next - tx->una && !tx_bit(tx, psn)) {
		mine = 1;
		tx->retransmits++;
		if (timeout_ns == NACKED) {
			cause = MRC_ON_MARK;
			path_event(tx, old_id, cause, &move);
		} else if (timeout_ns != REFUSED) {
			path_lost(tx, path, old_id, now, h, path->delivered_ns > sent,
				  b->loss_ppm[path_plane(old_id)], &move);
		}
		/* another plane where one is left: what took this packet may
		 * have taken the whole plane */
		new_id = pick_path(tx, up, up & ~(1ull << (path_plane(old_id))), b->shares);
		entry->sent_ns = now;
		if (entry->sends == 1) {
			entry->was = old_id;
			entry->first_ns = sent;
		}
		if (entry->sends < 255)
			entry->sends++;
		entry->rule = why;
		if (new_id != MRC_NO_PATH)
			entry->path = new_id;
	}
	bpf_spin_unlock(&tx->lock);
	if (!mine)
		return;
	if (timeout_ns < REFUSED) {
		__sync_fetch_and_add(&path->lost, 1);
		b->lost[path_plane(old_id)]++;
	}
	count(why);
	report_move(qp, old_id, path, &move, cause, sent, now);
	if (new_id == MRC_NO_PATH)
		return;
	new_id &= 0xffff;

	/* The slot may be given away while it is read: look at its tag before and after. */
	len = entry->len;
	if (!LEN_OK(len) || buf->tag != tag)
		return;
	plane = path_plane(new_id);
	path = path_get(qp, new_id);
	pl = planes.lookup(&plane);
	pp = peer_plane_get(q->peer, plane);
	if (!path || !pl || !pp)
		return;
	if (bpf_skb_change_tail(skb, MRC_PAYLOAD_OFF + len + MRC_ICRC_LEN, 0) ||
	    bpf_skb_store_bytes(skb, MRC_PAYLOAD_OFF, buf->data, len, 0))
		return;
	barrier();
	if (buf->tag != tag)
		return;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_headers(data, end, h, pl, pp, path->ev, MRC_WRITE_LEN + len,
			MRC_OP_WRITE_ONLY, MRC_BTH_RTX, q->remote_qpn, psn) ||
	    put_write(data, end, psn, len, now))
		return;
	check = header_check(data, MRC_WRITE_LEN);
	if (bpf_skb_store_bytes(skb, MRC_PAYLOAD_OFF + len, &check, sizeof(check), 0))
		return;
	__sync_fetch_and_add(&path->sent, 1);
	capture_skb(skb, plane, qp, q->peer, why);
	bpf_clone_redirect(skb, pl->ifindex, 0);
}

/*
 * Find what counts as lost among the PSNs from `from` up to `to`, at most
 * RESEND_MAX packets; scratch holds them, for resend_due().
 */
static __always_inline void find_lost(const struct mrc_host *h, u32 qp, const struct mrc_tx *tx,
				      const struct mrc_balance *b, struct mrc_scratch *sc, u64 now,
				      u32 from, u32 to, u64 timeout_ns)
{
	struct mrc_tx_entry *entry;
	struct mrc_path *path;
	u32 i, word, psn, n;
	u64 holes = 0;

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
		if (!path || !lost_by(entry, path, tx, b, h, now, timeout_ns))
			continue;
		n = sc->found;
		sc->due[n & (RESEND_MAX - 1)] = psn;
		sc->found = n + 1;
		sc->last = psn;
		if (n + 1 >= RESEND_MAX)
			break;
	}
}

/*
 * Send again what find_lost() found: a program of its own, which calls itself
 * for the next packet, so that the verifier walks one packet and not all. Does
 * not return if there is anything to send.
 */
static __always_inline void resend_due(struct __sk_buff *skb, struct mrc_scratch *sc, u32 qp,
				       u64 now, u64 seen_ns, u64 timeout_ns)
{
	sc->qp = qp;
	sc->sent = 0;
	sc->now = now;
	sc->seen_ns = seen_ns;
	sc->timeout_ns = timeout_ns;
	if (sc->found)
		tails.call(skb, TAIL_RESEND);
}

int mrc_resend(struct __sk_buff *skb)
{
	struct mrc_scratch *sc = scratch_get();
	struct mrc_host *h = host_get();
	u32 qp, i;
	struct mrc_balance *b;
	struct mrc_peer *peer;
	struct mrc_qp *q;
	struct mrc_tx *tx;

	if (!sc || !h)
		return TC_ACT_SHOT;
	qp = sc->qp;
	i = sc->sent;
	sc->sent = i + 1;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (i >= sc->found || i >= RESEND_MAX || !q || !tx)
		return TC_ACT_SHOT;
	peer = peer_get(q->peer);
	b = balance_get(q->peer);
	if (!peer || !b)
		return TC_ACT_SHOT;
	resend(skb, h, qp, q, tx, b, sc->due[i & (RESEND_MAX - 1)], sc->now,
	       sc->seen_ns, usable_planes(h, peer, b), sc->timeout_ns);
	tails.call(skb, TAIL_RESEND);
	return TC_ACT_SHOT;
}
