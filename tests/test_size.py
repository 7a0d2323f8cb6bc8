"""The first promise of this project is its size: one evening's reading."""

import ast
import io
import tokenize
from pathlib import Path

FILE = Path(__file__).parents[1] / "milvus_operator.py"
LAW = "a rule comes in only when another goes out: the file is to be read in one evening"
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def test_the_operator_is_one_evenings_reading() -> None:
    text = FILE.read_text()
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in LAYOUT
    ]
    tree = ast.walk(ast.parse(text))
    functions = [node for node in tree if isinstance(node, ast.FunctionDef)]
    documented = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    ]
    lines_of_code = {token.start[0] for token in tokens}
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    longest = max(lengths, key=lambda name: lengths[name])

    assert len(text.splitlines()) <= 1950, LAW
    assert len(tokens) - len(documented) <= 13_000, LAW
    assert len(tokens) / len(lines_of_code) <= 8.9, f"lines are too dense; {LAW}"
    assert lengths[longest] <= 48, f"{longest} is too long; {LAW}"
    assert max(map(len, text.splitlines())) <= 100
    assert "fmt: skip" not in text
