# SPDX-License-Identifier: GPL-2.0-only
"""What a configuration allows the daemon to have done for it.

The privileged process runs this module without capabilities
(`python -m mrcd.config.permits CONFIG BPFFS`) when the files have changed, and reads the permits
from its standard output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mrcd.config import config as configuration
from mrcd.config.config import Config, ConfigError
from mrcd.fabric import underlay
from mrcd.linux.privileged.permits import PREFIX_MIN, Permits, Plane


def permits_of(config: Config, folder: str) -> Permits:
    """Return what a configuration calls for. `folder` is the bpffs folder of the daemon."""
    return Permits(
        mrc0=config.mrc0.name,
        planes={name: _plane(config, index) for index, name in enumerate(config.interfaces)},
        prefixes=tuple(
            str(prefix)
            for peer in config.peers
            for prefix in peer.allowed
            if prefix.prefixlen < PREFIX_MIN[prefix.version]
        ),
        folder=folder,
        files=(str(config.path), str(config.fabric_path)),
    )


def _plane(config: Config, index: int) -> Plane:
    if not config.fabric.described:
        named = config.nics[index].address
        return Plane(None if named is None else str(named), None, None)
    across, host = underlay.in_fabric(config.fabric), config.host
    return Plane(
        address=f"{across.address(host, index)}/{across.on_link(host, index).prefixlen}",
        route=str(across.destinations(index)),
        gateway=str(across.gateway(host, index)),
    )


def main() -> int:
    """Print the permits of the configuration file that the arguments name."""
    path, folder = sys.argv[1:]
    try:
        print(permits_of(configuration.load(Path(path)), folder).dumps())
    except ConfigError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
