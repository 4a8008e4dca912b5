"""Files and functions stay small enough to be read: the hard limits of the house style."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = (
    "headrace",
    "control_plane",
    "inference_svc",
    "trainer_svc",
    "env_svc",
    "reward_svc",
    "weightstore",
    "benchmarks",
)
MAX_FILE, MAX_FUNCTION, MAX_NESTING, MAX_PARAMETERS = 500, 60, 4, 7
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# A route has a parameter for each filter, a command for each option, an environment for each key of its config.
DECLARATIVE = {"routes.py", "commands", "environments"}


def sources(repository: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((repository / package).rglob("*.py")):
            if not {"wire", "versions", "__pycache__"} & set(path.relative_to(repository).parts):
                yield path


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Deepest block inside a function; an `elif` is as deep as its `if`."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        is_elif = isinstance(child, ast.If) and isinstance(node, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child, depth + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


def complaints(path: Path, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > MAX_FILE:
        yield f"{path}: {lines} lines, at most {MAX_FILE}"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, FUNCTIONS):
            continue
        where = f"{path}:{node.lineno} {node.name}"
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION:
            yield f"{where}: {length} lines, at most {MAX_FUNCTION}"
        if (depth := nesting(node)) > MAX_NESTING:
            yield f"{where}: nested {depth} deep, at most {MAX_NESTING}"
        named = [
            a for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs if a.arg not in ("self", "cls")
        ]
        if len(named) > MAX_PARAMETERS and not DECLARATIVE & {path.name, path.parent.name}:
            yield f"{where}: {len(named)} parameters, at most {MAX_PARAMETERS}; beyond that make an object"


def test_files_and_functions_stay_within_the_limits(repository: Path) -> None:
    found = [
        complaint
        for path in sources(repository)
        for complaint in complaints(path.relative_to(repository), path.read_text(encoding="utf8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x = 1\n" * 501, "501 lines"),
        ("def f():\n" + "    x = 1\n" * 60, "61 lines"),
        ("def f():\n if 1:\n  if 1:\n   if 1:\n    if 1:\n     if 1:\n      pass\n", "nested 5"),
        ("def f(a, b, c, d, e, f, g, *, h): pass\n", "8 parameters"),
    ],
)
def test_the_limits_are_limits(text: str, word: str) -> None:
    assert any(word in complaint for complaint in complaints(Path("x.py"), text))
