/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a peer that has gone over to an attacker, and strangers, can do to a host: an
 * input is a row of steps. After each step the promises are looked at (check_...).
 */
#include <stdint.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#undef __always_inline
#define __always_inline inline __attribute__((always_inline, unused))
#define bpf_htons __builtin_bswap16
#define bpf_ntohs __builtin_bswap16
#define bpf_htonl __builtin_bswap32
#define bpf_ntohl __builtin_bswap32
#define bpf_ntohll __builtin_bswap64

#include "config.h" /* made by tests/fuzz/world.py */

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;

#include "mrc_wire.h"
#include "mrc_abi.h"
#include "envelope.h"
#include "tag.h"

struct frame {
	u32 kind;
	u32 psn;
	u32 len;
	const u8 *data;
};

enum { RAW, DATA, CELL, CONTROL = 16 };
#define CLONES_MAX 16

#include "kernel.c"
#include "world.c" /* made by tests/fuzz/world.py */

static const u8 *input;
static size_t left;

static u8 next_byte(void)
{
	if (!left)
		return 0;
	left--;
	return *input++;
}

static u32 next_word(void)
{
	u32 high = next_byte();

	return high << 8 | next_byte();
}

static void *value_at(struct map *m, u32 index)
{
	return m->values + (u64)index * m->value_size;
}

/* ---- promises */

static u32 bits_of(const u64 *set)
{
	return __builtin_popcountll(set[0]) + __builtin_popcountll(set[1]);
}

/* The sets of paths of a QP fit each other, whatever has arrived. */
static void check_sets(u32 qp)
{
	struct mrc_tx *tx = value_at(&map_txs, qp);
	u32 p, w, sum = 0;

	for (p = 0; p < MRC_MAX_PLANES; p++) {
		const u64 *use = &tx->use[2 * p], *spare = &tx->spare[2 * p], *denied = &tx->denied[2 * p];

		for (w = 0; w < 2; w++) {
			if ((use[w] & spare[w]) | (use[w] & denied[w]) | (spare[w] & denied[w]))
				fault("qp %u plane %u: a path is in two sets", qp, p);
			if ((use[w] | spare[w] | denied[w]) & ~tx->all[2 * p + w])
				fault("qp %u plane %u: a path that is none", qp, p);
			if ((tx->skip[2 * p + w] | tx->slow[2 * p + w]) & ~use[w])
				fault("qp %u plane %u: slow or passed over, and not in use", qp, p);
		}
		if (tx->used[p] != bits_of(use))
			fault("qp %u plane %u: %u paths in use, counted %u", qp, p, bits_of(use), tx->used[p]);
		if ((tx->plane_use >> p & 1) != (bits_of(use) > 0))
			fault("qp %u plane %u: in use or not", qp, p);
		sum += tx->used[p];
	}
	if (tx->used_all != sum)
		fault("qp %u: %u paths in use, counted %u", qp, sum, tx->used_all);
}

/* Windows do not turn round. */
static void check_windows(u32 qp)
{
	const struct mrc_tx *tx = value_at(&map_txs, qp);
	const struct mrc_rx *rx = value_at(&map_rxs, qp);
	const struct mrc_qp *q = value_at(&map_qps, qp);

	if (tx->next - tx->una > q->mpr + MRC_CELL_PACKETS)
		fault("qp %u: una %u, next %u", qp, tx->una, tx->next);
	if (tx->held > tx->next - tx->una)
		fault("qp %u: %u held of %u", qp, tx->held, tx->next - tx->una);
	if ((s32)(rx->high - rx->next) > (s32)q->mpr)
		fault("qp %u: next %u, high %u", qp, rx->next, rx->high);
	if (rx->busy)
		fault("qp %u: nobody delivers, and it is busy", qp);
}

/* What the stacks of free slots have is what their counts say. */
static void check_rooms(void)
{
	const struct mrc_room *room_ = value_at(&map_rooms, MRC_ROOM_PACKETS);
	const struct mrc_room *cells = value_at(&map_rooms, MRC_ROOM_CELLS);

	if (room_->free != map_rx_free.used || cells->free != map_rx_cells_free.used)
		fault("rooms %lld and %lld, free %u and %u", (long long)room_->free,
		      (long long)cells->free, map_rx_free.used, map_rx_cells_free.used);
}

static int is_idle(u32 qp)
{
	const struct mrc_tx *tx = value_at(&map_txs, qp);

	return tx->una == tx->next && !tx->cut_pending;
}

/* No slot is lost: with nothing on its way, and nothing that waits, all are free. */
static void check_slots(void)
{
	const struct mrc_rx *one = value_at(&map_rxs, 0), *other = value_at(&map_rxs, 1);

	if (is_idle(0) && is_idle(1) && is_idle(OTHERS) &&
	    (map_tx_free.used != map_tx_free.entries ||
	     map_tx_cells_free.used != map_tx_cells_free.entries))
		fault("nothing is on its way, and %u and %u slots are in use",
		      map_tx_free.entries - map_tx_free.used,
		      map_tx_cells_free.entries - map_tx_cells_free.used);
	if ((s32)(one->high - one->next) <= 0 && (s32)(other->high - other->next) <= 0 &&
	    (map_rx_free.used != map_rx_free.was_used ||
	     map_rx_cells_free.used != map_rx_cells_free.was_used))
		fault("nothing waits for a gap, and %d and %d slots are in use",
		      map_rx_free.was_used - map_rx_free.used,
		      map_rx_cells_free.was_used - map_rx_cells_free.used);
}

static int is_of_others(const struct map *m, u32 index)
{
	if (m == &map_qps || m == &map_txs || m == &map_rxs || m == &map_keys)
		return index >= OTHERS;
	if (m == &map_replays)
		return index >= OTHERS * MRC_MAX_PLANES;
	return (m == &map_balances || m == &map_peers || m == &map_peer_keys) && index >= 1;
}

static int is_state(const struct map *m)
{
	return m != &map_counters && m != &map_chains && m != &map_judge_states &&
	       m != &map_net_budgets && m != &map_peer_budgets && m != &map_told &&
	       m != &map_clock && m != &map_rx_free && m != &map_tx_free;
}

static int changed(const struct touch *t)
{
	return t->before && memcmp(t->before, value_at(t->map, t->index), t->map->value_size);
}

/* Nothing of the host whose keys nobody here knows has changed. */
static void check_others(void)
{
	u32 i;

	for (i = 0; i < run_count; i++)
		if (is_of_others(in_run[i].map, in_run[i].index) && changed(&in_run[i]))
			fault("%s[%u], of another peer, has changed", in_run[i].map->name, in_run[i].index);
}

/* Reasons to refuse a packet for which no peer's key vouches ... */
static const u32 forged[] = {
	MRC_C_DROP_TAG, MRC_C_DROP_ICRC, MRC_C_DROP_REPLAY, MRC_C_DROP_STRANGER, MRC_C_DROP_SOURCE,
	MRC_C_DROP_QPN, MRC_C_DROP_SID, MRC_C_DROP_SHORT, MRC_C_DROP_VERSION, MRC_C_DROP_CELL,
	MRC_C_DROP_MESSAGE, MRC_C_DROP_HOPS, MRC_C_DROP_MAC1, MRC_C_DROP_INDEX,
	MRC_C_DROP_MARK,
};

/* ... and others: of these packets it is remembered that they have arrived. */
static const u32 malformed[] = {
	MRC_C_DROP_OPCODE, MRC_C_DROP_LENGTH, MRC_C_DROP_ENTROPY, MRC_C_DROP_RKEY,
};

static u64 counted(const u32 *which, u32 count)
{
	u64 sum = 0;

	while (count--)
		sum += *(u64 *)value_at(&map_counters, which[count]);
	return sum;
}

/* What was refused has changed nothing, if only the first program has run. */
static void check_refused(u64 forged_before, u64 malformed_before)
{
	int is_forged = counted(forged, ENTRIES(forged)) != forged_before;
	u32 i;

	if (!is_forged && counted(malformed, ENTRIES(malformed)) == malformed_before)
		return;
	if (calls_made > 1)
		return;
	for (i = 0; i < run_count; i++) {
		if (in_run[i].map == &map_replays && !is_forged)
			continue;
		if (is_state(in_run[i].map) && changed(&in_run[i]))
			fault("%s[%u] has changed by what was refused", in_run[i].map->name, in_run[i].index);
	}
}

static void run_one(program_fn *program)
{
	u64 were_forged = counted(forged, ENTRIES(forged));
	u64 were_malformed = counted(malformed, ENTRIES(malformed));
	u32 qp;

	run_program(program);
	if (program == mrc_receive || program == mrc_tick) /* applications send to anybody */
		check_others();
	check_refused(were_forged, were_malformed);
	check_rooms();
	check_slots();
	for (qp = 0; qp < 2; qp++) {
		check_sets(qp);
		check_windows(qp);
	}
}

/*
 * Run a program, and mrc_beat on the clones with a mark that have gone into the clock's
 * pair meanwhile, and on those that these send.
 */
static void run_checked(program_fn *program)
{
	u32 at = sent_count, most = CLONES_MAX;

	run_one(program);
	for (; at != sent_count && most; at++) {
		u32 mark = sent[at % 64].mark, to = sent[at % 64].ifindex;

		if (sent_count - at > 64 || !mark || (to != BEAT && to != REST))
			continue;
		packet_set(beat, sizeof(beat));
		skb->mark = mark;
		skb->ifindex = to == BEAT ? REST : BEAT;
		run_one(mrc_beat);
		most--;
	}
}

/* Say what was counted up to a fault, and how long the packet is now. */
static void tell(void)
{
	u32 i;

	for (i = 0; i < MRC_COUNTERS_ROOM; i++)
		if (*(u64 *)value_at(&map_counters, i))
			fprintf(stderr, "counter %u: %llu\n", i,
				*(unsigned long long *)value_at(&map_counters, i));
	fprintf(stderr, "packet of %u bytes, %u tail calls\n", length, calls_made);
}

/* ---- steps */

static u8 frame_room[PACKET_MAX];
static u32 count_next;

static u64 check_word_step(u64 sum, u64 group)
{
	sum = (sum ^ group) * MRC_CHECK_FACTOR;
	return sum ^ sum >> 32;
}

/* Write the word that covers the ports, the BTH and `len` bytes behind it. */
static void put_check(u8 *frame, u32 len, u8 *at)
{
	u8 covered[128] = { 0 };
	u64 group, sum = 0;
	u32 i, all = 4 + MRC_BTH_LEN + len;
	__be32 word;

	memcpy(covered, frame + MRC_UDP_OFF, 4);
	memcpy(covered + 4, frame + MRC_BTH_OFF, MRC_BTH_LEN + len);
	for (i = 0; i < all; i += 8) {
		memcpy(&group, covered + i, 8);
		sum = check_word_step(sum, bpf_ntohll(group));
	}
	word = bpf_htonl((u32)sum);
	memcpy(at, &word, 4);
}

/* Write the checksum of an IPv4 header. */
static void put_sum(u8 *ip)
{
	u64 sum;

	ip[10] = ip[11] = 0;
	sum = sum_of(ip, MRC_IP4_LEN);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	ip[10] = ~sum;
	ip[11] = ~sum >> 8;
}

/* Give a frame of h2's, whose keys are zero, its tag and its check. */
static void seal_frame(u32 kind, u8 *frame, u32 len, int again)
{
	static const u64 key[2];
	const struct mrc_bth *bth = (void *)(frame + MRC_BTH_OFF);
	struct mrc_cell *cell = (void *)(frame + (CELL_UDP ? CELL_STATE_OFF - 4 : MRC_ETH_LEN + 8));
	struct mrc_reth *reth = (void *)(frame + MRC_BODY_OFF + 8);
	struct mrc_auth *auth;
	u64 tag;
	u32 words;

	if (ENCAP_IPV4 && len >= MRC_ETH_LEN + MRC_IP4_LEN)
		put_sum(frame + MRC_ETH_LEN);
	if (kind == CELL && len >= CELL_OFF) {
		if (CELL_UDP) {
			memcpy(&words, frame + CELL_STATE_OFF - 4, 4);
			words = bpf_ntohl(words) >> MRC_CELL_VNI_SHIFT;
		} else {
			memcpy(&words, frame + MRC_ETH_LEN, 4);
			words = bpf_ntohl(words) & 0xfffff;
		}
		cell->tag = cell_tag(key, cell, words,
				     (u32)bpf_ntohs(cell->psn_hi) << 8 | cell->psn_lo,
				     0x770000 | bpf_ntohs(cell->qp));
	} else if (kind == DATA && len >= MRC_PAYLOAD_OFF + 4) {
		tag = data_tag(key, frame, (u32)bth->psn_hi << 16 | bpf_ntohs(bth->psn_lo));
		reth->va_hi = tag;
		reth->va_lo = tag >> 32;
		put_check(frame, MRC_WRITE_LEN, frame + len - 4);
	} else if (kind >= CONTROL && len >= MRC_BODY_OFF + kind - CONTROL + 16) {
		u32 body = kind - CONTROL;

		auth = (void *)(frame + MRC_BODY_OFF + body);
		auth->count = bpf_htonl(again ? count_next : ++count_next);
		tag = control_tag(key, frame, body);
		auth->tag_hi = tag;
		auth->tag_lo = tag >> 32;
		put_check(frame, body + MRC_AUTH_LEN, (u8 *)(auth + 1));
	}
}

static void patch(u8 *frame, u32 len, u32 times)
{
	while (times--) {
		u32 at = next_word() % len;

		frame[at] = next_byte();
	}
}

static void arrive(u32 kind, u32 len, u32 plane, u32 gso)
{
	packet_set(frame_room, len);
	skb->ifindex = skb->ingress_ifindex = planes[plane % ENTRIES(planes)];
	skb->gso_size = gso;
	skb->gso_segs = gso ? 1 + len / gso : 0;
	run_checked(mrc_receive);
}

static void step_arrive(void)
{
	const struct frame *f = &frames[next_byte() % ENTRIES(frames)];
	u32 flags = next_byte(), plane = next_byte(), len = f->len;

	memcpy(frame_room, f->data, len);
	if (flags & 8 && f->psn)
		frame_room[f->psn] += next_byte();
	patch(frame_room, len, flags & 7);
	if (flags & 16)
		len = 14 + next_word() % (len - 13);
	if (!(flags & 32))
		seal_frame(f->kind, frame_room, len, flags & 128);
	arrive(f->kind, len, plane & 128 ? plane : 1, flags & 64 ? 900 : 0);
}

/* h2 acknowledges: a SACK with the QP, PSN and bitmap that the input says. */
static void step_sack(void)
{
	u32 which = next_byte(), qp = which & 1, len = frames[A_SACK].len;
	const struct mrc_tx *tx = value_at(&map_txs, qp);
	struct mrc_seth *seth = (void *)(frame_room + MRC_BODY_OFF);
	struct mrc_bth *bth = (void *)(frame_room + MRC_BTH_OFF);
	u32 i, cack;

	memcpy(frame_room, frames[A_SACK].data, len);
	cack = tx->next - 1 - (which & 2 ? next_byte() : 0);
	bth->dqpn = bpf_htonl(0x770000 | qp);
	seth->cack = bpf_htonl((bpf_ntohl(seth->cack) & 0xff000000) | (cack & 0xffffff));
	if (which & 4)
		for (i = 0; i < 10; i++)
			((u8 *)&seth->sack_offset)[i] = next_byte();
	patch(frame_room, len, which >> 3 & 3);
	seal_frame(frames[A_SACK].kind, frame_room, len, 0);
	arrive(frames[A_SACK].kind, len, 1, 0);
}

static void step_spray(void)
{
	const struct frame *f = &packets[next_byte() % ENTRIES(packets)];
	u32 flags = next_byte(), times = 1 + (flags >> 4 & 7);

	memcpy(frame_room, f->data, f->len);
	patch(frame_room, f->len, flags & 3);
	while (times--) {
		packet_set(frame_room, f->len);
		skb->ifindex = LOWER;
		if (flags & 4 && f->len > 1500) {
			skb->gso_size = 900;
			skb->gso_segs = 1 + f->len / 900;
		}
		run_checked(mrc_spray);
	}
}

static void step_tick(u32 qp)
{
	if (!(*(u64 *)value_at(&map_active, 0) >> qp & 1))
		return;
	packet_set(beat, sizeof(beat));
	skb->mark = MRC_KICK_MARK | qp;
	run_checked(mrc_tick);
}

static void step_beat(u32 which)
{
	packet_set(beat, sizeof(beat));
	skb->ifindex = which & 1 ? BEAT : REST;
	run_checked(mrc_beat);
}

/* The daemon denies or allows a path of h2's, sets its planes and lengths, or tries a path. */
static void step_command(u32 qp)
{
	static const u16 ops[] = {
		MRC_DO_DENY, MRC_DO_ALLOW, MRC_DO_PORTS, MRC_DO_MOST, MRC_DO_TRIAL,
	};
	struct mrc_command cmd = { .qp = qp };

	cmd.op = ops[next_byte() % ENTRIES(ops)];
	cmd.path = next_byte() & 3;
	if (cmd.op != MRC_DO_MOST)
		cmd.path = cmd.path << 8 | (next_byte() & 3);
	cmd.value = cmd.op == MRC_DO_PORTS ? next_byte() : next_word();
	if (cmd.op == MRC_DO_TRIAL)
		cmd.value |= qp << 16; /* its framing */
	packet_set((u8 *)&cmd, sizeof(cmd));
	run_checked(mrc_control);
}

static void step(void)
{
	u32 what = next_byte();

	switch (what & 7) {
	case 0:
	case 1:
	case 2:
		step_arrive();
		break;
	case 3:
		now_ns += 1000ull << (next_byte() % 20);
		step_tick(what >> 3 & 1);
		break;
	case 4:
		step_tick(what >> 3 & 1);
		break;
	case 5:
		step_spray();
		break;
	case 6:
		step_sack();
		break;
	case 7:
		if (what & 32) {
			step_command(what >> 3 & 1);
			break;
		}
		now_ns += 1000ull << (next_byte() % 16);
		step_beat(what >> 3);
	}
}

static void begin(const char *path)
{
	FILE *file = fopen(path, "rb");
	u32 i;

	if (!file)
		fault("no world at %s", path);
	kernel_begin();
	for (i = 0; i < ENTRIES(maps); i++)
		map_read(file, maps[i]);
	fclose(file);
	at_fault = tell;
}

int LLVMFuzzerTestOneInput(const u8 *bytes, size_t size)
{
	static int begun;
	u32 steps = 0;

	if (!begun)
		begin(getenv("MRC_WORLD"));
	begun = 1;
	restore(maps, ENTRIES(maps));
	now_ns = 1000000000000ull;
	count_next = 0;
	taken = NULL;
	sent_count = 0;
	input = bytes;
	left = size;
	while (left && steps++ < 64)
		step();
	return 0;
}

#ifdef REPLAY
/*
 * Run the inputs in a file: the length of each in 4 bytes, and the input. Print what was
 * counted, and how often programs ended in others.
 */
int main(int argc, char **argv)
{
	FILE *file = fopen(argv[1], "rb");
	static u64 counted[MRC_COUNTERS_ROOM];
	u8 bytes[1 << 16];
	u32 size, i, count = 0;

	if (argc != 2 || !file)
		return 2;
	while (fread(&size, 4, 1, file) == 1 && size <= sizeof(bytes) &&
	       (!size || fread(bytes, size, 1, file) == 1)) {
		LLVMFuzzerTestOneInput(bytes, size);
		count++;
		for (i = 0; i < MRC_COUNTERS_ROOM; i++)
			counted[i] += *(u64 *)value_at(&map_counters, i);
	}
	printf("%u\n", count);
	for (i = 0; i < MRC_COUNTERS_ROOM; i++)
		if (counted[i])
			printf("%u %llu\n", i, (unsigned long long)counted[i]);
	for (i = 0; i < 64; i++)
		if (tails_run[i])
			printf("tail %u %llu\n", i, (unsigned long long)tails_run[i]);
	return 0;
}
#endif
