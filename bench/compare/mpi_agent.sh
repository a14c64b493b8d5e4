#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# mpirun starts its daemons with this script instead of ssh. The "machine" is a host of the lab
# MPI_LAB. It gets its own host name, because Open MPI distinguishes machines by it.
host=$1
shift
exec ip netns exec "$MPI_LAB-$host" unshare --uts sh -c 'hostname "$0" && eval "$@"' "$host" "$*"
