#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Publish packages in an apt repository, a folder that hosts read over HTTP or as files:
#
#   packaging/repository.sh FOLDER [PACKAGE.deb...]
#
# Without packages it publishes those in dist/. What is there already stays, so that hosts can go
# back; to withdraw a version, remove its file from FOLDER/pool and run this again. KEY names the key
# that signs, in the keyring of gpg. Without it, the key that the folder has been signed by, or else
# one that is made. mrcd.asc in the folder is the public key, for Signed-By.
set -euo pipefail
umask 022

TOOLS=(apt-utils gpg gpg-agent)
SUITE=stable
OWNER="mrcd package repository"

say() { echo "repository: $*"; }
die() {
	echo "repository: $*" >&2
	exit 1
}
# shellcheck source=scripts/apt.sh
source "$(dirname "$0")/../scripts/apt.sh"

# Print the fingerprints of primary keys in what gpg lists, of the kind $1 (pub, sec).
fingerprints() {
	awk -F: -v kind="$1" '$1 == kind { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }'
}

secret_keys() { gpg --batch --list-secret-keys --with-colons "$1" 2>/dev/null | fingerprints sec; }

# Print the fingerprint of the key to sign with.
signing_key() {
	local wanted=${KEY:-} found
	if [[ -z $wanted && -e mrcd.asc ]]; then
		wanted=$(gpg --batch --show-keys --with-colons mrcd.asc | fingerprints pub)
		[[ -n $(secret_keys "$wanted") ]] ||
			die "$PWD is signed by the key $wanted, whose secret part is not in the keyring of gpg here." \
				"Import it, or name another one by KEY=; hosts then need its mrcd.asc"
	fi
	if [[ -z $wanted ]]; then
		wanted="=$OWNER"
		[[ -n $(secret_keys "$wanted") ]] || {
			gpg --batch --quiet --passphrase '' --quick-generate-key "$OWNER" ed25519 sign never >&2
			say "made a key that signs, \"$OWNER\", without a passphrase: keep a copy of it" \
				"(gpg --export-secret-keys)" >&2
		}
	fi
	found=$(secret_keys "$wanted")
	[[ -n $found ]] || die "gpg has no secret key $wanted here: gpg --list-secret-keys shows those that it has"
	[[ $found != *$'\n'* ]] || die "gpg has several secret keys $wanted here: name one by its fingerprint: ${found//$'\n'/ }"
	echo "$found"
}

# Copy the package $1 to the pool. A version is published once: hosts that have it would not see
# another content, and apt would refuse it.
publish() {
	local file=pool/${1##*/}
	[[ $(dpkg-deb --field "$1" Package 2>/dev/null) == mrcd ]] || die "$1 is no package of mrcd"
	if [[ ! -e $file ]]; then
		cp "$1" "$file.new"
		chmod 0644 "$file.new"
		mv "$file.new" "$file"
		say "published ${file#pool/}"
	elif ! cmp --quiet "$1" "$file"; then
		die "$PWD/$file is published with another content: build it from another commit, which gives it another version"
	fi
}

# Write the index of the architecture $1. Each file is replaced in one step.
write_index() {
	local folder=dists/$SUITE/main/binary-$1
	mkdir -p "$folder"
	apt-ftparchive --arch "$1" packages pool >"$folder/Packages.new"
	gzip --best --no-name --stdout "$folder/Packages.new" >"$folder/Packages.gz.new"
	mv "$folder/Packages.new" "$folder/Packages"
	mv "$folder/Packages.gz.new" "$folder/Packages.gz"
}

# Sign what apt reads first. It names the indexes by their hashes, and those that it named before stay
# for hosts which read meanwhile.
write_release() {
	local folder=dists/$SUITE file
	apt-ftparchive -o APT::FTPArchive::DoByHash=true \
		-o APT::FTPArchive::Release::Origin=mrcd -o APT::FTPArchive::Release::Label=mrcd \
		-o APT::FTPArchive::Release::Suite="$SUITE" -o APT::FTPArchive::Release::Codename="$SUITE" \
		-o APT::FTPArchive::Release::Components=main \
		-o APT::FTPArchive::Release::Architectures="$*" release "$folder" |
		sed '/ Release$/d' >.release # not the one of before
	gpg --batch --yes --local-user "$KEY" --armor --detach-sign --output .release.gpg .release
	gpg --batch --yes --local-user "$KEY" --clearsign --output .inrelease .release
	gpg --batch --yes --armor --export --output .asc "$KEY"
	mv .release "$folder/Release"
	mv .release.gpg "$folder/Release.gpg"
	mv .inrelease "$folder/InRelease"
	mv .asc mrcd.asc
}

[[ $# -ge 1 ]] || die "usage: $0 FOLDER [PACKAGE.deb...]"
folder=$1
shift
packages=()
for package in "$@"; do
	packages+=("$(realpath "$package")")
done
if [[ $# -eq 0 ]]; then
	mapfile -t packages < <(find "$(realpath "$(dirname "$0")/..")/dist" -maxdepth 1 -name 'mrcd_*.deb')
fi
apt_install "${TOOLS[@]}"
mkdir -p "$folder/pool"
cd "$folder"
exec {lock}<"$PWD"
flock "$lock"
KEY=$(signing_key)
for package in "${packages[@]}"; do
	publish "$package"
done
mapfile -t architectures < <(find pool -name 'mrcd_*.deb' | sed 's/.*_\(.*\)\.deb/\1/' | sort -u)
[[ ${#architectures[@]} -gt 0 ]] || die "there is no package: run \`make deb\` first"
for architecture in "${architectures[@]}"; do
	write_index "$architecture"
done
write_release "${architectures[@]}"
say "$PWD: $(find pool -name '*.deb' | wc -l) packages, signed by $KEY"
