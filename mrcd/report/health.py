# SPDX-License-Identifier: GPL-2.0-only
"""What is wrong with the daemon, its planes and its peers: everything that shows health asks here.

`mrcctl status`, `plane list`, `top`, the metrics and `doctor` thereby say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrcd.engine.engine import Engine
from mrcd.fabric import underlay
from mrcd.report import peers, reach


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong, from what every layer knows.

    planes: by plane, why it does not carry what it should. unreached: by plane, the number of
    peers that are up and that no path of it gets through to. swallowed: by plane, the number of
    those to which it loses data and answers probes. reasons: everything, in sentences.
    """

    planes: Mapping[int, str]
    unreached: Mapping[int, int]
    swallowed: Mapping[int, int]
    reasons: Sequence[str]


def examine(engine: Engine) -> Health:
    """Return what is wrong now."""
    links = {}
    for plane in engine.planes.planes:
        why = plane.why_unused(gateway(engine, plane.index))
        if why is not None:
            links[plane.index] = why
        elif plane.sick is not None:
            links[plane.index] = f"{plane.sick}; used for want of another"
    neighbors, paths = reach.without_neighbor(engine), reach.without_path(engine)
    swallowed = reach.swallowed(engine)
    data = {k: text for k, text in reach.without_data(swallowed).items() if k not in links}
    said = _named({plane: paths.wrong[plane] for plane in data.keys() & paths.wrong.keys()})
    return Health(
        planes={**paths.wrong, **data, **neighbors, **links},
        unreached=paths.unreached,
        swallowed={plane: len(lost) for plane, lost in swallowed.items()},
        reasons=[
            *_named(links),
            *engine.findings.lines,
            *engine.beside.lines,
            *_named(neighbors),
            *_named(data),
            *(line for line in paths.lines if line not in said),
            *peers.reasons(engine),
        ],
    )


def gateway(engine: Engine, plane: int) -> str | None:
    """Return a plane's gateway; None without a fabric, where each peer has its next hop."""
    found = underlay.of(engine.config.fabric).gateway(engine.config.host, plane)
    return None if found is None else str(found)


def _named(wrong: Mapping[int, str]) -> list[str]:
    return [f"plane {plane}: {text}" for plane, text in wrong.items()]
