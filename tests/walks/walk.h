/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Walk every interleaving of a model: from each state, every move that is possible. A model
 * defines struct state, whose padding is zero, with two CPUs in .cpu, and
 *
 *   moves()      the moves that are possible in a state; none: it is an end
 *   make()       one move; returns what is wrong then, or NULL
 *   end()        what is wrong with an end, or NULL
 *   hash_state() two numbers, equal for states from which the same can happen
 *
 * States that were visited are not walked again; their interleavings count.
 */
#ifndef WALKS_WALK_H
#define WALKS_WALK_H

#define MOVES_MAX 64
#define DEPTH_MAX 400

struct key {
	u64 a, b;
};

static u32 moves(const struct state *s, u8 *out);
static const char *make(struct state *s, u8 move);
static const char *end(const struct state *s);
static struct key hash_state(const struct state *s);
static void tell(const struct state *before, u8 move, char *text, size_t size);

static struct visited {
	struct key key;
	u64 ways;                /* interleavings from there; 0: the place is free */
} *table;
static u64 table_size = 1 << 16, states, transitions;
static u8 trace[DEPTH_MAX];
static u32 depth;
static const char *fault;

/* Mix some bytes into a key, 8 at a time. */
static struct key mix(struct key k, const void *from, size_t size)
{
	const u8 *p = from;
	u64 word;

	for (; size >= 8; size -= 8, p += 8) {
		memcpy(&word, p, 8);
		k.a = (k.a ^ word) * 0x9e3779b97f4a7c15ull;
		k.a ^= k.a >> 29;
		k.b = (k.b + word) * 0xd6e8feb86659fd93ull;
		k.b ^= k.b >> 32;
	}
	if (size) {
		word = 0;
		memcpy(&word, p, size);
		k.a = (k.a ^ word) * 0x9e3779b97f4a7c15ull;
		k.a ^= k.a >> 29;
		k.b = (k.b + word) * 0xd6e8feb86659fd93ull;
		k.b ^= k.b >> 32;
	}
	return k;
}

/* Mix both CPUs into a key. Which CPU does something makes no difference. */
static struct key mix_cpus(struct key k, const struct state *s)
{
	struct key c[2];
	u32 i;

	for (i = 0; i < 2; i++) {
		c[i] = k;
		if (s->cpu[i].kind)
			c[i] = mix(c[i], &s->cpu[i], sizeof(s->cpu[i]));
	}
	k.a = c[0].a + c[1].a;
	k.b = c[0].b + c[1].b;
	return k;
}

static struct visited *place_of(struct key k)
{
	u64 at = k.a & (table_size - 1);

	while (table[at].ways && (table[at].key.a != k.a || table[at].key.b != k.b))
		at = (at + 1) & (table_size - 1);
	return &table[at];
}

static void grow(void)
{
	struct visited *old = table, *to;
	u64 i, size = table_size;

	table_size *= 2;
	table = calloc(table_size, sizeof(*table));
	for (i = 0; i < size; i++) {
		if (!old[i].ways)
			continue;
		to = place_of(old[i].key);
		*to = old[i];
	}
	free(old);
}

/* Walk on from a state. Returns the number of interleavings, at most 2^64 - 1. */
static u64 walk(const struct state *s)
{
	struct key k = hash_state(s);
	struct visited *found = place_of(k);
	u64 ways = 0, more;
	u8 list[MOVES_MAX];
	struct state next;
	u32 i, n;

	if (found->ways)
		return found->ways;
	n = moves(s, list);
	if (!n) {
		fault = end(s);
		ways = 1;
	}
	for (i = 0; i < n && !fault; i++) {
		if (depth == DEPTH_MAX) {
			fault = "it never ends";
			break;
		}
		memcpy(&next, s, sizeof(next));
		trace[depth++] = list[i];
		transitions++;
		fault = make(&next, list[i]);
		if (!fault) {
			more = walk(&next);
			ways = ways + more < ways ? ~0ull : ways + more;
		}
		if (fault)
			return 0;
		depth--;
	}
	if (fault)
		return 0;
	if (++states > table_size / 2)
		grow();
	found = place_of(k);
	found->key = k;
	found->ways = ways;
	return ways;
}

/* Walk, and print what was found as JSON. */
static int walk_and_tell(const struct state *first)
{
	struct state *s = malloc(sizeof(*s));
	char text[120];
	u64 ways;
	u32 i;

	table = calloc(table_size, sizeof(*table));
	ways = walk(first);
	printf("{\"states\": %llu, \"transitions\": %llu, \"interleavings\": %llu, \"fault\": \"%s\", "
	       "\"trace\": [", (unsigned long long)states, (unsigned long long)transitions,
	       (unsigned long long)ways, fault ? fault : "");
	memcpy(s, first, sizeof(*s));
	for (i = 0; fault && i < depth; i++) {
		tell(s, trace[i], text, sizeof(text));
		printf("%s\"%s\"", i ? ", " : "", text);
		make(s, trace[i]);
	}
	printf("]}\n");
	return 0;
}

#endif
