/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pure functions of times: round trips, queueing delay, reordering, and which
 * paths are slower than their plane.
 */
#ifndef MRC_RTT_H
#define MRC_RTT_H

#define REO_FORGET_NS 100000000ull /* this time without a needless retransmission narrows the rules again */

/* Smooth a round trip (RFC 6298). Lock of tx held. */
static __always_inline void rtt_sample(struct mrc_tx *tx, u32 rtt)
{
	s32 err = rtt - tx->srtt_ns;

	if (!tx->srtt_ns) {
		tx->srtt_ns = rtt;
		tx->rttvar_ns = rtt / 2;
		return;
	}
	tx->srtt_ns += err >> 3;
	tx->rttvar_ns += ((err < 0 ? -err : err) - (s32)tx->rttvar_ns) >> 2;
}

/*
 * Estimate the queueing delay: how much longer a round trip was than the
 * shortest one of its size. Every switch stores a packet before it forwards it,
 * so a long one takes longer even without queues: 9000 bytes take 3 ms over four
 * links of 100 Mb/s. Lock of tx held.
 */
static __always_inline void queue_sample(struct mrc_tx *tx, u32 rtt, u32 is_long, u64 now)
{
	u32 least = tx->least_ns[is_long & 1];

	if (!least || rtt < least)
		tx->least_ns[is_long & 1] = least = rtt;
	tx->queue_at_ns = now;
	tx->queue_ns += (s32)(rtt - least - tx->queue_ns) >> 3;
}

/*
 * Learn how far packets overtake each other, as RACK does (RFC 8985, 7.2): each
 * round trip with a needless retransmission widens the rule that caused it, and
 * each quiet tenth of a second narrows both rules again. `rule` is 0 if there was
 * no needless retransmission. Lock of tx held.
 */
static __always_inline void learn_reordering(struct mrc_tx *tx, const struct mrc_host *h, u64 now,
					     u32 rule)
{
	if (rule && now - tx->reo_ns > tx->srtt_ns) {
		u32 *extra = rule == MRC_C_RTX_FIFO ? &tx->fifo_extra_ns : &tx->guard_extra_ns;
		u32 most = h->reo_max_ns;

		if (most < 2 * tx->srtt_ns) /* long queueing delays vary by as much */
			most = 2 * tx->srtt_ns;
		if (rule == MRC_C_RTX_FIFO)
			most /= 4;

		*extra = *extra * 2 + h->reo_max_ns / 16;
		if (*extra > most)
			*extra = most;
		tx->reo_ns = now;
	} else if (now - tx->reo_ns > REO_FORGET_NS) {
		tx->fifo_extra_ns /= 2;
		tx->guard_extra_ns /= 2;
		tx->reo_ns = now;
	}
}

#define SLOW_SAMPLES 8           /* late round trips in a row that make a path slow */
#define PROMPT_SAMPLES 4         /* round trips in a row near the usual that end this */

#define SLOW_SHIFT 27            /* averages over 2^27 ns ... */
#define FAST_SHIFT 24            /* ... and over 2^24 ns */

/*
 * An average over time, not over samples, because the paths of a plane are
 * measured at very different rates. With frequent samples it spans some 130 ms,
 * longer than a queue's ups and downs, or some 17 ms; a rare sample moves it by
 * an eighth.
 */
static __always_inline u32 smooth(u32 old, u32 sample, u64 since_ns, u32 shift)
{
	u64 part = since_ns >> (shift - 8);

	if (!old)
		return sample;
	part = part < 1 ? 1 : part > 32 ? 32 : part;
	return old + (((s64)sample - old) * (s64)part >> 8);
}

/*
 * Smooth a data packet's round trip for its path and plane. The usual round trip
 * of a plane is the lower quartile, so it stays that of the fast paths while up
 * to three quarters of them are slow. Returns 1 if the path is far above the
 * usual, on average and several times in a row, and -1 if it is near it, on
 * average or several times in a row: a slow path is rarely used, and its average
 * takes seconds to fall. All it writes is racy.
 */
static __always_inline s32 path_rtt(struct mrc_path *path, struct mrc_balance *b, u32 plane,
				    const struct mrc_host *h, u32 rtt, u64 now)
{
	u32 p = plane & 7, srtt, usual = b->usual_ns[p], step, near;

	srtt = smooth(path->srtt_ns, rtt, now - path->rtt_at_ns, SLOW_SHIFT);
	path->srtt_ns = srtt;
	path->rtt_at_ns = now;
	b->srtt_ns[p] = smooth(b->srtt_ns[p], rtt, now - b->rtt_at_ns[p], SLOW_SHIFT);
	b->fast_ns[p] = smooth(b->fast_ns[p], rtt, now - b->rtt_at_ns[p], FAST_SHIFT);
	b->rtt_at_ns[p] = now;
	b->now_ns[p] += b->now_ns[p] ? (s32)(rtt - b->now_ns[p]) >> 2 : rtt;
	if (!usual)
		usual = rtt;
	step = usual / 64 + 1;
	usual += rtt > usual ? step : -3 * step;
	b->usual_ns[p] = usual;
	path->late = rtt > 2 * usual + h->slow_slack_ns ? path->late + 1 : 0;
	if (path->late >= SLOW_SAMPLES && srtt > 2 * usual + h->slow_slack_ns)
		return 1;
	near = usual + usual / 2 + h->slow_slack_ns / 2;
	path->prompt = rtt < near ? path->prompt + 1 : 0;
	return srtt < near || path->prompt >= PROMPT_SAMPLES ? -1 : 0;
}

#endif
