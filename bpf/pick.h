/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Choose the path of the next packet: first the plane, then a slot within it, so
 * that planes stay equally loaded however many paths of each are in use. Every
 * function that takes a struct mrc_tx wants its lock held.
 */
#ifndef MRC_PICK_H
#define MRC_PICK_H

#define SLOW_TURNS 31            /* a slow path is used in one of this many turns, plus one */
#define PATH_SLOW 0x10000        /* in pick_path()'s result: the path is slow */
#define PATH_LAST 0x20000        /* beside it: the packet is the last that the window allows */
#define PATH_HELD 0x40000000     /* in place of a path: the packet waits ... */
#define PATH_HELD_OTHER 1        /* ... and is not one of TCP */

/* Planes that packets to a peer may use: up here and, as far as is known, there. */
static __always_inline u64 usable_planes(const struct mrc_host *h, const struct mrc_peer *peer,
					 const struct mrc_balance *b)
{
	return h->plane_mask & peer->plane_mask & b->ports & b->heard_ports & 0xff;
}

/* Planes to a peer that are to carry data only while no other one can, a bit each. */
static __always_inline u64 spare_planes(const struct mrc_host *h, const struct mrc_peer *peer)
{
	return h->standby | peer->spare | peer->far;
}

/*
 * Of the planes `up`, those that carry data: not those that are `spare`, as long as another
 * one has paths in use and is no suspect. So the packet that finds the last of the others
 * lost is the first on a spare one, and what arrives by another ends that.
 */
static __always_inline u64 serving_planes(const struct mrc_tx *tx, u64 up, u64 spare)
{
	u64 rest = up & ~spare;

	return rest & tx->plane_use & ~tx->suspects ? rest : up;
}

/*
 * Of the planes `up`, those that are no suspects, if there are any with paths in use. Other
 * paths of a suspect have lost nothing yet, but each of them would have to lose a packet
 * first, and everything behind it would wait for its repair.
 */
static __always_inline u64 trusted_planes(const struct mrc_tx *tx, u64 up)
{
	u64 rest = up & ~tx->suspects;

	return rest & tx->plane_use ? rest : up;
}

/* The price of a turn: the share of a plane that has all of it. */
#define WHOLE_TURN MRC_SHARE_FULL

/*
 * The planes of a new round: those that have credit for a turn. If there are none,
 * every plane gains its share first. So a plane with a whole share is in every
 * round, and a plane with less in that part of the rounds, as long as each turn
 * costs a whole share; with cells, which differ in length, it costs less
 * (turn_price). The order starts at random: with a fixed order, packets of the
 * same plane would cause every SACK.
 */
static __always_inline u64 new_round(struct mrc_tx *tx, u64 usable, u64 shares)
{
	u64 credit = tx->credit, turn = gather_tops(credit) & usable;

	tx->round = tx->round * 1103515245 + 12345;
	if (!turn) {
		credit = (credit & 0x7f7f7f7f7f7f7f7full) + shares; /* bytes: 127 + 128 do not overflow */
		tx->credit = credit;
		turn = gather_tops(credit) & usable;
	}
	return turn ? turn : usable;
}

/* A plane that had credit for its turn pays for it. */
static __always_inline void pay_turn(struct mrc_tx *tx, u32 p, u32 price)
{
	u32 shift = 8 * (p & 7);

	tx->credit -= (u64)((tx->credit >> shift & WHOLE_TURN) ? price : 0) << shift;
}

/*
 * What a packet or cell of `len` bytes costs, of WHOLE_TURN for one of the longest,
 * `most`: where lengths differ, planes get equal bytes, up to the longest one.
 */
static __always_inline u32 turn_price(u32 len, u32 most)
{
	return len < most ? 1 + len * (u64)(WHOLE_TURN - 1) / most : WHOLE_TURN;
}

/*
 * The next plane of a non-empty set, in the order of this round: that of
 * plane ^ n for a random n, which makes each plane of two, four or eight equally
 * likely to be the first.
 */
static __always_inline u32 pick_plane(const struct mrc_tx *tx, u64 planes)
{
	u32 n = tx->round >> 16 & 7;
	u64 swap;

	/* bit p of the set to bit p ^ n, without branches */
	swap = 0 - (u64)(n & 1);
	planes ^= (planes ^ ((planes >> 1 & 0x55) | (planes & 0x55) << 1)) & swap;
	swap = 0 - (u64)(n >> 1 & 1);
	planes ^= (planes ^ ((planes >> 2 & 0x33) | (planes & 0x33) << 2)) & swap;
	swap = 0 - (u64)(n >> 2 & 1);
	planes ^= (planes ^ ((planes >> 4 & 0x0f) | (planes & 0x0f) << 4)) & swap;
	return (lowest_bit(planes) & 7) ^ n;
}

/*
 * The path of the next packet over one of `planes`, if possible one that is no suspect, and
 * one of those `preferred`; MRC_NO_PATH if all are denied. `price`: of its turn, at most
 * WHOLE_TURN.
 */
static __always_inline u32 pick_path(struct mrc_tx *tx, u64 planes, u64 preferred, u64 shares,
				     u32 price)
{
	u64 usable = tx->plane_use & trusted_planes(tx, planes), turn, w0, w1, skip0, skip1;
	u32 p, k, other, low, high, slow = 0, avoid = 0;

	if (!usable) {           /* none in use: still send, in turn, on whatever is not denied */
		turn = tx->plane_open & planes ? tx->plane_open & planes : tx->plane_open;
		if (!turn)
			return MRC_NO_PATH;
		tx->round += 1 << 16;
		p = pick_plane(tx, turn);
		low = first_word(p);
		high = second_word(p);
		k = next_slot(tx->all[low] & ~tx->denied[low], tx->all[high] & ~tx->denied[high],
			      tx->ev_next[p]) & SLOT_MASK;
		tx->ev_next[p] = (k + 1) & SLOT_MASK;
		return path_id(p, k);
	}
	if (!(usable & preferred))
		preferred = usable;
	if (!(tx->turn & usable))
		tx->turn = new_round(tx, usable, shares);
	turn = tx->turn & usable & preferred;
	p = pick_plane(tx, turn ? turn : usable & preferred);
	tx->turn &= ~(1ull << p);
	pay_turn(tx, p, price);

	low = first_word(p);
	high = second_word(p);
	w0 = tx->use[low];
	w1 = tx->use[high];
	skip0 = tx->skip[low];
	skip1 = tx->skip[high];
	k = next_slot(w0, w1, tx->ev_next[p]) & SLOT_MASK;
	if ((k & 64 ? skip1 : skip0) >> (k & 63) & 1) {
		/* SKIP: GOOD again, but this packet takes the next path. One a packet. */
		if (k & 64)
			tx->skip[high] &= ~(1ull << (k & 63));
		else
			tx->skip[low] &= ~(1ull << (k & 63));
		avoid = 1;
	} else if ((k & 64 ? tx->slow[high] : tx->slow[low]) >> (k & 63) & 1) {
		avoid = tx->round >> 20 & SLOW_TURNS;
		slow = PATH_SLOW;
	}
	if (avoid) {
		other = next_slot(w0 & ~skip0 & ~tx->slow[low], w1 & ~skip1 & ~tx->slow[high],
				  k + 1);
		if (other != NO_SLOT) {
			k = other & SLOT_MASK;
			slow = 0;
		}
	}
	tx->ev_next[p] = (k + 1) & SLOT_MASK;
	return slow | path_id(p, k);
}

#endif
