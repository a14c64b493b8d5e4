#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Make a folder with the files of Debian for arm64 that mrcd's package needs, for an initramfs:
# arm64.sh FOLDER [bookworm|trixie], as root. Packages are unpacked and not configured, because no
# program of another processor runs here. The script is quick if FOLDER is up to date. MIRROR may name another
# Debian mirror.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$1
SUITE=${2:-bookworm}
MIRROR=${MIRROR:-http://deb.debian.org/debian}
PACKAGES=(
	ethtool
	iperf3
	iproute2
	iputils-ping
	kmod
	procps
	python3
	python3-cffi-backend
	python3-cryptography
)

say() { echo "arm64: $*"; }
die() {
	echo "arm64: $*" >&2
	exit 1
}
# shellcheck source=scripts/apt.sh
source scripts/apt.sh

[[ $EUID -eq 0 ]] || die "needs root: it makes a root file system"
[[ $SUITE == bookworm || $SUITE == trixie ]] || die "release $SUITE: must be bookworm or trixie"
apt_install debootstrap kmod
stamp=$({
	cat "$0"
	echo "$SUITE"
} | sha256sum)
if [[ -e $FOLDER.stamp && $(<"$FOLDER.stamp") == "$stamp" ]]; then
	exit 0
fi
rm -rf "$FOLDER" "$FOLDER.stamp"
mkdir -p "$FOLDER"
say "debootstrap $SUITE for arm64 into $FOLDER; its log is $FOLDER.log"
include=$(
	IFS=,
	echo "${PACKAGES[*]}"
)
debootstrap --arch=arm64 --foreign --variant=minbase --include="$include" "$SUITE" "$FOLDER" "$MIRROR" \
	>"$FOLDER.log" 2>&1 || die "debootstrap failed; the whole log is $FOLDER.log"
for package in "$FOLDER"/var/cache/apt/archives/*.deb; do
	dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$FOLDER"
done
# No program needs these, and all of it is in the machine's memory.
rm -rf "$FOLDER"/var/cache/apt "$FOLDER"/debootstrap "$FOLDER"/usr/share/{doc,man,locale,i18n,zoneinfo,perl,info} \
	"$FOLDER"/usr/lib/aarch64-linux-gnu/{perl-base,gconv} "$FOLDER"/var/lib/{apt,dpkg}
# In a container debootstrap makes /proc a link to itself.
[[ ! -L $FOLDER/proc ]] || { rm "$FOLDER/proc" && mkdir "$FOLDER/proc"; }
printf 'root:x:0:0:root:/root:/bin/sh\nmrcd:x:999:999::/:/usr/sbin/nologin\n' >"$FOLDER/etc/passwd"
printf 'root:x:0:\nmrcd:x:999:\n' >"$FOLDER/etc/group"
printf '127.0.0.1 localhost\n' >"$FOLDER/etc/hosts"
echo "$stamp" >"$FOLDER.stamp"
say "$FOLDER is ready: $(du -sh "$FOLDER" | cut -f 1)"
