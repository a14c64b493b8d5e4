#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Take the place of ssh for Ansible: run the last argument, a command, on the machine that the one
# before names. FLEET is the folder with a file for each machine, which holds the pid of its init.
for argument; do
	machine=${command:-}
	command=$argument
done
leader=$(cat "$FLEET/$machine.leader") || exit 255
exec nsenter --target="$leader" --mount --uts --ipc --pid --net --cgroup --root --wd \
	env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	sh -c "$command"
