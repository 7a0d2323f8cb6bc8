"""Retries: when something may be tried again. It is told the time, so no test waits."""

from math import inf

import pytest

import milvus_operator as mo

CREATE: mo.Key = ("create", 0)
RESTART: mo.Key = ("restart", 1)
REPLACE: mo.Key = ("replace", 1)
STATUS: mo.Key = ("status update", None)
WHY = mo.Why("Forbidden", "no")


def delays(retries: mo.Retries, key: mo.Key, tries: int, problem: mo.Why | None) -> list[float]:
    """The seconds that are waited after each of so many tries, each as soon as it may be."""
    found = list[float]()
    now = 1000.0
    for _ in range(tries):
        if problem:
            retries.failed(key, now, problem)
        else:
            retries.succeeded(key, now)
        until = retries.next(now)
        found.append(until - now)
        assert retries.waits(key, until - 0.1)
        assert not retries.waits(key, until)
        now = until
    return found


def test_what_fails_is_tried_after_one_second_then_after_twice_as_long_up_to_one_minute() -> None:
    waits = [1, 2, 4, 8, 16, 32, 60, 60]
    assert delays(mo.Retries(), CREATE, 8, WHY) == waits


@pytest.mark.parametrize(
    "verb", ["restart", "replace", "adopt", "claim", "require_claim", "expose", "grow"]
)
def test_what_may_have_to_be_done_for_ever_is_paced_from_ten_seconds(verb: str) -> None:
    assert delays(mo.Retries(), (verb, 0), 5, None) == [10, 20, 40, 60, 60]


def test_what_is_created_again_and_again_is_paced_from_one_second() -> None:
    assert delays(mo.Retries(), CREATE, 6, None) == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize("key", [("delete", 0), STATUS])
def test_what_is_done_once_and_for_all_is_forgotten(key: mo.Key) -> None:
    retries = mo.Retries()
    retries.failed(key, 0, WHY)
    retries.succeeded(key, 1)
    assert not retries.waits(key, 1)
    assert not retries.problems()
    assert retries.next(0) == inf
    retries.failed(key, 2, WHY)
    assert retries.next(2) == 3, "it starts anew"


def test_each_waits_on_its_own() -> None:
    retries = mo.Retries()
    retries.failed(CREATE, 0, WHY)
    retries.failed(CREATE, 1, WHY)
    retries.failed(("create", 1), 1, WHY)
    assert retries.waits(CREATE, 2.5)
    assert not retries.waits(("create", 1), 2.5)
    assert not retries.waits(("delete", 0), 2.5)
    assert [retries.next(now) for now in (1, 2, 3)] == [2, 3, inf]


def test_what_is_no_longer_to_do_is_forgotten_and_what_was_done_after_ten_quiet_minutes() -> None:
    retries = mo.Retries()
    retries.failed(CREATE, 0, WHY)
    retries.succeeded(RESTART, 0)
    retries.keep_only({STATUS}, 0)
    assert not retries.waits(CREATE, 0)
    assert retries.waits(RESTART, 0), "it may have to be done again"
    retries.keep_only(set(), 599)
    retries.succeeded(RESTART, 599)
    assert retries.next(599) == 599 + 20
    retries.keep_only(set(), 599 + 600)
    retries.succeeded(RESTART, 1200)
    assert retries.next(1200) == 1200 + 10


def test_of_two_problems_of_one_pod_always_the_same_one_is_told() -> None:
    one, two, three = (mo.Why("Invalid", text) for text in ("one", "two", "three"))
    for first, second in ((("claim", 0), ("create", 0)), (("create", 0), ("claim", 0))):
        retries = mo.Retries()
        retries.failed(first, 0, one if first[0] == "claim" else two)
        retries.failed(second, 0, one if second[0] == "claim" else two)
        retries.failed(STATUS, 0, three)
        assert retries.problems() == {0: one}


def test_what_was_refused_counts_as_long_as_it_waits_and_what_got_lost_never() -> None:
    """Of what got lost, nobody knows whether it was done."""
    retries = mo.Retries()
    retries.failed(CREATE, 0, WHY, is_refused=True)
    retries.failed(REPLACE, 0, WHY)
    assert retries.refused(0.9) == {CREATE}
    assert retries.refused(1) == set()


def test_a_reason_lasts_after_half_a_minute_of_failures() -> None:
    retries = mo.Retries()
    retries.failed(CREATE, -50, mo.Why("Waiting", "for an earlier pod"))
    retries.failed(CREATE, 0, WHY)
    retries.failed(CREATE, 5, WHY)
    retries.failed(("create", 1), 25, mo.Why("APIError", "two"))
    assert [retries.lasting(now) for now in (29.9, 30, 55)] == [
        set(),
        {"Forbidden"},
        {"Forbidden", "APIError"},
    ]
    retries.succeeded(CREATE, 31)
    retries.failed(CREATE, 32, WHY)
    assert retries.lasting(40) == set(), "it begins anew"
    retries.failed(STATUS, 0, mo.Why("Waiting", "not now"))
    assert "Waiting" not in retries.lasting(90), "only what is about a pod, a claim or the Service"
    once = mo.Retries(tries_once=True)
    once.failed(CREATE, 0, WHY)
    assert once.lasting(0) == {"Forbidden"}


def test_waiting_for_something_is_a_failure_once_it_has_lasted() -> None:
    retries = mo.Retries()
    assert not retries.has_failed(STATUS, 0)
    retries.failed(STATUS, 0, mo.Why("Waiting", "the list was old"))
    assert not retries.has_failed(STATUS, 29)
    assert retries.has_failed(STATUS, 30)
    retries.failed(STATUS, 1, WHY)
    assert retries.has_failed(STATUS, 1)
    retries.succeeded(STATUS, 2)
    assert not retries.has_failed(STATUS, 99)
    once = mo.Retries(tries_once=True)
    once.failed(STATUS, 0, mo.Why("Waiting", "the list was old"))
    assert once.has_failed(STATUS, 0), "it is not tried again"


def test_where_all_is_tried_once_nothing_is_tried_again_but_the_status() -> None:
    retries = mo.Retries(tries_once=True)
    retries.failed(CREATE, 0, WHY, is_refused=True)
    retries.succeeded(("create", 1), 0)
    retries.succeeded(RESTART, 0)
    retries.succeeded(STATUS, 0)
    for key in (CREATE, ("create", 1), RESTART):
        assert retries.waits(key, 1e9)
    assert not retries.waits(STATUS, 0)
    assert retries.refused(1e9) == {CREATE}


def test_success_and_failure_do_not_add_up() -> None:
    retries = mo.Retries()
    for now in (0, 10, 30):
        retries.succeeded(REPLACE, now)
    retries.failed(REPLACE, 70, WHY)
    assert retries.next(70) == 71
    for now in (71, 73, 77, 85):
        retries.failed(REPLACE, now, WHY)
    retries.succeeded(REPLACE, 101)
    assert retries.next(101) == 111


def test_of_another_spec_only_when_pods_were_replaced_or_restarted_is_remembered() -> None:
    retries = mo.Retries()
    for now in (0, 10):
        for key in (REPLACE, RESTART):
            retries.succeeded(key, now)
    retries.failed(CREATE, 10, WHY)
    retries.failed(("replace", 0), 10, WHY)
    kept = retries.for_another_spec()
    assert kept.waits(REPLACE, 19.9)
    assert kept.waits(RESTART, 19.9)
    assert kept.next(10) == 20
    assert not kept.problems()
    assert not any(kept.waits(key, 10) for key in (CREATE, ("replace", 0)))
    assert mo.Retries(tries_once=True).for_another_spec().tries_once


def test_what_is_tried_only_once_is_not_forgotten_however_long_the_run() -> None:
    retries = mo.Retries(tries_once=True)
    retries.failed(CREATE, 0, WHY)
    retries.keep_only({CREATE}, 1e6)
    assert retries.waits(CREATE, 1e6)
