/* SPDX-License-Identifier: GPL-2.0-only */
/* What a SACK teaches of paths, round trips and losses. Pure functions. */
#ifndef MRC_LEARN_H
#define MRC_LEARN_H

/*
 * Apply what the SACK tells of one path: whether it is slow, and its congestion
 * mark. Returns 1 if the path is crowded from now on. Lock of tx held.
 */
static __always_inline u32 learn_path(struct mrc_tx *tx, struct mrc_path *path,
				      const struct mrc_host *h, const struct learn_args *in,
				      struct learn_state *state, u32 id, u64 now,
				      struct path_move *move)
{
	u32 word = slot_word(id);
	u64 mask = slot_bit(id) & tx->use[word];

	if (in->slow > 0) {
		state->found_slow = mask && !(tx->slow[word] & mask);
		tx->slow[word] |= mask;
	}
	if (in->slow < 0 && !in->m && now >= path->crowded_ns)
		tx->slow[word] &= ~mask;
	if (in->m == MRC_SETH_M_ALWAYS_SKIP)
		path_lost(tx, path, id, now, h, 0, 0, move);
	else if (in->m)
		return path_marked(tx, path, id, now, move);
	return 0;
}

/*
 * Learn round trips, queues and reordering. Returns 1 unless a newer SACK was
 * there before: SACKs overtake each other, and what an older one misses may have
 * arrived. Lock of tx held.
 */
static __always_inline u32 learn_times(struct mrc_tx *tx, struct mrc_balance *b,
				       const struct mrc_host *h, const struct learn_args *in,
				       struct learn_state *state, u32 id, u64 now)
{
	u32 fresh = ((in->heard - tx->heard) & 0xffffff) < 0x800000;
	u32 whole = share_of(b->shares, path_plane(id)) >= MRC_SHARE_FULL;

	if (in->latest > tx->delivered_ns)
		tx->delivered_ns = in->latest;
	if ((s32)(in->high - tx->high) > 0)
		tx->high = in->high;
	if (in->rtt) {
		rtt_sample(tx, in->rtt);
		if (whole)
			queue_sample(tx, in->rtt, in->is_long, now);
	}
	state->pressed = fresh ? nscc_press(h, tx, in->bytes, in->press) : 0;
	/* Another CPU may have learnt that all of it has arrived, and something been sent since. */
	if ((s32)(in->next - tx->counted_from) <= 0)
		tx->inflight += in->bytes;
	/* A plane that gave up part of its share is answered by sending it less. */
	nscc_sack(h, tx, b, in->qp, in->bytes, whole ? in->rtt : 0, in->class, in->m, now);
	if (state->pressed == MRC_C_PENALTY_RX)
		nscc_keep_pressed(tx);
	learn_reordering(tx, h, now, in->rule);
	if (fresh) {
		tx->heard = in->heard;
		tx->granted = in->granted;
	}
	return fresh;
}

/*
 * PSNs that a SACK's bitmap reports on, from *from up to the result: from una on, and not beyond
 * `high`, behind which nothing is known to have arrived.
 */
static __always_inline u32 reported(const struct learn_args *in, u32 una, u32 high, u32 *from)
{
	u32 to = in->base + MRC_SACK_BITS;

	*from = in->base;
	if ((s32)(to - high) > 0)
		to = high;
	if ((s32)(*from - una) < 0)
		*from = una;
	return to;
}

#endif
