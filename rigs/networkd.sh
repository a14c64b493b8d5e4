#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Run systemd-networkd in the network namespace that this is called in, with the *.network files and
# the networkd.conf of a folder: networkd.sh FOLDER, as root, in a mount namespace of its own (unshare
# -m). It leaves nothing behind, and talks to no other systemd. /sys is read-only for it: then it
# manages NICs that no udev has announced, as in a container.
set -euo pipefail
FOLDER=$1

over() {
	mkdir -p "$1"
	mount -t tmpfs networkd-test "$1"
}

mount --make-rprivate /
# Empty folders, made under a private /etc and /run: the machine's own files take no part.
over /run/systemd
mkdir -p /run/systemd/netif/{links,leases,lldp}
chown -R systemd-network: /run/systemd/netif
over /run/dbus
mkdir -p "$FOLDER/etc"
cp -a /etc/passwd /etc/group /etc/nsswitch.conf "$FOLDER/etc"
echo 00000000000000000000000000000001 >"$FOLDER/etc/machine-id" # for the DHCP client of a plain file
mount --bind "$FOLDER/etc" /etc
mkdir -p /etc/systemd/network /etc/systemd/networkd.conf.d
cp "$FOLDER"/*.network /etc/systemd/network/
cp "$FOLDER"/*.conf /etc/systemd/networkd.conf.d/
mount -o remount,bind,ro /sys
SYSTEMD_LOG_LEVEL=debug exec /lib/systemd/systemd-networkd
