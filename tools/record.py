"""Draws docs/demo.svg from a run of the demo: python -m tools.record"""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

from local import demo

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"

Ready = dict[str, tuple[str, str]]  # the UID and the template of each Ready pod
did = list[tuple[float, str]]()  # when, and what the user did
seen = list[tuple[float, Ready]]()
clock = time.monotonic

STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:16px}.title,.head{font-weight:600}.small{font-size:12px;fill:#59636e}
.card{fill:#fff;stroke:#d1d9e0}.lane{stroke:#e4e8ec}.ask{stroke:#8c959f;stroke-dasharray:2 4}
.t0{fill:#2f81f7}.t1{fill:#1a9c5b}.t2{fill:#9a5bd6}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}
.card{fill:#0d1117;stroke:#3d444d}.lane{stroke:#2a313c}.ask{stroke:#6e7681}
.t0{fill:#1f6feb}.t1{fill:#238636}.t2{fill:#8957e5}}
"""


class Recorded(demo.Demo):
    def kubectl(self, *arguments: str, quiet: bool = False) -> str:
        match arguments:
            case "apply", _, "sample.yaml":
                did.append((clock(), "apply"))
            case "scale", _, replicas:
                did.append((clock(), replicas.removeprefix("--").replace("=", ": ")))
            case "patch", _, demo.NAME, *_, body:
                did.append((clock(), f"new {next(iter(json.loads(body)['spec']))}"))
            case "delete", kind, *_:
                did.append((clock(), f"delete {kind}"))
        return super().kubectl(*arguments, quiet=quiet)

    def pods(self) -> dict[str, Any]:
        found = super().pods()
        ready: Ready = {}
        for name, pod in found.items():
            metadata = pod["metadata"]
            if demo.is_ready(pod) and "deletionTimestamp" not in metadata:
                template = metadata["annotations"]["zilliz.com/template-hash"]
                ready[name] = metadata["uid"], template
        seen.append((clock(), ready))
        return found


def picture() -> str:
    start = did[0][0] - 0.3
    end = seen[-1][0] + 0.5
    pods = sorted({name for _, ready in seen for name in ready})
    templates = list(dict.fromkeys(template for _, ready in seen for _, template in ready.values()))
    title = f"{end - start:.0f} seconds of make demo"
    bottom = 104 + 32 * len(pods)
    size = f'width="880" height="{bottom + 36}"'
    view = f'viewBox="0 0 880 {bottom + 36}" width="880"'

    def at(moment: float) -> float:
        return round(100 + 762 * (moment - start) / (end - start), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} role="img">',
        f'<title>{title}</title><style>{STYLE}</style><rect {size} class="card"/>',
        f'<text x="16" y="26" class="title">{title}</text>',
        '<text x="16" y="66" class="head">you</text>',
    ]
    changes = [what for _, what in did if what.startswith("new ")]
    for number, what in enumerate(["pod, Ready", *changes]):
        left = 480 + 130 * number
        parts.append(f'<rect x="{left}" y="16" width="22" height="11" rx="3" class="t{number}"/>')
        parts.append(f'<text x="{left + 28}" y="26" class="small">{what}</text>')
    for number, (moment, what) in enumerate(did):
        x = at(moment)
        y = 66 + 16 * (number % 2)
        anchor = "end" if number == len(did) - 1 else "start"
        parts.append(f'<path d="M{x} {y + 5}V{bottom}" class="ask"/>')
        parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{what}</text>')
    for row, name in enumerate(pods):
        y = 115 + 32 * row
        parts.append(f'<text x="16" y="{y + 4}">pod -{row}</text>')
        parts.append(f'<path d="M100 {y}H862" class="lane"/>')
        x = at(start)
        for (_, before), (moment, ready) in itertools.pairwise([*seen, (end, {})]):
            if before.get(name) != ready.get(name):
                if name in before:
                    area = f'x="{x}" y="{y - 11}" width="{at(moment) - x:.1f}" height="22" rx="5"'
                    parts.append(f'<rect {area} class="t{templates.index(before[name][1])}"/>')
                x = at(moment)
    middle = 'class="small" text-anchor="middle"'
    for second in range(0, int(end - start) + 1, 5):
        x = at(start + second)
        parts.append(f'<text x="{x}" y="{bottom + 20}" {middle}>{second} s</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    demo.Demo = Recorded  # type: ignore[misc]
    sys.argv[1:] = ["--wait=no"]
    if demo.main() == 0:
        PICTURE.write_text(picture())
