# SPDX-License-Identifier: GPL-2.0-only
"""What strangers can send, made up by coverage-guided fuzzers: `make fuzz MINUTES=60`.

Each target is a module with `seeds()`, inputs that reach something, and `check(data)`, which raises
for any input that breaks what mrcd promises: no exception but those that are documented, what is
read can be written and read again, and what is refused changes nothing.
"""
