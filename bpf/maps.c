/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every map, in one place, in bcc's notation. Sizes come from the daemon as
 * CFG_ constants (mrcd/loader.py); the structs are in mrc_abi.h.
 *
 * Hot state is in arrays indexed by QP, so that a look-up is an addition and a
 * bounds check; nothing on the fast path hashes but the address look-ups.
 */
#define CFG_WINDOW_MASK (CFG_WINDOW - 1)
#define CFG_WORD_MASK (CFG_WINDOW / 64 - 1)

struct mrc_prefix {              /* longest-prefix key; IPv4 as ::ffff:a.b.c.d */
	__u32 bits;
	__u32 addr[4];
};

struct mrc_address {             /* a prefix of full length; most are, and a trie of thousands is deep */
	__u32 addr[4];
};

struct mrc_source {              /* address of a peer on one of its planes; net */
	__u32 addr[4];
};

struct mrc_slot {                /* one packet, in either ring */
	__u64 tag;               /* qp << 32 | psn while the content is whole, else ~0 */
	__u8 data[CFG_SLOT_BYTES];
};

BPF_ARRAY(host, struct mrc_host, 1);
BPF_ARRAY(planes, struct mrc_plane, MRC_MAX_PLANES);
BPF_HASH(addresses, struct mrc_address, u32, CFG_MAX_PREFIXES);
BPF_LPM_TRIE(prefixes, struct mrc_prefix, u32, CFG_MAX_PREFIXES);
BPF_ARRAY(peers, struct mrc_peer, CFG_MAX_PEERS);
BPF_HASH(sources, struct mrc_source, u32, CFG_MAX_PEERS * MRC_MAX_PLANES);
BPF_ARRAY(peer_planes, struct mrc_peer_plane, CFG_MAX_PEERS * MRC_MAX_PLANES);
BPF_ARRAY(balances, struct mrc_balance, CFG_MAX_PEERS);
BPF_ARRAY(qps, struct mrc_qp, CFG_MAX_QPS);
BPF_ARRAY(txs, struct mrc_tx, CFG_MAX_QPS);
BPF_ARRAY(rxs, struct mrc_rx, CFG_MAX_QPS);
BPF_ARRAY(tx_entries, struct mrc_tx_entry, CFG_MAX_QPS * CFG_WINDOW);
BPF_ARRAY(rx_entries, struct mrc_rx_entry, CFG_MAX_QPS * (CFG_WINDOW / 2));
BPF_ARRAY(paths, struct mrc_path, CFG_MAX_QPS * MRC_MAX_PLANES * CFG_EVS);

/* Free slots are stacks: the slot freed last is the one still in the cache. */
BPF_ARRAY(tx_ring, struct mrc_slot, CFG_RING_SLOTS);
BPF_ARRAY(rx_ring, struct mrc_slot, CFG_RING_SLOTS);
BPF_STACK(tx_free, u32, CFG_RING_SLOTS);
BPF_STACK(rx_free, u32, CFG_RING_SLOTS);

/* The survey's loops: where they lead (net addresses), and what became of their probes. */
BPF_ARRAY(loop_paths, struct mrc_peer_plane, CFG_LOOPS);
BPF_ARRAY(loops, struct mrc_loop, CFG_LOOPS);
BPF_ARRAY(survey, struct mrc_survey, 1);

/* Bit per QP that has something for the clock to watch; the daemon maps it. */
BPF_F_TABLE("array", u32, u64, active, CFG_ACTIVE_WORDS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct mrc_clock, clock, 1, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(events, 16);
BPF_PERCPU_ARRAY(counters, u64, MRC_C_COUNT);

/*
 * Loop state the verifier should not follow. It tracks a counter on the stack
 * value by value, and walks the rest of the program once for each; a number
 * read back from a map is just a number. One program runs at a time on a CPU.
 */
struct mrc_scratch {
	u64 rtt;
	u64 rule;
	u64 now;
	u64 seen_ns;             /* by when what a SACK misses should have arrived */
	u64 timeout_ns;
	u64 latest;
	u32 is_long;             /* what the round trip is of: half of the MTU or more */
	u32 high;
	u32 heard;
	u32 down;
	u32 base;
	u32 qp;
	u32 sent;
	u32 id;
	u32 verdict;
	s32 slow;
	u32 found_slow;
	u32 probe;
	u32 curious;
	u32 step;
	u32 found;
	u32 last;
	u32 due[16];
};
BPF_PERCPU_ARRAY(scratch, struct mrc_scratch, 1);

/* The state of mrc_judge's loops over a peer's planes. */
struct judge_state {
	u32 best_ns;             /* least of the planes with the largest share: srtt_ns, */
	u32 best_fast_ns;        /* fast_ns, */
	u32 best_loss;           /* loss_ppm */
	u32 best_mark;           /* and mark_ppm */
	u32 gap_ns;              /* shortest time between two packets of a plane */
	u32 judged;              /* bit p: plane p had enough traffic to be judged */
	u32 losing;              /* bit p: plane p lost packets */
	u32 top;                 /* largest share of a usable plane */
};
BPF_PERCPU_ARRAY(judge_states, struct judge_state, 1);

/* Programs that others end in, filled by the loader (mrcd/loader.py, TAILS). */
#define TAIL_RESEND 0
#define TAIL_LEARN 1
#define TAIL_PROBE 2
#define TAIL_COUNT 3
BPF_PROG_ARRAY(tails, TAIL_COUNT);

static __always_inline struct mrc_scratch *scratch_get(void)
{
	u32 zero = 0;

	return scratch.lookup(&zero);
}

static __always_inline void count_by(u32 which, u64 by)
{
	u64 *value = counters.lookup(&which);

	if (value)
		*value += by;
}

static __always_inline void count(u32 which)
{
	count_by(which, 1);
}

static __always_inline struct mrc_host *host_get(void)
{
	u32 zero = 0;

	return host.lookup(&zero);
}

/* The plane that an interface is, or MRC_MAX_PLANES. */
static __always_inline u32 plane_of(u32 ifindex)
{
	struct mrc_plane *pl;
	u32 i, plane;

	/* The verifier forgets a counter whose address is taken: count apart. */
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		plane = i;
		pl = planes.lookup(&plane);
		if (pl && pl->ifindex == ifindex)
			break;
	}
	return i;
}

static __always_inline struct mrc_path *path_get(u32 qp, u32 path)
{
	u32 index = (qp * MRC_MAX_PLANES + (path >> 8)) * CFG_EVS + (path & 0xff);

	return paths.lookup(&index);
}

static __always_inline struct mrc_peer *peer_get(u32 peer)
{
	return peers.lookup(&peer);
}

static __always_inline struct mrc_balance *balance_get(u32 peer)
{
	return balances.lookup(&peer);
}

static __always_inline struct mrc_tx_entry *tx_entry_get(u32 qp, u32 psn)
{
	u32 index = qp * CFG_WINDOW + (psn & CFG_WINDOW_MASK);

	return tx_entries.lookup(&index);
}

/* No more than half a window ahead of the next one is held, and all that under the lock. */
static __always_inline struct mrc_rx_entry *rx_entry_get(u32 qp, u32 psn)
{
	u32 index = qp * (CFG_WINDOW / 2) + (psn & (CFG_WINDOW / 2 - 1));

	return rx_entries.lookup(&index);
}

static __always_inline struct mrc_peer_plane *peer_plane_get(u32 peer, u32 plane)
{
	u32 index = peer * MRC_MAX_PLANES + plane;

	return peer_planes.lookup(&index);
}

/*
 * Tell the clock that a QP has something to watch. The bit is set before the
 * sleeper is looked at, and the daemon looks at the bits again after it has
 * announced its sleep, so no wake-up is lost.
 */
static __always_inline void watch(u32 qp)
{
	u32 word = qp >> 6, zero = 0;
	u64 bit = 1ull << (qp & 63);
	u64 *bits = active.lookup(&word);
	struct mrc_clock *ck;

	if (!bits || (*bits & bit))
		return;
	__sync_fetch_and_or(bits, bit);
	ck = clock.lookup(&zero);
	if (ck && ck->asleep && __sync_val_compare_and_swap(&ck->asleep, 1, 0) == 1) {
		struct mrc_event ev = { .kind = MRC_EVENT_WAKE, .qp = qp };

		events.ringbuf_output(&ev, sizeof(ev), BPF_RB_FORCE_WAKEUP);
	}
}
