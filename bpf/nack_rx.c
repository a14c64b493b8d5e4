/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * NACKs, the sender's side: one packet that a switch trimmed or the receiver
 * refused goes on to retransmit.c.
 */

/*
 * Find the packet that a NACK asks for. Returns why to send it again, as
 * resend_due() takes it, or 0.
 */
static __always_inline u64 on_nack(const struct mrc_mark *mark, const struct mrc_tx *tx,
				   struct resend_args *out)
{
	u32 una = tx->una, psn;
	s32 ahead = psn_diff(mark_psn(mark), una);
	u64 why;

	switch (mark->ts) {
	case MRC_NACK_TRIMMED:
		why = NACKED;
		break;
	case MRC_NACK_TRIMMED_LASTHOP:
	case MRC_NACK_NO_PKT_BUFFER:
	case MRC_NACK_NO_RESOURCE:
		why = REFUSED;
		break;
	default:
		return 0;
	}
	psn = una + ahead;
	if (ahead < 0 || psn - una >= tx->next - una || tx_bit(tx, psn))
		return 0;
	out->due[0] = psn;
	out->found = 1;
	return why;
}
