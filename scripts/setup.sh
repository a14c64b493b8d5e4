#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Install what mrcd needs on Debian 12, and make .venv in the checkout, for `make setup`.
# On a system where that cannot work, the script says first what is missing, and changes nothing. The
# script prints each step. It returns quickly if everything is installed already.
# `setup.sh bench` (`make setup-bench`) adds what only bench/compare's training traffic and
# bench/recipes need, and `setup.sh fuzz` (`make fuzz`) clang with libFuzzer, and atheris. The packages of PostgreSQL and Redis start a server on the loopback address;
# the services of the others are disabled.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(
	apt-utils # apt repositories of the package
	ca-certificates
	containernetworking-plugins # make the network of the pods in a test
	ethtool
	gcc
	gpg # signs them
	gpg-agent
	iperf3
	iproute2
	iputils-ping
	libc6-dev
	lintian # the test of the Debian package
	mmdebstrap # makes the base of the container image in its test
	nftables # rules between hosts, in tests of networks that lose data
	podman # the test of the container image; 13 MB to fetch, 40 MB
	python3-bpfcc # bcc; PyPI's package of that name is something else
	python3-cryptography
	python3-venv
	ruby # the test of the Vagrantfile
	runc # runs its containers whatever cgroups the machine has
	rsync # a real application's traffic in the benchmarks
	systemd           # systemd-analyze, for the tests of the units
	systemd-container # systemd-nspawn boots them
	tshark # the tests of wireshark/mrc.lua; 22 MB to fetch, 128 MB with its libraries
)
# The test of `mrcctl report`; 96 MB to fetch, 306 MB with its libraries. Ubuntu has none but a snap.
if grep -qx 'ID=debian' /etc/os-release; then
	PACKAGES+=(chromium-headless-shell)
fi
BENCH_PACKAGES=(
	ceph-mon # Ceph's and NFS's: 59 MB to fetch, 233 MB with their libraries
	ceph-osd
	libnfs-utils
	mptcpize
	nfs-ganesha-vfs
	openmpi-bin
	postgresql # the newest server that the distribution has, and pgbench
	python3-mpi4py
	python3-rados
	python3-torch # for CPUs, with gloo; PyPI's brings gigabytes of CUDA
	redis-server
	ucx-utils
)
# Units that come with them, and that would listen on all addresses, watch the host's disks, or fail
# with a kernel without NFS. The recipes run their own servers. Those of podman would serve its API
# and start containers at boot.
IDLE_UNITS=(
	ceph-crash.service
	nfs-client.target
	nfs-ganesha-lock.service
	nfs-ganesha.service
	podman-auto-update.timer
	podman-restart.service
	podman.service
	podman.socket
	rpcbind.service
	rpcbind.socket
	smartmontools.service
)
KERNEL=$(uname -r)
MODULES=/lib/modules/$KERNEL
STAMP=.venv/setup.stamp

say() { echo "setup: $*"; }
die() {
	echo "setup: $*" >&2
	exit 1
}

# shellcheck source=scripts/apt.sh
source scripts/apt.sh

# Install packages, and keep their IDLE_UNITS from running, now and after a boot. Units that the host
# had before stay as they are.
apt_install_idle() {
	local unit status=0 units=()
	[[ -n $(missing "$@") ]] || return 0
	need_root "installing packages"
	apt_install systemd # systemctl
	for unit in "${IDLE_UNITS[@]}"; do
		[[ -e /lib/systemd/system/$unit ]] || units+=("$unit")
	done
	[[ ${#units[@]} -eq 0 ]] || systemctl --quiet mask "${units[@]}"
	apt_install "$@" || status=$?
	for unit in "${units[@]}"; do
		systemctl --quiet unmask "$unit"
		[[ ! -e /lib/systemd/system/$unit ]] || systemctl --quiet disable "$unit"
	done
	return $status
}

# bcc compiles against /lib/modules/$KERNEL/{build,source}. Debian splits a kernel's headers between
# the two; Ubuntu has all of them in build.
headers_ready() {
	[[ -e $MODULES/build/include/generated/autoconf.h ]] &&
		[[ -e $MODULES/build/include/linux/kconfig.h || -e $MODULES/source/include/linux/kconfig.h ]]
}

# The distribution has no headers for some kernels (self-built, cloud). The headers of its own
# kernel serve for those, because the programs include only UAPI headers.
borrow_headers() {
	local meta folder common
	meta=linux-headers-$(dpkg --print-architecture)
	apt_knows "$meta" || meta=linux-headers-generic
	apt_install "$meta"
	folder=$(find /usr/src -maxdepth 4 -path '*/linux-headers-*/include/generated/autoconf.h' |
		sort -V | tail -n 1)
	folder=${folder%/include/generated/autoconf.h}
	[[ -n $folder ]] || die "$meta left no kernel headers in /usr/src"
	common=${folder%-*}-common
	[[ -d $common ]] || common=$folder
	need_root "linking kernel headers"
	say "the distribution has no headers for kernel $KERNEL; using those of ${folder#/usr/src/}:"
	mkdir -p "$MODULES"
	link "$folder" "$MODULES/build"
	link "$common" "$MODULES/source"
}

link() {
	say "  $2 -> $1"
	[[ -L $2 || ! -e $2 ]] || die "$2 exists and is not a link; remove it or install headers there"
	ln -sfn "$1" "$2"
}

install_headers() {
	if headers_ready; then
		return
	fi
	need_root "installing kernel headers"
	fetch_lists
	if apt_knows "linux-headers-$KERNEL"; then
		apt_install "linux-headers-$KERNEL"
	else
		borrow_headers
	fi
	headers_ready || die "no usable kernel headers in $MODULES/{build,source} after installing them"
}

# Print the versions that .venv may have: of PyPI's packages those that the Debian package carries
# (packaging/vendor-*.txt), of the rest (packaging/lock.py: OF_DEBIAN) the distribution's own.
versions() {
	local python=/usr/bin/python3
	# They are the same for all architectures.
	sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' packaging/vendor-amd64.txt
	echo "cryptography==$($python -c 'from importlib.metadata import version; print(version("cryptography"))')"
}

# Say what this system lacks before anything is installed; the tests and labs would fail later, and
# less clearly.
check_system() {
	local name lacks=() major minor
	name=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release 2>/dev/null || true)
	IFS=.- read -r major minor _ <<<"$KERNEL"
	if ((major < 6 || (major == 6 && minor < 1))); then
		lacks+=("Linux 6.1 or later: this is $KERNEL")
	fi
	command -v apt-get >/dev/null || lacks+=("apt-get: packages are installed by it alone")
	if ! /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		lacks+=("a /usr/bin/python3 of version 3.11 or later: this is $(/usr/bin/python3 --version 2>&1 || true)")
	fi
	[[ ${#lacks[@]} -gt 0 ]] || return 0
	printf 'setup: this system (%s) lacks %s\n' "${name:-unknown}" "${lacks[0]}" >&2
	[[ ${#lacks[@]} -eq 1 ]] || printf 'setup:   and %s\n' "${lacks[@]:1}" >&2
	die "use Debian 12, on which this has been tried (docs/platforms.md)"
}

# Use Debian's own interpreter and its packages: bcc exists for no other. A cryptography of .venv's own
# would hide Debian's, which is what the package runs with.
make_venv() {
	# The scripts of a .venv that was moved start the interpreter at its old path.
	if ! grep -qs "^#!$PWD/.venv/bin/python" .venv/bin/pip || ! .venv/bin/python -c ''; then
		say "making .venv"
		rm -rf .venv
		/usr/bin/python3 -m venv --system-site-packages .venv
	fi
	if compgen -G '.venv/lib/python3*/site-packages/cryptography' >/dev/null; then
		.venv/bin/python -m pip uninstall -q -y --root-user-action=ignore cryptography >&2
	fi
	say "pip install -e '.[dev]'"
	versions >.venv/versions.txt
	.venv/bin/python -m pip install -q --disable-pip-version-check --root-user-action=ignore \
		-c .venv/versions.txt -e '.[dev]' >&2
	.venv/bin/python -c 'import bcc' || die ".venv cannot import bcc although python3-bpfcc is there"
}

# Take promtool, with which alerts are tested, out of its package (19 MB to fetch): the rest of that is
# a server, which would listen on all addresses.
take_promtool() {
	local folder
	if [[ -x .venv/bin/promtool ]] || ! apt_knows prometheus; then
		return 0
	fi
	say "taking promtool from the package prometheus"
	folder=$(mktemp -d)
	(
		cd "$folder"
		apt-get download -q prometheus >&2
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
	)
	install "$folder/usr/bin/promtool" .venv/bin/
	rm -r "$folder"
}

# Print a digest of all that the environment depends on, including the folder, because a .venv that
# was moved does not work.
fingerprint() {
	{
		cat pyproject.toml scripts/setup.sh scripts/apt.sh packaging/vendor-*.txt
		dpkg-query -W -f '${Version}\n' python3-cryptography 2>/dev/null || true
		echo "$KERNEL" "$PWD"
		/usr/bin/python3 --version
	} | sha256sum
}

# Install the fuzzers: libFuzzer is in the runtime libraries of the distribution's clang.
setup_fuzz() {
	local version
	apt_knows clang || fetch_lists
	version=$(apt-cache depends clang | sed -n 's/^ *Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
	[[ -n $version ]] || die "this distribution has no package clang, which fuzzing needs"
	apt_install clang "libclang-rt-$version-dev"
	if ! .venv/bin/python -c 'import atheris' 2>/dev/null; then
		say "pip install -e '.[fuzz]'"
		.venv/bin/python -m pip install -q --disable-pip-version-check \
			--root-user-action=ignore -c .venv/versions.txt -e '.[fuzz]' >&2
	fi
}

if [[ ${1:-} == fuzz ]]; then
	"$0"
	setup_fuzz
	exit 0
fi
check_system
if [[ ${1:-} == bench ]]; then
	PACKAGES+=("${BENCH_PACKAGES[@]}")
	for package in $(missing "${BENCH_PACKAGES[@]}"); do
		need_root "installing $package"
		fetch_lists
		apt_knows "$package" ||
			die "this distribution has no package $package, which the benchmarks need"
	done
fi
if [[ -e $STAMP && $(<"$STAMP") == "$(fingerprint)" && -z $(missing "${PACKAGES[@]}") ]] && headers_ready; then
	exit 0
fi
apt_install_idle "${PACKAGES[@]}"
install_headers
make_venv
take_promtool
fingerprint >"$STAMP"
say "done: .venv/bin/mrcd and .venv/bin/mrcctl are ready"
