# SPDX-License-Identifier: GPL-2.0-only
"""Test section [keys], the key files that it names, and the fabric file's public keys."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mrcd.config import config, keyfiles
from mrcd.config.config import Config, ConfigError
from mrcd.config.diff import diff
from mrcd.config.keyfiles import KeyFileError, with_keys
from mrcd.config.render import render
from mrcd.config.sections import Keys
from mrcd.fabric import description
from mrcd.handshake import identity, invitation
from mrcd.handshake.authority import Authority
from mrcd.handshake.identity import Secret, encode_key, public_key
from mrcd.survey import messages

HOST = '[host]\nname = "h1"\nfabric = "fabric.toml"\n'
PRIVATE = {f"h{i}": identity.private_key(bytes([i]) * 32) for i in (1, 2, 3)}
PUBLIC = {name: encode_key(public_key(key)) for name, key in PRIVATE.items()}
SECRET = bytes(range(32))
OWN = '[keys]\nprivate_key_file = "host.key"\n'
SIMPLE = '[keys]\nsecret_file = "fabric.secret"\n'


def write_fabric(folder: Path, **changed: str) -> None:
    fabric = description.generate(hosts=3, planes=2)
    keys = {**PUBLIC, **changed}
    hosts = tuple(replace(host, public_key=keys[host.name]) for host in fabric.hosts)
    (folder / "fabric.toml").write_text(description.dumps(replace(fabric, hosts=hosts)))


def write_key(path: Path, key: bytes, mode: int = 0o600) -> None:
    path.write_text(encode_key(key) + "\n")
    path.chmod(mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a fabric file, h1's private key, a pre-shared key and a secret."""
    write_fabric(tmp_path)
    write_key(tmp_path / "host.key", PRIVATE["h1"].reveal())
    write_key(tmp_path / "fabric.psk", b"\x11" * 32)
    write_key(tmp_path / "fabric.secret", SECRET)
    return tmp_path


def load(folder: Path, keys: str, host: str = HOST) -> Config:
    return with_keys(config.loads(host + keys, folder / "mrcd.toml"))


def problems(folder: Path, keys: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, keys, "" if "[host]" in keys else HOST)
    for problem in caught.value.problems:
        assert problem.startswith(f"{folder}/"), problem
        for secret in (PRIVATE["h1"].reveal(), b"\x11" * 32, SECRET):
            assert encode_key(secret) not in problem
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


# ---- what is good


def test_own_keys(folder: Path) -> None:
    ring = load(folder, OWN).keyring
    assert ring is not None
    assert (encode_key(ring.public), ring.simple) == (PUBLIC["h1"], False)
    assert {name: encode_key(key) for name, key in ring.peers.items()} == {
        "h2": PUBLIC["h2"], "h3": PUBLIC["h3"],
    }  # fmt: skip
    assert ring.psk == identity.NO_PSK
    more = load(folder, OWN + 'preshared_key_file = "fabric.psk"\n').keyring
    assert more is not None
    assert more.psk == Secret(b"\x11" * 32)


def test_simple_profile__needs_no_public_key_in_the_fabric_file(folder: Path) -> None:
    write_fabric(folder, h1="", h2="", h3="")
    ring = load(folder, SIMPLE).keyring
    assert ring is not None
    assert ring.simple
    assert ring == identity.simple_keys(Secret(SECRET), "h1", ["h2", "h3"])


def test_insecure__has_no_key_ring(folder: Path) -> None:
    assert load(folder, "[keys]\ninsecure = true\n").keyring is None


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_mode__of_a_file_that_only_its_owner_reads(folder: Path, mode: int) -> None:
    (folder / "host.key").chmod(mode)
    assert load(folder, OWN).keyring is not None


# ---- what is not


def test_nothing_said__is_refused_with_the_ways_out(folder: Path) -> None:
    (problem,) = problems(folder, "")
    assert problem.startswith("mrcd.toml: [keys]: is missing")
    for way in ("mrcctl key generate", "private_key_file", "secret_file", "insecure = true"):
        assert way in problem


@pytest.mark.parametrize("keys", [OWN, SIMPLE])
def test_missing_file(folder: Path, keys: str) -> None:
    for name in ("host.key", "fabric.secret"):
        (folder / name).unlink()
    (problem,) = problems(folder, keys)
    assert "there is no such file; `mrcctl key generate " in problem


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o666, 0o700])
def test_wrong_mode(folder: Path, mode: int) -> None:
    (folder / "host.key").chmod(mode)
    (problem,) = problems(folder, OWN)
    assert problem.startswith('mrcd.toml: keys.private_key_file: "host.key": has the mode')
    assert f"{mode:04o}" in problem
    assert f"chmod 600 {folder}/host.key" in problem


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_wrong_owner(folder: Path) -> None:
    os.chown(folder / "host.key", 65534, 0)
    (problem,) = problems(folder, OWN)
    nobody = pwd.getpwuid(65534).pw_name
    assert f"belongs to user {nobody}, who can read it; `chown root {folder}/host.key`" in problem


# ---- whose it is


@contextlib.contextmanager
def acting_as(user: int) -> Iterator[None]:
    """Be another user, without its capabilities, for a while."""
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Return a folder with a key that every user may enter."""
    if os.geteuid() != 0:
        pytest.skip("only root may give files away: run the tests as root")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_key(folder / "host.key", PRIVATE["h1"].reveal())
        yield folder


def refusal(file: Path) -> str:
    with pytest.raises(KeyFileError) as caught:
        keyfiles.read(file)
    return str(caught.value)


def test_service__reads_its_own_file_and_not_one_of_root(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyfiles, "service_user", lambda: 65534)
    file, name = open_folder / "host.key", pwd.getpwuid(65534).pw_name
    with acting_as(65534):
        found = refusal(file)
    assert found.startswith(f"belongs to user root, and mrcd runs here as user {name} ")
    assert found.endswith(f"`chown {name} {file}`")
    os.chown(file, 65534, -1)
    with acting_as(65534):
        assert keyfiles.read(file) == PRIVATE["h1"]
    file.chmod(0)
    with acting_as(65534):
        assert "by its owner" in refusal(file)
    open_folder.chmod(0o700)
    with acting_as(65534):
        assert f"its folders must let that user pass: `namei -l {file}`" in refusal(file)


def test_other_users__are_told_to_be_root(open_folder: Path) -> None:
    with acting_as(12345):
        found = refusal(open_folder / "host.key")
    assert found == (
        "belongs to user root, and user 12345 may not read it, as it should be: run this as root"
    )


def test_root_without_capabilities__needs_its_own_file(open_folder: Path) -> None:
    """It is what an mrcd that root has started is, when it reads its files again."""
    file = open_folder / "host.key"
    script = (
        "from pathlib import Path; from mrcd.config import keyfiles\n"
        f"try: keyfiles.read(Path({str(file)!r})); print('read')\n"
        "except keyfiles.KeyFileError as error: print(error)\n"
    )
    command = ["setpriv", "--bounding-set=-all", sys.executable, "-c", script]

    def said() -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    assert said() == "read"
    os.chown(file, 65534, -1)
    assert "without capabilities, so it cannot be read" in said()
    assert said().endswith(f"`chown root {file}`")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize(("service", "owner"), [(True, 65534), (False, 0)])
def test_written_file__belongs_to_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: bool, owner: int
) -> None:
    monkeypatch.setattr(keyfiles, "service_user", lambda: 65534)
    keyfiles.write(tmp_path / "key", PRIVATE["h1"], service=service)
    assert (tmp_path / "key").stat().st_uid == owner


@pytest.mark.parametrize("text", ["", "abc", "!" * 44, "\xff" * 44, encode_key(SECRET)[:-1] + "A"])
def test_content_that_is_no_key(folder: Path, text: str) -> None:
    (folder / "host.key").write_bytes(text.encode("latin-1"))
    (problem,) = problems(folder, OWN)
    assert problem.startswith('mrcd.toml: keys.private_key_file: "host.key": its content ')
    assert not text or text not in problem


def test_folder_in_place_of_a_file(folder: Path) -> None:
    (folder / "host.key").unlink()
    (folder / "host.key").mkdir(mode=0o600)
    (problem,) = problems(folder, OWN)
    assert "cannot be read: Is a directory" in problem


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (SIMPLE + 'private_key_file = "host.key"\n', "keys.private_key_file"),
        (SIMPLE + 'preshared_key_file = "fabric.psk"\n', "keys.preshared_key_file"),
        ('[keys]\npreshared_key_file = "fabric.psk"\n', "keys.preshared_key_file"),
        (OWN + "insecure = true\n", "keys.private_key_file"),
        (SIMPLE + "insecure = true\n", "keys.secret_file"),
        ('[keys]\ninsecure = "yes"\n', "keys.insecure"),
        (OWN + "rotate_s = 1\n", "keys.rotate_s"),
    ],
)
def test_profiles_that_exclude_each_other(folder: Path, keys: str, expected: str) -> None:
    (problem,) = problems(folder, keys)
    assert problem.startswith(f"mrcd.toml: {expected}: ")


@pytest.mark.parametrize("key", ["private_key_file", "secret_file", "private_key", "secret"])
def test_key_in_the_configuration__is_refused_and_not_repeated(folder: Path, key: str) -> None:
    text = encode_key(PRIVATE["h1"].reveal())
    found = problems(folder, f'[keys]\n{key} = "{text}"\n')
    assert f"keys.{key}" in found[0]


def test_peer_without_a_public_key(folder: Path) -> None:
    write_fabric(folder, h3="")
    (problem,) = problems(folder, OWN)
    assert problem.startswith("fabric.toml: host h3: public_key: is missing")


def test_public_key_that_nobody_can_have(folder: Path) -> None:
    write_fabric(folder, h3=encode_key(bytes(32)))
    (problem,) = problems(folder, OWN)
    assert problem.startswith("fabric.toml: host h3: public_key: is not a public key")


@pytest.mark.parametrize("listed", ["", PUBLIC["h2"][:-2] + "A="])
def test_own_public_key__must_be_the_fabric_files(folder: Path, listed: str) -> None:
    write_fabric(folder, h1=listed)
    (problem,) = problems(folder, OWN)
    assert problem.startswith("fabric.toml: host h1: public_key: ")
    assert f'public_key = "{PUBLIC["h1"]}"' in problem


def test_same_key_twice(folder: Path) -> None:
    write_fabric(folder, h3=PUBLIC["h2"])
    (problem,) = problems(folder, OWN)
    assert problem == (
        "fabric.toml: host[3].public_key: this key is taken by host[2].public_key; must be unique"
    )


def test_public_key_of_another_form__is_refused_and_not_repeated(folder: Path) -> None:
    text = (folder / "fabric.toml").read_text().replace(PUBLIC["h2"], "0x1234")
    (folder / "fabric.toml").write_text(text)
    (problem,) = problems(folder, OWN)
    assert problem.startswith("fabric.toml: host[2].public_key: must be 44 characters")
    assert "0x1234" not in problem


# ---- differences, text, and what must not depend on keys


def changes(old: Config, new: Config) -> list[tuple[str, str | None, str | None, str]]:
    return [(c.path, c.old, c.new, c.how) for c in diff(old, new, fits=True).changes]


def test_diff__of_a_peers_key(folder: Path) -> None:
    old = load(folder, OWN)
    other = encode_key(public_key(Secret(b"\x48" * 32)))
    write_fabric(folder, h3=other)
    assert changes(old, load(folder, OWN)) == [
        ("peer.h3.public_key", PUBLIC["h3"], other, "live"),
    ]


def test_diff__shows_no_secret(folder: Path) -> None:
    psk = OWN + 'preshared_key_file = "fabric.psk"\n'
    old = load(folder, psk)
    write_key(folder / "fabric.psk", b"\x12" * 32)
    write_key(folder / "host.key", PRIVATE["h2"].reveal())
    write_fabric(folder, h1=PUBLIC["h2"], h2=PUBLIC["h1"])
    found = changes(old, load(folder, psk))
    assert found[0] == ("keys.public_key", PUBLIC["h1"], PUBLIC["h2"], "live")
    assert found[1] == ("keys.preshared_key", "(hidden)", "(hidden)", "live")


def test_diff__of_the_profile_is_live(folder: Path) -> None:
    found = changes(load(folder, OWN), load(folder, "[keys]\ninsecure = true\n"))
    assert {path for path, *_rest in found} == {"keys.private_key_file", "keys.insecure"}
    assert {how for *_rest, how in found} == {"live"}


def test_render__holds_the_names_of_files_and_no_keys(folder: Path) -> None:
    loaded = load(folder, OWN + 'preshared_key_file = "fabric.psk"\nrotate_s = 60\n')
    text = render(loaded)
    assert with_keys(config.loads(text, loaded.path)) == loaded
    assert loaded.keys == Keys("host.key", "fabric.psk", rotate_s=60)
    for key in (PRIVATE["h1"].reveal(), b"\x11" * 32):
        assert encode_key(key) not in text
        assert encode_key(key) not in repr(loaded)


def test_survey__hosts_agree_on_the_fabric_while_keys_change(folder: Path) -> None:
    before = messages.digest(description.load(folder / "fabric.toml"))
    write_fabric(folder, h2="")
    assert messages.digest(description.load(folder / "fabric.toml")) == before


# ---- invitations

INVITED = (
    '[host]\nname = "c"\n[mrc0]\naddresses = ["10.99.0.3/24"]\n[keys]\n'
    'invitation_file = "invitation"\ndiscover = true\n[[plane]]\ninterface = "eth1"\n'
)


def invited(folder: Path, name: str = "c", mode: int = 0o600) -> str:
    """Write an invitation into the file that INVITED names, and return it."""
    made = invitation.make(
        Authority(Secret(SECRET)), name, "a", ident=bytes(16), end_s=1
    ).text  # fmt: skip
    (folder / "invitation").write_text(made + "\n")
    (folder / "invitation").chmod(mode)
    return made


def test_invitation_is_read(tmp_path: Path) -> None:
    ring = load(tmp_path, INVITED, "").keyring
    assert ring is not None
    assert (ring.invited, ring.invitation, ring.admits) == (True, None, False)  # it may have joined
    text = invited(tmp_path)
    ring = load(tmp_path, INVITED, "").keyring
    assert ring is not None
    assert ring.invitation == Secret(text.encode())
    assert text not in repr(ring)
    assert text not in render(load(tmp_path, INVITED, ""))


def test_invitation_that_cannot_be_used(tmp_path: Path) -> None:
    where = 'mrcd.toml: keys.invitation_file: "invitation": '
    invited(tmp_path, mode=0o644)
    (problem,) = problems(tmp_path, INVITED)
    assert problem.startswith(f"{where}has the mode 0644")
    text = invited(tmp_path, "d")
    (problem,) = problems(tmp_path, INVITED)
    assert problem == (
        f"{where}is for a host d, and [host] name is c; ask for one by `mrcctl invite c`"
    )
    (tmp_path / "invitation").write_text(text[:-9])
    (problem,) = problems(tmp_path, INVITED)
    assert problem == f"{where}is damaged: copy the whole line again"
    listed = '[[peer]]\nname = "b"\nendpoints = ["fe80::b"]\nallowed = ["10.99.0.2/32"]\n'
    (problem,) = problems(tmp_path, INVITED + listed)
    assert "[[peer]]: is not for a host that was invited" in problem
