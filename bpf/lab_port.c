/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the ports of a lab's switches do to packets that leave by them. No part
 * of the data path: a lab attaches these programs (cli/lab/portprograms.py).
 *
 *   lab_fault   drops, corrupts or redirects packets (cli/lab/impair.py)
 *   lab_mark    marks them by the length of the queue behind the port
 *   lab_trim    the same, and cuts what the queue has no room for
 *   lab_spread  chooses the queue of the NIC at the other end, as RSS does
 *   lab_pass    XDP: passes everything; it makes a veth take what XDP sends
 *
 * A program at egress cannot see the queueing discipline behind it. So it
 * simulates the token bucket there, in time instead of bytes: `busy_until` is
 * when the link will have sent all that it was given. The difference to now is
 * the length of the queue. Each packet adds its time on the link, and like the
 * real queue this one never grows beyond its limit. Where two CPUs send through
 * one port at the same time, a packet may be missing from the sum.
 */
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>
#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>

/* Numbers that the loader writes into instructions in place of these. */
#define LAB_DROP_PLACE 1588724701        /* packets dropped of a million */
#define LAB_CORRUPT_PLACE 1588724702     /* ... and with a bit flipped */
#define LAB_REDIRECT_PLACE 1588724703    /* index of the interface that the others go to; 0: none */
#define LAB_HELD_PLACE 1588724704        /* mark of packets that come back from there; 0: none */
#define LAB_QUEUES_PLACE 1588724705      /* queues of the NIC at the other end */
#define LAB_IPV4_PLACE 1588724706        /* 1: the planes speak IPv4 */
#define LAB_CONTROL_PLACE 1588724707     /* DSCPs: of control packets, */
#define LAB_TRIMMED_PLACE 1588724708     /* of trimmed ones, */
#define LAB_LASTHOP_PLACE 1588724709     /* of those trimmed at the last hop, */
#define LAB_TRIMMABLE_PLACE 1588724710   /* of data that may be trimmed, */
#define LAB_AGAIN_PLACE 1588724711       /* and of data that was sent again */
#define LAB_TRIM_BYTES_PLACE 1588724712  /* what is left of a trimmed packet */
#define LAB_CONTROL_PART_PLACE 1588724713 /* control packets get this part of the link: 1/n */
#define LAB_FIRST_QUEUE_PLACE 1588724714 /* skb->priority of the queue that is served first */

#define TEXT(number) #number
#define MOVE(place) "%0 = " TEXT(place)
#define PLACED(place) ({ \
	u32 number_; \
	asm volatile(MOVE(place) : "=r"(number_)); \
	number_; \
})

#define MILLION 1000000
#define HEADERS 54 /* Ethernet and outer IPv6 header, which are not corrupted */
#define LENGTH_4 16
#define CHECK_4 24
#define LENGTH_6 18
#define IP6_HEADER 40

/* A port; cli/lab/portprograms.py has the members' names in this order. */
struct lab_port {
	u64 busy_until;  /* ns, as CLOCK_MONOTONIC */
	u64 ps_per_byte; /* the link's rate; 0: it has none, and no queue */
	u64 some, all;   /* lengths, ns: from the first on some packets are marked, from the second on all */
	u64 full;        /* the longest queue, ns */
	u64 marked;      /* packets */
	u64 first_until; /* the same of the queue that is served first */
	u64 first_full;
	u64 cut_as;      /* DSCP of what this port trims */
	u64 trimmed, dropped;
};

BPF_ARRAY(lab_ports, struct lab_port, 1);

/* The queue behind a port as a packet finds it; times in ns. */
struct queue {
	struct lab_port *port;
	u64 now, packet, busy, length;
};

/* Find the queue that skb->tc_classid numbers; return 0 if there is none. */
static __always_inline int find(struct __sk_buff *skb, struct queue *q)
{
	u32 number = skb->tc_classid;

	q->port = lab_ports.lookup(&number);
	if (!q->port || !q->port->ps_per_byte)
		return 0;
	q->now = bpf_ktime_get_ns();
	q->packet = skb->wire_len * q->port->ps_per_byte / 1000;
	q->busy = q->port->busy_until;
	if (q->busy < q->now)
		q->busy = q->now;
	q->length = q->busy - q->now;
	return 1;
}

/* Add the packet to the queue; return 0 if there is no room. */
static __always_inline int admit(struct queue *q)
{
	if (q->length + q->packet > q->port->full)
		return 0;
	q->port->busy_until = q->busy + q->packet;
	return 1;
}

/*
 * Mark the packet by the length of the queue. Only ECT becomes CE; the kernel's
 * helper also corrects the checksum of an IPv4 header.
 */
static __always_inline void mark(struct __sk_buff *skb, struct queue *q)
{
	u64 some = q->port->some, all = q->port->all;

	if (q->length <= some)
		return;
	if (q->length < all && bpf_get_prandom_u32() >= ((q->length - some) << 32) / (all - some))
		return;
	bpf_skb_pull_data(skb, 0); /* the header may belong to a clone */
	if (bpf_skb_ecn_set_ce(skb))
		__sync_fetch_and_add(&q->port->marked, 1);
}

int lab_mark(struct __sk_buff *skb)
{
	struct queue q = {};

	if (find(skb, &q)) {
		admit(&q); /* the discipline drops what has no room */
		mark(skb, &q);
	}
	return TC_ACT_UNSPEC;
}

/* Write a word into the packet; in an IPv4 header its checksum follows. */
static __always_inline void put_word(struct __sk_buff *skb, u32 at, u16 word)
{
	u16 old = 0;

	if (PLACED(LAB_IPV4_PLACE)) {
		bpf_skb_load_bytes(skb, at, &old, sizeof(old));
		bpf_l3_csum_replace(skb, CHECK_4, old, word, sizeof(word));
	}
	bpf_skb_store_bytes(skb, at, &word, sizeof(word), 0);
}

/*
 * Trim a packet that has no room, and send it out of the port anew. The kernel
 * notes the length of a packet for its queues before a program sees it, and the
 * next switch drops packets that are shorter than they say.
 */
static __always_inline int cut(struct __sk_buff *skb, struct queue *q)
{
	u32 left = PLACED(LAB_TRIM_BYTES_PLACE), ipv4 = PLACED(LAB_IPV4_PLACE);
	u16 word = 0;

	if (skb->len > left) {
		if (bpf_skb_change_tail(skb, left, 0))
			return TC_ACT_SHOT;
		if (ipv4)
			put_word(skb, LENGTH_4, bpf_htons(left - ETH_HLEN));
		else
			put_word(skb, LENGTH_6, bpf_htons(left - ETH_HLEN - IP6_HEADER));
	}
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &word, sizeof(word)))
		return TC_ACT_SHOT;
	word = bpf_ntohs(word);
	if (ipv4)
		word = (word & 0xff03) | (u16)(q->port->cut_as << 2);
	else
		word = (word & 0xf03f) | (u16)(q->port->cut_as << 6);
	put_word(skb, ETH_HLEN, bpf_htons(word));
	__sync_fetch_and_add(&q->port->trimmed, 1);
	return bpf_redirect(skb->ifindex, 0);
}

/* Take a control packet into the queue that is served first; return 0 if there is no room. */
static __always_inline int go_first(struct __sk_buff *skb, struct queue *q)
{
	struct lab_port *port = q->port;
	u64 until = port->first_until;

	if (until < q->now)
		until = q->now;
	until += q->packet * PLACED(LAB_CONTROL_PART_PLACE);
	if (until - q->now > port->first_full)
		return 0;
	port->first_until = until;
	port->busy_until = q->busy + q->packet;
	skb->priority = PLACED(LAB_FIRST_QUEUE_PLACE);
	return 1;
}

int lab_trim(struct __sk_buff *skb)
{
	u32 ipv4 = PLACED(LAB_IPV4_PLACE), dscp;
	int may_be_trimmed = 0, verdict = TC_ACT_SHOT;
	struct queue q = {};
	u16 word = 0;

	if (!find(skb, &q))
		return TC_ACT_UNSPEC;
	if (skb->protocol == bpf_htons(ipv4 ? ETH_P_IP : ETH_P_IPV6) &&
	    !bpf_skb_load_bytes(skb, ETH_HLEN, &word, sizeof(word))) {
		dscp = bpf_ntohs(word) >> (ipv4 ? 2 : 6) & 63;
		if (dscp == PLACED(LAB_CONTROL_PLACE) || dscp == PLACED(LAB_TRIMMED_PLACE) ||
		    dscp == PLACED(LAB_LASTHOP_PLACE)) {
			if (go_first(skb, &q))
				return TC_ACT_UNSPEC;
			goto drop;
		}
		may_be_trimmed = dscp == PLACED(LAB_TRIMMABLE_PLACE) || dscp == PLACED(LAB_AGAIN_PLACE);
	}
	if (admit(&q)) {
		mark(skb, &q);
		return TC_ACT_UNSPEC;
	}
	/* A large packet that the kernel has still to cut cannot be trimmed. */
	if (may_be_trimmed && !skb->gso_size)
		verdict = cut(skb, &q);
drop:
	if (verdict == TC_ACT_SHOT)
		__sync_fetch_and_add(&q.port->dropped, 1);
	return verdict;
}

/* Return whether something happens to a packet that happens to so many of a million. */
static __always_inline int happens(u32 of_million)
{
	return of_million >= MILLION || (u64)bpf_get_prandom_u32() * MILLION >> 32 < of_million;
}

/* Flip a random bit behind the outer headers; checksums are not corrected. */
static __always_inline void flip(struct __sk_buff *skb)
{
	u32 len = skb->len, at;
	u8 byte = 0;

	if (len <= HEADERS)
		return;
	at = HEADERS + bpf_get_prandom_u32() % (len - HEADERS);
	if (bpf_skb_load_bytes(skb, at, &byte, sizeof(byte)))
		return;
	byte ^= 1 << (bpf_get_prandom_u32() & 7);
	bpf_skb_store_bytes(skb, at, &byte, sizeof(byte), 0);
}

int lab_fault(struct __sk_buff *skb)
{
	u32 held = PLACED(LAB_HELD_PLACE), to = PLACED(LAB_REDIRECT_PLACE);

	if (held && skb->mark == held)
		return TC_ACT_UNSPEC;
	if (happens(PLACED(LAB_DROP_PLACE)))
		return TC_ACT_SHOT;
	if (happens(PLACED(LAB_CORRUPT_PLACE)))
		flip(skb);
	return to ? bpf_redirect(to, 0) : TC_ACT_UNSPEC;
}

/* Mix a word into a hash; the prime is near 2^32 divided by the golden ratio. */
static __always_inline u32 mixed(u32 hash, u32 word)
{
	hash = (hash ^ word) * 0x9e3779b1;
	return hash ^ hash >> 15;
}

/*
 * Choose a queue by the outer addresses and, of TCP and UDP, the ports. The
 * kernel gives a packet without a socket to the transmit queue of the number
 * that is recorded as that of its arrival, less one; 0 means none here, too.
 */
int lab_spread(struct __sk_buff *skb)
{
	u32 hash = 0, queues = PLACED(LAB_QUEUES_PLACE), words[10] = {}, ports = 0, behind, i;
	u8 protocol;

	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, words, 40))
			return TC_ACT_UNSPEC;
#pragma unroll
		for (i = 2; i < 10; i++)
			hash = mixed(hash, words[i]);
		protocol = bpf_ntohl(words[1]) >> 8;
		behind = ETH_HLEN + 40;
	} else if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, words, 20))
			return TC_ACT_UNSPEC;
		hash = mixed(mixed(hash, words[3]), words[4]);
		protocol = bpf_ntohl(words[2]) >> 16;
		behind = ETH_HLEN + 20;
	} else {
		return TC_ACT_UNSPEC;
	}
	if ((protocol == IPPROTO_TCP || protocol == IPPROTO_UDP) &&
	    !bpf_skb_load_bytes(skb, behind, &ports, sizeof(ports)))
		hash = mixed(hash, ports);
	skb->queue_mapping = ((u64)hash * queues >> 32) + 2;
	return TC_ACT_UNSPEC;
}

int lab_pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
