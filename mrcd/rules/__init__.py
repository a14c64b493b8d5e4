# SPDX-License-Identifier: GPL-2.0-only
"""What an operator denies and drains."""
