/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Path events: tell the daemon of a path that changed its state, through the
 * ring buffer, and count it.
 */
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
