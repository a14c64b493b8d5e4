# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Install Debian packages. Scripts that define say() and die() source this file.
export DEBIAN_FRONTEND=noninteractive

installed() {
	# ${db:Status-Status} is dpkg's field, not a shell variable.
	# shellcheck disable=SC2016
	[[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Print those of the packages that are not installed.
missing() {
	local package
	for package in "$@"; do
		installed "$package" || echo "$package"
	done
}

need_root() {
	[[ $EUID -eq 0 ]] || die "$1 needs root: run it with sudo"
}

# apt's package lists may be too old to install from, or absent: images ship without them. Fetch
# them at most once, and only if there is something to install.
fetched=
fetch_lists() {
	[[ -z $fetched ]] || return 0
	say "apt-get update"
	apt-get update -q -o=Dpkg::Use-Pty=0 >&2
	fetched=1
}

apt_knows() { apt-cache show "$1" >/dev/null 2>&1; }

# Install those of the packages that are missing.
apt_install() {
	local packages
	mapfile -t packages < <(missing "$@")
	[[ ${#packages[@]} -gt 0 ]] || return 0
	need_root "installing ${packages[*]}"
	fetch_lists
	say "apt-get install ${packages[*]}"
	apt-get install -q -y --no-install-recommends -o=Dpkg::Use-Pty=0 "${packages[@]}" >&2
}
