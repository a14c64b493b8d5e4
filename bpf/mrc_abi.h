/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What crosses the maps between the kernel programs and the daemon, once.
 * Read by the programs, by the host compiler in the tests, and by Python
 * through cffi (mrcd/abi.py). Host byte order unless a comment says "net".
 *
 * Who writes what: a struct is written by the daemon before its owner's state
 * says READY, afterwards by the side that a field's comment names. "lock"
 * means under the struct's spin lock, "atomic" a 64-bit atomic instruction.
 *
 * PSNs are kept as free-running 32-bit numbers whose low 24 bits are what the
 * wire carries; comparisons are serial-number arithmetic.
 */
#ifndef MRC_ABI_H
#define MRC_ABI_H

#define MRC_ABI_VERSION 1

#define MRC_MAX_PLANES 8
#define MRC_EVS_PER_PLANE 128    /* slots of a plane in a QP's EV set, active and backup */
#define MRC_EV_WORDS 2           /* 64-bit words of such a set */
#define MRC_SET_WORDS 16         /* MRC_MAX_PLANES * MRC_EV_WORDS */
#define MRC_NO_PATH 0xffff       /* no plane << 8 | slot at all */
#define MRC_SHARE_FULL 128       /* a plane's share in a balance */
#define MRC_WINDOW_MAX 8192      /* bits in a window bitmap; at least twice the MPR */
#define MRC_WINDOW_WORDS 128     /* MRC_WINDOW_MAX / 64 */

/* QP states */
#define MRC_QP_DOWN 0
#define MRC_QP_RECEIVE 1         /* RTR: takes packets, sends none of its own */
#define MRC_QP_READY 2           /* RTS */

struct mrc_host {                /* map host, one entry; written by the daemon */
	__u32 link_ifindex;      /* mrc0's other end; deliveries go out of it */
	__u32 planes;
	__u64 plane_mask;        /* bit k: plane k is usable here; atomic */
	__u32 block;             /* net: the uSID block, 32 bits */
	__u16 udp_port;          /* net */
	__u16 control_port;      /* net */
	__u32 reo_min_ns;        /* reorder guard, see docs/protocol.md */
	__u32 reo_max_ns;
	__u32 fifo_slack_ns;     /* reordering granted within one path */
	__u32 rto_min_ns;
	__u32 hole_timeout_ns;   /* receiver gives up on a gap */
	__u32 sack_packets;      /* a SACK after so many packets ... */
	__u32 sack_bytes;        /* ... or so many bytes */
	__u32 queue_target_ns;   /* queueing above this is signalled to TCP */
	__u32 probe_interval_ns; /* between probes of a path that is away, at first */
	__u32 probe_idle_ns;     /* between probes of one plane of an idle QP */
	__u32 hold_base_ns;      /* first extra time away after a relapse */
	__u32 hold_max_ns;
	__u32 judge_ns;          /* between two judgements of the planes' shares */
	__u32 judge_slack_ns;    /* delay granted to a plane over the best one */
	__u32 slow_slack_ns;     /* delay granted to a path over its plane's usual one */
	__u32 sack_gap_ns;       /* between two SACKs of a QP that need no hurry */
	__u8 link_mac[6];        /* mrc0's own address */
	__u8 pad[6];
};

struct mrc_plane {               /* map planes[8]; written by the daemon */
	__u32 ifindex;           /* 0: no such plane */
	__u8 mac[6];
	__u8 gateway_mac[6];
	__u32 addr[4];           /* net: our inner address */
	__u32 sid[4];            /* net: outer destination as it reaches us */
};

struct mrc_peer {                /* map peers; written by the daemon */
	__u32 qp_base;
	__u32 qp_mask;           /* number of QPs - 1 */
	__u64 plane_mask;        /* planes usable at the peer; atomic */
};

/*
 * What is known of a peer's planes from its answers, of all its QPs together.
 * Written by the programs; shares and what they are made of by whoever advanced
 * judge_at_ns by compare-and-swap. Counts are racy: one that is lost now and then
 * changes no judgement.
 */
struct mrc_balance {             /* map balances[peer] */
	__u64 shares;            /* byte p: plane p's share, MRC_SHARE_FULL where it is whole */
	__u64 ports;             /* bit p: the peer takes packets on plane p; atomic */
	__u64 port_id;           /* Port Status Update that said so, see bpf/endpoint.c; atomic */
	__u64 heard_ports;       /* the same as its newest SACKs say; racy */
	__u64 judge_at_ns;       /* when its planes are judged next */
	__u64 ecn_ns;            /* when ecn_flows was emptied; racy */
	__u64 ecn_flows;         /* a bit for the ports of each TCP flow that was marked CE; racy */
	__u64 acked[MRC_MAX_PLANES];  /* packets since the plane was judged; racy */
	__u64 lost[MRC_MAX_PLANES];   /* the same; racy */
	__u64 marked[MRC_MAX_PLANES]; /* SACKs with m = SKIP_ONCE; racy */
	__u64 stock_ns[MRC_MAX_PLANES]; /* when the plane was judged last */
	__u64 rtt_at_ns[MRC_MAX_PLANES]; /* when a round trip was measured last; racy */
	__u32 srtt_ns[MRC_MAX_PLANES]; /* smoothed over about 130 ms; racy */
	__u32 fast_ns[MRC_MAX_PLANES]; /* smoothed over about 17 ms; racy */
	__u32 now_ns[MRC_MAX_PLANES];  /* smoothed over four round trips; racy */
	__u32 usual_ns[MRC_MAX_PLANES]; /* lower quartile of the round trips; racy */
	__u32 loss_ppm[MRC_MAX_PLANES]; /* smoothed over judgements */
	__u32 mark_ppm[MRC_MAX_PLANES];
	__u8 strikes[MRC_MAX_PLANES];  /* judgements in a row that found it worse */
	__u8 knee[MRC_MAX_PLANES];     /* the share that was last found too much */
};

struct mrc_peer_plane {          /* map peer_planes[peer * 8 + plane]; daemon */
	__u32 addr[4];           /* net: the peer's inner address */
	__u32 usids[4];          /* net: outer destination, T1 index zero */
};

struct mrc_qp {                  /* map qps; written by the daemon */
	__u32 state;
	__u32 peer;
	__u32 qpn;
	__u32 remote_qpn;
	__u32 mpr;               /* the smaller of both sides' windows */
	__u32 pad;
};

/*
 * A QP's EV set: for each plane up to MRC_EVS_PER_PLANE slots, a path each. A
 * set of slots is a bitmap: slot k of plane p is bit k & 63 of word
 * p * MRC_EV_WORDS + (k >> 6). Together they say the state of a path:
 *   denied -> DENIED; use and skip -> SKIP; use or spare -> GOOD;
 *   in none of them -> ASSUMED_BAD
 */
struct mrc_tx {                  /* map txs, sender half of a QP */
	struct bpf_spin_lock lock;
	__u32 next;              /* next PSN to send; lock */
	__u32 una;               /* oldest PSN not acknowledged; lock */
	__u32 high;              /* highest PSN reported by a SACK, plus one; lock */
	__u32 heard;             /* bytes count of the newest SACK, 24 bits; lock */
	__u32 round;             /* number that orders the planes of this round; lock */
	__u32 srtt_ns;           /* lock */
	__u32 rttvar_ns;         /* lock */
	__u32 backoff;           /* time-outs in a row; lock */
	__u32 loss_ppm;          /* smoothed loss over all paths; racy */
	__u32 least_ns[2];       /* round trip, of short packets and of long ones: from half of the MTU; lock */
	__u32 queue_ns;          /* round trips beyond that, smoothed, of planes with a whole share; lock */
	__u32 pad;
	__u32 absurd;            /* SACKs in a row that acknowledged what was never sent; racy */
	__u32 fifo_extra_ns;     /* learnt from needless retransmissions by this rule; lock */
	__u32 guard_extra_ns;    /* the same for the reorder guard; lock */
	__u32 scan;              /* where time-outs go on; tick only */
	__u32 used_all;          /* paths in use; lock */
	__u32 floor;             /* ev_min_active: below it a path that still delivers stays; daemon */
	__u64 reo_ns;            /* when that was learnt or halved last; lock */
	__u64 queue_at_ns;       /* when queue_ns was measured last; lock */
	__u64 early_ns;          /* not before this is a packet dropped early; racy */
	__u64 packets;           /* taken from mrc0; lock */
	__u64 retransmits;       /* sent again; lock */
	__u64 progress_ns;       /* when una last moved, or sending began; lock */
	__u64 delivered_ns;      /* latest send time among delivered packets; lock */
	__u64 thin;              /* byte p: what plane p has saved up for its next turn; lock */
	__u64 turn;              /* bit p: plane p is still to come in this round; lock */
	__u64 plane_use;         /* bit p: use of plane p is not empty; lock */
	__u64 plane_open;        /* bit p: plane p has slots that are not denied; lock */
	__u64 use[MRC_SET_WORDS];    /* in rotation; lock */
	__u64 skip[MRC_SET_WORDS];   /* of those, passed over once; lock */
	__u64 slow[MRC_SET_WORDS];   /* of those, used now and then only; lock */
	__u64 spare[MRC_SET_WORDS];  /* backups; lock */
	__u64 denied[MRC_SET_WORDS]; /* lock */
	__u64 all[MRC_SET_WORDS];    /* slots that hold a path; daemon */
	__u64 sacked[MRC_WINDOW_WORDS]; /* bit psn % window; lock */
	__u32 acked[MRC_MAX_PLANES];  /* packets of a plane that arrived; racy */
	__u32 acked_then[MRC_MAX_PLANES]; /* of those, when one was marked last; lock */
	__u32 mark_ppm[MRC_MAX_PLANES]; /* marked ones of them, smoothed; lock */
	__u8 active[MRC_MAX_PLANES];  /* paths of a plane that should be in use; daemon */
	__u8 used[MRC_MAX_PLANES];    /* paths of a plane that are; lock */
	__u8 ev_next[MRC_MAX_PLANES]; /* rotation within a plane; lock */
	__u8 live[MRC_MAX_PLANES];    /* slot that answered last, plus one: the reverse EV; lock; also read as one word */
	__u8 probe_next[MRC_MAX_PLANES]; /* rotation of probes; tick and idle */
};

struct mrc_rx {                  /* map rxs, receiver half of a QP */
	struct bpf_spin_lock lock;
	__u32 next;              /* next PSN to deliver; lock */
	__u32 high;              /* highest PSN received, plus one; lock */
	__u32 busy;              /* somebody delivers; lock */
	__u32 pending_packets;   /* arrived since the last SACK; lock */
	__u32 pending_bytes;     /* lock */
	__u32 waiting;           /* packets held behind a gap; lock */
	__u32 ev;                /* EV of the latest packet, for the way back; lock */
	__u32 slice;             /* SACKs sent, chooses the slice of the next; lock */
	__u32 hole_psn;          /* the gap the clock looked at last; tick only */
	__u64 packets;           /* received, duplicates not counted; lock */
	__u64 bytes;             /* their payload; lock */
	__u64 hole_ns;           /* when the clock saw that gap first; tick only */
	__u64 sacked_ns;         /* when the latest SACK left; lock */
	__u64 received[MRC_WINDOW_WORDS]; /* bit psn % window; lock */
};

struct mrc_tx_entry {            /* map tx_entries[qp * window + psn % window] */
	__u64 sent_ns;           /* latest transmission; lock of tx once sent */
	__u64 first_ns;          /* the first one, once it was repeated; lock */
	__u32 psn;
	__u32 slot;              /* in the retransmit ring */
	__u16 len;               /* of the inner packet, bytes */
	__u16 path;              /* plane << 8 | index; lock */
	__u8 sends;              /* 1 = never retransmitted; 255: or more; lock */
	__u8 rule;               /* counter of the rule that sent it last, 0: none; lock */
	__u16 was;               /* path of the first transmission once it was repeated; lock */
};

struct mrc_rx_entry {            /* map rx_entries[qp * window / 2 + psn % (window / 2)] */
	__u32 slot;              /* in the reorder ring, plus one; 0: none; lock of rx */
	__u16 len;               /* lock of rx */
	__u16 psn;               /* its low half; lock of rx */
};

/* Path states, and what moves a path from one to another (bpf/path.h has the table) */
#define MRC_PATH_GOOD 0
#define MRC_PATH_DENIED 1
#define MRC_PATH_SKIP 2
#define MRC_PATH_ASSUMED_BAD 3
#define MRC_ON_TURN 0            /* its turn in the rotation came */
#define MRC_ON_MARK 1            /* SACK m = SKIP_ONCE, or NACK TRIMMED */
#define MRC_ON_LOSS 2            /* packet or probe lost, or SACK m = ALWAYS_SKIP */
#define MRC_ON_PROBE 3           /* enough probes in a row were answered */
#define MRC_ON_PROBE_MARK 4      /* the same, the last answer marked */
#define MRC_ON_DENY 5            /* operator or fault map */
#define MRC_ON_ALLOW 6

struct mrc_path {                /* map paths[(qp * 8 + plane) * evs + slot] */
	__u32 ev;                /* daemon */
	__u32 srtt_ns;           /* racy */
	__u64 sent;              /* atomic */
	__u64 acked;             /* atomic */
	__u64 lost;              /* atomic */
	__u64 marked;            /* atomic */
	__u64 delivered_ns;      /* latest send time among those delivered; racy maximum */
	__u64 withdrawn_ns;      /* when it last became ASSUMED_BAD; lock of tx */
	__u64 relapsed_ns;       /* when it relapsed last; lock of tx */
	__u64 hold_ns;           /* not before this is it probed; lock of tx */
	__u64 rtt_at_ns;         /* when a round trip was measured last; racy */
	__u64 probe_ns;          /* last probe sent; tick and idle only */
	__u32 probe_id;          /* of that probe; tick and idle only */
	__u32 probe_seen;        /* last probe answered; XDP only */
	__u32 probe_ok;          /* answered in a row since it was withdrawn; lock of tx */
	__u32 probe_need;        /* answers in a row that bring it back; lock of tx */
	__u32 misses;            /* probes unanswered since it was withdrawn; lock of tx */
	__u32 relapses;          /* forgotten ten seconds after the last one; lock of tx */
	__u32 loss_ppm;          /* smoothed loss; lock of tx */
	__u32 late;              /* round trips in a row far above the usual; racy */
	__u64 crowded_ns;        /* until then it stays slow, for its marks; lock of tx */
	__u32 acked_then;        /* acked, when a packet was marked last; lock of tx */
	__u32 mark_ppm;          /* smoothed share of its packets that are marked; lock of tx */
	__u32 crowds;            /* times that this followed soon on a return; lock of tx */
	__u32 prompt;            /* round trips in a row near the usual; racy */
};

/*
 * What XDP tells tc about a packet it has validated: it lies over the two
 * addresses of the Ethernet header. The magic makes the source a group
 * address, which no frame on a wire may have; mrc_receive drops those that do,
 * so the mark cannot be forged. XDP metadata would serve, but not every driver
 * passes it on, and it stays with the skb: GRO takes packets with different
 * metadata for different flows and hands them up out of order.
 */
#define MRC_MARK_MAGIC0 0x4d     /* first byte of the source address, odd */
#define MRC_MARK_MAGIC1 0x52
#define MRC_MARK_CE 0x01         /* in .flags, beside BTH.aux's ackreq and rtx */
#define MRC_MARK_SACK 0x02       /* in .flags: a whole SACK; else data, stripped */
#define MRC_MARK_NACK 0x04       /* in .flags: a whole NACK; .ev_hi and .psn are what it is about */
struct mrc_mark {
	__u16 ev_hi;             /* EV >> 16; the low half of an EV is 0 */
	__u16 ts;                /* TSETH.tx_timestamp of data; reason of a NACK */
	__u16 qp;                /* index */
	__u8 magic0;
	__u8 magic1;
	__u8 flags;
	__u8 psn_hi;
	__u16 psn_lo;
};

struct mrc_clock {               /* map clock, one entry, mmapable */
	__u64 asleep;            /* 1: the daemon's clock wants a wake-up event; atomic */
	__u64 cursor;            /* where the tick's round goes on */
	__u64 judge_cursor;      /* the same for judgements */
	__u64 idle_cursor;       /* the same for probes of idle paths */
	__u64 probe_credit;      /* probes that may be sent now; clock adds, programs take, racy */
	__u64 ticks;             /* programs run by the clock */
};

#define MRC_EVENT_WAKE 1
#define MRC_EVENT_PATH 2
#define MRC_EVENT_OUT_OF_STEP 3  /* .qp: its SACKs acknowledge what was never sent */
struct mrc_event {               /* ring buffer events */
	__u32 kind;
	__u32 qp;
	__u32 ev;
	__u32 path;              /* plane << 8 | slot */
	__u32 from_state;
	__u32 state;
	__u32 cause;             /* MRC_ON_... */
	__u32 rtt_ns;            /* the path's, smoothed; 0: none measured */
	__u64 sent_ns;           /* when the packet was sent that was lost; 0: none was */
	__u64 time_ns;
};

/* What the daemon asks the programs to do: the packet of a run of mrc_control */
#define MRC_DO_DENY 1            /* path of qp */
#define MRC_DO_ALLOW 2           /* path of qp */
#define MRC_DO_PORTS 3           /* value: the mask of planes that peer takes packets on */
struct mrc_command {
	__u8 eth[14];            /* a frame needs them */
	__u16 op;
	__u32 qp;
	__u32 peer;
	__u32 path;
	__u32 value;
};

/* The survey: loops through the fabric back to us (bpf/survey.c, mrcd/loops.py) */
#define MRC_RTT_BUCKETS 16
struct mrc_loop {                /* map loops */
	__u32 plane;             /* daemon */
	__u32 psn;               /* of the latest probe; survey only */
	__u64 sent;              /* survey only */
	__u64 sent_ns;           /* when the latest probe left; survey only */
	__u64 returned;          /* atomic */
	__u64 rtt[MRC_RTT_BUCKETS]; /* round trips, bucket i up to 2^i us; atomic */
};

#define MRC_TELLING_MAX 16       /* power of two; loops that have half of the probes */
struct mrc_survey {              /* map survey, one entry */
	__u32 loops;             /* how many there are; daemon */
	__u32 telling;           /* how many of them are below; daemon */
	__u32 tell[MRC_TELLING_MAX]; /* loops that tell most about what is not certain; daemon */
	__u32 next;              /* whose turn it is among all; survey only */
	__u32 turn;              /* probes so far; survey only */
};

/*
 * Counters: map counters, per CPU. One line a counter; the text behind the
 * number is what operators read, in `mrcctl stats` and in docs/operations.md.
 */
#define MRC_C_TX_PACKETS 0       /* packets taken from mrc0 and sprayed */
#define MRC_C_TX_BYTES 1         /* bytes of those packets */
#define MRC_C_RX_PACKETS 2       /* packets delivered to mrc0 */
#define MRC_C_RX_BYTES 3         /* bytes of those packets */
#define MRC_C_RX_HELD 4          /* packets that arrived ahead of a gap and waited */
#define MRC_C_RX_DUPLICATE 5     /* data packets that had arrived before, dropped */
#define MRC_C_RTX_FIFO 6         /* retransmissions because a later packet of the same path arrived */
#define MRC_C_RTX_GUARD 7        /* retransmissions because packets sent a reorder guard later arrived */
#define MRC_C_RTX_TIMEOUT 8      /* retransmissions because nothing was heard for a time-out */
#define MRC_C_SACK_TX 9          /* SACKs sent on arrivals */
#define MRC_C_SACK_TX_CLOCK 10   /* SACKs sent by the clock */
#define MRC_C_SACK_RX 11         /* SACKs processed */
#define MRC_C_PROBE_TX 12        /* reliability probes sent */
#define MRC_C_PROBE_RX 13        /* reliability probes answered */
#define MRC_C_PROBE_REPLY 14     /* answers to reliability probes received */
#define MRC_C_PATH_WITHDRAWN 15  /* paths that became ASSUMED_BAD */
#define MRC_C_PATH_RESTORED 16   /* paths that became GOOD again */
#define MRC_C_HOLE_SKIPPED 17    /* gaps given up by the receiver, packets lost to the application */
#define MRC_C_DELIVER_RETRY 18   /* deliveries that mrc0 refused for the moment */
#define MRC_C_CONTROL_RX 19      /* hand-shake packets passed to the daemon */
#define MRC_C_DROP_NO_PEER 20    /* dropped: no peer owns the destination */
#define MRC_C_DROP_NOT_READY 21  /* dropped: the connection to the peer is not set up */
#define MRC_C_DROP_WINDOW 22     /* dropped: the send window (MPR) is full */
#define MRC_C_DROP_RING 23       /* dropped: the retransmit ring is full */
#define MRC_C_DROP_TOO_BIG 24    /* dropped: larger than mrc0's MTU */
#define MRC_C_DROP_NOT_IP 25     /* dropped: mrc0 carries IPv4 and IPv6 only */
#define MRC_C_DROP_SKB 26        /* dropped: the kernel had no memory for the headers */
#define MRC_C_DROP_SHORT 27      /* dropped: truncated MRC packet */
#define MRC_C_DROP_OPCODE 28     /* dropped: opcode unknown here */
#define MRC_C_DROP_VERSION 29    /* dropped: transport version or reserved bits */
#define MRC_C_DROP_SID 30        /* dropped: not addressed to this host */
#define MRC_C_DROP_QPN 31        /* dropped: no such QP */
#define MRC_C_DROP_SOURCE 32     /* dropped: sender is not the QP's peer */
#define MRC_C_DROP_PSN 33        /* dropped: PSN outside the receive window */
#define MRC_C_DROP_RKEY 34       /* dropped: R_Key names no region here */
#define MRC_C_DROP_LENGTH 35     /* dropped: lengths in the headers disagree */
#define MRC_C_DROP_INNER 36      /* dropped: payload is no IP packet */
#define MRC_C_DROP_SACK 37       /* dropped: SACK acknowledges what was never sent */
#define MRC_C_DROP_BUFFER 38     /* dropped: the reorder ring is full */
#define MRC_C_DROP_ENTROPY 39    /* dropped: EV names no path */
#define MRC_C_DROP_STATE 40      /* dropped: lost a race with a reset */
#define MRC_C_SACK_STALE 41      /* SACKs overtaken by newer ones */
#define MRC_C_PROBE_STALE 42     /* answers to probes that were no longer waited for */
#define MRC_C_DROP_MARK 43       /* dropped: source address is a group, as no sender's may be */
#define MRC_C_TX_CE 44           /* packets of TCP marked CE because the queues were too long */
#define MRC_C_DROP_EARLY 45      /* dropped: TCP without ECN, the queues were too long */
#define MRC_C_RTX_NEEDLESS 46    /* retransmissions whose first sending had arrived after all */
#define MRC_C_RTX_NACK 47        /* retransmissions because the receiver or a switch said so */
#define MRC_C_ECHO_TX 48         /* SACKs that told a sender of a congestion mark */
#define MRC_C_ECHO_RX 49         /* SACKs that told us of a congestion mark */
#define MRC_C_PATH_SKIPPED 50    /* paths that became SKIP */
#define MRC_C_PATH_SLOW 51       /* paths found much slower than their plane */
#define MRC_C_PROBE_MISSED 52    /* probes that were not answered in time */
#define MRC_C_DROP_NO_PATH 53    /* dropped: every path to the peer is denied */
#define MRC_C_NACK_TX 54         /* trimmed packets answered by a NACK */
#define MRC_C_NACK_RX 55         /* NACKs received */
#define MRC_C_EV_PROBE_RX 56     /* EV probes of peers answered */
#define MRC_C_PORTS_RX 57        /* Port Status Updates of peers followed */
#define MRC_C_PORTS_STALE 58     /* Port Status Updates that were no news, answered only */
#define MRC_C_ENDPOINT_RX 59     /* answers to EV probes and Port Status Updates passed to the daemon */
#define MRC_C_DROP_STRANGER 60   /* dropped: endpoint packet whose sender is no peer's plane */
#define MRC_C_SURVEY_TX 61       /* survey probes sent, which the fabric should send back */
#define MRC_C_SURVEY_RX 62       /* survey probes that came back */
#define MRC_C_DROP_SURVEY 63     /* dropped: a returned survey probe that was never sent */
#define MRC_C_DROP_CHECKSUM 64   /* dropped: wrong checksum of an IPv4 header */
#define MRC_C_PROBE_PUT_OFF 65   /* probes put off: more were due than probe_pps allows */
#define MRC_C_DROP_ICRC 66       /* dropped: the headers were damaged on the way */
#define MRC_C_EVENT_LOST 67      /* events for the daemon that found the ring buffer full */
#define MRC_C_DROP_NO_PLANE 68   /* dropped: the peer said that it takes packets on no plane */
#define MRC_C_PATH_CROWDED 69    /* paths found marked much more than their plane */
#define MRC_C_COUNT 70

#endif
