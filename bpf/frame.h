/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Frames: MRC's own headers, written in place behind the envelope (envelope.h).
 * Pure functions of their arguments; no map is touched here.
 *
 * Packet pointers are cast to structs whose fields would want alignment that
 * an Ethernet header denies them; the kernel's JITs support unaligned loads
 * wherever MRC's fields need them.
 */
#ifndef MRC_FRAME_H
#define MRC_FRAME_H

/* What follows the BTH of each kind of packet that ends with its headers. */
#define MRC_SACK_BODY (MRC_SETH_LEN + MRC_CC_STATE_LEN + MRC_AUTH_LEN)
#define MRC_NACK_BODY (MRC_NETH_LEN + MRC_AUTH_LEN)
#define MRC_PROBE_BODY (MRC_PETH_LEN + MRC_AUTH_LEN)
#define MRC_ENDPOINT_REQ_BODY (MRC_ERTH_LEN + MRC_AUTH_LEN)
#define MRC_ENDPOINT_RSP_BODY (MRC_EETH_LEN + MRC_AUTH_LEN)

/* Whole frames, from Ethernet to the ICRC word. */
#define MRC_SACK_FRAME_LEN (MRC_BODY_OFF + MRC_SACK_BODY + MRC_ICRC_LEN)
#define MRC_NACK_FRAME_LEN (MRC_BODY_OFF + MRC_NACK_BODY + MRC_ICRC_LEN)
#define MRC_PROBE_FRAME_LEN (MRC_BODY_OFF + MRC_PROBE_BODY + MRC_ICRC_LEN)
#define MRC_ENDPOINT_REQ_FRAME_LEN (MRC_BODY_OFF + MRC_ENDPOINT_REQ_BODY + MRC_ICRC_LEN)
#define MRC_ENDPOINT_RSP_FRAME_LEN (MRC_BODY_OFF + MRC_ENDPOINT_RSP_BODY + MRC_ICRC_LEN)

/*
 * The packet pointers of a program's context. Written as instructions because
 * the compiler would otherwise share the address &ctx->data between several
 * reads, and the verifier refuses a context pointer that was added to.
 */
#define CTX_WORD(ctx, type, field) ({ \
	void *word; \
	asm volatile("%0 = *(u32 *)(%1 + %2)" \
		     : "=r"(word) \
		     : "r"(ctx), "i"(__builtin_offsetof(type, field))); \
	word; })
#define SKB_DATA(skb) CTX_WORD(skb, struct __sk_buff, data)
#define SKB_END(skb) CTX_WORD(skb, struct __sk_buff, data_end)

/*
 * Make the first `len` bytes accessible, a constant, or all if there are fewer:
 * drivers leave them in pages. If there is no memory for that, the packet looks
 * too short. Pointers into the packet have to be read again.
 */
static __always_inline void skb_pull_headers(struct __sk_buff *skb, __u32 len)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	__u32 there = len < skb->len ? len : skb->len;

	if (data + there > end)
		bpf_skb_pull_data(skb, there);
}

/* The plane of an EV: 4 bits as received, so it may be MRC_MAX_PLANES or more. */
static __always_inline __u32 ev_plane(__u32 ev)
{
	return ev >> MRC_EV_PLANE_SHIFT;
}

/*
 * Two hosts may number their planes differently, and have some that the other one lacks. An EV
 * in a packet has its sender's number. Our number of a peer's plane, or MRC_NOT_OURS.
 */
static __always_inline __u32 our_plane(const struct mrc_peer *peer, __u32 theirs)
{
	return peer ? peer->ours >> 4 * (theirs & 15) & 15 : MRC_NOT_OURS;
}

/* A mask of a peer's planes, by our numbers. */
static __always_inline __u32 our_planes(const struct mrc_peer *peer, __u32 theirs)
{
	__u32 ours = 0, i;

	if (!peer || peer->ours == MRC_OURS_ALIKE)
		return theirs & 0xff;
	#pragma unroll
	for (i = 0; i < MRC_MAX_PLANES; i++)
		if (theirs >> i & 1)
			ours |= 1 << our_plane(peer, i);
	return ours & 0xff;
}

/* The EV of the same path as `ev`, a peer's, on our plane. */
static __always_inline __u32 ev_on(__u32 plane, __u32 ev)
{
	return plane << MRC_EV_PLANE_SHIFT | (ev & ((1u << MRC_EV_PLANE_SHIFT) - 1));
}

/* The PSN of a packet, 24 bits. */
static __always_inline __u32 bth_psn(const struct mrc_bth *bth)
{
	return bth->psn_hi << 16 | bpf_ntohs(bth->psn_lo);
}

/* What mrc_receive has noted of a packet: its PSN, 24 bits, and its EV. */
static __always_inline __u32 mark_psn(const struct mrc_mark *mark)
{
	return mark->psn_hi << 16 | mark->psn_lo;
}

static __always_inline __u32 mark_ev(const struct mrc_mark *mark)
{
	return (__u32)mark->ev_hi << 16;
}

/* The traffic class of SACKs, NACKs, probes and endpoint packets. */
static __always_inline __u32 control_class(const struct mrc_host *h)
{
	return h->dscp_control << MRC_DSCP_SHIFT;
}

/* The traffic class of data, which switches may mark. They may trim it if the QP's way is so. */
static __always_inline __u32 data_class(const struct mrc_host *h, const struct mrc_qp *q,
					__u32 again)
{
	__u32 dscp = h->dscp_whole;

	if (q->trims)
		dscp = again ? h->dscp_again : h->dscp_data;
	return dscp << MRC_DSCP_SHIFT | MRC_ECN_ECT0;
}

/*
 * Write everything up to and including the BTH, MRC_BODY_OFF bytes. body: bytes
 * between BTH and the ICRC word. Data packets carry the time when they were sent.
 * Returns 0, or -1 if the frame is too short.
 */
static __always_inline int put_headers(void *data, void *end, const struct mrc_host *h,
				       const struct mrc_plane *pl,
				       const struct mrc_peer_plane *pp, __u32 ev,
				       __u32 tclass, __u32 body, __u8 opcode, __u8 aux,
				       __u32 qpn, __u32 psn)
{
	struct mrc_bth *bth = data + MRC_BTH_OFF;

	if (data + MRC_BODY_OFF > end)
		return -1;
	put_envelope(data, h, pl, pp, ev, tclass,
		     MRC_UDP_LEN + MRC_BTH_LEN + body + MRC_ICRC_LEN);
	bth->opcode = opcode;
	bth->flags = 0;
	bth->pkey = bpf_htons(MRC_PKEY_DEFAULT);
	bth->dqpn = bpf_htonl(qpn);
	bth->aux = opcode == MRC_OP_WRITE_ONLY ? aux | MRC_BTH_TS : aux;
	bth->psn_hi = psn >> 16;
	bth->psn_lo = bpf_htons(psn);
	return 0;
}

/* A time as TSETH and PETH carry it; meta is constant. */
static __always_inline __be16 wire_time(__u64 ns)
{
	return bpf_htons(ns >> MRC_TS_SHIFT);
}

/*
 * Write METH, TSETH and RETH behind put_headers(): a Write Only into a region,
 * MRC_RKEY_..., with its tag. The caller writes the ICRC word, because it knows how to reach
 * the end.
 */
static __always_inline int put_write(void *data, void *end, const struct mrc_keys *k, __u32 psn,
				     __u32 len, __u64 sent_ns, __u32 rkey)
{
	struct mrc_meth *meth = data + MRC_BODY_OFF;
	struct mrc_tseth *ts = data + MRC_BODY_OFF + MRC_METH_LEN;
	struct mrc_reth *reth = data + MRC_BODY_OFF + MRC_METH_LEN + MRC_TSETH_LEN;
	__u64 tag;

	if (data + MRC_PAYLOAD_OFF > end)
		return -1;
	meth->rqmsn = 0;
	meth->msn = bpf_htons(psn);
	ts->tx_timestamp = wire_time(sent_ns);
	ts->meta = bpf_htons(MRC_TS_FTYPE_TX);
	reth->rkey = bpf_htonl(rkey);
	reth->length = bpf_htonl(len);
	tag = data_tag(tx_key(k, data), data, psn);
	reth->va_hi = tag;
	reth->va_lo = tag >> 32;
	return 0;
}

/* ---- the ICRC word (mrc_wire.h) */

static __always_inline __u64 check_step(__u64 sum, __u64 group)
{
	sum = (sum ^ group) * MRC_CHECK_FACTOR;
	return sum ^ sum >> 32;
}

static __always_inline __u64 check_eight(__u64 sum, const void *at)
{
	return check_step(sum, bpf_ntohll(*(const __u64 *)at));
}

static __always_inline __u64 check_four(__u64 sum, const void *at)
{
	return check_step(sum, (__u64)bpf_ntohl(*(const __u32 *)at) << 32);
}

/* The ports and the BTH: 16 bytes that are not adjacent. */
static __always_inline __u64 check_start(const void *data)
{
	__u64 ports = bpf_ntohl(*(const __u32 *)(data + MRC_UDP_OFF));
	__u64 bth = bpf_ntohl(*(const __u32 *)(data + MRC_BTH_OFF));

	return check_eight(check_step(0, ports << 32 | bth), data + MRC_BTH_OFF + 4);
}

/* The word of a packet with `len` bytes of headers behind the BTH, a constant. */
static __always_inline __be32 header_check(const void *data, __u32 len)
{
	__u64 sum = check_start(data);
	__u32 i;

	#pragma unroll
	for (i = 0; i + 8 <= len; i += 8)
		sum = check_eight(sum, data + MRC_BODY_OFF + i);
	if (len & 4)
		sum = check_four(sum, data + MRC_BODY_OFF + (len & ~7u));
	return bpf_htonl(sum);
}

/*
 * Write struct mrc_auth and the ICRC word behind `len` bytes of headers, a constant, where a
 * packet ends with them; the caller has checked the room.
 */
static __always_inline void seal(void *data, const __u64 *key, __u32 count, __u32 len)
{
	struct mrc_auth *auth = data + MRC_BODY_OFF + len;
	__u64 tag;

	auth->count = bpf_htonl(count);
	tag = control_tag(key, data, len);
	auth->tag_hi = tag;
	auth->tag_lo = tag >> 32;
	*(__be32 *)(auth + 1) = header_check(data, len + MRC_AUTH_LEN);
}

static __always_inline int put_sack(void *data, void *end, const struct mrc_keys *k, __u32 count,
				    const struct sack_body *s)
{
	struct mrc_seth *seth = data + MRC_BODY_OFF;
	struct mrc_cc_state *cc = data + MRC_BODY_OFF + MRC_SETH_LEN;

	if (data + MRC_SACK_FRAME_LEN > end)
		return -1;
	seth->head = bpf_htonl(s->m << MRC_SETH_M_SHIFT | (s->pr ? MRC_SETH_PR : 0) |
			       (s->ack_off & 0xffff));
	seth->entropy = bpf_htonl(s->ev);
	seth->spdcid = 0;
	seth->dpdcid = 0;
	seth->cack = bpf_htonl(s->down << MRC_SETH_DOWN_SHIFT | (s->cack & MRC_PSN_MASK));
	seth->cc = s->cc_flags;
	seth->mpr = s->mpr;
	seth->sack_offset = bpf_htons(s->sack_off);
	seth->bitmap_hi = bpf_htonl(s->bitmap >> 32);
	seth->bitmap_lo = bpf_htonl((__u32)s->bitmap);
	cc->tx_timestamp = bpf_htons(s->ts);
	cc->ooo = bpf_htons(s->ooo & MRC_CC_OOO);
	cc->bytes = bpf_htonl(s->press |
			      ((s->bytes + MRC_CC_BYTES_UNIT - 1) / MRC_CC_BYTES_UNIT & 0xffffff));
	seal(data, tx_key(k, data), count, MRC_SETH_LEN + MRC_CC_STATE_LEN);
	return 0;
}

/* A NACK: PSN `psn`, sent on the path `ev` at the sender's time `ts`, did not arrive. */
static __always_inline int put_nack(void *data, void *end, const struct mrc_keys *k, __u32 count,
				    __u32 reason, __u32 psn, __u32 ev, __u32 ts)
{
	struct mrc_neth *neth = data + MRC_BODY_OFF;

	if (data + MRC_NACK_FRAME_LEN > end)
		return -1;
	neth->head = 0;
	neth->reason = reason;
	neth->vendor = 0;
	neth->entropy = bpf_htonl(ev);
	neth->spdcid = 0;
	neth->dpdcid = 0;
	neth->psn = bpf_htonl(psn);
	neth->cc = MRC_NACK_CC;
	neth->res2 = 0;
	neth->tx_timestamp = bpf_htons(ts);
	seal(data, tx_key(k, data), count, MRC_NETH_LEN);
	return 0;
}

/*
 * Write a whole NACK for packet `psn`, which came by `ev` with the time stamp `ts`; it goes
 * back by `back`. The frame has its length already.
 */
static __always_inline int put_nack_frame(void *data, void *end, const struct mrc_host *h,
					  const struct mrc_qp *q, const struct mrc_keys *k,
					  const struct mrc_plane *pl,
					  const struct mrc_peer_plane *pp, __u32 back, __u32 count,
					  __u32 reason, __u32 psn, __u32 ev, __u32 ts)
{
	if (put_headers(data, end, h, pl, pp, back, control_class(h), MRC_NACK_BODY, MRC_OP_NACK,
			tx_phase(k), q->remote_qpn, 0))
		return -1;
	return put_nack(data, end, k, count, reason, psn, ev, ts);
}

/* An endpoint request (QP 2) without a port mask. */
static __always_inline int put_endpoint_request(void *data, void *end, const __u64 *key,
						__u32 op, __u32 vendor, __u64 sent_ns)
{
	struct mrc_erth *erth = data + MRC_BODY_OFF;

	if (data + MRC_ENDPOINT_REQ_FRAME_LEN > end)
		return -1;
	erth->head = bpf_htons(op);
	erth->res = 0;
	erth->vendor = vendor;
	erth->port_status_mask = 0;
	erth->res2 = 0;
	erth->tx_timestamp = wire_time(sent_ns);
	erth->meta = bpf_htons(MRC_TS_FTYPE_TX);
	seal(data, key, 0, MRC_ERTH_LEN);
	return 0;
}

/* An endpoint response; `stamp` is the request's time stamp as it came. */
static __always_inline int put_endpoint_response(void *data, void *end, const __u64 *key,
						 __u32 op, __be16 stamp)
{
	struct mrc_eeth *eeth = data + MRC_BODY_OFF;

	if (data + MRC_ENDPOINT_RSP_FRAME_LEN > end)
		return -1;
	eeth->head = bpf_htons(op << MRC_EETH_OP_SHIFT);
	eeth->res = 0;
	eeth->res2[0] = 0;
	eeth->res2[1] = 0;
	eeth->res2[2] = 0;
	eeth->res2[3] = 0;
	eeth->res2[4] = 0;
	eeth->res2[5] = 0;
	eeth->tx_timestamp = stamp;
	eeth->res3 = 0;
	eeth->res4 = 0;
	seal(data, key, 0, MRC_EETH_LEN);
	return 0;
}

static __always_inline int put_probe(void *data, void *end, const struct mrc_keys *k, __u32 count,
				     __u32 vendor, __u32 id, __u64 sent_ns)
{
	struct mrc_peth *peth = data + MRC_BODY_OFF;

	if (data + MRC_PROBE_FRAME_LEN > end)
		return -1;
	peth->head = 0;
	peth->res = 0;
	peth->vendor = vendor;
	peth->probe_id = bpf_htons(id);
	peth->res2 = 0;
	peth->spdcid = 0;
	peth->dpdcid = 0;
	peth->tx_timestamp = wire_time(sent_ns);
	peth->meta = bpf_htons(MRC_TS_FTYPE_TX);
	seal(data, tx_key(k, data), count, MRC_PETH_LEN);
	return 0;
}

#endif
