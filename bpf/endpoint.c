/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Endpoint packets: packets for QP 2, which belong to a host and to none of its
 * QPs. Part of mrc_receive.
 *
 *   request, EV probe             answered here, on the EV it came by
 *   request, Port Status Update   followed if it is news, answered here
 *   response                      the daemon's: the stack hands it to a UDP socket
 *
 * An EV probe from our own address is a survey probe that the fabric gave back
 * (survey.c). No QP vouches for the sender, so its address must be the one that
 * a configured peer has on this plane.
 */

#define PORT_ID_KNOWN (1ull << 16)   /* in .port_id, beside the id's 16 bits */
#define PORT_MASK_AT 24           /* in .port_id: the mask that came with the id */
#define PORT_TRIES 4

/*
 * A peer reports which of its planes take packets. Updates may overtake each
 * other, so one counts only if its id is newer than the last one that counted.
 *
 * Two CPUs may be here at once for one peer. Id and mask go into one word by
 * compare-and-swap. The CPU that copied the mask into .ports then checks that
 * the word is still the one it copied from, so the newest is copied last.
 * Returns 1 if the update was news.
 */
static __always_inline int follow_ports(struct mrc_balance *b, u32 id, u32 mask)
{
	u64 said = (u64)mask << PORT_MASK_AT | PORT_ID_KNOWN | id, old;
	u32 i;

	#pragma unroll
	for (i = 0; i < PORT_TRIES; i++) {
		old = b->port_id;
		if ((old & PORT_ID_KNOWN) && (s16)(id - (u32)old) <= 0)
			return 0;
		if (__sync_val_compare_and_swap(&b->port_id, old, said) == old)
			break;
	}
	if (i == PORT_TRIES)
		return 0;
	#pragma unroll
	for (i = 0; i < PORT_TRIES; i++) {
		old = b->port_id;
		b->ports = old >> PORT_MASK_AT & 0xff;
		b->heard_ports = old >> PORT_MASK_AT & 0xff;
		barrier();
		if (b->port_id == old)
			break;
	}
	return 1;
}

/* Turn the request round: an EETH on the same EV, with the time stamp reflected. */
static __always_inline int endpoint_answer(struct hook_ctx *ctx, const struct mrc_host *h,
					   const struct mrc_plane *pl,
					   const struct mrc_peer_plane *pp, u32 ev, u32 op, u32 id,
					   u32 peer, u32 why)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_erth *erth = data + MRC_BODY_OFF;
	struct mrc_keys *k = peer_keys.lookup(&peer);
	__be16 stamp;

	if (!k || data + MRC_BODY_OFF + MRC_ERTH_LEN > end)
		return drop(MRC_C_DROP_SHORT);
	stamp = erth->tx_timestamp;
	if (hook_resize(ctx, MRC_ENDPOINT_RSP_FRAME_LEN))
		return drop(MRC_C_DROP_SKB);
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	if (put_headers(data, end, h, pl, pp, ev, control_class(h), MRC_ENDPOINT_RSP_BODY,
			MRC_OP_ENDPOINT_RSP, tx_phase(k), MRC_QPN_ENDPOINT, id) ||
	    put_endpoint_response(data, end, tx_key(k, data), op, stamp))
		return drop(MRC_C_DROP_SKB);
	capture_answer(ctx, ev_plane(ev), MRC_CAPTURE_NONE, peer, why);
	return SAYS(hook_send(ctx, pl->ifindex), why);
}

/* Count what an endpoint request asks for, and follow it. Returns the counter. */
static __always_inline u32 endpoint_request(struct mrc_balance *b, u32 op, u32 id, u32 ports)
{
	u32 which = MRC_C_PORTS_STALE;

	if (op == MRC_ENDPOINT_EV_PROBE)
		which = MRC_C_EV_PROBE_RX;
	else if (follow_ports(b, id, ports))
		which = MRC_C_PORTS_RX;
	count(which);
	return which;
}

/* Does an endpoint packet have the tag of that peer? */
static __always_inline int has_endpoint_tag(void *data, void *end, const struct mrc_host *h,
					    u32 peer, const struct mrc_bth *bth)
{
	struct mrc_keys *k = peer_keys.lookup(&peer);
	const u64 *key;

	if (!k)
		return 0;
	key = rx_key(h, k, bth->aux & MRC_BTH_PHASE);
	if (!key)
		return 0;
	if (bth->opcode == MRC_OP_ENDPOINT_REQ)
		return has_tag(data, key, MRC_ERTH_LEN);
	return data + MRC_ENDPOINT_RSP_FRAME_LEN <= end && has_tag(data, key, MRC_EETH_LEN);
}

/*
 * A packet for QP 2; mrc_receive has checked its addresses, lengths and
 * headers. A request may have anything in its EV below the plane, and is answered on
 * that EV. Responses are those to our requests, whose EVs are paths of ours.
 */
static __always_inline int on_endpoint(struct hook_ctx *ctx, const struct mrc_host *h,
				       const struct mrc_plane *pl, u32 plane, u32 ev)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_bth *bth = data + MRC_BTH_OFF;
	struct mrc_erth *erth = data + MRC_BODY_OFF;
	struct mrc_peer_plane *pp;
	struct mrc_balance *b;
	struct mrc_source key;
	struct mrc_peer *known;
	u32 *peer, op, id, why;

	if (data + MRC_ENDPOINT_REQ_FRAME_LEN > end)
		return drop(MRC_C_DROP_SHORT);
	if (bth->opcode == MRC_OP_ENDPOINT_REQ && envelope_is_from(data, pl->addr))
		return ev_plane(ev) != plane ? drop(MRC_C_DROP_ENTROPY) :
					       survey_returned(ctx, h, plane, ev, bth_psn(bth));
	envelope_source(data, key.addr);
	peer = sources.lookup(&key);
	if (!peer)
		return drop(MRC_C_DROP_STRANGER);
	pp = peer_plane_get(*peer, plane);
	b = balance_get(*peer);
	known = peer_get(*peer);
	if (!b || !pp || !known || !envelope_is_from(data, pp->addr))
		return drop(MRC_C_DROP_STRANGER);
	if (our_plane(known, ev_plane(ev)) != plane)
		return drop(MRC_C_DROP_ENTROPY);
	if (bth->opcode != MRC_OP_ENDPOINT_REQ && bth->opcode != MRC_OP_ENDPOINT_RSP)
		return drop(MRC_C_DROP_OPCODE);
	if (!has_endpoint_tag(data, end, h, *peer, bth))
		return drop(MRC_C_DROP_TAG);
	if (bth->opcode == MRC_OP_ENDPOINT_RSP)
		return ev & 0xffff ? drop(MRC_C_DROP_ENTROPY) :
				     to_stack(ctx, pl, MRC_C_ENDPOINT_RX);
	if (bth->opcode != MRC_OP_ENDPOINT_REQ)
		return drop(MRC_C_DROP_OPCODE);
	op = bpf_ntohs(erth->head) & MRC_ERTH_OP;
	id = bpf_ntohs(bth->psn_lo);
	if (op != MRC_ENDPOINT_EV_PROBE && op != MRC_ENDPOINT_PORT_STATUS)
		return drop(MRC_C_DROP_OPCODE);
	why = endpoint_request(b, op, id, our_planes(known, bpf_ntohl(erth->port_status_mask)));
	return endpoint_answer(ctx, h, pl, pp, ev_on(plane, ev), op, id, *peer, why);
}
