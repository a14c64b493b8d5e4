/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Answers: SACKs and NACKs, taken apart. What has arrived gives its slot back
 * and teaches round trips, marks and how far packets overtake each other; what
 * is reported missing and counts as lost goes on to retransmit.c.
 */
#define ACK_STEPS 200
#define ABSURD_SACKS 16          /* in a row: the QP is out of step */

/*
 * One packet of ours has arrived: give its slot back, learn from it. Its bit
 * was set in tx->sacked by us, so nobody else does this.
 */
static __always_inline void acked(u32 qp, u32 psn, u32 sure, struct mrc_tx *tx,
				  struct mrc_balance *b, u64 *latest)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);
	struct mrc_slot *buf;
	struct mrc_path *path;
	u32 slot, plane;

	if (!entry || entry->psn != psn)
		return;
	slot = entry->slot;
	buf = tx_ring.lookup(&slot);
	if (buf)
		buf->tag = ~0ull;
	tx_free.push(&slot, 0);
	/* After a retransmission the first sending may be what arrived: then it says
	 * nothing about the second one's time or path. RACK (RFC 8985) asks whether a
	 * round trip has passed, which is no sign where queues grow; the time that a
	 * SACK names is one. */
	if (entry->sends > 1 && psn != sure)
		return;
	if (entry->sent_ns > *latest)
		*latest = entry->sent_ns;
	path = path_get(qp, entry->path);
	if (!path)
		return;
	plane = path_plane(entry->path);
	b->acked[plane]++;
	tx->acked[plane]++;
	tx->live[plane] = path_slot(entry->path) + 1;
	if (entry->sent_ns > path->delivered_ns)
		path->delivered_ns = entry->sent_ns;
	path->loss_ppm -= path->loss_ppm >> 8;
	tx->loss_ppm -= tx->loss_ppm >> 8;
	__sync_fetch_and_add(&path->acked, 1);
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
 * One such SACK is damaged or a lie. Many in a row, and none that makes sense,
 * mean that the receiver is ahead of us: a damaged PSN was taken for a packet,
 * and the gap before it was given up. No packet of the QP will arrive any more;
 * the daemon sets up new ones.
 */
static __always_inline void out_of_step(u32 qp, struct mrc_tx *tx)
{
	struct mrc_event ev = { .kind = MRC_EVENT_OUT_OF_STEP, .qp = qp };

	tx->absurd++;
	if ((tx->absurd & (ABSURD_SACKS - 1)) == 0 &&
	    events.ringbuf_output(&ev, sizeof(ev), BPF_RB_FORCE_WAKEUP))
		count(MRC_C_EVENT_LOST);
}

/* A packet that this path was withdrawn for had arrived. */
static __always_inline void clear_path(u32 qp, u32 id, struct mrc_tx *tx, struct mrc_balance *b,
				       u64 now)
{
	struct mrc_path *path = path_get(qp, id);
	struct path_move move = {};

	if (!path)
		return;
	bpf_spin_lock(&tx->lock);
	path_cleared(tx, path, id, now, &move);
	bpf_spin_unlock(&tx->lock);
	if (b->lost[path_plane(id)])
		b->lost[path_plane(id)]--;
	report_move(qp, id, path, &move, MRC_ON_PROBE, 0, now);
}

/* Takes a SACK apart: what caused it and what has arrived. mrc_learn() does the rest. */
static __always_inline void on_sack(struct __sk_buff *skb, const struct mrc_mark *mark,
				    struct mrc_tx *tx, struct mrc_balance *b,
				    const struct mrc_host *h, struct mrc_scratch *sc, u64 now,
				    u32 key)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_seth *seth = data + MRC_BODY_OFF;
	struct mrc_cc_state *cc = data + MRC_BODY_OFF + MRC_SETH_LEN;
	u32 qp = mark->qp, una, next, cack, base, i, step, word = 0, psn, trigger, high, delayed;
	u32 needless, heard, verdict, down, cleared, sure, id;
	u64 bitmap, fresh = 0, mask, latest = 0, seen, sent;
	struct mrc_tx_entry *entry;
	struct mrc_path *path;
	s32 ahead;

	if (data + MRC_SACK_FRAME_LEN > end)
		return;
	delayed = seth->cc & MRC_CC_FLAG_DELAYED;
	needless = seth->cc & MRC_CC_FLAG_DUPLICATE;
	verdict = bpf_ntohl(seth->head) >> MRC_SETH_M_SHIFT & 3;
	down = bpf_ntohl(seth->cack) >> MRC_SETH_DOWN_SHIFT;
	heard = bpf_ntohl(cc->bytes) & 0xffffff;
	bitmap = (u64)bpf_ntohl(seth->bitmap_hi) << 32 | bpf_ntohl(seth->bitmap_lo);

	bpf_spin_lock(&tx->lock);
	una = tx->una;
	next = tx->next;
	bpf_spin_unlock(&tx->lock);
	ahead = psn_diff(bpf_ntohl(seth->cack) & MRC_PSN_MASK, una - 1);
	if (ahead > (s32)(next - una)) {
		count(MRC_C_DROP_SACK);
		capture_outcome(key, qp, MRC_C_DROP_SACK);
		out_of_step(qp, tx);
		return;
	}
	if (una == next) {       /* nothing is on its way: nothing to learn */
		count(MRC_C_SACK_STALE);
		capture_outcome(key, qp, MRC_C_SACK_STALE);
		return;
	}
	tx->absurd = 0;
	cack = una - 1 + ahead;
	base = cack + (s16)bpf_ntohs(seth->sack_offset);
	trigger = cack + (s16)(bpf_ntohl(seth->head) & 0xffff);
	count(ahead < 0 ? MRC_C_SACK_STALE : MRC_C_SACK_RX);
	capture_outcome(key, qp, ahead < 0 ? MRC_C_SACK_STALE : MRC_C_SACK_RX);
	sc->rule = 0;
	sc->rtt = 0;
	sc->seen_ns = now;
	sc->slow = 0;
	sc->verdict = 0;
	sc->id = MRC_NO_PATH;
	sc->found_slow = 0;
	cleared = MRC_NO_PATH;

	/* what caused it: a needless copy, a mark, a round trip. The time says which
	 * sending it was: if only the last one taught round trips, those that are sent
	 * again too early would never teach that it was too early. */
	sure = una - 1;
	entry = tx_entry_get(qp, trigger);
	if (entry && (s32)(next - trigger) > 0 && entry->psn == trigger) {
		sent = entry->sent_ns;
		id = entry->path;
		if (entry->sends > 1 && cc->tx_timestamp == wire_time(entry->first_ns)) {
			sent = entry->first_ns;
			id = entry->was;
		} else if (cc->tx_timestamp == wire_time(sent)) {
			sure = trigger;
		} else {
			sent = 0;
		}
		path = path_get(qp, id);
		if (needless) {
			sc->rule = entry->rule;
			if (entry->sends == 2)
				cleared = entry->was;
		}
		if (path && verdict && path->ev == bpf_ntohl(seth->entropy)) {
			sc->id = id;
			sc->verdict = verdict;
			path->marked++;
			b->marked[path_plane(id)]++;
			count(MRC_C_ECHO_RX);
		}
		if (path && sent && !delayed &&
		    (needless || (trigger - una < next - una && !tx_bit(tx, trigger)))) {
			sc->rtt = now - sent;
			sc->is_long = entry->len >= CFG_MTU / 2;
			sc->id = id;
			sc->slow = path_rtt(path, b, path_plane(id), h, sc->rtt, now);
			/* how long the SACK itself took is not the missing packets' delay */
			seen = sent + b->now_ns[path_plane(id)];
			if (seen < now)
				sc->seen_ns = seen;
		}
	}
	if (needless)
		count(MRC_C_RTX_NEEDLESS);

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
		acked(qp, psn, sure, tx, b, &latest);
		if ((s32)(psn + 1 - high) > 0)
			high = psn + 1;
	}

	sc->qp = qp;
	sc->now = now;
	sc->latest = latest;
	sc->high = high;
	sc->heard = heard;
	sc->down = down;
	sc->base = base;
	if (cleared != MRC_NO_PATH)
		clear_path(qp, cleared, tx, b, now);
	tails.call(skb, TAIL_LEARN);
}

/* The second half of a SACK: round trips, marks, and what it reports missing. */
int mrc_learn(struct __sk_buff *skb)
{
	struct mrc_scratch *sc = scratch_get();
	struct mrc_host *h = host_get();
	u32 qp, id, high, una, base, next, word, fresh, crowded = 0;
	struct path_move move = {};
	struct mrc_balance *b;
	struct mrc_path *path;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now, mask;

	if (!sc || !h)
		return TC_ACT_SHOT;
	qp = sc->qp;
	id = sc->id;
	now = sc->now;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	path = path_get(qp, id);
	if (!q || !tx)
		return TC_ACT_SHOT;
	b = balance_get(q->peer);
	if (!b)
		return TC_ACT_SHOT;
	bpf_spin_lock(&tx->lock);
	if (sc->latest > tx->delivered_ns)
		tx->delivered_ns = sc->latest;
	if ((s32)(sc->high - tx->high) > 0)
		tx->high = sc->high;
	if (sc->rtt) {
		rtt_sample(tx, sc->rtt);
		if (share_of(b->shares, path_plane(id)) >= MRC_SHARE_FULL)
			queue_sample(tx, sc->rtt, sc->is_long, now);
	}
	learn_reordering(tx, h, now, sc->rule);
	/* SACKs overtake each other too: what an older one misses may be here by now */
	fresh = ((sc->heard - tx->heard) & 0xffffff) < 0x800000;
	if (fresh)
		tx->heard = sc->heard;
	if (path && id != MRC_NO_PATH) {
		word = slot_word(id);
		mask = slot_bit(id) & tx->use[word];
		if (sc->slow > 0) {
			sc->found_slow = mask && !(tx->slow[word] & mask);
			tx->slow[word] |= mask;
		}
		if (sc->slow < 0 && !sc->verdict && now >= path->crowded_ns)
			tx->slow[word] &= ~mask;
		if (sc->verdict == MRC_SETH_M_ALWAYS_SKIP) {
			path_lost(tx, path, id, now, h, 0, 0, &move);
		} else if (sc->verdict) {
			crowded = path_marked(tx, path, id, now, &move);
		}
	}
	advance_una(tx, now);
	high = tx->high;
	una = tx->una;
	bpf_spin_unlock(&tx->lock);
	if (sc->found_slow)
		count(MRC_C_PATH_SLOW);
	if (crowded)
		count(MRC_C_PATH_CROWDED);
	if (path)
		report_move(qp, id, path, &move, sc->verdict == MRC_SETH_M_ALWAYS_SKIP ?
			    MRC_ON_LOSS : MRC_ON_MARK, 0, now);
	if (!fresh)
		return TC_ACT_SHOT;
	b->heard_ports = ~(u64)sc->down;

	base = sc->base;
	next = base + MRC_SACK_BITS;
	if ((s32)(next - high) > 0)
		next = high;
	if ((s32)(base - una) < 0)
		base = una;
	if ((s32)(next - base) <= 0)
		return TC_ACT_SHOT;
	find_lost(h, qp, tx, b, sc, sc->seen_ns, base, next, 0);
	resend_due(skb, sc, qp, now, sc->seen_ns, 0);
	return TC_ACT_SHOT;
}
