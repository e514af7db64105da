"""These tests run in an environment with one tracker, which `scripts/soak` makes and names in SLIPSTREAM_SOAK."""

import os

if os.environ.get("SLIPSTREAM_SOAK", "") == "":
    collect_ignore_glob = ["test_*.py"]
