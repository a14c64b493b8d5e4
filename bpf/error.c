/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * QPs that give up, as InfiniBand's do: no answer came for too long, or the peer has
 * no use for what was sent. Such a QP is in the state ERROR. It takes and sends
 * nothing, until the daemon sets it up anew by the hand-shake.
 */

/*
 * Give a QP up; it must be READY. The clock reports it (report_failed), since an event
 * from here could find the ring buffer full.
 */
static __always_inline void fail_qp(u32 qp, struct mrc_qp *q, struct mrc_tx *tx, u64 why)
{
	if (__sync_val_compare_and_swap(&tx->failed, 0, why))
		return;
	q->state = MRC_QP_ERROR;
	count_atomic(MRC_C_QP_FAILED);
	count_atomic_by(MRC_C_GIVEN_UP, tx->next - tx->una);
	set_active(qp);
}

/* Were the retries of the oldest packet in vain? */
static __always_inline int retries_are_up(const struct mrc_host *h, u32 qp,
					  const struct mrc_tx *tx, u64 now)
{
	const struct mrc_tx_entry *entry = tx_entry_get(qp, tx->una);

	return entry && entry->psn == tx->una && in_vain(h, tx, entry, now);
}

/* Tell the daemon that a QP gave up. Returns 0, or an error if there is no room for the event now. */
static __always_inline long report_failed(u32 qp, const struct mrc_tx *tx)
{
	struct mrc_event ev = { .kind = MRC_EVENT_FAILED, .qp = qp, .cause = tx->failed };

	return events.ringbuf_output(&ev, sizeof(ev), BPF_RB_FORCE_WAKEUP);
}
