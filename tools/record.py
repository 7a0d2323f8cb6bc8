"""Draws docs/demo.svg from a run of the demo: python -m tools.record"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from local import demo

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"

did: list[tuple[float, str]] = []  # by the user
seen: list[
    tuple[float, dict[str, tuple[str, str]]]
] = []  # the UIDs and templates of the Ready pods
clock = time.monotonic

STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:16px}.title,.head{font-weight:600}.small{font-size:12px;fill:#59636e}.card{fill:#fff;stroke:#d1d9e0}
.lane{stroke:#e4e8ec}.ask{stroke:#8c959f;stroke-dasharray:2 4}
.t0{fill:#2f81f7}.t1{fill:#1a9c5b}.t2{fill:#9a5bd6}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.card{fill:#0d1117;stroke:#3d444d}
.lane{stroke:#2a313c}.ask{stroke:#6e7681}.t0{fill:#1f6feb}.t1{fill:#238636}.t2{fill:#8957e5}}
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
        ready = {name: pod["metadata"] for name, pod in found.items() if demo.is_ready(pod)}
        seen.append((clock(), {name: (one["uid"], one["annotations"]["zilliz.com/template-hash"])
                               for name, one in ready.items() if "deletionTimestamp" not in one}))  # fmt: skip
        return found


def picture() -> str:
    start, end = did[0][0] - 0.3, seen[-1][0] + 0.5
    pods = sorted({name for _, ready in seen for name in ready})
    templates = list(dict.fromkeys(template for _, ready in seen for _, template in ready.values()))
    title, bottom = f"{end - start:.0f} seconds of make demo", 104 + 32 * len(pods)

    def x(moment: float) -> float:
        return round(100 + 762 * (moment - start) / (end - start), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {bottom + 36}" width="880" role="img">',
        f'<title>{title}</title><style>{STYLE}</style><rect width="880" height="{bottom + 36}" class="card"/>',
        f'<text x="16" y="26" class="title">{title}</text><text x="16" y="66" class="head">you</text>',
    ]
    for number, text in enumerate(
        ["pod, Ready", *(text for _, text in did if text.startswith("new "))]
    ):
        parts += [f'<rect x="{480 + 130 * number}" y="16" width="22" height="11" rx="3" class="t{number}"/>',
                  f'<text x="{508 + 130 * number}" y="26" class="small">{text}</text>']  # fmt: skip
    for number, (moment, text) in enumerate(did):
        y, anchor = 66 + 16 * (number % 2), "end" if number == len(did) - 1 else "start"
        parts += [f'<path d="M{x(moment)} {y + 5}V{bottom}" class="ask"/>',
                  f'<text x="{x(moment)}" y="{y}" text-anchor="{anchor}">{text}</text>']  # fmt: skip
    for row, name in enumerate(pods):
        y, left = 115 + 32 * row, start
        parts.append(
            f'<text x="16" y="{y + 4}">pod -{row}</text><path d="M100 {y}H862" class="lane"/>'
        )
        for (_, before), (moment, ready) in zip(seen, [*seen[1:], (end, {})], strict=True):
            if before.get(name) != ready.get(name):
                if name in before:
                    area = f'x="{x(left)}" y="{y - 11}" width="{x(moment) - x(left):.1f}" height="22" rx="5"'
                    parts.append(f'<rect {area} class="t{templates.index(before[name][1])}"/>')
                left = moment
    for second in range(0, int(end - start) + 1, 5):
        parts.append(
            f'<text x="{x(start + second)}" y="{bottom + 20}" class="small" text-anchor="middle">{second} s</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    demo.Demo, sys.argv[1:] = Recorded, ["--wait=no"]  # type: ignore[misc]
    if demo.main() == 0:
        PICTURE.write_text(picture())
