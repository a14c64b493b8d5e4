# SPDX-License-Identifier: GPL-2.0-only
"""The engine that runs now, and the change to another configuration.

A difference that the maps allow is applied to the running engine. Any other difference needs the
next engine, which `serve` builds; until then the caller of `apply` waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mrcd.config import admission, render
from mrcd.config import config as configuration
from mrcd.config.admission import Joined
from mrcd.config.config import Config
from mrcd.config.diff import CannotApply, needs_restart
from mrcd.config.diff import diff as differences
from mrcd.config.keyfiles import with_keys
from mrcd.datapath.detach import detach_with
from mrcd.engine.engine import Engine
from mrcd.engine.start import Start
from mrcd.fabric import network
from mrcd.fabric.cabling import Handed
from mrcd.fabric.hosts import Host
from mrcd.handshake import revocation
from mrcd.handshake.certificate import Certificate
from mrcd.handshake.identity import encode_key
from mrcd.handshake.invitation import Invitation
from mrcd.linux.netlink import Netlink
from mrcd.model import ConfigChanges
from mrcd.peers.admitted import Admitted
from mrcd.peers.discovering import Discovering
from mrcd.peers.meeting import Met, kept
from mrcd.peers.trust import Revoked, Ties, Trust
from mrcd.service.log import get_logger
from mrcd.service.tasks import Tasks

log = get_logger()

FULL = (
    "the maps of the data path have no room for it; a reload with a fabric file that lists it "
    "makes larger ones"
)
SAVE_AGAIN_S = 2.0
"""The time between two attempts to write the file of admitted hosts."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host that waits to be admitted, and how to refuse it."""

    host: Host
    frame: int
    refuse: Callable[[str], None]
    certificate: Certificate | None = None


class Running:
    """The engine of one daemon at any time, its configuration, and changes to both.

    Ask for `engine` each time it is needed: a restart of the data path replaces it.
    """

    def __init__(
        self,
        config: Config,
        state_dir: Path,
        bpffs: Path,
        tasks: Tasks,
        on_failure: Callable[[Exception], None],
        on_metrics: Callable[[], Awaitable[None]],
        cache_dir: Path | None = None,
    ) -> None:
        """`cache_dir` keeps compiled programs; None compiles at each start.

        `on_metrics` serves the metrics anew when [metrics] has changed.

        An error that it raises makes the change fail, and the former configuration return.
        """
        self.config = config
        self.bpffs = bpffs
        self.engine: Engine
        self.stopping = False
        self.restarting = False  # compiling takes seconds, in which no clock runs
        self._state_dir = state_dir
        self._cache_dir = cache_dir
        self._tasks = tasks
        self._on_failure = on_failure
        self._on_metrics = on_metrics
        self._nl: Netlink
        self._wake = asyncio.Event()
        self._changing = asyncio.Lock()
        self._next: Config | None = None  # for the next engine
        self._restarted: asyncio.Future[None] | None = None
        self._former: Config | None = None  # returns unless the running one is confirmed
        self._return: asyncio.TimerHandle | None = None
        self.admitted = Admitted(state_dir)
        self._candidates: dict[str, Candidate] = {}
        self._admitting = False
        self._ways: dict[str, Met] = {}  # to be gone by from now on ...
        self._handed: tuple[Handed, ...] = ()  # ... and what is handed on for others
        self._following = False
        ties = Ties(
            certificates=lambda: self.admitted.certificates,
            send=self._send,
            peers=lambda: self.engine.peers.established,
            changed=lambda: self._tasks.spawn(self._take_own_keys()),
            out=lambda names: self._tasks.spawn(self._cut(names)),
            hurry=lambda: self.discovering.begin(),
            refused=self.admitted.refuse,
        )
        self.trust = Trust(state_dir, lambda: self.config, ties, self.admitted.findings)
        self.discovering = Discovering(
            self._in_force, self._met, self._left, self._found, self.trust, tasks, self._leads
        )

    def _in_force(self) -> Config:
        """Return the configuration with the addresses that are known now."""
        engine: Engine | None = getattr(self, "engine", None)
        return self.config if engine is None else engine.config

    async def _leads(self, nic: str, address: str, source: str) -> bool:
        return await self._nl.leads(nic, address, source)

    # ---- engines

    async def start(self, nl: Netlink) -> None:
        """Start the first engine. Raise what prevents it, with everything new removed again."""
        self._nl = nl
        self.admitted.load()
        self.trust.load()
        self.config = self.trust.completed(self.config)
        self.admitted.drop(self.trust.outsiders([host.name for host in self.admitted.hosts]))
        self.config = self._settled(self.config)
        await self._start_engine()
        self.discovering.start()
        self._tasks.spawn(self._save_again())

    async def _start_engine(self) -> None:
        start = Start(
            self._nl,
            self.config,
            self.bpffs,
            self._state_dir,
            self._on_failure,
            self._cache_dir,
            self,
            self.admitted.findings,
        )
        try:
            self.engine = await start.run()
            self.engine.surveying.seen = self._seen
        except BaseException:
            await start.close()
            if start.made:
                await self._take_down()
            raise
        self.engine.peers.on_message(revocation.MAGIC, self.trust.receive)

    def stop(self) -> None:
        """Make `serve` return soon."""
        self.stopping = True
        self._wake.set()

    async def serve(self) -> None:
        """Run one engine after another until stop()."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.stopping:
                return
            if self._next is not None:
                await self._restart_engine()

    async def _restart_engine(self) -> None:
        """Build the data path anew for `_next`; if that fails, for the former configuration."""
        former, self.config, self._next = self.config, self._next or self.config, None
        waiting, self._restarted = self._restarted, None
        log.info("datapath.restarting")
        self.restarting = True
        await self.engine.close()
        try:
            await self._start_engine()
        except Exception as error:
            self.config = former
            await self._start_engine()
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        else:
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        finally:
            self.restarting = False
            self.engine.made = False

    async def end(self, policy: str) -> None:
        """Let go of the data path as a policy of [service] on_stop says: keep, drain or detach."""
        self.stopping = True
        if self._restarted is not None and not self._restarted.done():
            self._restarted.set_exception(CannotApply("mrcd is ending"))
        if self._return is not None:
            self._return.cancel()
        if policy == "drain" and not await self.engine.drain():
            log.warning("drain.incomplete")
        if policy != "keep":  # not before: who hears it acknowledges nothing more
            self.discovering.leave()
        self.discovering.close()
        await self.engine.close()
        if policy != "keep":
            await self._take_down()

    async def _take_down(self) -> None:
        """Remove programs, pins and interfaces of this daemon."""
        report = await detach_with(self._nl, self.bpffs)
        if report.detached or report.failed:
            log.info("datapath.detached", removed=len(report.detached), failed=report.failed)

    # ---- the configuration

    def text(self) -> str:
        """Return the running configuration as TOML."""
        return render.render(self.engine.config)

    def diff(self, text: str) -> ConfigChanges:
        """Return what a configuration would change. ConfigError lists every problem it has."""
        return self._diff(self._read(text))

    def _read(self, text: str) -> Config:
        return self._joined(with_keys(configuration.loads(text, self.config.path))).config

    def _diff(self, wanted: Config) -> ConfigChanges:
        return differences(self.config, wanted, fits=self.engine.fits(wanted))

    async def reload(self) -> None:
        """Apply the configuration file as it is now. ConfigError lists every problem it has."""
        files = with_keys(configuration.load(self.config.path))
        async with self._changing:
            self._forget_former()
            await self._change(self._joined(files).config)
            self._settled(files)

    async def apply(self, text: str, confirm_s: int) -> ConfigChanges:
        """Make a configuration the running one; the file stays as it is.

        Unless `confirm_s` is 0, the former one returns after that time if `confirm` is not called.
        ConfigError lists every problem of the text; any error leaves the former one running.
        """
        wanted = self._read(text)
        async with self._changing:
            former = self._former or self.config
            self._forget_former()
            changes = await self._change(wanted)
            if confirm_s > 0 and former != wanted:
                self._former = former
                loop = asyncio.get_running_loop()
                self._return = loop.call_later(confirm_s, self._return_to_former)
                return replace(changes, confirm_s=confirm_s)
            return changes

    def confirm(self) -> None:
        """Keep the configuration that was applied last. CannotApply when none waits."""
        if self._former is None:
            raise CannotApply("no configuration waits to be confirmed")
        self._forget_former()

    def _forget_former(self) -> None:
        self._former = None
        if self._return is not None:
            self._return.cancel()
            self._return = None

    def _return_to_former(self) -> None:
        self._tasks.spawn(self._take_former())

    async def _take_former(self) -> None:
        async with self._changing:
            former = self._former
            self._forget_former()
            if former is not None:
                log.warning("config.returned", reason="not confirmed in time")
                await self._change(self._joined(former).config)

    async def _change(self, wanted: Config) -> ConfigChanges:
        changes = self._diff(wanted)
        if needs_restart(changes):
            former = self.config
            await self._restart_with(wanted)
            if wanted.metrics != former.metrics:
                try:
                    await self._on_metrics()
                except Exception:
                    await self._restart_with(former)
                    await self._on_metrics()
                    raise
        else:
            await self._apply_live(wanted)
        for change in changes.changes:
            log.info("config.changed", path=change.path, old=change.old, new=change.new,
                     how=change.how)  # fmt: skip
        return changes

    async def _restart_with(self, wanted: Config) -> None:
        """Have `serve` build the data path anew for a configuration; raise what it raises."""
        self._next = wanted
        self._restarted = waiting = asyncio.get_running_loop().create_future()
        self._wake.set()
        await waiting

    async def _apply_live(self, wanted: Config) -> None:
        former = self.config
        try:
            await self.engine.apply(wanted)
            self.config = wanted
            if wanted.metrics != former.metrics:
                await self._on_metrics()
        except Exception:
            self.config = former
            await self.engine.apply(former)
            if wanted.metrics != former.metrics:
                await self._on_metrics()
            raise

    # ---- hosts that no file lists

    def _joined(self, config: Config) -> Joined:
        """Return a configuration with the hosts that are admitted now."""
        files = self.trust.completed(admission.without_admitted(config))
        found = admission.joined(files, self.trust.counted(files, self.admitted.hosts))
        return replace(found, config=self._with_ways(found.config))

    def _settled(self, files: Config) -> Config:
        """Return what the files say with the admitted hosts; forget those that they replace."""
        found = self._joined(files)
        for name in found.listed:
            log.info("host.listed", host=name)
        for name, reason in found.left_out.items():
            self.admitted.refuse(name, reason)
        self.admitted.drop([*found.listed, *found.left_out])
        return found.config

    def introduced(self, host: Host, frame: int, refuse: Callable[[str], None]) -> None:
        """Take a host that knows the secret as a peer, soon, or refuse it."""
        self._propose(Candidate(host, frame, refuse))

    def _propose(self, candidate: Candidate) -> None:
        host = candidate.host
        if self._refused(candidate, self.config) or host.name in self._candidates:
            return
        if not self.admitted.may(now_ns=time.monotonic_ns()):
            return  # it is asked again
        self._candidates[host.name] = candidate
        if not self._admitting:
            self._admitting = True
            self._tasks.spawn(self._admit())

    def _met(self, met: Met) -> None:
        """Take a host that was found as a peer, soon, or tell it why not."""
        if met.name in self.config.by_name:
            return  # it is being added, or taken out, right now
        networks = [address.network for address in self.config.mrc0.addresses]
        host = met.at(network.found(met.name, met.endpoints, met.inner, networks))
        if any(address.network not in networks for address in host.addresses):
            ours = " ".join(map(str, networks))
            reason = f"{met.name}'s addresses {' '.join(met.inner)} are not all in {ours}"
            self.discovering.meeting.refuse(met.name, reason)
            return

        def refuse(why: str) -> None:
            self.discovering.meeting.refuse(met.name, why)

        if met.ready:
            shown = self.trust.certificate_of(met.name)
            if shown is not None:
                self._propose(self._known_by(shown, Candidate(host, 0, refuse)))
        elif (why := admission.why_not(self.config, host, 0)) is not None:
            refuse(why)

    def _seen(self) -> Mapping[str, set[tuple[int, int]]] | None:
        """Return which NICs of others are heard on which of ours; None where nobody forwards."""
        meeting = self.discovering.meeting
        return meeting.seen() if self.config.keys.discover and meeting.whole else None

    def _found(self, ways: Sequence[Met], handed: tuple[Handed, ...]) -> None:
        """Go by these ways to peers, and hand this on for others, soon."""
        self._ways |= {met.name: met for met in ways}
        self._handed = handed
        if not self._following and self._otherwise() != self.config:
            self._following = True
            self._tasks.spawn(self._follow_ways())

    def _otherwise(self) -> Config:
        """Return the configuration with what was found."""
        return self._with_ways(self.config)

    def _with_ways(self, config: Config) -> Config:
        """Return a configuration in which admitted hosts are where they were found."""
        hosts = []
        for name in config.admitted:
            peer, met = config.by_name[name].host, self._ways.get(name)
            if met is not None and len(met.endpoints) == config.fabric.planes:
                hosts.append(kept(peer, met.at(peer)))
        return replace(admission.with_ways(config, hosts), handed=self._handed)

    async def _follow_ways(self) -> None:
        try:
            async with self._changing:
                while (wanted := self._otherwise()) != self.config and not self.stopping:
                    before = self.config
                    await self._change(wanted)
                    moved = [p.host for p in wanted.peers if before.by_name.get(p.name) != p]
                    self.admitted.moved(moved)
                    for host in moved:
                        log.info("host.found", host=host.name, planes=_found_on(host))
        except Exception as error:  # the former configuration is in force again
            log.warning("host.not_followed", error=str(error))
        finally:
            self._following = False

    def _known_by(self, shown: Certificate, candidate: Candidate) -> Candidate:
        """Return a candidate with its key, unless that follows from a secret which we know."""
        ring = self.config.keyring
        if shown.how == "secret" and ring is not None and ring.secret is not None:
            return candidate
        host = replace(candidate.host, public_key=encode_key(shown.exchange))
        return replace(candidate, host=host, certificate=shown)

    def _left(self, name: str) -> None:
        if name in self.config.admitted:
            self._tasks.spawn(self._farewell(name))

    async def _farewell(self, name: str) -> None:
        """Take a host that has said that it goes out of the peers."""
        with contextlib.suppress(CannotApply):  # it was taken out meanwhile
            await self.forget(name)

    def elsewhere(self, peer: str, place: tuple[int, int]) -> None:
        """Note that a host with the name of a peer asks from another place."""
        host = next((each.host for each in self.config.peers if each.name == peer), None)
        if host is None:
            return
        remedy = (
            f"if {peer} has moved, run `mrcctl peer forget {peer}`"
            if peer in self.config.admitted
            else "correct one of the two fabric files"
        )
        self.admitted.refuse(
            peer,
            f"{peer} asks from port {place[1]} of T0 {place[0]}, and is at port {host.port} of T0 "
            f"{host.t0} {admission.known_by(self.config, peer)}; {remedy}",
        )

    def _refused(self, candidate: Candidate, config: Config) -> bool:
        """Refuse a candidate that a configuration has no place for."""
        if not config.keys.admit and not config.keys.discover:
            return True  # it was switched off a moment ago
        reason = admission.why_not(config, candidate.host, candidate.frame)
        if reason is not None:
            self._refuse(candidate, reason)
        return reason is not None

    def _refuse(self, candidate: Candidate, reason: str) -> None:
        self.admitted.refuse(candidate.host.name, reason)
        candidate.refuse(reason)

    async def _admit(self) -> None:
        """Admit those that wait, together; more may come meanwhile."""
        try:
            async with self._changing:
                while self._candidates and not self.stopping:
                    waiting, self._candidates = list(self._candidates.values()), {}
                    await self._admit_all(waiting)
        finally:
            self._admitting = False

    async def _admit_all(self, waiting: list[Candidate]) -> None:
        wanted, taken = self.config, []
        for each in waiting:
            if wanted.keys.discover and each.host.name in wanted.by_name:
                continue  # it was found again while it was being added
            if self._refused(each, wanted) or self._is_out(each.certificate):
                continue
            more = admission.with_host(wanted, each.host)
            if needs_restart(self._diff(more)) and not wanted.keys.discover:
                self._refuse(each, FULL)
                continue
            wanted = more
            taken.append(each)
            self._ways.pop(each.host.name, None)  # those of an earlier time
        if not taken:
            return
        try:
            await self._change(wanted)
        except Exception as error:  # the former configuration is in force again
            for each in taken:
                self._refuse(each, f"it could not be added: {error}")
            return
        shown = {e.host.name: e.certificate.statement for e in taken if e.certificate is not None}
        self.admitted.add((each.host for each in taken), shown)
        for each in taken:
            host = each.host
            addresses = " ".join(map(str, host.addresses))
            log.info("host.admitted", host=host.name, t0=host.t0, port=host.port,
                     addresses=addresses)  # fmt: skip

    async def forget(self, name: str) -> None:
        """Take an admitted host out of the peers. CannotApply if no host of this name is."""
        async with self._changing:
            if name not in self.config.admitted:
                raise CannotApply(
                    f"{name} was not admitted, but is in the files; take it out of the fabric "
                    "file, or remove its [[peer]], and reload"
                )
            await self._change(admission.without(self.config, [name]))
            self.admitted.drop([name])
            log.info("host.forgotten", host=name)

    async def _save_again(self) -> None:
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            self.admitted.save_again()
            self.trust.save_again()

    # ---- invitations and revocations

    def invite(self, name: str, hours: float) -> Invitation:
        """Make an invitation for a host. CannotApply, with the reason, if that cannot be."""
        return self.trust.invite(name, hours)

    async def revoke(self, name: str, *, force: bool) -> Revoked:
        """Revoke a host, here and on all others. CannotApply, with the reason, if not."""
        done = self.trust.revoke(name, force=force)
        await self._cut([name])
        return done

    def _send(self, peer: str, message: bytes) -> None:
        if self.restarting:
            return
        for plane in self.engine.peers.usable_planes(peer):
            self.engine.peers.send(peer, plane, message)

    def _is_out(self, certificate: Certificate | None) -> bool:
        return certificate is not None and self.trust.revocations.of(certificate) is not None

    async def _cut(self, names: list[str]) -> None:
        """End the sessions of hosts that were revoked."""
        async with self._changing:
            gone = self.trust.outsiders(names)
            if {*gone} & {*self.config.admitted}:
                await self._change(admission.without(self.config, gone))
            self.admitted.drop(gone)

    async def _take_own_keys(self) -> None:
        """Use the keys that this host has got for its invitation."""
        async with self._changing:
            await self._change(self._joined(self.config).config)
        self.discovering.begin()


def _found_on(host: Host) -> str:
    """Return by which planes a host is reached, and those by way of others or in need only."""
    shown = []
    for plane, _end in host.places:
        through = "" if host.via(plane) is None else " through another host"
        shown.append(f"{plane}{through}{', spare' if host.spare >> plane & 1 else ''}")
    return "; ".join(shown)
