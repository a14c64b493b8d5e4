/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spray: an IP packet that an application sent to mrc0 becomes an MRC data
 * packet on the next path. Runs at tc ingress of mrc0's other end, one packet
 * of at most the MTU at a time, all packets of a flow on one CPU.
 */
/* The peer that owns the inner destination, by longest prefix: the address itself is longest. */
static __always_inline u32 *find_peer(struct __sk_buff *skb)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_prefix key = { .bits = 128 };
	struct mrc_address exact;
	u32 *peer;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (data + MRC_ETH_LEN + 20 > end)
			return 0;
		key.addr[2] = bpf_htonl(0xffff);
		key.addr[3] = *(__be32 *)(data + MRC_ETH_LEN + 16);
	} else {
		if (data + MRC_ETH_LEN + MRC_IP6_LEN > end)
			return 0;
		copy_addr(key.addr, data + MRC_ETH_LEN + 24);
	}
	__builtin_memcpy(exact.addr, key.addr, sizeof(exact.addr));
	peer = addresses.lookup(&exact);
	return peer ? peer : prefixes.lookup(&key);
}

static __always_inline int spray_drop(u32 why)
{
	count(why);
	return TC_ACT_SHOT;
}

/* A packet that got a slot but cannot be sent gives it back. */
static __always_inline int spray_undo(u32 slot, u32 why)
{
	tx_free.push(&slot, 0);
	return spray_drop(why);
}

int mrc_spray(struct __sk_buff *skb)
{
	u32 qp, plane, slot, psn, id, aux;
	struct mrc_peer_plane *pp;
	struct mrc_tx_entry *entry;
	struct mrc_host *h;
	struct mrc_plane *pl;
	struct mrc_slot *buf;
	struct mrc_path *path;
	struct mrc_balance *b;
	struct mrc_peer *peer;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now, planes_up, n;
	u32 *peer_index;
	void *data, *end;
	__be32 check;
	int full;

	/* who */
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return spray_drop(MRC_C_DROP_NOT_IP);
	if (skb->len > MRC_ETH_LEN + CFG_MTU)
		return spray_drop(MRC_C_DROP_TOO_BIG);
	peer_index = find_peer(skb);
	h = host_get();
	if (!peer_index || !h)
		return spray_drop(MRC_C_DROP_NO_PEER);
	peer = peer_get(*peer_index);
	b = balance_get(*peer_index);
	if (!peer || !b)
		return spray_drop(MRC_C_DROP_NO_PEER);
	qp = peer->qp_base + (bpf_get_hash_recalc(skb) & peer->qp_mask);
	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!q || !tx || q->state != MRC_QP_READY)
		return spray_drop(MRC_C_DROP_NOT_READY);
	if (!(b->ports & 0xff))  /* it said so itself: nothing more is meant to arrive */
		return spray_drop(MRC_C_DROP_NO_PLANE);
	if (tx->next - tx->una >= q->mpr)
		return spray_drop(MRC_C_DROP_WINDOW);
	if (signal_queue(skb, h, tx, b) == QUEUE_DROP)
		return spray_drop(MRC_C_DROP_EARLY);

	/* keep a copy */
	if (tx_free.pop(&slot))
		return spray_drop(MRC_C_DROP_RING);
	buf = tx_ring.lookup(&slot);
	if (!buf)
		return spray_drop(MRC_C_DROP_RING);
	buf->tag = ~0ull;
	barrier();
	n = skb->len - MRC_ETH_LEN;
	if (!LEN_OK(n))
		return spray_undo(slot, MRC_C_DROP_TOO_BIG);
	if (bpf_skb_load_bytes(skb, MRC_ETH_LEN, buf->data, n))
		return spray_undo(slot, MRC_C_DROP_SKB);

	/* take a PSN and a path */
	now = bpf_ktime_get_ns();
	planes_up = usable_planes(h, peer, b);
	bpf_spin_lock(&tx->lock);
	psn = tx->next;
	full = psn - tx->una >= q->mpr;
	id = MRC_NO_PATH;
	if (!full)
		id = pick_path(tx, planes_up, planes_up, b->shares);
	if (id != MRC_NO_PATH) {
		tx->next = psn + 1;
		tx->packets++;
		if (psn == tx->una)
			tx->progress_ns = now;
	}
	bpf_spin_unlock(&tx->lock);
	if (full)
		return spray_undo(slot, MRC_C_DROP_WINDOW);
	if (id == MRC_NO_PATH)
		return spray_undo(slot, MRC_C_DROP_NO_PATH);
	/* Few packets take a slow path: each is to say whether it still is. */
	aux = id & PATH_SLOW ? MRC_BTH_ACKREQ : 0;
	id &= 0xffff;

	/* write down what was sent where; the PSN last, it makes the entry valid */
	entry = tx_entry_get(qp, psn);
	if (!entry)
		return TC_ACT_SHOT;
	entry->sent_ns = now;
	entry->slot = slot;
	entry->len = n;
	entry->path = id;
	entry->sends = 1;
	entry->rule = 0;
	barrier();
	entry->psn = psn;
	buf->tag = (u64)qp << 32 | psn;
	watch(qp);

	/* dress and send; what fails from here on is found missing and sent again */
	plane = path_plane(id);
	path = path_get(qp, id);
	pl = planes.lookup(&plane);
	pp = peer_plane_get(q->peer, plane);
	if (!path || !pl || !pp)
		return spray_drop(MRC_C_DROP_STATE);
	if (bpf_skb_change_tail(skb, skb->len + MRC_ICRC_LEN, 0) ||
	    bpf_skb_change_head(skb, MRC_STRIP, 0))
		return spray_drop(MRC_C_DROP_SKB);
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (put_headers(data, end, h, pl, pp, path->ev, MRC_WRITE_LEN + n,
			MRC_OP_WRITE_ONLY, aux, q->remote_qpn, psn) ||
	    put_write(data, end, psn, n, now))
		return spray_drop(MRC_C_DROP_SKB);
	check = header_check(data, MRC_WRITE_LEN);
	if (bpf_skb_store_bytes(skb, MRC_PAYLOAD_OFF + n, &check, sizeof(check), 0))
		return spray_drop(MRC_C_DROP_SKB);
	__sync_fetch_and_add(&path->sent, 1);
	count(MRC_C_TX_PACKETS);
	count_by(MRC_C_TX_BYTES, n);
	capture_skb(skb, plane, qp, q->peer, MRC_C_TX_PACKETS);
	return bpf_redirect(pl->ifindex, 0);
}
