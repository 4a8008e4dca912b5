"""What can be said about an import path without importing anything: where the module's file is, and what it names.

A module that is not found here may well be there where reward workers run, so its absence proves nothing. A module
that is found, and does not name what was asked for, does.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

MAX_SOURCE_BYTES = 2 << 20


def missing_name(import_path: str) -> str | None:
    """Why `package.module:name` cannot be imported, or None where that cannot be told."""
    module, _, name = import_path.partition(":")
    spec, missing_at = _find(module.split("."))
    if spec is None:
        return None if missing_at == 0 else f"there is no module {module} in its package"
    tree = _parse(spec.origin)
    if tree is None or _is_open(tree) or name in set(_names(tree.body)):
        return None
    return f"module {module} does not define {name}"


def _find(parts: Sequence[str]) -> tuple[ModuleSpec | None, int]:
    """The module's spec, or the depth at which it is missing."""
    where: Sequence[str] = sys.path
    spec: ModuleSpec | None = None
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), where)
        if spec is None:
            return None, depth
        where = list(spec.submodule_search_locations or [])
    return spec, len(parts)


def _parse(origin: str | None) -> ast.Module | None:
    if origin is None or not origin.endswith(".py"):
        return None
    try:
        path = Path(origin)
        if path.stat().st_size > MAX_SOURCE_BYTES:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _is_open(tree: ast.Module) -> bool:
    """Whether names may come from elsewhere: star imports, module `__getattr__`, writes through `globals()`."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return True
            case ast.FunctionDef(name="__getattr__") | ast.Name(id="globals" | "exec" | "setattr"):
                return True
    return False


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.Assign() | ast.AnnAssign():
                yield from _targets(node)
            case ast.If() | ast.Try() | ast.With():
                yield from _names(_nested(node))


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _nested(node: ast.stmt) -> Iterator[ast.stmt]:
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.stmt):
            yield part
        elif isinstance(part, ast.ExceptHandler):
            yield from part.body
