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
	case MRC_NACK_NO_PKT_BUFFER:
	case MRC_NACK_NO_RESOURCE:
		return NACK_NO_BLAME;
	}
	return 0;
}

/* Send the packet again that a NACK is about, if it is still missing. */
static __always_inline void on_nack(struct __sk_buff *skb, const struct mrc_mark *mark,
				    const struct mrc_tx *tx, struct resend_args *out, u64 now,
				    u32 key)
{
	u32 una = tx->una, qp = mark->qp, psn;
	s32 ahead = psn_diff(mark_psn(mark), una);
	u64 why = nack_reason(mark);

	count(MRC_C_NACK_RX);
	capture_outcome(key, qp, MRC_C_NACK_RX);
	psn = una + ahead;
	if (!why || ahead < 0 || psn - una >= sent_up_to(tx) - una || tx_bit(tx, psn))
		return;
	out->due[0] = psn;
	out->found = 1;
	begin_resend(out, qp, now, now, why);
	tails.call(skb, TAIL_RESEND);
}
