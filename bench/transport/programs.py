# SPDX-License-Identifier: GPL-2.0-only
"""Run programs that nobody here wrote over mrc0 while a plane dies silently.

python -m bench.transport.programs [--only NAME ...] [--rate 250]     (as root)

In a lab of two hosts and four planes each program runs for ten seconds; after three a plane is
black-holed, after seven it is back. A row says what the program did, whether it complained, the
longest time in which it got nothing where it says so itself, and what the kernels of both hosts
counted meanwhile: TCP's retransmissions, datagrams that a socket had no room for, and packets of
TCP and UDP with wrong checksums. A program that is not installed is named and left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.instruments import entry
from bench.instruments.running import running
from cli.lab import processes
from rigs import lab_hosts
from rigs.running_lab import RunningLab

NAME: Final = "programs"
SERVER, CLIENT = "h1", "h2"
ADDRESS: Final = "10.99.0.1"
LASTS_S: Final = 10
DIES_S, BACK_S = 3.0, 7.0
PLANE: Final = "p1"
_AGAIN, _FULL = "TcpRetransSegs", "UdpRcvbufErrors"
_SUMS: Final = ("TcpInCsumErrors", "UdpInCsumErrors")
_COUNTS: Final = (_AGAIN, _FULL, *_SUMS)
_READY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a program did. gap_s: the longest time in which it got nothing, if it says so."""

    what: str
    gap_s: float | None = None
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """The lab, and a folder for files."""

    lab: RunningLab
    folder: Path

    def inside(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a program in a host."""
        namespace = self.lab.namespace(host)
        return processes.spawn(namespace, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @contextlib.contextmanager
    def serving(self, *command: str, port: int = 0, udp: bool = False) -> Iterator[None]:
        """Run a server on the serving host for the time of a block, once it listens on a port."""
        process = self.inside(SERVER, *command)
        try:
            listens = ("ss", "-Huln" if udp else "-Htln", f"sport = :{port}")
            if port:
                lab_hosts.eventually(
                    lambda: self.lab.run(SERVER, *listens).strip(), f"{command[0]}", _READY_S
                )
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()

    def ask(self, *command: str, within_s: float = 40.0) -> tuple[int, str]:
        """Run a client; return its exit status and all that it printed."""
        process = self.inside(CLIENT, *command)
        try:
            said, _ = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return -1, "did not end"
        return process.returncode, said.decode(errors="replace")

    def counts(self) -> dict[str, int]:
        """Return what the kernels of both hosts have counted."""
        found: dict[str, int] = dict.fromkeys(_COUNTS, 0)
        for host in (SERVER, CLIENT):
            said = json.loads(self.lab.run(host, "nstat", "-asz", "--json", *_COUNTS))
            for name in _COUNTS:
                found[name] += said["kernel"][name]
        return found


def _refused(status: int, said: str) -> str:
    return "" if status == 0 else f"exit {status}: {said.strip()[-200:]}"


# ---- the programs


def _iperf3(*more: str) -> Callable[[Bench], Said]:
    """Return what runs iperf3 with these options, whose intervals are a tenth of a second."""

    def run(bench: Bench) -> Said:
        with bench.serving("iperf3", "-s", "-p", "5300", port=5300):
            status, said = bench.ask(
                "iperf3", "-c", ADDRESS, "-p", "5300", "-t", str(LASTS_S), "-i", "0.1", "-J", *more
            )
        try:
            found: dict[str, Any] = json.loads(said)
        except ValueError:
            return Said("no result", wrong=_refused(status, said) or said[-200:])
        wrong = found.get("error", "") or _refused(status, said)
        if "end" not in found or not found["end"].get("streams"):
            return Said("no result", wrong=wrong or "nothing was sent")
        return Said(_goodput(found), _silence(found), wrong)

    return run


def _goodput(found: dict[str, Any]) -> str:
    end = found["end"]
    if "lost_percent" in end.get("sum", {}):
        return _datagrams({**end["sum"], **end.get("sum_received", {})})
    there = end["sum_received"]["bits_per_second"] / 1e6
    back = end.get("sum_received_bidir_reverse", {}).get("bits_per_second")
    return f"{there:.0f} Mb/s" + ("" if back is None else f" there, {back / 1e6:.0f} back")


def _datagrams(end: dict[str, Any]) -> str:
    rate, lost = end["bits_per_second"] / 1e6, end["lost_packets"]
    return f"{rate:.0f} Mb/s, {lost} of {end['packets']} lost"


def _silence(found: dict[str, Any]) -> float:
    """Return the longest run of intervals in which nothing was sent, in seconds."""
    longest = here = 0.0
    for interval in found["intervals"]:
        here = here + 0.1 if interval["sum"]["bytes"] == 0 else 0.0
        longest = max(longest, here)
    return longest


def _nginx(bench: Bench) -> Said:
    """Fetch a file again and again by HTTP; each has to arrive as it is."""
    site = bench.folder / "site"
    site.mkdir(exist_ok=True)
    (site / "file").write_bytes(bytes(range(256)) * 4096)
    config = bench.folder / "nginx.conf"
    config.write_text(
        f"daemon off; master_process off; pid {bench.folder}/nginx.pid; error_log stderr;\n"
        "events {}\n"
        "http { access_log off; sendfile on; "
        f"server {{ listen {ADDRESS}:8080; root {site}; }} }}\n"
    )
    digest = subprocess.run(
        ["sha256sum", site / "file"], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    script = (
        f"end=$((SECONDS+{LASTS_S})); n=0; bad=0; worst=0\n"
        "while [ $SECONDS -lt $end ]; do\n"
        f"  t=$(date +%s%N); s=$(curl -sf http://{ADDRESS}:8080/file | sha256sum | cut -c1-64)\n"
        f"  t=$((($(date +%s%N)-t)/1000000)); [ $s = {digest} ] || bad=$((bad+1))\n"
        "  [ $t -gt $worst ] && worst=$t; n=$((n+1))\n"
        "done; echo $n $bad $worst\n"
    )
    with bench.serving("nginx", "-c", str(config), port=8080):
        status, said = bench.ask("bash", "-c", script)
    if status or not re.fullmatch(r"\d+ \d+ \d+\s*", said):
        return Said("no result", wrong=_refused(status, said) or said)
    count, bad, worst = map(int, said.split())
    wrong = f"{bad} files differ" if bad else ""
    return Said(f"{count} files of 1 MiB, the slowest {worst} ms", None, wrong)


def _keys(bench: Bench) -> tuple[Path, Path]:
    """Return a host's key and a user's, which the host accepts."""
    own, mine = bench.folder / "host_key", bench.folder / "user_key"
    for key in (own, mine):
        if not key.exists():
            subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", key], check=True)
    return own, mine


@contextlib.contextmanager
def _sshd(bench: Bench) -> Iterator[list[str]]:
    """Run sshd; yield the command that reaches it."""
    own, mine = _keys(bench)
    config = bench.folder / "sshd_config"
    config.write_text(
        f"Port 2222\nListenAddress {ADDRESS}\nHostKey {own}\nAuthorizedKeysFile {mine}.pub\n"
        f"StrictModes no\nUsePAM no\nPidFile {bench.folder}/sshd.pid\nPermitRootLogin yes\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with bench.serving("/usr/sbin/sshd", "-D", "-f", str(config), port=2222):
        yield [
            "ssh", "-q", "-p", "2222", "-i", str(mine), "-o", "StrictHostKeyChecking=no",
            "-o", "UserKnownHostsFile=/dev/null", "-o", "ServerAliveInterval=1",
            "-o", "ServerAliveCountMax=3",
        ]  # fmt: skip


def _ssh(bench: Bench) -> Said:
    """Have a remote shell say something ten times a second, and time its lines here."""
    with _sshd(bench) as ssh:
        words = f"for i in $(seq {10 * LASTS_S}); do echo $i; sleep 0.1; done"
        process = bench.inside(CLIENT, *ssh, ADDRESS, words)
        assert process.stdout is not None
        times = [time.monotonic() for _line in process.stdout]
        status = process.wait(20)
    gap = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
    whole = len(times) == 10 * LASTS_S
    wrong = "" if whole and status == 0 else f"exit {status} after {len(times)} lines"
    return Said(f"{len(times)} lines, ten a second", gap, wrong)


def _rsync(bench: Bench) -> Said:
    """Copy files by rsync over ssh, and compare them."""
    source, target = bench.folder / "source", bench.folder / "target"
    source.mkdir(exist_ok=True)
    size = 96 << 20
    for number in range(8):
        (source / f"file{number}").write_bytes(os.urandom(size // 8))
    shutil.rmtree(target, ignore_errors=True)
    with _sshd(bench) as ssh:
        began = time.monotonic()
        status, said = bench.ask(
            "rsync", "-a", f"--bwlimit={size // LASTS_S // 1024}", "-e", " ".join(ssh),
            f"{ADDRESS}:{source}/", f"{target}/",
        )  # fmt: skip
        took = time.monotonic() - began
    same = subprocess.run(["diff", "-r", source, target], capture_output=True, check=False)
    wrong = _refused(status, said) or ("" if same.returncode == 0 else "files differ")
    return Said(f"{size >> 20} MiB in {took:.1f} s, held to {LASTS_S}", None, wrong)


def _dns(bench: Bench) -> Said:
    """Ask dnsmasq for names, one after another, by UDP; dig tries each once, for a second."""
    script = (
        f"end=$((SECONDS+{LASTS_S})); n=0; bad=0\n"
        "while [ $SECONDS -lt $end ]; do n=$((n+1))\n"
        f'  [ "$(dig +short +tries=1 +time=1 @{ADDRESS} -p 5353 host.example)" = 192.0.2.7 ]'
        " || bad=$((bad+1))\n"
        "done; echo $n $bad\n"
    )
    with bench.serving(
        "dnsmasq", "-k", "-p", "5353", "-a", ADDRESS, "-z", "-R", "-h", "-C", "/dev/null",
        "--host-record=host.example,192.0.2.7", "--user=root", port=5353, udp=True,
    ):  # fmt: skip
        status, said = bench.ask("bash", "-c", script)
    if status or not re.fullmatch(r"\d+ \d+\s*", said):
        return Said("no result", wrong=_refused(status, said) or said)
    count, bad = map(int, said.split())
    return Said(f"{count} names", None, f"{bad} without an answer in 1 s" if bad else "")


def _sockperf(bench: Bench) -> Said:
    """Have sockperf ask and answer over UDP; its worst round trip is the gap."""
    with bench.serving("sockperf", "server", "-i", ADDRESS, "-p", "5301", port=5301, udp=True):
        status, said = bench.ask(
            "sockperf", "ping-pong", "-i", ADDRESS, "-p", "5301", "-t", str(LASTS_S), "-m", "200"
        )
    median = re.search(r"percentile 50.000 = +([\d.]+)", said)
    worst = re.search(r"<MAX> observation = +([\d.]+)", said)
    lost = re.search(r"# dropped messages = (\d+)", said)
    if status or not (median and worst and lost):
        return Said("no result", wrong=_refused(status, said) or said[-200:])
    wrong = f"{lost[1]} messages lost" if int(lost[1]) else ""
    return Said(f"half a round trip {float(median[1]):.0f} us", 2e-6 * float(worst[1]), wrong)


def _quic(bench: Bench) -> Said:
    """Receive a QUIC stream by aioquic."""
    certificate, key = bench.folder / "quic.pem", bench.folder / "quic.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=bench", "-keyout", key, "-out", certificate],
        capture_output=True, check=True,
    )  # fmt: skip
    ends = (sys.executable, str(Path(__file__).with_name("quic_ends.py")))
    with bench.serving(
        *ends, "serve", ADDRESS, "5302", str(certificate), str(key), port=5302, udp=True
    ):
        status, said = bench.ask(*ends, "fetch", ADDRESS, "5302", str(LASTS_S))
    try:
        found = json.loads(said)
    except ValueError:
        return Said("no result", wrong=_refused(status, said) or said[-200:])
    return Said(f"{found['bytes'] / 1e6:.0f} MB", found["longest_s"], found["ended"])


def _tcpdump(bench: Bench) -> Said:
    """Record what arrives at mrc0 beside a transfer, and have tcpdump check it when it is read.

    A veth leaves checksums to a NIC that is not there; here the hosts' kernels compute them.
    """
    file = bench.folder / "mrc0.pcap"
    _checksums_by_nics(bench, on=False)
    tracer = bench.inside(SERVER, "tcpdump", "-ni", "mrc0", "-w", str(file), "-s", "0", "-Q", "in",
                          "-c", "20000", "tcp port 5303")  # fmt: skip
    with bench.serving("iperf3", "-s", "-p", "5303", port=5303):
        bench.ask("iperf3", "-c", ADDRESS, "-p", "5303", "-t", str(LASTS_S))
    tracer.terminate()
    tracer.wait(10)
    _checksums_by_nics(bench, on=True)
    read = subprocess.run(
        ["tcpdump", "-nvvr", file], capture_output=True, text=True, check=False
    ).stdout
    right, wrong = read.count("(correct)"), read.count("(incorrect")
    return Said(f"{right} packets with right checksums", None, f"{wrong} wrong" if wrong else "")


def _checksums_by_nics(bench: Bench, *, on: bool) -> None:
    for host in (SERVER, CLIENT):
        for plane in range(bench.lab.fabric.planes):
            bench.lab.run(host, "ethtool", "-K", f"plane{plane}", "tx", "on" if on else "off")


PROGRAMS: Final[dict[str, tuple[str, Callable[[Bench], Said]]]] = {
    "iperf3": ("iperf3", _iperf3()),
    "iperf3 -P 4": ("iperf3", _iperf3("-P", "4")),
    "iperf3 -R": ("iperf3", _iperf3("-R")),
    "iperf3 --bidir": ("iperf3", _iperf3("--bidir")),
    "iperf3 -Z": ("iperf3", _iperf3("-Z")),
    "iperf3 -u -b 300M": ("iperf3", _iperf3("-u", "-b", "300M")),
    "iperf3 -u, GSO": ("iperf3", _iperf3("-u", "-b", "300M", "-l", "1200")),
    "nginx, curl": ("nginx", _nginx),
    "ssh": ("/usr/sbin/sshd", _ssh),
    "rsync": ("rsync", _rsync),
    "dnsmasq, dig": ("dnsmasq", _dns),
    "sockperf": ("sockperf", _sockperf),
    "QUIC (aioquic)": ("", _quic),
    "tcpdump": ("tcpdump", _tcpdump),
}


def missing(name: str) -> str | None:
    """Return what a program lacks on this machine, or None."""
    needs = PROGRAMS[name][0]
    if needs:
        return None if shutil.which(needs) else f"{needs} is not installed"
    return None if importlib.util.find_spec("aioquic") else "aioquic is not installed"


@contextlib.contextmanager
def dying(lab: RunningLab) -> Iterator[None]:
    """Have a plane die, and come back, during a block."""
    over = threading.Event()

    def work() -> None:
        if not over.wait(DIES_S):
            lab.fault(PLANE, "blackhole")
            over.wait(BACK_S - DIES_S)
            lab.fault(PLANE, "clear")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def row(bench: Bench, name: str) -> str:
    """Run a program while a plane dies; return a row of the table."""
    for host in (SERVER, CLIENT):
        lab_hosts.until_ok(bench.lab.name, host, 60)
    before = bench.counts()
    with dying(bench.lab):
        said = PROGRAMS[name][1](bench)
    after = bench.counts()
    grown = {each: after[each] - before[each] for each in _COUNTS}
    sums = sum(grown[each] for each in _SUMS)
    gap = "-" if said.gap_s is None else f"{1e3 * said.gap_s:.0f} ms"
    return (
        f"| {name} | {said.what} | {said.wrong or 'none'} | {gap} | {grown[_AGAIN]} "
        f"| {grown[_FULL]} | {sums} |"
    )


def main() -> int:
    """Run them all and print a table; return 1 if one complained."""
    parser = entry.parser(__doc__, name=NAME, figures=False)
    parser.add_argument("--only", nargs="+", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--rate", type=int, default=250, help="of each link, Mb/s")
    options = parser.parse_args()
    entry.begin(NAME)
    chosen = [name for name in PROGRAMS if name in (options.only or PROGRAMS)]
    absent = {name: why for name in chosen if (why := missing(name)) is not None}
    for name, why in absent.items():
        print(f"left out: {name}: {why}")
    rows = []
    with running(options.name, options.rate) as lab, tempfile.TemporaryDirectory() as folder:
        bench = Bench(lab, Path(folder))
        for name in chosen:
            if name not in absent:
                rows.append(row(bench, name))
                print(rows[-1], flush=True)
    print(
        "\n| program | what it did | complaints | longest gap | TCP sent again "
        "| refused by full sockets | wrong checksums |"
    )
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    return int(any("| none |" not in each for each in rows))


if __name__ == "__main__":
    sys.exit(main())
