"""The sections of milvus_operator.py are layers: each uses only those above it."""

import ast
import functools
import re
from pathlib import Path

import milvus_operator as mo

SOURCE = Path(mo.__file__).read_text()
TREE = ast.parse(SOURCE)
BANNER = re.compile("# -{10} (.*) -{10}")
# The sections that decide and say: given the same dicts, they do the same.
PURE = ["Readers", "The kind", "Objects", "The spec", "Decide", "Say", "Retries"]
# What they must not name: a clock, a log, the network, the process, chance.
IMPURE = """time datetime.now timestamp log logging metrics PASSES PASS_SECONDS MILVUSES random os signal
    socket ssl threading tempfile traceback urllib3 click ApiClient ApiException DynamicClient
    Executor ThreadPoolExecutor open print"""


@functools.cache
def sections() -> dict[str, tuple[int, int]]:
    """The first and the last line of each section, by its title."""
    lines = SOURCE.splitlines()
    found = [
        (number, match[1]) for number, line in enumerate(lines, 1) if (match := BANNER.match(line))
    ]
    ends = [start - 1 for start, _ in found[1:]] + [len(lines)]
    return {title: (start, end) for (start, title), end in zip(found, ends, strict=True)}


def section_of(line: int) -> int:
    """The number of the section, from 1; 0 is what is above all of them."""
    return sum(line >= start for start, _ in sections().values())


def defined() -> dict[str, int]:
    """The sections of what the module defines: functions, classes, constants."""
    found = dict[str, int]()
    for node in TREE.body:
        names = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            found.setdefault(name, section_of(node.lineno))
    return found


def used() -> list[tuple[str, int]]:
    """Each name that the code uses, also in an annotation, such as `datetime` and `datetime.now`; and
    the line."""
    found = list[tuple[str, int]]()
    for node in ast.walk(TREE):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                found.append((name, node.lineno))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                found.append((f"{name}.{attribute}", node.lineno))
    return found


def test_each_section_uses_only_sections_above_it() -> None:
    where = defined()
    titles = ["imports", *sections()]
    wrong = [
        f"line {line}, in {titles[section_of(line)]!r}, uses {name} of {titles[where[name]]!r}"
        for name, line in used()
        if where.get(name, 0) > section_of(line)
    ]
    assert wrong == []
    assert len(where) > 150, "this test has read the module"


def test_what_decides_and_says_names_no_clock_no_log_and_no_network() -> None:
    titles = ["imports", *sections()]
    pure = {
        number
        for number, title in enumerate(titles)
        if any(title.startswith(start) for start in PURE)
    }
    assert len(pure) == len(PURE)
    impure = [(name, line) for name, line in used() if name in IMPURE.split()]
    assert [one for one in impure if section_of(one[1]) in pure] == []
    assert len(impure) > 30, "this test knows what is impure"


def test_no_function_is_longer_or_more_tangled_than_a_reader_can_hold() -> None:
    for node in ast.walk(TREE):
        if isinstance(node, ast.FunctionDef):
            assert tangle(node) <= 15, node.name
            body = [line for one in node.body for line in (one.lineno, one.end_lineno or 0)]
            assert max(body) - min(body) < 40, node.name


def tangle(function: ast.FunctionDef) -> int:
    """McCabe's number, in which comprehensions and every `and` and `or` count, too."""
    number = 1
    for node in ast.walk(function):
        match node:
            case ast.If() | ast.For() | ast.While() | ast.ExceptHandler() | ast.IfExp():
                number += 1
            case ast.BoolOp():
                number += len(node.values) - 1
            case ast.comprehension():
                number += 1 + len(node.ifs)
    return number
