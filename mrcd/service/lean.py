# SPDX-License-Identifier: GPL-2.0-only
"""Import structlog without rich.

structlog loads rich for tracebacks in colour, if it is installed, as it is for `mrcctl`. That
takes the daemon 4 MB, and nobody looks at its tracebacks in colour.
"""

from __future__ import annotations

import sys
from typing import Any, cast

_modules = cast(dict[str, Any], sys.modules)
_hidden = "rich" not in _modules
if _hidden:
    _modules["rich"] = None  # makes importing it fail
import structlog as structlog  # noqa: E402
from structlog.typing import EventDict as EventDict  # noqa: E402
from structlog.typing import FilteringBoundLogger as FilteringBoundLogger  # noqa: E402
from structlog.typing import Processor as Processor  # noqa: E402

if _hidden:
    del _modules["rich"]
