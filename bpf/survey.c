/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Survey: probes that the fabric sends back to us. The daemon runs mrc_survey
 * by PROG_TEST_RUN, and each run sends the probe of one loop. All loops take
 * turns; every other probe is for the loops that the daemon expects to tell
 * most. mrc_receive counts what comes back: an EV probe from our own address to
 * our own address. The daemon reads both counts and never sees a probe.
 *
 * The loop's number is the low half of the EV; BTH.PSN is the probe's number in
 * its loop. The ICRC word does not cover the flow label, where the low half of the
 * EV is, so the vendor byte repeats the loop's number in short.
 */

#define SURVEY_IN_FLIGHT 4096    /* probes further back than this are copies of copies */

/* The bucket of a round trip, of MRC_RTT_BUCKETS: bucket i holds 2^(i-1) us up to 2^i. */
static __always_inline u32 rtt_bucket(u64 ns)
{
	u32 us = ns >> 10, bucket = 0;

	if (ns >> 10 > 0x3fff)
		return MRC_RTT_BUCKETS - 1;
	if (us >> 8) {
		us >>= 8;
		bucket += 8;
	}
	if (us >> 4) {
		us >>= 4;
		bucket += 4;
	}
	if (us >> 2) {
		us >>= 2;
		bucket += 2;
	}
	if (us >> 1) {
		us >>= 1;
		bucket += 1;
	}
	return (bucket + us) & (MRC_RTT_BUCKETS - 1);
}

/* The vendor byte of a loop's probes: it differs wherever one bit of the number does. */
static __always_inline u32 loop_vendor(u32 index)
{
	return (index ^ index >> 8) & 0xff;
}

/* An EV probe from us to us: count it for its loop. */
static __always_inline int survey_returned(struct hook_ctx *ctx, const struct mrc_host *h,
					   u32 plane, u32 ev, u32 psn)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	struct mrc_erth *erth = data + MRC_BODY_OFF;
	u32 index = ev & 0xffff, bucket;
	struct mrc_loop *loop;
	u64 *cell;

	if (data + MRC_ENDPOINT_REQ_FRAME_LEN > end)
		return drop(MRC_C_DROP_LENGTH);
	if (!has_tag(data, h->survey_key, MRC_ERTH_LEN))
		return drop(MRC_C_DROP_TAG);
	loop = loops.lookup(&index);
	if (!loop || loop->plane != plane || ev - index != plane << MRC_EV_PLANE_SHIFT ||
	    (bpf_ntohs(erth->head) & MRC_ERTH_OP) != MRC_ENDPOINT_EV_PROBE ||
	    erth->vendor != loop_vendor(index) ||
	    ((loop->psn - psn) & MRC_PSN_MASK) >= SURVEY_IN_FLIGHT)
		return drop(MRC_C_DROP_SURVEY);
	if (loop->psn == psn) {
		bucket = rtt_bucket(bpf_ktime_get_ns() - loop->sent_ns);
		if (bucket < MRC_RTT_BUCKETS) {
			cell = &loop->rtt[bucket];
			__sync_fetch_and_add(cell, 1);
		}
	}
	__sync_fetch_and_add(&loop->returned, 1);
	count(MRC_C_SURVEY_RX);
	return SAYS(HOOK_DROP, MRC_C_SURVEY_RX);
}

/* The loop to probe now. */
static __always_inline u32 survey_turn(struct mrc_survey *s)
{
	u32 turn = s->turn, index;

	s->turn = turn + 1;
	if (s->telling && turn & 1)
		return s->tell[(turn >> 1) % s->telling & (MRC_TELLING_MAX - 1)];
	index = s->next;
	if (index >= s->loops)
		index = 0;
	s->next = index + 1;
	return index;
}

/* Has the daemon learnt the address of the plane's gateway? */
static __always_inline int gateway_known(const struct mrc_plane *pl)
{
	return *(const u32 *)pl->gateway_mac | *(const __u16 *)(pl->gateway_mac + 4);
}

int mrc_survey(struct __sk_buff *skb)
{
	u32 zero = 0, index, plane, psn, ev;
	struct mrc_survey *s = survey.lookup(&zero);
	struct mrc_host *h = host_get();
	struct mrc_peer_plane *path;
	struct mrc_plane *pl;
	struct mrc_loop *loop;
	void *data, *end;
	u64 now;

	if (!s || !h || !s->loops)
		return 0;
	index = survey_turn(s);
	loop = loops.lookup(&index);
	path = loop_paths.lookup(&index);
	if (!loop || !path)
		return 0;
	plane = loop->plane;
	pl = planes.lookup(&plane);
	/* Without the gateway's address nothing can be sent: no evidence either way. */
	if (!pl || !pl->ifindex || !gateway_known(pl))
		return 0;
	if (bpf_skb_change_tail(skb, MRC_ENDPOINT_REQ_FRAME_LEN, 0))
		return 0;
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	psn = (loop->psn + 1) & MRC_PSN_MASK;
	ev = plane << MRC_EV_PLANE_SHIFT | (index & 0xffff);
	now = bpf_ktime_get_ns();
	if (put_headers(data, end, h, pl, path, ev, control_class(h), MRC_ENDPOINT_REQ_BODY,
			MRC_OP_ENDPOINT_REQ, 0, MRC_QPN_ENDPOINT, psn) ||
	    put_endpoint_request(data, end, h->survey_key, MRC_ENDPOINT_EV_PROBE,
				 loop_vendor(index), now))
		return 0;
	loop->sent_ns = now;
	loop->psn = psn;
	loop->sent++;
	count_atomic(MRC_C_SURVEY_TX);
	capture_skb(skb, RECORD_SURVEY, plane, MRC_CAPTURE_NONE, MRC_CAPTURE_NONE, MRC_C_SURVEY_TX);
	bpf_clone_redirect(skb, pl->ifindex, 0);
	return 0;
}
