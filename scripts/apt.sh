# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Installing Debian's packages; sourced by scripts that have say() and die().
export DEBIAN_FRONTEND=noninteractive

installed() {
	# ${db:Status-Status} is dpkg's field, not a shell variable.
	# shellcheck disable=SC2016
	[[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Those of the packages that are not installed.
missing() {
	local package
	for package in "$@"; do
		installed "$package" || echo "$package"
	done
}

need_root() {
	[[ $EUID -eq 0 ]] || die "$1 needs root: run it with sudo"
}

# apt's package lists may never have been fetched (images ship without), or be too old to install
# from: fetch them at most once, only when something is to be installed.
fetched=
fetch_lists() {
	[[ -z $fetched ]] || return 0
	say "apt-get update"
	apt-get update -q -o=Dpkg::Use-Pty=0 >&2
	fetched=1
}

apt_knows() { apt-cache show "$1" >/dev/null 2>&1; }

# Install what of the packages is missing.
apt_install() {
	local packages
	mapfile -t packages < <(missing "$@")
	[[ ${#packages[@]} -gt 0 ]] || return 0
	need_root "installing ${packages[*]}"
	fetch_lists
	say "apt-get install ${packages[*]}"
	apt-get install -q -y --no-install-recommends -o=Dpkg::Use-Pty=0 "${packages[@]}" >&2
}
