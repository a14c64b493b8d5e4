/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Redundant packets: those that an operator names are sent on two planes at once, with the
 * same PSN, and the receiver drops the second. Pure functions.
 */
#ifndef MRC_REDUNDANT_H
#define MRC_REDUNDANT_H

/* 1 if a word is zero, without a branch. */
static __always_inline u64 is_zero(u64 v)
{
	return not_zero(v) ^ 1;
}

/* Does the operator name packets with one of these UDP ports, in network order? 0: there is none. */
static __always_inline u32 names_port(const struct mrc_host *h, u32 source, u32 destination)
{
	u64 found = 0;
	u32 i;

	#pragma unroll
	for (i = 0; i < MRC_REDUNDANT_PORTS; i++)
		found |= not_zero(h->redundant_ports[i]) &
			 (is_zero(h->redundant_ports[i] ^ source) |
			  is_zero(h->redundant_ports[i] ^ destination));
	return found;
}

static __always_inline u32 names_dscp(const struct mrc_host *h, u32 dscp)
{
	return h->redundant_dscps >> (dscp & 63) & 1;
}

/*
 * Pick a path for the second sending of a packet, on another plane than that of the first, at the
 * price of a turn, and note that it is on both. Returns MRC_NO_PATH if no other plane serves, or
 * the packet was sent again meanwhile. Lock of tx held.
 */
static __always_inline u32 pick_second(struct mrc_tx *tx, struct mrc_tx_entry *entry, u32 psn, u64 up,
				       u64 spare, u64 shares, u32 price)
{
	u64 others = serving_planes(tx, up, spare) & tx->plane_use & ~(1ull << path_plane(entry->path));
	u32 id;

	if (!others || entry->psn != psn || entry->sends != 1)
		return MRC_NO_PATH;
	id = pick_path(tx, others, others, shares, price) & PATH_ID_MASK;
	entry->was = id;
	entry->rule = MRC_RULE_REDUNDANT;
	return id;
}

#endif
