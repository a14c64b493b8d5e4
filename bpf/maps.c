/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * All maps but those of a capture, in bcc's notation, and access to them. Sizes
 * come from the daemon as CFG_ constants (mrcd/datapath/sizes.py); the structs that the
 * daemon reads, too, are in mrc_abi.h.
 *
 * Hot state is in arrays indexed by QP, so that a look-up is an addition and a
 * bounds check; only the address look-ups on the fast path hash.
 */

_Static_assert(CFG_MTU <= MRC_PIECE_BYTES, "a longer packet could be neither held nor sent again");

struct mrc_prefix {              /* longest-prefix key; IPv4 as ::ffff:a.b.c.d */
	__u32 bits;
	__u32 addr[4];
};

struct mrc_address {             /* a full-length prefix; most are, and a trie of thousands is deep */
	__u32 addr[4];
};

struct mrc_source {              /* address of a peer on one of its planes; net */
	__u32 addr[4];
};

struct mrc_slot {                /* one packet, in either ring */
	__u64 tag;               /* qp << 32 | psn while the content is whole, else ~0; MRC_TAG_PARTIAL */
	__u64 expires_ns;        /* in the retransmit ring: when it is too old to be sent; 0: never, or EXPIRED */
	__u8 data[CFG_SLOT_BYTES];
};

#define MRC_TAG_PARTIAL (1ull << 63) /* in the reorder ring: its checksum was left to a NIC */

/*
 * A cell of several packets, in either ring. A packet of it is found by its place
 * in the cell (MRC_SLOT_AT), its payload behind the headers that all share.
 */
struct mrc_big {
	__u64 tag;               /* as that of a slot, with the PSN of the first packet */
	__u64 left;              /* packets that still need it; atomic */
	__u32 len;               /* of the whole IP packet, bytes */
	__u16 head;              /* its headers, IP and TCP, bytes */
	__u16 mss;               /* payload of each packet but the last, bytes */
	__u16 count;             /* packets */
	__u16 resent;            /* 1: packets of it were sent again, one by one; lock of tx */
	__u32 ace;               /* 1: its flow uses AccECN (has_accurate_ecn) */
	__u8 data[MRC_CELL_BYTES + MRC_PIECE_ROOM];
};

BPF_ARRAY(host, struct mrc_host, 1);
BPF_ARRAY(planes, struct mrc_plane, MRC_MAX_PLANES);
BPF_HASH(addresses, struct mrc_address, u32, CFG_MAX_PREFIXES);
BPF_LPM_TRIE(prefixes, struct mrc_prefix, u32, CFG_MAX_PREFIXES);
BPF_ARRAY(peers, struct mrc_peer, CFG_MAX_PEERS);
BPF_HASH(sources, struct mrc_source, u32, CFG_MAX_PEERS * MRC_MAX_PLANES);
BPF_ARRAY(peer_planes, struct mrc_peer_plane, CFG_MAX_PEERS * MRC_MAX_PLANES);
BPF_HASH(relays, struct mrc_relayed, struct mrc_relay, NEXT_HOPS ? MRC_RELAYS : 1);
BPF_ARRAY(balances, struct mrc_balance, CFG_MAX_PEERS);
BPF_ARRAY(qps, struct mrc_qp, CFG_MAX_QPS);
BPF_ARRAY(txs, struct mrc_tx, CFG_MAX_QPS);
BPF_ARRAY(rxs, struct mrc_rx, CFG_MAX_QPS);
BPF_ARRAY(keys, struct mrc_keys, CFG_MAX_QPS);
BPF_ARRAY(peer_keys, struct mrc_keys, CFG_MAX_PEERS);
BPF_ARRAY(replays, struct mrc_replay, CFG_MAX_QPS * MRC_MAX_PLANES);

/* What may be sent to the daemon (admit.c). */
BPF_ARRAY(peer_budgets, struct mrc_budget, CFG_MAX_PEERS);
BPF_ARRAY(net_budgets, struct mrc_budget, MRC_NET_BUDGETS + 1);
BPF_HASH(indices, u32, struct mrc_budget, CFG_MAX_PEERS * MRC_INDICES);

/* What senders of this host may be told of destinations that cannot be reached (unreachable.c). */
BPF_ARRAY(told, struct mrc_budget, 1);

BPF_ARRAY(tx_entries, struct mrc_tx_entry, CFG_MAX_QPS * CFG_WINDOW);
BPF_ARRAY(rx_entries, struct mrc_rx_entry, CFG_MAX_QPS * (CFG_WINDOW / 2));
BPF_ARRAY(paths, struct mrc_path, CFG_MAX_QPS * MRC_MAX_PLANES * CFG_EVS);

/* Free slots are stacks: the slot freed last is the one still in the cache. */
BPF_ARRAY(tx_ring, struct mrc_slot, CFG_RING_SLOTS);
BPF_ARRAY(rx_ring, struct mrc_slot, CFG_RING_SLOTS);
BPF_STACK(tx_free, u32, CFG_RING_SLOTS);
BPF_STACK(rx_free, u32, CFG_RING_SLOTS);

/* The same for cells of several packets. */
BPF_ARRAY(tx_cells, struct mrc_big, CFG_CELL_SLOTS);
BPF_ARRAY(rx_cells, struct mrc_big, CFG_CELL_SLOTS);
BPF_STACK(tx_cells_free, u32, CFG_CELL_SLOTS);
BPF_STACK(rx_cells_free, u32, CFG_CELL_SLOTS);
BPF_ARRAY(rooms, struct mrc_room, 2);

/* The survey's loops: their routes (net addresses), and the counts of their probes. */
BPF_ARRAY(loop_paths, struct mrc_peer_plane, CFG_LOOPS);
BPF_ARRAY(loops, struct mrc_loop, CFG_LOOPS);
BPF_ARRAY(survey, struct mrc_survey, 1);

/* Bit per QP that has something for the clock to watch. */
BPF_F_TABLE("array", u32, u64, active, CFG_ACTIVE_WORDS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct mrc_clock, clock, 1, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(events, 16);
BPF_PERCPU_ARRAY(counters, u64, MRC_COUNTERS_ROOM);
BPF_ARRAY(counter_names, struct mrc_counter_name, MRC_COUNTERS_ROOM);

BPF_PERCPU_ARRAY(chains, struct mrc_chain, CHAIN_COUNT); /* chain.h */
BPF_PERCPU_ARRAY(judge_states, struct judge_state, 1);

#define MRC_HELD_MARK 0x6d726348 /* skb->mark of a packet at mrc_spray's ingress of which only the copy is wanted */

/* Programs that others end in, filled by the loader. */
BPF_PROG_ARRAY(tails, TAIL_COUNT);

static __always_inline struct mrc_chain *chain_get(u32 chain)
{
	return chains.lookup(&chain);
}

/* End a program in the next one. It returns only if nothing is left. */
static __always_inline int go_on(struct __sk_buff *skb, const struct mrc_chain *chain)
{
	tails.call(skb, next_tail(chain));
	return TC_ACT_SHOT;
}

/* Count in a program that only packets run: nothing on this CPU interrupts it. */
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

/*
 * Count in a program that may be a test run. Linux before 6.8 leaves softirqs enabled in
 * one: a packet's program may interrupt it between reading and writing a counter, and
 * that program's count would be lost.
 * Written as an instruction because the compiler makes longer programs of its own
 * atomic addition, which it copies to more places.
 */
static __always_inline void count_atomic_by(u32 which, u64 by)
{
	u64 *value = counters.lookup(&which);

	if (value)
		asm volatile("lock *(u64 *)(%0 + 0) += %1" : : "r"(value), "r"(by) : "memory");
}

static __always_inline void count_atomic(u32 which)
{
	count_atomic_by(which, 1);
}

/* Count in code that both kinds of programs have; `chain` is a constant. */
static __always_inline void count_in(u32 chain, u32 which, u64 by)
{
	if (chain == CHAIN_CLOCK)
		count_atomic_by(which, by);
	else
		count_by(which, by);
}

static __always_inline struct mrc_host *host_get(void)
{
	u32 zero = 0;

	return host.lookup(&zero);
}

/* The plane of an interface, or MRC_MAX_PLANES. */
static __always_inline u32 plane_of(u32 ifindex)
{
	struct mrc_plane *pl;
	u32 i, plane;

	/* The verifier loses track of a counter whose address is taken: use a copy. */
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		plane = i;
		pl = planes.lookup(&plane);
		if (pl && pl->ifindex == ifindex)
			break;
	}
	return i;
}

/* Take a free slot of a reorder ring, MRC_ROOM_..., a constant. Returns 0, or an error if all are in use. */
static __always_inline long rx_slot_take(u32 ring, u32 *slot)
{
	struct mrc_room *room = rooms.lookup(&ring);

	if (ring == MRC_ROOM_CELLS ? rx_cells_free.pop(slot) : rx_free.pop(slot))
		return -1;
	if (room)
		__sync_fetch_and_add(&room->free, -1);
	return 0;
}

static __always_inline void rx_slot_give(u32 ring, u32 slot)
{
	struct mrc_room *room = rooms.lookup(&ring);

	if (ring == MRC_ROOM_CELLS)
		rx_cells_free.push(&slot, 0);
	else
		rx_free.push(&slot, 0);
	if (room)
		__sync_fetch_and_add(&room->free, 1);
}

static __always_inline struct mrc_path *path_get(u32 qp, u32 path)
{
	u32 index = (qp * MRC_MAX_PLANES + (path >> 8)) * PATCHED(EVS_PLACE) + (path & 0xff);

	return paths.lookup(&index);
}

/* The count of the next SACK, NACK or probe of a QP on the plane of an EV. */
static __always_inline u32 next_count(u32 qp, u32 ev)
{
	u32 index = qp * MRC_MAX_PLANES + ev_plane(ev);
	struct mrc_replay *r = replays.lookup(&index);

	return r ? __sync_fetch_and_add(&r->sent, 1) + 1 : 0;
}

/* Whose inner address is it? MRC_OWNER..., or NULL if nobody has it. IPv4 as ::ffff:a.b.c.d. */
static __always_inline u32 *owner_of(const u32 *addr)
{
	struct mrc_prefix key = { .bits = 128 };
	struct mrc_address exact;
	u32 *owner;

	copy_addr(exact.addr, addr);
	owner = addresses.lookup(&exact);
	if (owner)
		return owner;
	copy_addr(key.addr, addr);
	return prefixes.lookup(&key);
}

/* Write both addresses of IPv4 as IPv6 has them. */
static __always_inline void map_ends(u32 *ends, u32 from, u32 to)
{
	ends[0] = ends[4] = 0;
	ends[1] = ends[5] = 0;
	ends[2] = ends[6] = bpf_htonl(0xffff);
	ends[3] = from;
	ends[7] = to;
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

/* At most half a window ahead of the next PSN is held, and all of that under the lock. */
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

/* Have the next beat look at a QP. Returns 1 if the clock did not watch it before. */
static __always_inline int set_active(u32 qp)
{
	u32 word = qp >> 6;
	u64 bit = 1ull << (qp & 63);
	u64 *bits = active.lookup(&word);

	return bits && !(*bits & bit) && !(__sync_fetch_and_or(bits, bit) & bit);
}

/* Ask the daemon for a beat. */
static __always_inline void ask_for_beat(void)
{
	struct mrc_event ev = { .kind = MRC_EVENT_WAKE };

	events.ringbuf_output(&ev, sizeof(ev), BPF_RB_FORCE_WAKEUP);
}

/*
 * Tell the clock that a QP needs watching. A beat that rests is replaced by a new one,
 * made of a clone of this packet: mrc_beat finds out whether it can be, and rests on if
 * not, so that the next packet is tried. The bit is set before `resting` is read, and
 * mrc_beat looks at all bits once more after it has set `resting`, so no QP is
 * forgotten. Pointers into the packet are invalid afterwards.
 */
static __always_inline void watch(struct __sk_buff *skb, u32 qp)
{
	u32 zero = 0, mark = skb->mark;
	struct mrc_clock *ck;
	struct mrc_host *h;

	set_active(qp);
	ck = clock.lookup(&zero);
	if (!ck || !ck->resting)
		return;
	h = host_get();
	if (!h || __sync_val_compare_and_swap(&ck->resting, 1, 0) != 1)
		return;
	skb->mark = MRC_WAKE_MARK;
	bpf_clone_redirect(skb, h->rest_ifindex, BPF_F_INGRESS);
	skb->mark = mark;
}

/* The same, where the packet came out of a tunnel, so that no beat can be made of it. */
static __always_inline void watch_only(u32 qp)
{
	u32 zero = 0;
	struct mrc_clock *ck = clock.lookup(&zero);

	if (set_active(qp) && ck && ck->resting)
		ask_for_beat();
}
