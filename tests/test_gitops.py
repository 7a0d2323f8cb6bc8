"""What Argo CD and Flux show of a Milvus: the checks in docs/gitops.md, run on real statuses."""

from __future__ import annotations

import re
from typing import Any

import cel
import pytest
import yaml
from lupa import lua51  # type: ignore[import-untyped]

import milvus_operator as mo
from tests.lib.kit import TOP
from tests.lib.objects import NOW, Obj, milvus, pods, read

TEXT = (TOP / "docs" / "gitops.md").read_text()
ROWS = re.findall(r"^\| (.+) \| (\w+) \| (\w+) \|$", TEXT, re.M)
ARGO, FLUX = (
    yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)
)
(VERSION,) = yaml.safe_load((TOP / "crd.yaml").read_text())["spec"]["versions"]
UNSEEN = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]


def written(milvus: Obj, there: str = "x-0, x-1, x-2", reason: str = "") -> Obj:
    """The Milvus with the status that is written for it; the reason says why x-2 is refused."""
    problems = {"x-2": mo.Reason(reason, "why")} if reason else {}
    return milvus | {"status": mo.status_of(milvus, read(milvus), pods(there), problems, NOW)}


def refused(reason: str) -> Obj:
    return written(milvus(), "x-0, x-1", reason)


CHANGED = milvus(image="milvus:0")  # the template of old pods
CHANGED["metadata"]["generation"] = 2
BROKEN = pods("x-0, x-1, x-2 starting")
BROKEN[2]["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "ErrImagePull"}}}]
UNPULLED = {"status": mo.status_of(milvus(), read(milvus()), BROKEN, {}, NOW)}
STATES = {
    "was created, and no operator has seen it yet": [milvus() | {"status": UNSEEN}],
    "waits for its pods, or for an image that can't be pulled": [
        written(milvus(), ""),
        written(milvus(), "x-0, x-1, x-2 starting"),
        milvus() | UNPULLED,
    ],
    "has all its pods ready and up to date": [
        written(milvus()),
        written(CHANGED, "x-0 old, x-1 old, x-2 old"),
    ],
    "is scaled to 0": [written(milvus(0), "")],
    "was changed, and the operator has not looked since": [
        CHANGED | {"status": written(milvus())["status"]}
    ],
    "is in a rolling update": [written(CHANGED, "x-0, x-1, x-2 old")],
    "is `Invalid`, `NameConflict`, `QuotaExceeded` or `Forbidden`": [
        written(milvus(milvusSpec="a: [b")),
        *map(refused, ("Invalid", "NameConflict", "QuotaExceeded", "Forbidden")),
    ],
    "has an `APIError`, which is retried": [refused("APIError")],
}


def argo(milvus: Obj) -> dict[str, Any]:
    """The result of the health check, run with only the parts of Lua that Argo CD allows."""
    lua = lua51.LuaRuntime()
    lua.execute("string, math, io, debug, coroutine = nil")
    lua.globals().obj = lua.table_from(milvus, recursive=True)
    return dict(lua.execute(ARGO["data"]["resource.customizations.health.zilliz.com_Milvus"]))


def test_every_row_of_the_table_is_tested() -> None:
    assert [row[0] for row in ROWS] == list(STATES)


@pytest.mark.parametrize(("state", "expected"), [(row[0], row[1]) for row in ROWS])
def test_argo_cd_shows_what_the_table_says(state: str, expected: str) -> None:
    assert [argo(milvus)["status"] for milvus in STATES[state]] == [expected] * len(STATES[state])


def test_argo_cd_says_why() -> None:
    assert argo(refused("QuotaExceeded"))["message"] == "QuotaExceeded: why"
    assert argo(written(milvus()))["message"] == "Ready: 3 of 3 pods are ready and up to date"
    assert argo(milvus()) == {"status": "Healthy", "message": "the CRD has no status"}


def flux(milvus: Obj) -> str:
    """The result of the expressions, in Flux's order, after it has compared the generations."""
    if milvus["status"].get("observedGeneration") not in (None, milvus["metadata"]["generation"]):
        return "InProgress"
    (check,) = FLUX["spec"]["healthCheckExprs"]
    states = {"inProgress": "InProgress", "failed": "Failed", "current": "Current"}
    return next(
        (name for key, name in states.items() if cel.evaluate(check[key], milvus)), "InProgress"
    )


@pytest.mark.parametrize(("state", "expected"), [(row[0], row[2]) for row in ROWS])
def test_flux_shows_what_the_table_says(state: str, expected: str) -> None:
    assert [flux(milvus) for milvus in STATES[state]] == [expected] * len(STATES[state])


def test_flux_waits_for_a_deletion() -> None:
    ending = written(milvus())
    ending["metadata"]["deletionTimestamp"] = NOW
    assert flux(ending) == "InProgress"
