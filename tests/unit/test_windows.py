# SPDX-License-Identifier: GPL-2.0-only
"""Both windows of a QP (bpf/window.h), at their full width, beside sets of numbers in Python."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mrcd.wire.abi import ABI
from mrcd.wire.layout import WIRE
from tests import stateful
from tests.host_path import Memory, compiled

WINDOW = 8192
MPR = WINDOW // 2
WRAP = 1 << 32
DELIVER, HOLD, DUPLICATE, OUTSIDE, OVERLAP = 0, 1, 2, 3, 5  # RX_... of window.h
CUMULATIVE_WORDS = 8
SACK_BITS = 64
FIRSTS = st.sampled_from([0, 5, 63, 0x00FFFFF0, 0x7FFFFF80, 0xFFFFFFC0, 0xFFFFFFFE])

HOST = Path(__file__).parents[1] / "walks" / "host.h"

_SOURCE = f"""
#define CFG_WINDOW {WINDOW}
#include "{HOST}"
u32 host_send(struct mrc_tx *tx, u32 n) {{ return tx->next += n; }}
/* Take a SACK as sack_rx.c does; the PSNs that are news go to `out`. Returns their number. */
u32 host_sack(struct mrc_tx *tx, u32 cack, u32 base, u64 bitmap, u64 now, u32 *out)
{{
    struct sack_in s = {{ .cack = cack, .base = base, .bitmap = bitmap, .una = tx->una,
                          .next = sent_up_to(tx) }};
    u32 step, word, n = 0;
    u64 mask, fresh;

    for (step = 0; step < SACK_WORDS; step++) {{
        word = sack_word(&s, step, &mask);
        fresh = set_sacked(tx, word, mask & range_mask(word, s.una, s.next));
        for (; fresh; fresh &= fresh - 1)
            out[n++] = word + lowest_bit(fresh);
    }}
    advance_una(tx, now);
    return n;
}}
u32 host_place(struct mrc_rx *rx, struct piece *p, u32 psn, u32 n, u32 *own)
{{
    struct place at;

    memset(p, 0, sizeof(*p));
    p->psn = psn & MRC_PSN_MASK;
    p->c.count = n;
    place_piece(rx, 0, p, 0, 1, 1, &at);
    *own = at.own;
    return at.psn == psn ? at.disposition : ~0u;
}}
void host_pass(struct mrc_rx *rx, struct piece *p, u32 psn, u32 own, u32 failed)
{{
    struct place at = {{ .psn = psn, .own = own }};

    pass_piece(rx, p, &at, failed);
}}
u32 host_enter(struct mrc_rx *rx, struct piece *p, u32 psn)
{{
    struct mrc_rx_entry entry = {{}};
    u32 found = enter_piece(rx, p, psn, &entry, 7);

    return entry.slot == (p->c.count == 1 ? 7 : 0) ? found : ~0u;
}}
u32 host_own(struct mrc_rx *rx) {{ return take_next(rx); }}
u32 host_drain(struct mrc_rx *rx, u32 n) {{ return pass_held(rx, rx->next, n); }}
void host_leave(struct mrc_rx *rx) {{ rx->busy = 0; }}
u32 host_answer(struct mrc_rx *rx, u64 *bitmap, u32 *base)
{{
    struct sack_body sack = {{}};

    take_sack(rx, &sack, 1);
    *bitmap = sack.bitmap;
    *base = sack.cack + sack.sack_off;
    return sack.cack;
}}
"""
_U32, _U64, _PTR = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_ARGUMENTS = {
    "host_send": (_PTR, _U32),
    "host_sack": (_PTR, _U32, _U32, _U64, _U64, _PTR),
    "host_place": (_PTR, _PTR, _U32, _U32, _PTR),
    "host_pass": (_PTR, _PTR, _U32, _U32, _U32),
    "host_enter": (_PTR, _PTR, _U32),
    "host_own": (_PTR,),
    "host_drain": (_PTR, _U32),
    "host_leave": (_PTR,),
    "host_answer": (_PTR, _PTR, _PTR),
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("windows")
    return compiled(folder, _SOURCE, _ARGUMENTS, {"host_pass", "host_leave"})


def test_sender_knows_what_has_arrived(host: ctypes.CDLL) -> None:
    class Sender(RuleBasedStateMachine):
        """A receiver that gets any of what is on its way, and SACKs that overtake each other."""

        @initialize(first=FIRSTS)
        def begin(self, first: int) -> None:
            self.first = first
            self.tx = Memory("mrc_tx", next=first, una=first)
            self.sent = self.una = 0
            self.told: set[int] = set()
            self.arrived: set[int] = set()
            self.sacks: list[tuple[int, int, int]] = []
            self.send(100)

        @rule(count=st.sampled_from([1, 2, 44, 64, 100, 700]))
        def send(self, count: int) -> None:
            count = min(count, self.una + MPR - self.sent)
            host.host_send(self.tx.at, count)
            self.sent += count

        @rule(
            start=st.one_of(st.just(0), st.integers(0, MPR)),
            count=st.sampled_from([1, 3, 64, 200, 1000, MPR]),
            every=st.sampled_from([1, 1, 2, 50]),
            offset=st.integers(0, MPR),
        )
        def arrive(self, start: int, count: int, every: int, offset: int) -> None:
            """Some arrive. Make a SACK: all up to the first gap, and 64 bits from anywhere on."""
            start = self.una + start % max(1, self.sent - self.una)
            self.arrived |= set(range(start, min(start + count, self.sent), every))
            cumulative = self.una
            while cumulative in self.arrived:
                cumulative += 1
            base = cumulative + offset % max(1, self.sent - cumulative)
            bits = sum(1 << i for i in range(SACK_BITS) if base + i in self.arrived)
            self.sacks.append((cumulative - 1, base, bits))

        @rule(which=st.integers(0, 100), again=st.booleans())
        def take(self, which: int, again: bool) -> None:
            if not self.sacks:
                return
            cack, base, bits = self.sacks[which % len(self.sacks)]
            if not again:
                self.sacks.remove((cack, base, bits))
            if cack + 1 - self.una < -WINDOW:
                return  # as on_sack() does with one that is older than the window
            self.check(cack, base, bits)

        def check(self, cack: int, base: int, bits: int) -> None:
            news = (ctypes.c_uint32 * (10 * 64))()
            found = host.host_sack(
                self.tx.at, (self.first + cack) % WRAP, (self.first + base) % WRAP, bits, 7,
                ctypes.addressof(news),
            )  # fmt: skip
            word = (self.first + self.una) // 64 * 64 - self.first
            reach = word + 64 * CUMULATIVE_WORDS
            expected = {psn for psn in range(self.una, cack + 1) if psn < reach}
            expected |= {base + i for i in range(SACK_BITS) if bits >> i & 1}
            expected = {psn for psn in expected if self.una <= psn < self.sent} - self.told
            assert {(psn - self.first) % WRAP for psn in news[:found]} == expected
            assert found == len(expected)  # each is news once
            self.told |= expected
            steps = 0
            while self.una in self.told and self.una < reach + 64:
                self.una += 1
                steps += 1
            assert (self.tx.read()["moved_ns"] == 7) or not steps
            assert (self.tx.read()["una"] - self.first) % WRAP == self.una

        @invariant()
        def bits_are_those_of_the_window(self) -> None:
            if not hasattr(self, "tx"):
                return
            words = self.tx.array("sacked")
            set_bits = sum(word.bit_count() for word in words)
            assert set_bits == sum(psn >= self.una for psn in self.told)

    stateful.run(Sender, examples=40, steps=40)


def test_receiver_delivers_once_and_in_order(host: ctypes.CDLL) -> None:
    class Receiver(RuleBasedStateMachine):
        """Pieces in any order, some of which mrc0 refuses."""

        @initialize(first=FIRSTS)
        def begin(self, first: int) -> None:
            self.first = first
            self.rx = Memory("mrc_rx", next=first, high=first)
            self.piece = ctypes.create_string_buffer(256)
            self.next = 0
            self.held: set[int] = set()

        def psn(self, at: int) -> int:
            return (self.first + at) % WRAP

        def expected(self, at: int, n: int) -> int:
            beyond = at + n - self.next
            there = len(self.held & set(range(max(at, self.next), at + n)))
            if beyond <= 0:
                return DUPLICATE
            if beyond > MPR:
                return OUTSIDE
            if at < self.next:
                return OVERLAP if there else DELIVER
            if there:
                return DUPLICATE if there == n else OVERLAP
            return DELIVER if at == self.next else HOLD

        @rule(
            ahead=st.one_of(
                st.integers(-200, 200),
                st.integers(-WINDOW, WINDOW),
                st.sampled_from([MPR - n for n in (0, 1, 2, 64, 127, 128)]),
            ),
            n=st.sampled_from([1, 1, 2, 29, 44, 64, 65, 127, 128]),
            refuses=st.booleans(),
        )
        def arrive(self, ahead: int, n: int, refuses: bool) -> None:
            at, own = self.next + ahead, ctypes.c_uint32()
            found = host.host_place(
                self.rx.at, ctypes.addressof(self.piece), self.psn(at), n, ctypes.addressof(own)
            )
            assert found == self.expected(at, n), (ahead, n)
            if found == HOLD:
                entered = host.host_enter(self.rx.at, ctypes.addressof(self.piece), self.psn(at))
                assert entered == HOLD
                self.held |= set(range(at, at + n))
            elif found == DELIVER:
                self.delivering(at, own.value, refuses=refuses)

        def delivering(self, at: int, own: int, *, refuses: bool) -> None:
            """Meanwhile nobody else owns the window, and no SACK tells of it."""
            assert not host.host_own(self.rx.at)
            assert not self.answered() & set(range(self.next, self.next + own))
            host.host_pass(
                self.rx.at, ctypes.addressof(self.piece), self.psn(at), own, int(refuses)
            )
            self.next += 0 if refuses else own

        @rule(most=st.integers(1, 200))
        def drain(self, most: int) -> None:
            owner = host.host_own(self.rx.at)
            assert owner == (self.next in self.held)
            more = owner
            while more and most:
                self.held.remove(self.next)
                self.next += 1
                more = host.host_drain(self.rx.at, 1)
                assert more == (self.next in self.held)
                most -= 1
            if more:
                host.host_leave(self.rx.at)

        def answered(self) -> set[int]:
            """Return what a SACK tells of beyond its cumulative PSN."""
            bitmap, base = ctypes.c_uint64(), ctypes.c_uint32()
            cack = host.host_answer(self.rx.at, ctypes.addressof(bitmap), ctypes.addressof(base))
            assert cack == self.psn(self.next - 1)
            at = self.next + (base.value - self.psn(self.next)) % WRAP
            return {at + i for i in range(SACK_BITS) if bitmap.value >> i & 1}

        @rule()
        def answers_tell_of_the_whole_window(self) -> None:
            span = max(self.held, default=self.next) + 1 - self.next
            told: set[int] = set()
            for _ in range(span // SACK_BITS + 2):
                told |= self.answered()
            assert told == self.held

        @invariant()
        def window_is_that_of_the_model(self) -> None:
            if not hasattr(self, "rx"):
                return
            rx = self.rx.read()
            assert (rx["next"], rx["busy"]) == (self.psn(self.next), 0)
            assert rx["waiting"] == len(self.held)
            assert sum(word.bit_count() for word in self.rx.array("received")) == len(self.held)

    stateful.run(Receiver, examples=60, steps=40)


def test_widths_are_those_of_the_headers() -> None:
    assert WIRE.MRC_SACK_BITS == SACK_BITS
    assert ABI.MRC_WINDOW_MAX == WINDOW
