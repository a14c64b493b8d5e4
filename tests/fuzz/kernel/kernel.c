/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A kernel for the translated programs (tests/fuzz/translate.py): maps, packets and
 * helpers, as much of them as the programs use. What the verifier proves is not checked
 * again. A lock that is taken twice, a free slot too many and a chain of tail calls that
 * the kernel would cut are faults here.
 *
 * Packets lie below 4 GB, because the context names their ends in 32 bits.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef u64 program_fn(void *context);

#define TAIL_CALLS 33
#define HEADROOM 4096
#define ROOM (1 << 17)
#define PACKET_MAX 66000
#define TOUCHED_MAX (1 << 16)

enum { HASH = 1, ARRAY = 2, PROG_ARRAY = 3, PERCPU_ARRAY = 6, LPM_TRIE = 11, STACK = 23, RINGBUF = 27 };

struct map {
	const char *name;
	u32 kind;
	u32 key_size;
	u32 value_size;
	u32 entries;
	u32 used;                /* of a hash, a trie or a stack */
	u32 was_used;
	u8 *keys;
	u8 *was_keys;
	u8 *values;
	u8 *was;                 /* the values of the world as it was at first */
	u8 *touched;             /* of each value: whether it has been looked up since then */
	u8 *run;                 /* the same since the program began */
};

struct touch {
	struct map *map;
	u32 index;
	u8 *before;              /* the value as the program found it, or NULL */
};

static struct touch touches[TOUCHED_MAX], in_run[TOUCHED_MAX];
static u32 touch_count, run_count;
static u8 *undo;
static u32 undo_used;
#define UNDO_BYTES (64u << 20)

static void (*at_fault)(void); /* says more */

static void fault(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "FAULT: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	if (at_fault)
		at_fault();
	abort();
}

/* ---- maps */

static void touch(struct map *m, u32 index)
{
	if (!m->touched[index]) {
		if (touch_count == TOUCHED_MAX)
			fault("too many values are used");
		m->touched[index] = 1;
		touches[touch_count++] = (struct touch){ m, index, NULL };
	}
	if (!m->run[index] && run_count < TOUCHED_MAX) {
		struct touch *t = &in_run[run_count++];

		m->run[index] = 1;
		*t = (struct touch){ m, index, NULL };
		if (undo_used + m->value_size <= UNDO_BYTES) {
			t->before = undo + undo_used;
			memcpy(t->before, m->values + (u64)index * m->value_size, m->value_size);
			undo_used += m->value_size;
		}
	}
}

static void begin_run(void)
{
	while (run_count) {
		run_count--;
		in_run[run_count].map->run[in_run[run_count].index] = 0;
	}
	undo_used = 0;
}

static void restore(struct map *const *all, u32 count)
{
	u32 i;

	begin_run();
	while (touch_count) {
		struct touch *t = &touches[--touch_count];
		u64 at = (u64)t->index * t->map->value_size;

		memcpy(t->map->values + at, t->map->was + at, t->map->value_size);
		t->map->touched[t->index] = 0;
	}
	for (i = 0; i < count; i++)
		if (all[i]->kind == STACK) {
			all[i]->used = all[i]->was_used;
			memcpy(all[i]->values, all[i]->was, (u64)all[i]->used * all[i]->value_size);
		}
}

static int prefix_matches(const u8 *entry, const u8 *key, u32 bits)
{
	u32 whole = bits / 8, rest = bits % 8;

	if (memcmp(entry, key, whole))
		return 0;
	return !rest || !((entry[whole] ^ key[whole]) >> (8 - rest));
}

static s64 find(const struct map *m, const u8 *key)
{
	s64 best = -1;
	u32 i, bits, longest = 0;

	if (m->kind == ARRAY || m->kind == PERCPU_ARRAY) {
		memcpy(&i, key, 4);
		return i < m->entries ? (s64)i : -1;
	}
	for (i = 0; i < m->used; i++) {
		const u8 *entry = m->keys + (u64)i * m->key_size;

		if (m->kind == HASH && !memcmp(entry, key, m->key_size))
			return i;
		if (m->kind != LPM_TRIE)
			continue;
		memcpy(&bits, entry, 4);
		if ((best < 0 || bits > longest) && prefix_matches(entry + 4, key + 4, bits)) {
			best = i;
			longest = bits;
		}
	}
	return best;
}

static u64 helper_1(u64 map, u64 key, u64 c, u64 d, u64 e) /* map_lookup_elem */
{
	struct map *m = (struct map *)map;
	s64 index = find(m, (const u8 *)key);

	if (index < 0)
		return 0;
	touch(m, index);
	return (u64)(m->values + index * m->value_size);
}

static u64 helper_87(u64 map, u64 value, u64 flags, u64 d, u64 e) /* map_push_elem */
{
	struct map *m = (struct map *)map;
	u32 i;

	if (m->used == m->entries)
		fault("%s: a slot is given back to a stack that has all", m->name);
	for (i = 0; i < m->used; i++)
		if (!memcmp(m->values + (u64)i * m->value_size, (void *)value, m->value_size))
			fault("%s: slot %u is free twice", m->name, *(u32 *)value);
	memcpy(m->values + (u64)m->used++ * m->value_size, (void *)value, m->value_size);
	return 0;
}

static u64 helper_88(u64 map, u64 value, u64 c, u64 d, u64 e) /* map_pop_elem */
{
	struct map *m = (struct map *)map;

	if (!m->used) {
		memset((void *)value, 0, m->value_size);
		return -2;
	}
	memcpy((void *)value, m->values + (u64)--m->used * m->value_size, m->value_size);
	return 0;
}

static void *taken;

static u64 helper_93(u64 lock, u64 b, u64 c, u64 d, u64 e) /* spin_lock */
{
	if (taken)
		fault("two locks at once");
	taken = (void *)lock;
	return 0;
}

static u64 helper_94(u64 lock, u64 b, u64 c, u64 d, u64 e) /* spin_unlock */
{
	if (taken != (void *)lock)
		fault("a lock is given back that is not taken");
	taken = NULL;
	return 0;
}

#define ATOMIC(name, bits, operation) \
static inline u64 name##bits(u64 at, u64 value) \
{ \
	u##bits was = *(u##bits *)at; \
	*(u##bits *)at = was operation (u##bits)value; \
	return was; \
}
ATOMIC(atomic_add, 64, +)
ATOMIC(atomic_or, 64, |)
ATOMIC(atomic_and, 64, &)
ATOMIC(atomic_xor, 64, ^)

static inline u64 exchange64(u64 at, u64 value)
{
	u64 was = *(u64 *)at;

	*(u64 *)at = value;
	return was;
}

static inline u64 compare_exchange64(u64 at, u64 value, u64 expected)
{
	u64 was = *(u64 *)at;

	if (was == expected)
		*(u64 *)at = value;
	return was;
}

/* ---- packets */

static struct __sk_buff *skb; /* below 4 GB, too, for the sake of simplicity */
static u8 *room;              /* ROOM bytes; the packet begins somewhere in it */
static u8 *data;
static u32 length;

static void context_update(void)
{
	skb->len = length;
	skb->data = (u32)(u64)data;
	skb->data_end = (u32)(u64)(data + length);
}

static void packet_set(const u8 *bytes, u32 count)
{
	memset(skb, 0, sizeof(*skb));
	data = room + HEADROOM;
	length = count;
	memcpy(data, bytes, count);
	memset(data + count, 0, 64);
	skb->protocol = count >= 14 ? data[12] | data[13] << 8 : 0;
	context_update();
}

/* Put `by` zero bytes in at `at`, or take -by out of there. */
static s64 packet_resize(u32 at, s32 by)
{
	if ((s64)length + by < at || length + by > PACKET_MAX)
		return -22;
	if (by > 0) {
		if (data - room < by)
			return -12;
		data -= by;
		memmove(data, data + by, at);
		memset(data + at, 0, by);
	} else {
		memmove(data - by, data, at);
		data -= by;
	}
	length += by;
	context_update();
	return 0;
}

static u64 now_ns;
static u32 sent_count;
static struct { u32 ifindex, mark; } sent[64]; /* where packets have gone, the last ones */

static void leave_by(u32 ifindex)
{
	u32 i = sent_count++ % 64;

	sent[i].ifindex = ifindex;
	sent[i].mark = skb->mark;
}

static u64 helper_5(u64 a, u64 b, u64 c, u64 d, u64 e) /* ktime_get_ns */
{
	return now_ns += 20;
}

static u64 helper_9(u64 ctx, u64 at, u64 from, u64 len, u64 flags) /* skb_store_bytes */
{
	if ((u32)at > length || (u32)len > length - (u32)at)
		return -14;
	memcpy(data + (u32)at, (void *)from, (u32)len);
	return 0;
}

static u64 helper_13(u64 ctx, u64 ifindex, u64 flags, u64 d, u64 e) /* clone_redirect */
{
	leave_by(ifindex);
	return 0;
}

static u64 helper_23(u64 ifindex, u64 flags, u64 c, u64 d, u64 e) /* redirect */
{
	leave_by(ifindex);
	return 7;
}

static u64 helper_26(u64 ctx, u64 at, u64 to, u64 len, u64 e) /* skb_load_bytes */
{
	if ((u32)at > length || (u32)len > length - (u32)at) {
		memset((void *)to, 0, (u32)len);
		return -14;
	}
	memcpy((void *)to, data + (u32)at, (u32)len);
	return 0;
}

static u64 sum_of(const u8 *at, u64 len)
{
	u64 sum = 0;

	for (; len > 1; at += 2, len -= 2)
		sum += at[0] | at[1] << 8;
	return sum;
}

static u64 helper_28(u64 from, u64 from_len, u64 to, u64 to_len, u64 seed) /* csum_diff */
{
	u64 sum = (u32)seed + sum_of((u8 *)to, (u32)to_len);
	u32 i;

	for (i = 0; i + 1 < (u32)from_len; i += 2)
		sum += 0xffff & ~(((u8 *)from)[i] | ((u8 *)from)[i + 1] << 8);
	while (sum >> 32)
		sum = (u32)sum + (sum >> 32);
	return sum;
}

static u64 helper_31(u64 ctx, u64 proto, u64 flags, u64 d, u64 e) /* skb_change_proto */
{
	u16 to = proto;

	if (to != 0x0008 && to != 0xdd86)
		return -524;
	if (skb->protocol == to)
		return -524;
	if (packet_resize(14, to == 0xdd86 ? 20 : -20))
		return -12;
	skb->protocol = to;
	return 0;
}

static u64 helper_34(u64 ctx, u64 b, u64 c, u64 d, u64 e) /* get_hash_recalc */
{
	u32 hash = 2166136261u, i;

	for (i = 26; i < length && i < 58; i++)
		hash = (hash ^ data[i]) * 16777619u;
	return hash;
}

static u64 helper_38(u64 ctx, u64 len, u64 flags, u64 d, u64 e) /* skb_change_tail */
{
	u32 to = len;

	if (to < 14 || to > PACKET_MAX)
		return -22;
	if (to > length)
		memset(data + length, 0, to - length);
	length = to;
	context_update();
	return 0;
}

static u64 helper_43(u64 ctx, u64 len, u64 flags, u64 d, u64 e) /* skb_change_head */
{
	return packet_resize(0, (u32)len);
}

static u64 helper_50(u64 ctx, u64 by, u64 mode, u64 flags, u64 e) /* skb_adjust_room */
{
	u32 least = 14 + (skb->protocol == 0xdd86 ? 40 : 20);
	s32 diff = (s32)by;

	if (diff < 0 && (s64)length + diff < least)
		return -524;
	return packet_resize(14, diff);
}

static u64 helper_39(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* skb_pull_data */
static u64 helper_40(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* csum_update */
static u64 helper_41(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* set_hash_invalid */
static u64 helper_84(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* sk_lookup_tcp */
static u64 helper_86(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* sk_release */
static u64 helper_95(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* sk_fullsock */
static u64 helper_96(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* tcp_sock */
static u64 helper_130(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* ringbuf_output */
static u64 helper_135(u64 a, u64 b, u64 c, u64 d, u64 e) { return 0; } /* csum_level */

/* ---- tail calls */

static program_fn *const tails[];
static u32 tail_count;
static s32 tail_next;
static u32 calls_made;
static u64 tails_run[64];        /* how often each was the target of a tail call */

static inline int tail_call(u64 index);

static u64 run_program(program_fn *program);

#include "programs.c" /* made by tests/fuzz/translate.py */

#define ENTRIES(table) (sizeof(table) / sizeof((table)[0]))

static inline int tail_call(u64 index)
{
	tail_count = ENTRIES(tails);
	if ((u32)index >= tail_count || !tails[(u32)index])
		return 0;
	if (calls_made == TAIL_CALLS)
		fault("the kernel would cut a chain before program %u", (u32)index);
	calls_made++;
	tails_run[(u32)index & 63]++;
	tail_next = (u32)index;
	return 1;
}

/* Run a program, and those that it ends in. */
static u64 run_program(program_fn *program)
{
	u64 verdict;

	begin_run();
	calls_made = 0;
	do {
		tail_next = -1;
		verdict = program(skb);
		if (taken)
			fault("a program ends with a lock");
		if (tail_next >= 0)
			program = tails[tail_next];
	} while (tail_next >= 0);
	return verdict;
}

/* ---- the world, which tests/fuzz/world.py writes */

static void *allocated(u64 size)
{
	void *made = calloc(1, size ? size : 1);

	if (!made)
		fault("no memory");
	return made;
}

static void take(FILE *file, void *to, u64 size)
{
	if (size && fread(to, size, 1, file) != 1)
		fault("the world ends early");
}

static void map_read(FILE *file, struct map *m)
{
	u32 i;

	take(file, &m->kind, 4);
	take(file, &m->key_size, 4);
	take(file, &m->value_size, 4);
	take(file, &m->entries, 4);
	take(file, &m->used, 4);
	m->was_used = m->used;
	m->keys = allocated((u64)m->entries * m->key_size);
	m->values = allocated((u64)m->entries * m->value_size);
	m->was = allocated((u64)m->entries * m->value_size);
	m->touched = allocated(m->entries);
	m->run = allocated(m->entries);
	for (i = 0; i < m->used; i++) {
		if (m->kind == HASH || m->kind == LPM_TRIE)
			take(file, m->keys + (u64)i * m->key_size, m->key_size);
		take(file, m->values + (u64)i * m->value_size, m->value_size);
	}
	memcpy(m->was, m->values, (u64)m->entries * m->value_size);
}

static void *below_4gb(u64 size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);

	if (at == MAP_FAILED)
		fault("no memory below 4 GB");
	return at;
}

static void kernel_begin(void)
{
	skb = below_4gb(4096);
	room = below_4gb(ROOM);
	undo = allocated(UNDO_BYTES);
}
