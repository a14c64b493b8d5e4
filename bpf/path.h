/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Paths: which one the next packet takes, and what happens to one that loses.
 * A path is written plane << 8 | index, index < MRC_EVS_PER_PLANE.
 *
 * Planes first, then EVs within the plane: planes stay equally loaded however
 * many EVs of each are GOOD. Call with the lock of tx held.
 */
#ifndef MRC_PATH_H
#define MRC_PATH_H

static __always_inline u32 pick_path(struct mrc_tx *tx, u64 plane_mask)
{
	u64 usable = tx->plane_good & plane_mask & 0xff;
	u32 n = tx->plane_next & 7, all = 0, p, k;
	u64 set, rest;

	if (!usable) {           /* nothing GOOD: still send, in turn */
		all = 1;
		usable = tx->plane_all & plane_mask & 0xff;
		if (!usable)
			usable = tx->plane_all & 0xff;
		if (!usable)
			return 0;
	}
	p = (n + lowest_bit(((usable >> n) | (usable << (8 - n))) & 0xff)) & 7;
	tx->plane_next = p + 1;
	set = all ? tx->all[p] : tx->good[p];
	rest = set & (~0ull << (tx->ev_next[p] & 63));
	k = lowest_bit(rest ? rest : set) & 63;
	tx->ev_next[p] = k + 1;
	return p << 8 | k;
}

/*
 * A packet of this path is lost: ASSUMED_BAD at once. A path that loses
 * clearly more than the QP's paths do on average also stays away for a while,
 * twice as long after each relapse; otherwise the next probe that is answered
 * brings it back, so that loss on every path does not empty the set.
 * Returns 1 if the path was GOOD before.
 */
static __always_inline int withdraw_path(struct mrc_tx *tx, struct mrc_path *path, u32 id,
					 u64 now, const struct mrc_host *h)
{
	u32 p = (id >> 8) & 7;
	u64 bit = 1ull << (id & 63), hold;

	path->loss_ppm += (1000000 - path->loss_ppm) >> 8;
	tx->loss_ppm += (1000000 - tx->loss_ppm) >> 8;
	if (!(tx->good[p] & bit))
		return 0;
	tx->good[p] &= ~bit;
	if (!tx->good[p])
		tx->plane_good &= ~(1ull << p);
	path->state = MRC_PATH_ASSUMED_BAD;
	if (path->loss_ppm > 2 * tx->loss_ppm + 8000) {
		hold = (u64)h->hold_base_ns << (path->relapses & 15);
		if (path->relapses < 10)
			path->relapses++;
		if (hold > h->hold_max_ns)
			hold = h->hold_max_ns;
		path->hold_ns = now + hold;
	} else {
		path->relapses >>= 1;
		path->hold_ns = 0;
	}
	path->withdrawn_ns = now;
	return 1;
}

/* A probe of this path was answered. Returns 1 if it became GOOD. */
static __always_inline int restore_path(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now)
{
	u32 p = (id >> 8) & 7;
	u64 bit = 1ull << (id & 63);

	if (path->state != MRC_PATH_ASSUMED_BAD || now < path->hold_ns || !(tx->all[p] & bit))
		return 0;
	path->state = MRC_PATH_GOOD;
	tx->good[p] |= bit;
	tx->plane_good |= 1ull << p;
	return 1;
}

#endif
