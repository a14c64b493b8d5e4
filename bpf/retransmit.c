/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Retransmission: find which packets are lost, and send them again from the
 * ring on another path, with the skb of the SACK, the NACK or the clock as the
 * carrier.
 *
 * mrc_learn and mrc_tick list what counts as lost (find_lost); a NACK names its
 * packet. mrc_resend looks at each packet once more (recheck_loss), claims it
 * (claim_loss) and sends it (send_copy). loss.h has the rules.
 */

#define SCAN_MAX 80              /* rounds of the loop over words and holes in one program run */

/*
 * Look the packet up and apply the rules once more: it may have been sent again
 * since find_lost(). Returns 0, or -1 if it does not count as lost any more.
 */
static __always_inline int recheck_loss(u32 qp, u64 seen_ns, struct resending *r)
{
	struct mrc_tx_entry *entry = tx_entry_get(qp, r->psn);

	if (!entry || entry->psn != r->psn)
		return -1;
	r->entry = entry;
	r->sent_ns = entry->sent_ns;
	r->old_id = entry->path;
	r->path = path_get(qp, r->old_id);
	if (!r->path)
		return -1;
	r->why = lost_by(entry, r->path, r->tx, r->b, r->h, seen_ns, r->timeout_ns);
	return r->why ? 0 : -1;
}

/* Claim the packet, under the lock; as take_loss(). */
static __always_inline u32 claim_loss(struct resending *r, struct path_move *move)
{
	u32 mine, price = WHOLE_TURN;

	if (r->q->framing == MRC_FRAMING_CELL)
		price = turn_price(r->entry->len, r->h->cell_bytes);
	bpf_spin_lock(&r->tx->lock);
	mine = take_loss(r, price, move);
	bpf_spin_unlock(&r->tx->lock);
	return mine;
}

/* The next acknowledgement of a cell's packets must look at each of them. */
static __always_inline void part_cell(u32 slot)
{
	u32 index = slot & MRC_SLOT_INDEX;
	struct mrc_big *big;

	if (!(slot & MRC_SLOT_BIG))
		return;
	big = tx_cells.lookup(&index);
	if (big)
		big->resent = 1;
}

/* Write the headers of a cell of one packet that is sent again. Returns 0 or -1. */
static __always_inline int dress_again(struct __sk_buff *skb, const struct resending *r,
				       const struct route *route, u32 len, u32 stub)
{
	u32 attempt = r->entry->sends - 1, flags = r->ask ? MRC_CELL_ACKREQ : 0;
	struct cell c = { .len = len, .count = 1, .mss = stub * MRC_CELL_STUB };
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u8 next = IPPROTO_IPIP;

	if (data + CELL_OFF + 1 > end)
		return -1;
	if ((*(u8 *)(data + CELL_OFF) >> 4) == 6)
		next = IPPROTO_IPV6;
	if (attempt > 3)
		attempt = 3;
	__sync_fetch_and_add(&route->path->sent, 1);
	return put_cell(data, end, r->h, route->keys, route->pl, route->pp, route->path->ev,
			data_class(r->h, r->q, attempt), flags | attempt << MRC_CELL_ATTEMPT_SHIFT,
			r->q->remote_qpn, r->psn, &c, next);
}

/*
 * Is the packet longer than what gets through on its new path? What was sent before that was
 * known ends as a stub, and TCP sends its bytes again in shorter packets.
 */
static __always_inline u32 is_too_long(const struct resending *r, u32 id)
{
	u32 most = r->b->most[path_plane(id)];

	if (!most || r->entry->len <= most)
		return 0;
	count_atomic(MRC_C_DROP_TOO_LONG);
	return 1;
}

/*
 * Send the copy from the ring, or a stub if it is too old or too long, with the skb as the carrier and
 * `head` as memory for its headers.
 */
static __always_inline void send_copy(struct __sk_buff *skb, u32 qp, const struct resending *r,
				      u8 *head)
{
	u32 id = r->new_id & 0xffff, cell = CELLS && r->q->framing == MRC_FRAMING_CELL, stub;
	struct route route;
	struct copy_at c;
	s32 len;

	if (find_route(qp, r->q, id, &route) ||
	    open_copy(r->entry->slot, qp, r->psn, r->entry->len, head, 0, &c))
		return;
	stub = has_expired(&c, r->now) || is_too_long(r, id);
	if (stub)
		len = write_stub(skb, cell ? CELL_OFF : MRC_PAYLOAD_OFF, cell ? 0 : MRC_ICRC_LEN,
				 head, &c);
	else
		len = write_copy(skb, cell ? CELL_OFF : MRC_PAYLOAD_OFF, cell ? 0 : MRC_ICRC_LEN,
				 head, &c);
	if (len < 0)
		return;
	if (cell ? dress_again(skb, r, &route, len, stub) :
		   dress_data(skb, r->h, r->q, &route, r->psn, len,
			      (r->why == MRC_C_TX_PACKETS ? 0 : MRC_BTH_RTX) |
			      (r->ask ? MRC_BTH_ACKREQ : 0), r->now,
			      stub ? MRC_RKEY_STUB : MRC_RKEY_NETDEV))
		return;
	capture_skb(skb, skb->cb[0], path_plane(id), qp, r->q->peer, r->why);
	as_data(skb);
	bpf_clone_redirect(skb, route.pl->ifindex, 0);
}

/* Send a packet again if it counts as lost. */
static __always_inline void resend(struct __sk_buff *skb, u32 qp, u64 seen_ns, struct resending *r,
				   u8 *head)
{
	struct path_move move = {};

	if (recheck_loss(qp, seen_ns, r))
		return;
	if (r->b->narrow && r->entry->len > r->b->most_all && r->up & ~(u64)r->b->narrow)
		r->up &= ~(u64)r->b->narrow;
	FORGET(r->up, r->now);
	part_cell(r->entry->slot);
	if (!claim_loss(r, &move))
		return;
	if (r->blamed) {
		__sync_fetch_and_add(&r->path->lost, 1);
		r->b->lost[path_plane(r->old_id)]++;
	}
	count_atomic(r->why);
	report_move(qp, r->old_id, r->path, &move, r->cause, r->sent_ns, r->now);
	if (r->new_id != MRC_NO_PATH)
		send_copy(skb, qp, r, head);
	if (!r->deaf)
		return;
	/* Last, or the verifier would walk all of it once more. */
	count_atomic(MRC_C_PATH_DEAF);
	report_deaf(qp, r->old_id, r->path->ev, r->now);
}

/*
 * Find what counts as lost among the PSNs from `from` up to `to`, at most
 * RESEND_MAX packets, and list them in `out` for mrc_resend.
 */
static __always_inline void find_lost(const struct mrc_host *h, u32 qp, const struct mrc_tx *tx,
				      const struct mrc_balance *b, struct resend_args *out,
				      u64 seen_ns, u32 from, u32 to, u64 timeout_ns)
{
	struct mrc_tx_entry *entry;
	struct mrc_path *path;
	u32 i, word, psn, n;
	u64 holes = 0;

	out->found = 0;
	word = (from & ~63u) - 64;
	for (i = 0; i < SCAN_MAX; i++) {
		if (!holes) {
			word += 64;
			FORGET(word, seen_ns); /* or newer verifiers would walk on for each count of words */
			if ((s32)(word - to) >= 0)
				break;
			holes = ~tx->sacked[(word >> 6) & CFG_WORD_MASK] &
				range_mask(word, from, to);
			continue;
		}
		psn = word + lowest_bit(holes);
		holes &= holes - 1;
		entry = tx_entry_get(qp, psn);
		if (!entry || entry->psn != psn)
			continue;
		path = path_get(qp, entry->path);
		if (!path || !lost_by(entry, path, tx, b, h, seen_ns, timeout_ns))
			continue;
		n = out->found;
		out->due[n & (RESEND_MAX - 1)] = psn;
		out->found = n + 1;
		out->last = psn;
		if (n + 1 >= RESEND_MAX)
			break;
	}
}

/* Send the next packet that is due, then call itself for the one after, or go on. */
int mrc_resend(struct __sk_buff *skb)
{
	struct mrc_chain *chain = chain_get(skb->cb[0]);
	struct resending r = { .h = host_get() };
	struct resend_args *in;
	struct mrc_peer *peer;
	u32 qp, i;

	if (!chain || !r.h)
		return TC_ACT_SHOT;
	in = &chain->resend;
	qp = in->qp;
	i = in->done;
	in->done = i + 1;
	r.q = qps.lookup(&qp);
	r.tx = txs.lookup(&qp);
	if (!r.q || !r.tx || i >= RESEND_MAX)
		return TC_ACT_SHOT;
	peer = peer_get(r.q->peer);
	r.b = balance_get(r.q->peer);
	if (!peer || !r.b)
		return TC_ACT_SHOT;
	r.psn = in->due[i & (RESEND_MAX - 1)];
	r.now = in->now;
	r.timeout_ns = in->timeout_ns;
	r.up = usable_planes(r.h, peer, r.b);
	r.spare = spare_planes(r.h, peer);
	resend(skb, qp, in->seen_ns, &r, chain->head);
	return go_on(skb, chain);
}
