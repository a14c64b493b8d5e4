/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Loss: when a packet counts as lost, and what that does to its QP and to its path.
 * Pure functions. A packet counts as lost by one of three rules (docs/protocol.md):
 *   fifo    a packet sent later on the same path has arrived; a path keeps order
 *   guard   more than its plane's present round trip and a guard have passed
 *           since it was sent, and a packet sent later has arrived on some path
 *   timeout una has not moved for a retransmission time-out, and the packet was
 *           sent longer ago than that (mrc_tick only)
 */
#ifndef MRC_LOSS_H
#define MRC_LOSS_H

#define RTO_MAX_NS 200000000ull  /* longest retransmission time-out */
/* Values of timeout_ns for a packet that a NACK names. */
#define NACK_PATH (~0ull)        /* trimmed on the way: its path becomes SKIP */
#define NACK_LASTHOP (~0ull - 1) /* trimmed at the port that leads to the peer */

static __always_inline int tx_bit(const struct mrc_tx *tx, u32 psn)
{
	return tx->sacked[(psn >> 6) & CFG_WORD_MASK] >> (psn & 63) & 1;
}

static __always_inline u32 guard_ns(const struct mrc_tx *tx, const struct mrc_host *h)
{
	u32 guard = tx->srtt_ns / 4;

	if (guard < h->reo_min_ns)
		return h->reo_min_ns;
	if (guard > h->reo_max_ns)
		return h->reo_max_ns;
	return guard;
}

/* A time-out: a round trip and four of its deviations (RFC 6298), doubled `backoff` times. */
static __always_inline u64 timeout_ns(const struct mrc_tx *tx, u64 min, u32 backoff, u64 max)
{
	u64 timeout = tx->srtt_ns + 4ull * tx->rttvar_ns;

	if (timeout < min)
		timeout = min;
	timeout <<= backoff & 7;
	return timeout > max ? max : timeout;
}

/*
 * Does this packet count as lost? Returns the counter of the rule that declares
 * it lost, or 0. timeout_ns is the age at which a packet counts as lost; 0 means
 * that only the evidence of the SACK counts which reported the packet missing;
 * NACK_PATH and NACK_LASTHOP mean that a NACK named it. seen_ns is the time by
 * which the SACK should have reported the packet.
 */
static __always_inline u32 lost_by(const struct mrc_tx_entry *entry, const struct mrc_path *path,
				   const struct mrc_tx *tx, const struct mrc_balance *b,
				   const struct mrc_host *h, u64 seen_ns, u64 timeout_ns)
{
	u64 sent = entry->sent_ns;
	u32 rtt;

	if (timeout_ns >= NACK_LASTHOP)
		return MRC_C_RTX_NACK;
	if (timeout_ns)
		return seen_ns > sent + timeout_ns ? MRC_C_RTX_TIMEOUT : 0;
	if (path->delivered_ns > sent + h->fifo_slack_ns + tx->fifo_extra_ns)
		return MRC_C_RTX_FIFO;
	/* A SACK for it was due by now, at the plane's present delay, and later packets arrived. */
	rtt = b->now_ns[path_plane(entry->path)];
	if (!rtt)
		rtt = tx->srtt_ns;
	if (tx->delivered_ns > sent && seen_ns > sent + rtt + guard_ns(tx, h) + tx->guard_extra_ns)
		return MRC_C_RTX_GUARD;
	return 0;
}

/* A packet on its way through resend(). */
struct resending {
	const struct mrc_host *h;
	const struct mrc_qp *q;
	struct mrc_tx *tx;
	struct mrc_balance *b;
	struct mrc_tx_entry *entry;
	struct mrc_path *path;   /* of the transmission that was lost */
	u64 now;
	u64 sent_ns;             /* when that transmission was sent */
	u64 timeout_ns;          /* as in struct resend_args */
	u64 up;                  /* planes that may be used, a bit each ... */
	u64 spare;               /* ... and of these the spare ones */
	u32 psn;
	u32 why;                 /* counter of the rule by which it counts as lost */
	u32 old_id;              /* path of the lost transmission */
	u32 new_id;              /* path to send it on, or MRC_NO_PATH */
	u32 cause;               /* MRC_ON_..., what moves the old path */
	u32 ask;                 /* not 0: the receiver is to answer at once */
	u32 blamed;              /* 1: the old path is blamed; once for a whole cell */
	u32 deaf;                /* 1: the old path now counts as one that loses data */
};

/*
 * Claim a packet that counts as lost, change the state of its path and pick a new one, at the
 * `price` of a turn. Returns 1, or 0 if the packet was acknowledged or sent again meanwhile.
 * Lock of tx held.
 */
static __always_inline u32 take_loss(struct resending *r, u32 price, struct path_move *move)
{
	struct mrc_tx_entry *entry = r->entry;
	struct mrc_tx *tx = r->tx;
	u32 old_plane = path_plane(r->old_id), refused = entry->rule == MRC_RULE_REFUSED;
	u64 up;

	r->blamed = 0;
	r->deaf = 0;
	r->cause = MRC_ON_LOSS;
	r->new_id = MRC_NO_PATH;
	if (entry->sent_ns != r->sent_ns || r->psn - tx->una >= tx->next - tx->una ||
	    tx_bit(tx, r->psn))
		return 0;
	if (refused)
		r->why = MRC_C_RTX_NACK;
	tx->retransmits++;
	if (r->timeout_ns == NACK_PATH) {
		r->cause = MRC_ON_MARK;
		path_event(tx, r->old_id, MRC_ON_MARK, move);
	} else if (r->timeout_ns < NACK_LASTHOP && !refused && r->path->blamed_ns != r->sent_ns) {
		r->blamed = 1;
		r->path->blamed_ns = r->sent_ns;
		r->deaf = path_gone(r->path, entry->len);
		path_lost(tx, r->path, r->old_id, r->now, r->h, r->path->delivered_ns > r->sent_ns,
			  r->b->loss_ppm[old_plane], move);
		plane_lost(tx, old_plane, r->sent_ns, r->now);
		if (!nscc_queues(tx))
			tx->fault_ns = r->now;
	}
	/* Or the verifier would walk what follows once for each kind of loss and move. */
	FORGET(r->cause, r->now);
	FORGET(r->deaf, r->now);
	FORGET(r->blamed, r->now);
	FORGET(move->from, r->now);
	FORGET(move->to, r->now);
	if (r->timeout_ns >= NACK_LASTHOP)
		nscc_trim(r->h, tx, entry->len, r->now);
	else if (r->blamed || refused)
		nscc_loss(r->h, tx, entry->len);
	FORGET(r->blamed, r->now);
	FORGET(refused, r->now);
	FORGET(r->why, r->now);
	/* Prefer another plane: the cause of the loss may affect all of this one. */
	up = serving_planes(tx, r->up, r->spare);
	r->new_id = pick_path(tx, up, up & ~(1ull << old_plane), r->b->turns, price);
	entry->sent_ns = r->now;
	if (entry->sends == 1) {
		entry->was = r->old_id;
		entry->first_ns = r->sent_ns;
	}
	if (entry->sends < 255)
		entry->sends++;
	entry->rule = r->why;
	if (r->new_id != MRC_NO_PATH)
		entry->path = r->new_id;
	return 1;
}

/* The receiver had no room for a packet: it counts as sent once more, now. Lock of tx held. */
static __always_inline void note_refusal(struct mrc_tx_entry *entry, u64 now)
{
	if (entry->sends == 1) {
		entry->was = entry->path;
		entry->first_ns = entry->sent_ns;
	}
	if (entry->sends < 255)
		entry->sends++;
	entry->sent_ns = now;
	entry->rule = MRC_RULE_REFUSED;
}

/*
 * Was nothing heard of what is outstanding, up to `next`, for a time-out of `rto`? tx->scan is
 * where to look for what is lost. A whole lost window takes several runs: continue instead of
 * starting over. But if una has moved, the oldest come first: a receiver with little room
 * refuses others. The clock's only.
 */
static __always_inline int nothing_heard(struct mrc_tx *tx, u32 next, u64 rto, u64 now)
{
	if (!tx->backoff || tx->scan - tx->una >= next - tx->una)
		tx->scan = tx->una;
	return now - tx->progress_ns > rto;
}

/* A time-out has passed, and the next one is longer. Lock of tx held. */
static __always_inline void back_off(struct mrc_tx *tx, u64 now)
{
	tx->progress_ns = now;
	if (tx->backoff < 7)
		tx->backoff++;
}

/*
 * Were the retries of the oldest packet in vain? Both limits must be passed. Of a wide window
 * each packet is sent again rarely, so the number of sendings alone would be late, and
 * after an outage the time alone would be early.
 */
static __always_inline int in_vain(const struct mrc_host *h, const struct mrc_tx *tx,
				   const struct mrc_tx_entry *oldest, u64 now)
{
	if (!h->retry_limit || !h->retry_s)
		return 0;
	return oldest->sends > h->retry_limit + 1 &&
	       now - tx->moved_ns > h->retry_s * 1000000000ull;
}

#endif
