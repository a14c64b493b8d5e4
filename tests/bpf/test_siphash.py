# SPDX-License-Identifier: GPL-2.0-only
"""SipHash as the programs have it (bpf/tag.h), on the vectors of its reference code."""

from __future__ import annotations

import os
import warnings

import pytest

from mrcd.linux import bpf
from mrcd.wire.sources import bpf_dir
from rigs import oracle

KEY = bytes(range(16))
AT_KEY, AT_WORDS = 14, 30  # in the packet: behind an Ethernet header
_PROGRAM = """
#include <uapi/linux/bpf.h>
#define MRC_UDP_OFF 0
%(wire)s
%(abi)s
#define MRC_BTH_OFF 0
#define MRC_BODY_OFF 0
%(tag)s
int hash(struct __sk_buff *skb)
{
	__u64 key[2], words[8], out;

	if (bpf_skb_load_bytes(skb, %(at_key)d, key, sizeof(key)))
		return 0;
	if (bpf_skb_load_bytes(skb, %(at_words)d, words, sizeof(words)))
		return 0;
	out = siphash(key, words, %(count)d);
	return bpf_skb_store_bytes(skb, %(at_words)d, &out, sizeof(out), 0) ? 0 : 1;
}
"""


def program(words: int) -> int:
    """Compile and load a program that hashes so many words of a packet; return its descriptor."""
    from bcc import BPF  # type: ignore[import-untyped]

    parts = {name: (bpf_dir() / file).read_text() for name, file in (
        ("wire", "mrc_wire.h"), ("abi", "mrc_abi.h"), ("tag", "tag.h"),
    )}  # fmt: skip
    text = _PROGRAM % {**parts, "at_key": AT_KEY, "at_words": AT_WORDS, "count": words}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = BPF(text=text, cflags=["-Wno-unused-function"])
        return os.dup(module.load_func("hash", BPF.SCHED_CLS).fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="BPF programs need root")
@pytest.mark.parametrize("words", range(8))
def test_official_vectors(words: int) -> None:
    fd = program(words)
    try:
        frame = bytes(AT_KEY) + KEY + bytes(range(64))
        run = bpf.TestRun(fd, frame, out_size=4096)
        assert run.run() == 1
        assert run.output[AT_WORDS : AT_WORDS + 8] == oracle.official_siphash()[8 * words]
    finally:
        os.close(fd)
