#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Build a release into dist/: `wheel`, or `deb`, the package for Debian 12 and 13, for the
# architectures that are named (amd64, arm64), or else this machine's. The first `deb` needs
# root to install Debian's tools. make calls this script. It packages the files known to git, as
# they are now, so that no leftovers of earlier work get in. The BPF programs are compiled anew, except
# those of the same sources in the folder $COMPILED, for the tests, which have compiled some of them.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$PWD/.venv/bin/python
DIST=$PWD/dist
WORK=$PWD/build/package
DEB_TOOLS=(debhelper dpkg-dev)
VERSION=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' mrcd/__init__.py)
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)
fi
export SOURCE_DATE_EPOCH
# make exports its variables, and bcc would compile with the kernel headers of this architecture.
unset ARCH
PIP=("$PYTHON" -m pip --quiet --disable-pip-version-check)

say() { echo "package: $*"; }
die() {
	echo "package: $*" >&2
	exit 1
}
# shellcheck source=scripts/apt.sh
source scripts/apt.sh

# Copy the sources to $1.
export_tree() {
	rm -rf "$1"
	mkdir -p "$1"
	if git rev-parse --git-dir >/dev/null 2>&1; then
		git ls-files -z --cached --others --exclude-standard |
			tar --create --null --files-from=- --ignore-failed-read 2>/dev/null |
			tar --extract --directory="$1"
	else
		tar --create --exclude=./.venv --exclude=./build --exclude=./dist . |
			tar --extract --directory="$1"
	fi
}

build_wheel() {
	export_tree "$WORK/wheel"
	mkdir -p "$DIST"
	"${PIP[@]}" wheel --no-deps --wheel-dir "$DIST" "$WORK/wheel"
	say "dist/mrcd-$VERSION-py3-none-any.whl"
}

# Build the packages of the architectures $@. Only the PyPI packages differ: the BPF programs are
# instructions of the kernel's own machine, and get compiled once.
build_deb() {
	local tree=$WORK/deb/mrcd-$VERSION arch started=() failed=0
	apt_install "${DEB_TOOLS[@]}"
	build_wheel
	rm -rf "$WORK/deb"
	export_tree "$tree"
	cp -r "$tree/packaging/debian" "$tree/debian"
	# The manual pages are made from the programs, if the Makefile has a rule for them.
	if make --dry-run man >/dev/null 2>&1; then
		make --no-print-directory man
		cp -r build/man "$tree/man"
	fi
	# bcc needs root, which the build of a package has not.
	(cd "$tree" && "$PYTHON" -W ignore -m cli.lab.portprograms compiled &&
		"$PYTHON" -W ignore -m mrcd.datapath.precompile compiled ${COMPILED:+"$COMPILED"})
	# Commands in the background do not see ^C.
	trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
	for arch in "$@"; do
		mkdir "$WORK/deb/$arch"
		cp -r "$tree" "$WORK/deb/$arch"
		package_tree "$WORK/deb/$arch/mrcd-$VERSION" "$arch" &
		started+=($!)
	done
	for arch in "${started[@]}"; do
		wait "$arch" || failed=1
	done
	return "$failed"
}

# Build the package of the sources $1, in which the BPF programs are compiled, for architecture $2.
package_tree() {
	local tree=$1 arch=$2 log=$WORK/deb/$2/log
	mkdir "$tree/wheels"
	cp "$DIST/mrcd-$VERSION-py3-none-any.whl" "$tree/wheels"
	"$PYTHON" packaging/lock.py --download "$arch" "$tree/wheels"
	(cd "$tree" && dpkg-buildpackage --host-arch "$arch" --build=binary --unsigned-changes --no-pre-clean) \
		>"$log" 2>&1 || {
		tail -n 40 "$log" >&2
		die "dpkg-buildpackage failed; its output is in $log"
	}
	cp "$tree/../mrcd_${VERSION}_$arch.deb" "$DIST"
	say "dist/mrcd_${VERSION}_$arch.deb"
}

COMMAND=${1:-}
shift || true
case $COMMAND in
wheel) build_wheel ;;
deb)
	[[ $# -gt 0 ]] || set -- "$(dpkg --print-architecture)"
	for arch in "$@"; do
		[[ -e packaging/vendor-$arch.txt ]] ||
			die "architecture $arch: there is no packaging/vendor-$arch.txt; amd64 and arm64 have one"
	done
	build_deb "$@"
	;;
*) die "usage: $0 wheel | deb [amd64] [arm64]" ;;
esac
