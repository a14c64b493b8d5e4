/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Messages for the daemon: what strangers send ends here, before it costs Python
 * anything. Part of mrc_receive.
 *
 *   with keys   an INIT must have the right mac1, which takes this host's public
 *               key, and be within the budget of its source. Any other message
 *               must name an exchange or an epoch of ours, by a random number of
 *               32 bits that only the peer was told. A few Offers that are not
 *               sealed pass from a peer's address, for status to name a peer without
 *               keys.
 *   without     the budget of the source is all that limits it.
 *
 * A peer has a budget of its own. Other addresses of the planes share one for each
 * prefix of a T0's hosts, and everybody else shares a small one, so that no stranger
 * uses up what is a peer's. A host that forges a peer's address and knows our
 * public key can; the daemon's gate deals with it (mrcd/handshake/gate.py).
 */

#define MESSAGE_INIT 0x4d524331  /* "MRC1" */
#define MESSAGE_RESPONSE 0x4d524332
#define MESSAGE_COOKIE 0x4d524333
#define MESSAGE_SEALED 0x4d524334
#define MESSAGE_CLEAR 0x4d524368 /* "MRCh", an Offer */
#define MESSAGE_MAX 1232         /* bytes, as SEALED_MAX_BYTES of mrcd/handshake/sealing.py */
#define INIT_MACED 122           /* bytes of an INIT in front of mac1 ... */
#define INIT_LEN 146             /* ... and in all */
#define MACED_WORDS 16           /* INIT_MACED, filled up with zeros */

_Static_assert(MACED_WORDS * 8 == MRC_HEAD_MAX && INIT_MACED <= MRC_HEAD_MAX,
	       "an INIT fits into the memory of headers");

struct allowance {               /* what a budget holds */
	u64 gap_ns;              /* mean time between two messages */
	u64 burst_ns;            /* messages that may come at once, times gap_ns */
};

#define MS 1000000ull
#define INITS ((struct allowance){ 10 * MS, 640 * MS })   /* 100 a second, 64 at once */
#define SAID ((struct allowance){ MS / 2, 256 * MS })     /* 2,000 a second, 512 at once */
#define OF_PLANES ((struct allowance){ 20 * MS, 1000 * MS }) /* 50 a second */
#define OF_REST ((struct allowance){ 100 * MS, 1000 * MS }) /* 10 a second */
#define BUDGET_TRIES 4

/*
 * Take one message from a budget: each costs gap_ns, and debts up to burst_ns are
 * allowed. One word holds all, so no lock is needed; a CPU that loses the race for it
 * again and again is in a flood. Returns 0 if the budget is used up.
 */
static __always_inline int budget_take(struct mrc_budget *b, u64 *paid, const struct allowance may)
{
	u64 now = bpf_ktime_get_ns(), due, from;
	u32 i;

	#pragma unroll
	for (i = 0; i < BUDGET_TRIES; i++) {
		due = *paid;
		from = due > now ? due : now;
		if (from - now > may.burst_ns)
			break;
		if (__sync_val_compare_and_swap(paid, due, from + may.gap_ns) == due)
			return 1;
	}
	__sync_fetch_and_add(&b->refused, 1);
	return 0;
}

/* The budget of a source, and the counter of what exceeds it. */
static __always_inline struct mrc_budget *budget_of(const struct mrc_host *h,
						    const struct mrc_plane *pl,
						    const struct mrc_source *from, u32 *why)
{
	u32 *peer = sources.lookup((struct mrc_source *)from), at;
	int of_planes = ENCAP_IPV4 ? !((from->addr[3] ^ pl->addr[3]) & bpf_htonl(0xffff0000)) :
				     from->addr[0] == h->cell_block;

	if (peer) {
		*why = MRC_C_DROP_BUDGET_PEER;
		return peer_budgets.lookup(peer);
	}
	at = MRC_REST_BUDGET;
	*why = MRC_C_DROP_BUDGET_REST;
	if (of_planes) {
		at = ENCAP_IPV4 ? from->addr[3] & bpf_htonl(0xffffff00) : from->addr[1];
		at = at * 0x9e3779b1 >> 22; /* 10 bits of a multiplicative hash */
		*why = MRC_C_DROP_BUDGET_PLANE;
	}
	return net_budgets.lookup(&at);
}

/* Is an INIT's mac1 right? */
static __always_inline int has_mac1(struct hook_ctx *ctx, const struct mrc_host *h)
{
	struct mrc_chain *chain = chain_get(CHAIN_PACKET);
	u64 *words, mac1;

	if (!chain)
		return 0;
	words = (u64 *)chain->head;
	words[MACED_WORDS - 1] = 0;
	return !hook_load(ctx, MRC_BTH_OFF, words, INIT_MACED) &&
	       !hook_load(ctx, MRC_BTH_OFF + INIT_MACED, &mac1, sizeof(mac1)) &&
	       mac1 == siphash(h->mac1_key, words, MACED_WORDS);
}

/* A message that is sealed, or belongs to an exchange of ours. Returns the counter of what is wrong, or 0. */
static __always_inline u32 admit_known(u32 index, struct mrc_budget *source)
{
	struct mrc_budget *b = indices.lookup(&index);

	if (!b) {
		if (source)
			__sync_fetch_and_add(&source->forged, 1);
		return MRC_C_DROP_INDEX;
	}
	return budget_take(b, &b->due_ns, SAID) ? 0 : MRC_C_DROP_BUDGET_PEER;
}

/* May a message go to the daemon? Returns the counter of why not, or 0. */
static __always_inline u32 admit_message(struct hook_ctx *ctx, const struct mrc_host *h,
				 const struct mrc_plane *pl, u32 len)
{
	void *data = HOOK_DATA(ctx), *end = HOOK_END(ctx);
	const __be32 *head = data + MRC_BTH_OFF;
	struct mrc_budget *source;
	struct mrc_source from;
	u32 why, kind, index;

	if (data + MRC_BTH_OFF + 2 * sizeof(*head) > end)
		return MRC_C_DROP_SHORT;
	if (envelope_hops(data) < h->hops_min)
		return MRC_C_DROP_HOPS;
	envelope_source(data, from.addr);
	source = budget_of(h, pl, &from, &why);
	kind = bpf_ntohl(head[0]);
	index = bpf_ntohl(head[1]);
	if (!source)
		return why;
	if (!h->keyed)
		return budget_take(source, &source->due_ns, why == MRC_C_DROP_BUDGET_PEER ? SAID :
					   why == MRC_C_DROP_BUDGET_PLANE ? OF_PLANES : OF_REST) ? 0 : why;
	if (kind >= MESSAGE_RESPONSE && kind <= MESSAGE_SEALED && len <= MESSAGE_MAX)
		return admit_known(index, source);
	if (kind == MESSAGE_CLEAR && why == MRC_C_DROP_BUDGET_PEER)
		return budget_take(source, &source->clear_ns, OF_REST) ? 0 : why;
	if (kind != MESSAGE_INIT || len != INIT_LEN) {
		__sync_fetch_and_add(&source->forged, 1);
		return MRC_C_DROP_MESSAGE;
	}
	if (!has_mac1(ctx, h)) {
		__sync_fetch_and_add(&source->forged, 1);
		__sync_fetch_and_add(&source->misaddressed, 1);
		return MRC_C_DROP_MAC1;
	}
	return budget_take(source, &source->due_ns, why == MRC_C_DROP_BUDGET_PEER ? INITS :
				   why == MRC_C_DROP_BUDGET_PLANE ? OF_PLANES : OF_REST) ? 0 : why;
}
