"""``python -m drakkar.cli``: the same as the ``drakkar`` command."""

import sys

from drakkar.cli import main

sys.exit(main())
