# SPDX-License-Identifier: GPL-2.0-only
"""Read the key files that [keys] names, and join them with the public keys of the fabric file.

`with_keys` either returns the configuration with its key ring, or raises ConfigError with every
problem. No message repeats what a key file holds.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import replace
from pathlib import Path

from mrcd.config.config import Config, ConfigError
from mrcd.handshake import identity, invitation
from mrcd.handshake.identity import NO_PSK, BadKey, Keyring, Secret

USER = "mrcd"
"""The user that the package's service runs as. The key files of the service belong to it, because
the service has no capability to read those of others."""
MODE_MAX = 0o600
"""The most that the mode of a key file may allow."""
TEXT_MAX = 4096
NO_KEYS = (
    "is missing: without keys, any machine on the fabric can speak for any host; run "
    "`mrcctl key generate` and name its file as private_key_file, or one secret for all hosts as "
    "secret_file; insecure = true does without"
)


def with_keys(config: Config) -> Config:
    """Return the configuration with its key ring; None is the ring of `insecure = true`.

    Raises ConfigError if there are no keys, or some cannot be used.
    """
    keys = config.keys
    if keys.insecure:
        return replace(config, keyring=None)
    if keys.invitation_file is not None:
        return replace(config, keyring=_invited(config, keys.invitation_file))
    if keys.private_key_file is None and keys.secret_file is None:
        raise ConfigError([f"{config.path}: [keys]: {NO_KEYS}"])
    problems: list[str] = []
    ring = _own(config, problems) if keys.secret_file is None else _simple(config, problems)
    if problems or ring is None:
        raise ConfigError(problems)
    return replace(config, keyring=ring)


def _invited(config: Config, name: str) -> Keyring:
    """Return the key ring of a host that has not asked yet, with its invitation if it is there.

    Its own keys are in the state folder (mrcd/peers/membership.py).
    """
    where = f'{config.path}: keys.invitation_file: "{name}"'
    if config.peers:
        raise ConfigError(
            [f"{config.path}: [[peer]]: is not for a host that was invited: it finds its peers"]
        )
    path, text = config.path.parent / name, None
    try:
        if path.exists():
            text = read_text(path).strip()
            _check_invitation(invitation.read(text), config)
    except (KeyFileError, invitation.BadInvitation, OSError) as error:
        raise ConfigError([f"{where}: {error}"]) from None
    private = identity.private_key(os.urandom(identity.KEY_BYTES))  # until the own one is read
    return identity.invited_keys(private, None if text is None else Secret(text.encode()))


def _check_invitation(found: invitation.Invitation, config: Config) -> None:
    if found.name != config.host.name:
        raise invitation.BadInvitation(
            f"is for a host {found.name}, and [host] name is {config.host.name}; "
            f"ask for one by `mrcctl invite {config.host.name}`"
        )


def _simple(config: Config, problems: list[str]) -> Keyring | None:
    secret = _file(config, "secret_file", config.keys.secret_file, problems)
    if secret is None:
        return None
    return identity.simple_keys(secret, config.host.name, (peer.name for peer in config.peers))


def _own(config: Config, problems: list[str]) -> Keyring | None:
    keys = config.keys
    private = _file(config, "private_key_file", keys.private_key_file, problems)
    psk: Secret | None = NO_PSK
    if keys.preshared_key_file is not None:
        psk = _file(config, "preshared_key_file", keys.preshared_key_file, problems)
    peers = _public_keys(config, problems)
    if private is None or psk is None:
        return None
    ring = identity.own_keys(private, peers, psk)
    if not config.fabric.described:
        return ring  # only the peers' files name our public key
    ours, listed = identity.encode_key(ring.public), config.host.public_key
    where = f"{config.fabric_path}: host {config.host.name}: public_key"
    if not listed:
        problems.append(f'{where}: is missing; write public_key = "{ours}"')
    elif listed != ours:
        problems.append(
            f"{where}: does not belong to the private key of this host; "
            f'write public_key = "{ours}" on all hosts, or restore the former private key'
        )
    return ring


def _public_keys(config: Config, problems: list[str]) -> dict[str, bytes]:
    """Return the public keys of all peers by name."""
    found: dict[str, bytes] = {}
    for peer in config.peers:
        what = "host" if config.fabric.described else "peer"
        where = f"{config.fabric_path}: {what} {peer.name}: public_key"
        if not peer.host.public_key:
            problems.append(
                f"{where}: is missing; write what `mrcctl key public` prints on {peer.name}"
            )
            continue
        try:
            found[peer.name] = identity.decode_public(peer.host.public_key)
        except BadKey as error:
            problems.append(f"{where}: {error}")
    return found


def _file(config: Config, key: str, name: str | None, problems: list[str]) -> Secret | None:
    """Return the key in a file that only its owner may read; record a problem if there is none."""
    if name is None:
        return None
    try:
        return read(config.path.parent / name)
    except KeyFileError as error:
        problems.append(f'{config.path}: keys.{key}: "{name}": {error}')
        return None


class KeyFileError(Exception):
    """A key file cannot be used; the message says why and what to do, and holds no key."""


def read(path: Path) -> Secret:
    """Return the key in a file; raise KeyFileError if others may read it, or it holds none."""
    try:
        return Secret(identity.decode_key(read_text(path)))
    except BadKey as error:
        raise KeyFileError(f"its content {error}") from None


def read_text(path: Path) -> str:
    """Return the text of a file; raise KeyFileError if others may read it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise KeyFileError(
            f"there is no such file; `mrcctl key generate {path}` makes it"
        ) from None
    except PermissionError:
        raise KeyFileError(_unreadable(path)) from None
    except OSError as error:
        raise KeyFileError(f"cannot be read: {error.strerror}") from None
    try:
        _refuse_exposed(path, os.fstat(file))
        data = os.read(file, TEXT_MAX)
    except OSError as error:
        raise KeyFileError(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(file)
    return data.decode("ascii", errors="replace")


def _unreadable(path: Path) -> str:
    """Say why this process may not read a file, and what to do.

    Neither the service nor an mrcd that root has started has a capability, so both need to own it.
    """
    user = os.geteuid()
    try:
        owner = path.stat().st_uid
    except OSError as error:
        return (
            f"cannot be read by user {_name(user)}: {error.strerror}; its folders must let that "
            f"user pass: `namei -l {path}`"
        )
    if user == owner:
        return f"cannot be read by its owner, user {_name(user)}: `chmod 600 {path}`"
    if user in {0, service_user()}:
        return (
            f"belongs to user {_name(owner)}, and mrcd runs here as user {_name(user)} without "
            f"capabilities, so it cannot be read: `chown {_name(user)} {path}`"
        )
    return (
        f"belongs to user {_name(owner)}, and user {_name(user)} may not read it, as it should be: "
        "run this as root"
    )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _refuse_exposed(path: Path, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in {0, os.geteuid(), service_user()}:
        raise KeyFileError(
            f"belongs to user {_name(found.st_uid)}, who can read it; `chown {_owner()} {path}`, "
            "and make another key if someone else has"
        )
    if mode & ~MODE_MAX & 0o177:
        raise KeyFileError(
            f"has the mode {mode:04o}, so others may have read it; `chmod 600 {path}`, "
            "and make another key if they have"
        )


def service_user() -> int | None:
    """Return the number of the user that the service runs as; None if there is none here."""
    try:
        return pwd.getpwnam(USER).pw_uid
    except KeyError:
        return None


def _owner() -> str:
    return "root" if service_user() is None else USER


class KeyFileExists(KeyFileError):
    """A key file is not overwritten unless that is asked for."""


def write(path: Path, key: Secret, *, replace: bool = False, service: bool = True) -> None:
    """Write a key to a file of mode 0600; a reader sees all of it or the former content.

    Written by root, it belongs to the user that the service runs as, if there is one. Without
    `service` it stays root's, for an mrcd that root starts. Raises KeyFileExists if there is a file
    already, unless `replace`, and OSError.
    """
    data = (identity.encode_key(key.reveal()) + "\n").encode()
    place(path, data, MODE_MAX, replace=replace, service=service)


def place(
    path: Path, data: bytes, mode: int, *, replace: bool = False, service: bool = True
) -> None:
    """Write a file as `write` does, with a mode; until all is done nobody else can read it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE_MAX)
    try:
        with os.fdopen(file, "wb") as out:
            user = service_user() if service else None
            if user is not None and os.geteuid() == 0:
                os.fchown(out.fileno(), user, -1)
            os.fchmod(out.fileno(), mode)
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if replace:
            draft.replace(path)
            return
        try:
            os.link(draft, path)  # unlike a rename, it fails if the file exists
        except FileExistsError:
            raise KeyFileExists(f"{path} exists; --force replaces the key in it") from None
    finally:
        draft.unlink(missing_ok=True)
