/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Probes: they bring withdrawn paths back, and test paths that carry nothing.
 * One probe of a path is on its way at a time; its id holds the path's slot, so
 * that the answer finds the path without a search.
 */

#define PROBE_AGE_SHIFT 3        /* a path is probed every eighth of its time away ... */
#define PROBE_MAX_NS 200000000ull /* ... but at least at this interval */
#define SUSPECT_NS 100000000ull  /* interval between probes of a plane's other paths while some are withdrawn */
#define MISS_PRICE 8             /* probes that a missed one costs besides ... */
#define MISS_FRESH 3             /* ... until so many in a row were missed: a dead path costs no more */
#define MISS_DEBT_NS 50000000ull /* no probes are sent for at most this time because of missed ones */

/*
 * Should the answer to a path's probe have come by now? Where hosts or switches have no time, probes
 * may take longer than data did when the time-out was learnt.
 */
static __always_inline int answer_is_late(const struct mrc_tx *tx, const struct mrc_path *path, u64 now)
{
	u64 least = PROBE_WAIT_MIN_NS, twice = 2ull * path->srtt_ns;

	if (least < twice)
		least = twice;
	return now - path->probe_ns >= timeout_ns(tx, least, 0, PROBE_WAIT_MAX_NS);
}

/* Note a probe that is about to be sent: a trial of `trial_len` bytes, or one of MRC's. */
static __always_inline void begin_probe(struct mrc_path *path, u32 id, u64 now, u32 trial_len)
{
	path->probe_id = path_slot(id) << PROBE_SLOT_SHIFT |
			 ((path->probe_id + 1) & PROBE_SEQ_MASK);
	path->probe_ns = now;
	path->trial_len = trial_len;
}

/* How long a trial of a path is: as what was lost, and no longer than what gets through at all. */
static __always_inline u32 trial_length(const struct mrc_balance *b, const struct mrc_path *path,
					u32 id)
{
	u32 most = b->most[path_plane(id)], len = path->gone_len;

	if (len < MRC_IP4_LEN)
		len = MRC_IP4_LEN;
	return most && len > most ? most : len;
}

/* Does a path wait for the answer to another trial of its plane? */
static __always_inline u32 trial_is_out(u32 qp, const struct mrc_tx *tx, u32 id, u64 now)
{
	u32 other = tx->trial_path[path_plane(id)] & PATH_ID_MASK;
	struct mrc_path *path = path_get(qp, other);

	return path && other != id && path->trial_len && path->probe_seen != path->probe_id &&
	       !answer_is_late(tx, path, now);
}

/*
 * Write a trial and send it: a probe that looks like data. It is a stub of `len` bytes, in the
 * framing of data, whose PSN was acknowledged long ago. The receiver answers it as a packet that
 * arrives twice. Returns 0, or -1 if there is no room or no route.
 */
static __always_inline int write_trial(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				       const struct mrc_qp *q, struct mrc_tx *tx, u32 id,
				       u64 len, u32 framing, u64 now)
{
	u32 cell = CELLS && framing == MRC_FRAMING_CELL, plane = path_plane(id), psn;
	struct { __be16 first, len; __be32 id; __u8 ttl, next; __be16 check; __be32 src, dst; } ip = {
		.first = bpf_htons(0x4500), .ttl = MRC_HOPS, .next = MRC_STUB_NEXT };
	struct cell c = { .count = 1, .mss = MRC_CELL_STUB };
	struct route r;
	void *data, *end;

	if (find_route(qp, q, id, &r) || len < sizeof(ip) || len > CFG_MTU)
		return -1;
	c.len = len;
	ip.len = bpf_htons(len);
	if (bpf_skb_change_tail(skb, (cell ? CELL_OFF : MRC_PAYLOAD_OFF + MRC_ICRC_LEN) + len, 0) ||
	    bpf_skb_store_bytes(skb, cell ? CELL_OFF : MRC_PAYLOAD_OFF, &ip, sizeof(ip), 0))
		return -1;
	begin_probe(r.path, id, now, len);
	r.path->fits = 0;
	psn = tx->una - 1 - (r.path->probe_id & 15);
	tx->trial_psn[plane] = psn;
	tx->trial_path[plane] = id;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (cell ? put_cell(data, end, h, r.keys, r.pl, r.pp, r.path->ev, data_class(h, q, 0),
			    MRC_CELL_ACKREQ, q->remote_qpn, psn, &c, IPPROTO_IPIP) :
		   dress_data(skb, h, q, &r, psn, len, MRC_BTH_ACKREQ, now, MRC_RKEY_STUB))
		return -1;
	capture_skb(skb, RECORD_CLOCK, plane, qp, q->peer, MRC_C_TRIAL_TX);
	count_atomic(MRC_C_TRIAL_TX);
	as_data(skb);
	bpf_clone_redirect(skb, r.pl->ifindex, 0);
	return 0;
}

/* Write a probe and send it. Returns 0, or -1 if there is no room or no route. */
static __always_inline int write_probe(struct __sk_buff *skb, const struct mrc_host *h, u32 qp,
				       const struct mrc_qp *q, u32 id, struct mrc_path *path,
				       u64 now)
{
	u32 plane = path_plane(id);
	struct mrc_plane *pl = planes.lookup(&plane);
	struct mrc_peer_plane *pp = peer_plane_get(q->peer, plane);
	struct mrc_keys *k = keys.lookup(&qp);
	void *data, *end;

	if (!pl || !pp || !k || bpf_skb_change_tail(skb, MRC_PROBE_FRAME_LEN, 0))
		return -1;
	begin_probe(path, id, now, 0);
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_headers(data, end, h, pl, pp, path->ev, control_class(h), MRC_PROBE_BODY,
			MRC_OP_PROBE, tx_phase(k), q->remote_qpn, 0) ||
	    put_probe(data, end, k, next_count(qp, path->ev), 0, path->probe_id, now))
		return -1;
	capture_skb(skb, RECORD_CLOCK, plane, qp, q->peer, MRC_C_PROBE_TX);
	as_control(skb);
	bpf_clone_redirect(skb, pl->ifindex, 0);
	return 0;
}

/*
 * Send one probe of a path, unless its plane is known to be down: netlink, Port
 * Status Updates, SACKs and Offers tell when the plane is back.
 */
static __always_inline void send_probe(struct __sk_buff *skb, const struct mrc_host *h,
				       u32 qp, const struct mrc_qp *q, struct mrc_tx *tx,
				       u32 id, struct mrc_path *path, u64 now)
{
	u32 which = MRC_C_PROBE_PUT_OFF, zero = 0;
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_balance *b = balance_get(q->peer);
	struct mrc_peer *peer = peer_get(q->peer);

	if (!ck || !b || !peer || !(usable_planes(h, peer, b) >> path_plane(id) & 1))
		return;
	if (ck->probe_credit) {
		ck->probe_credit--;
		/* Probes get through where data does not, so data has to be tried. */
		if (path_is_deaf(path) && path->probe_ok && !trial_is_out(qp, tx, id, now)) {
			write_trial(skb, h, qp, q, tx, id, trial_length(b, path, id),
				    q->framing, now);
			return;
		}
		if (write_probe(skb, h, qp, q, id, path, now))
			return;
		which = MRC_C_PROBE_TX;
	}
	count_atomic(which);
}

/*
 * A probe of a path that has just been heard is missed. Where that is so of many, hosts or switches
 * have more to do than they can, and probes are part of it: fewer are sent.
 */
static __always_inline void pay_for_miss(const struct mrc_host *h, u64 now)
{
	u32 zero = 0;
	struct mrc_clock *ck = clock.lookup(&zero);
	u64 paid;

	if (!ck)
		return;
	if (ck->probe_credit >= MISS_PRICE) {
		ck->probe_credit -= MISS_PRICE;
		return;
	}
	ck->probe_credit = 0;
	paid = ck->paid_ns + (u64)MISS_PRICE * h->probe_gap_ns;
	ck->paid_ns = paid > now + MISS_DEBT_NS ? now + MISS_DEBT_NS : paid;
}

/* Is an answer still to come? One that is overdue counts against the path. */
static __always_inline int probe_pending(u32 qp, struct mrc_tx *tx, struct mrc_path *path, u32 id,
					 const struct mrc_host *h, u64 now)
{
	struct path_move move = {};
	u64 sent = path->probe_ns;

	if (path->probe_seen == path->probe_id)
		return 0;
	if (!answer_is_late(tx, path, now))
		return 1;
	path->probe_seen = path->probe_id;
	/* The daemon asks what fits, and this did not; it says nothing of a path in use. */
	if (path->trial_len && !path_is_deaf(path))
		return 0;
	count_atomic(MRC_C_PROBE_MISSED);
	if (path->misses < MISS_FRESH)
		pay_for_miss(h, now);
	bpf_spin_lock(&tx->lock);
	path_silent(tx, path, id, now, h, &move);
	bpf_spin_unlock(&tx->lock);
	report_move(qp, id, path, &move, MRC_ON_LOSS, sent, now);
	return 0;
}

/*
 * The interval at which a path is probed now, or NEVER. A path in use is probed
 * if nothing was heard of it for quiet_ns, or, if that is 0, for SUSPECT_NS.
 */
#define NEVER ~0ull
static __always_inline u64 probe_interval(const struct mrc_host *h, const struct mrc_tx *tx,
					  const struct mrc_path *path, u32 id, u64 now,
					  u64 quiet_ns)
{
	u32 state = path_state(tx, id);
	u64 interval;

	if (state == MRC_PATH_ASSUMED_BAD) {
		if (now < path->hold_ns)
			return NEVER;
		interval = path->probe_ok ? 0 : (now - path->withdrawn_ns) >> PROBE_AGE_SHIFT;
		if (interval < h->probe_interval_ns)
			interval = h->probe_interval_ns;
		return interval > PROBE_MAX_NS ? PROBE_MAX_NS : interval;
	}
	interval = quiet_ns ? quiet_ns : SUSPECT_NS;
	if (is_suspect(tx, path_plane(id)))
		interval = h->probe_interval_ns;
	if (state == MRC_PATH_DENIED || now - path->delivered_ns < interval)
		return NEVER;
	return interval;
}

/* Is the answer to the latest probe of this plane overdue? */
static __always_inline int latest_is_late(const struct mrc_tx *tx, u32 qp, u32 plane, u64 now)
{
	struct mrc_path *path = path_get(qp, path_id(plane, (tx->probe_next[plane & 7] - 1) & SLOT_MASK));

	return path && path->probe_seen != path->probe_id && answer_is_late(tx, path, now);
}

/*
 * Probe what is due on one plane, at most one path: paths that are away and,
 * beside them or if quiet_ns is not 0, paths in use of which nothing was heard
 * lately. Turns that are `rare` look first at what the latest probe has come to, or
 * that would be known a whole round of paths later. Returns 1 if the plane has paths away.
 */
static __always_inline u32 probe_plane(struct __sk_buff *skb, const struct mrc_host *h,
				       u32 qp, const struct mrc_qp *q, struct mrc_tx *tx,
				       u32 plane, u64 now, u64 quiet_ns, u32 rare)
{
	u32 low = first_word(plane), high = second_word(plane);
	u64 away0 = slots_away(tx, low), away1 = slots_away(tx, high);
	u32 k, id, any = !!(away0 | away1), from = tx->probe_next[plane & 7];
	struct mrc_path *path;

	if (!any && !quiet_ns)
		return 0;
	if (rare && latest_is_late(tx, qp, plane, now))
		from = (from - 1) & SLOT_MASK;
	k = next_slot(tx->use[low] | away0, tx->use[high] | away1, from);
	if (k == NO_SLOT)
		return any;
	tx->probe_next[plane & 7] = (k + 1) & SLOT_MASK;
	id = path_id(plane, k & SLOT_MASK);
	path = path_get(qp, id);
	if (!path || probe_pending(qp, tx, path, id, h, now))
		return any;
	if (now - path->probe_ns >= probe_interval(h, tx, path, id, now, quiet_ns))
		send_probe(skb, h, qp, q, tx, id, path, now);
	return any || path_state(tx, id) == MRC_PATH_ASSUMED_BAD;
}

/* Probe the next plane that mrc_tick asks for, then call itself for the one after, or go on. */
int mrc_probe(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_CLOCK);
	u32 qp, plane;
	struct mrc_host *h = host_get();
	struct probe_args *in;
	struct mrc_qp *q;
	struct mrc_tx *tx;

	if (!chain || !h)
		return TC_ACT_SHOT;
	in = &chain->probe;
	qp = in->qp;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!q || !tx || !in->planes)
		return TC_ACT_SHOT;
	plane = lowest_bit(in->planes) & 7;
	in->planes &= in->planes - 1;
	probe_plane(skb, h, qp, q, tx, plane, in->now,
		    in->curious == plane ? h->probe_interval_ns : 0, 0);
	return go_on(skb, chain);
}

/* Probe one path of the next plane of the next QP, which may be idle. */
static __always_inline void idle_turn(struct __sk_buff *skb, struct mrc_clock *ck,
				      const struct mrc_host *h)
{
	u32 turn = ck->idle_cursor + 1, qp, plane;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now;

	ck->idle_cursor = turn;
	if (!h->planes || !h->qps)
		return;
	plane = turn % h->planes & 7;
	qp = (turn / h->planes) % h->qps;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!q || !tx || q->state != MRC_QP_READY)
		return;
	now = bpf_ktime_get_ns();
	if (probe_plane(skb, h, qp, q, tx, plane, now, h->probe_idle_ns / 2, 1))
		watch(skb, qp);
}

/*
 * Do one turn of a probe of an idle path, then call itself for as many as the packet's
 * mark says. mrc_beat has it run at the rate that the budget of probes allows.
 */
int mrc_idle(struct __sk_buff *skb)
{
	u32 zero = 0, turns = skb->mark & MRC_MARK_NUMBER;
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_host *h = host_get();

	if (!ck || !h)
		return TC_ACT_SHOT;
	skb->mark = 0;
	idle_turn(skb, ck, h);
	if (turns > 1) {
		skb->mark = MRC_IDLE_MARK | ((turns - 1) & MRC_MARK_NUMBER);
		tails.call(skb, TAIL_IDLE);
	}
	return TC_ACT_SHOT;
}
