/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * NACKs, the sender's side: one packet that a switch trimmed goes on to
 * retransmit.c. One for which the receiver had no room goes there when a loss of
 * it would have shown, since another copy would find no room either.
 */

/* Why a NACK has its packet sent again, as begin_resend() takes it; 0: it does not. */
static __always_inline u64 nack_reason(const struct mrc_mark *mark)
{
	switch (mark->ts) {
	case MRC_NACK_TRIMMED:
		return NACK_PATH;
	case MRC_NACK_TRIMMED_LASTHOP:
		return NACK_LASTHOP;
	}
	return 0;
}

/* Count what tells of a full queue. */
static __always_inline void count_nack(u64 why)
{
	count(MRC_C_NACK_RX);
	if (why == NACK_PATH)
		count(MRC_C_NACK_TRIMMED);
	else if (why == NACK_LASTHOP)
		count(MRC_C_NACK_LASTHOP);
}

/*
 * Does a NACK tell of another sending than the latest? That one is still on its way, by
 * another path.
 */
static __always_inline int nack_is_stale(u32 qp, u32 psn, const struct mrc_mark *mark)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);
	struct mrc_path *path;

	if (!entry || entry->psn != psn)
		return 1;
	path = path_get(qp, entry->path);
	return !path || path->ev != mark_ev(mark);
}

/* The counter of NACKs for a reason that does not have its packet sent again at once; 0: none. */
static __always_inline u32 nack_counter(u32 reason)
{
	switch (reason) {
	case MRC_NACK_NO_BITMAP:
	case MRC_NACK_NO_PKT_BUFFER:
	case MRC_NACK_NO_RESOURCE:
		return MRC_C_NACK_RX_SHORT;
	case MRC_NACK_PSN_OOR_WINDOW:
		return MRC_C_NACK_RX_WINDOW;
	case MRC_NACK_UNEXP_EVENT:
		return MRC_C_NACK_RX_EVENT;
	}
	return 0;
}

/*
 * The receiver had no room: the packet counts as sent once more, now, and not as its
 * path's loss. It is found missing once a packet sent later has arrived, a round trip from now, or
 * after a time-out, which doubles.
 */
static __always_inline void wait_for_room(u32 qp, u32 psn, struct mrc_tx *tx, u64 now)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);

	if (!entry || entry->psn != psn)
		return;
	bpf_spin_lock(&tx->lock);
	if (psn - tx->una < tx->next - tx->una && !tx_bit(tx, psn))
		note_refusal(entry, now);
	bpf_spin_unlock(&tx->lock);
}

/* Follow a NACK, if the packet that it names is still missing. */
static __always_inline void on_nack(struct __sk_buff *skb, const struct mrc_mark *mark,
				    struct mrc_qp *q, struct mrc_tx *tx,
				    struct resend_args *out, u64 now, u32 key)
{
	u32 una = tx->una, qp = mark->qp, psn, other = nack_counter(mark->ts);
	s32 ahead = psn_diff(mark_psn(mark), una);
	u64 why = nack_reason(mark);

	count_nack(why);
	capture_outcome(key, qp, MRC_C_NACK_RX);
	psn = una + ahead;
	if (ahead < 0 || psn - una >= sent_up_to(tx) - una || tx_bit(tx, psn))
		return;
	if (other)
		count(other);
	if (other == MRC_C_NACK_RX_EVENT)
		fail_qp(qp, q, tx, MRC_FAILED_EVENT);
	if (!why && other != MRC_C_NACK_RX_SHORT)
		return;
	if (nack_is_stale(qp, psn, mark)) {
		count(MRC_C_NACK_STALE);
		return;
	}
	if (!why) {
		wait_for_room(qp, psn, tx, now);
		return;
	}
	out->due[0] = psn;
	out->found = 1;
	begin_resend(out, qp, now, now, why);
	tails.call(skb, TAIL_RESEND);
}
