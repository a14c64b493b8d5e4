/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SACKs, the receiver's side: what they say and how they leave.
 */
#ifndef MRC_SACK_H
#define MRC_SACK_H

/*
 * Describe the window from PSN `base` (next <= base < high) on. The window is
 * twice the MPR, so the 64 bits never reach round to its beginning. Call with
 * the lock of rx held.
 */
static __always_inline void sack_from_rx(const struct mrc_rx *rx, u32 base, struct sack_body *s)
{
	u32 word = (base >> 6) & CFG_WORD_MASK, shift = base & 63;

	s->cack = rx->next - 1;
	s->sack_off = base - s->cack;
	s->bitmap = rx->received[word] >> shift;
	if (shift)
		s->bitmap |= rx->received[(word + 1) & CFG_WORD_MASK] << (64 - shift);
	s->ooo = rx->waiting;
	s->bytes = rx->bytes;
}

/*
 * Where the next SACK's 64 bits begin. A window wider than that is told slice
 * by slice in turn, so every PSN is reported again and again; the sender takes
 * only what is reported missing for missing. Call with the lock of rx held.
 */
static __always_inline u32 next_slice(struct mrc_rx *rx)
{
	u32 span = rx->high - rx->next, base = rx->next;

	if (span > MRC_SACK_BITS)
		base += (rx->slice * MRC_SACK_BITS) % ((span + 63) & ~63u);
	rx->slice++;
	return base;
}

/*
 * Make the skb a SACK that returns on the path `ev`, mirrored: the path a
 * packet has just come by is the best known way back. The caller redirects it
 * to the plane's interface, which is returned; 0 on failure.
 */
static __always_inline u32 write_sack(struct __sk_buff *skb, const struct mrc_host *h,
				      const struct mrc_qp *q, const struct sack_body *sack)
{
	u32 plane = sack->ev >> MRC_EV_PLANE_SHIFT;
	struct mrc_plane *pl = planes.lookup(&plane);
	struct mrc_peer_plane *pp = peer_plane_get(q->peer, plane);
	void *data, *end;

	if (!pl || !pp || bpf_skb_change_tail(skb, MRC_SACK_FRAME_LEN, 0))
		return 0;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_headers(data, end, h, pl, pp, sack->ev, MRC_SETH_LEN + MRC_CC_STATE_LEN,
			MRC_OP_SACK, 0, q->remote_qpn, 0) ||
	    put_sack(data, end, sack))
		return 0;
	return pl->ifindex;
}

#endif
