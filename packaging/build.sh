#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Build into dist/: `wheel`, or `deb`, the package for Debian 12 and 13, for the
# architectures that are named (amd64, arm64), or else this machine's, in the place of earlier builds.
# The first `deb` needs root to install Debian's tools. make calls this script. It packages the files
# known to git, as they are now, so that no leftovers of earlier work get in. scripts/version.py says
# the version. From the environment:
#   COMPILED      a folder of compiled BPF programs, for the tests, which have compiled some of them;
#                 those of the same sources are taken, and all others compiled
#   DIST, WORK    where packages go, and where they are built
#   MRCD_VERSION  the version, as pip writes it
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$PWD/.venv/bin/python
DIST=${DIST:-$PWD/dist}
WORK=${WORK:-$PWD/build/package}
DEB_TOOLS=(debhelper dpkg-dev)
VERSION=${MRCD_VERSION:-$("$PYTHON" -m scripts.version)}
DEB_VERSION=$("$PYTHON" -m scripts.version --debian --of "$VERSION")
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
	SOURCE_DATE_EPOCH=$("$PYTHON" -m scripts.version --time || stat -c %Y CHANGELOG.md)
fi
umask 022 # the modes of files in a package are not those of somebody's shell
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
	if [[ -e .git ]]; then
		git ls-files -z --cached --others --exclude-standard |
			tar --create --null --files-from=- --ignore-failed-read 2>/dev/null |
			tar --extract --directory="$1"
	else
		tar --create --exclude=./.venv --exclude=./build --exclude=./dist . |
			tar --extract --directory="$1"
	fi
	"$PYTHON" -m scripts.version --of "$VERSION" --write "$1"
}

build_wheel() {
	export_tree "$WORK/wheel"
	mkdir -p "$DIST"
	rm -f "$DIST"/mrcd-*.whl
	"${PIP[@]}" wheel --no-deps --wheel-dir "$DIST" "$WORK/wheel"
	say "${DIST##*/}/mrcd-$VERSION-py3-none-any.whl"
}

# Write the changelog that dpkg-buildpackage takes the version from; $1 is the tree.
write_changelog() {
	local maintainer
	maintainer=$(sed -n 's/^Maintainer: //p' "$1/debian/control")
	cat >"$1/debian/changelog" <<-END
		mrcd ($DEB_VERSION) unstable; urgency=medium

		  * See /usr/share/doc/mrcd/CHANGELOG.md.

		 -- $maintainer  $(LC_ALL=C date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
	END
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
	write_changelog "$tree"
	# bcc needs root, which the build of a package has not.
	(cd "$tree" && "$PYTHON" -m scripts.manpages man &&
		"$PYTHON" -W ignore -m cli.lab.portprograms compiled &&
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
	rm -f "$DIST"/mrcd_*_"$arch".deb "$DIST"/mrcd-*-"$arch".cdx.json
	cp "$tree/../mrcd_${DEB_VERSION}_$arch.deb" "$DIST"
	say "${DIST##*/}/mrcd_${DEB_VERSION}_$arch.deb"
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
