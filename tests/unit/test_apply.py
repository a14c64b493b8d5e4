# SPDX-License-Identifier: GPL-2.0-only
"""Test applying configurations, confirmed, rolled back or refused, with a double of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from mrcd.config import admission, config
from mrcd.config.config import Config, ConfigError
from mrcd.config.diff import CannotApply
from mrcd.config.keyfiles import with_keys
from mrcd.daemon import Daemon, Places
from mrcd.fabric import description, digest
from mrcd.fabric.hosts import Host
from mrcd.handshake.identity import encode_key
from mrcd.peers.admitted import BURST, Admitted
from mrcd.service import log
from mrcd.service.notify import Notifier

USUAL = '[host]\nname = "h1"\nfabric = "fabric.toml"\n[keys]\ninsecure = true\n'
FASTER = USUAL + "[transport]\nprobe_pps = 500\n"
SLOWER = USUAL + "[transport]\nprobe_pps = 100\n"
WIDER = USUAL + "[transport]\nmpr = 1024\n"


class Engine:
    """A double that records the configurations it is asked to apply."""

    def __init__(self, running: Config) -> None:
        self.config = running
        self.refuses: Config | None = None
        self.room = True

    def fits(self, _config: Config) -> bool:
        return self.room

    async def apply(self, wanted: Config) -> None:
        self.config = wanted
        if wanted == self.refuses:
            raise OSError("the kernel refuses")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Daemon, Engine]]:
    log.configure("json", strict=True)
    (tmp_path / "fabric.toml").write_text(description.dumps(description.generate(hosts=3)))
    path = tmp_path / "mrcd.toml"
    path.write_text(USUAL)
    settings = config.load(path)
    daemon = Daemon(settings, Places(tmp_path / "s", tmp_path, tmp_path), Notifier({}))
    engine = Engine(settings)
    daemon.running.engine = cast(Any, engine)
    yield daemon, engine
    structlog.reset_defaults()


def pps(engine: Engine) -> int:
    return engine.config.transport.probe_pps


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


def test_diff__changes_nothing(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made
    (change,) = daemon.running.diff(FASTER).changes
    assert (change.path, change.old, change.new, change.how) == (
        "transport.probe_pps", "2000", "500", "live",
    )  # fmt: skip
    assert daemon.running.diff(USUAL).changes == []
    assert pps(engine) == 2000


def test_apply__without_confirmation_stays(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made

    async def work() -> None:
        changes = await daemon.running.apply(FASTER, 0)
        assert [change.path for change in changes.changes] == ["transport.probe_pps"]
        assert changes.confirm_s is None
        with pytest.raises(CannotApply):
            daemon.running.confirm()

    run(work())
    assert pps(engine) == 500


def test_apply__confirmed_stays(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made

    async def work() -> None:
        assert (await daemon.running.apply(FASTER, 1)).confirm_s == 1
        daemon.running.confirm()
        assert daemon.running._return is None

    run(work())
    assert pps(engine) == 500


def test_apply__not_confirmed_the_former_returns(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made

    async def work() -> None:
        await daemon.running.apply(FASTER, cast(int, 0.05))
        assert pps(engine) == 500
        await until(lambda: pps(engine) == 2000)
        with pytest.raises(CannotApply):
            daemon.running.confirm()

    run(work())
    assert daemon.running.config == engine.config


def test_apply__twice_unconfirmed_the_last_confirmed_returns(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made

    async def work() -> None:
        await daemon.running.apply(FASTER, 60)
        await daemon.running.apply(SLOWER, cast(int, 0.05))
        assert pps(engine) == 100
        await until(lambda: pps(engine) == 2000)

    run(work())


@pytest.mark.parametrize("text", ["[host\n", USUAL + "[transport]\nmpr = 3\ncolour = 1\n"])
def test_apply__bad_text_changes_nothing(made: tuple[Daemon, Engine], text: str) -> None:
    daemon, engine = made

    async def work() -> None:
        await daemon.running.apply(FASTER, 60)
        with pytest.raises(ConfigError):
            await daemon.running.apply(text, 60)
        assert daemon.running._former is not None  # it still waits to be confirmed
        daemon.running.confirm()

    run(work())
    with pytest.raises(ConfigError):
        daemon.running.diff(text)
    assert pps(engine) == 500


def test_apply__what_cannot_be_applied_leaves_the_former(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made
    engine.refuses = config.loads(FASTER, daemon.running.config.path)

    async def work() -> None:
        with pytest.raises(OSError, match="refuses"):
            await daemon.running.apply(FASTER, 0)

    run(work())
    assert pps(engine) == 2000
    assert daemon.running.config == engine.config


def test_apply__another_layout_is_the_next_engines(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made

    async def work() -> None:
        applied = asyncio.create_task(daemon.running.apply(WIDER, 0))
        await until(lambda: daemon.running._next is not None)
        assert engine.config.transport.mpr == 2048  # the running configuration is unchanged
        assert daemon.running._wake.is_set()
        assert daemon.running._restarted is not None
        daemon.running._restarted.set_result(None)
        assert {change.how for change in (await applied).changes} == {"restart"}

    run(work())


WIDER_SEEN = WIDER + '[metrics]\nlisten = "127.0.0.1:9971"\n'


async def restarted(daemon: Daemon) -> Config:
    """Do what `serve` does for the next engine; return its configuration."""
    running = daemon.running
    await until(lambda: running._next is not None)
    assert running._next is not None
    assert running._restarted is not None
    running.config, running._next = running._next, None
    running._restarted.set_result(None)
    return running.config


def test_apply__metrics_that_come_with_a_restart_are_served(made: tuple[Daemon, Engine]) -> None:
    daemon, _engine = made
    served: list[object] = []

    async def on_metrics() -> None:
        served.append(daemon.running.config.metrics.endpoint)

    async def work() -> None:
        daemon.running._on_metrics = on_metrics
        applied = asyncio.create_task(daemon.running.apply(WIDER_SEEN, 0))
        wanted = await restarted(daemon)
        await applied
        assert served == [wanted.metrics.endpoint] != [None]

    run(work())


def test_apply__metrics_that_cannot_be_served_undo_a_restart(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made

    async def on_metrics() -> None:
        if daemon.running.config.metrics.endpoint is not None:
            raise OSError("the address is in use")

    async def work() -> None:
        daemon.running._on_metrics = on_metrics
        applied = asyncio.create_task(daemon.running.apply(WIDER_SEEN, 0))
        await restarted(daemon)
        assert await restarted(daemon) == engine.config
        with pytest.raises(OSError, match="in use"):
            await applied

    run(work())
    assert daemon.running.config == engine.config


def test_reload__reads_the_file(made: tuple[Daemon, Engine]) -> None:
    daemon, engine = made

    async def work() -> None:
        daemon.running.config.path.write_text(FASTER)
        daemon.reload()
        await until(lambda: pps(engine) == 500)
        daemon.running.config.path.write_text("[host\n")
        daemon.reload()
        await until(lambda: not daemon._tasks)

    run(work())
    assert pps(engine) == 500
    assert not daemon.running.stopping


# ---- the watchdog


class Clock:
    """A clock with a limited number of beats."""

    def __init__(self, beats: int) -> None:
        self.left = beats

    def beats(self) -> int:
        self.left = max(0, self.left - 1)
        return self.left


@pytest.mark.parametrize(("beats", "fed"), [(4, 4), (0, 1)])
def test_watchdog__is_fed_only_while_the_clock_runs(
    made: tuple[Daemon, Engine], beats: int, fed: int
) -> None:
    daemon, engine = made
    engine.clock = Clock(beats)  # type: ignore[attr-defined]
    heard: list[str] = []

    class Recorder(Notifier):
        def alive(self) -> None:
            heard.append("alive")

    daemon._notifier = Recorder({"WATCHDOG_USEC": "6000"})

    async def work() -> None:
        feeding = asyncio.create_task(daemon._feed_watchdog())
        await asyncio.sleep(0.1)
        feeding.cancel()

    run(work())
    assert len(heard) == fed


def test_watchdog__that_nobody_wants_is_not_fed(made: tuple[Daemon, Engine]) -> None:
    daemon, _ = made
    run(asyncio.wait_for(daemon._feed_watchdog(), 1))


# ---- hosts that no file lists


KNOWING = USUAL.replace("insecure = true", 'secret_file = "s"\nadmit = true')
H9 = Host("h9", 2, 9, (ip_interface("10.99.0.9/24"),))


@pytest.fixture
def open_(made: tuple[Daemon, Engine], tmp_path: Path) -> tuple[Daemon, Engine]:
    """Return a daemon with a secret, which admits hosts."""
    daemon, engine = made
    (tmp_path / "s").write_text(encode_key(b"\x07" * 32) + "\n")
    (tmp_path / "s").chmod(0o600)
    (tmp_path / "s.d").mkdir()
    (tmp_path / "mrcd.toml").write_text(KNOWING)
    settings = with_keys(config.load(tmp_path / "mrcd.toml"))
    running = daemon.running
    running.config = engine.config = settings
    running.admitted = Admitted(tmp_path / "s.d")
    return daemon, engine


async def introduce(daemon: Daemon, *hosts: Host) -> list[str]:
    """Have hosts introduce themselves, wait for the decision, and return the refusals."""
    refused: list[str] = []
    for host in hosts:
        frame = digest.of_frame(daemon.running.config.fabric)
        daemon.running.introduced(host, frame, refused.append)
    await until(lambda: not daemon.running._admitting)
    return refused


def peers(engine: Engine) -> list[str]:
    return [peer.name for peer in engine.config.peers]


def test_admit__adds_a_peer_and_remembers_it(open_: tuple[Daemon, Engine]) -> None:
    daemon, engine = open_

    async def work() -> None:
        assert await introduce(daemon, H9) == []
        assert peers(engine) == ["h2", "h3", "h9"]
        assert daemon.running.admitted.hosts == (H9,)
        assert await introduce(daemon, replace(H9, port=10)) != []
        assert peers(engine) == ["h2", "h3", "h9"]
        await daemon.running.reload()
        assert peers(engine) == ["h2", "h3", "h9"], "a reload keeps it"
        assert "h9" not in daemon.running.text()
        assert daemon.running.diff(daemon.running.text()).changes == []

    run(work())
    (warning,) = daemon.running.admitted.warnings
    assert "`mrcctl peer forget h9`" in warning


def test_admit__many_at_once_in_one_change_within_the_pace(open_: tuple[Daemon, Engine]) -> None:
    daemon, engine = open_
    many = [Host(f"n{i}", 2, i, (ip_interface(f"10.99.0.{i}/24"),)) for i in range(10, 12 + BURST)]
    applied: list[int] = []
    apply = engine.apply

    async def counted(wanted: Config) -> None:
        applied.append(len(wanted.admitted))
        await apply(wanted)

    engine.apply = counted  # type: ignore[method-assign]

    async def work() -> None:
        assert await introduce(daemon, *many) == [], "the last ones are not refused, but wait"

    run(work())
    assert applied == [BURST]


def test_admit__no_host_rebuilds_a_data_path(open_: tuple[Daemon, Engine]) -> None:
    daemon, engine = open_
    engine.room = False

    async def work() -> None:
        (reason,) = await introduce(daemon, H9)
        assert "have no room" in reason

    run(work())
    assert peers(engine) == ["h2", "h3"]
    assert daemon.running.admitted.hosts == ()


def test_admit__what_the_engine_refuses_leaves_everything(open_: tuple[Daemon, Engine]) -> None:
    daemon, engine = open_
    engine.refuses = admission.with_host(daemon.running.config, H9)

    async def work() -> None:
        (reason,) = await introduce(daemon, H9)
        assert "the kernel refuses" in reason

    run(work())
    assert peers(engine) == ["h2", "h3"]
    assert daemon.running.admitted.hosts == ()


def test_admit__off_takes_nobody_and_keeps_who_is_in(open_: tuple[Daemon, Engine]) -> None:
    daemon, engine = open_

    async def work() -> None:
        await introduce(daemon, H9)
        path = daemon.running.config.path
        path.write_text(KNOWING.replace("admit = true", ""))
        await daemon.running.reload()
        assert peers(engine) == ["h2", "h3", "h9"]
        await introduce(daemon, Host("h10", 2, 10, (ip_interface("10.99.0.10/24"),)))
        assert peers(engine) == ["h2", "h3", "h9"]

    run(work())


def test_admit__unconfirmed_configuration_returns_with_it(open_: tuple[Daemon, Engine]) -> None:
    daemon, engine = open_

    async def work() -> None:
        await daemon.running.apply(KNOWING + "[transport]\nprobe_pps = 500\n", cast(int, 0.2))
        await introduce(daemon, H9)
        assert (pps(engine), peers(engine)) == (500, ["h2", "h3", "h9"])
        await until(lambda: pps(engine) == 2000)
        assert peers(engine) == ["h2", "h3", "h9"]

    run(work())


def test_forget__takes_an_admitted_host_out_and_no_other(open_: tuple[Daemon, Engine]) -> None:
    daemon, engine = open_

    async def work() -> None:
        await introduce(daemon, H9)
        with pytest.raises(CannotApply, match="h2 was not admitted"):
            await daemon.running.forget("h2")
        await daemon.running.forget("h9")
        assert peers(engine) == ["h2", "h3"]
        assert daemon.running.admitted.hosts == ()
        assert await introduce(daemon, replace(H9, port=10)) == [], "it may come back, changed"
        assert peers(engine) == ["h2", "h3", "h9"]

    run(work())


@pytest.mark.parametrize(
    ("listed", "left"),
    [
        (H9, ["h2", "h3", "h9"]),
        (replace(H9, port=10), ["h2", "h3", "h9"]),
        (replace(H9, name="h10"), ["h2", "h3", "h10"]),
    ],
)
def test_reload__the_file_counts_more(
    open_: tuple[Daemon, Engine], tmp_path: Path, listed: Host, left: list[str]
) -> None:
    daemon, engine = open_

    async def work() -> None:
        await introduce(daemon, H9)
        fabric = description.generate(hosts=3)
        fabric = replace(fabric, hosts=(*fabric.hosts, listed))
        (tmp_path / "fabric.toml").write_text(description.dumps(fabric))
        await daemon.running.reload()

    run(work())
    assert peers(engine) == left
    assert engine.config.peers[-1].host == listed
    assert daemon.running.admitted.hosts == ()
    assert (daemon.running.admitted.warnings == []) == (listed == H9)
