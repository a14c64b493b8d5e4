/* SPDX-License-Identifier: GPL-2.0-only */
/* The clock's judgement of a peer's planes; share.h has its rules. */

/* Judge the planes of the next active QP's peer, if it is time. */
int mrc_judge(struct __sk_buff *skb)
{
	u32 zero = 0, qp;
	struct judge_state *j = judge_states.lookup(&zero);
	struct mrc_clock *ck = clock.lookup(&zero);
	struct mrc_host *h = host_get();
	struct mrc_balance *b;
	struct mrc_peer *peer;
	struct mrc_qp *q;
	u64 now, due;
	s32 found;

	if (!ck || !h || !j)
		return 0;
	found = next_active(&ck->judge_cursor);
	if (found < 0)
		return 0;
	qp = found;
	q = qps.lookup(&qp);
	if (!q)
		return 0;
	peer = peer_get(q->peer);
	b = balance_get(q->peer);
	if (!peer || !b)
		return 0;
	now = bpf_ktime_get_ns();
	due = b->judge_at_ns;
	if (now < due ||
	    __sync_val_compare_and_swap(&b->judge_at_ns, due, now + h->judge_ns) != due)
		return 0;
	judge(b, j, usable_planes(h, peer, b), h, now);
	return 0;
}
