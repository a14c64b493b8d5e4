#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Build the container image of the newest package in dist/ with podman: image.sh [options of podman
# build]. make calls this script after `deb`. The image is called mrcd:VERSION, as
# packaging/kubernetes names it; a `~` or `+` of the package's version, which no tag may have, becomes
# a `-`. BASE names another base, best by its digest: BASE=docker.io/library/debian@sha256:...
# With REGISTRY=registry.example.com/net the image is pushed there, and the line for the DaemonSet is
# printed that pins it by its digest.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "image: $*" >&2; }
die() {
	say "$*"
	exit 1
}

command -v podman >/dev/null || die "podman is not installed: apt-get install podman"
ARCH=$(dpkg --print-architecture)
# Compare as Debian does: a name says less, since ~ sorts before the end.
DEB=
VERSION=
for each in dist/mrcd_*_"$ARCH".deb; do
	[[ -e $each ]] || die "dist/ has no package for $ARCH: make deb"
	found=$(dpkg-deb --field "$each" Version)
	if [[ -z $DEB ]] || dpkg --compare-versions "$found" gt "$VERSION"; then
		DEB=$each VERSION=$found
	fi
done
IMAGE=mrcd:${VERSION//[~+]/-}

# Podman's own format has no HEALTHCHECK.
build=(--file packaging/Containerfile --format docker --tag "$IMAGE")
build+=(--build-arg "DEB=${DEB#dist/}" --label "org.opencontainers.image.version=$VERSION")
[[ -z ${BASE:-} ]] || build+=(--build-arg "BASE=$BASE")
say "$IMAGE, of $DEB"
podman build "${build[@]}" "$@" dist

if [[ -n ${REGISTRY:-} ]]; then
	file=$(mktemp)
	podman push --digestfile "$file" "$IMAGE" "$REGISTRY/$IMAGE" ||
		die "$IMAGE could not be pushed to $REGISTRY: is it reached, and are you logged in (podman login)?"
	echo "image: $REGISTRY/mrcd@$(<"$file")"
	rm "$file"
fi
