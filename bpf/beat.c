/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Beat: the clock of the data path. One small packet circles through a pair of
 * interfaces, and mrc_beat runs whenever it arrives. No process takes part.
 *
 *   out of beat_ifindex, whose token bucket lets one beat out each tick (1 ms)
 *      -> arrives at rest_ifindex: mrc_beat
 *   out of rest_ifindex, whose token bucket lets one out each 20 ms
 *      -> arrives at beat_ifindex: mrc_beat
 *
 * While a QP is active, the packet goes out by the fast end, else by the slow one. A QP
 * that becomes active while the packet is slow has a new one made (watch() in maps.c),
 * and the old one ends, since each knows the generation that it belongs to.
 *
 * At each beat, mrc_beat looks at every active QP. What needs mrc_tick gets a clone of the
 * packet, which the network stack receives at rest_ifindex at once: mrc_beat sees
 * by its mark what it is for. Peers whose planes are due for a judgement are
 * listed for mrc_judge, and probes of idle paths that are due get a clone, too.
 */

#define BEAT_STEPS 24            /* words without and QPs with something to do that one run takes */
#define BEAT_RUNS 20             /* runs at one beat, of the 33 that the kernel allows in a chain with mrc_judge's */
#define CALM_BEATS 100           /* beats in a row without an active QP after which it rests: making a new one costs more */
#define MRC_MORE_MARK (MRC_KICK_MARK ^ MRC_WAKE_MARK) /* skb->mark while mrc_beat calls itself */
#define RAW_STEP 20              /* the shortest IP packet */
#define RAW_STEPS 6              /* this number of these, and the Ethernet header, are about as long as a beat */
#define IDLE_TURNS 24            /* probes of idle paths that are sent together, at most ... */
#define IDLE_BUNDLE 16           /* ... and this number at least, ... */
#define IDLE_LEISURE_NS 18000000ull /* ... unless this time has passed since the last ones left */

/* Have the network stack receive a clone of the packet at once, marked as what it is for. */
static __always_inline void send_clone(struct __sk_buff *skb, const struct mrc_host *h, u32 mark)
{
	skb->mark = mark;
	bpf_clone_redirect(skb, h->rest_ifindex, BPF_F_INGRESS);
	skb->mark = 0;
}

/* Note a peer whose planes are due for a judgement. Those that find no room are due at the next beat. */
static __always_inline void list_peer(struct beat_args *in, u32 peer)
{
	struct mrc_balance *b = balance_get(peer);
	u32 n = in->judging;

	if (!b || in->now < b->judge_at_ns || n >= JUDGED_MOST)
		return;
	if (n && in->due[(n - 1) & (JUDGED_MOST - 1)] == peer)
		return;
	in->due[n & (JUDGED_MOST - 1)] = peer;
	in->judging = n + 1;
}

/* Look at an active QP, and have mrc_tick run if that is needed. */
static __always_inline void look_at(struct __sk_buff *skb, const struct mrc_host *h,
				    struct beat_args *in, u32 qp)
{
	struct watched w;

	if (find_watched(qp, &w))
		return;
	if (needs_tick(h, w.q, w.tx, w.rx, in->now))
		send_clone(skb, h, MRC_KICK_MARK | (qp & MRC_MARK_NUMBER));
	else
		rest(&w);
	list_peer(in, w.q->peer);
}

/* Look at the active QPs of the next words. The state is in a map: see struct mrc_chain. */
static __always_inline void look_at_some(struct __sk_buff *skb, const struct mrc_host *h,
					 struct mrc_clock *ck, struct beat_args *in)
{
	u64 *bits, found;
	u32 i, word, at;

	for (i = 0; i < BEAT_STEPS; i++) {
		if (!in->left)
			break;
		word = in->word;
		bits = active.lookup(&word);
		found = bits ? *bits & in->mask : 0;
		if (!found) {
			in->word = word + 1 < CFG_ACTIVE_WORDS ? word + 1 : 0;
			in->left--;
			in->mask = ~0ull;
			continue;
		}
		at = lowest_bit(found) & 63;
		in->mask = ~0ull << at << 1;
		in->seen = 1;
		ck->ticks++;
		look_at(skb, h, in, word * 64 + at);
	}
}

/* Grant the probes that the time since the last grant allows, or none while missed ones are paid for. */
static __always_inline void grant_probes(const struct mrc_host *h, struct mrc_clock *ck, u64 now)
{
	u64 more, credit = ck->probe_credit;

	if (!h->probe_gap_ns || (s64)(now - ck->paid_ns) < 0)
		return;
	more = (now - ck->paid_ns) / h->probe_gap_ns;
	if (!more)
		return;
	if (more >= h->probe_most) { /* it does not save up what it had no use for */
		ck->paid_ns = now;
		more = h->probe_most;
	} else {
		ck->paid_ns += more * h->probe_gap_ns;
	}
	if (credit >= h->probe_most)
		return;
	ck->probe_credit = credit + more > h->probe_most ? h->probe_most : credit + more;
}

/* Have mrc_idle send the probes that are due, some together. */
static __always_inline void probe_idle(struct __sk_buff *skb, const struct mrc_host *h,
				       struct mrc_clock *ck, u64 now)
{
	u64 since = now - ck->idle_ns, turns;

	if (!h->idle_gap_ns)
		return;
	turns = since / h->idle_gap_ns;
	if (!turns || (turns < IDLE_BUNDLE && since < IDLE_LEISURE_NS))
		return;
	if (turns > IDLE_TURNS) {
		turns = IDLE_TURNS;
		ck->idle_ns = now;
	} else {
		ck->idle_ns += turns * h->idle_gap_ns;
	}
	send_clone(skb, h, MRC_IDLE_MARK | (turns & MRC_MARK_NUMBER));
}

/*
 * Choose the end by which the beat goes on. A QP that becomes active after `resting` was
 * set has a new beat made, and one that became active before that is seen by the next
 * beat, which comes while this one is still fast.
 */
static __always_inline u32 way_on(const struct mrc_host *h, struct mrc_clock *ck, u32 seen,
				  u32 slow)
{
	u64 calm = ck->calm + 1;

	if (seen) {
		ck->calm = 0;
		if (ck->resting)
			ck->resting = 0;
		return h->beat_ifindex;
	}
	ck->calm = calm;
	if (slow || calm >= CALM_BEATS)
		ck->resting = 1;
	return slow || calm > CALM_BEATS ? h->rest_ifindex : h->beat_ifindex;
}

/* Write the content of a beat. Returns 0, or an error. */
static __always_inline long write_beat(struct __sk_buff *skb, u64 generation, u32 raw)
{
	struct {
		__u32 eth[3];
		__u16 proto;
		struct mrc_beat beat;
	} __attribute__((packed)) head = {
		.proto = MRC_ETH_PROTO,
		.beat.magic = MRC_BEAT_MAGIC,
		.beat.next_header = IPPROTO_NONE,
		.beat.raw = raw,
		.beat.generation = generation,
	};
	u64 none[14] = {};

	if (bpf_skb_store_bytes(skb, 0, &head, sizeof(head), 0))
		return -1;
	return bpf_skb_store_bytes(skb, sizeof(head), none, MRC_BEAT_LEN - sizeof(head), 0);
}

/*
 * Make a beat of this packet, whatever it is, and let it out; the one before ends. What
 * a checksum is still wanted for gets it where the packet leaves, as the pair's
 * interfaces can fill none: two bytes of the payload, behind struct mrc_beat. Returns 0,
 * or -1 if it cannot be shortened, because it is inside a tunnel.
 */
static __always_inline int make_beat(struct __sk_buff *skb, const struct mrc_host *h,
				     struct mrc_clock *ck)
{
	/* A clone must have data of its own first: the length of a large segment's packets is kept there. */
	if (skb->len >= MRC_BEAT_LEN && bpf_skb_pull_data(skb, MRC_BEAT_LEN))
		return -1;
	if (bpf_skb_change_tail(skb, MRC_BEAT_LEN, 0) || bpf_skb_pull_data(skb, MRC_BEAT_LEN))
		return -1;
	if (write_beat(skb, __sync_fetch_and_add(&ck->generation, 1) + 1, 1))
		return -1;
	skb->mark = 0;
	skb->priority = 0;
	/* A clone belongs to no socket, and nor do the packets that are made of it. */
	bpf_clone_redirect(skb, h->beat_ifindex, 0);
	return 0;
}

/*
 * Make a beat that was out for the first time like any other. The packet that it was made
 * of has left the place of its transport header, and no packet made of a clone could be
 * shorter than that. Taking bytes off behind the Ethernet header brings it nearer; in
 * front of the packet older kernels do not want it either. Returns 0, or an error.
 */
static __always_inline long clean_beat(struct __sk_buff *skb, u64 generation)
{
	u32 i;

	if (bpf_skb_change_tail(skb, MRC_BEAT_LEN + RAW_STEPS * RAW_STEP, 0))
		return -1;
	for (i = 0; i < RAW_STEPS; i++) {
		if (!bpf_skb_change_tail(skb, MRC_ETH_LEN + RAW_STEP, 0))
			break;
		if (bpf_skb_adjust_room(skb, -RAW_STEP, BPF_ADJ_ROOM_MAC, 0))
			return -1;
	}
	if (bpf_skb_change_tail(skb, MRC_BEAT_LEN, 0))
		return -1;
	return write_beat(skb, generation, 0);
}

/* Is this the packet that circles now, and ready for a beat? */
static __always_inline int is_beat(struct __sk_buff *skb, const struct mrc_clock *ck)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	__be32 *eth = data;
	struct mrc_beat *beat = data + MRC_ETH_LEN;
	u64 generation = ck->generation;

	if (data + MRC_ETH_LEN + sizeof(*beat) > end || eth[0] | eth[1] | eth[2] ||
	    beat->magic != MRC_BEAT_MAGIC || beat->generation != generation)
		return 0;
	return !beat->raw || !clean_beat(skb, generation);
}

/* What came at once: a clone, or a chain of programs that goes on. */
static __always_inline int on_clone(struct __sk_buff *skb)
{
	if ((skb->mark & MRC_MARK_KIND) == MRC_KICK_MARK)
		tails.call(skb, TAIL_TICK);
	else if ((skb->mark & MRC_MARK_KIND) == MRC_IDLE_MARK)
		tails.call(skb, TAIL_IDLE);
	else if ((skb->mark & MRC_MARK_KIND) == MRC_RELEASE_MARK)
		return go_on_with_release(skb);
	return TC_ACT_SHOT;
}

/*
 * Make a beat: of a packet that has made the first QP active, or of the daemon's test run,
 * for the first beat and for one that was lost. Where a packet cannot become one, the
 * daemon is asked.
 */
static __always_inline int on_wake(struct __sk_buff *skb, const struct mrc_host *h,
				   struct mrc_clock *ck)
{
	if (make_beat(skb, h, ck)) {
		ck->resting = 1;
		ask_for_beat();
	}
	return TC_ACT_SHOT;
}

/* The beat goes on. */
static __always_inline int beat_on(struct beat_args *in)
{
	return bpf_redirect(in->out, 0);
}

/* Begin the work of a beat. */
static __always_inline void begin_beat(struct mrc_clock *ck, struct beat_args *in)
{
	u32 word = ck->cursor;

	in->now = bpf_ktime_get_ns();
	in->word = word < CFG_ACTIVE_WORDS ? word : 0;
	in->mask = ~0ull;
	in->left = CFG_ACTIVE_WORDS;
	in->seen = 0;
	in->judging = 0;
	in->runs = 0;
	ck->beats++;
	ck->beat_ns = in->now;
}

/* End it; mrc_judge may have something left to do. */
static __always_inline int end_beat(struct __sk_buff *skb, const struct mrc_host *h,
				    struct mrc_clock *ck, struct beat_args *in)
{
	ck->cursor = in->word;
	grant_probes(h, ck, in->now);
	probe_idle(skb, h, ck, in->now);
	in->out = way_on(h, ck, in->seen | in->left, skb->ifindex == h->beat_ifindex);
	if (in->judging)
		tails.call(skb, TAIL_JUDGE);
	return beat_on(in);
}

/* Look at some more QPs, then call itself for others, or end. */
static __always_inline int look_on(struct __sk_buff *skb, const struct mrc_host *h,
				   struct mrc_clock *ck, struct beat_args *in)
{
	skb->mark = 0;
	look_at_some(skb, h, ck, in);
	if (in->left && ++in->runs < BEAT_RUNS) {
		skb->mark = MRC_MORE_MARK;
		tails.call(skb, TAIL_BEAT);
		skb->mark = 0;
	}
	return end_beat(skb, h, ck, in);
}

int mrc_beat(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_CLOCK);
	struct mrc_host *h = host_get();
	struct mrc_clock *ck;
	struct beat_args *in;
	u32 zero = 0;

	ck = clock.lookup(&zero);
	if (!chain || !h || !ck)
		return TC_ACT_SHOT;
	in = &chain->beat;
	if (skb->mark != MRC_MORE_MARK) {
		if (skb->mark == MRC_WAKE_MARK)
			return on_wake(skb, h, ck);
		if (skb->mark)
			return on_clone(skb);
		if (!is_beat(skb, ck))
			return TC_ACT_SHOT;
		begin_beat(ck, in);
	}
	return look_on(skb, h, ck, in);
}
