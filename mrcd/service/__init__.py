# SPDX-License-Identifier: GPL-2.0-only
"""What any daemon needs: log, journal, systemd, state files, background tasks."""
