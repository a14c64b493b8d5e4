/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tick: what no arriving packet triggers. mrc_beat looks at each active QP about every
 * millisecond, and has mrc_tick run if the QP needs it. That finds lost tails, sends
 * delayed SACKs, releases packets left in the reorder ring, gives up old gaps, and probes.
 *
 * The skb is a clone of the packet that circles, and the carrier of whatever is sent.
 */

#define TRUST_AGAIN_NS 1000000000ull /* planes stay suspects for this time after the last sign of it */
#define REVERSE_SACKS 4          /* SACKs of a receive-only QP between two probes for a return path */

/* Give up on a gap that stayed open for hole_timeout_ns. */
static __always_inline void tick_hole(const struct mrc_host *h, struct mrc_rx *rx, u64 now)
{
	u32 skipped;

	if (!gap_is_old(h, rx, now))
		return;
	bpf_spin_lock(&rx->lock);
	skipped = skip_gap(rx);
	bpf_spin_unlock(&rx->lock);
	count_atomic_by(MRC_C_HOLE_SKIPPED, skipped);
}

/* Send a SACK that is overdue. Returns 1 if packets have arrived since the last one. */
static __always_inline u32 tick_sack(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				     const struct mrc_qp *q, struct mrc_rx *rx, u64 now)
{
	struct sack_body sack = {};
	u32 want, ifindex;

	bpf_spin_lock(&rx->lock);
	want = take_delayed(rx, &sack, now);
	bpf_spin_unlock(&rx->lock);
	if (!want)
		return 0;
	sack.cc_flags = MRC_CC_FLAG_DELAYED;
	ifindex = write_sack(skb, h, qp, q, &sack, CHAIN_CLOCK);
	if (ifindex) {
		count_atomic(MRC_C_SACK_TX_CLOCK);
		if (sack.m)
			count_atomic(MRC_C_ECHO_TX);
		bpf_clone_redirect(skb, ifindex, 0);
	}
	return 1;
}

#define STALLED 3                /* time-outs in a row after which the daemon looks what gets through */

/* Note packets of which nothing was heard for a time-out, for mrc_resend. */
static __always_inline void find_overdue(const struct mrc_host *h, u32 qp, struct mrc_tx *tx,
					 const struct mrc_balance *b, struct resend_args *out,
					 u64 now, u32 next)
{
	u64 rto = timeout_ns(tx, h->rto_min_ns, tx->backoff, RTO_MAX_NS);

	if (!nothing_heard(tx, next, rto, now))
		return;
	find_lost(h, qp, tx, b, out, now, tx->scan, next, rto);
	out->timeout_ns = rto;
	if (!out->found) {
		tx->scan = tx->una;
		return;
	}
	tx->scan = out->last + 1;
	bpf_spin_lock(&tx->lock);
	back_off(tx, now);
	bpf_spin_unlock(&tx->lock);
	if (tx->backoff == STALLED)
		report_deaf(qp, MRC_NO_PATH, 0, now);
}

/* Choose the planes to probe. Returns 1 if any has paths away. */
static __always_inline u32 choose_probes(const struct mrc_host *h, const struct mrc_tx *tx,
					 struct probe_args *out, u32 arrived, u32 sacks)
{
	u32 away = planes_away(tx);

	out->planes = away;
	/* A receive-only QP must probe to learn a return path. */
	out->curious = MRC_MAX_PLANES;
	if (arrived && tx->una == tx->next && h->planes && !(sacks & (REVERSE_SACKS - 1))) {
		out->curious = sacks / REVERSE_SACKS % h->planes;
		out->planes |= 1u << (out->curious & 7);
	}
	return away;
}

/* A suspect of which no probe tells anything is trusted again. */
static __always_inline void tick_suspects(struct mrc_tx *tx, u64 now)
{
	if (!tx->suspects || now - tx->suspect_ns < TRUST_AGAIN_NS)
		return;
	__sync_fetch_and_and(&tx->suspects, 0);
}

/* A QP that the clock looks after. */
struct watched {
	struct mrc_qp *q;
	struct mrc_tx *tx;
	struct mrc_rx *rx;
	u64 *bits;               /* the word of active QPs that it is in ... */
	u64 bit;                 /* ... and its bit */
};

/* Find a QP. Returns 0, or -1 if there is none. */
static __always_inline int find_watched(u32 qp, struct watched *w)
{
	u32 word = qp >> 6;

	w->q = qps.lookup(&qp);
	w->tx = txs.lookup(&qp);
	w->rx = rxs.lookup(&qp);
	w->bits = active.lookup(&word);
	w->bit = 1ull << (qp & 63);
	return w->q && w->tx && w->rx && w->bits ? 0 : -1;
}

/* Stop watching a QP with nothing to watch. */
static __always_inline void rest(const struct watched *w)
{
	if (at_work(w->tx, w->rx))
		return;
	__sync_fetch_and_and(w->bits, ~w->bit);
	/* Something may have arrived between the check and the clearing. */
	if (at_work(w->tx, w->rx))
		__sync_fetch_and_or(w->bits, w->bit);
}

/* Go on with held packets, retransmissions, probes, or what waits for the window. */
static __always_inline int tick_on(struct __sk_buff *skb, struct mrc_chain *chain, u32 qp,
				   const struct mrc_tx *tx, u64 now)
{
	begin_tick(chain, qp, tx, now);
	skb->cb[0] = CHAIN_CLOCK;
	return go_on(skb, chain);
}

/* Do what the QP of the packet's mark needs. */
int mrc_tick(struct __sk_buff *skb)
{
	u32 qp = skb->mark & MRC_MARK_NUMBER, next, arrived;
	struct mrc_chain *chain = chain_get(CHAIN_CLOCK);
	struct mrc_host *h = host_get();
	struct mrc_balance *b;
	struct watched w;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	struct mrc_rx *rx;
	u64 now;

	if (!h || !chain || find_watched(qp, &w))
		return TC_ACT_SHOT;
	q = w.q;
	tx = w.tx;
	rx = w.rx;
	if (q->state < MRC_QP_RECEIVE) {
		if (q->state == MRC_QP_DOWN || !report_failed(qp, tx))
			__sync_fetch_and_and(w.bits, ~w.bit);
		return TC_ACT_SHOT;
	}

	/* as a receiver */
	now = bpf_ktime_get_ns();
	tick_hole(h, rx, now);
	begin_drain(chain, qp, 0);
	chain->drain.runs = DRAIN_RUNS - TICK_DRAINS;
	chain->drain.due = rx_bit(rx, rx->next);
	arrived = tick_sack(skb, h, qp, q, rx, now);

	/* as a sender */
	tick_suspects(tx, now);
	if (!choose_probes(h, tx, &chain->probe, arrived, rx->slice))
		rest(&w);
	next = sent_up_to(tx);
	b = balance_get(q->peer);
	if (tx->una != next && q->state == MRC_QP_READY && retries_are_up(h, qp, tx, now)) {
		fail_qp(qp, q, tx, MRC_FAILED_RETRIES);
		return TC_ACT_SHOT;
	}
	if (tx->una != next && b)
		find_overdue(h, qp, tx, b, &chain->resend, now, next);
	return tick_on(skb, chain, qp, tx, now);
}
