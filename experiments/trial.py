"""`adacgd certify`: a compressor or a map from a module or a file, put before the court."""

import argparse
import ast
import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments import start
from experiments.spec import BadRequest, nearest

STANDS, FALLS = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `adacgd certify` takes."""
    add = parser.add_argument
    add("what", metavar="MODULE:OBJECT", help="or FILE.py:OBJECT; OBJECT is a name, or a call such as 'TopK(5)'")
    add("--dim", type=int, default=20, metavar="N", help="how many coordinates (default 20)")
    add("--key", type=int, default=0, metavar="N", help="the first random key (default 0)")
    add("--keys", type=int, default=1, metavar="N", help="how many keys are tried, one verdict each (default 1)")
    add("--workers", type=int, default=4, metavar="N", help="how many share the randomness, for Perm-K (default 4)")
    add("--json", action="store_true", help="the evidence as JSON on stdout, in place of the report")


def certify(args: argparse.Namespace) -> int:
    """The verdicts on stdout; 1 if the claim falls with any key. Raises BadRequest."""
    for name in ("dim", "keys", "workers"):
        if getattr(args, name) < 1:
            raise BadRequest(f"--{name} must be an integer of at least 1, got {getattr(args, name)}")
    if not 0 <= args.key <= 2**32 - args.keys:
        raise BadRequest(f"--key, and those that --keys adds, must lie in [0, 2**32), got {args.key}")
    start.set_up()
    target = load(args.what)
    import adacgd

    if not isinstance(target, adacgd.Compressor | adacgd.Unbiased | adacgd.ThreePoint | adacgd.MARINA):
        kinds = "a Compressor, an Unbiased compressor or a ThreePoint map"
        hint = f"; write {args.what}(...)" if isinstance(target, type) else ""
        raise BadRequest(f"{args.what} is {_kind(target)}, not {kinds}{hint}")
    found = []
    for key in range(args.key, args.key + args.keys):
        try:
            found.append(adacgd.certify(target, dim=args.dim, key=key, workers=args.workers))
        except Exception as error:  # it refuses this dimension, is not of the form, or fails in its own code
            kind = "" if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: "
            raise BadRequest(f"{args.what}: {kind}{' '.join(str(error).split())[:300]}") from error
        if not args.json:
            print(found[-1])
    if args.json:
        from experiments.store import json_text

        print(json_text([one.as_dict() for one in found]), end="")
    return STANDS if all(found) else FALLS


def _kind(target: Any) -> str:
    return f"the class {target.__name__}" if isinstance(target, type) else f"of type {type(target).__name__}"


def load(words: str) -> Any:
    """The object that `MODULE:OBJECT` or `FILE.py:OBJECT` names. Raises BadRequest."""
    where, colon, what = words.rpartition(":")
    if not colon or not where or not what:
        raise BadRequest(f"{words!r} does not name an object; write MODULE:OBJECT or FILE.py:OBJECT")
    call = _Call(what)
    module = _file(Path(where)) if where.endswith(".py") else _module(where)
    if not hasattr(module, call.name):
        raise BadRequest(f"{where} has no {call.name!r}{nearest(call.name, _own(module))}")
    found = getattr(module, call.name)
    if not call.called:
        return found
    try:
        return found(*call.positional, **call.named)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{what}: {error}") from error


def _own(module: ModuleType) -> list[str]:
    """What of a module can be tried: of a file no imports, of a package what it gives out."""
    import adacgd

    kinds = adacgd.Compressor | adacgd.Unbiased | adacgd.ThreePoint
    given = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    fits = lambda v: issubclass(v, kinds) if isinstance(v, type) else isinstance(v, kinds)
    imported = lambda v: isinstance(v, type) and v.__module__ != module.__name__ and not hasattr(module, "__path__")
    return [name for name, value in given.items() if fits(value) and not imported(value)]


class _Call:
    """NAME, or NAME(1, k=2) with plain values."""

    def __init__(self, what: str) -> None:
        try:
            tree = ast.parse(what, mode="eval").body
            self.called = isinstance(tree, ast.Call)
            name = tree.func if isinstance(tree, ast.Call) else tree
            if not isinstance(name, ast.Name):
                raise ValueError
            self.name = name.id
            arguments = tree.args if isinstance(tree, ast.Call) else []
            keywords = tree.keywords if isinstance(tree, ast.Call) else []
            self.positional = [ast.literal_eval(a) for a in arguments]
            self.named = {str(k.arg): ast.literal_eval(k.value) for k in keywords}
        except (SyntaxError, ValueError):
            raise BadRequest(f"{what!r} is neither a name nor a call with plain values, such as TopK(5)") from None


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadRequest(f"{path} is {'a folder' if path.is_dir() else 'no file there'}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    with _beside(path.resolve().parent):
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise BadRequest(f"{path}: {type(error).__name__}: {error}") from error
    return module


def _module(name: str) -> ModuleType:
    with _beside(Path.cwd()):
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise BadRequest(f"cannot import {name!r}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _beside(folder: Path) -> Any:
    """What lies in the folder can be imported, as it could from a script there."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
