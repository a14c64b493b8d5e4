/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The receiving half of a QP on two CPUs. Each takes a packet, a piece of a cell, or the clock's
 * packet, and runs through the same steps as the programs do: what is under a lock is a step,
 * and what lies between two locks. Planes deliver in any order, and mrc0 may refuse what it
 * is given.
 *
 *   receiver PACKETS [cells] [pairs] [slots=N] [copies=N] [refusals=N] [ticks=N] [holes] [circles]
 *
 * cells: in that framing; pairs: of two packets each, as far as they go. holes: each beat is a
 * time-out of a gap later than the one before.
 */
#include "host.h"

#define PACKETS_MAX 4
#define UNITS (PACKETS_MAX + PACKETS_MAX / 2) /* packets, and pairs of them */
#define FIRST 0xfffffffeu
#define LEN 1000
#define BASE_NS 1000000000000ull
#define LATE_NS 1000000000ull
#define CIRCLE_NS 1000000
#define DRAIN_FEW 2              /* as DRAIN_PACKETS, but a window this small can have more ... */
#define DRAIN_AGAIN 3            /* ... and as DRAIN_RUNS */

enum kind { IDLE, PACKET, PIECE, TICK };
enum {
	DATA_LOCK, DATA_MOVE, DATA_RECORD_LOCK, DATA_SETTLE,
	PIECE_LOCK, PIECE_DELIVER, PIECE_PASS_LOCK, PIECE_HOLD, PIECE_ENTER_LOCK, PIECE_WRITE,
	PIECE_DONE, PIECE_COPY_LOCK,
	DRAIN_LOCK, DRAIN_EMIT, DRAIN_PASS_LOCK, DRAIN_LEAVE_LOCK, DRAIN_ANSWER_LOCK,
	TICK_LOOK, TICK_REST, TICK_BEGIN, TICK_HOLE_LOCK, TICK_DUE, TICK_SACK_LOCK, TICK_ON,
	TICK_REST_TOO,
};
static const char *const STEPS[] = {
	"data: place", "data: deliver or hold", "data: record", "data: settle",
	"piece: place", "piece: deliver", "piece: pass", "piece: hold", "piece: enter",
	"piece: write entry", "piece: done", "piece: copy",
	"drain: own", "drain: emit", "drain: pass", "drain: leave", "drain: answer",
	"beat: look", "beat: rest again", "tick: begin", "tick: hole", "tick: due", "tick: sack",
	"tick: go on", "tick: rest again",
};

struct thread {
	u8 kind, pc;
	u8 unit;
	u8 at;                   /* entry to write, or packets released by this run */
	u8 slot;                 /* plus one */
	u8 failed, more;
	u8 alone;                /* a tick while nothing else is under way */
	u8 refused;              /* mrc0 has refused what it delivered */
	u8 pad[3];
	u32 psn, disposition, want, stamp;
	u64 now;
	struct arrival a;
	struct piece p;
	struct place place;
	struct drain_args drain;
};

struct state {
	struct mrc_rx rx;
	struct mrc_rx_entry entry[PACKETS_MAX];
	u32 tag[PACKETS_MAX];    /* of a slot: the PSN of its first packet */
	u32 mark[UNITS];         /* of a piece that goes round */
	u8 left[PACKETS_MAX];    /* packets that need a slot; 0: it is free */
	u8 coming[UNITS];
	u8 copies, refusals, ticks, active;
	u8 out;                  /* packets delivered, or given up */
	u8 got, skipped;         /* which, a bit each */
	u8 told;                 /* what SACKs tell of as arrived */
	u8 late, rounds, ticked, moving;
	struct thread cpu[2];
};

#include "walk.h"

static u32 packets, cells, pairs, slots = PACKETS_MAX, holes, refusing;
static struct mrc_host host;
static struct mrc_qp q;
static struct mrc_tx tx;

static u64 now_of(const struct state *s)
{
	return BASE_NS + s->late * LATE_NS + s->rounds * (CIRCLE_NS / 2);
}

static u32 first_of(u32 unit)
{
	return unit < PACKETS_MAX ? unit : (unit - PACKETS_MAX) * 2;
}

static u32 count_of(u32 unit)
{
	return unit < PACKETS_MAX ? 1 : 2;
}

static struct mrc_rx_entry *entry_of(struct state *s, u32 psn)
{
	return &s->entry[(psn - FIRST) % PACKETS_MAX];
}

/* Packets reach mrc0. */
static const char *deliver(struct state *s, u32 psn, u32 n)
{
	for (; n; n--, psn++) {
		if (psn - FIRST != s->out)
			return "a packet is delivered out of order";
		if (psn - FIRST >= packets || s->got >> s->out & 1)
			return "a packet is delivered twice";
		s->got |= 1 << s->out;
		s->out++;
	}
	return NULL;
}

static u8 take_slot(struct state *s, u32 psn, u32 n)
{
	u32 i;

	for (i = 0; i < slots; i++) {
		if (s->left[i])
			continue;
		s->left[i] = n;
		s->tag[i] = psn;
		return i + 1;
	}
	return 0;
}

static const char *give_slot(struct state *s, u32 slot, u32 n)
{
	if (!slot || s->left[slot - 1] < n)
		return "a slot is given back twice";
	s->left[slot - 1] -= n;
	if (!s->left[slot - 1])
		s->tag[slot - 1] = 0;
	return NULL;
}

/* Send a SACK. What it tells of as arrived, the sender forgets. */
static void tell_of(struct state *s, const struct sack_body *sack)
{
	u32 i, base = sack->cack + sack->sack_off;

	for (i = 0; i < packets; i++)
		if ((s32)(sack->cack - (FIRST + i)) >= 0 ||
		    (FIRST + i - base < 64 && (sack->bitmap >> ((FIRST + i - base) & 63) & 1)))
			s->told |= 1 << i;
}

static void begin(struct thread *t, u32 want)
{
	t->drain.want = want;
	t->drain.runs = 0;
	t->pc = DRAIN_LOCK;
}

/* ---- packets in MRC's framing */

static const char *data(struct state *s, struct thread *t, u32 refuse)
{
	struct mrc_rx *rx = &s->rx;
	struct sack_body sack = {};
	const char *wrong = NULL;

	switch (t->pc) {
	case DATA_LOCK:
		t->a.len = LEN;
		place_packet(rx, (FIRST + t->unit) & MRC_PSN_MASK, &t->a);
		if (t->a.psn != FIRST + t->unit || t->a.disposition == RX_OUTSIDE)
			return "a PSN is taken for another";
		t->pc = DATA_MOVE;
		return NULL;
	case DATA_MOVE:
		t->pc = DATA_RECORD_LOCK;
		if (t->a.disposition == RX_DELIVER && refuse)
			t->a.disposition = RX_HOLD;
		else if (t->a.disposition == RX_DELIVER)
			wrong = deliver(s, t->a.psn, 1);
		if (t->a.disposition == RX_HOLD)
			t->a.held = take_slot(s, t->a.psn, 1);
		return wrong;
	case DATA_RECORD_LOCK:
		record_arrival(rx, entry_of(s, t->a.psn), 0, &t->a);
		t->a.want = t->a.disposition == RX_DUPLICATE ||
			    sack_is_due(rx, &host, &q, t->now);
		if (t->a.want && !t->a.more) {
			take_sack(rx, &sack, t->now);
			tell_of(s, &sack);
		}
		t->want = sack.ooo;
		t->pc = DATA_SETTLE;
		return NULL;
	default:
		if (t->a.disposition == RX_DUPLICATE && t->a.held)
			wrong = give_slot(s, t->a.held, 1);
		if (!t->a.want || t->want)
			s->active = 1;
		if (t->a.more)
			begin(t, t->a.want);
		else
			t->kind = IDLE;
		return wrong;
	}
}

/* ---- pieces of cells */

static void done(struct state *s, struct thread *t)
{
	if (!t->want || t->p.c.count > 1 || s->rx.waiting)
		s->active = 1;
	if (t->p.c.count == 1 && (t->want || rx_bit(&s->rx, s->rx.next)))
		begin(t, t->want);
	else
		t->kind = IDLE;
}

static const char *piece(struct state *s, struct thread *t, u32 refuse)
{
	u32 n = count_of(t->unit), i;
	struct mrc_rx *rx = &s->rx;
	struct mrc_rx_entry *e;

	switch (t->pc) {
	case PIECE_LOCK:
		t->p.c.count = n;
		t->p.c.len = n * LEN;
		t->p.psn = (FIRST + first_of(t->unit)) & MRC_PSN_MASK;
		t->stamp = (u32)(t->now >> CIRCLE_SHIFT) | 1;
		place_piece(rx, host.circle_ns, &t->p, s->mark[t->unit], t->stamp, t->now, &t->place);
		t->disposition = t->place.disposition;
		t->pc = PIECE_DONE;
		if (t->place.circle) {
			if (!s->mark[t->unit])
				s->mark[t->unit] = t->stamp;
			s->coming[t->unit]++;
			s->rounds++;
			t->kind = IDLE;
		} else if (t->disposition == RX_HOLD) {
			t->pc = PIECE_HOLD;
		} else if (t->disposition == RX_DELIVER) {
			t->pc = PIECE_DELIVER;
		} else if (t->disposition == RX_OVERLAP) {
			t->kind = IDLE;
		} else if (t->disposition == RX_OUTSIDE) {
			return "a PSN is taken for another";
		}
		return NULL;
	case PIECE_DELIVER:
		t->failed = refuse;
		t->pc = PIECE_PASS_LOCK;
		return refuse ? NULL : deliver(s, rx->next, t->place.own);
	case PIECE_PASS_LOCK:
		pass_piece(rx, &t->p, &t->place, t->failed);
		t->pc = PIECE_DONE;
		if (t->failed)
			t->kind = IDLE;
		return NULL;
	case PIECE_HOLD:
		t->slot = take_slot(s, t->place.psn, n);
		t->pc = PIECE_ENTER_LOCK;
		if (!t->slot)
			t->kind = IDLE;
		return NULL;
	case PIECE_ENTER_LOCK:
		t->disposition = enter_piece(rx, &t->p, t->place.psn, entry_of(s, t->place.psn), t->slot);
		t->pc = n > 1 ? PIECE_WRITE : PIECE_DONE;
		if (t->disposition == RX_HOLD)
			return NULL;
		t->pc = PIECE_DONE;
		if (t->disposition == RX_OVERLAP)
			t->kind = IDLE;
		return give_slot(s, t->slot, n);
	case PIECE_WRITE:
		i = t->at++;
		e = entry_of(s, t->place.psn + i);
		e->slot = t->slot + (i << MRC_SLOT_AT_SHIFT);
		e->psn = t->place.psn + i;
		if (t->at == n)
			t->pc = PIECE_DONE;
		return NULL;
	case PIECE_DONE:
		if (t->disposition == RX_DUPLICATE && n == 1) {
			t->pc = PIECE_COPY_LOCK;
			return NULL;
		}
		t->want = sack_is_due(rx, &host, &q, t->now);
		done(s, t);
		return NULL;
	default:
		t->want = 1;
		done(s, t);
		return NULL;
	}
}

/* ---- what waited */

static const char *drain(struct state *s, struct thread *t, u32 refuse)
{
	struct mrc_rx *rx = &s->rx;
	struct sack_body sack = {};
	struct mrc_rx_entry *e;
	const char *wrong;
	u32 slot;

	switch (t->pc) {
	case DRAIN_LOCK:
		t->at = 0;
		t->more = 0;
		t->drain.runs++;
		if (take_next(rx))
			t->pc = DRAIN_EMIT;
		else if (t->drain.want)
			t->pc = DRAIN_ANSWER_LOCK;
		else
			t->kind = IDLE;
		return NULL;
	case DRAIN_EMIT:
		t->psn = rx->next;
		e = entry_of(s, t->psn);
		slot = (e->slot - 1) & MRC_SLOT_INDEX;
		t->pc = DRAIN_LEAVE_LOCK;
		t->more = 0;
		if (e->psn != (t->psn & 0xffff) || slot >= slots || !s->left[slot] ||
		    s->tag[slot] != t->psn - ((e->slot - 1) >> MRC_SLOT_AT_SHIFT & 127))
			return NULL;
		if (refuse)
			return NULL;
		wrong = deliver(s, t->psn, 1);
		t->pc = DRAIN_PASS_LOCK;
		return wrong ? wrong : give_slot(s, slot + 1, 1);
	case DRAIN_PASS_LOCK:
		t->more = pass_held(rx, t->psn, 1);
		t->at++;
		if (!t->more && t->drain.want)
			t->pc = DRAIN_ANSWER_LOCK;
		else if (!t->more)
			t->kind = IDLE;
		else
			t->pc = t->at < DRAIN_FEW ? DRAIN_EMIT : DRAIN_LEAVE_LOCK;
		return NULL;
	case DRAIN_LEAVE_LOCK:
		rx->busy = 0;
		if (t->more && t->drain.runs < DRAIN_AGAIN)
			t->pc = DRAIN_LOCK;
		else if (t->drain.want)
			t->pc = DRAIN_ANSWER_LOCK;
		else
			t->kind = IDLE;
		return NULL;
	default:
		take_sack(rx, &sack, t->now);
		tell_of(s, &sack);
		t->kind = IDLE;
		return NULL;
	}
}

/* ---- the clock */

static const char *tick(struct state *s, struct thread *t)
{
	struct mrc_rx *rx = &s->rx;
	struct sack_body sack = {};
	u32 i, n;

	switch (t->pc) {
	case TICK_LOOK:
		t->pc = TICK_BEGIN;
		if (!s->active) {
			t->kind = IDLE;
		} else if (!needs_tick(&host, &q, &tx, rx, t->now)) {
			t->kind = IDLE;
			if (!at_work(&tx, rx)) {
				s->active = 0;
				t->kind = TICK;
				t->pc = TICK_REST;
			}
		}
		return NULL;
	case TICK_REST:
		if (at_work(&tx, rx))
			s->active = 1;
		t->kind = IDLE;
		return NULL;
	case TICK_BEGIN:
		t->pc = gap_is_old(&host, rx, t->now) ? TICK_HOLE_LOCK : TICK_DUE;
		return NULL;
	case TICK_HOLE_LOCK:
		n = skip_gap(rx);
		for (i = 0; i < n; i++)
			s->skipped |= 1 << s->out++;
		t->pc = TICK_DUE;
		return NULL;
	case TICK_DUE:
		t->drain.due = rx_bit(rx, rx->next);
		t->pc = TICK_SACK_LOCK;
		return NULL;
	case TICK_SACK_LOCK:
		if (take_delayed(rx, &sack, t->now))
			tell_of(s, &sack);
		t->pc = TICK_ON;
		return NULL;
	case TICK_ON:
		if (!at_work(&tx, rx)) {
			s->active = 0;
			t->pc = TICK_REST_TOO;
			return NULL;
		}
		break;
	default:
		if (at_work(&tx, rx))
			s->active = 1;
	}
	if (t->drain.due)
		begin(t, 0);
	else
		t->kind = IDLE;
	return NULL;
}

/* ---- the walk */

static int quiet(const struct state *s)
{
	u32 i;

	for (i = 0; i < UNITS; i++)
		if (s->coming[i])
			return 0;
	return !s->cpu[0].kind && !s->cpu[1].kind;
}

static const char *sums(const struct state *s)
{
	u32 i, held = 0, left = 0;

	for (i = 0; i < CFG_WINDOW / 64; i++)
		held += __builtin_popcountll(s->rx.received[i]);
	for (i = 0; i < PACKETS_MAX; i++)
		left += s->left[i];
	if (s->rx.busy)
		return "it has an owner that is gone";
	if (held != s->rx.waiting)
		return "the number of what waits is wrong";
	if (left != held)
		return "a slot is not given back";
	if (s->rx.next - FIRST != s->out)
		return "the next PSN is wrong";
	return NULL;
}

enum { STEP0, STEP1, REFUSE0, REFUSE1, START_TICK, START_ALONE, AGAIN, ARRIVE = 16, COPY = 32 };

static int delivers(const struct thread *t)
{
	return (t->pc == DATA_MOVE && t->kind == PACKET && t->a.disposition == RX_DELIVER) ||
	       t->pc == PIECE_DELIVER || t->pc == DRAIN_EMIT;
}

static u32 moves(const struct state *s, u8 *out)
{
	u32 n = 0, i, room = !s->cpu[0].kind || !s->cpu[1].kind, ticking;

	if (quiet(s)) {
		if (at_work(&tx, &s->rx) && !s->ticked)
			out[n++] = START_ALONE;
		else if (s->out != packets)
			out[n++] = AGAIN;
		return n;
	}
	ticking = s->cpu[0].kind == TICK || s->cpu[1].kind == TICK;
	for (i = 0; i < 2; i++) {
		if (!s->cpu[i].kind)
			continue;
		out[n++] = STEP0 + i;
		if (s->refusals && delivers(&s->cpu[i]))
			out[n++] = REFUSE0 + i;
	}
	if (room && s->ticks && !ticking)
		out[n++] = START_TICK;
	for (i = 0; i < UNITS; i++)
		if (s->coming[i] && room)
			out[n++] = ARRIVE + i;
	for (i = 0; i < packets; i++)
		if (s->copies)
			out[n++] = COPY + i;
	return n;
}

/* What is missing is sent again, packet by packet. */
static const char *send_again(struct state *s)
{
	u32 i, n = 0;

	for (i = s->out; i < packets; i++) {
		if (rx_bit(&s->rx, FIRST + i))
			continue;
		if (s->told >> i & 1)
			return "a SACK told of a packet that is missing";
		s->coming[i]++;
		n++;
	}
	s->ticked = 0;
	return n ? NULL : "nothing is missing, and nobody delivers it";
}

static const char *start(struct state *s, u8 move)
{
	struct thread *t = &s->cpu[s->cpu[0].kind ? 1 : 0];

	if (move == START_TICK || move == START_ALONE) {
		if (holes)
			s->late++;
		if (move == START_TICK)
			s->ticks--;
		else if (sums(s))
			return sums(s);
		else if (!s->active)
			return "the clock does not look after the QP";
		else if (!pairs && !refusing && rx_bit(&s->rx, s->rx.next))
			return "a packet is left to the clock";
		t->kind = TICK;
		t->pc = TICK_LOOK;
		t->alone = s->ticked = move == START_ALONE;
	} else {
		t->unit = move - ARRIVE;
		s->coming[t->unit]--;
		s->ticked = s->cpu[0].alone = s->cpu[1].alone = 0;
		t->kind = cells ? PIECE : PACKET;
		t->pc = cells ? PIECE_LOCK : DATA_LOCK;
	}
	t->now = now_of(s);
	return NULL;
}

static const char *make(struct state *s, u8 move)
{
	u32 refuse, alone, refused;
	const char *wrong;
	struct thread *t;

	if (move >= COPY) {
		s->copies--;
		s->coming[move - COPY]++;
		return NULL;
	}
	if (move == AGAIN)
		return send_again(s);
	if (move >= START_TICK)
		return start(s, move);
	refuse = move >= REFUSE0;
	t = &s->cpu[(move - STEP0) & 1];
	if (refuse) {
		s->refusals--;
		t->refused = 1;
	}
	alone = t->alone;
	if (t->pc >= TICK_LOOK)
		wrong = tick(s, t);
	else if (t->pc >= DRAIN_LOCK)
		wrong = drain(s, t, refuse);
	else
		wrong = t->kind == PACKET ? data(s, t, refuse) : piece(s, t, refuse);
	if (wrong || t->kind != IDLE)
		return wrong;
	refused = t->refused;
	memset(t, 0, sizeof(*t));
	if (alone && refused)
		s->ticked = 0;   /* the next one delivers it */
	else if (alone && rx_bit(&s->rx, s->rx.next))
		return "the clock came and left what it could deliver";
	else if (alone && s->rx.pending_packets)
		return "the clock came and sent no SACK";
	return NULL;
}

static const char *end(const struct state *s)
{
	if ((s->got | s->skipped) != (1 << packets) - 1 || (s->got & s->skipped))
		return "a packet was never delivered";
	if (!holes && s->skipped)
		return "a packet was given up";
	return sums(s);
}

static struct key hash_state(const struct state *s)
{
	struct key k = { 1, 2 };

	k = mix(k, &s->rx, offsetof(struct mrc_rx, received) + CFG_WINDOW / 8);
	k = mix(k, &s->entry, offsetof(struct state, cpu) - offsetof(struct state, entry));
	return mix_cpus(k, s);
}

static void tell(const struct state *s, u8 move, char *text, size_t size)
{
	if (move >= COPY)
		snprintf(text, size, "packet %d is sent again", move - COPY);
	else if (move >= ARRIVE)
		snprintf(text, size, "%d of %d arrive", count_of(move - ARRIVE), first_of(move - ARRIVE));
	else if (move == AGAIN)
		snprintf(text, size, "what is missing is sent again");
	else if (move >= START_TICK)
		snprintf(text, size, "beat");
	else
		snprintf(text, size, "CPU %d %s%s", move & 1, STEPS[s->cpu[move & 1].pc],
			 move >= REFUSE0 ? ", and mrc0 refuses" : "");
}

int main(int argc, char **argv)
{
	static struct state s;
	u32 i;

	packets = atoi(argv[1]);
	for (i = 2; i < (u32)argc; i++) {
		if (!strcmp(argv[i], "cells"))
			cells = 1;
		else if (!strcmp(argv[i], "pairs"))
			cells = pairs = 1;
		else if (!strcmp(argv[i], "holes"))
			holes = 1;
		else if (!strcmp(argv[i], "circles"))
			host.circle_ns = CIRCLE_NS;
		else if (!strncmp(argv[i], "slots=", 6))
			slots = atoi(argv[i] + 6);
		else if (!strncmp(argv[i], "copies=", 7))
			s.copies = atoi(argv[i] + 7);
		else if (!strncmp(argv[i], "refusals=", 9))
			s.refusals = refusing = atoi(argv[i] + 9);
		else if (!strncmp(argv[i], "ticks=", 6))
			s.ticks = atoi(argv[i] + 6);
		else
			return 2;
	}
	if (packets < 1 || packets > PACKETS_MAX || slots > PACKETS_MAX)
		return 2;
	host.sack_packets = 2;
	host.sack_bytes = 1 << 30;
	host.hole_timeout_ns = LATE_NS / 2;
	q.state = MRC_QP_READY;
	q.mpr = 64;
	s.rx.next = s.rx.high = FIRST;
	for (i = 0; i < packets; i++) {
		if (pairs && (i | 1) < packets)
			s.coming[PACKETS_MAX + i / 2] = 1;
		else
			s.coming[i] = 1;
		s.entry[i].psn = FIRST + i - 64;
	}
	return walk_and_tell(&s);
}
