/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The windows of a QP: what the sender has sent, holds back and knows to have arrived, and
 * what the receiver has, delivers and tells. Pure functions. Those that change a window, or
 * need more than one of its fields at the same time, want its lock held, and what lies
 * between two such functions may run on several CPUs at once: the programs take the lock,
 * call them, and do the rest.
 */
#ifndef MRC_WINDOW_H
#define MRC_WINDOW_H

#define CUMULATIVE_WORDS 8       /* words of cumulative news looked at for one SACK ... */
#define SACK_WORDS 10            /* ... and with those of its bitmap */
#define UNSACKED_MAX 64          /* packets, or MPR / 4 if less, that may arrive without a SACK at any rate */
#define CIRCLE_SHIFT 6           /* the mark of an skb that goes round is the time in 64 ns */
#define LARGE_NS 10000000ull     /* cells of several packets arrive if one did this lately */

/* The sender's. */

/* The PSN up to which packets have been sent. Those from there up to tx->next wait. */
static __always_inline u32 sent_up_to(const struct mrc_tx *tx)
{
	return tx->next - tx->held;
}

/*
 * PSNs that may be on their way: what both sides agreed on, or less while the receiver
 * grants less. A peer that grants 0 does not say. What both sides agreed on may have
 * PSNs, and waits if the receiver grants less.
 */
static __always_inline u32 send_window(const struct mrc_qp *q, const struct mrc_tx *tx)
{
	u32 granted = tx->granted;

	return granted && granted < q->mpr ? granted : q->mpr;
}

/* May `packets` more be on their way? */
static __always_inline int window_open(const struct mrc_qp *q, const struct mrc_tx *tx, u32 packets)
{
	return sent_up_to(tx) - tx->una + packets <= send_window(q, tx);
}

/* What the programs and the daemon know of the peer that a packet goes to. */
struct flow {
	struct mrc_host *h;
	struct mrc_peer *peer;
	struct mrc_balance *b;
	struct mrc_qp *q;
	struct mrc_tx *tx;
	u32 tcp;                 /* 1: a packet of TCP */
	u32 keeps;               /* its sender keeps what is refused: TCP of this host, at tc egress; KEEPS, or KEEPS_QUIET */
	u32 small;               /* 1: TCP's window is so small that it sends single packets */
	u32 pays;                /* 1: its sender's socket can be made to wait (park) */
	u32 tell;                /* 1: its copy is kept, and its sender told that the peer is not heard */
	u64 bit;                 /* by its hash, in tx->cut_flows and tx->extra_flows */
	u64 seat;                /* the same in tx->flows: flows of one seat have the same QP by their hash */
	u32 redundant;           /* 1: it is sent on two planes at once, if two serve */
};

/* Has the flow packets in this QP that are not acknowledged yet, or are being cut? */
static __always_inline int flow_is_in(const struct mrc_tx *tx, u64 seat)
{
	if (!((tx->flows | tx->flows_before) & seat))
		return 0;
	return tx->next != tx->una || (s64)tx->cut_pending > 0;
}

/*
 * Note that the flow's next packet is in this QP. What was noted before is forgotten when
 * all packets of that time have been acknowledged. Lock of tx held.
 */
static __always_inline void note_flow(struct mrc_tx *tx, u64 seat)
{
	if ((s32)(tx->una - tx->flows_from) >= 0 && (s64)tx->cut_pending <= 0) {
		tx->flows_before = tx->flows;
		tx->flows = 0;
		tx->flows_from = tx->next;
	}
	tx->flows |= seat;
}

#define WINDOW_SPARE 8           /* this part of the PSNs is not for what is refused without harm */

/* PSNs that a flow may have numbered and not acknowledged. A single cell may need all of a small MPR. */
static __always_inline u32 numbered_at_once(const struct flow *f)
{
	u32 mpr = f->q->mpr;

	if (f->keeps != KEEPS || f->tx->next == f->tx->una)
		return mpr;
	return mpr - mpr / WINDOW_SPARE;
}

/*
 * Take `packets` PSNs for `len` bytes and a path, on one of the planes `up`, at the price of a
 * turn; PATH_HELD instead of a path if they have to wait. Returns the counter of what
 * prevents it, or 0. Lock of tx held.
 */
static __always_inline u32 number_packets(const struct flow *f, u64 up, u64 now, u32 packets,
					  u32 len, u32 price, u32 *psn, u32 *id)
{
	struct mrc_tx *tx = f->tx;
	u32 why = 0;

	up = serving_planes(tx, up, spare_planes(f->h, f->peer));
	*id = MRC_NO_PATH;
	*psn = tx->next;
	if (*psn - tx->una + packets > numbered_at_once(f))
		why = MRC_C_DROP_WINDOW;
	else if (tx->held || !nscc_open(f->h, tx, f->tcp) || !window_open(f->q, tx, packets))
		*id = PATH_HELD | (f->tcp ? 0 : PATH_HELD_OTHER);
	else
		*id = pick_path(tx, up, up, f->b->turns, price);
	if ((*id & PATH_HELD) && nscc_full(f->h, tx, len, f->tcp, f->keeps, f->pays, f->bit, now))
		why = MRC_C_DROP_BACKLOG;
	if (!why && *id != MRC_NO_PATH) {
		note_flow(tx, f->seat);
		tx->next = *psn + packets;
		tx->packets += packets;
		if (*psn == tx->una) {
			tx->progress_ns = now;
			tx->moved_ns = now;
			tx->inflight = 0;
			tx->counted_from = *psn;
		}
		if (*id & PATH_HELD)
			nscc_hold(tx, packets, len, f->tcp, f->bit, now);
		else
			*id |= take_window(f->h, tx, *psn, len);
	}
	return why;
}

/*
 * Take the next packet that waits out of the backlog and pick its path, at the price of a
 * turn. Returns the path with its flags, or MRC_NO_PATH if it has to go on waiting. Lock of
 * tx held.
 */
static __always_inline u32 release_packet(struct resending *r, u32 price, u32 len)
{
	struct mrc_tx_entry *entry = r->entry;
	struct mrc_tx *tx = r->tx;
	u64 up = serving_planes(tx, r->up, r->spare);
	u32 id = MRC_NO_PATH;

	if (tx->held && sent_up_to(tx) == r->psn && nscc_open(r->h, tx, 0) &&
	    window_open(r->q, tx, 1)) {
		id = pick_path(tx, up, up, r->b->turns, price);
		if (id != MRC_NO_PATH) {
			nscc_unhold(tx, len, entry->path != PATH_HELD_OTHER);
			entry->sent_ns = r->now;
			entry->path = id;
			if (r->psn == tx->una) {
				tx->progress_ns = r->now;
				tx->moved_ns = r->now;
			}
			id |= take_window(r->h, tx, r->psn, len);
		}
	}
	return id;
}

/* A SACK, in host order, next to the window that it is about. */
struct sack_in {
	u64 bitmap;
	u32 base;                /* PSN of the bitmap's first bit */
	u32 cack;                /* cumulative PSN */
	u32 trigger;             /* PSN of the packet that caused it */
	u32 m;                   /* congestion mark, MRC_SETH_M_... */
	u32 ev;                  /* of the packet that caused it */
	u32 delayed;             /* not 0: a clock sent it, it tells no round trip */
	u32 needless;            /* not 0: a packet caused it that had arrived before */
	u32 down;                /* bit p: the peer's plane p is down */
	u32 granted;             /* the window that it grants, PSNs */
	u32 heard;               /* count of bytes, 24 bits */
	u32 press;               /* penalty, and whether the window may return, as in CC_STATE */
	u32 una;                 /* tx->una when it came ... */
	u32 next;                /* ... and what had been sent */
	s32 ahead;               /* cack + 1 less una */
	__be16 stamp;            /* time stamp of the packet that caused it; of a cell, its attempt, and perhaps when the SACK was sent */
	u32 solicited;           /* not 0: an answer to a question, whose time stamp it has */
};

/* PSNs that step `step` of a SACK reports as arrived, as bits of the word that is returned. */
static __always_inline u32 sack_word(const struct sack_in *s, u32 step, u64 *mask)
{
	u32 word;

	if (step < CUMULATIVE_WORDS) {
		word = (s->una & ~63u) + 64 * step;
		*mask = range_mask(word, s->una, s->cack + 1);
	} else {
		word = (s->base & ~63u) + 64 * (step - CUMULATIVE_WORDS);
		*mask = shifted(s->bitmap, s->base, word);
	}
	return word;
}

/* Set the bits of a word of tx->sacked. Returns those that are news. Lock of tx held. */
static __always_inline u64 set_sacked(struct mrc_tx *tx, u32 word, u64 mask)
{
	u64 fresh;

	/* una may have moved since; what it passed is done */
	if ((s32)(tx->una - word) > 0)
		mask &= (s32)(tx->una - word) >= 64 ? 0 : ~0ull << ((tx->una - word) & 63);
	fresh = mask & ~tx->sacked[(word >> 6) & CFG_WORD_MASK];
	tx->sacked[(word >> 6) & CFG_WORD_MASK] |= fresh;
	return fresh;
}

/* Move una over everything that arrived. Lock of tx held. */
static __always_inline void advance_una(struct mrc_tx *tx, u64 now)
{
	u32 i, word, shift, n, una = tx->una;
	u64 missing;

	for (i = 0; i <= CUMULATIVE_WORDS; i++) {
		word = (una >> 6) & CFG_WORD_MASK;
		shift = una & 63;
		missing = ~tx->sacked[word] >> shift;
		n = lowest_bit(missing | 1ull << (63 - shift) << 1);
		tx->sacked[word] &= ~(lowest_bits(n) << shift);
		una += n;
		if (missing)
			break;
	}
	if (una != tx->una) {
		tx->una = una;
		tx->progress_ns = now;
		tx->moved_ns = now;
		tx->backoff = 0;
	}
}

/* The receiver's. */

/* Mark a PSN as received; rx_clear() unmarks it when next passes it. Lock of rx held. */
static __always_inline void rx_set(struct mrc_rx *rx, u32 psn)
{
	rx->received[(psn >> 6) & CFG_WORD_MASK] |= 1ull << (psn & 63);
}

static __always_inline void rx_clear(struct mrc_rx *rx, u32 psn)
{
	rx->received[(psn >> 6) & CFG_WORD_MASK] &= ~(1ull << (psn & 63));
}

static __always_inline int rx_bit(const struct mrc_rx *rx, u32 psn)
{
	return rx->received[(psn >> 6) & CFG_WORD_MASK] >> (psn & 63) & 1;
}

/*
 * The bits of PSNs [psn, psn + n), n up to MRC_CELL_PACKETS, in the three words from
 * that of psn on. Without branches: the verifier would follow each.
 */
static __always_inline void psn_masks(u32 psn, u32 n, u64 mask[3])
{
	u32 end = (psn & 63) + n;
	u64 last = (1ull << (end & 63)) - 1, one = 0 - (u64)(end >> 6 & 1), two = 0 - (u64)(end >> 7);

	mask[0] = (last | one | two) & ~0ull << (psn & 63);
	mask[1] = (last & one) | two;
	mask[2] = last & two;
}

/* Received packets among PSNs [psn, psn + n). Lock of rx held. */
static __always_inline u32 rx_count(const struct mrc_rx *rx, u32 psn, u32 n)
{
	u32 i, found = 0;
	u64 mask[3];

	if (__builtin_constant_p(n) && n == 1)
		return rx_bit(rx, psn);
	psn_masks(psn, n, mask);
	#pragma unroll
	for (i = 0; i < 3; i++)
		found += __builtin_popcountll(rx->received[((psn >> 6) + i) & CFG_WORD_MASK] &
					      mask[i]);
	return found;
}

/* Mark or, if `on` is 0, unmark them. Lock of rx held. */
static __always_inline void rx_mark(struct mrc_rx *rx, u32 psn, u32 n, u32 on)
{
	u64 mask[3];
	u32 i;

	psn_masks(psn, n, mask);
	#pragma unroll
	for (i = 0; i < 3; i++) {
		if (on)
			rx->received[((psn >> 6) + i) & CFG_WORD_MASK] |= mask[i];
		else
			rx->received[((psn >> 6) + i) & CFG_WORD_MASK] &= ~mask[i];
	}
}

/* What becomes of a data packet. From RX_DUPLICATE on, it is dropped. */
#define RX_DELIVER 0             /* the next in order */
#define RX_HOLD 1                /* ahead of a gap, or mrc0 refused it for the moment */
#define RX_DUPLICATE 2
#define RX_OUTSIDE 3             /* beyond the receive window */
#define RX_NO_BUFFER 4           /* the reorder ring is full */
#define RX_OVERLAP 5             /* of a piece of a cell: in part a duplicate */

/* A data packet on its way through on_data(). */
struct arrival {
	u32 psn;
	u32 len;                 /* of the application's packet, bytes */
	u32 disposition;         /* RX_... */
	u32 owner;               /* 1: this program owns rx->next */
	u32 held;                /* slot of the reorder ring that holds it, plus one; 0: none */
	u32 want;                /* not 0: a SACK is due */
	u32 more;                /* 1: the packet rx->next is held, and nobody owns it */
	u32 refuse;              /* 1: there is no room for it, and a NACK may say so */
	u32 wrong;               /* why it does not enter mrc0, although it is taken: INNER_... */
};

/* What to do with a piece of `n` packets as the window stands. Lock of rx held. */
static __always_inline u32 rx_disposition(const struct mrc_rx *rx, u32 psn, u32 n)
{
	s32 ahead = psn - rx->next, beyond = ahead + n;
	u32 there;

	if (beyond <= 0)
		return RX_DUPLICATE;
	if (beyond > CFG_WINDOW / 2)
		return RX_OUTSIDE;
	if (ahead < 0)           /* TCP sorts out what it has seen already */
		return rx->busy || rx_count(rx, rx->next, beyond) ? RX_OVERLAP : RX_DELIVER;
	there = rx_count(rx, psn, n);
	if (there)
		return there == n ? RX_DUPLICATE : RX_OVERLAP;
	return ahead == 0 && !rx->busy ? RX_DELIVER : RX_HOLD;
}

/* Find the packet's place in the window; become the owner if it is the next. Lock of rx held. */
static __always_inline void place_packet(struct mrc_rx *rx, u32 wire_psn, struct arrival *a)
{
	a->psn = full_psn(wire_psn, rx->next);
	a->disposition = rx_disposition(rx, a->psn, 1);
	if (a->disposition == RX_DELIVER) {
		a->owner = 1;
		rx->busy = 1 + 1;
		/* A copy that arrives now must not pass for a missing packet. */
		rx_set(rx, a->psn);
	}
}

/* Enter a held packet in the window, unless a copy came first. Lock of rx held. */
static __always_inline void record_held(struct mrc_rx *rx, struct mrc_rx_entry *entry,
					struct arrival *a)
{
	if (rx_disposition(rx, a->psn, 1) >= RX_DUPLICATE) {
		a->disposition = RX_DUPLICATE;
	} else if (!a->held) {
		a->disposition = RX_NO_BUFFER;
	} else {
		entry->psn = a->psn;
		entry->slot = a->held;
		entry->len = a->len | a->wrong << MRC_RX_WHY_SHIFT;
		rx_set(rx, a->psn);
		rx->waiting++;
	}
}

/*
 * Bring the window up to date after a packet that came by `ev`, and give up or take
 * ownership. Lock of rx held.
 */
static __always_inline void record_arrival(struct mrc_rx *rx, struct mrc_rx_entry *entry,
					   u32 ev, struct arrival *a)
{
	if (a->owner)
		rx_clear(rx, a->psn);
	if (a->disposition == RX_HOLD)
		record_held(rx, entry, a);
	else if (a->disposition == RX_DELIVER)
		rx->next = a->psn + 1;
	if (a->disposition < RX_DUPLICATE) {
		rx->packets++;
		rx->bytes += a->len + MRC_DATA_NOMINAL;
		rx->pending_packets++;
		rx->pending_bytes += a->len;
		if ((s32)(a->psn + 1 - rx->high) > 0)
			rx->high = a->psn + 1;
		rx->ev = ev;
	}
	if (a->owner || !rx->busy) {
		/* A retry after mrc0 was full is left to the next arrival. */
		a->more = rx_bit(rx, rx->next) && !(a->owner && a->disposition == RX_HOLD);
		rx->busy = 0;    /* mrc_drain takes ownership anew */
	}
}

/* Become the owner of rx->next if that packet is held. Lock of rx held. */
static __always_inline u32 take_next(struct mrc_rx *rx)
{
	if (rx->busy || !rx_bit(rx, rx->next))
		return 0;
	rx->busy = 1;
	return 1;
}

/*
 * The owner has delivered `n` held packets from rx->next on, `next`. Returns 1 if the packet
 * behind them is held, too; else the caller is no longer the owner. Lock of rx held.
 */
static __always_inline u32 pass_held(struct mrc_rx *rx, u32 next, u32 n)
{
	u32 more;

	rx_mark(rx, next, n, 0);
	rx->next = next + n;
	rx->waiting -= n;
	more = rx_bit(rx, next + n);
	if (!more)
		rx->busy = 0;
	return more;
}

/* A cell, or a piece of one: an IP packet with one or several packets' payload of TCP. */
struct cell {
	__u32 len;               /* of the IP packet, bytes */
	__u32 head;              /* its headers; 0 unless mss is set */
	__u32 mss;               /* payload of each packet but the last; 0: a single packet */
	__u32 count;             /* packets */
	__u32 seq;               /* TCP sequence number of the first byte; 0 unless mss is set */
};

#define CELL_LABEL_EV 0xffff     /* in the flow label: EV[31:16] */
struct piece {                   /* mrc_cell: what arrived */
	struct cell c;
	u32 ace;                 /* 1: its flow uses AccECN (has_accurate_ecn) */
	u32 qp;
	u32 psn;                 /* of the first packet, 24 bits */
	u32 label;
	u32 ce;                  /* not 0: marked on its way */
	u32 v6;                  /* 1: IPv6 inside */
	u32 cut;                 /* MRC_NACK_TRIMMED...: where a switch trimmed it; 0: it is whole */
	u32 wrong;               /* why it does not enter mrc0, although it is taken: INNER_... */
};

/* The path of a piece. */
static __always_inline u32 piece_ev(const struct piece *p)
{
	return (p->label & CELL_LABEL_EV) << 16;
}

/* The nominal sizes of a piece's packets, each of which had headers of its own on the wire. */
static __always_inline u32 nominal_size(const struct piece *p)
{
	u32 n = p->c.count, len = p->c.len + n * MRC_CELL_NOMINAL;

	return n > 1 ? len + (n - 1) * p->c.head : len;
}

/*
 * Count an arrival that was delivered or held. A single packet tells of its mark in
 * the SACK that it becomes. Lock of rx held.
 */
static __always_inline void note_arrival(struct mrc_rx *rx, const struct piece *p, u32 psn)
{
	u32 ev = piece_ev(p);

	rx->packets += p->c.count;
	rx->bytes += nominal_size(p);
	rx->pending_packets += p->c.count;
	rx->pending_bytes += p->c.len;
	if ((s32)(psn + p->c.count - rx->high) > 0)
		rx->high = psn + p->c.count;
	rx->ev = ev;
	if (p->ce && p->c.count > 1) {
		rx->ce_psn = psn;
		rx->ce_ev = ev + 1;
	}
}

/*
 * May an early piece of `n` packets go round? Not for longer than `limit`, and not before a
 * gap that has been open for longer. Single packets are better held, except beside cells of
 * several: what is held needs an skb to be delivered with, and those of large cells serve for
 * nothing else. Lock of rx held.
 */
static __always_inline int may_circle(struct mrc_rx *rx, u32 limit, u32 n, u32 mark, u32 stamp,
				      u64 now)
{
	if (rx->gap_psn != rx->next) {
		rx->gap_psn = rx->next;
		rx->gap_ns = now;
	}
	if (n == 1 && (now - rx->large_ns > LARGE_NS || rx_bit(rx, rx->next)))
		return 0;
	if (now - rx->gap_ns >= limit)
		return 0;
	return !mark || (u64)(u32)(stamp - mark) << CIRCLE_SHIFT < limit;
}

/* A piece's place in the window. */
struct place {
	u32 psn;
	u32 disposition;         /* RX_... */
	u32 own;                 /* packets from rx->next on that it has */
	u32 circle;              /* 1: it goes round */
};

/*
 * Find a piece's place in the window; become the owner if it is the next. `limit`, `mark` and
 * `stamp` as in may_circle(). Lock of rx held.
 */
static __always_inline void place_piece(struct mrc_rx *rx, u32 limit, const struct piece *p,
					u32 mark, u32 stamp, u64 now, struct place *at)
{
	u32 n = p->c.count;

	at->psn = full_psn(p->psn, rx->next);
	at->disposition = rx_disposition(rx, at->psn, n);
	at->own = at->psn + n - rx->next;
	at->circle = 0;
	at->circle = 0;
	if (n > 1 && at->disposition <= RX_HOLD)
		rx->large_ns = now;
	if (at->disposition == RX_DELIVER) {
		rx->busy = 1 + at->own;
		/* A copy that arrives now must not pass for a missing piece. */
		rx_mark(rx, rx->next, at->own, 1);
	} else if (at->disposition == RX_HOLD) {
		at->circle = may_circle(rx, limit, n, mark, stamp, now);
	} else if (at->disposition == RX_DUPLICATE && n > 1) {
		rx->pending_packets++; /* the clock answers */
	}
}

/*
 * Enter a piece in the window of which the slot `held` has a copy, unless another copy was
 * entered meanwhile. A single packet gets its entry at once, since the owner of rx->next may be
 * about to deliver it. Returns what becomes of the piece. Lock of rx held.
 */
static __always_inline u32 enter_piece(struct mrc_rx *rx, const struct piece *p, u32 psn,
				       struct mrc_rx_entry *entry, u32 held)
{
	u32 disposition = rx_disposition(rx, psn, p->c.count);

	if (disposition > RX_HOLD)
		return disposition;
	if (p->c.count == 1) {
		entry->slot = held;
		entry->len = p->c.len | p->wrong << MRC_RX_WHY_SHIFT;
		entry->psn = psn;
	}
	rx_mark(rx, psn, p->c.count, 1);
	rx->waiting += p->c.count;
	note_arrival(rx, p, psn);
	return RX_HOLD;
}

/* The owner has delivered a piece, or has `failed` to. Lock of rx held. */
static __always_inline void pass_piece(struct mrc_rx *rx, const struct piece *p,
				       const struct place *at, u32 failed)
{
	rx_mark(rx, rx->next, at->own, 0);
	rx->busy = 0;
	if (failed)
		return;
	rx->next += at->own;
	note_arrival(rx, p, at->psn);
}

struct sack_body {               /* host order, what a SACK says */
	__u32 cack;
	__u32 ev;
	__s32 ack_off;           /* PSN that caused it less cack; probe id when pr */
	__s32 sack_off;
	__u64 bitmap;
	__u32 pr;
	__u32 m;
	__u32 cc_flags;
	__u32 ooo;
	__u32 ts;                /* time stamp to reflect, as it came */
	__u32 down;              /* our planes that are down, a bit each */
	__u32 mpr;               /* PSNs behind cack that we can take, in units of MRC_MPR_UNIT */
	__u32 press;             /* MRC_CC_RESTORE, or a penalty << MRC_CC_PENALTY_SHIFT */
	__u64 bytes;             /* nominal sizes of what arrived */
};

/*
 * Describe the window from PSN `base` on (next <= base < high). The window is
 * twice the MPR, so the 64 bits never wrap to its beginning. What an owner is about to
 * deliver has not arrived as long as mrc0 may refuse it: the sender forgets what has. Lock of
 * rx held.
 */
static __always_inline void sack_from_rx(const struct mrc_rx *rx, u32 base, struct sack_body *s)
{
	u32 word = (base >> 6) & CFG_WORD_MASK, shift = base & 63;

	s->cack = rx->next - 1;
	s->sack_off = base - s->cack;
	s->bitmap = rx->received[word] >> shift;
	if (shift)
		s->bitmap |= rx->received[(word + 1) & CFG_WORD_MASK] << (64 - shift);
	s->bitmap &= ~lowest_bits(within_word((s32)(rx->next + rx->busy - 1 - base)));
	s->ooo = rx->waiting;
	s->bytes = rx->bytes;
}

/*
 * Name the packet that caused a SACK, by its distance. Of an old copy beyond the reach of
 * the field the low half of the distance would name another packet, which may be on its way:
 * the SACK says that none caused it.
 */
static __always_inline void name_trigger(struct sack_body *sack, u32 psn)
{
	s32 distance = psn - sack->cack;

	if (distance != (s16)distance) {
		distance = 0;
		sack->cc_flags = MRC_CC_FLAG_DELAYED;
	}
	sack->ack_off = distance;
}

/*
 * The PSN at which the next SACK's 64 bits begin. A wider window is reported in
 * slices, one after the other, so every PSN is reported repeatedly. The sender
 * treats a packet as missing only if a SACK reports it so. Lock of rx held.
 */
static __always_inline u32 next_slice(struct mrc_rx *rx)
{
	u32 span = rx->high - rx->next, base = rx->next;

	if (span > MRC_SACK_BITS)
		base += (rx->slice * MRC_SACK_BITS) % ((span + 63) & ~63u);
	rx->slice++;
	return base;
}

/*
 * Is a SACK due? It is if enough has arrived and the last one left some time
 * ago: at high rates SACKs would otherwise be half of all packets and tell
 * little that is new. But the sender's window must not fill in the meantime, and
 * a window that takes several SACKs to describe is not held back. Lock of rx
 * held.
 */
static __always_inline u32 sack_is_due(const struct mrc_rx *rx, const struct mrc_host *h,
				       const struct mrc_qp *q, u64 now)
{
	u32 pending = rx->pending_packets;

	if (pending < h->sack_packets && rx->pending_bytes < h->sack_bytes)
		return 0;
	return now - rx->sacked_ns >= h->sack_gap_ns || pending >= UNSACKED_MAX ||
	       pending >= q->mpr / 4 || rx->high - rx->next > MRC_SACK_BITS;
}

/* Fill in a SACK; it covers everything that was pending. Lock of rx held. */
static __always_inline void take_sack(struct mrc_rx *rx, struct sack_body *sack, u64 now)
{
	sack_from_rx(rx, next_slice(rx), sack);
	rx->pending_packets = 0;
	rx->pending_bytes = 0;
	rx->sacked_ns = now;
}

/* Tell of the mark of a cell that could not be answered itself. Lock of rx held. */
static __always_inline void take_mark(struct mrc_rx *rx, struct sack_body *sack, u32 *psn)
{
	if (!rx->ce_ev)
		return;
	*psn = rx->ce_psn;
	sack->ev = rx->ce_ev - 1;
	sack->m = MRC_SETH_M_SKIP_ONCE;
	rx->ce_ev = 0;
}

/*
 * Fill in a SACK of the clock, if one is overdue. Returns 1 if packets have arrived since the
 * last one. Lock of rx held.
 */
static __always_inline u32 take_delayed(struct mrc_rx *rx, struct sack_body *sack, u64 now)
{
	u32 psn;

	if (!rx->pending_packets && !rx->waiting)
		return 0;
	take_sack(rx, sack, now);
	sack->ev = rx->ev;
	psn = sack->cack;
	take_mark(rx, sack, &psn);
	sack->ack_off = psn - sack->cack;
	return 1;
}

/* Has the gap at rx->next stayed open for hole_timeout_ns? The clock's only. */
static __always_inline int gap_is_old(const struct mrc_host *h, struct mrc_rx *rx, u64 now)
{
	if (!rx->waiting) {
		rx->hole_ns = 0;
		return 0;
	}
	if (!rx->hole_ns || rx->hole_psn != rx->next) {
		rx->hole_psn = rx->next;
		rx->hole_ns = now;
		return 0;
	}
	return now - rx->hole_ns > h->hole_timeout_ns;
}

/* Give up on a gap, unless a CPU owns rx->next. Returns the PSNs skipped. Lock of rx held. */
static __always_inline u32 skip_gap(struct mrc_rx *rx)
{
	u32 skipped = 0, i;

	if (!rx->busy) {
		for (i = 0; i < 64; i++) {
			if (rx_bit(rx, rx->next) || (s32)(rx->next - rx->high) >= 0)
				break;
			rx->next++;
			skipped++;
		}
	}
	rx->hole_psn = rx->next; /* a wide gap is one gap: the rest gets no new time-out */
	return skipped;
}

/* The clock's. */

/* Planes that have paths away, a bit each. */
static __always_inline u32 planes_away(const struct mrc_tx *tx)
{
	u32 i, away = 0;

	for (i = 0; i < MRC_SET_WORDS; i++)
		away |= not_zero(slots_away(tx, i)) << (i / MRC_EV_WORDS);
	return away;
}

/* Is there anything for the clock to watch? */
static __always_inline int at_work(const struct mrc_tx *tx, const struct mrc_rx *rx)
{
	return tx->una != tx->next || rx->pending_packets || rx->waiting;
}

/*
 * Would mrc_tick do anything for this QP? The answer needs no lock, since what changes
 * meanwhile is seen at the next look. Of most QPs that are sending, only the time-out
 * is to be watched.
 */
static __always_inline int needs_tick(const struct mrc_host *h, const struct mrc_qp *q,
				      const struct mrc_tx *tx, const struct mrc_rx *rx, u64 now)
{
	if (q->state != MRC_QP_READY || rx->pending_packets || rx->waiting || rx->hole_ns)
		return 1;
	if (tx->held || planes_away(tx))
		return 1;
	if (tx->una == tx->next)
		return 0;
	/* No time-out is shorter than rto_min_ns. A QP whose oldest packet stays is given up some time. */
	return (s64)(now - tx->progress_ns) > h->rto_min_ns ||
	       (s64)(now - tx->moved_ns) > (s64)RTO_MAX_NS;
}

#endif
