#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# What mpirun starts its daemons with, in place of ssh: the "machine" is a host of the lab MPI_LAB,
# which gets a host name of its own, as Open MPI tells machines apart by it.
host=$1
shift
exec ip netns exec "$MPI_LAB-$host" unshare --uts sh -c 'hostname "$0" && eval "$@"' "$host" "$*"
