"""The house keeps its shape: imports point one way, importing does nothing, public names are documented."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import adacgd
import problems

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("adacgd", "problems", "experiments")

# Rooms of the library from the ground up: each may import only what stands before it.
ORDER = [
    "adacgd.theory.constants",
    "adacgd.theory.assumptions",
    "adacgd.theory.statement",
    "adacgd.theory.links",
    "adacgd.theory.tight",
    "adacgd.theory.residual",
    "adacgd.theory.gradients",
    "adacgd.theory.extensions",
    "adacgd.theory.choice",
    "adacgd.theory.stepsizes",
    "adacgd.theory.worst_cases",
    "adacgd.theory.check",
    "adacgd.theory",
    "adacgd.module",
    "adacgd.workers",
    "adacgd.cost",
    "adacgd.compressors.bitstream",
    "adacgd.compressors.fields",
    "adacgd.compressors.codes",
    "adacgd.compressors.dense_codes",
    "adacgd.compressors.nested",
    "adacgd.compressors.bisection",
    "adacgd.compressors.selection",
    "adacgd.compressors.calls",
    "adacgd.compressors.base",
    "adacgd.compressors.sparsifiers",
    "adacgd.compressors.thresholds",
    "adacgd.compressors.quantisers",
    "adacgd.compressors.dithering",
    "adacgd.compressors.low_rank",
    "adacgd.compressors.correlated",
    "adacgd.compressors.combinators",
    "adacgd.compressors",
    "adacgd.steps",
    "adacgd.mechanisms",
    "adacgd.adaptive",
    "adacgd.energy",
    "adacgd.three_point",
    "adacgd.form",
    "adacgd.estimators",
    "adacgd.sending",
    "adacgd.wire",
    "adacgd.hasty",
    "adacgd.laws",
    "adacgd.infinities",
    "adacgd.habits",
    "adacgd.evidence",
    "adacgd.certify",
    "adacgd.testing",
    "adacgd.marina",
    "adacgd.feedback",
    "adacgd.lazy",
    "adacgd.participation",
    "adacgd.oracles",
    "adacgd.servers",
    "adacgd.records",
    "adacgd.loop",
    "adacgd.parallel",
    "adacgd.accordion",
    "adacgd.trace",
    "adacgd.drive",
    "adacgd.request",
    "adacgd.host",
    "adacgd.pool",
    "adacgd.grid",
    "adacgd.stability",
    "adacgd",
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Every module of ours that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    known = {module_name(p) for package in PACKAGES for p in (ROOT / package).rglob("*.py")}
    return names & known


FILES = [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path):
    name = module_name(path)
    others = imported(path)
    package = name.split(".")[0]
    above = {"adacgd": ("problems", "experiments"), "problems": ("experiments",), "experiments": ()}[package]
    assert not [o for o in others if o.split(".")[0] in above], f"{name} imports upwards"
    if package == "adacgd":
        assert name in ORDER, f"give {name} its place in ORDER"
        later = [o for o in others - {name, "adacgd"} if o in ORDER and ORDER.index(o) > ORDER.index(name)]
        own_package = [
            o for o in later if name.startswith(o + ".")
        ]  # `from adacgd.theory.x import y` names its package
        assert sorted(later) == sorted(own_package), f"{name} imports {later}, which stand above it"
    if name.startswith("adacgd.theory.") and name != "adacgd.theory.check":
        source = path.read_text()
        assert "import jax" not in source, f"{name} is plain numbers, and NumPy for what has a value at each T"


def test_no_cycles():
    graph = {module_name(p): imported(p) - {module_name(p)} for p in FILES}
    done, active = set(), []

    def visit(name):
        if name in active:
            raise AssertionError(f"cycle: {' -> '.join([*active[active.index(name) :], name])}")
        if name not in done:
            active.append(name)
            for other in graph.get(name, ()):
                if not name.startswith(other + "."):
                    visit(other)
            active.pop()
            done.add(name)

    for name in graph:
        visit(name)


def test_importing_does_nothing():
    """No backend, no 64-bit mode, no cache, no plotting, no scikit-learn."""
    code = """
import sys, jax
import adacgd, problems, experiments
from jax._src import xla_bridge
assert not xla_bridge._backends, "a backend was initialised"
assert not jax.config.jax_enable_x64, "64-bit mode was flipped"
assert jax.config.jax_compilation_cache_dir is None, "programs would be kept"
for name in ("matplotlib", "sklearn", "rich"):
    assert name not in sys.modules, name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", [adacgd, problems], ids=lambda p: p.__name__)
def test_public_names_are_documented(package):
    for name in package.__all__:
        thing = getattr(package, name)
        if not inspect.ismodule(thing):
            assert inspect.getdoc(thing), name
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert len(inspect.getdoc(thing)) > 20, name


def test_rooms_are_small():
    long = {module_name(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 460}
    assert not long, f"split these rooms: {long}"


def test_the_trigger_stands_in_one_place_in_fewer_than_fifteen_lines():
    for part in (adacgd.adaptive.cheapest, adacgd.AdaCGD.__call__, adacgd.Ada3PC.__call__):
        assert len(inspect.getsource(part).splitlines()) < 15
    assert sum("def cheapest(" in p.read_text() for p in FILES) == 1
    assert sum("accurate(" in p.read_text() and "def accurate(" in p.read_text() for p in FILES) == 1


def test_no_path_of_a_machine_and_no_leftovers():
    for path in [*FILES, *(ROOT / "tests").glob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        text = path.read_text() if path.exists() else ""
        for word in ("/" + "work/", "/" + "root/", "/" + "home/", "TO" + "DO", "FIX" + "ME"):
            assert word not in text, f"{path.name}: {word}"
