/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Redundant packets (redundant.h): what the operator names, and the second sending. The first
 * is written as any other, and this program sends a clone of it before it writes the headers
 * of the other plane over its own.
 */

/* Is this a single packet that the operator names? Fragments are named by their DSCP only. */
static __always_inline u32 is_redundant(struct __sk_buff *skb, const struct mrc_host *h)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u32 l4 = MRC_IP6_LEN, proto, dscp, whole = 1;
	u8 *ip = data + MRC_ETH_LEN;
	__be16 ports[2];

	if (!h->redundant || skb->gso_size || data + MRC_ETH_LEN + MRC_IP4_LEN > end)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		l4 = (ip[0] & 15) * 4;
		proto = ip[9];
		dscp = ip[1] >> 2;
		whole = !(*(__be16 *)(ip + 6) & bpf_htons(MRC_IP4_FRAGMENT));
	} else {
		proto = ip[6];
		dscp = (ip[0] & 15) << 2 | ip[1] >> 6;
	}
	if (names_dscp(h, dscp))
		return 1;
	return proto == IPPROTO_UDP && whole &&
	       !bpf_skb_load_bytes(skb, MRC_ETH_LEN + l4, ports, sizeof(ports)) &&
	       names_port(h, ports[0], ports[1]);
}

/* Write the headers of a packet over those of its first sending. Returns 0 or -1. */
static __always_inline int dress_second(struct __sk_buff *skb, const struct mrc_host *h,
					const struct mrc_qp *q, const struct route *r, u32 psn)
{
	struct cell c = { .count = 1, .len = skb->len - CELL_OFF };
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	u8 next = IPPROTO_IPIP;

	if (!CELLS || q->framing != MRC_FRAMING_CELL)
		return dress_data(skb, h, q, r, psn, skb->len - MRC_PAYLOAD_OFF - MRC_ICRC_LEN,
				  MRC_BTH_ACKREQ, bpf_ktime_get_ns(), MRC_RKEY_NETDEV);
	if (data + CELL_OFF + 1 > end)
		return -1;
	if ((*(u8 *)(data + CELL_OFF) >> 4) == 6)
		next = IPPROTO_IPV6;
	__sync_fetch_and_add(&r->path->sent, 1);
	return put_cell(data, end, h, r->keys, r->pl, r->pp, r->path->ev, data_class(h, q, 0),
			MRC_CELL_ACKREQ, q->remote_qpn, psn, &c, next);
}

/* Pick the path of the second sending, under the lock; as pick_second(). */
static __always_inline u32 choose_second(const struct mrc_host *h, const struct mrc_qp *q, u32 qp,
					 u32 psn, u32 len)
{
	u32 id, price = WHOLE_TURN;
	struct mrc_tx_entry *entry = tx_entry_get(qp, psn);
	struct mrc_balance *b = balance_get(q->peer);
	struct mrc_peer *peer = peer_get(q->peer);
	struct mrc_tx *tx = txs.lookup(&qp);
	u64 up, spare;

	if (!entry || !b || !peer || !tx)
		return MRC_NO_PATH;
	up = usable_planes(h, peer, b);
	spare = spare_planes(h, peer);
	if (q->framing == MRC_FRAMING_CELL)
		price = turn_price(len, h->cell_bytes);
	bpf_spin_lock(&tx->lock);
	id = pick_second(tx, entry, psn, up, spare, b->turns, price);
	bpf_spin_unlock(&tx->lock);
	return id;
}

/* Send a packet that has been written for one plane, then once more by another one. */
int mrc_redundant(struct __sk_buff *skb)
{
	u32 qp = skb->cb[1], psn = skb->cb[2], plane = path_plane(skb->cb[3]), id;
	struct mrc_plane *pl = planes.lookup(&plane);
	struct mrc_qp *q = qps.lookup(&qp);
	struct mrc_host *h = host_get();
	struct route r;

	if (!h || !q || !pl)
		return TC_ACT_SHOT;
	id = choose_second(h, q, qp, psn, skb->len);
	if (id == MRC_NO_PATH)
		return to_plane(skb, pl);
	as_data(skb);
	bpf_clone_redirect(skb, pl->ifindex, 0);
	if (find_route(qp, q, id, &r) || dress_second(skb, h, q, &r, psn))
		return TC_ACT_SHOT;
	count(MRC_C_TX_REDUNDANT);
	capture_skb(skb, RECORD_PACKET, path_plane(id), qp, q->peer, MRC_C_TX_REDUNDANT);
	return to_plane(skb, r.pl);
}
