/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Active queue management for the applications' TCP. A link that never loses
 * anything never tells TCP to slow down: its window grows until the fabric's
 * queues overflow, and repairing what they drop achieves nothing. So the delay
 * that SACKs measure becomes the signal that TCP understands: a CE mark where the
 * connection uses ECN (the routes to peers ask for it), and an early drop now
 * and then where it does not. Only TCP is touched. A plane that gave up part of
 * its share does not count: its queue is answered by sending it less, not by
 * sending less.
 *
 * TCP never uses ECN for what it sends again (RFC 3168, 6.1.5), and losing that
 * once more costs a time-out. So flows that were marked are remembered by a bit
 * of their ports, and their other packets are left alone.
 */

#define EARLY_DROP_GAP_NS 10000000ull /* shortest time between two early drops of a QP */
#define QUEUE_FRESH_NS 100000000ull /* ignore queue estimates older than this */
#define ECN_FORGET_NS 100000000000ull /* forget flows marked longer ago than this */

#define BURST_NS 20000000ull     /* beside a slow plane, packets that have waited for so long without a pause are a queue */

#define FAULTS_NS 100000000ull /* after a packet was lost without a queue, more may be for so long */

#define QUEUE_PASS 0
#define QUEUE_DROP 1

/* Remember that the flow with these ports uses ECN. */
static __always_inline void flow_marked(struct mrc_balance *b, u64 flow, u64 now)
{
	if (now - b->ecn_ns > ECN_FORGET_NS) {
		b->ecn_ns = now;
		b->ecn_flows = 0;
	}
	b->ecn_flows |= flow;
	count(MRC_C_TX_CE);
}

/*
 * Is the congestion window full for good? Behind a packet of a slow plane, or one that a
 * fault has lost, order holds back what other planes deliver, so that TCP is acknowledged,
 * and sends, in bursts of a slow round trip or of a repair. What waits until such a burst
 * has left is no queue. TCP's window has to hold all that is sent meanwhile.
 */
static __always_inline int window_is_full(const struct mrc_host *h, const struct mrc_tx *tx,
					  const struct mrc_balance *b, const struct mrc_peer *peer,
					  u64 now)
{
	u64 up = serving_planes(tx, usable_planes(h, peer, b), spare_planes(h, peer));
	u32 equal = (gather_tops(b->shares) & up) == up;

	return equal && now - tx->fault_ns > FAULTS_NS ?
		       tx->inflight > tx->cwnd :
		       tx->held && now - tx->held_ns > BURST_NS;
}

/* Are the queues too long? */
static __always_inline int queue_is_long(const struct mrc_host *h, const struct mrc_tx *tx, u64 now)
{
	return tx->queue_ns > h->queue_target_ns && now - tx->queue_at_ns < QUEUE_FRESH_NS;
}

/*
 * If the queues are too long, mark the inner packet in place or return
 * QUEUE_DROP. A window that is nearly full is a queue, too: what does not fit into
 * it is lost, and a whole cell at once.
 */
static __always_inline int signal_queue(struct __sk_buff *skb, const struct mrc_host *h,
					const struct mrc_qp *q, struct mrc_tx *tx,
					struct mrc_balance *b, const struct mrc_peer *peer)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	__u8 *ip = data + MRC_ETH_LEN;
	__u32 sum, old, now16, ports;
	__be16 *check;
	u64 now, flow;
	u32 window = send_window(q, tx), filling = tx->next - tx->una > window - window / 4;

	if (!filling && (h->cc_target_ns ? tx->inflight <= tx->cwnd && !tx->held :
					   tx->queue_ns <= h->queue_target_ns))
		return QUEUE_PASS;
	now = bpf_ktime_get_ns();
	if (!filling && !(h->cc_target_ns ? window_is_full(h, tx, b, peer, now) :
					     queue_is_long(h, tx, now)))
		return QUEUE_PASS;
	if (data + MRC_ETH_LEN + MRC_IP6_LEN + 4 > end) /* IPv4 with TCP is as long */
		return QUEUE_PASS;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (ip[9] != 6)
			return QUEUE_PASS;
		ports = bpf_ntohl(*(__be32 *)(ip + MRC_IP4_LEN));
		flow = 1ull << ((ports ^ ports >> 16) & 63);
		if (ip[1] & 3) {
			old = ip[0] << 8 | ip[1];
			now16 = old | 3;
			check = (__be16 *)(ip + 10);
			sum = (~bpf_ntohs(*check) & 0xffff) + (~old & 0xffff) + now16; /* RFC 1624 */
			sum = (sum & 0xffff) + (sum >> 16);
			sum = (sum & 0xffff) + (sum >> 16);
			*check = bpf_htons(~sum);
			ip[1] |= 3;
			flow_marked(b, flow, now);
			return QUEUE_PASS;
		}
	} else {
		if (ip[6] != 6)
			return QUEUE_PASS;
		ports = bpf_ntohl(*(__be32 *)(ip + MRC_IP6_LEN));
		flow = 1ull << ((ports ^ ports >> 16) & 63);
		if (ip[1] & 0x30) {
			ip[1] |= 0x30;
			flow_marked(b, flow, now);
			return QUEUE_PASS;
		}
	}
	/* Acknowledgements carry no window worth shrinking. */
	if (skb->len < CFG_MTU / 2 || (b->ecn_flows & flow))
		return QUEUE_PASS;
	if (now < tx->early_ns)
		return QUEUE_PASS;
	tx->early_ns = now + EARLY_DROP_GAP_NS;
	return QUEUE_DROP;
}
