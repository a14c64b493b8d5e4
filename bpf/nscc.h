/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Congestion control: NSCC's window (Ultra Ethernet 1.0, 3.6.13) for each QP, as it
 * is written in docs/protocol.md. What the window has no room for waits in the
 * retransmit ring and is sent by release.c. Every function wants the lock of tx.
 */
#ifndef MRC_NSCC_H
#define MRC_NSCC_H

#define NSCC_GAIN 8              /* a round trip without delay adds this part of the window ... */
#define NSCC_FAST 4              /* ... and this part if there has been next to none for a window */
#define NSCC_CALM 8              /* next to none: less than this part of the target */
#define NSCC_RATIO_MAX 15        /* a QP counts as having at least this part of the planes' rate */
#define NSCC_LEAST 2             /* smallest window, in packets */
#define NSCC_FIRST 16            /* first window, in packets ... */
#define NSCC_FIRST_PART 4        /* ... or this part of what the planes carry in a millisecond */
#define NSCC_GATE 8              /* QuickAdapt acts if less than this part of the window arrived */
#define NSCC_STUCK 64            /* round trips at the smallest window that show a longer base */
#define NSCC_TARGETS 4ull         /* the window holds at most a round trip and a half, and this number of targets */
#define NSCC_ASKS 8              /* while the window is full, each such part of it asks for a SACK */
#define NSCC_PARK 4              /* the parking interface lets out this part of what the planes carry ... */
#define NSCC_PARK_LEAST 128      /* ... in packets of at least this number of bytes: no skb is cut into its transport header */
#define NSCC_SINGLES 131072      /* bytes of TCP that may wait in single packets beyond what large segments may */
#define NSCC_QUIET 4194304       /* ... and of connections with nothing on their way: refused, they stand still for 200 ms */
#define NSCC_TURN_NS 20000000ull /* time between two of these for a connection whose packets would be lost */
#define NSCC_OTHERS 32768        /* bytes that may always wait, if they are not TCP's ... */
#define NSCC_BURST 262144        /* ... and in a burst, at least; more if ... */
#define NSCC_BURST_MS 10         /* ... the planes carry more in this number of milliseconds; a burst may last ... */
#define NSCC_BURST_NS 20000000ull /* ... for this time until everything has been sent */

/* Class of a packet's length, of MRC_LENGTHS. */
static __always_inline u32 length_class(u32 len)
{
	u32 class = len * MRC_LENGTHS / (CFG_MTU + 1);

	return class & (MRC_LENGTHS - 1);
}

static __always_inline u32 nscc_first(const struct mrc_host *h)
{
	u32 part = h->cc_rate / NSCC_FIRST_PART;

	return part > NSCC_FIRST * CFG_MTU ? part : NSCC_FIRST * CFG_MTU;
}

/*
 * May packets be sent now? The last one may exceed the window, and TCP, which is told
 * of a full window by CE marks, may exceed it by half.
 */
static __always_inline int nscc_open(const struct mrc_host *h, struct mrc_tx *tx, u32 tcp)
{
	if (!h->cc_target_ns)
		return 1;
	if (!tx->cwnd)
		tx->cwnd = nscc_first(h);
	return tx->inflight < tx->cwnd + (tcp ? tx->cwnd / 2 : 0);
}

/* Send `len` bytes. Returns PATH_LAST if the window is full then. */
static __always_inline u32 take_window(const struct mrc_host *h, struct mrc_tx *tx, u32 psn, u32 len)
{
	tx->inflight += len;
	tx->unasked += len;
	if (!h->cc_target_ns || tx->inflight + CFG_MTU <= tx->cwnd)
		return 0;
	if ((s32)(tx->asked - tx->una) >= 0 && tx->unasked < tx->cwnd / NSCC_ASKS)
		return 0;
	tx->asked = psn;
	tx->unasked = 0;
	return PATH_LAST;
}

/* Of what keeps: whether a packet's sender keeps it if it is refused. */
#define KEEPS 1                  /* TCP, which tries again with its next acknowledgement */
#define KEEPS_QUIET 2            /* TCP with nothing on its way, which tries again after 200 ms or more */

/* Most bytes that may wait in a queue that stays. */
static __always_inline u32 nscc_room(const struct mrc_host *h, const struct mrc_tx *tx)
{
	u32 room = tx->cwnd, least = 4 * CFG_MTU;

	if (least < 2 * h->cell_bytes)
		least = 2 * h->cell_bytes;
	return room < least ? least : room;
}

/* Most bytes of others than TCP that may wait in a burst. */
static __always_inline u32 nscc_burst(const struct mrc_host *h)
{
	u32 most = h->cc_rate * NSCC_BURST_MS;

	return most > NSCC_BURST ? most : NSCC_BURST;
}

/*
 * Does too much wait already? At tc egress TCP keeps what is refused; everything else is
 * lost. So TCP's backlog is no reason to refuse others, and what is lost if it is refused
 * has more room: TCP hears of the backlog by CE marks, and a burst of others ends. What a
 * connection sends that has nothing on its way has the most (KEEPS_QUIET): if that is refused, TCP
 * tries again only after 200 ms, then 400, and so on. Where TCP loses
 * what is refused, all its packets are single, and a busy connection could keep the others
 * out: each flow has one packet beyond the room at a time. `flow` is its bit.
 */
static __always_inline int nscc_full(const struct mrc_host *h, const struct mrc_tx *tx, u32 len,
				     u32 tcp, u32 keeps, u32 pays, u64 flow, u64 now)
{
	u32 room = nscc_room(h, tx), waits = tx->backlog - tx->others;

	if (tcp) {
		if (keeps == KEEPS_QUIET)
			return waits > NSCC_QUIET;
		if (!keeps || len <= CFG_MTU)
			room = room > NSCC_BURST ? room : NSCC_BURST;
		if (waits <= room)
			return 0;
		if (len > CFG_MTU || waits > room + NSCC_SINGLES)
			return 1;
		return !keeps && (tx->extra_flows & flow) && now - tx->extra_ns <= NSCC_TURN_NS;
	}
	if (tx->others <= room || tx->others <= NSCC_OTHERS)
		return 0;
	return tx->others > nscc_burst(h) || (!pays && now - tx->others_ns > NSCC_BURST_NS);
}

/*
 * How long a packet waits in front of the socket that sent it, where `waits` bytes of others than
 * TCP wait already, so that the socket pays for it meanwhile: bytes of it that leave the parking interface, which lets out a quarter of what
 * the planes carry. The more waits, the slower than the planes; 0: too little waits. A queue that
 * stays is kept as short as the window, as nscc_full() keeps that of senders that do not pay.
 */
static __always_inline u32 nscc_parked(const struct mrc_host *h, const struct mrc_tx *tx,
				       u32 waits, u32 len, u64 now)
{
	u32 room = now - tx->others_ns > NSCC_BURST_NS ? nscc_room(h, tx) : nscc_burst(h);

	if (waits < room / 4)
		return 0;
	if (waits < room / 2)
		len /= 2 * NSCC_PARK;
	else if (waits < room / 4 * 3)
		len /= NSCC_PARK;
	return len > NSCC_PARK_LEAST ? len : NSCC_PARK_LEAST;
}

/* Note that a flow of TCP has a packet waiting, where that may be beyond the room. */
static __always_inline void nscc_note_extra(struct mrc_tx *tx, u64 flow, u64 now)
{
	if (tx->backlog - tx->others <= NSCC_BURST)
		return;
	if (now - tx->extra_ns > NSCC_TURN_NS) {
		tx->extra_ns = now;
		tx->extra_flows = 0;
	}
	tx->extra_flows |= flow;
}

/* Note that `packets` of `len` bytes together begin to wait. */
static __always_inline void nscc_hold(struct mrc_tx *tx, u32 packets, u32 len, u32 tcp, u64 flow,
				      u64 now)
{
	if (!tx->held)
		tx->held_ns = now;
	tx->held += packets;
	tx->backlog += len;
	if (tcp) {
		nscc_note_extra(tx, flow, now);
		return;
	}
	if (!tx->others)
		tx->others_ns = now;
	tx->others += len;
}

/* Note that a packet of `len` bytes waits no longer. */
static __always_inline void nscc_unhold(struct mrc_tx *tx, u32 len, u32 tcp)
{
	tx->held--;
	tx->backlog = tx->held && tx->backlog > len ? tx->backlog - len : 0;
	if (!tx->held)
		tx->others = 0;
	else if (!tcp)
		tx->others = tx->others > len ? tx->others - len : 0;
}

/* How many QPs of a peer share its traffic, in sixteenths: one counts by what it has of the busiest. */
static __always_inline u32 nscc_sharers(const struct mrc_balance *b)
{
	u64 sum = 0;
	u32 i, most = 0;

	for (i = 0; i < MRC_SENDERS; i++) {
		sum += b->inflight[i];
		if (b->inflight[i] > most)
			most = b->inflight[i];
	}
	return most ? sum * 16 / most : 16;
}

/*
 * The delay to aim at, longer for a peer that has less of the planes' rate: in one
 * queue all measure the same delay, and all are content only with equal rates. QPs of one
 * peer are one sender, or a peer with more of them would get more, in a longer queue.
 */
static __always_inline u32 nscc_target(const struct mrc_host *h, const struct mrc_balance *b,
				       const struct mrc_tx *tx, u32 rtt)
{
	u64 full = (u64)h->cc_rate * rtt / 1000000, ratio;

	ratio = full * 256 / ((u64)(tx->cwnd ? tx->cwnd : 1) * nscc_sharers(b));
	if (ratio < 16)
		ratio = 16;
	if (ratio > 16 * NSCC_RATIO_MAX)
		ratio = 16 * NSCC_RATIO_MAX;
	return (u64)h->cc_target_ns * (16 + ratio) / 32;
}

static __always_inline void nscc_bound(const struct mrc_host *h, struct mrc_tx *tx, u32 base)
{
	u64 most = (u64)h->cc_rate * (base + base / 2 + NSCC_TARGETS * h->cc_target_ns) / 1000000;

	if (most < NSCC_FIRST * CFG_MTU)
		most = NSCC_FIRST * CFG_MTU;
	if (tx->cwnd > most)
		tx->cwnd = most;
	if (tx->cwnd < NSCC_LEAST * CFG_MTU)
		tx->cwnd = NSCC_LEAST * CFG_MTU;
}

/*
 * The delay of a packet of a length class: what exceeds the shortest round trip of a probe, which
 * every sender can know at any time. The shortest of its data it knows only if it has ever sent them
 * into empty queues; a sender that has not would take a queue that others have made for the way, and
 * get more than they. Until a probe was answered, it is all there is.
 */
static __always_inline u32 nscc_delay(struct mrc_balance *b, u32 class, u32 rtt)
{
	u32 base = b->base_ns[class & (MRC_LENGTHS - 1)];

	if (!base || rtt < base) {
		b->base_ns[class & (MRC_LENGTHS - 1)] = rtt;
		base = rtt;
	}
	if (b->probed_ns)
		base = b->probed_ns;
	return rtt > base ? rtt - base : 0;
}

/*
 * The smallest window does not end the delay, and the delay does not vary as others'
 * queues do: the path has become longer. Measure from there.
 */
static __always_inline void nscc_rebase(const struct mrc_host *h, struct mrc_tx *tx,
					struct mrc_balance *b, u32 delay)
{
	u32 i;

	if (tx->cuts && tx->delay_ns > tx->cut_least_ns + h->cc_target_ns / 2)
		tx->cuts = 0;
	if (!tx->cuts || delay < tx->cut_least_ns)
		tx->cut_least_ns = delay;
	tx->cuts++;
	if (tx->cuts < NSCC_STUCK)
		return;
	for (i = 0; i < MRC_LENGTHS; i++)
		if (b->base_ns[i])
			b->base_ns[i] += tx->cut_least_ns;
	if (b->probed_ns)
		b->probed_ns += tx->cut_least_ns;
	tx->cuts = 0;
	tx->delay_ns = 0;
}

/* Decrease, at most once in a round trip. */
static __always_inline void nscc_decrease(const struct mrc_host *h, struct mrc_tx *tx,
					  struct mrc_balance *b, u32 rtt, u32 delay, u64 now)
{
	u32 over = tx->delay_ns - tx->target_ns, part;

	if (now - tx->shrunk_ns < rtt)
		return;
	tx->shrunk_ns = now;
	if (tx->cwnd <= NSCC_LEAST * CFG_MTU) {
		nscc_rebase(h, tx, b, delay);
		return;
	}
	tx->cuts = 0;
	part = (u64)over * 205 / tx->delay_ns; /* 0.8 of 256 */
	tx->cwnd -= (u64)tx->cwnd * (part > 128 ? 128 : part) >> 8;
}

/* QuickAdapt: if packets were lost and little arrived in a round trip, send as much as arrived. */
static __always_inline void nscc_adapt(struct mrc_tx *tx, u32 rtt, u64 now)
{
	if (now - tx->epoch_ns <= rtt + tx->target_ns)
		return;
	if (tx->lost && tx->got < tx->cwnd / NSCC_GATE)
		tx->cwnd = tx->got > NSCC_LEAST * CFG_MTU ? tx->got : NSCC_LEAST * CFG_MTU;
	tx->epoch_ns = now;
	tx->got = 0;
	tx->lost = 0;
}

/*
 * `bytes` of a QP have arrived, by a SACK whose packet, of a length class, took `rtt`; 0 if
 * that is not known. `marked`: the SACK told of a congestion mark.
 */
static __always_inline void nscc_sack(const struct mrc_host *h, struct mrc_tx *tx,
				      struct mrc_balance *b, u32 qp, u32 bytes, u32 rtt, u32 class,
				      u32 marked, u64 now)
{
	u32 delay, base, busy = tx->backlog || tx->inflight > tx->cwnd / 2;

	tx->inflight = tx->inflight > bytes ? tx->inflight - bytes : 0;
	tx->got += bytes;
	b->inflight[qp & (MRC_SENDERS - 1)] = tx->inflight;
	if (!h->cc_target_ns || !tx->cwnd || !rtt)
		return;
	delay = nscc_delay(b, class & (MRC_LENGTHS - 1), rtt);
	base = rtt - delay;
	delay -= delay < b->back_ns ? delay : b->back_ns;
	tx->delay_ns += (s32)(delay - tx->delay_ns) >> 3;
	tx->target_ns = nscc_target(h, b, tx, tx->srtt_ns);
	if (busy)
		b->target_ns = tx->target_ns;
	if (marked) /* a switch says that there is a queue: the path is no longer than it was */
		tx->cuts = 0;
	if (tx->delay_ns > tx->target_ns) {
		tx->calm = 0;
		nscc_decrease(h, tx, b, tx->srtt_ns, delay, now);
	} else if (busy && !marked) {
		tx->cuts = 0;
		tx->calm = delay < tx->target_ns / NSCC_CALM ? tx->calm + bytes : 0;
		if (tx->calm > tx->cwnd)
			tx->cwnd += bytes / NSCC_FAST;
		else
			tx->cwnd += (u64)bytes * (tx->target_ns - tx->delay_ns) /
				    tx->target_ns / NSCC_GAIN;
	}
	nscc_bound(h, tx, base);
	nscc_adapt(tx, rtt, now);
}

/*
 * A packet of `bytes` was trimmed: a queue is full, whatever round trips say. Its copy takes
 * its place in flight at once.
 */
static __always_inline void nscc_trim(const struct mrc_host *h, struct mrc_tx *tx, u32 bytes,
				      u64 now)
{
	u32 least = NSCC_LEAST * CFG_MTU, before = tx->cwnd;

	if (!h->cc_target_ns || !tx->cwnd)
		return;
	tx->calm = 0;
	tx->lost += bytes;
	nscc_adapt(tx, tx->srtt_ns, now);
	if (tx->cwnd == before)
		tx->cwnd = before > bytes + least ? before - bytes : least;
}

/* Is there a queue? Without one a loss is a fault and no congestion. */
static __always_inline int nscc_queues(const struct mrc_tx *tx)
{
	return tx->delay_ns > tx->target_ns / 2;
}

/* Packets of `bytes` were lost. */
static __always_inline void nscc_loss(const struct mrc_host *h, struct mrc_tx *tx, u32 bytes)
{
	if (!h->cc_target_ns || !nscc_queues(tx))
		return;
	tx->lost += bytes;
	tx->cwnd = tx->cwnd > bytes + NSCC_LEAST * CFG_MTU ? tx->cwnd - bytes :
							      NSCC_LEAST * CFG_MTU;
}

#endif
