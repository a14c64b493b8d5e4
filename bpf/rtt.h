/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the time tells that a packet and its answer took: round trips, queues,
 * and how far packets overtake each other. A lock of tx is held in all of it.
 */
#ifndef MRC_RTT_H
#define MRC_RTT_H

#define REO_FORGET_NS 100000000ull /* so long without a needless retransmission narrows what it widened */

/* Round trip of the packet that caused a SACK (RFC 6298). Lock of tx held. */
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
 * What a round trip says of the queues: how much longer it was than the shortest
 * of its size. Every switch on the way sends a packet anew, so that a long one
 * takes longer where nothing queues: 9000 bytes over four links of 100 Mb/s
 * 3 ms. Lock of tx held.
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
 * How far packets overtake each other, learnt as RACK does it (RFC 8985,
 * 7.2): each round trip with a needless retransmission widens the rule that
 * caused it, each quiet tenth of a second narrows both again. `rule` is 0
 * where there was none. Lock of tx held.
 */
static __always_inline void learn_reordering(struct mrc_tx *tx, const struct mrc_host *h, u64 now,
					     u32 rule)
{
	if (rule && now - tx->reo_ns > tx->srtt_ns) {
		u32 *extra = rule == MRC_C_RTX_FIFO ? &tx->fifo_extra_ns : &tx->guard_extra_ns;
		u32 most = h->reo_max_ns;

		if (most < 2 * tx->srtt_ns) /* queues that take long vary by as much */
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

#endif
