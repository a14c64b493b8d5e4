/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The data path: programs that share the maps of maps.c.
 *
 *   mrc_spray    tc ingress of mrc0's other end   spray.c
 *   mrc_receive  XDP of each plane NIC            receive.c, endpoint.c
 *   mrc_deliver  tc ingress of each plane NIC     deliver.c, sack_rx.c
 *   mrc_learn    where it goes on with a SACK     sack_rx.c
 *   mrc_tick     run by the daemon's clock        tick.c
 *   mrc_probe    where it ends if paths are away  probe.c
 *   mrc_resend   where all end if packets are     retransmit.c
 *                lost
 *   mrc_idle     run at leisure                   probe.c
 *   mrc_judge    run every few ticks              judge.c
 *   mrc_control  run for a command                control.c
 *   mrc_survey   run by the daemon's survey       survey.c
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
#include "envelope.h"
#include "frame.h"
#include "path.h"
#include "pick.h"
#include "rtt.h"
#include "maps.c"
#include "capture.c"
#include "path_events.c"
#include "sack_tx.c"
#include "aqm.c"
#include "data_tx.c"
#include "spray.c"
#include "xdp_actions.c"
#include "survey.c"
#include "endpoint.c"
#include "receive.c"
#include "deliver.c"
#include "retransmit.c"
#include "sack_rx.c"
#include "nack_rx.c"
#include "probe.c"
#include "tick.c"
#include "judge.c"
#include "control.c"

/* What comes back from the receiver of our data; its skb carries what is sent again. */
static __always_inline int on_answer(struct __sk_buff *skb, const struct mrc_mark *mark, u32 key)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	struct mrc_host *h = host_get();
	u32 qp = mark->qp;
	struct mrc_balance *b;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u64 now, why;

	q = qps.lookup(&qp);
	tx = txs.lookup(&qp);
	if (!h || !chain || !q || !tx || q->state != MRC_QP_READY)
		return TC_ACT_SHOT;
	b = balance_get(q->peer);
	if (!b)
		return TC_ACT_SHOT;
	skb->cb[0] = CHAIN_PACKET;
	now = bpf_ktime_get_ns();
	if (!(mark->flags & MRC_MARK_NACK)) {
		on_sack(skb, qp, tx, b, h, chain, now, key);
		return TC_ACT_SHOT;
	}
	count(MRC_C_NACK_RX);
	capture_outcome(key, qp, MRC_C_NACK_RX);
	why = on_nack(mark, tx, &chain->resend);
	if (why)
		resend_due(skb, &chain->resend, qp, now, now, why);
	return TC_ACT_SHOT;
}

int mrc_deliver(struct __sk_buff *skb)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_mark *in = data, mark;
	u32 key;

	/* Without the mark of mrc_receive it is not ours. */
	if (data + MRC_ETH_LEN > end || in->magic0 != MRC_MARK_MAGIC0 ||
	    in->magic1 != MRC_MARK_MAGIC1)
		return TC_ACT_UNSPEC;
	mark = *in;
	key = capture_key(skb, &mark);
	if (mark.flags & (MRC_MARK_SACK | MRC_MARK_NACK))
		return on_answer(skb, &mark, key);
	return on_data(skb, &mark, key);
}
