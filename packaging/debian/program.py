#!/usr/lib/mrcd/bin/python3 -sP
# SPDX-License-Identifier: GPL-2.0-only
from mrcd.main import main

main()
