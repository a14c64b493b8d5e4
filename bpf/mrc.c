/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The data path. This file includes all others and defines mrc_deliver, where
 * data and feedback part. The programs share the maps of maps.c. Files that
 * look up maps end in .c, all others in .h.
 *
 * The paths of a packet:
 *
 *   mrc0 -> mrc_spray -> plane
 *           spray.c: find the peer and a QP, signal congestion to TCP (aqm.c),
 *           keep a copy, take a PSN and a path (pick.h), write the headers
 *           (data_tx.c, frame.h, envelope.h); large segments of TCP go as cells
 *           (cell_tx.c, cell.h), or out of mrc0c to be cut, and come back by mrc0cp
 *
 *   plane -> mrc_receive -> mrc_deliver
 *            |              |- data: deliver.c, in order to mrc0, or into the
 *            |              |  reorder ring; answered by a SACK (sack_tx.c)
 *            |              |- SACK: sack_rx.c, what has arrived; then mrc_learn
 *            |              |- NACK: nack_rx.c; then mrc_resend, or later
 *            |              '- question for a SACK: solicit.c; then mrc_drain
 *            |- cells: cell_rx.c (mrc_cell), whole and in order to mrc0, round
 *            |  through the backlog, or into the reorder ring
 *            |- receive.c: checks; turns trimmed packets, refused opcodes and probes round
 *            |- trimmed.c: what receive.c and mrc_cell know of trimmed packets
 *            |- endpoint.c: packets for QP 2
 *            '- survey.c: our own survey probes that came back
 *
 * Tail calls:
 *
 *   mrc_receive --marked--> mrc_deliver     (with native XDP, the next hook is mrc_deliver's)
 *   mrc_receive --cell----> mrc_cell        (with native XDP, from mrc_deliver)
 *   mrc_deliver --SACK--> mrc_learn --lost--> mrc_resend --next--> mrc_resend
 *   mrc_learn --a SACK is wanted--> mrc_solicit --lost--> mrc_resend
 *   mrc_deliver --NACK----------------------> mrc_resend
 *   mrc_deliver, mrc_cell --packets wait, or a question--> mrc_drain --more--> mrc_drain
 *   mrc_deliver, mrc_cell --no room, no place--> mrc_refuse
 *   mrc_cell --a SACK is wanted--> mrc_solicit
 *   mrc_spray --nobody, or not heard--> mrc_unreachable
 *   mrc_spray --by two planes--> mrc_redundant
 *   mrc_beat --needed--> mrc_tick --overdue--> mrc_resend --packets wait--> mrc_drain
 *   mrc_beat --more QPs--> mrc_beat --peers are due--> mrc_judge --more--> mrc_judge
 *   mrc_beat --probes are due--> mrc_idle --more--> mrc_idle
 *   mrc_tick --planes to probe--> mrc_probe --next plane--> mrc_probe
 *                                 mrc_probe --what mrc_tick found--> mrc_resend
 *
 *   mrc_learn   sack_rx.c, rtt.h, back.h round trips, marks, what counts as lost
 *   mrc_drain   deliver.c          a few held packets; at the end the SACK that is due
 *   mrc_solicit solicit.c          a question for a SACK
 *   mrc_refuse  refuse.c           a NACK
 *   mrc_unreachable unreachable.c  an ICMP message to the sender
 *   mrc_redundant redundant.c      the second sending of a packet, by another plane
 *   mrc_probe   probe.c            one plane to probe
 *   mrc_resend  retransmit.c       one packet that counts as lost
 *   mrc_tick    tick.c             what no arriving packet triggers, for one QP
 *   mrc_judge   judge.c            the shares of a peer's planes
 *   mrc_idle    probe.c            one plane of a QP that may be idle
 *
 * The clock: mrc_beat (beat.c) runs whenever a packet arrives that circles in a pair of
 * interfaces, every tick_us (1 ms) while a QP is active.
 *
 * Programs that the daemon runs by PROG_TEST_RUN:
 *
 *   mrc_survey  survey.c   the next survey probe
 *   mrc_control control.c  a command
 *   mrc_beat    beat.c     makes the first beat, or another one
 *
 * Shared: expire.c has stubs of datagrams that are too old. path.h has the states of a path, and path_events.c reports their
 * changes. error.c has QPs that give up. hook.h makes mrc_receive an XDP or a tc program, and exits.c holds
 * its exits. capture.c records packets while a capture runs.
 *
 * The loader replaces #include "..." by the file's text before bcc compiles
 * it, because bcc rewrites map accesses in the main file only. bcc has no
 * bpf-to-bpf calls: every helper is inlined, which bounds the stack to 512
 * bytes for a whole program.
 */

#include <uapi/linux/bpf.h>
#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>
#include <uapi/linux/in6.h>
#include <uapi/linux/ip.h>
#include <uapi/linux/ipv6.h>
#include <uapi/linux/pkt_cls.h>
#include <uapi/linux/udp.h>

#include "mrc_wire.h"
#include "mrc_abi.h"
#include "mrc_capture.h"
#include "bits.h"
#include "path.h"
#include "pick.h"
#include "rtt.h"
#include "back.h"
#include "nscc.h"
#include "penalty.h"
#include "loss.h"
#include "window.h"
#include "chain.h"
#include "learn.h"
#include "redundant.h"
#include "share.h"
#include "envelope.h"
#include "tag.h"
#include "frame.h"
#include "cell.h"
#include "hook.h"
#include "icmp.h"
#include "maps.c"
#include "capture.c"
#include "path_events.c"
#include "sack_tx.c"
#include "error.c"
#include "aqm.c"
#include "copy.c"
#include "expire.c"
#include "data_tx.c"
#include "spray.c"
#include "redundant.c"
#include "exits.c"
#include "admit.c"
#include "survey.c"
#include "endpoint.c"
#include "trimmed.c"
#include "refuse.c"
#include "receive.c"
#include "inner.c"
#include "deliver.c"
#include "unreachable.c"
#include "solicit.c"
#include "cell_rx.c"
#include "retransmit.c"
#include "release.c"
#include "cell_tx.c"
#include "sack_rx.c"
#include "nack_rx.c"
#include "probe.c"
#include "tick.c"
#include "beat.c"
#include "judge.c"
#include "control.c"

/* A SACK or a NACK from the receiver of our data. Its skb carries what is sent again. */
static __always_inline int on_feedback(struct __sk_buff *skb, const struct mrc_mark *mark, u32 key)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	struct mrc_host *h = host_get();
	u32 qp = mark->qp;
	struct mrc_balance *b;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now;

	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!h || !chain || !q || !tx || q->state != MRC_QP_READY)
		return TC_ACT_SHOT;
	b = balance_get(q->peer);
	if (!b)
		return TC_ACT_SHOT;
	skb->cb[0] = CHAIN_PACKET;
	begin_chain(chain);
	begin_release(&chain->release, qp, tx);
	now = bpf_ktime_get_ns();
	if (mark->flags & MRC_MARK_NACK)
		on_nack(skb, mark, q, tx, &chain->resend, now, key);
	else
		on_sack(skb, qp, CELLS && q->framing == MRC_FRAMING_CELL, CELLS && q->timed, tx, b, h,
			chain, now, key);
	return TC_ACT_SHOT;
}

/* What native XDP has passed on without a mark: a cell, or a packet for the ordinary stack. */
static __always_inline int unmarked(struct __sk_buff *skb)
{
	struct mrc_host *h = host_get();
	void *data, *end;

	if (!CFG_XDP || !h)
		return TC_ACT_UNSPEC;
	skb_pull_headers(skb, CELL_KNOWN);
	data = SKB_DATA(skb);
	end = SKB_END(skb);
	if (data + CELL_KNOWN > end || *eth_proto(data) != MRC_ETH_PROTO ||
	    !envelope_is_cell(data, h))
		return TC_ACT_UNSPEC;
	return end_in_cell(skb);
}

int mrc_deliver(struct __sk_buff *skb)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_mark *in = data, mark;
	u32 key;

	/* A packet without the mark of mrc_receive is not ours, or a cell. */
	if (data + MRC_ETH_LEN > end || in->magic0 != MRC_MARK_MAGIC0 ||
	    in->magic1 != MRC_MARK_MAGIC1)
		return unmarked(skb);
	if (CFG_XDP && in->flags == MRC_MARK_STACK) {
		in->magic0 = 2;  /* no group's address any more */
		skb->mark = MRC_ADMITTED_MARK;
		return TC_ACT_UNSPEC;
	}
	mark = *in;
	key = capture_key(skb, &mark);
	if (mark.flags & (MRC_MARK_SACK | MRC_MARK_NACK))
		return on_feedback(skb, &mark, key);
	if (mark.flags & MRC_MARK_SOLICIT)
		return on_solicit(skb, &mark, key);
	return on_data(skb, &mark, key);
}
