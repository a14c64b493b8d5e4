/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * NACKs, the sender's side: one packet that a switch trimmed or the receiver
 * refused goes on to retransmit.c.
 */

/* Why a NACK has its packet sent again, as begin_resend() takes it; 0: it does not. */
static __always_inline u64 nack_reason(const struct mrc_mark *mark)
{
	switch (mark->ts) {
	case MRC_NACK_TRIMMED:
		return NACK_PATH;
	case MRC_NACK_TRIMMED_LASTHOP:
		return NACK_LASTHOP;
	case MRC_NACK_NO_PKT_BUFFER:
	case MRC_NACK_NO_RESOURCE:
		return NACK_NO_BLAME;
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

/* Send the packet again that a NACK is about, if it is still missing. */
static __always_inline void on_nack(struct __sk_buff *skb, const struct mrc_mark *mark,
				    const struct mrc_tx *tx, struct resend_args *out, u64 now,
				    u32 key)
{
	u32 una = tx->una, qp = mark->qp, psn;
	s32 ahead = psn_diff(mark_psn(mark), una);
	u64 why = nack_reason(mark);

	count_nack(why);
	capture_outcome(key, qp, MRC_C_NACK_RX);
	psn = una + ahead;
	if (!why || ahead < 0 || psn - una >= sent_up_to(tx) - una || tx_bit(tx, psn))
		return;
	if (nack_is_stale(qp, psn, mark)) {
		count(MRC_C_NACK_STALE);
		return;
	}
	out->due[0] = psn;
	out->found = 1;
	begin_resend(out, qp, now, now, why);
	tails.call(skb, TAIL_RESEND);
}
