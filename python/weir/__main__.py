# SPDX-License-Identifier: Apache-2.0
"""`python -m weir` is the command `weir`."""

import sys

from ._command import main

sys.exit(main())
