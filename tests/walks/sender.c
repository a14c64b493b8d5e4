/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sending half of a QP on two CPUs. Each takes a packet to send, a SACK that has arrived,
 * or the clock's packet, and runs through the same steps as the programs do: what is
 * under a lock is a step, and what lies between two locks. Planes deliver and lose packets, and
 * SACKs overtake each other, in any order.
 *
 *   sender PACKETS WINDOW [cells] [away] [losses=N] [ticks=N] [late]
 *
 * WINDOW is the congestion window in bytes. late: each beat is a time-out later than the one
 * before.
 */
#include "host.h"

#define PACKETS_MAX 4
#define PATHS 2
#define FIRST 0xfffffffeu
#define SEATS 2                  /* flows */
#define HEAD 52
#define LEN 1000
#define LAST_LEN 500             /* of the last packet of a cell */
#define BASE_NS 1000000000000ull
#define STEP_NS 1000
#define LATE_NS 1000000000ull

enum kind { IDLE, SPRAY, SACK, TICK };
enum { /* steps; those under a lock have LOCK in their names */
	SPRAY_LOCK, SPRAY_RECORD, SPRAY_VALID, SPRAY_SEND,
	SACK_BEGIN, SACK_LOCK, SACK_WORD_LOCK, SACK_FREE, LEARN_LOCK, LEARN_FIND,
	NEXT, RESEND_LOOK, RESEND_LOCK, RESEND_SEND, RELEASE_LOOK, RELEASE_LOCK, RELEASE_SEND,
	TICK_LOOK, TICK_REST, TICK_BEGIN, TICK_REST_TOO, TICK_FIND, TICK_LOCK, TICK_ON,
};
static const char *const STEPS[] = {
	"spray: take PSN", "spray: write entry", "spray: entry valid", "spray: send",
	"sack: begin", "sack: window", "sack: mark a word", "sack: free", "learn: window",
	"learn: find lost", "next program", "resend: look", "resend: claim", "resend: send",
	"release: look", "release: take", "release: send", "beat: look", "beat: rest again",
	"tick: begin", "tick: rest again", "tick: find overdue", "tick: back off", "tick: go on",
};

struct thread {
	u8 kind, pc;
	u8 unit;                 /* the packet or cell that is sprayed */
	u8 at;                   /* packet of it */
	u8 alone;                /* a tick while nothing else is under way */
	u8 told;                 /* what the SACK tells, a bit for each packet */
	u8 moved;                /* it sent something */
	u8 pad;
	u32 psn, id, word;
	u64 fresh, latest, sent_ns, now;
	u32 why, old_id, new_id, step, bytes, high;
	struct sack_in s;
	struct mrc_chain chain;
};

struct state {
	struct mrc_tx tx;
	struct mrc_path path[PATHS];
	struct mrc_tx_entry entry[PACKETS_MAX];
	u32 inflight;            /* of balance, which else does not change */
	u8 sprayed;              /* packets or cells given to mrc_spray */
	u8 slot[PACKETS_MAX];    /* 1: taken, 2: given back */
	u8 seat[PACKETS_MAX];    /* of its flow */
	u8 flying[PACKETS_MAX];  /* copies on the planes */
	u8 sent[PACKETS_MAX];    /* how often it was sent */
	u8 got;                  /* what the receiver has, a bit each */
	u8 sacks[1 << PACKETS_MAX]; /* SACKs on their way, by what the receiver had */
	u8 losses, ticks, late, active;
	struct thread cpu[2];
};

#include "walk.h"

static u32 packets, cell, late;  /* packets in all, and of a cell; 1: beats are late */
static struct mrc_host host;
static struct mrc_qp q;
static struct mrc_peer peer;
static struct mrc_balance balance;
static struct mrc_rx rx;

static u64 now_of(const struct state *s)
{
	return BASE_NS + STEP_NS * (s->tx.packets + s->tx.retransmits) + s->late * LATE_NS;
}

static u32 len_of(u32 i)
{
	return cell > 1 && i % cell == cell - 1 ? LAST_LEN : LEN;
}

static struct mrc_tx_entry *entry_of(struct state *s, u32 psn)
{
	return psn - FIRST < packets ? &s->entry[psn - FIRST] : NULL;
}

/* A packet leaves. */
static const char *leave(struct state *s, u32 psn)
{
	u32 i = psn - FIRST;

	if (i >= packets)
		return "what was never taken is sent";
	if (s->slot[i] != 1) /* its slot's tag tells */
		return NULL;
	s->sent[i]++;
	s->flying[i]++;
	if (s->sent[i] > s->entry[i].sends)
		return "a packet is sent without a reason";
	return NULL;
}

/* ---- spray */

static const char *spray(struct state *s, struct thread *t)
{
	u32 len = cell * LEN - (cell > 1 ? LEN - LAST_LEN : 0), i;
	struct flow f = { .h = &host, .peer = &peer, .b = &balance, .q = &q, .tx = &s->tx,
			  .seat = 1ull << t->unit % SEATS };
	struct mrc_tx_entry *e;
	const char *wrong;

	switch (t->pc) {
	case SPRAY_LOCK:
		if (number_packets(&f, 3, t->now, cell, len, WHOLE_TURN, &t->psn, &t->id) ||
		    t->id == MRC_NO_PATH)
			return "a packet is refused";
		for (i = 0; i < cell; i++) {
			s->slot[t->psn - FIRST + i] = 1;
			s->seat[t->psn - FIRST + i] = t->unit % SEATS;
		}
		t->pc = SPRAY_RECORD;
		return NULL;
	case SPRAY_RECORD:
		e = entry_of(s, t->psn + t->at);
		e->sent_ns = t->now;
		e->slot = 0;
		e->len = len_of(t->psn - FIRST + t->at);
		e->path = t->id;
		e->sends = 1;
		e->rule = 0;
		t->pc = SPRAY_VALID;
		return NULL;
	case SPRAY_VALID:
		entry_of(s, t->psn + t->at)->psn = t->psn + t->at;
		t->at++;
		t->pc = t->at < cell ? SPRAY_RECORD : SPRAY_SEND;
		return NULL;
	default:
		s->active = 1;
		for (i = 0; i < cell && !(t->id & PATH_HELD); i++) {
			wrong = leave(s, t->psn + i);
			if (wrong)
				return wrong;
		}
		t->kind = IDLE;
		return NULL;
	}
}

/* ---- what mrc_resend and mrc_release share */

static struct resending resending_of(struct state *s, struct thread *t)
{
	struct resending r = { .h = &host, .q = &q, .tx = &s->tx, .b = &balance, .up = 3 };

	r.psn = t->psn;
	r.entry = entry_of(s, t->psn);
	r.old_id = t->old_id;
	r.path = &s->path[path_plane(t->old_id) % PATHS];
	r.sent_ns = t->sent_ns;
	r.why = t->why;
	r.timeout_ns = t->chain.resend.timeout_ns;
	r.now = t->chain.resend.now;
	return r;
}

/* List what counts as lost, as find_lost() of retransmit.c does. */
static void find(struct state *s, struct thread *t, u32 from, u32 to, u64 seen_ns, u64 timeout)
{
	struct resend_args *out = &t->chain.resend;
	struct mrc_tx_entry *e;
	u32 psn;

	out->found = 0;
	for (psn = from; (s32)(to - psn) > 0; psn++) {
		e = entry_of(s, psn);
		if (tx_bit(&s->tx, psn) || !e || e->psn != psn)
			continue;
		if (!lost_by(e, &s->path[path_plane(e->path) % PATHS], &s->tx, &balance, &host,
			     seen_ns, timeout))
			continue;
		out->due[out->found++] = psn;
		out->last = psn;
	}
}

static const char *go_on(struct state *s, struct thread *t)
{
	struct resend_args *in = &t->chain.resend;
	struct path_move move = {};
	struct mrc_tx_entry *e;
	struct resending r;
	const char *wrong = NULL;
	u64 sent_ns;

	switch (t->pc) {
	case NEXT:
		switch (next_tail(&t->chain)) {
		case TAIL_RESEND:
			t->pc = RESEND_LOOK;
			break;
		case TAIL_PROBE: /* probes change nothing of what is looked at here */
			t->chain.probe.planes = 0;
			break;
		case TAIL_RELEASE:
			t->pc = RELEASE_LOOK;
			break;
		default:
			t->kind = IDLE;
		}
		return NULL;
	case RESEND_LOOK:
		t->psn = in->due[in->done++];
		e = entry_of(s, t->psn);
		t->pc = NEXT;
		if (!e || e->psn != t->psn)
			return NULL;
		t->sent_ns = e->sent_ns;
		t->old_id = e->path;
		t->why = lost_by(e, &s->path[path_plane(e->path) % PATHS], &s->tx, &balance, &host,
				 in->seen_ns, in->timeout_ns);
		if (t->why)
			t->pc = RESEND_LOCK;
		return NULL;
	case RESEND_LOCK:
		r = resending_of(s, t);
		sent_ns = r.entry->sent_ns;
		t->pc = NEXT;
		if (!take_loss(&r, WHOLE_TURN, &move))
			return NULL;
		if (sent_ns != t->sent_ns)
			return "a packet is sent twice for one finding";
		if (s->slot[t->psn - FIRST] == 2)
			return "a packet that has arrived is sent again";
		if (r.new_id != MRC_NO_PATH)
			t->pc = RESEND_SEND;
		return NULL;
	case RESEND_SEND:
		t->pc = NEXT;
		t->moved = 1;
		return leave(s, t->psn);
	case RELEASE_LOOK:
		t->psn = sent_up_to(&s->tx);
		e = entry_of(s, t->psn);
		if (t->chain.release.done >= RELEASE_MAX || !s->tx.held || !e || e->psn != t->psn)
			t->kind = IDLE;
		else
			t->pc = RELEASE_LOCK;
		return NULL;
	case RELEASE_LOCK:
		r = resending_of(s, t);
		r.now = t->now;
		if (release_packet(&r, WHOLE_TURN, r.entry->len) == MRC_NO_PATH)
			t->kind = IDLE;
		else
			t->pc = RELEASE_SEND;
		return NULL;
	default:
		wrong = leave(s, t->psn);
		t->chain.release.done++;
		t->moved = 1;
		t->pc = RELEASE_LOOK;
		return wrong;
	}
}

/* ---- SACKs */

static const char *free_some(struct state *s, struct thread *t)
{
	struct mrc_tx_entry *e;
	u32 psn;

	while (t->fresh) {
		psn = t->word + lowest_bit(t->fresh);
		t->fresh &= t->fresh - 1;
		e = entry_of(s, psn);
		if (!e || e->psn != psn)
			return "a packet arrived that has no entry";
		if (s->slot[psn - FIRST] != 1)
			return "a slot is given back twice";
		s->slot[psn - FIRST] = 2;
		t->bytes += e->len;
		if (e->sends > 1)
			continue;
		if (e->sent_ns > t->latest)
			t->latest = e->sent_ns;
		if (e->sent_ns > s->path[path_plane(e->path) % PATHS].delivered_ns)
			s->path[path_plane(e->path) % PATHS].delivered_ns = e->sent_ns;
	}
	return NULL;
}

static void read_sack(struct state *s, struct thread *t)
{
	u32 n = 0;

	while (t->told >> n & 1)
		n++;
	t->s.una = s->tx.una;
	t->s.next = sent_up_to(&s->tx);
	t->s.cack = FIRST + n - 1;
	t->s.ahead = t->s.cack + 1 - t->s.una;
	t->s.base = t->s.cack + 1;
	t->s.bitmap = t->told >> n;
	t->s.heard = __builtin_popcount(t->told);
	t->high = t->s.una;
	t->pc = NEXT;
	if (t->s.una == t->s.next || t->s.ahead < -CFG_WINDOW)
		return;
	t->step = 0;
	t->pc = SACK_WORD_LOCK;
}

static const char *sack(struct state *s, struct thread *t)
{
	struct learn_args *in = &t->chain.learn;
	u32 from, to, psn, fresh;
	u64 mask;

	switch (t->pc) {
	case SACK_BEGIN:
		begin_chain(&t->chain);
		begin_release(&t->chain.release, 0, &s->tx);
		t->pc = SACK_LOCK;
		return NULL;
	case SACK_LOCK:
		read_sack(s, t);
		return t->s.ahead > (s32)(t->s.next - t->s.una) ? "a SACK is taken for a lie" : NULL;
	case SACK_WORD_LOCK:
		while (t->step < SACK_WORDS) {
			t->word = sack_word(&t->s, t->step++, &mask);
			mask &= range_mask(t->word, t->s.una, t->s.next);
			if (!mask)
				continue;
			t->fresh = set_sacked(&s->tx, t->word, mask);
			psn = t->word + highest_bit(t->fresh | 1) + 1;
			if (t->fresh && (s32)(psn - t->high) > 0)
				t->high = psn;
			if (t->fresh)
				t->pc = SACK_FREE;
			return NULL;
		}
		t->pc = LEARN_LOCK;
		return NULL;
	case SACK_FREE:
		t->pc = SACK_WORD_LOCK;
		return free_some(s, t);
	case LEARN_LOCK:
		in->bytes = t->bytes;
		in->latest = t->latest;
		in->high = t->high;
		in->heard = t->s.heard;
		in->base = t->s.base;
		in->next = t->s.next;
		in->id = MRC_NO_PATH;
		in->seen_ns = in->now = t->now;
		balance.inflight[0] = s->inflight;
		fresh = learn_times(&s->tx, &balance, &host, in, &t->chain.learning, in->id, t->now);
		advance_una(&s->tx, t->now);
		s->inflight = balance.inflight[0];
		begin_release(&t->chain.release, 0, &s->tx);
		t->pc = fresh ? LEARN_FIND : NEXT;
		return NULL;
	default:
		to = reported(in, s->tx.una, s->tx.high, &from);
		find(s, t, from, to, in->seen_ns, 0);
		begin_resend(&t->chain.resend, 0, t->now, in->seen_ns, 0);
		begin_release(&t->chain.release, 0, &s->tx);
		t->pc = NEXT;
		return NULL;
	}
}

/* ---- the clock */

static const char *tick(struct state *s, struct thread *t)
{
	u32 next;
	u64 rto;

	switch (t->pc) {
	case TICK_LOOK:
		t->pc = TICK_BEGIN;
		if (!s->active) {
			t->kind = IDLE;
		} else if (!needs_tick(&host, &q, &s->tx, &rx, t->now)) {
			t->kind = IDLE;
			if (!at_work(&s->tx, &rx)) {
				s->active = 0;
				t->kind = TICK;
				t->pc = TICK_REST;
			}
		}
		return NULL;
	case TICK_REST:
		if (at_work(&s->tx, &rx))
			s->active = 1;
		t->kind = IDLE;
		return NULL;
	case TICK_BEGIN:
		begin_chain(&t->chain);
		t->chain.probe.planes = planes_away(&s->tx);
		t->pc = TICK_FIND;
		if (!t->chain.probe.planes && !at_work(&s->tx, &rx)) {
			s->active = 0;
			t->pc = TICK_REST_TOO;
		}
		return NULL;
	case TICK_REST_TOO:
		if (at_work(&s->tx, &rx))
			s->active = 1;
		t->pc = TICK_FIND;
		return NULL;
	case TICK_FIND:
		next = sent_up_to(&s->tx);
		rto = timeout_ns(&s->tx, host.rto_min_ns, s->tx.backoff, RTO_MAX_NS);
		t->pc = TICK_ON;
		if (s->tx.una == next || !nothing_heard(&s->tx, next, rto, t->now))
			return NULL;
		find(s, t, s->tx.scan, next, t->now, rto);
		t->chain.resend.timeout_ns = rto;
		s->tx.scan = t->chain.resend.found ? t->chain.resend.last + 1 : s->tx.una;
		if (t->chain.resend.found)
			t->pc = TICK_LOCK;
		return NULL;
	case TICK_LOCK:
		back_off(&s->tx, t->now);
		t->pc = TICK_ON;
		return NULL;
	default:
		begin_tick(&t->chain, 0, &s->tx, t->now);
		t->pc = NEXT;
		return NULL;
	}
}

/* ---- the walk */

static int all_sprayed(const struct state *s)
{
	return s->sprayed * cell >= packets;
}

static u32 on_planes(const struct state *s)
{
	u32 i, n = 0;

	for (i = 0; i < packets; i++)
		n += s->flying[i];
	for (i = 0; i < 1u << packets; i++)
		n += s->sacks[i];
	return n;
}

static int quiet(const struct state *s)
{
	return all_sprayed(s) && !s->cpu[0].kind && !s->cpu[1].kind && !on_planes(s);
}

static const char *sums(const struct state *s)
{
	u32 psn, inflight = 0, backlog = 0, held = 0, others;

	for (psn = s->tx.una; psn != s->tx.next; psn++) {
		if ((s32)(psn - sent_up_to(&s->tx)) >= 0) {
			backlog += len_of(psn - FIRST);
			held++;
		} else if (!tx_bit(&s->tx, psn)) {
			inflight += len_of(psn - FIRST);
		}
	}
	others = backlog;        /* none of these flows is TCP's */
	if (held != s->tx.held)
		return "the number of what waits is wrong";
	if (backlog != s->tx.backlog || others != s->tx.others)
		return "the bytes of what waits are wrong";
	if (inflight != s->tx.inflight)
		return "the bytes in flight are wrong";
	return NULL;
}

enum { STEP0, STEP1, START_SPRAY, START_TICK, START_ALONE, START_LATE, START_SACK = 16,
       ARRIVE = 40, LOSE = 48 };

static int can_release(const struct state *s)
{
	struct mrc_tx tx = s->tx;

	return tx.held && nscc_open(&host, &tx, 0) && window_open(&q, &tx, 1);
}

static u32 moves(const struct state *s, u8 *out)
{
	u32 n = 0, i, room = !s->cpu[0].kind || !s->cpu[1].kind, ticking;

	if (quiet(s)) {
		if (s->tx.una != s->tx.next)
			out[n++] = can_release(s) ? START_ALONE : START_LATE;
		return n;
	}
	ticking = s->cpu[0].kind == TICK || s->cpu[1].kind == TICK;
	for (i = 0; i < 2; i++)
		if (s->cpu[i].kind)
			out[n++] = STEP0 + i;
	if (room && !all_sprayed(s))
		out[n++] = START_SPRAY;
	if (room && s->ticks && !ticking)
		out[n++] = START_TICK;
	for (i = 0; i < 1u << packets; i++)
		if (s->sacks[i] && room)
			out[n++] = START_SACK + i;
	for (i = 0; i < packets; i++) {
		if (s->flying[i])
			out[n++] = ARRIVE + i;
		if (s->flying[i] && s->losses)
			out[n++] = LOSE + i;
	}
	return n;
}

static const char *start(struct state *s, u8 move)
{
	struct thread *t = &s->cpu[s->cpu[0].kind ? 1 : 0];

	if (move == START_LATE || (move == START_TICK && late))
		s->late++;
	t->now = now_of(s);
	switch (move) {
	case START_SPRAY:
		t->kind = SPRAY;
		t->pc = SPRAY_LOCK;
		t->unit = s->sprayed++;
		return NULL;
	case START_TICK:
	case START_ALONE:
	case START_LATE:
		t->kind = TICK;
		t->pc = TICK_LOOK;
		t->alone = move != START_TICK;
		if (!t->alone)
			s->ticks--;
		else if (sums(s))
			return sums(s);
		else if (!s->active)
			return "the clock does not look after the QP";
		return NULL;
	}
	t->kind = SACK;
	t->pc = SACK_BEGIN;
	t->told = move - START_SACK;
	s->sacks[t->told]--;
	return NULL;
}

/* Flows stay in this QP while they have packets in it. */
static const char *flows(const struct state *s)
{
	u32 psn;

	for (psn = s->tx.una; psn != s->tx.next; psn++)
		if (!flow_is_in(&s->tx, 1ull << s->seat[psn - FIRST]))
			return "a flow may leave the QP";
	return NULL;
}

static const char *make(struct state *s, u8 move)
{
	const char *wrong;
	struct thread *t;
	u8 idly;

	if (move >= LOSE) {
		s->flying[move - LOSE]--;
		s->losses--;
		return NULL;
	}
	if (move >= ARRIVE) {
		s->flying[move - ARRIVE]--;
		s->got |= 1 << (move - ARRIVE);
		s->sacks[s->got]++;
		return NULL;
	}
	if (move >= START_SPRAY)
		return start(s, move);
	t = &s->cpu[move - STEP0];
	if (t->pc >= NEXT && t->pc <= RELEASE_SEND)
		wrong = go_on(s, t);
	else if (t->kind == SPRAY)
		wrong = spray(s, t);
	else
		wrong = t->kind == SACK ? sack(s, t) : tick(s, t);
	if (wrong)
		return wrong;
	if (t->kind == IDLE) {
		idly = t->alone && !t->moved;
		memset(t, 0, sizeof(*t));
		if (idly)
			return "the clock came and moved nothing";
	}
	return flows(s);
}

static const char *end(const struct state *s)
{
	u32 i;

	if (s->got != (1 << packets) - 1)
		return "a packet never arrived";
	for (i = 0; i < packets; i++)
		if (s->slot[i] != 2)
			return "a slot is not given back";
	return sums(s);
}

static struct key hash_state(const struct state *s)
{
	struct key k = { 1, 2 };

	k = mix(k, &s->tx, offsetof(struct mrc_tx, sacked) + CFG_WINDOW / 8);
	k = mix(k, &s->tx.acked, sizeof(s->tx) - offsetof(struct mrc_tx, acked));
	k = mix(k, &s->path, offsetof(struct state, cpu) - offsetof(struct state, path));
	return mix_cpus(k, s);
}

static void tell(const struct state *s, u8 move, char *text, size_t size)
{
	if (move >= LOSE)
		snprintf(text, size, "packet %d is lost", move - LOSE);
	else if (move >= ARRIVE)
		snprintf(text, size, "packet %d arrives", move - ARRIVE);
	else if (move >= START_SACK)
		snprintf(text, size, "SACK of 0x%x", move - START_SACK);
	else if (move >= START_SPRAY)
		snprintf(text, size, "%s", move == START_SPRAY ? "spray" : "beat");
	else
		snprintf(text, size, "CPU %d %s", move, STEPS[s->cpu[move].pc]);
}

int main(int argc, char **argv)
{
	static struct state s;
	u32 i, away = 0;

	cell = 1;
	packets = atoi(argv[1]);
	s.tx.cwnd = atoi(argv[2]);
	for (i = 3; i < (u32)argc; i++) {
		if (!strcmp(argv[i], "cells"))
			cell = 2;
		else if (!strcmp(argv[i], "away"))
			away = 1;
		else if (!strcmp(argv[i], "late"))
			late = 1;
		else if (!strncmp(argv[i], "losses=", 7))
			s.losses = atoi(argv[i] + 7);
		else if (!strncmp(argv[i], "ticks=", 6))
			s.ticks = atoi(argv[i] + 6);
		else
			return 2;
	}
	if (packets < 1 || packets > PACKETS_MAX)
		return 2;
	host.plane_mask = peer.plane_mask = 3;
	host.planes = PATHS;
	host.cc_target_ns = 1000000;
	host.cc_rate = 25000;
	host.rto_min_ns = 3000000;
	host.reo_min_ns = 700000;
	host.reo_max_ns = 4000000;
	balance.shares = balance.turns = 0x8080808080808080ull;
	balance.ports = balance.heard_ports = 0xff;
	q.state = MRC_QP_READY;
	q.mpr = 64;
	s.tx.next = s.tx.una = s.tx.high = s.tx.scan = s.tx.flows_from = FIRST;
	s.tx.asked = FIRST - 1;
	s.tx.plane_open = 3;
	for (i = 0; i < PATHS; i++) {
		s.tx.all[first_word(i)] = 1;
		s.tx.active[i] = 1;
		if (away && i)
			continue;
		s.tx.use[first_word(i)] = 1;
		s.tx.used[i] = 1;
		s.tx.used_all++;
		s.tx.plane_use |= 1 << i;
	}
	for (i = 0; i < packets; i++)
		s.entry[i].psn = FIRST + i - CFG_WINDOW;
	return walk_and_tell(&s);
}
