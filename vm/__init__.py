# SPDX-License-Identifier: GPL-2.0-only
"""The fabric on virtual machines: images, machines, and the check of both (docs/vm.md)."""
