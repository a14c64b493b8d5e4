/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The way back: how long SACKs take. A round trip has the queues of both directions, and a
 * sender is to answer its own only: where both are busy, the one that has more would keep what
 * the other gets from its window. So SACKs of cells tell when they were sent. The clocks of two
 * hosts differ and drift, so only what a SACK took longer than others is known. Pure functions.
 */
#ifndef MRC_BACK_H
#define MRC_BACK_H

#define BACK_MASK 16383          /* times wrap after so many units, 67 ms */
#define BACK_PART_NS 2000000000ull /* the shortest way is that of one to two parts of this time, as clocks drift */
#define BACK_SLACK 2             /* units by which a way back may seem longer than the round trip allows */
#define BACK_SMOOTH 2            /* what was known counts 2^2 - 1 times as much as what is new */

/* A time as SACKs of cells tell it. */
static __always_inline u32 back_time(u64 now)
{
	return now >> MRC_CC_SENT_UNIT & BACK_MASK;
}

/* What tx_timestamp of a SACK of a cell says beside the attempt. */
static __always_inline u32 back_stamp(u32 attempt, u64 now)
{
	return (attempt & MRC_CC_ATTEMPT) | back_time(now) << MRC_CC_SENT_SHIFT;
}

/*
 * A SACK has come by a plane; `stamp` is its tx_timestamp, `rtt` its packet's round trip, 0 if that
 * is not known. Smooth how much longer than the shortest way back it took: not longer than the
 * round trip is than the shortest, or the clocks are not as they were. All of it is racy.
 */
static __always_inline void back_sample(struct mrc_balance *b, u32 plane, u32 stamp, u32 rtt,
					u64 now)
{
	u32 p = plane & (MRC_MAX_PLANES - 1), over, most;
	u32 took = (back_time(now) - (stamp >> MRC_CC_SENT_SHIFT)) & BACK_MASK;

	over = (took - b->back_base[p]) & BACK_MASK;
	if (!b->back_at_ns[p] || over > BACK_MASK / 2) {
		b->back_at_ns[p] = now;
		b->back_base[p] = took;
		b->back_least[p] = 0;
		over = 0;
	}
	if (rtt && b->probed_ns) {
		most = BACK_SLACK + (rtt > b->probed_ns ? (rtt - b->probed_ns) >> MRC_CC_SENT_UNIT : 0);
		if (over > most) {
			b->back_base[p] += over - most;
			b->back_least[p] = 0;
			over = most;
		}
	}
	if (over < b->back_least[p])
		b->back_least[p] = over;
	if (now - b->back_at_ns[p] > BACK_PART_NS) {
		b->back_at_ns[p] = now;
		b->back_base[p] += b->back_least[p];
		over -= b->back_least[p];
		b->back_least[p] = over;
	}
	b->back_ns += (s32)((over << MRC_CC_SENT_UNIT) - b->back_ns) >> BACK_SMOOTH;
}

#endif
