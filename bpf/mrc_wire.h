/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The bytes on the wire, defined once. Read by the BPF programs, by the host
 * compiler in the tests, and by Python through cffi (mrcd/wire/packet.py); nothing else
 * in the project spells out an offset.
 *
 * A data packet is
 *
 *   Ethernet | IPv6 (outer, DA = uSID list) | IPv6 (inner, DA = peer's NIC)
 *            | UDP | BTH | METH | TSETH | RETH | IP packet of the application | ICRC
 *
 * or has one IP header instead of two (MRC_ENCAP_*). envelope.h writes and reads
 * everything in front of the BTH.
 *
 * Everything is in network byte order. No struct is packed: every field lies
 * on its natural alignment, 64-bit quantities are pairs of 32-bit words
 * because they start at odd multiples of four behind an Ethernet header.
 * Sub-byte fields are masks on a named byte or word, never C bit-fields.
 *
 * Layouts follow OCP MRC 1.0 as far as it is public; docs/protocol.md has a
 * row for each departure and each gap that was filled.
 *
 * The including file provides __u8, __u16 and __u32 (linux/types.h, or a
 * typedef in front for cffi). Only "#define NAME value" lines and structs may
 * stand here, so that the simplest parser can read it.
 */
#ifndef MRC_WIRE_H
#define MRC_WIRE_H

/* UDP destination port. The specification prints 4971, RoCEv2 uses 4791. */
#define MRC_UDP_PORT_DEFAULT 4971

/* Opcodes, BTH.opcode */
#define MRC_OP_WRITE_FIRST 0xC6
#define MRC_OP_WRITE_MIDDLE 0xC7
#define MRC_OP_WRITE_LAST 0xC8
#define MRC_OP_WRITE_LAST_IMM 0xC9
#define MRC_OP_WRITE_ONLY 0xCA
#define MRC_OP_WRITE_ONLY_IMM 0xCB
#define MRC_OP_TRANSPORT_ACK 0xD1
#define MRC_OP_ENDPOINT_REQ 0xD8
#define MRC_OP_ENDPOINT_RSP 0xD9
#define MRC_OP_SACK 0xDC
#define MRC_OP_NACK 0xDD
#define MRC_OP_PROBE 0xDE

/* BTH, 12 bytes: in every packet. */
#define MRC_BTH_TVER 0x0f        /* in .flags: transport version, 0 */
#define MRC_BTH_PAD 0x30         /* in .flags: pad count, 0 */
#define MRC_BTH_M 0x40           /* in .flags: migration bit, 0 */
#define MRC_BTH_SE 0x80          /* in .flags: solicited event, 0 */
#define MRC_BTH_ACKREQ 0x80      /* in .aux: answer with a SACK at once */
#define MRC_BTH_RTX 0x20         /* in .aux: this PSN was sent before */
#define MRC_BTH_TS 0x10          /* in .aux: a TSETH follows METH */
#define MRC_BTH_PHASE 0x01       /* in .aux: which one of its two keys the tag is made with */
#define MRC_PSN_MASK 0xffffff
#define MRC_QPN_MASK 0xffffff
#define MRC_QPN_ENDPOINT 2       /* dest QP of endpoint requests */
#define MRC_PKEY_DEFAULT 0xffff

struct mrc_bth {
	__u8 opcode;
	__u8 flags;      /* SE | M | pad | tver */
	__u16 pkey;
	__u32 dqpn;      /* reserved 8 | destination QP 24 */
	__u8 aux;        /* ackreq | rtx | ts */
	__u8 psn_hi;     /* PSN, most significant byte */
	__u16 psn_lo;    /* PSN, low 16 bits */
};

/* METH, 4 bytes: in every request packet. */
struct mrc_meth {
	__u16 rqmsn;     /* meaningful for Write with Immediate only */
	__u16 msn;       /* message sequence number; one message per packet here */
};

/* TSETH, 4 bytes: announced by BTH.ts, in every data packet of ours. */
#define MRC_TS_SHIFT 7           /* nanoseconds >> 7: units of 128 ns */
#define MRC_TS_FTYPE_TX 1
#define MRC_TS_TSR 0x8000        /* in .meta: resolution */
#define MRC_TS_FTYPE 0x000f      /* in .meta: 1 */
struct mrc_tseth {
	__u16 tx_timestamp;      /* sender's clock, units of 128 ns, wraps every 8.4 ms */
	__u16 meta;              /* tsr 1 (0) | reserved 11 | ftype 4 (1) */
};

/* RETH, 16 bytes: in every data packet. */
#define MRC_RKEY_NETDEV 0x4e455430   /* "NET0": the peer's mrc0, an ordered link */
#define MRC_RKEY_STUB 0x4e554c30 /* "NUL0": nowhere; the packet is a stub */
struct mrc_reth {
	__u32 va_hi;     /* remote address; the netdev region has none, and the packet's tag stands here */
	__u32 va_lo;
	__u32 rkey;
	__u32 length;    /* bytes of payload of the whole message */
};

/*
 * The headers of SACKs, NACKs, probes and endpoint packets begin with type 4 | nxt 5,
 * the sixteen bits .head, or the upper half of SETH's. Both are 0, and ignored on arrival.
 */
#define MRC_HEAD_TYPE 0xf000
#define MRC_HEAD_NXT 0x0f80

/* Immediate data, 4 bytes: behind RETH in the last or only packet of a Write with Immediate. */
struct mrc_immdt {
	__u32 data;
};

/* AETH, 4 bytes: Transport ACK, as InfiniBand has it. */
#define MRC_AETH_CREDITS 0x1f    /* in .syndrome: no credits are counted */
struct mrc_aeth {
	__u8 syndrome;           /* res 1 | kind 2 | credits 5 */
	__u8 msn_hi;             /* MSN, most significant byte */
	__u16 msn_lo;            /* MSN, low 16 bits */
};

/* SETH, 28 bytes, and CC_STATE, 8 bytes: the body of a SACK. */
#define MRC_SETH_M_SHIFT 21      /* two bits: congestion mark for the reflected path */
#define MRC_SETH_PR 0x00020000   /* answers a reliability probe */
#define MRC_SETH_M_NONE 0
#define MRC_SETH_M_SKIP_ONCE 1
#define MRC_SETH_M_ALWAYS_SKIP 2
#define MRC_SETH_DOWN_SHIFT 24   /* in .cack: eight bits, one a plane */
#define MRC_SACK_BITS 64
#define MRC_MPR_UNIT 128         /* SETH.mpr counts in these */
struct mrc_seth {
	__u32 head;              /* type 4 | nxt 5 | m 2 | res 3 | pr 1 | res 1 | ack_psn_offset s16 (probe id when pr) */
	__u32 entropy;           /* EV of the packet that caused this SACK */
	__u16 spdcid;
	__u16 dpdcid;
	__u32 cack;              /* down 8: bit k, the sender's plane k is down | cumulative PSN 24 */
	__u8 cc;                 /* cc_type 4 | cc_flags 4 */
	__u8 mpr;                /* window, x128 PSNs beyond cack */
	__u16 sack_offset;       /* s16: PSN of bitmap bit 0, less cack */
	__u32 bitmap_hi;         /* bit i: PSN cack + sack_offset + i arrived */
	__u32 bitmap_lo;
};
#define MRC_CC_FLAG_DELAYED 0x1  /* in .cc: sent by a clock, no RTT in it */
#define MRC_CC_FLAG_DUPLICATE 0x2 /* in .cc: caused by a packet that had arrived before */
#define MRC_CC_FLAG_SOLICITED 0x4 /* in .cc: asked for; .tx_timestamp is that of the question */
#define MRC_CC_OOO 0x7fff        /* in .ooo */
#define MRC_CC_BYTES_UNIT 256    /* .bytes counts nominal sizes in these, rounded up */
#define MRC_CC_RESTORE 0x80000000 /* in .bytes: the window from before the penalty may return ... */
#define MRC_CC_PENALTY 0x7f      /* ... and the penalty: by how many 128ths of what arrived the window shrinks */
#define MRC_CC_PENALTY_SHIFT 24
#define MRC_CC_ATTEMPT 0x3       /* in .tx_timestamp of a SACK that a cell caused: the cell's attempt ... */
#define MRC_CC_SENT_SHIFT 2      /* ... and above it when the SACK was sent ... */
#define MRC_CC_SENT_UNIT 12      /* ... in units of 2^12 ns */
struct mrc_cc_state {
	__u16 tx_timestamp;      /* reflected from TSETH or PETH */
	__u16 ooo;               /* res 1 | packets waiting for a gap 15 */
	__u32 bytes;             /* restore_cwnd 1 | rcv_cwnd_pen 7 | nominal sizes of what arrived 24 */
};

/* NETH, 20 bytes: a PSN that did not arrive, and the reason. */
#define MRC_NACK_TRIMMED 0x01
#define MRC_NACK_TRIMMED_LASTHOP 0x02
#define MRC_NACK_NO_BITMAP 0x06
#define MRC_NACK_NO_PKT_BUFFER 0x07
#define MRC_NACK_NO_RESOURCE 0x0A
#define MRC_NACK_PSN_OOR_WINDOW 0x0B
#define MRC_NACK_UNEXP_EVENT 0x19
#define MRC_NACK_CC 0x20         /* .cc: cc_type 2 */
struct mrc_neth {
	__u16 head;              /* type 4 | nxt 5 | res 7 */
	__u8 reason;
	__u8 vendor;
	__u32 entropy;           /* EV of the packet that did not arrive */
	__u16 spdcid;
	__u16 dpdcid;
	__u32 psn;               /* res 8 | PSN 24 */
	__u8 cc;                 /* cc_type 4 (2) | cc_flags 4 */
	__u8 res2;
	__u16 tx_timestamp;      /* reflected from TSETH */
};

/*
 * PETH, 16 bytes: reliability probe, answered by a SACK with pr = 1. The EV under
 * test is that of the packet, as in every request: UDP source port and flow label.
 */
struct mrc_peth {
	__u16 head;              /* type 4 | nxt 5 | res 7 */
	__u8 res;
	__u8 vendor;
	__u16 probe_id;
	__u16 res2;
	__u16 spdcid;
	__u16 dpdcid;
	__u16 tx_timestamp;
	__u16 meta;              /* as TSETH.meta */
};
#define MRC_PETH_SOLICIT 1       /* in .vendor: asks for a SACK of the QP, not after the path */

/*
 * ERTH, 16 bytes, and EETH, 36 bytes: endpoint request and response, QP 2. The EV
 * stands in neither: it is that of the packet.
 */
#define MRC_ERTH_OP 0x0003       /* in .head of a request */
#define MRC_EETH_OP 0x0030       /* in .head of a response */
#define MRC_EETH_OP_SHIFT 4
#define MRC_ENDPOINT_PORT_STATUS 0
#define MRC_ENDPOINT_EV_PROBE 1
struct mrc_erth {
	__u16 head;              /* type 4 | nxt 5 | res 5 | op 2 */
	__u8 res;
	__u8 vendor;
	__u32 port_status_mask;  /* bit k: plane k is usable */
	__u32 res2;
	__u16 tx_timestamp;
	__u16 meta;              /* as TSETH.meta */
};
struct mrc_eeth {
	__u16 head;              /* type 4 | nxt 5 | res 1 | op 2 | res 4 */
	__u16 res;
	__u32 res2[6];
	__u16 tx_timestamp;      /* reflected from ERTH */
	__u16 res3;
	__u32 res4;
};

/*
 * Tags. A packet without the tag of its QP's key is dropped before any state changes.
 * A tag is SipHash-2-4 (Aumasson and Bernstein, 2012), 64 bits, little-endian as its
 * reference code has it, over bytes that are padded with zeroes to a multiple of eight:
 *
 *   data           UDP | BTH | METH | TSETH | PSN | RETH.rkey | RETH.length
 *   SACK and such  UDP | BTH | all headers behind it up to .count, included
 *   cell           struct mrc_cell from .mss to .qp | flow label | upper 8 bits of the
 *                  PSN | QPN of the receiver; the first 32 bits of the tag
 *
 * The PSN counts in 32 bits here, so that a recording fits no later round of the 24
 * that are on the wire; label and PSN are words. The tag of data stands in RETH's
 * address, in front of what a switch may trim. SACKs, NACKs, probes and endpoint
 * packets end with struct mrc_auth, whose count is that of its sender for a QP and a
 * plane, against replays. Tags protect headers; the payload has checksums of its own.
 * Every QP has its keys, one for each direction and phase. Without keys they are 0.
 */
struct mrc_auth {
	__u32 count;
	__u32 tag_hi;
	__u32 tag_lo;
};

/*
 * A stub takes the place of a packet that its sender has given up because of its age: it
 * has the same PSN, so that the receiver need not wait for it, and nothing of the packet
 * but its IP header. It is taken and acknowledged as any data, and never delivered.
 * MRC_RKEY_STUB or MRC_CELL_STUB tells it from data, and the tag covers both. The header
 * is 20 bytes of IPv4 with their checksum and without options, or 40 of IPv6; its next
 * header or protocol is MRC_STUB_NEXT. Its length is that of the stub.
 */
#define MRC_STUB_NEXT 59         /* no next header (RFC 8200, 4.7) */

/*
 * The ICRC word closes every packet. It is not a CRC of the whole packet, which
 * software could not afford, but a check of what the transport acts on: the UDP
 * ports, the BTH, and the headers behind it. The payload has checksums of its
 * own, and the receiver compares everything before the ports with known values.
 *
 * The bytes are taken in groups of eight, big-endian, the last one padded with
 * zeroes. From a sum of 0, for each group:
 *
 *   sum = (sum ^ group) * MRC_CHECK_FACTOR      modulo 2^64
 *   sum = sum ^ (sum >> 32)
 *
 * and the word is the lower half of the sum. Both steps are invertible, so
 * damage within one group always changes the sum; the lower half stays the same
 * with a probability of 2^-32.
 */
#define MRC_ICRC_LEN 4
#define MRC_CHECK_FACTOR 0x9e3779b97f4a7c15

/*
 * A cell: a packet of the application, or a large TCP segment that the NIC cuts
 * into packets and GRO puts together again, behind one of two envelopes. Which one
 * is agreed in the hand-shake.
 *
 * In fabrics of uSIDs, IPv6 (40 bytes), MRC_CELL_IP6:
 *
 *   Ethernet | IPv6 (DA = uSID list, SA = transport state) | IP packet of the application
 *
 * On all other networks, VXLAN (RFC 7348) from the address of the NIC, over IPv4 (50
 * bytes), IPv6 or with the uSID list as DA (70 bytes), MRC_CELL_UDP:
 *
 *   Ethernet | IP | UDP (SP = 49152 + EV[29:16], DP = cell port) | VXLAN (VNI = label) |
 *   Ethernet (DA and SA = transport state from .mss on) | IP packet of the application
 *
 * All packets of a cell have the same state, and so the same headers. A cell takes
 * as many PSNs as it has packets. The first one has .psn; which one a piece of a
 * large cell begins with follows from its TCP sequence number, .seq and .mss:
 *
 *   d = ((sequence number >> 8) - .seq) & 0xff
 *   index = (256 * d + 255) / mss
 *
 * which is unique because mss is at least MRC_CELL_MSS_MIN. The number is right
 * only if what is left of the distance, sequence number - 256 * .seq - index * mss
 * in 16 bits, is below 256. The state ends with a tag (above), which also tells
 * damage: no outer checksum covers the state.
 *
 * Label: attempt 2 | ackreq 1 | phase 1 | EV[31:16]. It is the flow label of MRC_CELL_IP6,
 * and the VNI, whose upper four bits are 0, of MRC_CELL_UDP. There the UDP source port and,
 * over IPv6, the flow label only steer switches that hash; a router may replace the
 * port. An IPv4 header has DF set, and the identification of the first packet is 0. The
 * UDP checksum is 0.
 */
struct mrc_cell {
	__u32 block;             /* the fabric's block for the addresses of NICs; only in MRC_CELL_IP6 */
	__u16 mss;               /* MRC_CELL_MARK | TCP payload of each packet but the last; 0: one packet */
	__u16 psn_hi;            /* PSN, upper 16 bits ... */
	__u8 psn_lo;             /* ... and lower 8 */
	__u8 seq;                /* bits 15 to 8 of the first TCP sequence number; 0 if mss is 0 */
	__u16 qp;                /* lower 16 bits of the receiver's QPN */
	__u32 tag;
};
#define MRC_CELL_MARK 0xc000     /* in .mss: no plane's addresses have these bits */
#define MRC_CELL_MSS 0x3fff      /* in .mss */
#define MRC_CELL_MSS_MIN 512     /* segments shorter than this are sent one by one */
#define MRC_CELL_STUB 1          /* in .mss: the one packet of the cell is a stub */
#define MRC_CELL_ATTEMPT_SHIFT 18 /* in the label: 0 the first sending, 1 and 2 the next ones, 3 later ones */
#define MRC_CELL_ACKREQ 0x20000  /* in the label: answer with a SACK at once */
#define MRC_CELL_PHASE 0x10000   /* in the label: as MRC_BTH_PHASE */
#define MRC_CELL_IP6 0
#define MRC_CELL_UDP 1
#define MRC_CELL_PORT_DEFAULT 4974
#define MRC_CELL_SPORT 0xc000    /* first source port; it and the lower 14 bits of EV[31:16] are one */
#define MRC_CELL_VXLAN 0x08000000 /* first word of the VXLAN header: there is a VNI */
#define MRC_CELL_VNI_SHIFT 8     /* in the second */
#define MRC_CELL_TAIL 30         /* UDP, VXLAN and Ethernet headers behind the IP header of MRC_CELL_UDP */
#define MRC_CELL_NOMINAL 40      /* the nominal size of a packet, in both envelopes: its length and this */
#define MRC_CELL_PACKETS 128     /* most packets of a cell, with room: 64 KiB / MRC_CELL_MSS_MIN */

/* Lengths of headers, and what a data packet adds to the application's IP packet. */
#define MRC_ETH_LEN 14
#define MRC_IP6_LEN 40
#define MRC_IP4_LEN 20
#define MRC_UDP_LEN 8
#define MRC_BTH_LEN 12
#define MRC_METH_LEN 4
#define MRC_TSETH_LEN 4
#define MRC_RETH_LEN 16
#define MRC_WRITE_LEN 24         /* METH, TSETH and RETH: the headers before the payload */
#define MRC_IMMDT_LEN 4
#define MRC_AETH_LEN 4
#define MRC_SETH_LEN 28
#define MRC_CC_STATE_LEN 8
#define MRC_PETH_LEN 16
#define MRC_NETH_LEN 20
#define MRC_ERTH_LEN 16
#define MRC_AUTH_LEN 12          /* behind each of SETH with CC_STATE, NETH, PETH, ERTH and EETH */
#define MRC_EETH_LEN 36
/* The nominal size of a packet is its UDP length and an IPv6 header: of data its payload and this. */
#define MRC_DATA_NOMINAL 88      /* 40 + 8 + 12 + 24 + 4, in every MRC_ENCAP_* */
#define MRC_DATA_OVERHEAD 128    /* 40 + 40 + 8 + 12 + 24 + 4, without Ethernet, in MRC_ENCAP_FULL */

/* ECN, the two low bits of a traffic class (RFC 3168). */
#define MRC_ECN_MASK 3
#define MRC_ECN_ECT0 2           /* data packets may be marked */
#define MRC_ECN_CE 3

/*
 * DSCP, the six bits above ECN, tells switches the class of a packet. No document
 * assigns one: each deployment chooses them (mrcd/fabric/classes.py) and configures its
 * switches. These are the usual ones. xxxx11 are the code points for local use (RFC 2474,
 * section 6), and switches that look at the upper three bits only treat 43 and 47 as
 * expedited traffic, so that the news overtakes the queue that caused it, as they treat 46.
 */
#define MRC_DSCP_SHIFT 2         /* in the traffic class, or IPv4's TOS */
#define MRC_DSCP_TRIMMABLE 3     /* data that a switch may trim to its headers instead of dropping it */
#define MRC_DSCP_RETRANSMIT 7    /* the same, sent again */
#define MRC_DSCP_NO_TRIM 0       /* data that it may not trim */
#define MRC_DSCP_CONTROL 46      /* SACKs, NACKs, probes and endpoint packets */
#define MRC_DSCP_TRIMMED 43      /* data that a switch has trimmed ... */
#define MRC_DSCP_LASTHOP 47      /* ... at the port that leads to its receiver */
#define MRC_DSCP_MAX 63

/* Headers around UDP; all hosts of a fabric use the same. */
#define MRC_ENCAP_FULL 0         /* IPv6 to the uSID list, in it IPv6 to the peer */
#define MRC_ENCAP_REDUCED 1      /* IPv6 to the uSID list */
#define MRC_ENCAP_ECMP6 2        /* IPv6 to the peer; switches hash the source port or the label */
#define MRC_ENCAP_ECMP4 3        /* IPv4 to the peer; switches hash the source port */

/* F3216 uSID list: 32-bit block, then up to six 16-bit uSIDs (RFC 9800). */
#define MRC_USID_MAX 6
#define MRC_USID_PLANE_SHIFT 13  /* plane 3 | role 2 | index 11, index from 1 */
#define MRC_USID_ROLE_SHIFT 11
#define MRC_USID_INDEX_MASK 0x07ff
#define MRC_USID_ROLE_T0 0
#define MRC_USID_ROLE_T1 1
#define MRC_USID_ROLE_HOST 2

/* EV: structured, 32 bits; 16 high bits in the UDP source port, 16 low bits
 * in the flow label of the inner header. plane 4 | T1 index 12 | spare 16 (0, but
 * in survey probes the loop); the T1 index is 0 where both hosts hang on one T0. In
 * ecmp modes the 12 bits are an entropy without further meaning, and the label
 * repeats the high half. */
#define MRC_EV_PLANE_SHIFT 28
#define MRC_EV_T1_SHIFT 16
#define MRC_EV_T1_MASK 0x0fff

#endif
