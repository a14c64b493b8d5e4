#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Make a Debian disk for virtual machines, with all dependencies of mrcd's package but without mrcd:
# image.sh FOLDER [bookworm|trixie] [bare], as root: Debian 12 with Linux 6.1, or Debian 13 with 6.12.
# With `bare`, only what the package depends on, not what it recommends: no compiler and no kernel
# headers. The script writes FOLDER/{disk.img,vmlinuz,initrd.img}, unless they are up to date. MIRROR
# may name another Debian mirror.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$1
SUITE=${2:-bookworm}
KIND=${3:-full}
MIRROR=${MIRROR:-http://deb.debian.org/debian}
TOOLS=(debootstrap e2fsprogs qemu-system-x86)
PACKAGES=(
	ca-certificates
	ethtool
	iperf3
	iproute2
	iputils-ping
	kmod
	procps
	python3
	python3-cffi-backend # debootstrap does not find it for the next one
	python3-cryptography
	qemu-guest-agent
	systemd-sysv
	udev
	linux-image-amd64
)
COMPILER=(python3-bpfcc linux-headers-amd64)

say() { echo "image: $*"; }
die() {
	echo "image: $*" >&2
	exit 1
}
# shellcheck source=scripts/apt.sh
source scripts/apt.sh

# Print a digest of this script and the release's name: a change of either makes a new image.
fingerprint() {
	{
		cat "$0"
		echo "$SUITE $KIND"
	} | sha256sum
}

# Install the packages in the folder $1, where their own scripts set them up.
fill() {
	local root=$1 include
	include=$(
		IFS=,
		echo "${PACKAGES[*]}"
	)
	debootstrap --variant=minbase --include="$include" "$SUITE" "$root" "$MIRROR"
	chroot "$root" apt-get clean
	echo "/dev/vda / ext4 defaults 0 1" >"$root/etc/fstab"
	rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
	# Terminals and timers are not used, and would slow an emulated machine down.
	ln -sf /dev/null "$root/etc/systemd/system/getty.target"
	ln -sf /dev/null "$root/etc/systemd/system/apt-daily.timer"
	ln -sf /dev/null "$root/etc/systemd/system/apt-daily-upgrade.timer"
}

[[ $EUID -eq 0 ]] || die "needs root: it makes a root file system"
[[ $SUITE == bookworm || $SUITE == trixie ]] || die "release $SUITE: must be bookworm or trixie"
[[ $KIND == full || $KIND == bare ]] || die "kind $KIND: must be bare, or left out"
[[ $KIND == bare ]] || PACKAGES+=("${COMPILER[@]}")
apt_install "${TOOLS[@]}"
if [[ -e $FOLDER/stamp && $(<"$FOLDER/stamp") == "$(fingerprint)" ]]; then
	exit 0
fi
rm -rf "$FOLDER"
mkdir -p "$FOLDER"
say "debootstrap $SUITE into $FOLDER; its log is $FOLDER/log"
fill "$FOLDER/root" >"$FOLDER/log" 2>&1 || {
	tail -n 20 "$FOLDER/log" >&2
	die "making the image failed; the whole log is $FOLDER/log"
}
cp "$FOLDER"/root/boot/vmlinuz-* "$FOLDER/vmlinuz"
cp "$FOLDER"/root/boot/initrd.img-* "$FOLDER/initrd.img"
mke2fs -q -t ext4 -d "$FOLDER/root" "$FOLDER/disk.img" 4G
rm -rf "$FOLDER/root"
fingerprint >"$FOLDER/stamp"
say "$FOLDER/disk.img is ready"
