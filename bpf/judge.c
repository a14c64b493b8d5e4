/* SPDX-License-Identifier: GPL-2.0-only */
/* The clock's judgement of a peer's planes; share.h has its rules. */

/* Judge the planes of a peer, unless another CPU has just done so. */
static __always_inline void judge_peer(u32 index, u64 now)
{
	u32 zero = 0;
	struct judge_state *j = judge_states.lookup(&zero);
	struct mrc_balance *b = balance_get(index);
	struct mrc_peer *peer = peer_get(index);
	struct mrc_host *h = host_get();
	u64 due, usable;

	if (!h || !j || !b || !peer)
		return;
	due = b->judge_at_ns;
	if (now < due ||
	    __sync_val_compare_and_swap(&b->judge_at_ns, due, now + h->judge_ns) != due)
		return;
	usable = compared_planes(b, usable_planes(h, peer, b), spare_planes(h, peer), now);
	judge(b, j, usable, h, peer->weights, now);
}

/* Judge the last of the peers that mrc_beat has listed, then call itself for the others. The beat goes on. */
int mrc_judge(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(CHAIN_CLOCK);
	struct beat_args *in;
	u32 n;

	if (!chain)
		return TC_ACT_SHOT;
	in = &chain->beat;
	n = in->judging - 1;
	if (n < JUDGED_MOST) {
		in->judging = n;
		judge_peer(in->due[n & (JUDGED_MOST - 1)], in->now);
		if (n)
			tails.call(skb, TAIL_JUDGE);
	}
	return beat_on(in);
}
