/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a path's life tells others: events for the daemon, round trips for the
 * balance of the planes.
 */
#ifndef MRC_EVENT_H
#define MRC_EVENT_H

#define SLOW_SAMPLES 8           /* so many late round trips in a row make a path slow */
#define PROMPT_SAMPLES 4         /* so many near the usual: it is slow no more */

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
	if (events.ringbuf_output(&ev, sizeof(ev), 0))
		count(MRC_C_EVENT_LOST);
}

#define SLOW_SHIFT 27            /* averages over 2^27 ns ... */
#define FAST_SHIFT 24            /* ... and over 2^24 ns */

/*
 * An average over time, not over samples: the paths of a plane are measured at
 * very different rates. One that was measured often is steady over some 130 ms,
 * which a queue's ups and downs are not, or over some 17 ms; one measured
 * seldom moves by an eighth.
 */
static __always_inline u32 smooth(u32 old, u32 sample, u64 since_ns, u32 shift)
{
	u64 part = since_ns >> (shift - 8);

	if (!old)
		return sample;
	part = part < 1 ? 1 : part > 32 ? 32 : part;
	return old + (((s64)sample - old) * (s64)part >> 8);
}

/*
 * A round trip of a data packet: smooth it for the path and for its plane. What
 * is usual there is the lower quartile, so that it stays the fast paths' while
 * up to three quarters of them are slow. Returns 1 when the path is far above
 * that, on average and several times in a row, and -1 when it is near it, on
 * average or several times in a row: a slow path is used seldom, and its average
 * takes seconds to fall.
 */
static __always_inline s32 path_rtt(struct mrc_path *path, struct mrc_balance *b, u32 plane,
				    const struct mrc_host *h, u32 rtt, u64 now)
{
	u32 p = plane & 7, srtt, usual = b->usual_ns[p], step, near;

	srtt = smooth(path->srtt_ns, rtt, now - path->rtt_at_ns, SLOW_SHIFT);
	path->srtt_ns = srtt;
	path->rtt_at_ns = now;
	b->srtt_ns[p] = smooth(b->srtt_ns[p], rtt, now - b->rtt_at_ns[p], SLOW_SHIFT);
	b->fast_ns[p] = smooth(b->fast_ns[p], rtt, now - b->rtt_at_ns[p], FAST_SHIFT);
	b->rtt_at_ns[p] = now;
	b->now_ns[p] += b->now_ns[p] ? (s32)(rtt - b->now_ns[p]) >> 2 : rtt;
	if (!usual)
		usual = rtt;
	step = usual / 64 + 1;
	usual += rtt > usual ? step : -3 * step;
	b->usual_ns[p] = usual;
	path->late = rtt > 2 * usual + h->slow_slack_ns ? path->late + 1 : 0;
	if (path->late >= SLOW_SAMPLES && srtt > 2 * usual + h->slow_slack_ns)
		return 1;
	near = usual + usual / 2 + h->slow_slack_ns / 2;
	path->prompt = rtt < near ? path->prompt + 1 : 0;
	return srtt < near || path->prompt >= PROMPT_SAMPLES ? -1 : 0;
}

#endif
