/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What crosses the maps between the kernel programs and the daemon, defined
 * once. Read by the programs, by the host compiler in the tests, and by Python
 * through cffi (mrcd/wire/abi.py). Host byte order unless a comment says "net".
 *
 * Writers: the daemon writes a struct before its owner's state becomes READY.
 * Afterwards a field's comment names its writer or how its writers exclude each
 * other: "lock" means any program under the struct's spin lock, "atomic" any
 * program by a 64-bit atomic instruction, "racy" any program without either,
 * where a lost update only costs precision. "beat", "tick", "idle", "survey" and
 * "receive" are mrc_beat, mrc_tick with mrc_probe, mrc_idle, mrc_survey and mrc_receive. One
 * packet circles for mrc_beat, and what it sends to mrc_tick and mrc_idle waits in one
 * queue of one CPU, so these three exclude each other.
 *
 * PSNs are kept as free-running 32-bit numbers whose low 24 bits are what the
 * wire carries; comparisons are serial-number arithmetic.
 */
#ifndef MRC_ABI_H
#define MRC_ABI_H

#define MRC_ABI_VERSION 1        /* raised when what is in the maps means something else, and no struct or constant tells */

#define MRC_MAX_PLANES 8
#define MRC_EVS_PER_PLANE 128    /* slots of a plane in a QP's EV set, active and backup */
#define MRC_EV_WORDS 2           /* 64-bit words of such a set */
#define MRC_SET_WORDS 16         /* MRC_MAX_PLANES * MRC_EV_WORDS */
#define MRC_NO_PATH 0xffff       /* in place of a path's id, plane << 8 | slot */
#define MRC_SHARE_FULL 128       /* a plane's whole share in a balance */
#define MRC_WINDOW_MAX 8192      /* bits in a window bitmap; at least twice the MPR */
#define MRC_WINDOW_WORDS 128     /* MRC_WINDOW_MAX / 64 */

/* QP states */
#define MRC_QP_DOWN 0
#define MRC_QP_ERROR 1           /* gave up: takes and sends nothing until the daemon sets it up anew */
#define MRC_QP_RECEIVE 2         /* RTR: takes packets, sends no data */
#define MRC_QP_READY 3           /* RTS */

/* Why a QP gave up */
#define MRC_FAILED_RETRIES 1     /* a packet was sent again too often, and for too long */
#define MRC_FAILED_EVENT 2       /* the peer has no use for what was sent (NACK UNEXP_EVENT) */

/* How a QP's data looks on the wire */
#define MRC_FRAMING_MRC 0        /* a packet of MRC each */
#define MRC_FRAMING_CELL 1       /* cells (mrc_wire.h) */

#define MRC_REDUNDANT_PORTS 16
struct mrc_host {                /* map host, one entry; written by the daemon */
	__u32 link_ifindex;      /* deliveries in MRC's framing go out of it */
	__u32 planes;
	__u64 plane_mask;        /* bit k: plane k is usable here; daemon */
	__u64 standby;           /* bit k: plane k is a spare one to every peer, as in .spare of struct mrc_peer */
	__u64 redundant_dscps;   /* bit d: packets with DSCP d are sent on two planes at once ... */
	__u16 redundant_ports[MRC_REDUNDANT_PORTS]; /* net: ... and UDP from or to these ports; 0: none */
	__u32 block;             /* net: the uSID block, 32 bits */
	__u16 udp_port;          /* net */
	__u16 control_port;      /* net */
	__u32 reo_min_ns;        /* reorder guard, see docs/protocol.md */
	__u32 reo_max_ns;
	__u32 fifo_slack_ns;     /* reordering granted within one path */
	__u32 rto_min_ns;
	__u32 hole_timeout_ns;   /* receiver gives up on a gap */
	__u32 sack_packets;      /* a SACK is sent after this many packets ... */
	__u32 sack_bytes;        /* ... or this many bytes */
	__u32 queue_target_ns;   /* queueing delay above this is signalled to TCP */
	__u32 probe_interval_ns; /* between probes of a withdrawn path, at first */
	__u32 probe_idle_ns;     /* between probes of one plane of an idle QP */
	__u32 hold_base_ns;      /* first extra time away after a relapse */
	__u32 hold_max_ns;
	__u32 judge_ns;          /* between two judgements of the planes' shares */
	__u32 judge_slack_ns;    /* delay that a plane may have over the best one */
	__u32 slow_slack_ns;     /* delay that a path may have over its plane's usual one */
	__u32 sack_gap_ns;       /* between two SACKs of a QP that are not urgent */
	__u32 cell_block;        /* net: first 32 bits of a cell's source address in MRC_CELL_IP6 */
	__u32 lower_ifindex;     /* what mrc0 lies on; cells are delivered at its ingress */
	__u32 cut_ifindex;       /* what leaves by it comes back to spray cut into packets; 0: no such interface ... */
	__u32 cut_back_ifindex;  /* ... on this one */
	__u32 park_ifindex;      /* an interface that lets out a quarter of what planes carry (end_spray); 0: none */
	__u32 beat_ifindex;      /* what leaves by it comes to mrc_beat on rest_ifindex a tick later ... */
	__u32 rest_ifindex;      /* ... and what leaves by this, on beat_ifindex, after a longer time */
	__u32 probe_gap_ns;      /* each such time grants one probe ... */
	__u32 probe_most;        /* ... and this many may be saved up */
	__u32 idle_gap_ns;       /* between probes of idle paths, over all QPs; 0: none are sent */
	__u32 cell_bytes;        /* longest IP packet that spray sends as a cell; longer ones are cut */
	__u32 circle_ns;         /* time that an early cell waits in the CPU's backlog before it is copied */
	__u32 solicit_ns;        /* least time between two questions for a SACK of a QP */
	__u32 cc_target_ns;      /* queueing delay that one sender alone may cause; 0: no congestion control */
	__u32 cc_rate;           /* what the planes can carry together, bytes in a millisecond */
	__u32 retry_limit;       /* a QP gives up if its oldest packet was sent again more often than this ... */
	__u32 retry_s;           /* ... and was not acknowledged for this time; 0 in either: never */
	__u32 qps;               /* QPs that the maps have room for */
	__u32 datagram_max_ms;   /* what is not TCP's is not sent when it is older; 0: it is at any age */
	__u16 cell_port;         /* net: UDP port of cells in MRC_CELL_UDP */
	__u8 link_mac[6];        /* mrc0's own address */
	/* DSCPs, by class of packets */
	__u8 dscp_data;          /* data that switches may trim */
	__u8 dscp_again;         /* the same, sent again */
	__u8 dscp_whole;         /* data that they may not trim */
	__u8 dscp_control;       /* SACKs, NACKs, probes and endpoint packets */
	__u8 dscp_trimmed;       /* data that a switch has trimmed ... */
	__u8 dscp_lasthop;       /* ... at the port that leads to its receiver */
	__u8 keyed;              /* 1: a key that was not installed is none; 0: it is zero */
	__u8 inner;              /* 1: only packets from the peer's inner addresses to ours reach mrc0 */
	__u8 hops_min;           /* the least hop limit with which a daemon's message arrives from within the fabric */
	__u8 redundant;          /* 1: there is anything in the above */
	__u8 relays;             /* 1: map relays is not empty */
	__u8 pad;
	__u64 survey_key[2];     /* of our own survey probes, which come back to us */
	__u64 mac1_key[2];       /* of mac1, which shows that who asks for keys knows our public key */
};

/*
 * What a source of messages for the daemon may still send, and what it sent beyond
 * that. Maps peer_budgets, net_budgets and indices.
 */
#define MRC_INDICES 16            /* room for numbers of a peer's exchanges and epochs in map indices */
#define MRC_NET_BUDGETS 1024     /* budgets that prefixes of the planes share, by a hash of theirs ... */
#define MRC_REST_BUDGET 1024     /* ... and all other addresses share the next one */
struct mrc_budget {
	__u64 due_ns;            /* all that it sent is paid for then; atomic */
	__u64 clear_ns;          /* the same of Offers that are not sealed, where this host has keys */
	__u64 refused;           /* messages beyond its budget; atomic */
	__u64 forged;            /* messages without the right mac1, index or form; atomic */
	__u64 misaddressed;      /* of these, INITs for another public key than this host's; atomic */
};
#define MRC_ADMITTED_MARK 0x6d726341 /* skb->mark of what mrc_receive lets through to the daemon's sockets */
/* skb->mark of clones that come to mrc_beat at once: what the packet is for, and a number of 16 bits. */
#define MRC_KICK_MARK 0x6d6b0000 /* mrc_tick runs on it, for the QP of this index */
#define MRC_IDLE_MARK 0x6d690000 /* its low bits are the turns that mrc_idle does on it */
#define MRC_RELEASE_MARK 0x6d720000 /* mrc_release goes on with it, for the QP of this index */
#define MRC_WAKE_MARK 0x6d770000 /* a beat is made of it */
#define MRC_MARK_KIND 0xffff0000
#define MRC_MARK_NUMBER 0xffff

struct mrc_plane {               /* map planes[8]; written by the daemon */
	__u32 ifindex;           /* 0: no such plane */
	__u8 mac[6];
	__u8 gateway_mac[6];
	__u32 addr[4];           /* net: our inner address */
	__u32 sid[4];            /* net: outer destination as it reaches us */
	__u32 bare;              /* 1: the NIC needs no hint to fill the checksum of a packet inside another (veth) */
};

#define MRC_OWNER 0x7fffffff     /* in maps addresses and prefixes: the peer that has them ... */
#define MRC_OWNER_SELF 0x7fffffff /* ... or this host */
#define MRC_OWNER_CLOSED 0x80000000 /* and, beside it: nothing more is sent there */
#define MRC_NOT_OURS 15          /* in .ours: as far as is known, the peer is alone with that plane */
#define MRC_OURS_ALIKE 0xffffffff76543210ull /* .ours: both number their planes alike */
struct mrc_peer {                /* map peers; written by the daemon */
	__u32 qp_base;
	__u32 qp_mask;           /* number of QPs - 1 */
	__u64 plane_mask;        /* planes by which the peer can be reached, a bit each; daemon */
	__u64 ours;              /* by the peer's number of a plane, 4 bits each: ours of the same network, or MRC_NOT_OURS */
	__u64 unheard_ns;        /* the daemon hears nothing of it; true until then, unless the daemon says so again */
	__u64 weights;           /* byte p: what plane p carries, of MRC_SHARE_FULL for the fastest: turns go by this, too */
	__u64 far;               /* bit p: plane p is spare because its way is far longer than others'; daemon */
	__u64 spare;             /* bit p: plane p to it is spare: it carries data only while no other one can; daemon */
};

/*
 * What a peer's answers tell about its planes, over all its QPs. Fields without a
 * writer are those of mrc_judge: the run that advanced judge_at_ns by
 * compare-and-swap writes them. Counts are racy: one that is lost now and then
 * changes no judgement.
 */
#define MRC_LENGTHS 4            /* classes of packet lengths, each a quarter of the MTU wide */
#define MRC_NEAR_SHIFT 33        /* planes' distances are told apart by time, in parts of 2^33 ns: 8.6 s */
#define MRC_SENDERS 16           /* QPs of a peer whose bytes in flight are told apart */

struct mrc_balance {             /* map balances[peer] */
	__u64 shares;            /* byte p: plane p's share, MRC_SHARE_FULL if whole */
	__u64 turns;             /* the same, less what the plane's queue is longer than others': packets are sent by this */
	__u64 ports;             /* bit p: the peer takes packets on plane p; receive, control: one store each */
	__u64 port_id;           /* the Port Status Update that reported this, see bpf/endpoint.c; receive: atomic, control */
	__u64 heard_ports;       /* the same according to its newest SACKs; receive, control, learn: racy */
	__u64 judge_at_ns;       /* when its planes are judged next; atomic */
	__u64 wants;             /* bit q: QP q of the peer has sent cells and would like a SACK; atomic */
	__u64 away;              /* flows that may be in another QP than their hash's, a bit of it each; atomic */
	__u64 heard_ns;          /* when it last acknowledged anything, or answered a probe; racy */
	__u64 tried_ns;          /* when something new was last sent to it while the daemon did not hear it; racy */
	__u64 ecn_ns;            /* when ecn_flows was cleared; racy */
	__u64 ecn_flows;         /* one bit, by its ports, for each TCP flow that was marked CE; racy */
	__u64 acked[MRC_MAX_PLANES];  /* packets acknowledged since the plane was judged; racy, and cleared by mrc_judge */
	__u64 lost[MRC_MAX_PLANES];   /* packets lost since then; racy, and cleared by mrc_judge */
	__u64 marked[MRC_MAX_PLANES]; /* SACKs with a congestion mark since then; racy, and cleared by mrc_judge */
	__u64 stock_ns[MRC_MAX_PLANES]; /* when the plane was judged last */
	__u64 rtt_at_ns[MRC_MAX_PLANES]; /* when a round trip was measured last; racy */
	__u32 srtt_ns[MRC_MAX_PLANES]; /* smoothed over about 130 ms; racy */
	__u32 fast_ns[MRC_MAX_PLANES]; /* smoothed over about 17 ms; racy */
	__u32 now_ns[MRC_MAX_PLANES];  /* smoothed over four round trips; racy */
	__u32 usual_ns[MRC_MAX_PLANES]; /* lower quartile of the round trips; racy */
	__u32 near_ns[MRC_MAX_PLANES]; /* shortest round trip of a probe in this part of time (MRC_NEAR_SHIFT), 0: none; racy */
	__u32 near_before_ns[MRC_MAX_PLANES]; /* the same of the part before; racy */
	__u32 near_at[MRC_MAX_PLANES]; /* the part of time that .near_ns is of; racy */
	__u32 probed_ns;         /* shortest round trip of a probe, 0: not measured; racy */
	__u32 target_ns;         /* the delay that a busy QP aims at; 0: not known; racy */
	__u32 back_ns;           /* how much longer than the shortest its SACKs' way takes, smoothed; racy */
	__u16 back_base[MRC_MAX_PLANES];  /* the shortest, with the difference of both clocks (back.h); racy */
	__u16 back_least[MRC_MAX_PLANES]; /* the least that one took longer in this part of time; racy */
	__u64 back_at_ns[MRC_MAX_PLANES]; /* when this part began, 0: no SACK has come; racy */
	__u32 inflight[MRC_SENDERS]; /* by QP modulo this, its bytes in flight as of its last SACK; racy */
	__u32 base_ns[MRC_LENGTHS]; /* shortest round trip by length of the packet, 0: not measured; racy */
	__u32 loss_ppm[MRC_MAX_PLANES]; /* smoothed over judgements */
	__u32 mark_ppm[MRC_MAX_PLANES];
	__u32 most[MRC_MAX_PLANES];    /* longest packet of an application that gets through to it, bytes; 0: any; control */
	__u32 most_all;                /* the least of these; 0: any */
	__u32 narrow;                  /* bit p: .most of plane p is not 0 */
	__u8 strikes[MRC_MAX_PLANES];  /* judgements in a row that found the plane worse */
	__u8 knee[MRC_MAX_PLANES];     /* the last share that was too much */
};

struct mrc_peer_plane {          /* map peer_planes[peer * 8 + plane]; daemon */
	__u32 addr[4];           /* net: the peer's inner address */
	__u32 usids[4];          /* net: outer destination, T1 index zero; in a network without a fabric, the
				    next hop's MAC address in the first 6 bytes */
};

/* Packets of two other hosts that are handed on from one plane to another, by both their addresses. */
#define MRC_RELAYS 8192          /* room for them: pairs of addresses, each way */
struct mrc_relayed {             /* key of map relays; net */
	__u32 from[4];
	__u32 to[4];
};

struct mrc_relay {               /* map relays; daemon */
	__u32 plane;             /* by which they leave ... */
	__u8 mac[6];             /* ... and for which neighbour */
	__u8 pad[2];
};

struct mrc_qp {                  /* map qps; written by the daemon */
	__u32 state;             /* daemon; programs: from READY to ERROR, one store (error.c) */
	__u32 peer;
	__u32 qpn;
	__u32 remote_qpn;
	__u32 mpr;               /* the smaller of both sides' windows */
	__u32 framing;           /* MRC_FRAMING_... of data, both ways */
	__u32 trims;             /* 1: switches on the way to the peer trim data */
	__u32 timed;             /* 1: data goes in cells, and SACKs say when they were sent, both ways */
};

/*
 * The keys of a QP, or of a peer's endpoint packets: two phases of each direction. The
 * daemon writes whole entries, but never a key while its phase is in use: .state names it
 * afterwards, and differs by one byte.
 */
#define MRC_KEYS_TX_PHASE 1      /* in .state: the phase to send in */
#define MRC_KEYS_RX 2            /* in .state, shifted by the phase: its packets are taken */
struct mrc_keys {                /* maps keys[qp], peer_keys[peer]; daemon */
	__u64 state;
	__u64 tx[4];             /* two words of each phase: SipHash's key */
	__u64 rx[4];
};

/* The counts of SACKs, NACKs and probes of a QP on a plane: a peer's that arrived, and ours. */
#define MRC_REPLAY_WORDS 4
#define MRC_REPLAY_WINDOW 192    /* counts below the highest that may still arrive; 64 * (MRC_REPLAY_WORDS - 1) */
struct mrc_replay {              /* map replays[qp * 8 + plane]; receive; the daemon while the QP is DOWN */
	struct bpf_spin_lock lock;
	__u32 high;              /* highest count that arrived; lock */
	__u64 seen[MRC_REPLAY_WORDS]; /* bit count % 256; lock */
	__u64 sent;              /* how many we have sent; atomic */
};

/*
 * A QP's EV set: for each plane up to MRC_EVS_PER_PLANE slots, each with a path.
 * A set of slots is a bitmap: slot k of plane p is bit k & 63 of word
 * p * MRC_EV_WORDS + (k >> 6). Together the sets give the state of a path:
 *   denied -> DENIED; use and skip -> SKIP; use or spare -> GOOD;
 *   in none of them -> ASSUMED_BAD
 */
struct mrc_tx {                  /* map txs, sender half of a QP */
	struct bpf_spin_lock lock;
	__u32 next;              /* PSN of the next packet; lock */
	__u32 una;               /* oldest PSN not acknowledged; lock */
	__u32 held;              /* number of the last PSNs before next that wait for the window; lock */
	__u32 high;              /* highest PSN reported by a SACK, plus one; lock */
	__u32 heard;             /* count of bytes in the newest SACK, 24 bits; lock */
	__u32 granted;           /* the window that it grants, PSNs; 0: nothing was heard; lock */
	__u32 round;             /* number that orders the planes of this round; lock */
	__u32 srtt_ns;           /* lock */
	__u32 rttvar_ns;         /* lock */
	__u32 backoff;           /* time-outs in a row; lock */
	__u32 loss_ppm;          /* smoothed loss over all paths; racy */
	__u32 least_ns[2];       /* shortest round trip of short packets, and of long ones, half of the MTU or more; lock */
	__u32 queue_ns;          /* round trips beyond that, smoothed, on planes with a whole share; lock */
	/* Congestion control (nscc.h); lock */
	__u32 cwnd;              /* window, bytes; 0: not begun */
	__u32 inflight;          /* sent and not acknowledged, bytes, of PSNs from .counted_from on */
	__u32 counted_from;      /* the last packet that was sent with nothing on its way */
	__u32 backlog;           /* of the packets held, bytes */
	__u32 delay_ns;          /* queueing delay, smoothed */
	__u32 target_ns;         /* what it should be */
	__u32 calm;              /* bytes acknowledged in a row at next to no delay */
	__u32 got;               /* bytes acknowledged in this round trip ... */
	__u32 lost;              /* ... and lost to long queues */
	__u32 cuts;              /* round trips in a row with too much delay at the smallest window */
	__u32 cut_least_ns;      /* least delay in these */
	__u32 saved;             /* window from before the receiver's penalty; 0: none is to return */
	__u32 left;              /* what the penalty left of it */
	__u32 others;            /* of the packets held, bytes of those that are not TCP's ... */
	__u32 flows_from;        /* first PSN whose flow .flows has; lock */
	__u64 others_ns;         /* ... and since when there have been any */
	__u64 held_ns;           /* since when any packets have been held */
	__u64 extra_ns;          /* since when .extra_flows counts */
	__u64 extra_flows;       /* flows of TCP of which a packet waits beyond the others' room, a bit of the hash each */
	__u64 shrunk_ns;         /* when the window shrank last */
	__u64 epoch_ns;          /* since when .got counts */
	__u32 absurd;            /* SACKs in a row that acknowledged packets never sent; racy */
	__u32 fifo_extra_ns;     /* learnt from needless retransmissions by this rule; lock */
	__u32 guard_extra_ns;    /* the same for the reorder guard; lock */
	__u32 scan;              /* where the search for time-outs continues; tick only */
	__u32 used_all;          /* paths in use; lock */
	__u32 floor;             /* ev_min_active: with no more paths than this, one that still delivers stays; daemon */
	__u64 reo_ns;            /* when an extra was widened or halved last; lock */
	__u64 queue_at_ns;       /* when queue_ns was measured last; lock */
	__u64 early_ns;          /* no packet is dropped early before this; racy */
	__u64 packets;           /* taken from mrc0; lock */
	__u64 retransmits;       /* sent again; lock */
	__u64 progress_ns;       /* when una last moved, sending began, or a time-out passed; lock */
	__u64 moved_ns;          /* when una last moved, or sending began; lock */
	__u64 failed;            /* why the QP gave up, MRC_FAILED_...; 0: it did not; atomic */
	__u64 delivered_ns;      /* latest send time among delivered packets; lock */
	__u64 fault_ns;          /* when a packet was last found lost that no queue had dropped; lock */
	__u64 credit;            /* byte p: credit of plane p, which each turn costs; lock */
	__u64 turn;              /* bit p: plane p is still to come in this round; lock */
	__u64 plane_use;         /* bit p: use of plane p is not empty; lock */
	__u64 plane_open;        /* bit p: plane p has slots that are not denied; lock */
	__u64 suspects;          /* bit p: data was lost on plane p, and none sent later has arrived by it; atomic */
	__u64 suspect_ns;        /* when that was last seen of any of them; racy */
	__u64 use[MRC_SET_WORDS];    /* in rotation; lock */
	__u64 skip[MRC_SET_WORDS];   /* of those, passed over once; lock */
	__u64 slow[MRC_SET_WORDS];   /* of those, used only now and then; lock */
	__u64 spare[MRC_SET_WORDS];  /* backups; lock */
	__u64 denied[MRC_SET_WORDS]; /* lock */
	__u64 all[MRC_SET_WORDS];    /* slots that hold a path; daemon */
	__u32 asked;             /* PSN of the last packet that asked for a SACK because the window was full; lock */
	__u32 unasked;           /* bytes sent since then; lock */
	__u64 solicit_ns;        /* when a SACK was last asked for; racy */
	__u64 solicit_path;      /* by which path; racy */
	__u64 cut_flows;         /* flows of which a packet was cut lately, a bit of the hash each; racy */
	__u64 cut_ns;            /* when the last one was cut; racy */
	__u64 cut_pending;       /* packets that are to come back from being cut; atomic */
	__u64 ace_flows;         /* flows of TCP that have shown that they use AccECN, a bit by their ports each; racy */
	__u64 flows;             /* flows of which a packet has a PSN from flows_from on, or is being cut, a bit of the hash each; lock */
	__u64 flows_before;      /* the same of earlier PSNs, of which some may not be acknowledged; lock */
	__u64 sacked[MRC_WINDOW_WORDS]; /* bit psn % window; lock */
	__u64 arrived_ns[MRC_MAX_PLANES]; /* latest send time among packets of a plane that arrived; racy maximum */
	__u32 acked[MRC_MAX_PLANES];  /* packets of a plane that arrived; racy */
	__u32 acked_then[MRC_MAX_PLANES]; /* of those, at the time when one was last marked; lock */
	__u32 mark_ppm[MRC_MAX_PLANES]; /* smoothed share of marked packets; lock */
	__u32 trial_psn[MRC_MAX_PLANES]; /* PSN of the latest trial of a plane ... */
	__u32 trial_path[MRC_MAX_PLANES]; /* ... and its path; tick, idle and control */
	__u8 active[MRC_MAX_PLANES];  /* paths of a plane that should be in use; daemon */
	__u8 used[MRC_MAX_PLANES];    /* paths of a plane that are in use; lock */
	__u8 ev_next[MRC_MAX_PLANES]; /* rotation within a plane; lock */
	__u8 live[MRC_MAX_PLANES];    /* slot that answered last, plus one: the reverse EV; racy; also read as one word */
	__u8 probe_next[MRC_MAX_PLANES]; /* rotation of probes; tick and idle */
};

struct mrc_rx {                  /* map rxs, receiver half of a QP */
	struct bpf_spin_lock lock;
	__u32 next;              /* next PSN to deliver; lock, and only the owner while busy */
	__u32 high;              /* highest PSN received, plus one; lock */
	__u32 busy;              /* not 0: a program owns next and delivers: one, and the number of PSNs that only its skb has; lock */
	__u32 pending_packets;   /* arrived since the last SACK; lock */
	__u32 pending_bytes;     /* lock */
	__u32 waiting;           /* packets held behind a gap; lock */
	__u32 ev;                /* EV of the latest packet, on which to answer; lock */
	__u32 slice;             /* SACKs sent, which selects the slice of the next; lock */
	__u32 hole_psn;          /* the gap that the clock saw last; tick only */
	__u64 packets;           /* received, duplicates not counted; lock */
	__u64 bytes;             /* their nominal sizes (mrc_wire.h); lock */
	__u64 hole_ns;           /* when the clock first saw that gap; tick only */
	__u64 sacked_ns;         /* when the latest SACK left; lock */
	__u64 gap_ns;            /* since when cells have been early because of the gap at gap_psn; lock */
	__u64 large_ns;          /* when a cell of several packets arrived last; lock */
	__u32 gap_psn;           /* lock */
	__u32 pressed;           /* 1: a SACK has had a penalty, so later ones may end it; racy */
	__u32 ce_psn;            /* a packet marked CE whose mark no SACK has told yet ... */
	__u32 ce_ev;             /* ... and its path, plus one; 0: none; lock */
	__u64 nack_ns;           /* refusals up to now are paid for until then (refuse.c); lock */
	__u64 copy_ns;           /* the same of SACKs for copies; lock */
	__u64 ace_flows;         /* as in mrc_tx; racy */
	__u64 received[MRC_WINDOW_WORDS]; /* bit psn % window; lock */
};

/*
 * Where the copy of a packet is. A packet of a cell of several shares the cell's
 * slot, which is one of another, larger kind, and has its place in the cell.
 */
#define MRC_SLOT_BIG 0x80000000  /* one of tx_cells or rx_cells, not of tx_ring or rx_ring */
#define MRC_SLOT_AT_SHIFT 24     /* place in the cell, 7 bits, from 0 */
#define MRC_SLOT_INDEX 0xffffff
#define MRC_CELL_BYTES 65536     /* more than any cell has */
#define MRC_PIECE_BYTES 15872    /* most payload of a packet that is made of several held ones: a program can make
				  * an skb of some 16,000 bytes */
#define MRC_PIECE_ROOM 16384     /* behind a cell, for the verifier: more than that */
#define MRC_HEAD_MAX 128         /* IP and TCP headers have at most 120 bytes */

/* Free slots of a reorder ring, which its stack of free slots does not tell. */
#define MRC_ROOM_PACKETS 0       /* rx_ring */
#define MRC_ROOM_CELLS 1         /* rx_cells */
struct mrc_room {                /* map rooms[2] */
	__u64 free;              /* atomic; control: atomic */
	__u64 all;               /* daemon */
};

struct mrc_tx_entry {            /* map tx_entries[qp * window + psn % window] */
	__u64 sent_ns;           /* latest transmission; spray, then lock of tx */
	__u64 first_ns;          /* the first transmission, once it was repeated; lock */
	__u32 psn;               /* spray, last: it makes the entry valid */
	__u32 slot;              /* in the retransmit ring, MRC_SLOT_...; spray */
	__u16 len;               /* of the inner packet, bytes; spray */
	__u16 path;              /* plane << 8 | slot; spray, then lock */
	__u8 sends;              /* 1: never retransmitted; 255: or more; spray, then lock */
	__u8 rule;               /* counter of the rule that last retransmitted it, 0: none, MRC_RULE_...; spray, then lock; sack_rx: racy */
	__u16 was;               /* path of the first transmission, once it was repeated; lock. MRC_RULE_REDUNDANT: the second one; spray */
};

#define MRC_RULE_REDUNDANT 254   /* in .rule: sent on two planes at once, and not again */
#define MRC_RULE_REFUSED 255     /* in .rule: the receiver had no room; .sent_ns is when it said so */

struct mrc_rx_entry {            /* map rx_entries[qp * window / 2 + psn % (window / 2)] */
	__u32 slot;              /* in the reorder ring, MRC_SLOT_...; index plus one, 0: none; lock of rx */
	__u16 len;               /* bytes; why it may not enter mrc0 << MRC_RX_WHY_SHIFT, INNER_...; lock of rx */
	__u16 psn;               /* low half of its PSN; lock of rx */
};
#define MRC_RX_LEN 0x3fff
#define MRC_RX_WHY_SHIFT 14

/* Path states, and the events that change them (bpf/path.h has the table) */
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
	__u64 marked;            /* racy */
	__u64 delivered_ns;      /* latest send time among those delivered; racy maximum */
	__u64 blamed_ns;         /* when the packets were sent for which it was last blamed; lock of tx */
	__u64 withdrawn_ns;      /* when it last became ASSUMED_BAD; lock of tx */
	__u64 relapsed_ns;       /* when it last relapsed; lock of tx */
	__u64 hold_ns;           /* it is not probed before this; lock of tx */
	__u64 rtt_at_ns;         /* when a round trip was last measured; racy */
	__u64 probe_ns;          /* last probe sent; tick and idle only */
	__u32 probe_id;          /* of that probe; tick and idle only */
	__u32 probe_seen;        /* id of the last probe answered, or given up; receive, tick and idle: racy */
	__u32 probe_ok;          /* probes answered in a row since it was withdrawn; lock of tx */
	__u32 probe_need;        /* answers in a row that bring it back; lock of tx */
	__u32 misses;            /* probes unanswered since it was withdrawn; lock of tx */
	__u32 relapses;          /* relapses so far, forgotten ten seconds after the last one; lock of tx */
	__u32 loss_ppm;          /* smoothed loss; racy */
	__u32 late;              /* round trips in a row far above the plane's usual; racy */
	__u64 crowded_ns;        /* it stays slow until then, because of its marks; lock of tx */
	__u32 acked_then;        /* acked at the time when a packet was last marked; lock of tx */
	__u32 mark_ppm;          /* smoothed share of marked packets; lock of tx */
	__u32 crowds;            /* times that it was crowded again soon after its return; lock of tx */
	__u32 prompt;            /* round trips in a row near the plane's usual; racy */
	__u32 gone;              /* data packets lost in a row of which none as long as gone_len arrived; lock of tx, and racy when cleared */
	__u32 gone_len;          /* the shortest of these, bytes; lock of tx */
	__u32 trial_len;         /* bytes of the trial on its way; 0: it is a probe of MRC's; tick, idle and control */
	__u32 fits;              /* length of the last trial that was answered, bytes; learn: racy */
	__u64 answered_ns;       /* when a probe of MRC's was answered last; receive: racy */
};

/*
 * The mark by which mrc_receive tells mrc_deliver about a packet that it has
 * validated. It lies over the two addresses of the Ethernet header. The magic makes
 * the source a group address, which no frame on a wire may have; mrc_receive drops
 * frames that do, so the mark cannot be forged. Behind native XDP, metadata would
 * serve, but not every driver passes it on, and it stays with the skb: GRO treats
 * packets with different metadata as different flows and delivers them out of order.
 */
#define MRC_MARK_MAGIC0 0x4d     /* first byte of the source address, odd */
#define MRC_MARK_MAGIC1 0x52
#define MRC_MARK_CE 0x01         /* in .flags, beside BTH.aux's ackreq and rtx */
#define MRC_MARK_SACK 0x02       /* in .flags: a whole SACK; else data, stripped */
#define MRC_MARK_NACK 0x04       /* in .flags: a whole NACK; .ev_hi and .psn are those of the packet it names */
#define MRC_MARK_STACK 0x10       /* in .flags: for the daemon, by way of the stack; only the source address is overwritten */
#define MRC_MARK_STUB 0x40       /* in .flags: a stub, stripped as data */
#define MRC_MARK_SOLICIT 0x08    /* in .flags: a whole probe that asks for a SACK; .ts is its time stamp, .ev_hi its path */
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

/*
 * The packet that circles for mrc_beat. Its Ethernet header has no addresses, and no
 * IP header follows that means anything. It is cloned for ticks, which write over all of it.
 */
#define MRC_BEAT_LEN 142         /* bytes; more than the headers of any packet of TCP up to its checksum */
#define MRC_BEAT_PAYLOAD 128     /* of those, bytes behind the Ethernet header */
#define MRC_BEAT_MAGIC 0x6d726362
struct mrc_beat {                /* behind the Ethernet header; lengths of 0, and a next header that is none */
	__u32 magic;
	__u16 length;
	__u8 next_header;
	__u8 raw;                /* 1: it has been made of another packet, and was never out yet */
	__u64 generation;        /* of mrc_clock, when it was made */
};

struct mrc_clock {               /* map clock, one entry, mmapable */
	__u64 generation;        /* beats of other generations end; atomic */
	__u64 resting;           /* 1: the beat is slow, and a QP that becomes active makes a new one; atomic */
	__u64 beats;             /* how many beats there were; beat */
	__u64 beat_ns;           /* when the last one was; beat */
	__u64 calm;              /* beats in a row without an active QP; beat */
	__u64 cursor;            /* word of active QPs with which the next beat begins; beat */
	__u64 idle_cursor;       /* where probes of idle paths continue; idle */
	__u64 idle_ns;           /* up to when those probes have been sent; beat */
	__u64 paid_ns;           /* up to when probes have been granted; beat */
	__u64 probe_credit;      /* probes that may be sent now; beat, tick and idle */
	__u64 ticks;             /* active QPs that mrc_beat looked at; beat */
};

#define MRC_EVENT_WAKE 1         /* the packet that should have become a beat could not */
#define MRC_EVENT_PATH 2
#define MRC_EVENT_OUT_OF_STEP 3  /* .qp: its SACKs acknowledge what was never sent */
#define MRC_EVENT_FAILED 4       /* .qp gave up, .cause: MRC_FAILED_... */
#define MRC_DEAF_AFTER 8         /* in .gone of struct mrc_path: the path loses data, whatever its probes say */
#define MRC_EVENT_DEAF 5         /* .path of .qp loses all data; MRC_NO_PATH: all of its paths do */
struct mrc_event {               /* ring buffer events */
	__u32 kind;
	__u32 qp;
	__u32 ev;
	__u32 path;              /* plane << 8 | slot */
	__u32 from_state;
	__u32 state;
	__u32 cause;             /* MRC_ON_..., or MRC_FAILED_... */
	__u32 rtt_ns;            /* the path's, smoothed; 0: none measured */
	__u64 sent_ns;           /* when the lost packet or probe was sent; 0: none was lost */
	__u64 time_ns;
};

/* A command of the daemon: the packet of a test run of mrc_control */
#define MRC_DO_DENY 1            /* path of qp */
#define MRC_DO_ALLOW 2           /* path of qp */
#define MRC_DO_PORTS 3           /* value: the planes on which `peer` takes packets, a bit each */
#define MRC_DO_TRIAL 5           /* path of qp; value: length of the trial, bytes | MRC_FRAMING_... << 16; 0: a probe */
#define MRC_DO_MOST 6            /* value: longest packet that gets through to `peer` on the plane `path`, bytes; 0: any */
#define MRC_DO_ROOM 4            /* value: slots that the daemon has given back to the reorder ring `path`, MRC_ROOM_... */
struct mrc_command {
	__u8 eth[14];            /* test runs need an Ethernet header */
	__u16 op;
	__u32 qp;
	__u32 peer;
	__u32 path;
	__u32 value;
};

/* The survey: loops through the fabric back to us (bpf/survey.c, mrcd/fabric/loops.py) */
#define MRC_RTT_BUCKETS 16
struct mrc_loop {                /* map loops */
	__u32 plane;             /* daemon */
	__u32 psn;               /* of the latest probe; survey only */
	__u64 sent;              /* survey only */
	__u64 sent_ns;           /* when the latest probe left; survey only */
	__u64 returned;          /* probes that came back; atomic */
	__u64 rtt[MRC_RTT_BUCKETS]; /* histogram of round trips, bucket i up to 2^i us; atomic */
};

#define MRC_TELLING_MAX 16       /* power of two; most loops in .tell, which share half of the probes */
struct mrc_survey {              /* map survey, one entry */
	__u32 loops;             /* how many loops there are; daemon */
	__u32 telling;           /* how many of them are below; daemon */
	__u32 tell[MRC_TELLING_MAX]; /* loops expected to settle most of what is uncertain; daemon */
	__u32 next;              /* the loop whose turn it is among all; survey only */
	__u32 turn;              /* probes so far; survey only */
};

/* Places in the map of programs that others end in, tails; TAIL_NAME is that of mrc_name. */
#define TAIL_RESEND 0
#define TAIL_LEARN 1
#define TAIL_PROBE 2
#define TAIL_DRAIN 3
#define TAIL_CELL 4
#define TAIL_DELIVER 5
#define TAIL_SOLICIT 6
#define TAIL_TICK 7
#define TAIL_RELEASE 8
#define TAIL_REFUSE 9
#define TAIL_UNREACHABLE 10
#define TAIL_BEAT 11
#define TAIL_JUDGE 12
#define TAIL_IDLE 13
#define TAIL_REDUNDANT 14
#define TAIL_COUNT 15

/*
 * Numbers that stand in instructions for what only the loader knows (PATCHED of bpf/bits.h,
 * mrcd/datapath/bytecode.py).
 */
#define EVS_PLACE 1588724679     /* EVs of a plane in a QP's set */
#define DECAP_PLACE 1588724680   /* 1: the kernel has flags that say what follows a header that comes off */

/*
 * Counters: map counters, per CPU. One line for each; operators read the text
 * behind the number in `mrcctl stats` and in docs/reference.md. New ones go to
 * the end. The map has room for more, and map counter_names says which is which,
 * so that a build with other counters takes it over (mrcd/datapath/totals.py).
 */
#define MRC_COUNTERS_ROOM 256
struct mrc_counter_name {        /* map counter_names[counter]; daemon */
	__u8 name[32];           /* zeros behind it; only zeros: no build has had such a counter */
};

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
#define MRC_C_DROP_SKB 26        /* dropped: the kernel had no memory for the headers, or had merged packets */
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
#define MRC_C_PROBE_STALE 42     /* answers to probes that came after their time, or to none */
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
#define MRC_C_DROP_CHECKSUM 64   /* dropped: wrong checksum of an IPv4 header, or of a packet that waited */
#define MRC_C_PROBE_PUT_OFF 65   /* probes put off: more were due than probe_pps allows */
#define MRC_C_DROP_ICRC 66       /* dropped: the headers were damaged on the way */
#define MRC_C_EVENT_LOST 67      /* events for the daemon that found the ring buffer full */
#define MRC_C_DROP_NO_PLANE 68   /* dropped: the peer said that it takes packets on no plane */
#define MRC_C_PATH_CROWDED 69    /* paths found marked much more than their plane */
#define MRC_C_TX_CELLS 70        /* cells of several packets sprayed */
#define MRC_C_RX_CELLS 71        /* pieces of cells, of several packets, delivered to mrc0 */
#define MRC_C_RX_CIRCLED 72      /* rounds of early cells through the backlog, waiting for their turn */
#define MRC_C_RX_OVERLAP 73      /* pieces of cells dropped because a part of them had arrived before */
#define MRC_C_SOLICIT_TX 74      /* questions for a SACK sent */
#define MRC_C_SOLICIT_RX 75      /* questions for a SACK answered */
#define MRC_C_TX_CUT 76          /* large packets from mrc0 sent round to be cut into single ones */
#define MRC_C_DROP_CELL 77       /* dropped: the state of a cell was damaged on the way, or forged */
#define MRC_C_DROP_FRAMING 78    /* dropped: data in another framing than both sides agreed on */
#define MRC_C_DROP_MULTI_PACKET 79 /* dropped: part of a write of several packets, which mrc0 has no use for */
#define MRC_C_DROP_IMMEDIATE 80  /* dropped: write with immediate data, which mrc0 has no use for */
#define MRC_C_DROP_TRANSPORT_ACK 81 /* dropped: Transport ACK, which no packet of ours asks for */
#define MRC_C_TX_HELD 82         /* packets that waited for the congestion window */
#define MRC_C_DROP_BACKLOG 83    /* dropped: too much waits for the congestion window already */
#define MRC_C_TRIM_RX 84         /* packets that arrived trimmed on their way and are missing here */
#define MRC_C_TRIM_RX_LASTHOP 85 /* the same, trimmed at the port that leads to this host */
#define MRC_C_NACK_TRIMMED 86    /* NACKs received for packets trimmed on their way */
#define MRC_C_NACK_LASTHOP 87    /* NACKs received for packets trimmed at the port that leads to the peer */
#define MRC_C_NACK_STALE 88      /* NACKs ignored: the packet was sent again meanwhile, by another path */
#define MRC_C_NACK_TX_BUFFER 89  /* NACKs sent because the reorder ring was full */
#define MRC_C_NACK_TX_RESOURCE 90 /* NACKs sent because the kernel had no memory, or mrc0 took nothing */
#define MRC_C_NACK_TX_WINDOW 91  /* NACKs sent because a PSN was outside the receive window */
#define MRC_C_NACK_TX_EVENT 92   /* NACKs sent because of an opcode that mrc0 has no use for */
#define MRC_C_NACK_RX_SHORT 93   /* NACKs received because the peer was short of room: sent again later */
#define MRC_C_NACK_RX_WINDOW 94  /* NACKs received because a PSN was outside the peer's window: not sent again */
#define MRC_C_NACK_RX_EVENT 95   /* NACKs received because of an opcode that the peer has no use for */
#define MRC_C_QP_FAILED 96       /* QPs that gave up: in the state ERROR until they are set up anew */
#define MRC_C_GIVEN_UP 97        /* packets that were outstanding on such QPs */
#define MRC_C_DROP_QP_ERROR 98   /* dropped: the QP has given up, and is not set up anew yet */
#define MRC_C_DROP_TAG 99        /* dropped: forged, or with a key that is not in use any more */
#define MRC_C_DROP_REPLAY 100    /* dropped: a SACK, NACK or probe that had arrived before */
#define MRC_C_DROP_FOREIGN 101   /* dropped: acknowledged, but from an inner address that is not the peer's */
#define MRC_C_DROP_NOT_HERE 102  /* dropped: acknowledged, but to an inner address that is not this host's */
#define MRC_C_DROP_HOPS 103      /* dropped: a daemon's message from farther away than the fabric is wide */
#define MRC_C_DROP_MESSAGE 104   /* dropped: for the daemon, but none of the messages that daemons seal */
#define MRC_C_DROP_MAC1 105      /* dropped: asks for keys without knowing this host's public key */
#define MRC_C_DROP_INDEX 106     /* dropped: a daemon's message that names no exchange or epoch of this host */
#define MRC_C_DROP_BUDGET_PEER 107 /* dropped: more messages for the daemon than a peer may send */
#define MRC_C_DROP_BUDGET_PLANE 108 /* dropped: more messages for the daemon than other addresses of the planes may send */
#define MRC_C_DROP_BUDGET_REST 109 /* dropped: more messages for the daemon than the rest of the world may send */
#define MRC_C_PENALTY_TX 110     /* SACKs that asked a sender for a smaller window: a reorder ring fills up */
#define MRC_C_PENALTY_RX 111     /* SACKs that made a congestion window smaller: the peer's reorder ring fills up */
#define MRC_C_PENALTY_OVER 112   /* congestion windows that returned after that */
#define MRC_C_TX_PARKED 113      /* packets of which a copy waits, or that were refused, and for which the sender's socket goes on paying */
#define MRC_C_DROP_EXPIRED 114   /* dropped: datagrams that had waited longer than datagram_max_ms */
#define MRC_C_STUB_RX 115        /* stubs: datagrams that had become too old at their sender */
#define MRC_C_DROP_UNREACHABLE 116 /* dropped: the first packet of a connection to a peer that is not heard */
#define MRC_C_UNREACHABLE_TX 117 /* ICMP messages that told a sender that its destination is unreachable */
#define MRC_C_PATH_DEAF 118      /* paths that lost data several times in a row, whatever their probes said */
#define MRC_C_TRIAL_TX 119       /* probes that look like data, sent on paths that lose data, and for their largest packet */
#define MRC_C_TRIAL_REPLY 120    /* answers to these */
#define MRC_C_DROP_TOO_LONG 121  /* dropped: longer than what gets through to the peer, and sent before that was known */
#define MRC_C_TRIAL_RX 122       /* stubs of packets that had arrived: mostly peers' trials */
#define MRC_C_DROP_NOT_OURS 123  /* dropped: from an address that is none of this host's, which the peer would drop */
#define MRC_C_RELAYED 124        /* packets of two other hosts that were handed on from one plane to another */
#define MRC_C_DROP_RELAY 125     /* dropped: to be handed on to a plane that is missing, or after too many hops */
#define MRC_C_TX_REDUNDANT 126   /* packets sent on two planes at once */
#define MRC_C_COUNT 127

#endif
