/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a path's life tells others: events for the daemon, round trips for the
 * balance of the planes.
 */
#ifndef MRC_EVENT_H
#define MRC_EVENT_H

/* Tell the daemon that a path has come into use or gone out of it; SKIP is only counted. */
static __always_inline void report_move(u32 qp, u32 id, const struct mrc_path *path,
					const struct path_move *move, u32 cause, u64 sent, u64 now)
{
	struct mrc_event ev = {};

	if (move->to == move->from)
		return;
	if (move->to == MRC_PATH_SKIP)
		count(MRC_C_PATH_SKIPPED);
	if (move->to == MRC_PATH_ASSUMED_BAD)
		count(MRC_C_PATH_WITHDRAWN);
	if (move->from == MRC_PATH_ASSUMED_BAD)
		count(MRC_C_PATH_RESTORED);
	if ((move->from | move->to) == MRC_PATH_SKIP)
		return;
	ev.kind = MRC_EVENT_PATH;
	ev.qp = qp;
	ev.ev = path->ev;
	ev.path = id;
	ev.from_state = move->from;
	ev.state = move->to;
	ev.cause = cause;
	ev.rtt_ns = path->srtt_ns;
	ev.sent_ns = sent;
	ev.time_ns = now;
	events.ringbuf_output(&ev, sizeof(ev), 0);
}

/*
 * A round trip of a path: smooth it for the path and for its plane. What is usual
 * there is the lower quartile of the paths' round trips, so that it stays the
 * fast ones' while up to three quarters are slow. Returns 1 when the path is
 * far above that, -1 when it is not.
 */
static __always_inline s32 path_rtt(struct mrc_path *path, struct mrc_balance *b, u32 plane,
				    const struct mrc_host *h, u32 rtt)
{
	u32 srtt = path->srtt_ns, usual = b->usual_ns[plane & 7], step;

	srtt = srtt ? srtt + ((s32)(rtt - srtt) >> 3) : rtt;
	path->srtt_ns = srtt;
	b->srtt_ns[plane & 7] += b->srtt_ns[plane & 7] ?
		(s32)(rtt - b->srtt_ns[plane & 7]) >> 3 : rtt;
	if (!usual)
		usual = srtt;
	step = usual / 64 + 1;
	usual += srtt > usual ? step : -3 * step;
	b->usual_ns[plane & 7] = usual;
	if (srtt > 2 * usual + h->slow_slack_ns)
		return 1;
	return srtt < usual + usual / 2 + h->slow_slack_ns / 2 ? -1 : 0;
}

#endif
