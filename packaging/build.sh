#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Build a release into dist/: `wheel`, or `deb`, the package for Debian 12 and 13. The first `deb` needs
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

build_deb() {
	local tree=$WORK/deb/mrcd-$VERSION
	apt_install "${DEB_TOOLS[@]}"
	build_wheel
	export_tree "$tree"
	cp -r "$tree/packaging/debian" "$tree/debian"
	# The manual pages are made from the programs, if the Makefile has a rule for them.
	if make --dry-run man >/dev/null 2>&1; then
		make --no-print-directory man
		cp -r build/man "$tree/man"
	fi
	# bcc needs root, which the build of a package has not.
	(cd "$tree" && "$PYTHON" -W ignore -m mrcd.datapath.precompile compiled ${COMPILED:+"$COMPILED"})
	mkdir "$tree/wheels"
	cp "$DIST/mrcd-$VERSION-py3-none-any.whl" "$tree/wheels"
	"$PYTHON" packaging/lock.py --download "$tree/wheels"
	(cd "$tree" && dpkg-buildpackage --build=binary --unsigned-changes --no-pre-clean) \
		>"$WORK/deb/log" 2>&1 || {
		tail -n 40 "$WORK/deb/log" >&2
		die "dpkg-buildpackage failed; its output is in $WORK/deb/log"
	}
	cp "$WORK/deb/mrcd_${VERSION}_"*.deb "$DIST"
	say "dist/$(basename "$WORK/deb/mrcd_${VERSION}_"*.deb)"
}

case ${1:-} in
wheel) build_wheel ;;
deb) build_deb ;;
*) die "usage: $0 wheel|deb" ;;
esac
