# SPDX-License-Identifier: Apache-2.0
"""`python -m weir.torch.build` is `python -m weir.torch_build`, where torch is installed."""

import sys

from ..torch_build import main

if __name__ == "__main__":
    sys.exit(main())
