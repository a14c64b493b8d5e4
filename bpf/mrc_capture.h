/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The records of a capture, defined once: read by the programs (capture.c) and,
 * through cffi, by `mrcctl capture` (cli/capture.py). Host byte order.
 *
 * They are not in mrc_abi.h because only a capture's own maps hold them: a change
 * here leaves the layout of a running data path alone.
 */
#ifndef MRC_CAPTURE_H
#define MRC_CAPTURE_H

#define MRC_CAPTURE_BYTES 16384  /* room for a packet; a power of two, one more than fits */
#define MRC_CAPTURE_PAGES 2048   /* of the ring buffer, 4096 bytes each */

/* Kinds of records, a bit each; the first two are directions, too */
#define MRC_CAPTURE_TX 1         /* a packet that leaves by a plane */
#define MRC_CAPTURE_RX 2         /* a packet that arrived by one, as it arrived */
#define MRC_CAPTURE_OUTCOME 4    /* the outcome of a packet whose record has PASSED; no bytes */
#define MRC_CAPTURE_SURVEY 8     /* in .kinds alone: survey probes are wanted, too */

#define MRC_CAPTURE_NONE 0xffffffff /* no such QP or peer; in .only_peer: any */
#define MRC_CAPTURE_PASSED 0xffff /* in .why: mrc_receive passed it on, an outcome follows */

/* A record, with the packet's first bytes behind it. */
struct mrc_capture {             /* ring buffer captures */
	__u64 time_ns;           /* CLOCK_MONOTONIC */
	__u32 length;            /* of the packet, with its Ethernet header; 0 in an outcome */
	__u32 key;               /* last four bytes of what arrived, or a cell's tag: ties an outcome to its packet */
	__u32 peer;              /* index, or NONE */
	__u32 qp;                /* index, for what leaves and for outcomes, or NONE */
	__u16 why;               /* counter of what happened, MRC_C_... of mrc_abi.h */
	__u8 plane;
	__u8 kind;
	__u32 pad;
};

struct mrc_capturing {           /* map capturing, one entry, mmapable */
	__u64 lost[8];           /* records that found the ring buffer full, by plane; programs: atomic */
	__u32 bytes;             /* bytes of a packet to keep; 0: nothing is captured; daemon, as those below */
	__u32 kinds;             /* those wanted: MRC_CAPTURE_TX, RX, SURVEY */
	__u32 only_planes;       /* those wanted, a bit each */
	__u32 only_peer;         /* index */
};

#endif
