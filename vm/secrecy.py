# SPDX-License-Identifier: GPL-2.0-only
"""Secrecy of what applications send, by what exists: WireGuard and kernel TLS over mrc0."""

from __future__ import annotations

import datetime
import shlex
import statistics

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from vm import measure
from vm.measure import Figures
from vm.qemu import MachineFailed, Vm

PORT = 7002
BLOCK_BYTES = 1 << 14  # a TLS record
_NETWORK = "10.98.0"
_TUNNEL = """
import base64, json, sys
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pyroute2 import WireGuard
if sys.argv[1] == "key":
    key = X25519PrivateKey.generate()
    raw = serialization.Encoding.Raw
    private = key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    public = key.public_key().public_bytes(raw, serialization.PublicFormat.Raw)
    with WireGuard() as wg:
        wg.set("wg0", private_key=base64.b64encode(private).decode(), listen_port=51820)
    print(base64.b64encode(public).decode())
else:
    with WireGuard() as wg:
        wg.set("wg0", peer=json.loads(sys.argv[2]))
"""
# Option 1 << 3 of OpenSSL 3 is SSL_OP_ENABLE_KTLS. Each side prints a digest.
_TLS = f"""
import hashlib, os, socket, ssl, sys
role, address, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
digest = hashlib.sha256()
if role == "server":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/run/tls.pem")
else:
    context = ssl.create_default_context(cafile="/run/tls.pem")
    context.check_hostname = False
context.options |= 1 << 3
context.maximum_version = ssl.TLSVersion.TLSv1_2  # the kernel has both directions of it
if role == "server":
    with socket.create_server((address, {PORT})) as listener:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as tls:
            while data := tls.recv(1 << 16):
                digest.update(data)
else:
    plain = socket.create_connection((address, {PORT}))
    with context.wrap_socket(plain, server_hostname="mrcd") as tls:
        for _ in range(blocks):
            data = os.urandom({BLOCK_BYTES})
            digest.update(data)
            tls.sendall(data)
print(digest.hexdigest())
"""
_COUNTS = "cat /proc/net/tls_stat 2>/dev/null"


def tunnel(one: Vm, other: Vm, bare: str, seconds: int) -> Figures:
    """Compare a TCP connection through WireGuard over mrc0 with one without, in turns.

    `bare` is the address of `other` on mrc0.
    """
    inside = {vm.name: f"{_NETWORK}.{number}" for number, vm in enumerate((one, other), 1)}
    outside = {one.name: one.machine.address, other.name: bare}
    try:
        publics = {}
        for vm in (one, other):
            vm.run("ip link add wg0 type wireguard")
            vm.run(f"ip address add {inside[vm.name]}/24 dev wg0")
            publics[vm.name] = _python(vm, "key").strip()
        for vm, peer in ((one, other), (other, one)):
            facts = (
                f'{{"public_key": "{publics[peer.name]}", "endpoint_addr": "{outside[peer.name]}",'
                f' "endpoint_port": 51820, "allowed_ips": ["{inside[peer.name]}/32"]}}'
            )
            _python(vm, "peer", facts)
            mtu = int(vm.run("cat /sys/class/net/mrc0/mtu").out) - 60  # IPv4, UDP, WireGuard
            vm.run(f"ip link set wg0 up mtu {mtu}")
        found = measure.ping(one, inside[other.name], count=10, interval_s=0.5)
        assert found["lost"] == 0, f"{found['lost']} of 10 pings lost through WireGuard"
        rates: dict[str, list[float]] = {bare: [], inside[other.name]: []}
        for address in (bare, inside[other.name], bare):
            flow = measure.end_flow(measure.begin_flow(one, address, seconds))
            rates[address].append(flow.figures()["mbps"])
    finally:
        for vm in (one, other):
            vm.run("ip link del wg0", check=False)
    ratio = statistics.median(rates[inside[other.name]]) / statistics.median(rates[bare])
    return {"bare_mbps": rates[bare], "wireguard_mbps": rates[inside[other.name]],
            "ratio": round(ratio, 2)}  # fmt: skip


def _python(vm: Vm, *words: str) -> str:
    """Run _TUNNEL with the package's Python, which has pyroute2; return what it prints."""
    arguments = " ".join(map(shlex.quote, words))
    return vm.run(f"exec {measure.PYTHON} - {arguments} <<'END'\n{_TUNNEL}END", 300).out


def kernel_tls(one: Vm, other: Vm, address: str, blocks: int, within_s: float) -> Figures:
    """Send random bytes by TLS that the kernel encrypts; they arrive as they were sent."""
    text = _certificate()
    for vm in (one, other):
        vm.run(f"umask 077; printf %s {shlex.quote(text)} >/run/tls.pem; modprobe tls")
    before = _counted(one)
    words = f"{address} {blocks} <<'END'\n{_TLS}END"
    limit = f"exec timeout {within_s:.0f} python3 -"
    server = other.begin(f"{limit} server {words}")
    listening = f"ss -Hltn 'sport = :{PORT}' | grep -q ."
    measure.wait_until(
        lambda: other.run(listening, check=False).status == 0, within_s, "nothing listens"
    )
    sent = one.run(f"{limit} client {words}", within_s)
    done = other.end(server, within_s)
    if done.status:
        raise MachineFailed(f"{other.name}: the server failed: {done.err[-500:]}")
    assert sent.out == done.out, f"other bytes arrived at {address} than were sent"
    by_kernel = _counted(one).get("TlsTxSw", 0) - before.get("TlsTxSw", 0)
    assert by_kernel > 0, "the kernel did not encrypt"
    moved = blocks * BLOCK_BYTES
    return {"kernel_connections": by_kernel, "mbps": round(moved * 8 / sent.seconds / 1e6, 1)}


def _counted(vm: Vm) -> dict[str, int]:
    lines = vm.run(_COUNTS, check=False).out.splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def _certificate() -> str:
    """Return a key and a certificate that it has signed, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mrcd")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (private + certificate.public_bytes(pem)).decode()
