/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Chains of programs that end in each other: what they hand on, and which is next. Pure
 * functions.
 */
#ifndef MRC_CHAIN_H
#define MRC_CHAIN_H

/*
 * What programs hand to those they end in, and the state of loops. State that a
 * loop keeps on the stack makes the verifier walk the rest of the program once
 * for each value of it; a number read back from a map is just a number.
 *
 * All programs that use it run in a softirq or with softirqs disabled, and so never
 * interrupt each other on a CPU. Packets' chains and the clock's have memory of
 * their own, and skb->cb[0] tells mrc_resend, which both reach, which one it is in.
 * Tail calls and the helpers that change an skb leave cb alone.
 */
#define CHAIN_PACKET 0           /* mrc_deliver, mrc_cell, mrc_learn, mrc_resend, mrc_drain, mrc_refuse */
#define CHAIN_CLOCK 1            /* mrc_beat, mrc_judge, mrc_tick, mrc_probe, mrc_resend, mrc_drain */
#define CHAIN_COUNT 2

#define TAIL_CALLS 33            /* tail calls that the kernel allows in a chain */
#define RESEND_MAX 16            /* packets sent again by one chain */
#define RELEASE_MAX 12           /* packets that waited for the window sent by one chain */
#define DRAIN_PACKETS 4          /* held packets released by one program run ... */
#define DRAIN_RUNS 24            /* ... of at most this number in a row */
#define TICK_DRAINS 4            /* of these in a tick, where ... */
#define TICK_RELEASES 3          /* ... packets that mrc_release sends beside other work */

_Static_assert(1 + TICK_DRAINS + RESEND_MAX + MRC_MAX_PLANES + TICK_RELEASES + 1 <= TAIL_CALLS,
	       "mrc_tick, a probe of each plane, and mrc_release once more, which sends nothing");
_Static_assert(3 + RESEND_MAX + RELEASE_MAX + 1 <= TAIL_CALLS,
	       "mrc_deliver, mrc_learn and mrc_solicit, and mrc_release once more");

struct learn_args {              /* mrc_deliver to mrc_learn: what a SACK tells */
	u64 now;
	u64 latest;              /* latest send time among the packets that arrived */
	u64 seen_ns;             /* packets that the SACK misses should have arrived by then */
	u64 rtt;                 /* round trip of the packet that caused it; 0: none measured */
	u32 qp;
	u32 high;                /* highest PSN that arrived, plus one */
	u32 heard;               /* its count of bytes, 24 bits */
	u32 down;                /* bit p: the peer's plane p is down */
	u32 granted;             /* the window that it grants, PSNs */
	u32 next;                /* what had been sent when it came */
	u32 base;                /* PSN of its bitmap's first bit */
	u32 id;                  /* path of the packet that caused it, or MRC_NO_PATH */
	u32 is_long;             /* 1: that packet had half of the MTU or more */
	u32 class;               /* of its length (nscc.h) */
	u32 bytes;               /* of the packets that arrived */
	u32 m;                   /* its congestion mark for that path, MRC_SETH_M_... */
	u32 press;               /* its penalty, and whether the window may return, as in CC_STATE */
	u32 rule;                /* counter of the rule that sent that packet needlessly; 0: none */
	s32 slow;                /* what path_rtt() found: 1 slow, -1 not, 0 undecided */
};

struct probe_args {              /* mrc_tick to mrc_probe, and mrc_probe to itself */
	u64 now;
	u32 qp;
	u32 planes;              /* bit p: plane p is still to be probed */
	u32 curious;             /* plane to probe even if all its paths are fine, or MRC_MAX_PLANES */
};

#define JUDGED_MOST 8            /* peers judged at one beat */

struct beat_args {               /* mrc_beat to itself and to mrc_judge */
	u64 now;
	u64 mask;                /* bits of `word` that are still to be looked at */
	u32 word;                /* of active QPs */
	u32 left;                /* words still to be looked at */
	u32 runs;                /* how often it has called itself */
	u32 seen;                /* 1: a QP is active */
	u32 out;                 /* the interface by which the beat goes on */
	u32 judging;             /* how many peers are in .due */
	u32 due[JUDGED_MOST];    /* peers whose planes are to be judged */
};

struct resend_args {             /* to mrc_resend, from all others and from itself */
	u64 now;
	u64 seen_ns;             /* packets in `due` should have arrived by then */
	u64 timeout_ns;          /* age at which they are lost; 0: by evidence; or NACK_PATH, NACK_LASTHOP */
	u32 qp;
	u32 found;               /* how many are in `due` */
	u32 done;                /* how many of them are done */
	u32 last;                /* the last PSN in `due` */
	u32 due[RESEND_MAX];     /* PSNs */
};

struct release_args {            /* to mrc_release, from all others and from itself */
	u32 qp;
	u32 due;                 /* 1: packets wait for the window */
	u32 done;                /* how many it has sent */
};

struct refuse_args {             /* mrc_deliver and mrc_cell to mrc_refuse: what the NACK says */
	u32 qp;
	u32 reason;              /* MRC_NACK_... */
	u32 psn;                 /* 24 bits */
	u32 ev;
	u32 ts;
};

struct drain_args {              /* to mrc_drain, from all others and from itself */
	u32 qp;
	u32 due;                 /* 1: something may be ready to be delivered */
	u32 runs;                /* how often it has called itself */
	u32 want;                /* 1: a SACK follows, and what it says of the packet that caused it: */
	u32 psn;                 /* its PSN, unless it is a question; */
	u32 ev;                  /* its path; */
	u32 ts;                  /* its time stamp; */
	u32 m;                   /* its congestion mark; */
	u32 cc_flags;            /* MRC_CC_FLAG_... */
};

struct sack_state {              /* mrc_deliver's loop over the words of a SACK */
	u32 step;
};

struct learn_state {             /* mrc_learn */
	u32 found_slow;          /* 1: the path is slow from now on */
	u32 pressed;             /* counter of what the receiver's penalty did to the window; 0: nothing */
};

struct mrc_chain {
	struct learn_args learn;
	struct beat_args beat;
	struct probe_args probe;
	struct resend_args resend;
	struct release_args release;
	struct drain_args drain;
	struct refuse_args refuse;
	struct piece piece;
	u32 ask;                 /* to mrc_solicit: the QP whose SACK is wanted */
	struct sack_state sack;
	struct learn_state learning;
	u8 head[MRC_HEAD_MAX];   /* headers of the packet that is made of a copy */
};

/* Nothing is left to do from an earlier chain of programs. */
static __always_inline void begin_chain(struct mrc_chain *chain)
{
	chain->drain.due = 0;
	chain->resend.found = 0;
	chain->resend.done = 0;
	chain->probe.planes = 0;
	chain->release.due = 0;
}

/*
 * What a chain of programs does next: TAIL_..., or TAIL_COUNT if nothing is left. What has
 * arrived comes first, since applications wait for it. What waits for the window comes
 * last, because another chain can go on with it.
 */
static __always_inline u32 next_tail(const struct mrc_chain *chain)
{
	if (chain->drain.due)
		return TAIL_DRAIN;
	if (chain->resend.done < chain->resend.found)
		return TAIL_RESEND;
	if (chain->probe.planes)
		return TAIL_PROBE;
	return chain->release.due ? TAIL_RELEASE : TAIL_COUNT;
}

/* Begin a chain that releases what waits in a QP; not 0 in `want`: and answers with a SACK. */
static __always_inline void begin_drain(struct mrc_chain *chain, u32 qp, u32 want)
{
	begin_chain(chain);
	chain->drain.qp = qp;
	chain->drain.runs = 0;
	chain->drain.want = want;
}

/* What the SACK says of the packet that caused it; not 0 in `ce`: it was marked on its way. */
static __always_inline void answer_to(struct drain_args *out, u32 psn, u32 ev, u32 ts, u32 ce,
				      u32 cc_flags)
{
	out->psn = psn;
	out->ev = ev;
	out->ts = ts;
	out->m = ce ? MRC_SETH_M_SKIP_ONCE : 0;
	out->cc_flags = cc_flags;
}

/*
 * Say what mrc_resend does with the packets listed. mrc_resend calls itself for
 * the next packet, so that the verifier walks one packet and not all.
 */
static __always_inline void begin_resend(struct resend_args *out, u32 qp, u64 now, u64 seen_ns,
					 u64 timeout_ns)
{
	out->qp = qp;
	out->done = 0;
	out->now = now;
	out->seen_ns = seen_ns;
	out->timeout_ns = timeout_ns;
}

static __always_inline void begin_release(struct release_args *out, u32 qp, const struct mrc_tx *tx)
{
	out->qp = qp;
	out->due = tx->held;
	out->done = 0;
}

/* Begin what a tick has found to do: its chain also delivers, sends again and probes. */
static __always_inline void begin_tick(struct mrc_chain *chain, u32 qp, const struct mrc_tx *tx,
				       u64 now)
{
	chain->probe.qp = qp;
	chain->probe.now = now;
	chain->resend.qp = qp;
	chain->resend.done = 0;
	chain->resend.now = now;
	chain->resend.seen_ns = now;
	begin_release(&chain->release, qp, tx);
	if (next_tail(chain) != TAIL_RELEASE)
		chain->release.done = RELEASE_MAX - TICK_RELEASES;
}

#endif
