/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tick: the clock of the data path. The daemon runs this program by
 * PROG_TEST_RUN, once for each active QP, about every millisecond while any is
 * active. It sees to what no arriving packet does: lost tails, delayed SACKs,
 * packets left in the reorder ring, gaps nobody fills, probes.
 *
 * The skb that the system call makes is the carrier of whatever is sent.
 */
#ifndef MRC_TICK_H
#define MRC_TICK_H

#define RTO_MAX_NS 200000000ull
#define PROBE_AGE_SHIFT 3        /* a path is probed every eighth of its time away ... */
#define PROBE_MAX_NS 50000000ull /* ... but at least so often */

/* The next active QP behind the cursor, or -1. */
static __always_inline s32 next_active(struct mrc_clock *ck)
{
	u32 at = ck->cursor + 1, word = at >> 6, i;
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
			ck->cursor = word * 64 + lowest_bit(found);
			return ck->cursor;
		}
		mask = ~0ull;
		word++;
	}
	return -1;
}

static __always_inline void send_probe(struct __sk_buff *skb, const struct mrc_host *h,
				       const struct mrc_qp *q, u32 plane, struct mrc_path *path,
				       u64 now)
{
	struct mrc_plane *pl = planes.lookup(&plane);
	struct mrc_peer_plane *pp = peer_plane_get(q->peer, plane);
	void *data, *end;

	if (!pl || !pp || bpf_skb_change_tail(skb, MRC_PROBE_FRAME_LEN, 0))
		return;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	path->probe_id = (path->probe_id + 1) & 0xffff;
	path->probe_ns = now;
	if (put_headers(data, end, h, pl, pp, path->ev, MRC_PETH_LEN, MRC_OP_PROBE, 0,
			q->remote_qpn, 0) ||
	    put_probe(data, end, path->ev, path->probe_id, now))
		return;
	count(MRC_C_PROBE_TX);
	bpf_clone_redirect(skb, pl->ifindex, 0);
}

/* Probe paths that are away, at most one of each plane a run. Returns how many are. */
static __always_inline u32 probe_paths(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				       const struct mrc_qp *q, struct mrc_tx *tx, u64 now)
{
	u32 plane, away = 0, k;
	u64 bad, rest, interval;
	struct mrc_path *path;

	for (plane = 0; plane < MRC_MAX_PLANES; plane++) {
		bad = tx->all[plane] & ~tx->good[plane];
		if (!bad)
			continue;
		away++;
		rest = bad & (~0ull << ((now >> 20) & (CFG_EVS - 1)));
		k = lowest_bit(rest ? rest : bad);
		path = path_get(qp, plane << 8 | k);
		if (!path || path->state != MRC_PATH_ASSUMED_BAD || now < path->hold_ns)
			continue;
		interval = (now - path->withdrawn_ns) >> PROBE_AGE_SHIFT;
		if (interval < h->probe_interval_ns)
			interval = h->probe_interval_ns;
		if (interval > PROBE_MAX_NS)
			interval = PROBE_MAX_NS;
		if (now - path->probe_ns >= interval)
			send_probe(skb, h, q, plane, path, now);
	}
	return away;
}

static __always_inline void tick_rx(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
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
		sack_from_rx(rx, next_slice(rx), &sack);
		sack.ev = rx->ev;
		rx->pending_packets = 0;
		rx->pending_bytes = 0;
	}
	bpf_spin_unlock(&rx->lock);
	if (!want)
		return;
	sack.cc_flags = MRC_CC_FLAG_DELAYED;
	ifindex = write_sack(skb, h, q, &sack);
	if (ifindex) {
		count(MRC_C_SACK_TX_CLOCK);
		bpf_clone_redirect(skb, ifindex, 0);
	}
}

int mrc_tick(struct __sk_buff *skb)
{
	u32 zero = 0, qp, word, peer_index, next, away;
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_scratch *sc = scratch_get();
	struct mrc_host *h = host_get();
	u64 now, rto, plane_mask, *bits, bit;
	struct mrc_peer *peer;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	struct mrc_rx *rx;
	s32 found;

	if (!ck || !h || !sc)
		return 0;
	found = next_active(ck);
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
	peer_index = q->peer;
	peer = peers.lookup(&peer_index);
	if (!peer)
		return 0;
	plane_mask = h->plane_mask & peer->plane_mask;
	now = bpf_ktime_get_ns();

	tick_rx(skb, h, qp, q, rx, now);

	next = tx->next;
	if (tx->una != next) {
		rto = 2ull * tx->srtt_ns + 4ull * tx->rttvar_ns;
		if (rto < h->rto_min_ns)
			rto = h->rto_min_ns;
		rto <<= tx->backoff & 7;
		if (rto > RTO_MAX_NS)
			rto = RTO_MAX_NS;
		/* A window that is lost whole takes several runs: go on, not over. */
		if (tx->scan - tx->una >= next - tx->una)
			tx->scan = tx->una;
		if (now - tx->progress_ns > rto) {
			if (repair(skb, h, qp, q, tx, now, plane_mask, tx->scan, next, rto)) {
				tx->scan = sc->last + 1;
				bpf_spin_lock(&tx->lock);
				tx->progress_ns = now;
				if (tx->backoff < 7)
					tx->backoff++;
				bpf_spin_unlock(&tx->lock);
			} else {
				tx->scan = tx->una;
			}
		}
	}
	away = probe_paths(skb, h, qp, q, tx, now);

	if (tx->una == tx->next && !away && !rx->pending_packets && !rx->waiting) {
		__sync_fetch_and_and(bits, ~bit);
		/* Something may have come in between the look and the clearing. */
		if (tx->una != tx->next || rx->pending_packets || rx->waiting)
			__sync_fetch_and_or(bits, bit);
	}
	return 0;
}

#endif
