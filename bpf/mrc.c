/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The data path: programs that share the maps of mrc_maps.h.
 *
 *   mrc_spray    tc ingress of mrc0's other end   spray.h
 *   mrc_receive  XDP of each plane NIC            receive.h, endpoint.h
 *   mrc_deliver  tc ingress of each plane NIC     deliver.h, answer.h
 *   mrc_learn    where it goes on with a SACK     answer.h
 *   mrc_tick     run by the daemon's clock        tick.h
 *   mrc_probe    where it ends if paths are away  probe.h
 *   mrc_resend   where all end if packets are     retransmit.h
 *                lost
 *   mrc_idle     run at leisure                   probe.h
 *   mrc_judge    run every few ticks              judge.h
 *   mrc_control  run for a command                control.h
 *   mrc_survey   run by the daemon's survey       survey.h
 *
 * The loader replaces #include "..." by the file's text before bcc compiles
 * it, because bcc rewrites map accesses in the main file only. bcc has no
 * bpf-to-bpf calls: every helper is inlined, which bounds the stack to 512
 * bytes for a whole program.
 */
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>

#include "mrc_wire.h"
#include "mrc_abi.h"
#include "mrc_capture.h"
#include "mrc_maps.h"
#include "bits.h"
#include "envelope.h"
#include "frame.h"
#include "path.h"
#include "pick.h"
#include "capture.h"
#include "event.h"
#include "sack.h"
#include "queue.h"
#include "spray.h"
#include "verdict.h"
#include "survey.h"
#include "endpoint.h"
#include "receive.h"
#include "deliver.h"
#include "retransmit.h"
#include "rtt.h"
#include "answer.h"
#include "probe.h"
#include "tick.h"
#include "judge.h"
#include "control.h"

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
