/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Probes: what brings withdrawn paths back, and what is known of paths that
 * carry nothing. One probe of a path is on its way at a time; its id holds the
 * path's slot, so that the answer finds it without a search.
 */
#define PROBE_AGE_SHIFT 3        /* a path is probed every eighth of its time away ... */
#define PROBE_MAX_NS 200000000ull /* ... but at least so often */
#define PROBE_WAIT_MIN_NS 4000000ull /* an answer that takes longer than this and ... */
#define PROBE_WAIT_MAX_NS 100000000ull /* ... the time-out is missed, at the latest after this */
#define SUSPECT_NS 100000000ull  /* beside withdrawn paths, others are asked so often */
#define PROBE_SEQ_MASK 0x1ff

/*
 * One probe of a path, unless its plane is known to be down: netlink, Port Status
 * Updates, SACKs and Offers say when it is back.
 */
static __always_inline void send_probe(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				       const struct mrc_qp *q, u32 id, struct mrc_path *path,
				       u64 now)
{
	u32 plane = path_plane(id), zero = 0;
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_plane *pl = planes.lookup(&plane);
	struct mrc_peer_plane *pp = peer_plane_get(q->peer, plane);
	struct mrc_balance *b = balance_get(q->peer);
	struct mrc_peer *peer = peer_get(q->peer);
	void *data, *end;

	if (!b || !peer || !(usable_planes(h, peer, b) >> plane & 1))
		return;
	if (!ck || !ck->probe_credit) {
		count(MRC_C_PROBE_PUT_OFF);
		return;
	}
	ck->probe_credit--;
	if (!pl || !pp || bpf_skb_change_tail(skb, MRC_PROBE_FRAME_LEN, 0))
		return;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	path->probe_id = path_slot(id) << PROBE_SLOT_SHIFT | ((path->probe_id + 1) & PROBE_SEQ_MASK);
	path->probe_ns = now;
	if (put_headers(data, end, h, pl, pp, path->ev, MRC_PETH_LEN, MRC_OP_PROBE, 0,
			q->remote_qpn, 0) ||
	    put_probe(data, end, path->ev, path->probe_id, now))
		return;
	count(MRC_C_PROBE_TX);
	capture_skb(skb, plane, qp, q->peer, MRC_C_PROBE_TX);
	bpf_clone_redirect(skb, pl->ifindex, 0);
}

/* Is an answer still to come? One that is overdue counts against the path. */
static __always_inline int probe_pending(u32 qp, struct mrc_tx *tx, struct mrc_path *path, u32 id,
					 const struct mrc_host *h, u64 now)
{
	u64 wait = timeout_ns(tx, PROBE_WAIT_MIN_NS, 0, PROBE_WAIT_MAX_NS), sent = path->probe_ns;
	struct path_move move = {};

	if (path->probe_seen == path->probe_id)
		return 0;
	if (now - sent < wait)
		return 1;
	path->probe_seen = path->probe_id;
	count(MRC_C_PROBE_MISSED);
	bpf_spin_lock(&tx->lock);
	path_silent(tx, path, id, now, h, &move);
	bpf_spin_unlock(&tx->lock);
	report_move(qp, id, path, &move, MRC_ON_LOSS, sent, now);
	return 0;
}

/*
 * Probe what is due on one plane: paths that are away and, beside them or when
 * `curious`, those in use of which nothing was heard lately. At most one probe.
 * Returns 1 if the plane has paths away.
 */
static __always_inline u32 probe_plane(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				       const struct mrc_qp *q, struct mrc_tx *tx, u32 plane,
				       u64 now, u64 quiet_ns)
{
	u32 low = first_word(plane), high = second_word(plane);
	u64 away0 = slots_away(tx, low), away1 = slots_away(tx, high);
	u32 k, id, state, any = !!(away0 | away1);
	struct mrc_path *path;
	u64 interval;

	if (!any && !quiet_ns)
		return 0;
	k = next_slot(tx->use[low] | away0, tx->use[high] | away1, tx->probe_next[plane & 7]);
	if (k == NO_SLOT)
		return any;
	tx->probe_next[plane & 7] = (k + 1) & SLOT_MASK;
	id = path_id(plane, k & SLOT_MASK);
	path = path_get(qp, id);
	if (!path || probe_pending(qp, tx, path, id, h, now))
		return any;
	state = path_state(tx, id);
	if (state == MRC_PATH_ASSUMED_BAD) {
		if (now < path->hold_ns)
			return any;
		interval = path->probe_ok ? 0 : (now - path->withdrawn_ns) >> PROBE_AGE_SHIFT;
		if (interval < h->probe_interval_ns)
			interval = h->probe_interval_ns;
		if (interval > PROBE_MAX_NS)
			interval = PROBE_MAX_NS;
	} else {
		interval = quiet_ns ? quiet_ns : SUSPECT_NS;
		if (state == MRC_PATH_DENIED || now - path->delivered_ns < interval)
			return any;
	}
	if (now - path->probe_ns >= interval)
		send_probe(skb, h, qp, q, id, path, now);
	return any;
}

/* The planes that mrc_tick wants probed, one after the other; then on to mrc_resend. */
int mrc_probe(struct __sk_buff *skb)
{
	struct mrc_scratch *sc = scratch_get();
	struct mrc_host *h = host_get();
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u32 qp, plane;

	if (!sc || !h)
		return 0;
	qp = sc->qp;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!q || !tx || !sc->probe)
		return 0;
	plane = lowest_bit(sc->probe) & 7;
	sc->probe &= sc->probe - 1;
	probe_plane(skb, h, qp, q, tx, plane, sc->now,
		    sc->curious == plane ? h->probe_interval_ns : 0);
	if (sc->probe)
		tails.call(skb, TAIL_PROBE);
	if (sc->found)
		tails.call(skb, TAIL_RESEND);
	return 0;
}

/*
 * A plane of a QP that may be idle, in turn: one of its paths is asked. Run by
 * the clock as often as the budget of probes allows.
 */
int mrc_idle(struct __sk_buff *skb)
{
	u32 zero = 0, qp, plane;
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_host *h = host_get();
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now;

	if (!ck || !h || !h->planes)
		return 0;
	ck->idle_cursor++;
	plane = (u32)ck->idle_cursor % h->planes & 7;
	qp = ((u32)ck->idle_cursor / h->planes) % CFG_MAX_QPS;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!q || !tx || q->state != MRC_QP_READY)
		return 0;
	now = bpf_ktime_get_ns();
	if (probe_plane(skb, h, qp, q, tx, plane, now, h->probe_idle_ns / 2))
		watch(qp);
	return 0;
}
