"""A folder is a layer: lower ones never import higher ones, and siblings of a layer are strangers."""

from __future__ import annotations

import ast
from pathlib import Path

import framecast

ROOT = Path(framecast.__file__).parent

# From the lowest up. What stands on one row in one set may be imported by the rows above it, not by its siblings.
LAYERS: list[dict[str, set[str]]] = [
    {"words": {"errors", "config"}},
    {"pure functions": {"presets", "media", "durable", "device", "ops"}},
    {"model": {"model"}, "data": {"data"}},
    {"sampling": {"sampling"}},
    {"evaluation": {"evaluation"}, "training": {"training"}},
    {"doors": {"__init__", "__main__", "cli", "commands", "server"}},
]


def home(module: str) -> tuple[int, str]:
    """(row, sibling) of a module of ours, by the first part of its name."""
    for row, siblings in enumerate(LAYERS):
        for sibling, names in siblings.items():
            if module in names:
                return row, sibling
    raise AssertionError(f"{module} stands in no layer: give it one in tests/test_layers.py")


def imports(path: Path) -> set[str]:
    """The first parts of the modules of ours that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [
                f"{node.module}.{alias.name}" if node.module == "framecast" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("framecast.")}
    return found


def test_arrows_point_down():
    for path in sorted(ROOT.rglob("*.py")):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        row, sibling = home(own)
        for name in imports(path):
            other_row, other = home(name)
            allowed = other_row < row or (other_row == row and other == sibling)
            assert allowed, f"{path.relative_to(ROOT)} imports {name}, which is not below it"


def test_torchvision_is_never_imported():
    for path in sorted(ROOT.rglob("*.py")):
        assert "torchvision" not in path.read_text().replace("nothing that needs torchvision", ""), path
