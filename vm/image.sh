#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Make a Debian 12 disk for virtual machines, with all dependencies of mrcd's package but without mrcd:
# image.sh FOLDER [stable|backports], as root. `backports` takes the kernel of bookworm-backports. The
# script writes FOLDER/{disk.img,vmlinuz,initrd.img}, unless they are up to date. MIRROR may name
# another Debian mirror.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$1
KERNEL=${2:-stable}
SUITE=bookworm
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
	python3-bpfcc
	qemu-guest-agent
	systemd-sysv
	udev
)
KERNEL_PACKAGES=(linux-image-amd64 linux-headers-amd64)

say() { echo "image: $*"; }
die() {
	echo "image: $*" >&2
	exit 1
}
# shellcheck source=scripts/apt.sh
source scripts/apt.sh

# Print a digest of this script and the kernel's name: a change of either makes a new image.
fingerprint() {
	{
		cat "$0"
		echo "$KERNEL"
	} | sha256sum
}

# Install the packages in the folder $1, where their own scripts set them up.
fill() {
	local root=$1 include
	include=$(
		IFS=,
		[[ $KERNEL == stable ]] && PACKAGES+=("${KERNEL_PACKAGES[@]}")
		echo "${PACKAGES[*]}"
	)
	debootstrap --variant=minbase --include="$include" "$SUITE" "$root" "$MIRROR"
	if [[ $KERNEL == backports ]]; then
		echo "deb $MIRROR $SUITE-backports main" >"$root/etc/apt/sources.list.d/backports.list"
		chroot "$root" apt-get update -q
		chroot "$root" apt-get install -q -y --no-install-recommends -t "$SUITE-backports" \
			"${KERNEL_PACKAGES[@]}"
	fi
	chroot "$root" apt-get clean
	echo "/dev/vda / ext4 defaults 0 1" >"$root/etc/fstab"
	rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
	# Terminals and timers are not used, and would slow an emulated machine down.
	ln -sf /dev/null "$root/etc/systemd/system/getty.target"
	ln -sf /dev/null "$root/etc/systemd/system/apt-daily.timer"
	ln -sf /dev/null "$root/etc/systemd/system/apt-daily-upgrade.timer"
}

[[ $EUID -eq 0 ]] || die "needs root: it makes a root file system"
[[ $KERNEL == stable || $KERNEL == backports ]] || die "kernel $KERNEL: must be stable or backports"
apt_install "${TOOLS[@]}"
if [[ -e $FOLDER/stamp && $(<"$FOLDER/stamp") == "$(fingerprint)" ]]; then
	exit 0
fi
rm -rf "$FOLDER"
mkdir -p "$FOLDER"
say "debootstrap $SUITE with the $KERNEL kernel into $FOLDER; its log is $FOLDER/log"
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
