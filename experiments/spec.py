"""What an experiment is asked to be: typed, strict, read from TOML.

Every key is known or refused with the nearest one; every value has a rule, and breaking it names key, rule and value.
Nothing heavy is imported here, so that a wrong request is answered at once.
"""

import dataclasses
import difflib
import importlib.resources
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METHODS = ("GD", "EF21", "LAG", "CLAG", "AdaCGD")
REGULARISERS = ("nonconvex", "l2", "none")
PARTITIONS = ("contiguous", "contiguous-drop", "contiguous-spread", "shuffled", "sorted")
JUDGES = ("worst ratio", "bits ratio")
NEEDED_BY = {"ks": ("EF21", "CLAG"), "zetas": ("LAG", "CLAG", "AdaCGD"), "ladders": ("AdaCGD",)}


class BadRequest(Exception):
    """A request that cannot be met; the message is all that its author needs. Exit code 2."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; the nearest is 'x'`, and all that is known where nothing is very near."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    last = {name.rpartition(".")[2]: name for name in known}  # `stepsze` may mean `grid.stepsize`
    near = near or [last[name] for name in difflib.get_close_matches(word.rpartition(".")[2], last, n=1, cutoff=0.5)]
    if near or not known:
        return f"; the nearest is {near[0]!r}" if near else ""
    least = difflib.get_close_matches(word.rpartition(".")[2], last, n=1, cutoff=0.0)[0]
    return f"; the nearest is {last[least]!r}, known are {', '.join(known)}"


# --- rules: each takes a key and a value as TOML gave it, and returns the typed value or raises BadRequest ----------

Rule = Callable[[str, Any], Any]


def _refuse(key: str, rule: str, value: Any) -> BadRequest:
    return BadRequest(f"{key} must be {rule}; got {value!r}")


def whole(least: int) -> Rule:
    """An integer from `least` to the largest int32."""

    def rule(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31 - 1:
            raise _refuse(key, f"a whole number, {least} or more and below 2^31 - 1", value)
        return value

    return rule


def number(zero: bool = False) -> Rule:
    """A finite number above 0, or from 0 on."""

    def rule(key: str, value: Any) -> float:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise _refuse(key, f"a finite number {'>= 0' if zero else '> 0'}", value)
        return float(value)

    return rule


def text(key: str, value: Any) -> str:
    """Words, not empty."""
    if not isinstance(value, str) or not value.strip():
        raise _refuse(key, "a text in quotes", value)
    return value


def file_name(key: str, value: Any) -> str:
    """A name that may stand in front of `.png`."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", value):
        raise _refuse(key, "a name of letters, digits, - and _", value)
    return value


def one_of(*names: str) -> Rule:
    """One of these words."""

    def rule(key: str, value: Any) -> str:
        if value not in names:
            hint = nearest(value, names) if isinstance(value, str) else ""
            raise BadRequest(f"{key} must be one of {', '.join(names)}; got {value!r}{hint}")
        return value

    return rule


def count(key: str, value: Any) -> int | str:
    """How many coordinates: a whole number, or "d/q" for the dimension over q."""
    if isinstance(value, str):
        if re.fullmatch(r"d/[1-9][0-9]{0,5}", value):
            return value
        raise _refuse(key, 'a whole number or a fraction of the dimension such as "d/4"', value)
    return whole(1)(key, value)


def many(rule: Rule) -> Rule:
    """A list of at least one, without repetition."""

    def each(key: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise _refuse(key, "a list of at least one entry", value)
        entries = tuple(rule(f"{key}[{i}]", entry) for i, entry in enumerate(value))
        for i, entry in enumerate(entries):
            if entry in entries[:i]:
                raise BadRequest(f"{key} names {entry!r} twice")
        return entries

    return each


def ladder(key: str, value: Any) -> tuple[int | str, ...]:
    """Levels, cheapest first."""
    levels = many(count)(key, value)
    fixed = [k for k in levels if isinstance(k, int)]
    if fixed != sorted(fixed):
        raise _refuse(key, "a ladder, cheapest level first", list(levels))
    return levels


def ruled(rule: Rule, **kwargs: Any) -> Any:
    """A field that is read by `rule`."""
    return dataclasses.field(metadata={"rule": rule}, **kwargs)


# --- the form -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProblemSpec:
    """Logistic regression on a data set over workers. `data` None: the file at `path` under its own name."""

    workers: int = ruled(whole(1))
    regulariser: str = ruled(one_of(*REGULARISERS))
    strength: float = ruled(number(zero=True))
    partition: str = ruled(one_of(*PARTITIONS))
    data: str | None = ruled(text, default=None)
    path: str | None = ruled(text, default=None)


@dataclass(frozen=True)
class BudgetSpec:
    """When a run ends: at |grad f| <= tolerance, or after so many rounds."""

    rounds: int = ruled(whole(1))
    tolerance: float = ruled(number())


@dataclass(frozen=True)
class GridSpec:
    """What is tuned, all x multiples: EF21 over ks, LAG over zetas, CLAG over ks x zetas, AdaCGD ladders x zetas."""

    multiples: tuple[float, ...] = ruled(many(number()))
    ks: tuple[int | str, ...] = ruled(many(count), default=())
    zetas: tuple[float, ...] = ruled(many(number(zero=True)), default=())
    ladders: tuple[tuple[int | str, ...], ...] = ruled(many(ladder), default=())


@dataclass(frozen=True)
class RecordSpec:
    """`every`: rounds between two rows of a published run."""

    every: int = ruled(whole(1), default=1)


@dataclass(frozen=True)
class ClaimSpec:
    """Words, and the code that judges them. `data` None: about any data, otherwise about that set and no other."""

    name: str = ruled(file_name)
    words: str = ruled(text)
    judge: str = ruled(one_of(*JUDGES))
    threshold: float = ruled(number())
    methods: tuple[str, ...] = ruled(many(one_of(*METHODS)), default=())
    data: str | None = ruled(text, default=None)


@dataclass(frozen=True)
class Spec:
    """One experiment, whole."""

    problem: ProblemSpec
    budget: BudgetSpec
    grid: GridSpec
    name: str = ruled(file_name)
    title: str = ruled(text)
    methods: tuple[str, ...] = ruled(many(one_of(*METHODS)))
    record: RecordSpec = RecordSpec()
    claims: tuple[ClaimSpec, ...] = ()
    cost: str = ruled(text, default="not stated")
    quick: bool = dataclasses.field(default=False, metadata={"own": True})  # --quick, never in a file
    changed: tuple[str, ...] = dataclasses.field(default=(), metadata={"own": True})  # keys set at the command line


def _build(form: Any, table: Any, prefix: str = "") -> Any:
    """The dataclass `form` from a TOML table."""
    if not isinstance(table, Mapping):
        raise _refuse(prefix.rstrip("."), "a table", table)
    fields = {f.name: f for f in dataclasses.fields(form) if not f.metadata.get("own")}
    kinds = typing.get_type_hints(form)
    for key in table:
        if key not in fields:
            known = keys_of(form, prefix) if prefix else keys_of(Spec)
            raise BadRequest(f"there is no key {prefix + key!r}{nearest(prefix + key, known)}")
    built = {}
    for key, value in table.items():
        rule, kind = fields[key].metadata.get("rule"), kinds[key]
        if rule is not None:
            built[key] = rule(prefix + key, value)
        elif isinstance(kind, types.GenericAlias):  # tuple[ClaimSpec, ...]
            if not isinstance(value, list):
                raise _refuse(prefix + key, f"a list of tables, [[{prefix + key}]]", value)
            built[key] = tuple(_build(kind.__args__[0], each, f"{prefix}{key}.") for each in value)
        else:
            built[key] = _build(kind, value, f"{prefix}{key}.")
    for key, field in fields.items():
        if key not in table and field.default is dataclasses.MISSING:
            raise BadRequest(f"the key {prefix + key!r} is missing")
    return form(**built)


def keys_of(form: Any = Spec, prefix: str = "") -> list[str]:
    """Every key of a spec as a dotted path."""
    found = []
    kinds = typing.get_type_hints(form)
    for field in dataclasses.fields(form):
        if field.metadata.get("own"):
            continue
        if dataclasses.is_dataclass(kinds[field.name]):
            found += keys_of(kinds[field.name], f"{prefix}{field.name}.")
        else:
            found.append(prefix + field.name)
    return found


def read(source: str, told: str, *, quick: bool = False, overrides: Mapping[str, Any] | None = None) -> Spec:
    """The spec in the TOML text `source`; `told` names it in errors. `overrides`: dotted key -> value, on top."""
    try:
        table = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{told} is not TOML: {error}") from None
    reduced = table.pop("quick", None)
    try:
        spec = _build(Spec, table)
        _check(spec)
        less = None if reduced is None else _quick(spec, table, reduced)
    except BadRequest as error:
        raise BadRequest(f"{told}: {error}") from None
    if quick:
        if less is None:
            raise BadRequest(f"{told} has no [quick.grid] table, so --quick has nothing to take")
        table["grid"] = {**table["grid"], **reduced["grid"]}
    for key, value in (overrides or {}).items():
        _put(table, key, value)
    spec = dataclasses.replace(_build(Spec, table), quick=quick, changed=tuple(overrides or ()))
    _check(spec)
    for key, methods in NEEDED_BY.items():
        if f"grid.{key}" in spec.changed and not set(methods) & set(spec.methods):
            raise BadRequest(f"grid.{key} has no effect: none of the methods is {' or '.join(methods)}")
    return spec


def _quick(spec: Spec, table: dict[str, Any], reduced: Any) -> Spec:
    """The reduced grid, which must be part of the whole one."""
    if not isinstance(reduced, Mapping) or set(reduced) != {"grid"} or not isinstance(reduced["grid"], Mapping):
        raise BadRequest("[quick] takes parts of the grid only: [quick.grid]")
    less = _build(Spec, {**table, "grid": {**table["grid"], **reduced["grid"]}})
    for field in dataclasses.fields(GridSpec):
        extra = [v for v in getattr(less.grid, field.name) if v not in getattr(spec.grid, field.name)]
        if extra:
            raise BadRequest(f"quick.grid.{field.name} must be part of grid.{field.name}; {extra[0]!r} is not")
    return less


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    known = keys_of()
    if key not in known:
        raise BadRequest(f"there is no key {key!r}{nearest(key, known)}")
    if key in ("claims", "name"):
        raise BadRequest(f"{key} belongs to the file and cannot be set from outside")
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
    if value is None:
        table.pop(last, None)
    else:
        table[last] = value


def _check(spec: Spec) -> None:
    """What no single key can tell."""
    if spec.problem.data is None and spec.problem.path is None:
        raise BadRequest("problem.data or problem.path must say which data")
    for key, methods in NEEDED_BY.items():
        users = [m for m in methods if m in spec.methods]
        if users and not getattr(spec.grid, key):
            raise BadRequest(f"grid.{key} is missing and {users[0]} is tuned over it")
    for claim in spec.claims:
        if claim.judge == "bits ratio" and len(claim.methods) < 2:
            raise BadRequest(f"claims.methods of {claim.name!r} must name a method and those it is compared with")


def setting(given: str) -> tuple[str, Any]:
    """KEY=VALUE of `--set`: the value is TOML, or a bare word, which is a text."""
    key, equals, value = given.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not value:
        raise BadRequest(f"--set takes KEY=VALUE, such as --set problem.strength=0.01; got {given!r}")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"[A-Za-z_][\w.+/-]*", value):
            return key, value
        raise BadRequest(f"--set {key}: {value!r} is not a TOML value (a text needs quotes)") from None
    if set(parsed) != {"value"}:
        raise BadRequest(f"--set {key}: one value at a time; got {value!r}")
    return key, parsed["value"]


# --- once the dimension is known ------------------------------------------------------------------------------------


def resolve(key: str, entries: Iterable[int | str], dim: int) -> tuple[int, ...]:
    """Whole numbers of coordinates, ascending and merged: "d/q" is max(1, dim // q). A number above dim is refused."""
    found = set()
    for entry in entries:
        k = max(1, dim // int(entry[2:])) if isinstance(entry, str) else entry
        if k > dim:
            raise BadRequest(f"{key} must be at most the dimension d = {dim}; got {k}")
        found.add(k)
    return tuple(sorted(found))


# --- where specs are ------------------------------------------------------------------------------------------------


def shipped() -> dict[str, str]:
    """Name -> TOML text of the experiments that come with the package."""
    folder = importlib.resources.files("experiments.specs")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): f.read_text(encoding="utf-8") for f in files}


def read_file(path: str) -> str:
    """The text of a user's own spec."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadRequest(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise BadRequest(f"{path} is a folder, not a spec file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from None
