# SPDX-License-Identifier: GPL-2.0-only
"""The key of a layout: whether the maps of an earlier daemon mean the same to this build (pure).

A data path is taken over, with its QPs, if the key under which it is pinned is ours. So the key
covers what the contents of the maps depend on, and nothing else:

* each map: its kind, its key, its value and its size, where a struct stands for its members and
  their types, however it is written;
* the constants that give contents a meaning, such as the states of QPs (`MEANING`);
* structs that programs leave to each other, or to the daemon, elsewhere than in maps (`LEFT`);
* what is compiled in, and the identity of this host.

Comments, the text of programs, what only the daemon looks at, and the counters are not part of it.
The counters have a map of their own kind: with room for more, and a table of names beside it
(mrcd/datapath/totals.py). Capacities are left out, too: they are read from the kernel, and a larger
map than needed will do. Hence they count as 1 where they stand in the size of a map.

Nor are the bytes on the wire. Whoever takes a data path over sees from the memory of each session
which version it speaks (mrcd/handshake/versions.py), and begins those anew that are not spoken any
more.

A change of the meaning that no constant expresses needs another MRC_ABI_VERSION.
"""

from __future__ import annotations

import ast
import hashlib
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from mrcd.datapath.sizes import Sizes

MEANING: Final = (
    # mrc_abi.h: what is in the maps
    "MRC_ABI_VERSION",
    "MRC_MAX_PLANES",
    "MRC_EVS_PER_PLANE",
    "MRC_SET_WORDS",
    "MRC_NO_PATH",
    "MRC_SHARE_FULL",
    "MRC_WINDOW_",
    "MRC_QP_",
    "MRC_FAILED_",
    "MRC_FRAMING_",
    "MRC_OWNER",
    "MRC_NOT_OURS",
    "MRC_OURS_ALIKE",
    "MRC_RELAYS",
    "MRC_LENGTHS",
    "MRC_NEAR_SHIFT",
    "MRC_SENDERS",
    "MRC_KEYS_",
    "MRC_REPLAY_",
    "MRC_NET_BUDGETS",
    "MRC_REST_BUDGET",
    "MRC_SLOT_",
    "MRC_ROOM_",
    "MRC_RULE_",
    "MRC_RX_",
    "MRC_PATH_",
    *("MRC_C_RTX_FIFO", "MRC_C_RTX_GUARD", "MRC_C_RTX_TIMEOUT", "MRC_C_RTX_NACK"),  # in .rule
    # mrc_abi.h: what is in the marks of packets, and in the ring buffer
    "MRC_MARK_",
    "MRC_ADMITTED_MARK",
    "MRC_EVENT_",
    "MRC_ON_",
    # mrc_wire.h: EVs and uSIDs, how packets cross the fabric, and units in which sums are kept
    "MRC_EV_",
    "MRC_USID_",
    "MRC_ENCAP_",
    "MRC_PSN_MASK",
    "MRC_QPN_MASK",
    "MRC_DATA_NOMINAL",
    "MRC_CELL_NOMINAL",
    "MRC_CC_BYTES_UNIT",
    # maps.c: in the tag of a slot; inner.c: in mrc_rx_entry.len; places in the map of tail calls
    "MRC_TAG_",
    "INNER_",
    "TAIL_",  # while programs are replaced, those of both builds end in each other
)
"""Constants that the contents of maps are made of, or the first letters of several."""
MEANINGLESS: Final = (
    "MRC_DO_",  # a command lasts as long as the test run that carries it out
    "MRC_C_",  # see mrcd/datapath/totals.py
    "MRC_COUNTERS_",
    "MRC_CELL_BYTES",  # these are lengths of arrays, and so in the structs
    "MRC_INDICES",
    "MRC_REDUNDANT_PORTS",
    "MRC_PIECE_ROOM",
    "MRC_HEAD_MAX",
    "MRC_RTT_BUCKETS",
    "MRC_TELLING_MAX",
    *(
        "MRC_KICK_",
        "MRC_IDLE_",
        "MRC_WAKE_",
        "MRC_RELEASE_",
    ),  # in the mark of a packet that waits for its program
    "MRC_DEAF_AFTER",  # a bound of a count
    "MRC_BEAT_",  # a daemon makes another beat when it starts
    "MRC_PIECE_BYTES",  # how much the programs take at a time
    "EVS_PLACE",  # the loader puts other numbers in their place
    "DECAP_PLACE",
)
"""The other constants of mrc_abi.h. A test asks where a new one belongs."""
LEFT: Final = ("mrc_event", "mrc_mark")
"""Structs in the ring buffer, and over a packet's Ethernet header on its way between programs.

When programs are replaced, the new ones, or the new daemon, find what the old ones have left.
"""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_MAP = re.compile(r"^BPF_\w+\([^;]*\);", re.M)
_STRUCT = re.compile(r"^struct (\w+) \{(.*?)^\};", re.M | re.S)
_MEMBER = re.compile(r"(struct \w+|\w+)\s+(\w+)\s*(?:\[([^\]]*)\])?\s*;")
_DEFINE = re.compile(r"^#define[ \t]+(\w+)[ \t]+(\S.*?)[ \t]*$", re.M)
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")
_NAME_AT: Final = {"BPF_F_TABLE": 3}
"""Which argument of a macro is the map's name, from 0; the first one of the other macros."""
_DIGITS = 16
_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}


def layout_key(
    source: str, sizes: Sizes, maps: Iterable[str], identity: Mapping[str, object]
) -> str:
    """Return the key of a layout.

    source: the programs as one text, with the headers. maps: the names of the maps in it that
    outlive a daemon. identity: JSON of whatever else gives the maps' contents their meaning.
    """
    text = json.dumps(
        {
            "compiled": [
                sizes.mtu,
                sizes.window,
                sizes.ring_slots,
                sizes.cell_slots,
                sizes.evs,
                sizes.encap,
                sizes.xdp,
            ],
            "contents": contents(source, sizes, maps),
            "identity": dict(identity),
        },
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def contents(source: str, sizes: Sizes, maps: Iterable[str]) -> dict[str, Any]:
    """Return what is in the maps, in the form of JSON, so that equal contents are equal.

    Raises KeyError for a map that the source does not declare, and ValueError where a struct or
    the size of a map cannot be understood.
    """
    text = _Text(source, sizes)
    return {
        "maps": {name: text.map(name) for name in maps},
        "left": {name: text.struct(name) for name in LEFT},
        "constants": {name: text.value(name) for name in text.defines if name.startswith(MEANING)},
    }


class _Text:
    """The declarations in a source, with its constants."""

    def __init__(self, source: str, sizes: Sizes) -> None:
        bare = _COMMENT.sub("", source)
        self.defines = dict(_DEFINE.findall(bare))
        sizes = replace(sizes, peers=1, qps=1, prefixes=1, loops=1)
        self.defines |= dict(one.removeprefix("-D").split("=") for one in sizes.defines())
        self._structs = dict(_STRUCT.findall(bare))
        self._maps = dict(map(_declared, _MAP.findall(bare)))

    def map(self, name: str) -> list[Any]:
        """Describe a map: bcc's macro, and each argument."""
        macro, arguments = self._maps[name]
        return [macro, *(self._argument(each) for each in arguments)]

    def _argument(self, text: str) -> Any:
        if text.startswith("struct "):
            return self.struct(text.removeprefix("struct "))
        try:
            return self.value(text)
        except ValueError:
            return text  # a type, a flag of the kernel, the map's own name

    def struct(self, name: str) -> list[Any]:
        """Describe a struct by its members in order; they have their natural alignment."""
        if name not in self._structs:
            raise ValueError(f"struct {name} is not declared")
        body = self._structs[name]
        rest = _MEMBER.sub("", body).strip()
        if rest:
            raise ValueError(f"struct {name}: {rest.splitlines()[0]!r} is no plain member")
        return [
            [member, self._type(kind), self.value(length or "1")]
            for kind, member, length in _MEMBER.findall(body)
        ]

    def _type(self, kind: str) -> Any:
        nested = kind.removeprefix("struct ")
        if nested == kind or nested == "bpf_spin_lock":
            return kind.removeprefix("__")
        return self.struct(nested)

    def value(self, text: str) -> int:
        """Return the value of an expression of constants. Raises ValueError if it is none."""
        try:
            return self._value(ast.parse(_SUFFIX.sub(r"\1", text.strip()), mode="eval").body)
        except (SyntaxError, RecursionError) as error:
            raise ValueError(f"{text!r} is no expression of constants") from error

    def _value(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name) if name in self.defines:
                return self.value(self.defines[name])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self._value(left), self._value(right))
        raise ValueError(f"{ast.unparse(node)} is no expression of constants")


def _declared(text: str) -> tuple[str, tuple[str, list[str]]]:
    """Return the name of a map that is declared, the macro and its arguments."""
    macro, _, rest = text.partition("(")
    arguments = [" ".join(each.split()) for each in rest.removesuffix(");").split(",")]
    return arguments[_NAME_AT.get(macro, 0)], (macro, arguments)
