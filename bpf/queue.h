/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an application's TCP hears of the queues. A link that never loses
 * anything never tells TCP to slow down: its window grows until the queues of
 * the fabric overflow, and what they drop is repaired in vain. So the delay
 * that SACKs measure is turned into the signal TCP understands: a CE mark where
 * the connection speaks ECN (the routes to peers ask for it), one early drop
 * now and then where it does not. Nothing else than TCP is touched. A plane
 * that gave up part of its share does not count: its queue is answered by
 * sending it less, not by sending less.
 */
#ifndef MRC_QUEUE_H
#define MRC_QUEUE_H

#define EARLY_DROP_GAP_NS 10000000ull

#define QUEUE_PASS 0
#define QUEUE_DROP 1

static __always_inline int too_long(const struct mrc_tx *tx, const struct mrc_host *h)
{
	return tx->queue_rtt_ns > tx->min_rtt_ns + h->queue_target_ns;
}

/* Mark the inner packet, or say that it should be dropped. Changes the skb's data in place. */
static __always_inline int signal_queue(struct __sk_buff *skb, struct mrc_tx *tx)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	__u8 *ip = data + MRC_ETH_LEN;
	__u32 sum, old, now16;
	__be16 *check;
	u64 now;

	if (data + MRC_ETH_LEN + 20 > end)
		return QUEUE_PASS;
	if (skb->protocol == bpf_htons(MRC_ETH_P_IP)) {
		if (ip[9] != 6)
			return QUEUE_PASS;
		if (ip[1] & 3) {
			old = ip[0] << 8 | ip[1];
			now16 = old | 3;
			check = (__be16 *)(ip + 10);
			sum = (~bpf_ntohs(*check) & 0xffff) + (~old & 0xffff) + now16; /* RFC 1624 */
			sum = (sum & 0xffff) + (sum >> 16);
			sum = (sum & 0xffff) + (sum >> 16);
			*check = bpf_htons(~sum);
			ip[1] |= 3;
			count(MRC_C_TX_CE);
			return QUEUE_PASS;
		}
	} else {
		if (ip[6] != 6)
			return QUEUE_PASS;
		if (ip[1] & 0x30) {
			ip[1] |= 0x30;
			count(MRC_C_TX_CE);
			return QUEUE_PASS;
		}
	}
	/* Acknowledgements carry no window worth shrinking. */
	if (skb->len < CFG_MTU / 2)
		return QUEUE_PASS;
	now = bpf_ktime_get_ns();
	if (now < tx->early_ns)
		return QUEUE_PASS;
	tx->early_ns = now + EARLY_DROP_GAP_NS;
	return QUEUE_DROP;
}

#endif
