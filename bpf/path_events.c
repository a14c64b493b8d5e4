/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Path events: tell the daemon of a path that changed its state, through the
 * ring buffer, and count it.
 */

/* Count a path's change of state; test runs come here, too. */
static __always_inline void count_move(const struct path_move *move)
{
	if (move->to == MRC_PATH_SKIP || move->to == MRC_PATH_ASSUMED_BAD)
		count_atomic(move->to == MRC_PATH_SKIP ? MRC_C_PATH_SKIPPED :
			     MRC_C_PATH_WITHDRAWN);
	if (move->from == MRC_PATH_ASSUMED_BAD)
		count_atomic(MRC_C_PATH_RESTORED);
}

/* Report a path that came into use or went out of it. A path that enters SKIP is only counted. */
static __always_inline void report_move(u32 qp, u32 id, const struct mrc_path *path,
					const struct path_move *move, u32 cause, u64 sent, u64 now)
{
	struct mrc_event ev = {};

	if (move->to == move->from)
		return;
	count_move(move);
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
		count_atomic(MRC_C_EVENT_LOST);
}

/* Report that no data arrives on a path, whose EV is `path_ev`, or on none: MRC_NO_PATH. */
static __always_inline void report_deaf(u32 qp, u32 id, u32 path_ev, u64 now)
{
	struct mrc_event ev = { .kind = MRC_EVENT_DEAF, .qp = qp, .path = id };

	ev.ev = path_ev;
	ev.time_ns = now;
	if (events.ringbuf_output(&ev, sizeof(ev), BPF_RB_FORCE_WAKEUP))
		count_atomic(MRC_C_EVENT_LOST);
}
