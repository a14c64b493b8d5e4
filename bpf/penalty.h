/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The receiver's penalty of NSCC: what a receiver whose reorder rings run short asks for,
 * and what that does to a sender's window (docs/decisions/0029-receivers-penalty.md).
 */
#ifndef MRC_PENALTY_H
#define MRC_PENALTY_H

#define PENALTY_PART 4           /* a reorder ring runs short with less than this part of it free */
#define PENALTY_MOST 64          /* largest penalty: of 128, so it halves the window in a round trip */
#define PENALTY_END 2            /* the penalty is over when this part of the rings is free */

/*
 * The penalty for a QP because of what a reorder ring has free, 0 to PENALTY_MOST. Only what
 * waits takes slots, so a QP that keeps order has none; nor has one whose whole window
 * finds room, `can` of `mpr`, however long a gap makes it wait. *ample: 0 if the ring may
 * run short again soon.
 */
static __always_inline u32 ring_penalty(const struct mrc_room *room, u32 waiting, u64 can,
					u64 mpr, u32 *ample)
{
	u64 low = room->all / PENALTY_PART, free = room->free;

	if (free < room->all / PENALTY_END)
		*ample = 0;
	if (free >= low || !waiting || can >= mpr)
		return 0;
	return 1 + (low - free) * (PENALTY_MOST - 1) / low;
}

/*
 * The receiver runs short, and the newest SACK, by which `bytes` have arrived, asks
 * for a smaller window; or there is room again, and the window from before may return. It
 * does so once, and not if congestion has made it smaller meanwhile. Returns the
 * counter of what was done, or 0. Lock of tx held.
 */
static __always_inline u32 nscc_press(const struct mrc_host *h, struct mrc_tx *tx, u32 bytes,
				      u32 press)
{
	u32 part = press >> MRC_CC_PENALTY_SHIFT & MRC_CC_PENALTY, least = NSCC_LEAST * CFG_MTU;
	u32 from = tx->inflight < tx->cwnd ? tx->inflight : tx->cwnd, take = (u64)part * bytes >> 7;

	if (!h->cc_target_ns || !tx->cwnd)
		return 0;
	if (tx->cwnd < tx->left)
		tx->saved = 0;
	if (part && bytes) {
		if (tx->saved < tx->cwnd)
			tx->saved = tx->cwnd;
		tx->cwnd = from > take + least ? from - take : least;
		tx->left = tx->cwnd;
		tx->calm = 0;
		return MRC_C_PENALTY_RX;
	}
	if (part || !(press & MRC_CC_RESTORE) || !tx->saved)
		return 0;
	if (tx->cwnd < tx->saved)
		tx->cwnd = tx->saved;
	tx->saved = 0;
	return MRC_C_PENALTY_OVER;
}

/* A SACK with a penalty makes the window no larger, however short the delay is. */
static __always_inline void nscc_keep_pressed(struct mrc_tx *tx)
{
	if (tx->cwnd > tx->left)
		tx->cwnd = tx->left;
}

#endif
