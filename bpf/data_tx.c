/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Data packets on their way out, the first time (spray.c) and again
 * (retransmit.c): where a path leads, and the headers around the payload.
 */

/*
 * Data have one priority, whatever their application chose, or the packet that carries them
 * had: by priority packets overtake others, but a path keeps order.
 */
static __always_inline void as_data(struct __sk_buff *skb)
{
	skb->priority = 0;
}

/* Where a path leads. */
struct route {
	struct mrc_path *path;
	struct mrc_plane *pl;
	struct mrc_peer_plane *pp;
	struct mrc_keys *keys;
};

/* Look up a path's route. Returns 0, or -1 if the daemon took any of it away. */
static __always_inline int find_route(u32 qp, const struct mrc_qp *q, u32 id, struct route *r)
{
	u32 plane = path_plane(id);

	r->path = path_get(qp, id);
	r->pl = planes.lookup(&plane);
	r->pp = peer_plane_get(q->peer, plane);
	r->keys = keys.lookup(&qp);
	return r->path && r->pl && r->pp && r->keys ? 0 : -1;
}

/* Write headers and the ICRC word around `len` bytes of payload for a region, MRC_RKEY_.... Returns 0 or -1. */
static __always_inline int dress_data(struct __sk_buff *skb, const struct mrc_host *h,
				      const struct mrc_qp *q, const struct route *r, u32 psn,
				      u64 len, u32 aux, u64 now, u32 rkey)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	__be32 check;

	if (put_headers(data, end, h, r->pl, r->pp, r->path->ev, data_class(h, q, aux & MRC_BTH_RTX),
			MRC_WRITE_LEN + len, MRC_OP_WRITE_ONLY, aux | tx_phase(r->keys),
			q->remote_qpn, psn) ||
	    put_write(data, end, r->keys, psn, len, now, rkey))
		return -1;
	check = header_check(data, MRC_WRITE_LEN);
	if (bpf_skb_store_bytes(skb, MRC_PAYLOAD_OFF + len, &check, sizeof(check), 0))
		return -1;
	__sync_fetch_and_add(&r->path->sent, 1);
	return 0;
}
