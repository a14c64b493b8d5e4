#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Fetch a kernel of Debian's for virtual machines, without installing it:
# kernel.sh FOLDER SUITE [ARCH]. SUITE is bookworm, trixie, or one of their backports, from which the
# newest is taken; ARCH is amd64 or arm64. The script writes FOLDER/{vmlinuz,modules,release}, unless
# they are there and newer than a day; it is quick then. MIRROR may name another Debian mirror. apt's own lists and sources stay as
# they are.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$1
SUITE=$2
ARCH=${3:-amd64}
MIRROR=${MIRROR:-http://deb.debian.org/debian}
KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
declare -A EMULATORS=([amd64]=qemu-system-x86 [arm64]=qemu-system-arm)

say() { echo "kernel: $*"; }
die() {
	echo "kernel: $*" >&2
	exit 1
}
# shellcheck source=scripts/apt.sh
source scripts/apt.sh

# Call apt's command $1 with sources of its own, below the folder.
own() {
	local command=$1
	shift
	"$command" -q -o "Dir::Etc::SourceList=$FOLDER/apt/sources" -o Dir::Etc::SourceParts=/dev/null \
		-o "Dir::State::Lists=$FOLDER/apt/lists" -o "Dir::Cache=$FOLDER/apt/cache" \
		-o "APT::Architecture=$ARCH" -o "APT::Architectures=$ARCH" -o APT::Sandbox::User=root "$@"
}

write_sources() {
	local base=${SUITE%-backports}
	rm -rf "$FOLDER/apt"
	mkdir -p "$FOLDER"/apt/{lists/partial,cache/archives/partial}
	{
		echo "deb [signed-by=$KEYS] $MIRROR $SUITE main"
		[[ $SUITE != "$base" ]] || echo "deb [signed-by=$KEYS] ${MIRROR%/debian}/debian-security $base-security main"
	} >"$FOLDER/apt/sources"
}

[[ $SUITE =~ ^(bookworm|trixie)(-backports)?$ ]] ||
	die "suite $SUITE: must be bookworm or trixie, with or without -backports"
[[ -n ${EMULATORS[$ARCH]:-} ]] || die "architecture $ARCH: must be amd64 or arm64"
apt_install "${EMULATORS[$ARCH]}" cpio debian-archive-keyring
if [[ -n $(find "$FOLDER/release" -mtime -1 2>/dev/null) ]]; then
	exit 0
fi
# The kernel for clouds has the same BPF as the others, and is half as large.
META=linux-image-cloud-$ARCH
FOLDER=$(mkdir -p "$FOLDER" && cd "$FOLDER" && pwd)
write_sources
own apt-get update >"$FOLDER/log" 2>&1 || die "apt-get update failed: $(tail -n 3 "$FOLDER/log")"
RELEASE=$(own apt-cache show --no-all-versions "$META" | sed -n 's/^Depends: //p' |
	grep -o 'linux-image-[0-9][^ ,]*' | sed 's/^linux-image-//;q' || true)
[[ -n $RELEASE ]] || die "$SUITE has no $META for $ARCH"
if [[ -e $FOLDER/release && $(<"$FOLDER/release") == "$RELEASE" ]]; then
	touch "$FOLDER/release"
	rm -rf "$FOLDER/apt"
	exit 0
fi
say "fetching Linux $RELEASE of $SUITE"
# From Linux 7 on, Debian has the kernel and its modules in packages of their own.
mapfile -t PACKAGES < <(own apt-cache pkgnames linux- | grep -xE "linux-(image|modules|base|binary)-${RELEASE//+/\\+}")
(cd "$FOLDER/apt" && own apt-get download "${PACKAGES[@]}" >>"$FOLDER/log" 2>&1) ||
	die "apt-get download ${PACKAGES[*]} failed: $(tail -n 3 "$FOLDER/log")"
rm -rf "$FOLDER/root" "$FOLDER/modules"
for package in "$FOLDER"/apt/*.deb; do
	dpkg-deb --extract "$package" "$FOLDER/root"
done
KERNEL_FILE=$(find "$FOLDER/root" -name "vmlinu[xz]*" -size +1M | head -n 1)
[[ -n $KERNEL_FILE ]] || die "${PACKAGES[*]}: no kernel in these packages"
cp "$KERNEL_FILE" "$FOLDER/vmlinuz"
mv "$(find "$FOLDER/root" -path '*lib/modules' | head -n 1)" "$FOLDER/modules"
rm -rf "$FOLDER/root" "$FOLDER/apt"
echo "$RELEASE" >"$FOLDER/release"
say "$FOLDER/vmlinuz is Linux $RELEASE"
