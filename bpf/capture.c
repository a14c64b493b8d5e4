/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Capture: every packet that leaves by a plane or arrives at one is recorded,
 * with what the programs know about it. tcpdump sees nothing of that, and few of
 * the packets: they are redirected, or taken by XDP.
 *
 * Ordinary programs contain none of this. For `mrcctl capture` the daemon loads a
 * second build of them, with CFG_CAPTURE, over the same maps (mrcd/datapath/capture.py);
 * only that build has the maps below.
 *
 * mrc_deliver decides the outcome of what mrc_receive passes on, but sees only
 * the payload. So the outcome is a record of its own, tied to the packet's record
 * by the ICRC word. In the same way mrc_cell's are tied by a cell's tag.
 */

/* What functions of mrc_receive return: the action (hook.h) and, for a capture, the reason's counter. */
#define SAYS(action, why) (CFG_CAPTURE ? (action) | ((why) + 1) << 8 : (action))

/*
 * Records are made here, because they are larger than the stack. Programs that
 * may interrupt each other have records of their own: packets' programs, the
 * clock's, and the survey's. What arrived is recorded before its headers are
 * taken off and sent when its outcome is known, maybe after the record of an
 * answer to it.
 */
#define RECORD_PACKET CHAIN_PACKET
#define RECORD_CLOCK CHAIN_CLOCK
#define RECORD_SURVEY 2
#define RECORD_ARRIVED 3

#if CFG_CAPTURE

struct capture_record {
	struct mrc_capture head;
	__u8 data[MRC_CAPTURE_BYTES];
};

BPF_RINGBUF_OUTPUT(captures, MRC_CAPTURE_PAGES);
BPF_F_TABLE("array", u32, struct mrc_capturing, capturing, 1, BPF_F_MMAPABLE);
BPF_PERCPU_ARRAY(capture_records, struct capture_record, 4);

static __always_inline struct mrc_capturing *capturing_get(void)
{
	u32 zero = 0;

	return capturing.lookup(&zero);
}

static __always_inline struct capture_record *record_get(u32 which)
{
	return capture_records.lookup(&which);
}

/* Does the capture want this packet? */
static __always_inline int capture_wants(const struct mrc_capturing *c, u32 kind, u32 plane,
					 u32 peer)
{
	return c->bytes && (c->kinds & kind) && (c->only_planes >> (plane & 7) & 1) &&
	       (c->only_peer == MRC_CAPTURE_NONE || c->only_peer == peer);
}

/* Bytes to keep of a packet, bounded for the verifier; the caller checks that there are 14. */
#define CAPTURE_LEN(c, len) ({ \
	u64 keep = (len); \
	if (keep > (c)->bytes) \
		keep = (c)->bytes; \
	asm volatile("%0 &= 0x3fff" : "+r"(keep)); \
	keep; })

static __always_inline void capture_send(struct mrc_capturing *c, struct capture_record *r,
					 u64 kept)
{
	u32 plane = r->head.plane & 7;

	/* The reader polls: no program spends time on waking it. */
	if (captures.ringbuf_output(r, sizeof(r->head) + kept, BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&c->lost[plane], 1);
}

static __always_inline void capture_head(struct capture_record *r, u32 kind, u32 length, u32 plane,
					 u32 qp, u32 peer, u32 why)
{
	r->head.time_ns = bpf_ktime_get_ns();
	r->head.length = length;
	r->head.key = 0;
	r->head.peer = peer;
	r->head.qp = qp;
	r->head.why = why;
	r->head.plane = plane;
	r->head.kind = kind;
}

/* Record an skb that is about to leave, in the record `record`. */
static __always_inline void capture_skb(struct __sk_buff *skb, u32 record, u32 plane, u32 qp,
					u32 peer, u32 why)
{
	struct mrc_capturing *c = capturing_get();
	struct capture_record *r = record_get(record);
	u64 kept;

	if (!c || !r || !capture_wants(c, MRC_CAPTURE_TX, plane, peer) ||
	    (why == MRC_C_SURVEY_TX && !(c->kinds & MRC_CAPTURE_SURVEY)))
		return;
	kept = CAPTURE_LEN(c, skb->len);
	if (kept < MRC_ETH_LEN)
		return;
	COMPARED(kept);
	if (bpf_skb_load_bytes(skb, 0, r->data, kept))
		return;
	capture_head(r, MRC_CAPTURE_TX, skb->len, plane, qp, peer, why);
	capture_send(c, r, kept);
}

/* Record the answer that mrc_receive made of a packet. */
static __always_inline void capture_answer(struct hook_ctx *ctx, u32 plane, u32 qp, u32 peer,
					   u32 why)
{
	struct mrc_capturing *c = capturing_get();
	struct capture_record *r = record_get(RECORD_PACKET);
	u32 len = hook_len(ctx);
	u64 kept;

	if (!c || !r || !capture_wants(c, MRC_CAPTURE_TX, plane, peer))
		return;
	kept = CAPTURE_LEN(c, len);
	if (kept < MRC_ETH_LEN)
		return;
	COMPARED(kept);
	if (hook_load(ctx, 0, r->data, kept))
		return;
	capture_head(r, MRC_CAPTURE_TX, len, plane, qp, peer, why);
	capture_send(c, r, kept);
}

/* Where a cell has struct mrc_cell, but for .block in MRC_CELL_UDP. */
#define CAPTURE_CELL (CELL_UDP ? CELL_STATE_OFF - __builtin_offsetof(struct mrc_cell, mss) : \
				 MRC_OUTER_OFF + __builtin_offsetof(struct ipv6hdr, saddr))
#define CAPTURE_CELL_KEY (CAPTURE_CELL + __builtin_offsetof(struct mrc_cell, tag))

/* Is it a cell that arrives? If so, *qp is the QP that it names. */
static __always_inline int capture_is_cell(struct hook_ctx *ctx, u32 *qp)
{
	struct mrc_host *h = host_get();
	const struct mrc_cell *cell;
	void *data, *end;

	hook_pull(ctx, CELL_OFF);
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	if (!h || data + CELL_OFF > end || *eth_proto(data) != MRC_ETH_PROTO ||
	    !envelope_is_cell(data, h))
		return 0;
	cell = data + CAPTURE_CELL;
	*qp = bpf_ntohs(cell->qp);
	return 1;
}

/* The peer of a QP, or MRC_CAPTURE_NONE. */
static __always_inline u32 capture_peer_of(u32 qp)
{
	struct mrc_qp *q = qps.lookup(&qp);

	return q ? q->peer : MRC_CAPTURE_NONE;
}

/* The peer that a packet's source address belongs to, or MRC_CAPTURE_NONE. */
static __always_inline u32 capture_peer(struct hook_ctx *ctx)
{
	struct mrc_source key;
	void *data, *end;
	u32 *peer;

	hook_pull(ctx, MRC_BTH_OFF);
	data = HOOK_DATA(ctx);
	end = HOOK_END(ctx);
	if (data + MRC_BTH_OFF > end)
		return MRC_CAPTURE_NONE;
	envelope_source(data, key.addr);
	peer = sources.lookup(&key);
	return peer ? *peer : MRC_CAPTURE_NONE;
}

/*
 * Keep a packet as it arrived. The record is read back from the map afterwards,
 * so that the verifier does not follow its values through mrc_receive.
 */
static __always_inline void capture_arrives(struct hook_ctx *ctx)
{
	struct mrc_capturing *c = capturing_get();
	struct capture_record *r = record_get(RECORD_ARRIVED);
	u32 len = hook_len(ctx), key_at = len - sizeof(r->head.key), key, cell, qp = 0;
	u64 kept;

	if (!c || !r)
		return;
	r->head.length = 0;
	if (!(c->kinds & MRC_CAPTURE_RX) || len < MRC_ETH_LEN)
		return;
	cell = capture_is_cell(ctx, &qp);
	if (cell && hook_mark(ctx)) /* it goes round, and was recorded before */
		return;
	if (cell)
		key_at = CAPTURE_CELL_KEY;
	r->head.plane = plane_of(hook_ifindex(ctx));
	r->head.peer = cell ? capture_peer_of(qp) : capture_peer(ctx);
	barrier();
	if (!capture_wants(c, MRC_CAPTURE_RX, r->head.plane, r->head.peer))
		return;
	kept = CAPTURE_LEN(c, len);
	if (kept < MRC_ETH_LEN || hook_load(ctx, 0, r->data, kept) ||
	    hook_load(ctx, key_at, &key, sizeof(key)))
		return;
	capture_head(r, MRC_CAPTURE_RX, len, r->head.plane, MRC_CAPTURE_NONE, r->head.peer, 0);
	r->head.key = key;
}

/* Send the record of what arrived with its outcome; `said` comes from SAYS(). Returns the action. */
static __always_inline int capture_arrived(u32 said)
{
	struct mrc_capturing *c = capturing_get();
	struct capture_record *r = record_get(RECORD_ARRIVED);
	u64 kept;

	if (!c || !r || !(said >> 8) || !r->head.length)
		return said & 0xff;
	r->head.why = (said >> 8) - 1;
	if (r->head.why == MRC_C_SURVEY_RX && !(c->kinds & MRC_CAPTURE_SURVEY))
		return said & 0xff;
	kept = CAPTURE_LEN(c, r->head.length);
	capture_send(c, r, kept);
	return said & 0xff;
}

/*
 * The key that ties an outcome to its packet: the ICRC word of an skb that
 * mrc_receive passed on. 0 if the packet is not wanted, as far as its mark tells
 * (a NACK's mark does not hold the plane it came by).
 */
static __always_inline u32 capture_key(struct __sk_buff *skb, const struct mrc_mark *mark)
{
	u32 key = 0, qp = mark->qp, plane = ev_plane(mark_ev(mark));
	struct mrc_capturing *c = capturing_get();
	struct mrc_qp *q = qps.lookup(&qp);

	if (!c || !q)
		return 0;
	if (mark->flags & MRC_MARK_NACK)
		plane = lowest_bit(c->only_planes | 0x80);
	if (capture_wants(c, MRC_CAPTURE_RX, plane, q->peer) && skb->len > sizeof(key))
		bpf_skb_load_bytes(skb, skb->len - sizeof(key), &key, sizeof(key));
	return key;
}

/* The same for a cell: its tag, which all its pieces share. */
static __always_inline u32 capture_cell_key(struct __sk_buff *skb, const struct mrc_cell *cell)
{
	u32 peer = capture_peer_of(bpf_ntohs(cell->qp)), plane = plane_of(skb->ifindex);
	struct mrc_capturing *c = capturing_get();

	return c && capture_wants(c, MRC_CAPTURE_RX, plane, peer) ? cell->tag : 0;
}

/* Record the outcome in mrc_deliver or mrc_cell. If the ring is full the outcome is missing, but no packet is. */
static __always_inline void capture_outcome(u32 key, u32 qp, u32 why)
{
	struct capture_record *r = record_get(RECORD_PACKET);

	if (!r || !key)
		return;
	capture_head(r, MRC_CAPTURE_OUTCOME, 0, 0, qp, MRC_CAPTURE_NONE, why);
	r->head.key = key;
	captures.ringbuf_output(r, sizeof(r->head), BPF_RB_NO_WAKEUP);
}

#else

static __always_inline void capture_skb(struct __sk_buff *skb, u32 record, u32 plane, u32 qp,
					u32 peer, u32 why)
{
}

static __always_inline void capture_answer(struct hook_ctx *ctx, u32 plane, u32 qp, u32 peer,
					   u32 why)
{
}

static __always_inline void capture_arrives(struct hook_ctx *ctx)
{
}

static __always_inline int capture_arrived(u32 said)
{
	return said;
}

static __always_inline u32 capture_key(struct __sk_buff *skb, const struct mrc_mark *mark)
{
	return 0;
}

static __always_inline u32 capture_cell_key(struct __sk_buff *skb, const struct mrc_cell *cell)
{
	return 0;
}

static __always_inline void capture_outcome(u32 key, u32 qp, u32 why)
{
}

#endif
