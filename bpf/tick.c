/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tick: the clock of the data path. The daemon runs this program by
 * PROG_TEST_RUN, once for each active QP, about every millisecond while any is
 * active. It sees to what no arriving packet does: lost tails, delayed SACKs,
 * packets left in the reorder ring, gaps nobody fills, probes.
 *
 * The skb that the system call makes is the carrier of whatever is sent.
 */
#define RTO_MAX_NS 200000000ull
#define REVERSE_TICKS 4          /* who only receives asks for a way back so often */

/* The next active QP behind a cursor, which moves there, or -1. */
static __always_inline s32 next_active(u64 *cursor)
{
	u32 at = *cursor + 1, word = at >> 6, i;
	u64 mask = ~0ull << (at & 63), *bits, found;

	for (i = 0; i <= CFG_ACTIVE_WORDS; i++) {
		if (word >= CFG_ACTIVE_WORDS) {
			word = 0;
			mask = ~0ull;
		}
		bits = active.lookup(&word);
		if (!bits)
			return -1;
		found = *bits & mask;
		if (found) {
			*cursor = word * 64 + lowest_bit(found);
			return *cursor;
		}
		mask = ~0ull;
		word++;
	}
	return -1;
}

/* Planes that have paths away, a bit each. */
static __always_inline u32 planes_away(const struct mrc_tx *tx)
{
	u32 i, away = 0;

	for (i = 0; i < MRC_SET_WORDS; i++)
		away |= not_zero(slots_away(tx, i)) << (i / MRC_EV_WORDS);
	return away;
}

/* Returns 1 if packets have arrived since the last run. */
static __always_inline u32 tick_rx(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				    const struct mrc_qp *q, struct mrc_rx *rx, u64 now)
{
	struct sack_body sack = {};
	u32 owner = 0, want = 0, ifindex, skipped = 0, i;

	/* a gap that nobody fills */
	if (!rx->waiting)
		rx->hole_ns = 0;
	else if (!rx->hole_ns || rx->hole_psn != rx->next) {
		rx->hole_psn = rx->next;
		rx->hole_ns = now;
	} else if (now - rx->hole_ns > h->hole_timeout_ns) {
		bpf_spin_lock(&rx->lock);
		if (!rx->busy) {
			for (i = 0; i < 64; i++) {
				if (rx_bit(rx, rx->next) || (s32)(rx->next - rx->high) >= 0)
					break;
				rx->next++;
				skipped++;
			}
		}
		rx->hole_psn = rx->next; /* a wide gap is one gap: no new time-out for the rest */
		bpf_spin_unlock(&rx->lock);
		count_by(MRC_C_HOLE_SKIPPED, skipped);
	}

	bpf_spin_lock(&rx->lock);
	if (!rx->busy && rx_bit(rx, rx->next))
		rx->busy = owner = 1;
	bpf_spin_unlock(&rx->lock);
	if (owner)
		drain(skb, h, qp, rx);

	bpf_spin_lock(&rx->lock);
	if (rx->pending_packets || rx->waiting) {
		want = 1;
		take_sack(rx, &sack, now);
		sack.ev = rx->ev;
	}
	bpf_spin_unlock(&rx->lock);
	if (!want)
		return 0;
	sack.cc_flags = MRC_CC_FLAG_DELAYED;
	ifindex = write_sack(skb, h, qp, q, &sack);
	if (ifindex) {
		count(MRC_C_SACK_TX_CLOCK);
		bpf_clone_redirect(skb, ifindex, 0);
	}
	return 1;
}

/* Packets that nothing was heard of for a time-out, for mrc_resend. */
static __always_inline void find_overdue(const struct mrc_host *h, u32 qp, struct mrc_tx *tx,
					 const struct mrc_balance *b, struct mrc_scratch *sc,
					 u64 now, u32 next)
{
	u64 rto = timeout_ns(tx, h->rto_min_ns, tx->backoff, RTO_MAX_NS);

	/* A window that is lost whole takes several runs: go on, not over. */
	if (tx->scan - tx->una >= next - tx->una)
		tx->scan = tx->una;
	if (now - tx->progress_ns <= rto)
		return;
	find_lost(h, qp, tx, b, sc, now, tx->scan, next, rto);
	sc->timeout_ns = rto;
	if (!sc->found) {
		tx->scan = tx->una;
		return;
	}
	tx->scan = sc->last + 1;
	bpf_spin_lock(&tx->lock);
	tx->progress_ns = now;
	if (tx->backoff < 7)
		tx->backoff++;
	bpf_spin_unlock(&tx->lock);
}

int mrc_tick(struct __sk_buff *skb)
{
	u32 zero = 0, qp, word, next, away, arrived;
	struct mrc_balance *b;
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_scratch *sc = scratch_get();
	struct mrc_host *h = host_get();
	u64 now, *bits, bit;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	struct mrc_rx *rx;
	s32 found;

	if (!ck || !h || !sc)
		return 0;
	found = next_active(&ck->cursor);
	if (found < 0)
		return 0;
	qp = found;
	ck->ticks++;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	rx = rxs.lookup(&qp);
	word = qp >> 6;
	bits = active.lookup(&word);
	if (!q || !tx || !rx || !bits)
		return 0;
	bit = 1ull << (qp & 63);
	if (q->state == MRC_QP_DOWN) {
		__sync_fetch_and_and(bits, ~bit);
		return 0;
	}
	now = bpf_ktime_get_ns();

	arrived = tick_rx(skb, h, qp, q, rx, now);

	sc->probe = planes_away(tx);
	away = sc->probe;
	/* Who only receives learns nothing of the way back unless he asks. */
	sc->curious = MRC_MAX_PLANES;
	if (arrived && tx->una == tx->next && h->planes && !(ck->ticks & (REVERSE_TICKS - 1))) {
		sc->curious = (u32)(ck->ticks / REVERSE_TICKS) % h->planes;
		sc->probe |= 1u << (sc->curious & 7);
	}

	if (tx->una == tx->next && !away && !rx->pending_packets && !rx->waiting) {
		__sync_fetch_and_and(bits, ~bit);
		/* Something may have come in between the look and the clearing. */
		if (tx->una != tx->next || rx->pending_packets || rx->waiting)
			__sync_fetch_and_or(bits, bit);
	}

	sc->found = 0;
	next = tx->next;
	b = balance_get(q->peer);
	if (tx->una != next && b)
		find_overdue(h, qp, tx, b, sc, now, next);
	sc->qp = qp;
	sc->sent = 0;
	sc->now = now;
	sc->seen_ns = now;
	if (sc->probe)
		tails.call(skb, TAIL_PROBE);
	if (sc->found)
		tails.call(skb, TAIL_RESEND);
	return 0;
}
