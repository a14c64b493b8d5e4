/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Paths: their states, and what losses, marks and answers do to them. Every
 * function that takes a struct mrc_tx wants its lock held.
 */
#ifndef MRC_PATH_H
#define MRC_PATH_H

#define NO_SLOT MRC_EVS_PER_PLANE
#define MARK_PARTS 64            /* packets of a path over which its marks are smoothed */
#define CROWD_SLACK_PPM 20000    /* marks over one and a half times the plane's that may be chance */
#define CROWD_HOLD_NS 100000000ull /* a crowded path is slow for this time to twice this time ... */
#define CROWDS_MAX 4             /* ... doubled at most this many times */
#define PROBE_NEED 2             /* a path returns after these answers in a row and one more for each relapse ... */
#define PROBE_NEED_MAX 8         /* ... but after these at most */
#define PROBE_SLOT_SHIFT 9       /* in a probe's id: slot 7 | sequence 9 */
#define PROBE_SEQ_MASK 0x1ff
#define PROBE_WAIT_MIN_NS 4000000ull /* an answer is missed after the time-out, this at least ... */
#define PROBE_WAIT_MAX_NS 100000000ull /* ... and this at most */
#define PROBE_LATE_MAX 3         /* probes of a path that may have been sent since the one that is answered */
#define DEAD_MISSES 2            /* missed probes that mean a dead path; a single one may be an ordinary loss */
#define RELAPSES_MAX 10          /* relapses that count */
#define RELAPSE_NS 10000000000ull /* relapses are forgotten this long after the last one */

#define SLOT_MASK (MRC_EVS_PER_PLANE - 1)
#define PATH_ID_MASK ((MRC_MAX_PLANES - 1) << 8 | SLOT_MASK)

/* A path's id, plane << 8 | slot, and its parts. */
static __always_inline u32 path_id(u32 plane, u32 slot)
{
	return plane << 8 | slot;
}

static __always_inline u32 path_plane(u32 id)
{
	return id >> 8 & (MRC_MAX_PLANES - 1);
}

static __always_inline u32 path_slot(u32 id)
{
	return id & SLOT_MASK;
}

/* The share of a plane, out of a word of them (struct mrc_balance). */
static __always_inline u32 share_of(u64 shares, u32 plane)
{
	return shares >> (8 * plane) & 0xff;
}

/*
 * The life of a path: the next state for each state and event. mrcd/paths/states.py
 * has the same table, and a test compares them.
 */
#define ROW(good, denied, skip, bad) \
	((MRC_PATH_##good) | (MRC_PATH_##denied) << 2 | (MRC_PATH_##skip) << 4 | \
	 (MRC_PATH_##bad) << 6)
static __always_inline u32 path_next(u32 state, u32 event)
{
	u32 row;

	switch (event) {         /*   GOOD         DENIED  SKIP         ASSUMED_BAD */
	case MRC_ON_TURN:
		row = ROW(GOOD, DENIED, GOOD, ASSUMED_BAD);
		break;
	case MRC_ON_MARK:
		row = ROW(SKIP, DENIED, SKIP, ASSUMED_BAD);
		break;
	case MRC_ON_LOSS:
		row = ROW(ASSUMED_BAD, DENIED, ASSUMED_BAD, ASSUMED_BAD);
		break;
	case MRC_ON_PROBE:
		row = ROW(GOOD, DENIED, SKIP, GOOD);
		break;
	case MRC_ON_PROBE_MARK:
		row = ROW(SKIP, DENIED, SKIP, SKIP);
		break;
	case MRC_ON_DENY:
		row = ROW(DENIED, DENIED, DENIED, DENIED);
		break;
	case MRC_ON_ALLOW:
		row = ROW(GOOD, GOOD, SKIP, ASSUMED_BAD);
		break;
	default:
		return state;
	}
	return row >> (2 * (state & 3)) & 3;
}

/* The word of a set that holds a slot's bit. */
static __always_inline u32 slot_word(u32 id)
{
	return BOUNDED(path_plane(id) * MRC_EV_WORDS + (id >> 6 & 1), MRC_SET_WORDS - 1);
}

/* The two words of a plane: slots 0 to 63, and 64 to 127. */
static __always_inline u32 first_word(u32 plane)
{
	return slot_word(path_id(plane, 0));
}

static __always_inline u32 second_word(u32 plane)
{
	return slot_word(path_id(plane, 64));
}

static __always_inline u64 slot_bit(u32 id)
{
	return 1ull << (id & 63);
}

static __always_inline u32 path_state(const struct mrc_tx *tx, u32 id)
{
	u32 at = slot_word(id);
	u64 bit = slot_bit(id);

	if (tx->denied[at] & bit)
		return MRC_PATH_DENIED;
	if (tx->use[at] & bit)
		return tx->skip[at] & bit ? MRC_PATH_SKIP : MRC_PATH_GOOD;
	return tx->spare[at] & bit ? MRC_PATH_GOOD : MRC_PATH_ASSUMED_BAD;
}

/* The first slot of a set, 128 bits, at or cyclically behind `from`; NO_SLOT if it is empty. */
static __always_inline u32 next_slot(u64 low, u64 high, u32 from)
{
	u64 one = from & 64 ? high : low, other = from & 64 ? low : high;
	u64 found = one & (~0ull << (from & 63));
	u32 word = from & 64;

	if (!found) {
		found = other ? other : one;
		word = other ? word ^ 64 : word;
	}
	return found ? word | lowest_bit(found) : NO_SLOT;
}

/* Slots of a word whose paths are away: ASSUMED_BAD. */
static __always_inline u64 slots_away(const struct mrc_tx *tx, u32 word)
{
	u32 at = word & (MRC_SET_WORDS - 1);

	return tx->all[at] & ~(tx->use[at] | tx->spare[at] | tx->denied[at]);
}

/*
 * Put a path into a state, and keep the right number of its plane's paths in
 * use: a backup of the same plane replaces a path that leaves.
 */
static __always_inline void path_enter(struct mrc_tx *tx, u32 id, u32 to)
{
	u32 p = path_plane(id), at = slot_word(id), k;
	u32 low = first_word(p), high = second_word(p);
	u64 bit = slot_bit(id), was = tx->use[at] & bit;

	tx->use[at] &= ~bit;
	tx->skip[at] &= ~bit;
	tx->spare[at] &= ~bit;
	tx->denied[at] &= ~bit;
	if (to == MRC_PATH_DENIED) {
		tx->denied[at] |= bit;
	} else if (to != MRC_PATH_ASSUMED_BAD) {
		if (was || tx->used[p] < tx->active[p]) {
			tx->use[at] |= bit;
			if (to == MRC_PATH_SKIP)
				tx->skip[at] |= bit;
			if (!was) {
				tx->used[p]++;
				tx->used_all++;
			}
		} else {
			tx->spare[at] |= bit;
		}
	}
	if (was && !(tx->use[at] & bit)) {
		tx->slow[at] &= ~bit;
		tx->used[p]--;
		tx->used_all--;
		k = next_slot(tx->spare[low], tx->spare[high], path_slot(id));
		if (k != NO_SLOT) {
			at = slot_word(path_id(p, k));
			bit = slot_bit(k);
			tx->spare[at] &= ~bit;
			tx->use[at] |= bit;
			tx->used[p]++;
			tx->used_all++;
		}
	}
	tx->plane_use &= ~(1ull << p);
	if (tx->use[low] | tx->use[high])
		tx->plane_use |= 1ull << p;
	tx->plane_open &= ~(1ull << p);
	if ((tx->all[low] & ~tx->denied[low]) | (tx->all[high] & ~tx->denied[high]))
		tx->plane_open |= 1ull << p;
}

/* A change of state, for the event that reports it. */
struct path_move {
	u32 from;
	u32 to;
};

/* Apply an event. Returns 1 if it changes the state. */
static __always_inline int path_event(struct mrc_tx *tx, u32 id, u32 event, struct path_move *move)
{
	move->from = path_state(tx, id);
	move->to = path_next(move->from, event);
	if (move->to == move->from)
		return 0;
	path_enter(tx, id, move->to);
	return 1;
}

/* Count a relapse: the path stays away longer next time, unless that is long from now. */
static __always_inline void path_relapsed(struct mrc_path *path, u64 now)
{
	if (path->relapses < RELAPSES_MAX)
		path->relapses++;
	path->relapsed_ns = now;
}

/*
 * Data of `len` bytes is lost on this path. Returns 1 if that makes the path one that loses
 * data: several packets in a row were lost, and none as long as the shortest of them arrived.
 * Answers to probes say nothing of it then, but for those of trials, which look like data.
 */
static __always_inline u32 path_gone(struct mrc_path *path, u32 len)
{
	if (!path->gone || len < path->gone_len)
		path->gone_len = len;
	if (path->gone > MRC_DEAF_AFTER)
		return 0;
	path->gone++;
	return path->gone == MRC_DEAF_AFTER;
}

/* Data of `len` bytes has arrived by this path. */
static __always_inline void path_heard(struct mrc_path *path, u32 len)
{
	if (path->gone && len >= path->gone_len)
		path->gone = 0;
}

static __always_inline u32 path_is_deaf(const struct mrc_path *path)
{
	return path->gone >= MRC_DEAF_AFTER;
}

/* Nothing arrives by this plane: packets take others (trusted_planes). */
static __always_inline void suspect(struct mrc_tx *tx, u32 plane, u64 now)
{
	__sync_fetch_and_or(&tx->suspects, 1ull << plane);
	tx->suspect_ns = now;
}

static __always_inline u32 is_suspect(const struct mrc_tx *tx, u32 plane)
{
	return tx->suspects >> plane & 1;
}

/* Something has arrived by this plane. */
static __always_inline void trust(struct mrc_tx *tx, u32 plane)
{
	if (is_suspect(tx, plane))
		__sync_fetch_and_and(&tx->suspects, ~(1ull << plane));
}

/* A packet that was sent on this plane at `sent` is lost. Unless a later one has arrived, the plane is a suspect. */
static __always_inline void plane_lost(struct mrc_tx *tx, u32 plane, u64 sent, u64 now)
{
	if (tx->arrived_ns[plane] <= sent)
		suspect(tx, plane, now);
}

/* A packet that was sent on this plane at `sent` has arrived. */
static __always_inline void plane_heard(struct mrc_tx *tx, u32 plane, u64 sent)
{
	if (sent <= tx->arrived_ns[plane])
		return;
	tx->arrived_ns[plane] = sent;
	trust(tx, plane);
}

/*
 * A packet of this path is lost: the path becomes ASSUMED_BAD at once, unless it
 * still delivers (`alive`) and no more than tx->floor paths are in use.
 *
 * The first answer to a probe brings it back, so that loss on every path does
 * not empty the set. A path that had died before, or that loses clearly more
 * than both the QP's average and its plane (usual_ppm), stays away for a while,
 * twice as long each time, and until more probes in a row are answered. Other
 * withdrawals do not renew the memory of relapses: where queues make packets
 * late, some occur every second.
 */
static __always_inline void path_lost(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now,
				      const struct mrc_host *h, u32 alive, u32 usual_ppm,
				      struct path_move *move)
{
	u32 event = tx->used_all <= tx->floor && alive ? MRC_ON_MARK : MRC_ON_LOSS;
	u64 hold;

	path->loss_ppm += (1000000 - path->loss_ppm) >> 8;
	tx->loss_ppm += (1000000 - tx->loss_ppm) >> 8;
	if (!path_event(tx, id, event, move) || move->to != MRC_PATH_ASSUMED_BAD)
		return;
	hold = 0;
	path->probe_need = 1;
	if (usual_ppm < tx->loss_ppm)
		usual_ppm = tx->loss_ppm;
	if (now - path->relapsed_ns > RELAPSE_NS)
		path->relapses = 0;
	if (path->loss_ppm > 2 * usual_ppm + 8000)
		path_relapsed(path, now);
	if (path->relapses) {
		hold = (u64)h->hold_base_ns << (path->relapses & 15);
		if (hold > h->hold_max_ns)
			hold = h->hold_max_ns;
		path->probe_need = PROBE_NEED + path->relapses;
		if (path->probe_need > PROBE_NEED_MAX)
			path->probe_need = PROBE_NEED_MAX;
	}
	path->hold_ns = now + hold;
	path->withdrawn_ns = now;
	path->probe_ok = 0;
	path->misses = 0;
}

/* The share of marked packets, smoothed over `parts` packets: one of the last `fresh` was marked. */
static __always_inline u32 marked_part(u32 ppm, u32 fresh, u32 parts)
{
	if (!parts)
		return ppm;
	if (fresh > parts)
		fresh = parts;
	if (fresh > 1)
		ppm -= (u64)ppm * (fresh - 1) / parts;
	return ppm + (1000000 - ppm) / parts;
}

/* The number of a plane's slow paths. */
static __always_inline u32 slow_paths(const struct mrc_tx *tx, u32 plane)
{
	return __builtin_popcountll(tx->slow[first_word(plane)]) +
	       __builtin_popcountll(tx->slow[second_word(plane)]);
}

/*
 * A packet of this path was marked: the path is passed over once. A path that
 * keeps being marked, clearly more than its plane, crosses a link that others
 * need whole. It is treated as slow for a random time, so that two senders that
 * meet on that link neither leave nor return in step, and for longer each time
 * it is marked again soon afterwards. If all of a plane's paths are marked alike,
 * none is crowded: the planes' shares deal with that. Half of a plane's paths
 * stay as they are in any case. Returns 1 if the path is crowded from now on.
 */
static __always_inline u32 path_marked(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now,
				       struct path_move *move)
{
	u32 p = path_plane(id), at = slot_word(id), usual, ppm;
	u64 bit = slot_bit(id), hold;

	usual = marked_part(tx->mark_ppm[p], tx->acked[p] - tx->acked_then[p],
			    MARK_PARTS * tx->used[p]);
	tx->acked_then[p] = tx->acked[p];
	tx->mark_ppm[p] = usual;
	ppm = marked_part(path->mark_ppm, (u32)path->acked - path->acked_then, MARK_PARTS);
	path->acked_then = path->acked;
	path->mark_ppm = ppm;
	path_event(tx, id, MRC_ON_MARK, move);
	if (!(tx->use[at] & bit) || now < path->crowded_ns ||
	    ppm <= usual + usual / 2 + CROWD_SLACK_PPM)
		return 0;
	if (!(tx->slow[at] & bit) && 2 * (slow_paths(tx, p) + 1) > tx->used[p])
		return 0;
	if (now - path->crowded_ns > RELAPSE_NS)
		path->crowds = 0;
	hold = CROWD_HOLD_NS << (path->crowds & 7);
	path->crowded_ns = now + hold + (hold >> 8) * ((tx->round >> 16 ^ now) & 0xff);
	if (path->crowds < CROWDS_MAX)
		path->crowds++;
	tx->slow[at] |= bit;
	return 1;
}

/* A path that returns to use is as crowded as it was. */
static __always_inline void path_is_back(struct mrc_tx *tx, const struct mrc_path *path, u32 id,
					 u64 now)
{
	u32 at = slot_word(id);

	if (now < path->crowded_ns)
		tx->slow[at] |= slot_bit(id) & tx->use[at];
}

/*
 * A packet for which this path was withdrawn arrived by it after all: the path
 * returns, unless it has left a probe unanswered since. Eifel responds to
 * spurious time-outs in a similar way (RFC 4015).
 */
static __always_inline void path_cleared(struct mrc_tx *tx, struct mrc_path *path, u32 id,
					 u64 now, struct path_move *move)
{
	u32 mine = (1000000 - path->loss_ppm) >> 8, all = (1000000 - tx->loss_ppm) >> 8;

	path->gone = 0;
	trust(tx, path_plane(id));
	path->loss_ppm -= path->loss_ppm < mine ? path->loss_ppm : mine;
	tx->loss_ppm -= tx->loss_ppm < all ? tx->loss_ppm : all;
	if (path_state(tx, id) == MRC_PATH_ASSUMED_BAD && !path->misses &&
	    path_event(tx, id, MRC_ON_PROBE, move))
		path_is_back(tx, path, id, now);
}

/* A probe of this path was answered, perhaps late: it returns after enough answers. */
static __always_inline void path_answered(struct mrc_tx *tx, struct mrc_path *path, u32 id,
					  u64 now, u32 marked, u32 late, struct path_move *move)
{
	move->from = move->to = path_state(tx, id);
	if (!path_is_deaf(path))
		trust(tx, path_plane(id));
	if (move->from == MRC_PATH_ASSUMED_BAD) {
		if (now < path->hold_ns)
			return;
		path->probe_ok++;
		if (path_is_deaf(path) || path->probe_ok < path->probe_need)
			return;
	}
	if (!path_event(tx, id, marked ? MRC_ON_PROBE_MARK : MRC_ON_PROBE, move) ||
	    move->from != MRC_PATH_ASSUMED_BAD)
		return;
	/* It was dead, and not just unlucky or slow. */
	if (!late && path->misses >= DEAD_MISSES)
		path_relapsed(path, now);
	path_is_back(tx, path, id, now);
	path->probe_ok = 0;
	path->misses = 0;
}

/* A probe of this path was not answered in time. */
static __always_inline void path_silent(struct mrc_tx *tx, struct mrc_path *path, u32 id, u64 now,
					const struct mrc_host *h, struct path_move *move)
{
	move->from = move->to = path_state(tx, id);
	if (is_suspect(tx, path_plane(id)))
		suspect(tx, path_plane(id), now);
	if (move->from == MRC_PATH_ASSUMED_BAD) {
		path->probe_ok = 0;
		path->misses++;
	} else if (move->from != MRC_PATH_DENIED) {
		path_lost(tx, path, id, now, h, 0, 0, move);
		path->misses = 1;
	}
}

#endif
