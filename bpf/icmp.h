/* SPDX-License-Identifier: GPL-2.0-only */
/* ICMP of both versions: the numbers that programs know, and which packets are its errors. */

#ifndef MRC_ICMP_H
#define MRC_ICMP_H

#define ICMP_LEN 8
#define ICMP4_UNREACHABLE 3
#define ICMP4_HOST 1
#define ICMP4_PROHIBITED 13
#define ICMP4_ECHO 8
#define ICMP4_EXCEEDED 11
#define ICMP4_PARAMETER 12
#define ICMP6_UNREACHABLE 1
#define ICMP6_ADDRESS 3
#define ICMP6_SOURCE 5           /* the source address fails a policy */
#define ICMP6_ECHO 128           /* the first type that is no error */

/* Is the packet behind `off` bytes an ICMP error? Those of a packet with options are not seen. */
static __always_inline int is_icmp_error(struct __sk_buff *skb, u32 off, u32 v6)
{
	u8 first, proto, type;

	if (bpf_skb_load_bytes(skb, off + (v6 ? 6 : 9), &proto, 1) ||
	    bpf_skb_load_bytes(skb, off, &first, 1) ||
	    bpf_skb_load_bytes(skb, off + (v6 ? MRC_IP6_LEN : MRC_IP4_LEN), &type, 1))
		return 0;
	if (v6)
		return proto == IPPROTO_ICMPV6 && type < ICMP6_ECHO;
	return proto == IPPROTO_ICMP && first == 0x45 &&
	       (type == ICMP4_UNREACHABLE || type == ICMP4_EXCEEDED || type == ICMP4_PARAMETER);
}

#endif
