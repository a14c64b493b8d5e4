/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Shares: how much of a peer's traffic each plane gets. Planes that are alike
 * have exactly equal shares, as the paper wants it. One that is worse than the
 * best for several judgements in a row - by delay, loss or marks - gives up
 * part of its share until it no longer is, and gets it back little by little.
 * A slow plane then carries what it can and no longer holds the others up.
 */
#define SHARE_MIN 4              /* of MRC_SHARE_FULL: enough to notice that it healed */
#define SHARE_STEP 2             /* gained at a judgement ... */
#define LEAD_PARTS 32            /* ... and that part of the share for a delay far below the others' ... */
#define KNEE_PARTS 4             /* ... and that part of what is missing to the last share that was too much */
#define SLACK_PACKETS 2          /* delay granted over the best plane, in its packets */
#define STRIKES 4                /* judgements in a row before a whole share shrinks ... */
#define MORE_STRIKES 2           /* ... and before one that is not whole shrinks more */
#define JUDGE_RTTS 3             /* what a judgement changes shows in the next one */
#define JUDGE_LATEST_NS 100000000ull
#define JUDGE_PACKETS 12         /* fewer say nothing about a plane */
#define JUDGE_MAX_NS 200000000ull /* nor does a round trip older than this */
#define QUIET_NS 50000000ull     /* a plane that is not judged for so long gains a step */
#define LOSS_SLACK_PPM 20000
#define MARK_SLACK_PPM 300000

static __always_inline u32 ratio_ppm(u64 part, u64 whole)
{
	return whole ? part * 1000000 / whole : 0;
}

static __always_inline int measured_lately(const struct mrc_balance *b, u32 p, u64 now)
{
	return b->srtt_ns[p] && now - b->rtt_at_ns[p] <= JUDGE_MAX_NS;
}

/* The greatest share of a plane that was measured lately. */
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

/* Smooth what was counted since the plane was judged; 1 if there was enough of it. */
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

static __always_inline void judge(struct mrc_balance *b, struct mrc_scratch *sc, u64 usable,
				  const struct mrc_host *h, u64 now)
{
	u64 shares = b->shares, after = 0, wait, gap;
	u32 p, share, worse, top, most, delay, limit;

	/*
	 * The best of each, kept where the verifier does not follow it, of the planes
	 * that are given most: one that is given less has shorter queues, fewer drops
	 * and fewer marks for that alone.
	 */
	sc->best_ns = ~0u;
	sc->best_fast_ns = ~0u;
	sc->best_loss = ~0u;
	sc->best_mark = ~0u;
	sc->judged = 0;
	sc->gap_ns = ~0u;
	sc->losing = 0;
	most = most_given(b, usable, now);
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		if (!(usable >> p & 1) || !b->srtt_ns[p])
			continue;
		sc->losing |= (u32)not_zero(b->lost[p]) << p;
		gap = (now - b->stock_ns[p]) / (b->acked[p] + 1);
		sc->judged |= take_stock(b, p, now) << p;
		if ((sc->judged >> p & 1) && gap < sc->gap_ns)
			sc->gap_ns = gap;
		if (!measured_lately(b, p, now) || share_of(shares, p) < most)
			continue;
		if (b->srtt_ns[p] < sc->best_ns)
			sc->best_ns = b->srtt_ns[p];
		if (b->fast_ns[p] < sc->best_fast_ns)
			sc->best_fast_ns = b->fast_ns[p];
		if (b->loss_ppm[p] < sc->best_loss)
			sc->best_loss = b->loss_ppm[p];
		if (b->mark_ppm[p] < sc->best_mark)
			sc->best_mark = b->mark_ppm[p];
	}
	if (sc->best_ns == ~0u)
		return;
	/* a queue that is a few packets longer is nobody's fault either */
	gap = SLACK_PACKETS * (sc->gap_ns < sc->best_ns ? sc->gap_ns : sc->best_ns);
	limit = sc->best_ns + sc->best_ns / 2 + h->judge_slack_ns + gap;
	wait = JUDGE_RTTS * (u64)sc->best_ns;
	if (wait > h->judge_ns)
		b->judge_at_ns = now + (wait > JUDGE_LATEST_NS ? JUDGE_LATEST_NS : wait);
	sc->top = 1;
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		/* Else the compiler lets the loop's end fall into its head, which
		 * Linux 6.1 takes for a loop it does not allow. */
		asm volatile("" : "+r"(p));
		share = share_of(shares, p);
		if (sc->judged >> p & 1) {
			/* the slow average says that it is worse, the fast one when that ends */
			delay = share < MRC_SHARE_FULL ? b->fast_ns[p] : b->srtt_ns[p];
			worse = 0;
			if (delay > limit)
				worse = 1 + share * ((u64)(delay - limit) * 32 / delay) / 128;
			if ((sc->losing >> p & 1) &&
			    b->loss_ppm[p] > 2 * sc->best_loss + LOSS_SLACK_PPM)
				worse += 1 + share / 16;
			if (b->mark_ppm[p] > 2 * sc->best_mark + MARK_SLACK_PPM)
				worse += 1 + share / 32;
			if (worse) {
				if (b->strikes[p] < 255)
					b->strikes[p]++;
				if (b->strikes[p] >= (share < MRC_SHARE_FULL ? MORE_STRIKES : STRIKES)) {
					b->knee[p] = share;
					share = share > worse ? share - worse : 0;
				}
			} else {
				b->strikes[p] = 0;
				share += SHARE_STEP;
				/* less late than the planes that are given most: it can take more */
				if (delay < sc->best_fast_ns)
					share += (u64)share * (sc->best_fast_ns - delay) /
						 sc->best_fast_ns / LEAD_PARTS;
				/* faster while it is far below what was too much (as CUBIC, RFC 9438) */
				if (share < b->knee[p])
					share += (b->knee[p] - share) / KNEE_PARTS;
			}
		} else if (now - b->stock_ns[p] > QUIET_NS) {
			/* too little traffic to tell: trust it again, little by little */
			b->stock_ns[p] = now;
			if (b->fast_ns[p] <= limit || !measured_lately(b, p, now))
				share += SHARE_STEP;
		}
		if (share < SHARE_MIN)
			share = SHARE_MIN;
		if (share > MRC_SHARE_FULL)
			share = MRC_SHARE_FULL;
		if ((usable >> p & 1) && share > sc->top)
			sc->top = share;
		after |= (u64)share << (8 * p);
	}
	/* shares are relative: the best plane's is whole */
	top = sc->top;
	if (top < MRC_SHARE_FULL) {
		shares = after;
		after = 0;
		for (p = 0; p < MRC_MAX_PLANES; p++) {
			share = share_of(shares, p) * MRC_SHARE_FULL / top;
			if (share > MRC_SHARE_FULL)
				share = MRC_SHARE_FULL;
			after |= (u64)share << (8 * p);
		}
	}
	b->shares = after;
}

/* Judge the planes of the peer of the next active QP, if it is time. */
int mrc_judge(struct __sk_buff *skb)
{
	struct mrc_scratch *sc = scratch_get();
	u32 zero = 0, qp;
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_host *h = host_get();
	struct mrc_balance *b;
	struct mrc_peer *peer;
	struct mrc_qp *q;
	u64 now, due;
	s32 found;

	if (!ck || !h || !sc)
		return 0;
	found = next_active(&ck->judge_cursor);
	if (found < 0)
		return 0;
	qp = found;
	q = qps.lookup(&qp);
	if (!q)
		return 0;
	peer = peer_get(q->peer);
	b = balance_get(q->peer);
	if (!peer || !b)
		return 0;
	now = bpf_ktime_get_ns();
	due = b->judge_at_ns;
	if (now < due ||
	    __sync_val_compare_and_swap(&b->judge_at_ns, due, now + h->judge_ns) != due)
		return 0;
	judge(b, sc, usable_planes(h, peer, b), h, now);
	return 0;
}
