# SPDX-License-Identifier: GPL-2.0-only
"""What of the data path is in the kernel, as the control API shows it."""

from __future__ import annotations

from mrcd.datapath.attachment import Attachment, Hook
from mrcd.linux import bpf, bpfmap
from mrcd.model import SCHEMA_VERSION, DatapathReply, HookInfo, MapInfo, ProgramInfo
from mrcd.report.live import Live


class AttachedReport(Live):
    """Programs, where they are attached, and maps."""

    async def datapath(self) -> DatapathReply:
        """Return what is attached, loaded and pinned."""
        engine = self._engine
        dp = engine.datapath
        programs = sorted(dp.programs.items())
        return {
            "schema_version": SCHEMA_VERSION,
            "bpffs": str(dp.folder.parent),
            "hooks": await _hooks(engine.attachment, engine.hooks),
            "programs": [
                ProgramInfo(name=name, ident=bpf.prog_info(fd).ident) for name, fd in programs
            ],
            "maps": [_map(name, fd) for name, fd in sorted(dp.maps.items())],
        }


async def _hooks(attachment: Attachment | None, hooks: list[Hook]) -> list[HookInfo]:
    """Return the places of programs; without an attachment they are just being replaced."""
    found = {} if attachment is None else await attachment.found(hooks)
    ahead = {} if attachment is None else await attachment.ahead(hooks)
    return [
        HookInfo(
            interface=hook.interface,
            place="xdp" if hook.kind == "xdp" else hook.direction,
            program=hook.program,
            ident=found.get(hook.pin, (0, 0))[1] or None,
            before=list(ahead[hook.pin].names) if hook.pin in ahead else [],
        )
        for hook in hooks
    ]


def _map(name: str, fd: int) -> MapInfo:
    return MapInfo(
        name=name,
        ident=bpf.map_id(fd),
        entries=bpfmap.described(fd).entries,
        bytes=bpfmap.memory(fd),
    )
