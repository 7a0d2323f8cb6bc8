"""Which milvus_operator.py a result was made with: `make release` wants results of this one.

python -m tools.fingerprint    # exits with 1 and says which results are missing or outdated
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
RESULTS = {
    "docs/reports/benchmark.md": "make bench",
    "docs/reports/soak.md": "make soak",
    "docs/reports/tested.md": "make matrix",
}


def fingerprint() -> str:
    """The first twelve hex digits of the SHA-256 of milvus_operator.py."""
    return hashlib.sha256((TOP / "milvus_operator.py").read_bytes()).hexdigest()[:12]


def line() -> str:
    """The line that each of the results carries."""
    return f"Fingerprint of milvus_operator.py: `{fingerprint()}`"


def main() -> int:
    outdated = [name for name in RESULTS if line() not in (TOP / name).read_text().splitlines()]
    for name in outdated:
        print(f"{name} is not of this milvus_operator.py: run `{RESULTS[name]}`", file=sys.stderr)
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
