# SPDX-License-Identifier: GPL-2.0-only
"""The fabric on virtual machines: images, machines, and checks that run on them (docs/vm.md)."""
