/* SPDX-License-Identifier: GPL-2.0-only */
/* The core of the data path for the host compiler: the headers that look up no map. */
#ifndef WALKS_HOST_H
#define WALKS_HOST_H

#include <linux/types.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline, unused))

#ifndef CFG_WINDOW
#define CFG_WINDOW 128
#endif
#define CFG_MTU 1500

struct bpf_spin_lock {
	__u32 val;
};

#include "mrc_wire.h"
#include "mrc_abi.h"
#include "bits.h"
/* It has instructions of BPF, for the verifier alone. */
#undef FORGET
#define FORGET(n, unknown) ((void)(n), (void)(unknown))
#include "path.h"
#include "pick.h"
#include "rtt.h"
#include "nscc.h"
#include "penalty.h"
#include "loss.h"
#include "window.h"
#include "chain.h"
#include "learn.h"
#include "share.h"

#endif
