/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shares: how much of a peer's traffic each plane gets. Planes that are alike
 * have exactly equal shares, as the paper asks. A plane that is worse than the
 * best for several judgements in a row - by delay, loss or marks - gives up
 * part of its share until it no longer is, and regains it little by little. A
 * slow plane then carries what it can and no longer holds the others up. mrc_judge
 * (judge.c) runs this by the clock.
 */
#ifndef MRC_SHARE_H
#define MRC_SHARE_H

#define EQUAL_WEIGHTS (0x0101010101010101ull * MRC_SHARE_FULL) /* all planes carry alike, or nobody knows */
#define SHARE_MIN 4              /* smallest share, of MRC_SHARE_FULL: enough to notice that a plane healed */
#define SHARE_REST 16            /* a share that shrinks to this or less costs more than it gives: it becomes SHARE_MIN */
#define SHARE_STEP 1             /* a plane gains this at a judgement ... */
#define LEAD_PARTS 32            /* ... and this part of its share for a delay far below the others' ... */
#define KNEE_PARTS 4             /* ... and this part of the distance to the last share that was too much */
#define SLACK_PACKETS 2          /* delay granted over the best plane, in packets of its own */
#define SLACK_TARGETS 2          /* delay granted over the best plane, in targets of the congestion window */
#define OWN_MOST_NS 20000000ull  /* a slow plane's packets count as no longer than this */
#define LEAN_PARTS 16            /* a queue that is longer by a target costs a plane this part of its turns ... */
#define LEAN_FREE 4              /* ... less this part of a target, which is chance ... */
#define LEAN_MOST 4              /* ... and this part at most */
#define STRIKES 4                /* judgements in a row before a whole share shrinks ... */
#define MORE_STRIKES 2           /* ... and before a smaller one shrinks further */
#define JUDGE_RTTS 3             /* round trips between judgements: the next one sees what this one changed */
#define JUDGE_LATEST_NS 100000000ull /* longest time between judgements */
#define JUDGE_PACKETS 12         /* fewer packets than this tell nothing about a plane ... */
#define JUDGE_MAX_NS 200000000ull /* ... nor does a round trip older than this */
#define QUIET_NS 50000000ull     /* a plane without a judgement for this time gains a step */
#define LOSS_SLACK_PPM 20000     /* loss over twice the best plane's that counts as chance */
#define MARK_SLACK_PPM 300000    /* marks over twice the best plane's that count as chance */

/* The state of mrc_judge's loops over a peer's planes. */
struct judge_state {
	u32 best_ns;             /* least of the planes with the largest share: srtt_ns, */
	u32 best_fast_ns;        /* fast_ns, */
	u32 best_now_ns;         /* now_ns, */
	u32 target_ns;           /* the delay that a busy sender aims at; 0 without congestion control */
	u32 best_loss;           /* of these planes: loss_ppm */
	u32 best_mark;           /* and mark_ppm */
	u32 gap_ns;              /* mean time between two packets, of the judged plane with the shortest */
	u32 judged;              /* bit p: plane p had enough traffic to be judged */
	u32 losing;              /* bit p: plane p lost packets */
	u32 top;                 /* largest share of a usable plane, or turn */
};

static __always_inline u32 ratio_ppm(u64 part, u64 whole)
{
	return whole ? part * 1000000 / whole : 0;
}

static __always_inline int measured_lately(const struct mrc_balance *b, u32 p, u64 now)
{
	return b->srtt_ns[p] && now - b->rtt_at_ns[p] <= JUDGE_MAX_NS;
}

/*
 * Of the `usable` planes, those to compare: spare ones only while no other one carries data.
 * An idle plane looks better than a busy one.
 */
static __always_inline u64 compared_planes(const struct mrc_balance *b, u64 usable, u64 spare,
					   u64 now)
{
	u64 rest = usable & ~spare;
	u32 p;

	if (rest == usable)
		return usable;
	for (p = 0; p < MRC_MAX_PLANES; p++)
		if ((rest >> p & 1) && measured_lately(b, p, now))
			return rest;
	return usable;
}

/* The largest share among the planes that were measured lately. */
static __always_inline u32 most_given(const struct mrc_balance *b, u64 usable, u64 now)
{
	u32 p, share, most = 0;

	for (p = 0; p < MRC_MAX_PLANES; p++) {
		share = share_of(b->shares, p);
		if ((usable >> p & 1) && share > most && measured_lately(b, p, now))
			most = share;
	}
	return most;
}

/* Smooth the counts since the last judgement of a plane; returns 1 if there were enough. */
static __always_inline u32 take_stock(struct mrc_balance *b, u32 p, u64 now)
{
	u64 acked = b->acked[p], lost = b->lost[p], marked = b->marked[p];

	if (acked + lost < JUDGE_PACKETS || !measured_lately(b, p, now))
		return 0;
	b->loss_ppm[p] += (s32)(ratio_ppm(lost, acked + lost) - b->loss_ppm[p]) >> 3;
	b->mark_ppm[p] += (s32)(ratio_ppm(marked, acked + lost) - b->mark_ppm[p]) >> 2;
	b->acked[p] = 0;
	b->lost[p] = 0;
	b->marked[p] = 0;
	b->stock_ns[p] = now;
	return 1;
}

/*
 * Note the best of each measurement among the planes with the largest share. A
 * plane with a smaller one has shorter queues, fewer drops and fewer marks for
 * that reason alone.
 */
static __always_inline void find_best(struct mrc_balance *b, struct judge_state *j, u64 usable,
				      u64 now)
{
	u32 p, most = most_given(b, usable, now);
	u64 gap;

	j->best_ns = ~0u;
	j->best_fast_ns = ~0u;
	j->best_now_ns = ~0u;
	j->best_loss = ~0u;
	j->best_mark = ~0u;
	j->judged = 0;
	j->gap_ns = ~0u;
	j->losing = 0;
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		if (!(usable >> p & 1) || !b->srtt_ns[p])
			continue;
		j->losing |= (u32)not_zero(b->lost[p]) << p;
		gap = (now - b->stock_ns[p]) / (b->acked[p] + 1);
		j->judged |= take_stock(b, p, now) << p;
		if ((j->judged >> p & 1) && gap < j->gap_ns)
			j->gap_ns = gap;
		if (!measured_lately(b, p, now) || share_of(b->shares, p) < most)
			continue;
		if (b->srtt_ns[p] < j->best_ns)
			j->best_ns = b->srtt_ns[p];
		if (b->fast_ns[p] < j->best_fast_ns)
			j->best_fast_ns = b->fast_ns[p];
		if (b->now_ns[p] < j->best_now_ns)
			j->best_now_ns = b->now_ns[p];
		if (b->loss_ppm[p] < j->best_loss)
			j->best_loss = b->loss_ppm[p];
		if (b->mark_ppm[p] < j->best_mark)
			j->best_mark = b->mark_ppm[p];
	}
}

/* How much of its share a plane should give up; 0 if it is not worse than the best. */
static __always_inline u32 excess(const struct mrc_balance *b, const struct judge_state *j, u32 p,
				  u32 share, u32 delay, u32 limit)
{
	u32 worse = 0;

	if (delay > limit)
		worse = 1 + share * ((u64)(delay - limit) * 32 / delay) / 128;
	if ((j->losing >> p & 1) && b->loss_ppm[p] > 2 * j->best_loss + LOSS_SLACK_PPM)
		worse += 1 + share / 16;
	if (b->mark_ppm[p] > 2 * j->best_mark + MARK_SLACK_PPM)
		worse += 1 + share / 32;
	return worse;
}

/* The share of a plane after a judgement. */
static __always_inline u32 judged_share(struct mrc_balance *b, const struct judge_state *j, u32 p,
					u32 share, u32 limit)
{
	/* The slow average shows that a plane is worse, the fast one shows when that ends. */
	u32 delay = share < MRC_SHARE_FULL ? b->fast_ns[p] : b->srtt_ns[p];
	u32 worse = excess(b, j, p, share, delay, limit);

	if (worse) {
		if (b->strikes[p] < 255)
			b->strikes[p]++;
		if (b->strikes[p] >= (share < MRC_SHARE_FULL ? MORE_STRIKES : STRIKES)) {
			b->knee[p] = share;
			share = share > worse + SHARE_REST ? share - worse : 0;
		}
		return share;
	}
	b->strikes[p] = 0;
	share += SHARE_STEP;
	if (share < SHARE_REST)
		return share;
	/* A plane with less delay than those with the largest share can take more. */
	if (delay < j->best_fast_ns)
		share += (u64)share * (j->best_fast_ns - delay) / j->best_fast_ns / LEAD_PARTS;
	/* It gains faster while far below what was too much, as CUBIC does (RFC 9438). */
	if (share < b->knee[p])
		share += (b->knee[p] - share) / KNEE_PARTS;
	return share;
}

/* The share of a plane with too little traffic to judge: it regains trust little by little. */
static __always_inline u32 unjudged_share(struct mrc_balance *b, u32 p, u32 share, u32 limit,
					  u64 now)
{
	if (now - b->stock_ns[p] <= QUIET_NS)
		return share;
	b->stock_ns[p] = now;
	if (b->fast_ns[p] <= limit || !measured_lately(b, p, now))
		share += SHARE_STEP;
	return share;
}

/* Shares are relative: scale them so that the largest, `top`, is whole. */
static __always_inline u64 made_whole(u64 shares, u32 top)
{
	u64 after = 0;
	u32 p, share;

	if (top >= MRC_SHARE_FULL)
		return shares;
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		share = share_of(shares, p) * MRC_SHARE_FULL / top;
		if (share > MRC_SHARE_FULL)
			share = MRC_SHARE_FULL;
		after |= (u64)share << (8 * p);
	}
	return after;
}

/*
 * A share without the turns that a longer queue costs. Equal planes carry equal rates, so a
 * difference between their queues, once there, would stay: it ends by sending less to the
 * longest one. Shares are no means against it: they change the rates in steps, and the queues
 * that these make change shares in their turn.
 */
static __always_inline u32 leaned(const struct mrc_balance *b, const struct judge_state *j, u32 p,
				  u32 share, u64 now)
{
	u32 longer, less, target = j->target_ns;

	if (!target || !measured_lately(b, p, now) ||
	    b->now_ns[p] <= j->best_now_ns + target / LEAN_FREE)
		return share;
	longer = b->now_ns[p] - j->best_now_ns - target / LEAN_FREE;
	less = (u64)share * longer / target / LEAN_PARTS;
	return share - (less < share / LEAN_MOST ? less : share / LEAN_MOST);
}

/*
 * The delay beyond which a plane is worse than the best. A queue that is a few packets longer is no
 * fault of it, and a plane that carries less takes longer for a packet.
 */
static __always_inline u32 limit_of(const struct judge_state *j, const struct mrc_host *h,
				    u64 weights, u32 p)
{
	u64 gap = SLACK_PACKETS * (u64)(j->gap_ns < j->best_ns ? j->gap_ns : j->best_ns);
	u32 weight = share_of(weights, p), limit;

	if (weight && weight < MRC_SHARE_FULL) {
		gap = gap * MRC_SHARE_FULL / weight;
		if (gap > OWN_MOST_NS)
			gap = OWN_MOST_NS;
	}
	limit = j->best_ns + j->best_ns / 2 + h->judge_slack_ns + gap;
	/* A window that fills the queues makes them differ by as much as it keeps in them. */
	if (limit < j->best_ns + SLACK_TARGETS * j->target_ns)
		limit = j->best_ns + SLACK_TARGETS * j->target_ns;
	return limit;
}

/* What a plane's turns are by its share and by what it carries; 0 unless it is usable. */
static __always_inline u32 raw_turn(u64 turns, u64 weights, u64 usable, u32 p)
{
	return share_of(turns, p) * share_of(weights, p) & (0 - (u32)(usable >> p & 1));
}

/*
 * Turns go by shares and by what planes carry. They are relative, as shares are: of the usable
 * planes the one with the most has whole turns, and each has some.
 */
static __always_inline u64 weighed(struct judge_state *j, u64 turns, u64 weights, u64 usable)
{
	u32 p, turn;
	u64 after = 0;

	j->top = 1;
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		turn = raw_turn(turns, weights, usable, p);
		if (turn > j->top)
			j->top = turn;
	}
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		asm volatile("" : "+r"(p)); /* as in judge() */
		turn = raw_turn(turns, weights, usable, p) * MRC_SHARE_FULL / j->top;
		after |= (u64)(turn + 1 - not_zero(turn)) << (8 * p);
	}
	return after;
}

/* The delay that a busy sender to this peer aims at; 0 without congestion control. */
static __always_inline u32 aimed_at(const struct mrc_host *h, const struct mrc_balance *b)
{
	if (!h->cc_target_ns)
		return 0;
	return b->target_ns > h->cc_target_ns ? b->target_ns : h->cc_target_ns;
}

static __always_inline void judge(struct mrc_balance *b, struct judge_state *j, u64 usable,
				  const struct mrc_host *h, u64 weights, u64 now)
{
	u64 shares = b->shares, after = 0, turns = 0, wait;
	u32 p, share, limit;

	find_best(b, j, usable, now);
	j->target_ns = aimed_at(h, b);
	if (j->best_ns == ~0u)
		return;
	wait = JUDGE_RTTS * (u64)j->best_ns;
	if (wait > h->judge_ns)
		b->judge_at_ns = now + (wait > JUDGE_LATEST_NS ? JUDGE_LATEST_NS : wait);
	j->top = 1;
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		/* Without this the compiler lets the loop's end fall into its head, which
		 * Linux 6.1 takes for a loop that it does not allow. */
		asm volatile("" : "+r"(p));
		share = share_of(shares, p);
		limit = limit_of(j, h, weights, p);
		if (j->judged >> p & 1)
			share = judged_share(b, j, p, share, limit);
		else
			share = unjudged_share(b, p, share, limit, now);
		if (share < SHARE_MIN)
			share = SHARE_MIN;
		if (share > MRC_SHARE_FULL)
			share = MRC_SHARE_FULL;
		if ((usable >> p & 1) && share > j->top)
			j->top = share;
		after |= (u64)share << (8 * p);
	}
	after = made_whole(after, j->top);
	b->shares = after;
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		asm volatile("" : "+r"(p)); /* as above */
		turns |= (u64)leaned(b, j, p, share_of(after, p), now) << (8 * p);
	}
	b->turns = weights == EQUAL_WEIGHTS ? turns : weighed(j, turns, weights, usable);
}

#endif
