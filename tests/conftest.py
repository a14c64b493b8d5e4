# SPDX-License-Identifier: GPL-2.0-only
"""Settings for all tests."""

from hypothesis import settings

# An example's duration depends more on the machine than on the code.
settings.register_profile("mrcd", deadline=None)
settings.load_profile("mrcd")
