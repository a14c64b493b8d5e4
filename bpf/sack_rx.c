/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SACKs, the sender's side. on_sack() takes one apart: packets that arrived
 * give their slots back, and the packet that caused the SACK yields a round
 * trip and congestion marks. mrc_learn does the rest: it learns reordering,
 * moves the window, and finds what the SACK reports missing. What counts as
 * lost goes on to retransmit.c.
 */

#define ACK_STEPS 100            /* rounds of the loop over arrived packets and words: the verifier of
				  * Linux 6.1 walks some 6,000 instructions for each */
#define ABSURD_SACKS 16          /* SACKs in a row that mean that the QP is out of step ... */
#define OUT_OF_STEP_NS 1000000000ull /* ... if nothing was acknowledged for this time */

/* What was sent at `sent` has arrived by a path: `whole`, and not only a part of a cell. */
static __always_inline void credit_path(struct mrc_tx *tx, struct mrc_balance *b,
					struct mrc_path *path, u32 id, u64 sent, u32 len, u32 whole)
{
	u32 plane = path_plane(id);

	tx->live[plane] = path_slot(id) + 1;
	if (sent > path->delivered_ns)
		path->delivered_ns = sent;
	plane_heard(tx, plane, sent);
	path_heard(path, len);
	if (!whole)
		return;
	b->acked[plane]++;
	tx->acked[plane]++;
	path->loss_ppm -= path->loss_ppm >> 8;
	tx->loss_ppm -= tx->loss_ppm >> 8;
	__sync_fetch_and_add(&path->acked, 1);
}

/* One transmission of the packet that caused a SACK. */
struct trigger {
	u64 sent;                /* when it was sent; 0: which transmission it was is not known */
	u32 id;                  /* by which path */
	u32 sure;                /* its PSN if it was the latest transmission, else one below una */
	u32 cleared;             /* path of the first transmission, withdrawn without need, or MRC_NO_PATH */
};

/*
 * Packets of ours have arrived that were sent together: give their slot back and
 * learn from them. The caller has set their bits in tx->sacked, so they come here
 * only once. A cell counts as one sending, which its last packet stands for. Returns
 * their bytes.
 */
static __always_inline u32 acked(u32 qp, u32 psn, const struct mrc_tx_entry *entry, u32 packets,
				  u32 whole, u32 sure, struct mrc_tx *tx, struct mrc_balance *b,
				  u64 *latest)
{
	u32 bytes = packets * entry->len;
	const struct mrc_tx_entry *end;
	struct mrc_path *path;

	if (packets > 1 && whole) {
		end = tx_entry_get(qp, psn + packets - 1);
		if (end)
			bytes -= entry->len - end->len;
	}
	free_copy(entry->slot, packets, 0);
	/* After a retransmission the first transmission may be the one that arrived, which
	 * tells nothing about the second one's time or path. RACK (RFC 8985) asks whether a
	 * round trip has passed, which proves little where queues grow; the time stamp in
	 * the SACK does prove it. */
	if (entry->sends > 1 && psn != sure)
		return bytes;
	if (entry->sent_ns > *latest)
		*latest = entry->sent_ns;
	if (entry->rule == MRC_RULE_REDUNDANT) /* nor is known by which plane: learn_twin() tells */
		return bytes;
	path = path_get(qp, entry->path);
	if (path)
		credit_path(tx, b, path, entry->path, entry->sent_ns, entry->len, whole);
	return bytes;
}

/*
 * Packets from `psn` on, of `fresh` those of the word `word`, that were sent together
 * and can be acknowledged together: those of one cell, if none of it was sent
 * again. *whole: its last packet is among them.
 */
static __always_inline u64 sent_together(const struct mrc_tx_entry *entry, u32 word, u32 psn,
					 u64 fresh, u32 *whole)
{
	u32 index = entry->slot & MRC_SLOT_INDEX, at = entry->slot >> MRC_SLOT_AT_SHIFT & 127;
	const struct mrc_big *big;
	u32 last;

	*whole = 1;
	if (!(entry->slot & MRC_SLOT_BIG))
		return fresh & -fresh;
	big = tx_cells.lookup(&index);
	if (!big)
		return fresh & -fresh;
	last = psn - at + big->count - 1;
	if (big->resent) {
		*whole = psn == last;
		return fresh & -fresh;
	}
	*whole = last - word < 64 && (fresh >> ((last - word) & 63) & 1);
	return fresh & range_mask(word, psn, last + 1);
}

/*
 * One SACK for packets never sent is damaged or a lie. Many in a row, with no
 * sensible one between them, while nothing that we send is acknowledged, mean that the
 * receiver is ahead of us: it gave up a gap that was none. No packet of the QP
 * will arrive any more, so the daemon offers new QPs. What a SACK says is never reason
 * enough: who can forge SACKs (there may be no keys) cannot stop the genuine ones.
 */
static __always_inline void out_of_step(u32 qp, struct mrc_tx *tx, const struct sack_in *s,
					u64 now)
{
	struct mrc_event ev = { .kind = MRC_EVENT_OUT_OF_STEP, .qp = qp };

	tx->absurd++;
	if (s->una == s->next || now < tx->moved_ns + OUT_OF_STEP_NS)
		return;
	if ((tx->absurd & (ABSURD_SACKS - 1)) == 0 &&
	    events.ringbuf_output(&ev, sizeof(ev), BPF_RB_FORCE_WAKEUP))
		count(MRC_C_EVENT_LOST);
}

/* A packet for which this path was withdrawn had arrived. */
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

/* Read a SACK. Returns 0, or -1 if the frame is too short. */
static __always_inline int parse_sack(struct __sk_buff *skb, struct mrc_tx *tx, struct sack_in *s)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_seth *seth = data + MRC_BODY_OFF;
	struct mrc_cc_state *cc = data + MRC_BODY_OFF + MRC_SETH_LEN;
	u32 head, cack;

	if (data + MRC_SACK_FRAME_LEN > end)
		return -1;
	head = bpf_ntohl(seth->head);
	cack = bpf_ntohl(seth->cack);
	s->delayed = seth->cc & MRC_CC_FLAG_DELAYED;
	s->needless = seth->cc & MRC_CC_FLAG_DUPLICATE;
	s->solicited = seth->cc & MRC_CC_FLAG_SOLICITED;
	s->m = head >> MRC_SETH_M_SHIFT & 3;
	s->down = cack >> MRC_SETH_DOWN_SHIFT;
	s->granted = seth->mpr * MRC_MPR_UNIT;
	s->press = bpf_ntohl(cc->bytes);
	s->heard = s->press & 0xffffff;
	s->bitmap = (u64)bpf_ntohl(seth->bitmap_hi) << 32 | bpf_ntohl(seth->bitmap_lo);
	s->ev = bpf_ntohl(seth->entropy);
	s->stamp = cc->tx_timestamp;
	bpf_spin_lock(&tx->lock);
	s->una = tx->una;
	s->next = sent_up_to(tx);
	bpf_spin_unlock(&tx->lock);
	s->ahead = psn_diff(cack & MRC_PSN_MASK, s->una - 1);
	s->cack = s->una - 1 + s->ahead;
	s->base = s->cack + (s16)bpf_ntohs(seth->sack_offset);
	s->trigger = s->cack + (s16)(head & 0xffff);
	return 0;
}

/*
 * Which transmission of a packet caused the SACK? The time stamp tells, or the
 * number of the attempt where cells are in use. If only
 * the latest one yielded round trips, packets that are sent again too early
 * would never teach that it was too early.
 */
static __always_inline void find_transmission(const struct mrc_tx_entry *entry,
					      const struct sack_in *s, u32 cell, struct trigger *t)
{
	u32 attempt = bpf_ntohs(s->stamp) & MRC_CC_ATTEMPT;
	u32 latest = attempt < 3 && attempt + 1 == entry->sends;
	u32 first = entry->sends > 1 && !attempt;

	t->sent = entry->sent_ns;
	t->id = entry->path;
	if (!cell) {
		first = entry->sends > 1 && s->stamp == wire_time(entry->first_ns);
		latest = s->stamp == wire_time(t->sent);
	}
	if (first) {
		t->sent = entry->first_ns;
		t->id = entry->was;
	} else if (latest) {
		t->sure = s->trigger;
	} else {
		t->sent = 0;
	}
}

/* Measure the round trip of the packet that caused the SACK. */
static __always_inline void time_trigger(const struct mrc_tx_entry *entry, struct mrc_path *path,
					 struct mrc_balance *b, const struct mrc_host *h,
					 const struct trigger *t, struct learn_args *out, u64 now)
{
	u64 seen;

	out->rtt = now - t->sent;
	out->is_long = entry->len >= CFG_MTU / 2;
	out->class = length_class(entry->len);
	out->id = t->id;
	out->slow = path_rtt(path, b, path_plane(t->id), h, out->rtt, now);
	/* The delay of the SACK itself is not that of the missing packets. */
	seen = t->sent + b->now_ns[path_plane(t->id)];
	if (seen < now)
		out->seen_ns = seen;
}

/*
 * Can a packet have arrived twice because it was sent twice? Of one that was sent once, or
 * longer ago than any receiver waits for, someone has repeated what a plane carried, or
 * a plane has kept it: the time of its arrival says nothing of queues.
 */
static __always_inline u32 sent_twice(const struct mrc_tx_entry *entry, const struct mrc_host *h,
				      u64 now)
{
	return entry->sends > 1 && now - entry->sent_ns < h->hole_timeout_ns;
}

/*
 * By which plane did a packet come that was sent by two at once? The EV tells, and that path is
 * credited. One that came second, `needless`, is the last to tell. Returns 1 if it is known.
 */
static __always_inline u32 learn_twin(u32 qp, struct mrc_tx_entry *entry, struct sack_in *s,
				      struct mrc_tx *tx, struct mrc_balance *b,
				      const struct mrc_host *h, struct trigger *t, u64 now)
{
	u32 second = s->needless;
	struct mrc_path *path;

	s->needless = 0;
	if (s->delayed || s->solicited || now - entry->sent_ns >= h->hole_timeout_ns)
		return 0;
	t->sent = entry->sent_ns;
	t->id = entry->was;
	path = path_get(qp, t->id);
	if (!path || path->ev != s->ev) {
		t->id = entry->path;
		path = path_get(qp, t->id);
	}
	if (!path || path->ev != s->ev)
		return 0;
	credit_path(tx, b, path, t->id, t->sent, entry->len, 1);
	if (second)
		entry->rule = 0;
	return 1;
}

/* Is a packet on its way, as far as is known? */
static __always_inline u32 is_outstanding(const struct mrc_tx *tx, const struct sack_in *s, u32 psn)
{
	return psn - s->una < s->next - s->una && !tx_bit(tx, psn);
}

/* Learn from what caused the SACK: a needless copy, a congestion mark, a round trip. */
static __always_inline void learn_trigger(u32 qp, u32 cell, struct sack_in *s,
					  struct mrc_tx *tx, struct mrc_balance *b,
					  const struct mrc_host *h, struct trigger *t,
					  struct learn_args *out, u64 now)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, s->trigger);
	struct mrc_path *path;
	u32 twin;

	t->sure = s->una - 1;
	t->cleared = MRC_NO_PATH;
	if (!entry || (s32)(s->next - s->trigger) <= 0 || entry->psn != s->trigger)
		return;
	twin = entry->rule == MRC_RULE_REDUNDANT;
	if (twin) {
		if (!learn_twin(qp, entry, s, tx, b, h, t, now))
			return;
	} else if (s->needless && !sent_twice(entry, h, now)) {
		s->needless = 0;
		return;
	} else {
		find_transmission(entry, s, cell, t);
	}
	path = path_get(qp, t->id);
	if (s->needless) {
		out->rule = entry->rule;
		if (entry->sends == 2)
			t->cleared = entry->was;
	}
	if (path && s->m && path->ev == s->ev) {
		out->id = t->id;
		out->m = s->m;
		path->marked++;
		b->marked[path_plane(t->id)]++;
		count(MRC_C_ECHO_RX);
	}
	if (path && t->sent && !s->delayed && !s->solicited &&
	    (s->needless || twin || is_outstanding(tx, s, s->trigger)))
		time_trigger(entry, path, b, h, t, out, now);
	/* It teaches once, however often it is repeated. */
	if (s->needless && !is_outstanding(tx, s, s->trigger))
		entry->sends = 1;
}

/* Learn how long the SACK took, if it tells when it was sent. */
static __always_inline void learn_way_back(u32 timed, const struct sack_in *s,
					   struct mrc_balance *b, const struct learn_args *out,
					   u64 now)
{
	if (timed && !s->delayed && !s->solicited)
		back_sample(b, ev_plane(s->ev), bpf_ntohs(s->stamp), out->rtt, now);
}

/* The round trip of a question for a SACK, by its path. */
static __always_inline void time_question(u32 qp, const struct sack_in *s, const struct mrc_tx *tx,
					  struct mrc_balance *b, const struct mrc_host *h,
					  struct learn_args *out, u64 now)
{
	u64 sent = tx->solicit_ns, seen;
	u32 id = tx->solicit_path & PATH_ID_MASK;
	struct mrc_path *path;
	s32 slow;

	if (!s->solicited || s->stamp != wire_time(sent))
		return;
	path = path_get(qp, id);
	if (!path)
		return;
	out->rtt = now - sent;
	out->is_long = 0;
	out->class = 0;
	slow = path_rtt(path, b, path_plane(id), h, out->rtt, now);
	if (!out->m) {           /* else out->id is the marked path */
		out->id = id;
		out->slow = slow;
	}
	seen = sent + b->now_ns[path_plane(id)];
	if (seen < now)
		out->seen_ns = seen;
}

/* Set bits under the lock; as set_sacked(). */
static __always_inline u64 mark_sacked(struct mrc_tx *tx, u32 word, u64 mask)
{
	u64 fresh;

	bpf_spin_lock(&tx->lock);
	fresh = set_sacked(tx, word, mask);
	bpf_spin_unlock(&tx->lock);
	return fresh;
}

/*
 * Take what has arrived: eight words of cumulative news, two of the bitmap. The
 * next SACK repeats what is left over. One loop does both words and packets: the
 * verifier would walk an inner loop once for each round of an outer one.
 */
static __always_inline void take_arrived(u32 qp, const struct sack_in *s, u32 sure,
					 struct mrc_tx *tx, struct mrc_balance *b,
					 struct sack_state *state, struct learn_args *out)
{
	u32 i, step, word = 0, psn, high = s->una, whole, bytes = 0;
	const struct mrc_tx_entry *entry;
	u64 mask, fresh = 0, latest = 0, some;

	state->step = 0;
	for (i = 0; i < ACK_STEPS; i++) {
		if (!fresh) {
			step = state->step;
			if (step >= SACK_WORDS || i > ACK_STEPS - 68)
				break;
			word = sack_word(s, step, &mask);
			state->step = step + 1;
			if (!mask)
				continue;
			mask &= range_mask(word, s->una, s->next);
			fresh = mark_sacked(tx, word, mask);
			psn = word + highest_bit(fresh | 1) + 1;
			if (fresh && (s32)(psn - high) > 0)
				high = psn;
			continue;
		}
		psn = word + lowest_bit(fresh);
		entry = tx_entry_get(qp, psn);
		if (!entry || entry->psn != psn) {
			fresh &= fresh - 1;
			continue;
		}
		some = sent_together(entry, word, psn, fresh, &whole);
		FORGET(whole, fresh); /* or the rest of the round would be walked for each kind of cell */
		fresh &= ~some;
		bytes += acked(qp, psn, entry, __builtin_popcountll(some), whole, sure, tx, b,
			       &latest);
		FORGET(bytes, fresh); /* or the rounds that follow would be, for each way through this one */
		FORGET(latest, fresh);
	}
	out->bytes = bytes;
	out->latest = latest;
	out->high = high;
}

/*
 * Is the SACK the answer to a trial? It says that a packet arrived twice which the path's trial
 * repeated. Then the path works.
 */
static __always_inline u32 trial_answered(u32 qp, const struct sack_in *s, struct mrc_tx *tx,
					  struct mrc_balance *b, u64 now)
{
	u32 plane = ev_plane(s->ev) & (MRC_MAX_PLANES - 1), id;
	const struct mrc_tx_entry *entry;
	struct path_move move = {};
	struct mrc_path *path;

	if (tx->trial_psn[plane] != s->trigger)
		return 0;
	entry = tx_entry_get(qp, s->trigger);
	if (entry && entry->psn == s->trigger && entry->rule == MRC_RULE_REDUNDANT)
		return 0;        /* its second sending */
	id = tx->trial_path[plane] & PATH_ID_MASK;
	path = path_get(qp, id);
	if (!path || path->ev != s->ev || !path->trial_len || path->probe_seen == path->probe_id)
		return 0;
	path->probe_seen = path->probe_id;
	path->fits = path->trial_len;
	b->heard_ns = now;
	bpf_spin_lock(&tx->lock);
	path->gone = 0;
	path_answered(tx, path, id, now, s->m, 0, &move);
	bpf_spin_unlock(&tx->lock);
	count(MRC_C_TRIAL_REPLY);
	report_move(qp, id, path, &move, s->m ? MRC_ON_PROBE_MARK : MRC_ON_PROBE, 0, now);
	return 1;
}

/* Take a SACK apart: what caused it and what has arrived. mrc_learn() does the rest. */
static __always_inline void on_sack(struct __sk_buff *skb, u32 qp, u32 cell, u32 timed,
				    struct mrc_tx *tx, struct mrc_balance *b,
				    const struct mrc_host *h, struct mrc_chain *chain, u64 now,
				    u32 key)
{
	struct learn_args *out = &chain->learn;
	struct trigger t = {};
	struct sack_in s;
	u32 why, tried;

	if (parse_sack(skb, tx, &s))
		return;
	/* A receiver that is ahead of us answers trials, too: paths are not what is wrong. */
	tried = s.needless && trial_answered(qp, &s, tx, b, now);
	if (s.ahead > (s32)(s.next - s.una)) {
		count(MRC_C_DROP_SACK);
		capture_outcome(key, qp, MRC_C_DROP_SACK);
		out_of_step(qp, tx, &s, now);
		return;
	}
	/* With nothing on its way there is nothing to learn. */
	why = s.ahead < 0 || s.una == s.next ? MRC_C_SACK_STALE : MRC_C_SACK_RX;
	count(why);
	capture_outcome(key, qp, why);
	if (tried) {
		go_on(skb, chain); /* the next SACK has all other news, too */
		return;
	}
	if (s.una == s.next || s.ahead < -CFG_WINDOW) {
		go_on(skb, chain); /* one that is older than the window tells nothing either */
		return;
	}
	tx->absurd = 0;
	out->qp = qp;
	out->now = now;
	out->seen_ns = now;
	out->rtt = 0;
	out->rule = 0;
	out->slow = 0;
	out->m = 0;
	out->id = MRC_NO_PATH;
	out->heard = s.heard;
	out->down = s.down;
	out->granted = s.granted;
	out->press = s.press;
	out->base = s.base;
	out->next = s.next;
	learn_trigger(qp, cell, &s, tx, b, h, &t, out, now);
	learn_way_back(timed, &s, b, out, now);
	FORGET(s.needless, now); /* or what follows would be walked for each kind of SACK */
	FORGET(t.sure, now);
	FORGET(t.cleared, now);
	time_question(qp, &s, tx, b, h, out, now);
	if (s.needless)
		count(MRC_C_RTX_NEEDLESS);
	take_arrived(qp, &s, t.sure, tx, b, &chain->sack, out);
	if (t.cleared != MRC_NO_PATH)
		clear_path(qp, t.cleared, tx, b, now);
	tails.call(skb, TAIL_LEARN);
}

/* Find what the SACK reports missing and counts as lost. */
static __always_inline void find_missing(u32 qp, const struct mrc_host *h, const struct mrc_tx *tx,
					 const struct mrc_balance *b, struct mrc_chain *chain,
					 u32 una, u32 high)
{
	struct learn_args *in = &chain->learn;
	u32 from, to = reported(in, una, high, &from);

	chain->resend.found = 0;
	if ((s32)(to - from) > 0)
		find_lost(h, qp, tx, b, &chain->resend, in->seen_ns, from, to, 0);
}

/* The second half of a SACK: round trips, marks, and what it reports missing. */
int mrc_learn(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	struct mrc_host *h = host_get();
	u32 qp, id, fresh, crowded = 0;
	struct path_move move = {};
	struct learn_args *in;
	struct mrc_balance *b;
	struct mrc_path *path;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now;

	if (!chain || !h)
		return TC_ACT_SHOT;
	in = &chain->learn;
	qp = in->qp;
	id = in->id;
	now = in->now;
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	path = path_get(qp, id);
	if (!q || !tx)
		return TC_ACT_SHOT;
	b = balance_get(q->peer);
	if (!b)
		return TC_ACT_SHOT;
	chain->learning.found_slow = 0;
	if (in->bytes)
		b->heard_ns = now;
	bpf_spin_lock(&tx->lock);
	fresh = learn_times(tx, b, h, in, &chain->learning, id, now);
	if (path && id != MRC_NO_PATH)
		crowded = learn_path(tx, path, h, in, &chain->learning, id, now, &move);
	advance_una(tx, now);
	bpf_spin_unlock(&tx->lock);
	if (chain->learning.found_slow)
		count(MRC_C_PATH_SLOW);
	if (crowded)
		count(MRC_C_PATH_CROWDED);
	if (chain->learning.pressed)
		count(chain->learning.pressed);
	if (path)
		report_move(qp, id, path, &move, in->m == MRC_SETH_M_ALWAYS_SKIP ? MRC_ON_LOSS :
			    MRC_ON_MARK, 0, now);
	if (!fresh) {            /* it has made room all the same */
		begin_release(&chain->release, qp, tx);
		return go_on(skb, chain);
	}
	b->heard_ports = ~(u64)our_planes(peer_get(q->peer), in->down);
	find_missing(qp, h, tx, b, chain, tx->una, tx->high);
	begin_resend(&chain->resend, qp, now, in->seen_ns, 0);
	begin_release(&chain->release, qp, tx);
	if (CELLS && q->framing == MRC_FRAMING_CELL)
		go_ask(skb, chain, h, q->peer, b, now);
	return go_on(skb, chain);
}
