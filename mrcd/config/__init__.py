# SPDX-License-Identifier: GPL-2.0-only
"""Configuration files and the fabric file, checked as a whole: files to Config."""
