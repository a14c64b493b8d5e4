/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Expiry: datagrams, which is all that is not TCP's, are worth nothing when they are old.
 * One that has waited longer than datagram_max_ms is not sent any more, for the first
 * time or again. Its receiver would wait for the PSN, so a stub goes in its place
 * (mrc_wire.h). TCP's packets are sent at any age: TCP waits for each of its bytes.
 */

#define EXPIRED 1                /* in .expires_ns: a stub has been sent in its place */

/* When a packet that is taken from mrc0 now becomes too old to be sent; 0: never. */
static __always_inline u64 expiry_of(const struct mrc_host *h, u32 tcp)
{
	if (tcp || !h->datagram_max_ms)
		return 0;
	return bpf_ktime_get_ns() + h->datagram_max_ms * 1000000ull;
}

/*
 * Is the copy of a packet too old to be sent? Counts it the first time. The slot may have
 * been given away since it was looked up, so only the time that was seen is replaced.
 */
static __always_inline u32 has_expired(const struct copy_at *c, u64 now)
{
	u64 expires;

	if (!c->expires)
		return 0;
	expires = *c->expires;
	if (!expires || now <= expires)
		return 0;
	if (expires != EXPIRED &&
	    __sync_val_compare_and_swap(c->expires, expires, EXPIRED) == expires)
		count_atomic(MRC_C_DROP_EXPIRED);
	return 1;
}

/* Make the IP header that of a stub. Returns the stub's length. */
static __always_inline u64 stub_header(u8 *head)
{
	if ((head[0] >> 4) == 6) {
		*(__be16 *)(head + 4) = 0;
		head[6] = MRC_STUB_NEXT;
		return MRC_IP6_LEN;
	}
	head[0] = 0x45;
	*(__be16 *)(head + 2) = bpf_htons(MRC_IP4_LEN);
	*(__be16 *)(head + 6) = 0;
	head[9] = MRC_STUB_NEXT;
	*(u16 *)(head + 10) = 0;
	*(u16 *)(head + 10) = folded((u32)bpf_csum_diff(0, 0, (void *)head, MRC_IP4_LEN, 0));
	return MRC_IP4_LEN;
}

/* Write the stub of a packet as write_copy() writes the packet. Returns its length, or -1. */
static __always_inline s32 write_stub(struct __sk_buff *skb, u32 off, u32 tail, u8 *head,
				      const struct copy_at *c)
{
	u64 len = stub_header(head);

	FORGET(len, c->is);
	len = MASKED(len, 0x3f);
	if (bpf_skb_change_tail(skb, off + len + tail, 0) ||
	    store_some(skb, off, head, len, MRC_IP6_LEN))
		return -1;
	/* The slot may have been given away while it was read. */
	barrier();
	return *c->tag == c->is ? len : -1;
}
