/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Plane receive: the first program on each plane NIC, at XDP or at tc (hook.h).
 * It makes the cheapest checks first, takes the MRC headers off data packets, and
 * answers probes and trimmed packets. A mark over the Ethernet addresses tells
 * mrc_deliver what it found. The only connection state that it changes is that of
 * paths (answered probes): a packet that it passes on is not yet received.
 *
 * Cells are mrc_cell's: they pass untouched to the first program at tc, because
 * native XDP sees single packets, which GRO puts together behind it.
 *
 * Packets that are not addressed to one of our SIDs (in ecmp modes: to one of
 * our ports on this plane) belong to the ordinary stack and pass untouched.
 */

#define HEADERS MRC_SACK_FRAME_LEN /* all that is read of a packet, but for the ICRC word of data */

_Static_assert(HEADERS >= MRC_PAYLOAD_OFF + 20 && HEADERS >= MRC_ENDPOINT_RSP_FRAME_LEN,
	       "no other packet has more headers, the inner one counted");

/* What is known of a packet so far. */
struct packet {
	struct mrc_plane *pl;    /* where it came in ... */
	struct mrc_peer_plane *pp; /* ... and the sender's end of that plane */
	struct mrc_qp *q;
	struct mrc_keys *k;
	u32 plane;
	u32 qp;
	u32 psn;                 /* 24 bits */
	u32 ev;
	u32 ts;                  /* time stamp, 16 bits */
	u32 flags;               /* of struct mrc_mark */
	u32 udp_len;             /* as the UDP header has it */
	u32 body;                /* bytes between BTH and the ICRC word */
	u32 tclass;              /* DSCP and ECN */
	u32 trimmed;             /* MRC_NACK_TRIMMED...: where a switch cut it down to its headers; 0: none did */
	u32 opcode;
};

/* Hand a packet to mrc_deliver with what is known about it. */
static __always_inline int hand_over(struct hook_ctx *ctx, const struct packet *pkt,
					   __be16 proto)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_mark *mark = data;
	struct ethhdr *eth = data;

	if (data + sizeof(*eth) > end)
		return drop(MRC_C_DROP_SKB);
	mark->ev_hi = pkt->ev >> 16;
	mark->ts = pkt->ts;
	mark->qp = pkt->qp;
	mark->magic0 = MRC_MARK_MAGIC0;
	mark->magic1 = MRC_MARK_MAGIC1;
	mark->flags = pkt->flags;
	mark->psn_hi = pkt->psn >> 16;
	mark->psn_lo = pkt->psn;
	*eth_proto(data) = proto;
	return SAYS(HOOK_DELIVER, MRC_CAPTURE_PASSED);
}

/* Data: read TSETH, check RETH and the payload, strip, pass on. */
static __always_inline int receive_data(struct hook_ctx *ctx, struct packet *pkt)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_tseth *ts = data + MRC_BODY_OFF + MRC_METH_LEN;
	struct mrc_reth *reth = data + MRC_BODY_OFF + MRC_METH_LEN + MRC_TSETH_LEN;
	__be16 proto;
	__u8 *ip;
	u32 len;

	if (data + MRC_PAYLOAD_OFF + 20 > end)
		return drop(MRC_C_DROP_SHORT);
	if (reth->rkey == bpf_htonl(MRC_RKEY_STUB))
		pkt->flags |= MRC_MARK_STUB;
	else if (reth->rkey != bpf_htonl(MRC_RKEY_NETDEV))
		return drop(MRC_C_DROP_RKEY);
	len = pkt->body - MRC_WRITE_LEN;
	if (reth->length != bpf_htonl(len) || len > CFG_MTU)
		return drop(MRC_C_DROP_LENGTH);
	pkt->ts = bpf_ntohs(ts->tx_timestamp);
	ip = data + MRC_PAYLOAD_OFF;
	if ((ip[0] >> 4) == 4) {
		if ((ip[0] & 15) < 5 || *(__be16 *)(ip + 2) != bpf_htons(len))
			return drop(MRC_C_DROP_INNER);
		proto = bpf_htons(ETH_P_IP);
	} else if ((ip[0] >> 4) == 6) {
		if (len < MRC_IP6_LEN || *(__be16 *)(ip + 4) != bpf_htons(len - MRC_IP6_LEN))
			return drop(MRC_C_DROP_INNER);
		proto = bpf_htons(ETH_P_IPV6);
	} else {
		return drop(MRC_C_DROP_INNER);
	}
	/* mrc_deliver cuts the ICRC word off, which ties its record of a capture to ours. */
	if (hook_strip(ctx, MRC_STRIP, proto))
		return drop(MRC_C_DROP_SKB);
	return hand_over(ctx, pkt, proto);
}

/*
 * A switch has cut a data packet down to its headers: turn it round as a NACK
 * on the same path, so that the sender need not wait for evidence.
 */
static __always_inline int receive_trimmed(struct hook_ctx *ctx, const struct mrc_host *h,
				       const struct packet *pkt)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_tseth *tseth = data + MRC_BODY_OFF + MRC_METH_LEN;
	u32 qp = pkt->qp, ev = pkt->ev, psn = pkt->psn, ts, why, back = ev_on(pkt->plane, ev);
	struct mrc_rx *rx = rxs.lookup(&qp);

	if (!rx)
		return drop(MRC_C_DROP_QPN);
	if (data + MRC_BODY_OFF + MRC_METH_LEN + MRC_TSETH_LEN > end)
		return drop(MRC_C_DROP_SHORT);
	ts = bpf_ntohs(tseth->tx_timestamp);
	why = not_missing(rx, psn);
	if (why)
		return drop(why);
	if (hook_resize(ctx, MRC_NACK_FRAME_LEN))
		return drop(MRC_C_DROP_SKB);
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	if (put_nack_frame(data, end, h, pkt->q, pkt->k, pkt->pl, pkt->pp, back,
			   next_count(qp, back), pkt->trimmed, psn, ev, ts))
		return drop(MRC_C_DROP_SKB);
	count_trimmed(pkt->trimmed);
	capture_answer(ctx, pkt->plane, qp, pkt->q->peer, MRC_C_NACK_TX);
	return SAYS(hook_send(ctx, pkt->pl->ifindex), MRC_C_NACK_TX);
}

/* A NACK is handed over as it is; the mark holds its PSN and reason. */
static __always_inline int receive_nack(struct hook_ctx *ctx, struct packet *pkt)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_neth *neth = data + MRC_BODY_OFF;

	if (data + MRC_NACK_FRAME_LEN > end)
		return drop(MRC_C_DROP_LENGTH);
	pkt->ev = bpf_ntohl(neth->entropy);
	if (pkt->ev & 0xffff)
		return drop(MRC_C_DROP_ENTROPY);
	pkt->psn = bpf_ntohl(neth->psn) & MRC_PSN_MASK;
	pkt->ts = neth->reason;
	pkt->flags = MRC_MARK_NACK;
	return hand_over(ctx, pkt, MRC_ETH_PROTO);
}

/* What a SACK says that answers a probe. */
static __always_inline void describe_probe(const struct mrc_host *h, struct mrc_rx *rx,
					   const struct mrc_peth *peth, const struct packet *pkt,
					   struct sack_body *sack)
{
	sack->m = pkt->flags & MRC_MARK_CE ? MRC_SETH_M_SKIP_ONCE : MRC_SETH_M_NONE;
	sack->down = planes_down(h);
	sack->ack_off = bpf_ntohs(peth->probe_id);
	sack->pr = 1;
	sack->ev = pkt->ev;
	sack->ts = bpf_ntohs(peth->tx_timestamp);
	sack->cc_flags = MRC_CC_FLAG_DELAYED;
	bpf_spin_lock(&rx->lock);
	sack_from_rx(rx, rx->next, sack);
	bpf_spin_unlock(&rx->lock);
}

/* A probe is turned round as a SACK that describes our window, on the best way back. */
static __always_inline int answer_probe(struct hook_ctx *ctx, const struct mrc_host *h,
					const struct packet *pkt)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_peth *peth = data + MRC_BODY_OFF;
	struct sack_body sack = {};
	u32 qp = pkt->qp, back, plane;
	struct mrc_peer_plane *pp;
	struct mrc_plane *pl;
	struct mrc_rx *rx;
	struct mrc_tx *tx;

	if (data + MRC_PROBE_FRAME_LEN > end)
		return drop(MRC_C_DROP_LENGTH);
	rx = rxs.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!rx || !tx)
		return drop(MRC_C_DROP_QPN);
	describe_probe(h, rx, peth, pkt, &sack);
	grant_window(pkt->q, rx, &sack);
	if (hook_resize(ctx, MRC_SACK_FRAME_LEN))
		return drop(MRC_C_DROP_SKB);
	/* Always the mirrored path or, if that plane does not work for us, another one:
	 * the answer shows that the way here works, whichever way back it takes. */
	back = way_back(qp, h, pkt->q, tx, pkt->ev, 1);
	plane = ev_plane(back);
	pl = planes.lookup(&plane);
	pp = peer_plane_get(pkt->q->peer, plane);
	if (!pl || !pp)
		return drop(MRC_C_DROP_ENTROPY);
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	if (put_headers(data, end, h, pl, pp, back, control_class(h), MRC_SACK_BODY, MRC_OP_SACK,
			tx_phase(pkt->k), pkt->q->remote_qpn, 0) ||
	    put_sack(data, end, pkt->k, next_count(qp, back), &sack))
		return drop(MRC_C_DROP_SKB);
	count(MRC_C_PROBE_RX);
	capture_answer(ctx, plane, qp, pkt->q->peer, MRC_C_PROBE_RX);
	return SAYS(hook_send(ctx, pl->ifindex), MRC_C_PROBE_RX);
}

/* A probe asks after its path, or for a SACK that mrc_deliver sends. */
static __always_inline int receive_probe(struct hook_ctx *ctx, const struct mrc_host *h,
					 struct packet *pkt)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_peth *peth = data + MRC_BODY_OFF;

	if (data + MRC_PROBE_FRAME_LEN > end)
		return drop(MRC_C_DROP_LENGTH);
	if (peth->vendor != MRC_PETH_SOLICIT)
		return answer_probe(ctx, h, pkt);
	pkt->ts = bpf_ntohs(peth->tx_timestamp);
	pkt->flags = MRC_MARK_SOLICIT;
	return hand_over(ctx, pkt, MRC_ETH_PROTO);
}

/* Is a plane to a peer a spare one? A shorter way by it is not that of data, which would seem to queue. */
static __always_inline u32 is_spare(u32 peer_index, u32 plane)
{
	struct mrc_peer *peer = peer_get(peer_index);
	struct mrc_host *h = host_get();

	return h && peer && (spare_planes(h, peer) >> (plane & 7) & 1);
}

/* Note how far the peer is by a plane. */
static __always_inline void note_near(struct mrc_balance *b, u32 plane, u32 rtt, u64 now)
{
	u32 p = plane & (MRC_MAX_PLANES - 1), part = now >> MRC_NEAR_SHIFT, past = part - b->near_at[p];

	if (past) {
		b->near_before_ns[p] = past == 1 ? b->near_ns[p] : 0;
		b->near_ns[p] = rtt;
		b->near_at[p] = part;
	} else if (rtt < b->near_ns[p]) {
		b->near_ns[p] = rtt;
	}
}

/*
 * The answer to one of our probes: the path works. It does as well if the answer comes late, and
 * the time-outs of its next probes are longer then.
 */
static __always_inline int receive_probe_reply(const struct packet *pkt, u32 probe_id, u32 marked)
{
	u32 id = path_id(ev_plane(pkt->ev) & 7, probe_id >> PROBE_SLOT_SHIFT & SLOT_MASK);
	u32 qp = pkt->qp, rtt, past, late;
	struct path_move move = {};
	struct mrc_balance *b;
	struct mrc_path *path;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now;

	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	path = path_get(qp, id);
	if (!q || !tx || !path || path->ev != pkt->ev ||
	    !(tx->all[slot_word(id)] & slot_bit(id)))
		return drop(MRC_C_DROP_ENTROPY);
	past = (path->probe_id - probe_id) & PROBE_SEQ_MASK; /* probes that were sent since */
	late = past || path->probe_seen == probe_id;
	if (late) {
		count(MRC_C_PROBE_STALE);
		if (past > PROBE_LATE_MAX || path->misses < past || !path->misses)
			return SAYS(HOOK_DROP, MRC_C_PROBE_STALE);
	}
	if (!past)
		path->probe_seen = probe_id;
	now = bpf_ktime_get_ns();
	rtt = now - path->probe_ns + past * PROBE_WAIT_MIN_NS; /* at least, if there are such */
	if (!late)
		path->srtt_ns = smooth(path->srtt_ns, rtt, now - path->rtt_at_ns, SLOW_SHIFT);
	else if (path->srtt_ns < rtt)
		path->srtt_ns = rtt;
	path->rtt_at_ns = now;
	path->answered_ns = now;
	b = balance_get(q->peer);
	if (b) {
		b->heard_ns = now;
		if (!past)
			note_near(b, path_plane(id), rtt, now);
	}
	if (b && !past && !is_spare(q->peer, path_plane(id)) && (!b->probed_ns || rtt < b->probed_ns))
		b->probed_ns = rtt;
	bpf_spin_lock(&tx->lock);
	path_answered(tx, path, id, now, marked, late, &move);
	tx->live[path_plane(id)] = path_slot(id) + 1;
	bpf_spin_unlock(&tx->lock);
	if (!late)
		count(MRC_C_PROBE_REPLY);
	report_move(qp, id, path, &move, marked ? MRC_ON_PROBE_MARK : MRC_ON_PROBE, 0, now);
	return SAYS(HOOK_DROP, MRC_C_PROBE_REPLY);
}

/* Bytes of headers that an opcode announces behind the BTH; 0 if the opcode is unknown here. */
static __always_inline u32 headers_of(u32 opcode)
{
	switch (opcode) {
	case MRC_OP_WRITE_ONLY:
		return MRC_WRITE_LEN;
	case MRC_OP_SACK:
		return MRC_SACK_BODY;
	case MRC_OP_NACK:
		return MRC_NACK_BODY;
	case MRC_OP_PROBE:
		return MRC_PROBE_BODY;
	case MRC_OP_ENDPOINT_REQ:
		return MRC_ENDPOINT_REQ_BODY;
	case MRC_OP_ENDPOINT_RSP:
		return MRC_ENDPOINT_RSP_BODY;
	}
	return 0;
}

/* Why an opcode is not taken here: what is MRC, but has no use here, is counted by its name. */
static __always_inline u32 refused(u32 opcode)
{
	if (opcode >= MRC_OP_WRITE_FIRST && opcode <= MRC_OP_WRITE_LAST_IMM)
		return MRC_C_DROP_MULTI_PACKET;
	if (opcode == MRC_OP_WRITE_ONLY_IMM)
		return MRC_C_DROP_IMMEDIATE;
	if (opcode == MRC_OP_TRANSPORT_ACK)
		return MRC_C_DROP_TRANSPORT_ACK;
	return MRC_C_DROP_OPCODE;
}

/*
 * Are the headers as they were sent? `len` bytes of them follow the BTH: 20, 24, 28,
 * 32 or 48; `body` bytes precede the ICRC word. Accepting a damaged PSN would
 * leave the receiver permanently ahead.
 */
static __always_inline int headers_are_whole(struct hook_ctx *ctx, u32 len, u32 body)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	const void *at = data + MRC_BODY_OFF;
	__be32 icrc;
	u64 sum;

	if (at + 16 > end)
		return 0;
	sum = check_eight(check_eight(check_start(data), at), at + 8);
	if (len >= 24) {
		if (at + 24 > end)
			return 0;
		sum = check_eight(sum, at + 16);
	}
	if (len >= 32) {
		if (at + 32 > end)
			return 0;
		sum = check_eight(sum, at + 24);
	}
	if (len == 48) {
		if (at + 48 > end)
			return 0;
		sum = check_eight(check_eight(sum, at + 32), at + 40);
	}
	if (len == 20) {
		if (at + 20 > end)
			return 0;
		sum = check_four(sum, at + 16);
	}
	if (len == 28) {
		if (at + 28 > end)
			return 0;
		sum = check_four(sum, at + 24);
	}
	return !hook_load(ctx, MRC_BODY_OFF + body, &icrc, sizeof(icrc)) &&
	       icrc == bpf_htonl(sum);
}

/* Is the packet ours? If so, *plane is the plane it should have come by. */
static __always_inline int is_ours(struct hook_ctx *ctx, const struct mrc_host *h, u32 *plane)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct ipv6hdr *outer = data + MRC_OUTER_OFF;
	struct udphdr *udp = data + MRC_UDP_OFF;
	struct mrc_plane *pl;

	if (ENCAP_SRV6) {        /* packets to a uSID are MRC's */
		if (data + MRC_OUTER_OFF + MRC_IP6_LEN > end || outer->daddr.s6_addr32[0] != h->block)
			return 0;
		*plane = bpf_ntohl(outer->daddr.s6_addr32[1]) >> (16 + MRC_USID_PLANE_SHIFT);
		return 1;
	}
	/* our address on this plane, and one of our two ports */
	if (data + MRC_BTH_OFF > end || !envelope_is_udp(data) ||
	    (udp->dest != h->udp_port && udp->dest != h->control_port))
		return 0;
	*plane = plane_of(hook_ifindex(ctx));
	pl = planes.lookup(plane);
	return pl && envelope_is_for(data, pl);
}

/* Check IP and UDP. Returns the counter of what is wrong with them, or 0. */
static __always_inline u32 check_envelope(struct hook_ctx *ctx, void *data, void *end,
					  const struct mrc_host *h, struct packet *pkt)
{
	struct udphdr *udp = data + MRC_UDP_OFF;
	u32 frame_len;

	if (data + MRC_BTH_OFF > end)
		return MRC_C_DROP_SHORT;
	if (!envelope_is_udp(data) || !envelope_is_for(data, pkt->pl))
		return MRC_C_DROP_SID;
	if (!envelope_sums(data))
		return MRC_C_DROP_CHECKSUM;
	pkt->udp_len = bpf_ntohs(udp->len);
	frame_len = hook_len(ctx);
	pkt->tclass = envelope_tclass(data);
	if (frame_len < MRC_UDP_OFF + pkt->udp_len)
		pkt->trimmed = trimmed_by(h, pkt->tclass);
	return envelope_lengths(data, frame_len, pkt->trimmed) ? 0 : MRC_C_DROP_LENGTH;
}

/* Check the BTH and what stands behind it. Returns the counter of what is wrong, or 0. */
static __always_inline u32 check_headers(struct hook_ctx *ctx, void *data, void *end,
					 struct packet *pkt)
{
	struct mrc_bth *bth = data + MRC_BTH_OFF;
	u32 headers;

	if (pkt->udp_len < MRC_UDP_LEN + MRC_BTH_LEN + MRC_ICRC_LEN || data + MRC_BODY_OFF > end)
		return MRC_C_DROP_SHORT;
	pkt->body = pkt->udp_len - MRC_UDP_LEN - MRC_BTH_LEN - MRC_ICRC_LEN;
	pkt->opcode = bth->opcode;
	headers = headers_of(pkt->opcode);
	if (!headers)
		return refused(pkt->opcode);
	if ((bth->flags & (MRC_BTH_TVER | MRC_BTH_PAD)) ||
	    (pkt->opcode == MRC_OP_WRITE_ONLY && !(bth->aux & MRC_BTH_TS)))
		return MRC_C_DROP_VERSION;
	if (pkt->opcode == MRC_OP_WRITE_ONLY && pkt->body < headers + 20)
		return MRC_C_DROP_SHORT;
	if (pkt->opcode != MRC_OP_WRITE_ONLY && (pkt->trimmed || pkt->body != headers))
		return MRC_C_DROP_LENGTH;
	/* A trimmed packet has lost the word; its NACK costs at most a needless copy. */
	if (!pkt->trimmed && !headers_are_whole(ctx, headers, pkt->body))
		return MRC_C_DROP_ICRC;
	return 0;
}

/* Find the QP, and check that its peer sent the packet. Returns the counter of what is wrong, or 0. */
static __always_inline u32 find_connection(void *data, struct packet *pkt)
{
	struct mrc_bth *bth = data + MRC_BTH_OFF;
	u32 qp = bpf_ntohl(bth->dqpn) & 0xffff;

	pkt->q = qps.lookup(&qp);
	if (!pkt->q || pkt->q->state < MRC_QP_RECEIVE ||
	    pkt->q->qpn != (bpf_ntohl(bth->dqpn) & MRC_QPN_MASK))
		return MRC_C_DROP_QPN;
	pkt->pp = peer_plane_get(pkt->q->peer, pkt->plane);
	if (!pkt->pp || !envelope_is_from(data, pkt->pp->addr))
		return MRC_C_DROP_SOURCE;
	if (our_plane(peer_get(pkt->q->peer), ev_plane(pkt->ev)) != pkt->plane)
		return MRC_C_DROP_ENTROPY;
	pkt->qp = qp;
	pkt->psn = bth_psn(bth);
	pkt->flags = bth->aux & (MRC_BTH_ACKREQ | MRC_BTH_RTX);
	if ((pkt->tclass & MRC_ECN_MASK) == MRC_ECN_CE)
		pkt->flags |= MRC_MARK_CE;
	return 0;
}

/*
 * Did a SACK, NACK or probe arrive before? Its tag is right. The sender counts by its own
 * numbers of the planes, which are in the EV. Returns the counter of that, or 0.
 */
static __always_inline u32 check_replay(const struct mrc_host *h, u32 qp, u32 plane, u32 count)
{
	u32 index = qp * MRC_MAX_PLANES + plane;
	struct mrc_replay *r = replays.lookup(&index);
	int fresh;

	if (!r || !h->keyed)
		return 0;
	bpf_spin_lock(&r->lock);
	fresh = replay_note(r, count);
	bpf_spin_unlock(&r->lock);
	return fresh ? 0 : MRC_C_DROP_REPLAY;
}

/* Check the tag of a packet with `len` bytes between BTH and struct mrc_auth, a constant. */
static __always_inline u32 check_control(void *data, void *end, const struct mrc_host *h,
					 const struct packet *pkt, const u64 *key, u32 len)
{
	struct mrc_auth *auth = data + MRC_BODY_OFF + len;

	if ((void *)(auth + 1) > end)
		return MRC_C_DROP_LENGTH;
	if (!has_tag(data, key, len))
		return MRC_C_DROP_TAG;
	return check_replay(h, pkt->qp, ev_plane(envelope_ev(data)) & (MRC_MAX_PLANES - 1),
			    bpf_ntohl(auth->count));
}

/* Check the tag of data, trimmed or whole. */
static __always_inline u32 check_data(void *data, void *end, const struct packet *pkt,
				      const u64 *key)
{
	struct mrc_reth *reth = data + MRC_BODY_OFF + MRC_METH_LEN + MRC_TSETH_LEN;
	struct mrc_rx *rx;
	u32 qp = pkt->qp;
	u64 tag;

	rx = rxs.lookup(&qp);
	if (!rx || data + MRC_PAYLOAD_OFF > end)
		return MRC_C_DROP_SHORT;
	tag = data_tag(key, data, full_psn(pkt->psn, rx->next));
	return reth->va_hi == (u32)tag && reth->va_lo == tag >> 32 ? 0 : MRC_C_DROP_TAG;
}

/* Does the packet come from who knows the key? Returns the counter of what is wrong, or 0. */
static __always_inline u32 check_tag(void *data, void *end, const struct mrc_host *h,
				     struct packet *pkt)
{
	struct mrc_bth *bth = data + MRC_BTH_OFF;
	u32 qp = pkt->qp;
	const u64 *key;

	pkt->k = keys.lookup(&qp);
	if (!pkt->k)
		return MRC_C_DROP_QPN;
	key = rx_key(h, pkt->k, bth->aux & MRC_BTH_PHASE);
	if (!key)
		return MRC_C_DROP_TAG;
	switch (pkt->opcode) {
	case MRC_OP_WRITE_ONLY:
		return check_data(data, end, pkt, key);
	case MRC_OP_SACK:
		return check_control(data, end, h, pkt, key, MRC_SETH_LEN + MRC_CC_STATE_LEN);
	case MRC_OP_PROBE:
		return check_control(data, end, h, pkt, key, MRC_PETH_LEN);
	case MRC_OP_NACK:
		return check_control(data, end, h, pkt, key, MRC_NETH_LEN);
	}
	return MRC_C_DROP_OPCODE;
}

/* A SACK: the answer to a probe ends here, others go on to mrc_deliver. */
static __always_inline int receive_sack(struct hook_ctx *ctx, void *data, void *end, struct packet *pkt)
{
	struct mrc_seth *seth = data + MRC_BODY_OFF;

	if (data + MRC_SACK_FRAME_LEN > end)
		return drop(MRC_C_DROP_LENGTH);
	if (seth->head & bpf_htonl(MRC_SETH_PR)) {
		pkt->ev = bpf_ntohl(seth->entropy);
		return receive_probe_reply(pkt, bpf_ntohl(seth->head) & 0xffff,
				       bpf_ntohl(seth->head) >> MRC_SETH_M_SHIFT & 3);
	}
	pkt->flags = MRC_MARK_SACK;
	return hand_over(ctx, pkt, MRC_ETH_PROTO);
}

/* Act on a packet of a QP. */
static __always_inline int receive_known(struct hook_ctx *ctx, void *data, void *end,
				   const struct mrc_host *h, struct packet *pkt)
{
	switch (pkt->opcode) {
	case MRC_OP_WRITE_ONLY:
		if (pkt->q->framing != MRC_FRAMING_MRC)
			return drop(MRC_C_DROP_FRAMING);
		return pkt->trimmed ? receive_trimmed(ctx, h, pkt) : receive_data(ctx, pkt);
	case MRC_OP_SACK:
		return receive_sack(ctx, data, end, pkt);
	case MRC_OP_PROBE:
		return receive_probe(ctx, h, pkt);
	case MRC_OP_NACK:
		return receive_nack(ctx, pkt);
	}
	return drop(MRC_C_DROP_OPCODE);
}

/*
 * A write that mrc0 has no use for is an error of the sender's, which a NACK tells if
 * the packet is of a QP in use and undamaged: one wrong bit makes its opcode of ours.
 */
static __always_inline int refuse_opcode(struct hook_ctx *ctx, const struct mrc_host *h,
					 struct packet *pkt, u32 why)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_bth *bth = data + MRC_BTH_OFF;
	struct mrc_tseth *tseth = data + MRC_BODY_OFF + MRC_METH_LEN;
	u32 qp, ts = 0, len = MRC_METH_LEN + MRC_RETH_LEN, back;
	struct mrc_rx *rx;

	if (data + MRC_BODY_OFF + MRC_METH_LEN + MRC_TSETH_LEN > end || pkt->trimmed)
		return drop(why);
	if (bth->aux & MRC_BTH_TS) {
		ts = bpf_ntohs(tseth->tx_timestamp);
		len += MRC_TSETH_LEN;
	}
	if (pkt->opcode == MRC_OP_WRITE_LAST_IMM || pkt->opcode == MRC_OP_WRITE_ONLY_IMM)
		len += MRC_IMMDT_LEN;
	pkt->ev = envelope_ev(data);
	if (pkt->body < len || !headers_are_whole(ctx, len, pkt->body) ||
	    (pkt->ev & 0xffff) || find_connection(data, pkt) ||
	    h->keyed)            /* such a write has no tag */
		return drop(why);
	back = ev_on(pkt->plane, pkt->ev);
	qp = pkt->qp;
	rx = rxs.lookup(&qp);
	pkt->k = keys.lookup(&qp);
	if (!rx || !pkt->k || !may_refuse_now(rx) || hook_resize(ctx, MRC_NACK_FRAME_LEN))
		return drop(why);
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	if (put_nack_frame(data, end, h, pkt->q, pkt->k, pkt->pl, pkt->pp, back,
			   next_count(qp, back), MRC_NACK_UNEXP_EVENT, pkt->psn, pkt->ev, ts))
		return drop(why);
	count(why);
	count(MRC_C_NACK_TX_EVENT);
	capture_answer(ctx, pkt->plane, qp, pkt->q->peer, MRC_C_NACK_TX_EVENT);
	return SAYS(hook_send(ctx, pkt->pl->ifindex), MRC_C_NACK_TX_EVENT);
}

/* A message for the daemon: hand-shake, and what else daemons tell each other. */
static __always_inline int receive_message(struct hook_ctx *ctx, const struct mrc_host *h,
					   const struct packet *pkt)
{
	u32 why = pkt->trimmed ? MRC_C_DROP_LENGTH :
				 admit_message(ctx, h, pkt->pl, pkt->udp_len - MRC_UDP_LEN);

	return why ? drop(why) : to_stack(ctx, pkt->pl, MRC_C_CONTROL_RX);
}

/*
 * Hand on what two other hosts send each other over this one, as the daemon has arranged for
 * both their addresses. The tags are theirs, and nothing of them is looked at. Returns 0 for
 * every other packet, or what receive() returns.
 */
static __always_inline int relay(struct hook_ctx *ctx, void *data, void *end)
{
	struct ipv6hdr *outer = data + MRC_OUTER_OFF;
	struct mrc_relayed key;
	struct ethhdr *eth = data;
	struct mrc_relay *there;
	struct mrc_plane *pl;
	u32 plane;

	if (data + MRC_LINK_AND_OUTER > end)
		return 0;
	copy_addr(key.from, outer->saddr.s6_addr32);
	copy_addr(key.to, outer->daddr.s6_addr32);
	there = relays.lookup(&key);
	if (!there || outer->nexthdr != IPPROTO_UDP)
		return 0;
	plane = there->plane;
	pl = planes.lookup(&plane);
	if (!pl || !pl->ifindex || pl->ifindex == hook_ifindex(ctx) || outer->hop_limit <= 1)
		return drop(MRC_C_DROP_RELAY);
	outer->hop_limit--;
	copy_mac(eth->h_dest, there->mac);
	copy_mac(eth->h_source, pl->mac);
	count(MRC_C_RELAYED);
	return SAYS(hook_send(ctx, pl->ifindex), MRC_C_RELAYED);
}

/*
 * Let go what is not for MRC, or in no state to be looked at. Returns 0, or what
 * receive() returns. *plane is the plane by which the packet should have come.
 */
static __always_inline int sort_out(struct hook_ctx *ctx, const struct mrc_host *h, u32 *plane)
{
	struct ethhdr *eth;
	void *data, *end;

	hook_pull(ctx, CELL_KNOWN);
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	eth = data;
	if (data + sizeof(*eth) > end)
		return HOOK_STACK;
	if (eth->h_source[0] & 1)
		return drop(MRC_C_DROP_MARK);
	if (*eth_proto(data) != MRC_ETH_PROTO)
		return HOOK_STACK;
	if (NEXT_HOPS && !ENCAP_IPV4 && h->relays) {
		int left = relay(ctx, data, end);

		if (left)
			return left;
	}
	if (data + CELL_KNOWN <= end && envelope_is_cell(data, h))
		return SAYS(HOOK_CELL, MRC_CAPTURE_PASSED);
	hook_pull(ctx, HEADERS);
	if (!is_ours(ctx, h, plane))
		return HOOK_STACK;
	return hook_merged(ctx) ? drop(MRC_C_DROP_SKB) : 0;
}

static __always_inline int receive(struct hook_ctx *ctx)
{
	struct mrc_host *h = host_get();
	struct packet pkt = {};
	void *data, *end;
	struct udphdr *udp;
	struct mrc_bth *bth;
	u32 plane, why;
	int left;

	/* is it ours? */
	if (!h)
		return HOOK_STACK;
	left = sort_out(ctx, h, &plane);
	if (left)
		return left;
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	udp = data + MRC_UDP_OFF;
	bth = data + MRC_BTH_OFF;
	pkt.plane = plane;
	pkt.pl = planes.lookup(&plane);
	if (!pkt.pl || pkt.pl->ifindex != hook_ifindex(ctx))
		return drop(MRC_C_DROP_SID);

	/* check its headers */
	why = check_envelope(ctx, data, end, h, &pkt);
	if (why)
		return drop(why);
	if (udp->dest == h->control_port)
		return receive_message(ctx, h, &pkt);
	if (udp->dest != h->udp_port)
		return drop(MRC_C_DROP_SID);
	why = check_headers(ctx, data, end, &pkt);
	if (why == MRC_C_DROP_MULTI_PACKET || why == MRC_C_DROP_IMMEDIATE)
		return refuse_opcode(ctx, h, &pkt, why);
	if (why)
		return drop(why);

	/* whose is it? */
	pkt.ev = envelope_ev(data);
	if ((bth->dqpn & bpf_htonl(MRC_QPN_MASK)) == bpf_htonl(MRC_QPN_ENDPOINT))
		return pkt.trimmed ? drop(MRC_C_DROP_OPCODE) :
				     on_endpoint(ctx, h, pkt.pl, pkt.plane, pkt.ev);
	if (pkt.ev & 0xffff)
		return drop(MRC_C_DROP_ENTROPY);
	why = find_connection(data, &pkt);
	if (!why)
		why = check_tag(data, end, h, &pkt);
	if (why)
		return drop(why);
	return receive_known(ctx, data, end, h, &pkt);
}

int mrc_receive(struct hook_ctx *ctx)
{
	capture_arrives(ctx);
	return leave(ctx, capture_arrived(receive(ctx)));
}
