"""Reading data: the malformed files with their recorded answers, scikit-learn as oracle, the registry, arrays."""

import bz2
import dataclasses
import gzip
import hashlib
import importlib
import io
import json
import lzma
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import libsvm
from problems.datasets import Data, as_data, datasets, load
from problems.libsvm import LibsvmError, MissingFileError, Options, parse, read

sets = importlib.import_module("problems.datasets")  # the package has a function of that name

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
MALFORMED = ROOT / "tests" / "data" / "malformed"
CASES = {case["file"]: case for case in json.loads((MALFORMED / "expected.json").read_text("utf-8"))["cases"]}
AT_HAND = [name for name in sets._FILES if (SHARED / "data" / f"{name}.xz").is_file()]
real_files = pytest.mark.skipif(not AT_HAND, reason="no real data files: ../shared/data is not here")
fixed = settings(derandomize=True, database=None, deadline=None, max_examples=60)


def dense(features):
    return features.toarray() if sp.issparse(features) else features


def refused(path, options=None, line=None, says=()):
    with pytest.raises(LibsvmError) as caught:
        read(path, options)
    message = str(caught.value)
    assert str(path) in message
    assert caught.value.line == line
    assert ("line " in message.split(str(path), 1)[1][:7]) == (line is not None)
    for word in (*says, *([f"line {line}:"] if line else [])):
        assert word in message
    return caught.value


@pytest.fixture(autouse=True)
def no_outer_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("ADACGD_DATA", raising=False)
    monkeypatch.setattr(sets.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))


# --- the malformed files -----------------------------------------------------------------------------------------


def test_the_malformed_files_are_exact_to_the_byte():
    assert len(CASES) == 86
    assert {path.name for path in MALFORMED.iterdir()} == {*CASES, "expected.json", "README.md"}
    for name, case in CASES.items():
        content = (MALFORMED / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (case["bytes"], case["sha256"]), name


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("sparse", [None, True, False])
def test_malformed(case, sparse):
    path = MALFORMED / case["file"]
    if case["verdict"] == "error":
        says = [*(case["error_must_mention"] or ()), *(case["error_wording_hint"] or ())]
        fault = refused(path, Options(sparse=sparse), case["error_line"], says)
        tokens = [word for word in says if fault.line and not case["error_wording_hint"]]
        assert not tokens or fault.token in str(fault)
        assert all(word in str(fault).replace(f"line {fault.line}:", "") for word in tokens)
        return
    table = read(path, Options(sparse=sparse))
    expected = np.zeros(case["shape"])
    for row, entries in enumerate(case["rows"]):
        for column, value in entries:
            expected[row, column] = value
    np.testing.assert_array_equal(dense(table.features), expected)
    np.testing.assert_array_equal(table.labels, case["y"])
    assert table.features.dtype == table.labels.dtype == np.float64
    if sparse is not None:
        assert sp.issparse(table.features) == sparse
    if sparse:
        assert table.features.nnz == np.count_nonzero(expected)
        assert table.features.has_canonical_format
        assert table.features.indices.dtype == np.int32


def test_options_of_the_malformed_files():
    same = read(MALFORMED / "zero_based.svm", Options(index_base=0))
    np.testing.assert_array_equal(dense(same.features), dense(read(MALFORMED / "one_based.svm").features))
    refused(MALFORMED / "zero_based.svm", Options(index_base=1), 1, ["index 0", "index_base=0"])
    shifted = read(MALFORMED / "zero_based_no_zero_index.svm", Options(index_base=0))
    np.testing.assert_array_equal(dense(shifted.features), [[0, 0.5, 0, 0], [0, 0, 2, 0], [0, 1, 0, 4]])
    wide = read(MALFORMED / "width_test_narrow.svm", Options(n_features=5))
    np.testing.assert_array_equal(dense(wide.features), [[1, 0, 2, 0, 0], [0, 1, 0, 0, 0]])
    refused(MALFORMED / "width_test_wide.svm", Options(n_features=5), 2, ["index 7", "n_features=5"])
    empty = read(MALFORMED / "all_rows_without_features.svm", Options(n_features=4))
    np.testing.assert_array_equal(dense(empty.features), np.zeros((2, 4)))
    fault = refused(MALFORMED / "value_float64_only.svm", Options(dtype="float32"), 1, ["1.5e300", "float32"])
    assert fault.token == "1:1.5e300"
    huge = MALFORMED / "index_huge_dense.svm"
    table = read(huge, Options(n_features=10**9))
    assert table.features.shape == (2, 10**9) and table.features.nnz == 2
    refused(huge, Options(n_features=10**9, sparse=False), None, ["1000000000", "sparse=True"])


def test_git_lfs_pointers_are_told_whatever_their_name(tmp_path):
    pointer = (MALFORMED / "git_lfs_pointer.svm").read_bytes()
    for name in ("a9a", "a9a.xz", "a9a.gz"):
        (tmp_path / name).write_bytes(pointer)
        refused(tmp_path / name, None, 1, ["Git LFS pointer", "git lfs pull"])


def test_foreign_archives_are_named(tmp_path):
    (tmp_path / "x.svm").write_bytes(b"PK\x03\x04 and so on")
    refused(tmp_path / "x.svm", None, None, ["zip"])


@pytest.mark.parametrize("step", [7, 1 << 20])
@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_streams_of_several_members_and_broken_ones(module, step, tmp_path, monkeypatch):
    monkeypatch.setattr(libsvm, "_STEP", step)
    path = tmp_path / "x.svm"
    one, two = module.compress(b"+1 1:0.5 3:2\n"), module.compress(b"-1 2:-1.25\n" * 3000)
    path.write_bytes(one + two)
    assert read(path).features.shape == (3001, 3)
    path.write_bytes(one + two + b"\0" * 8)
    assert read(path).features.shape == (3001, 3)
    path.write_bytes(one + b"rubbish after the stream")
    refused(path, None, None, ["corrupt"])
    for cut in {*range(len(one) + 8, len(one + two), 9), len(one + two) - 1}:
        path.write_bytes((one + two)[:cut])
        refused(path, None, None, ["truncated"])


# --- paths -------------------------------------------------------------------------------------------------------


def test_bad_paths(tmp_path, monkeypatch):
    with pytest.raises(MissingFileError, match=r"nothing\.svm") as caught:
        load(path=tmp_path / "nothing.svm")
    assert isinstance(caught.value, FileNotFoundError) and isinstance(caught.value, LibsvmError)
    refused(tmp_path, None, None, ["directory"])
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", None, None, ["not a regular file"])
    (tmp_path / "locked").write_bytes(b"+1 1:1\n-1 1:2\n")

    def no_open(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", no_open)  # a test that runs as root cannot lock a file
    refused(tmp_path / "locked", None, None, ["Permission denied"])


@pytest.mark.parametrize("how", ["cut", "replaced", "removed"])
def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch, how):
    path, honest, calls = tmp_path / "x.svm", libsvm._stamp, []
    path.write_bytes(b"+1 1:1\n-1 1:2\n")

    def stamp(where):
        calls.append(where)
        if len(calls) == 2:  # after the bytes are read
            if how == "cut":
                path.write_bytes(b"+1 1:1\n")
            path.unlink() if how != "cut" else None
            if how == "replaced":
                path.write_bytes(b"+1 1:1\n-1 1:3\n")
        return honest(where)

    monkeypatch.setattr(libsvm, "_stamp", stamp)
    with pytest.raises(LibsvmError, match=r"x\.svm: (the file changed while it was read|there is no such file)"):
        read(path)


def test_errors_survive_pickling():
    fault = refused(MALFORMED / "value_text.svm", None, 2, ["2:abc"])
    again = pickle.loads(pickle.dumps(fault))
    assert (str(again), again.path, again.line, again.token) == (str(fault), fault.path, 2, "2:abc")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"n_features": n} for n in (0, -1, 2.0, True, "4", 2**31)),
        *({"index_base": n} for n in (2, -1, True, 1.0, "1")),
        *({"dtype": n} for n in ("float16", "int64", None, "double precision")),
        {"sparse": "yes"},
    ],
    ids=str,
)
def test_options_are_refused_before_the_file_is_looked_for(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))) as caught:
        load(path="nothing.svm", **wrong)
    assert not isinstance(caught.value, LibsvmError)


# --- the grammar -------------------------------------------------------------------------------------------------


def reference(text):
    """The rules once more, token by token and without the reader's expressions: rows, or the number of the bad line."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.split("#")[0]
        line = line[:-1] if line.endswith("\r") else line
        tokens = [token for part in line.split(" ") for token in part.split("\t") if token]
        if len(tokens) > 1 and tokens[1].startswith("qid:") and tokens[1][4:].isdigit():
            del tokens[1]
        if not tokens:
            continue
        try:
            label, entries = decimal(tokens.pop(0)), []
            while tokens:
                index, value = tokens.pop(0).split(":")
                if not index.isdigit() or (not value and not tokens):
                    raise ValueError
                entries.append((int(index), decimal(value or tokens.pop(0))))
        except ValueError:
            return number
        rows.append((number, label, entries))
    return rows


def decimal(token):
    if not set(token) <= set("0123456789+-.eE"):
        raise ValueError
    return float(token)


PIECES = [
    "+1",
    "-1",
    " ",
    " ",
    "\t",
    "\n",
    "\n",
    "\r\n",
    "1:0.5",
    "2:-3",
    ":",
    "#",
    "qid:3",
    ".",
    "-",
    "e5",
    "0",
    "1_0",
]
PIECES += ["\r", "\x0b", "nan", "7: 1e3", "3:.5", "4:5.", "é", "\0"]


@settings(fixed, max_examples=600)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_lines_are_taken_exactly_by_the_rules(text):
    expected = reference(text)
    try:
        found = libsvm._rows(text.encode(), "x.svm")
    except LibsvmError as fault:
        assert fault.line == expected
        assert "this line is not" not in str(fault)  # the general answer: a rule was not told
        return
    rows, start = [], 0
    for number, label, count in zip(found.line, found.label, found.count, strict=True):
        part = slice(start, start := start + count)
        rows.append((number, label, list(zip(found.index[part].tolist(), found.value[part].tolist(), strict=True))))
    assert rows == expected


values = st.floats(allow_nan=False, allow_infinity=False)


@fixed
@given(
    st.lists(st.dictionaries(st.integers(1, 40), values, max_size=8), min_size=2, max_size=12).filter(any),
    st.booleans(),
    st.sampled_from(["\n", "\r\n", " \n"]),
)
def test_written_tables_come_back_and_scikit_learn_agrees(rows, from_zero, end):
    from sklearn.datasets import load_svmlight_file

    labels = [i % 2 for i in range(len(rows))]
    lines = [
        " ".join([str(y), *(f"{i - from_zero}:{v!r}" for i, v in sorted(r.items()))])
        for y, r in zip(labels, rows, strict=True)
    ]
    text = end.join([*lines, ""]).encode()
    table = parse(text, "x.svm", Options(index_base=1 - from_zero, n_features=40))
    expected = np.zeros((len(rows), 40))
    for row, entries in enumerate(rows):
        for index, value in entries.items():
            expected[row, index - 1] = value
    np.testing.assert_array_equal(dense(table.features), expected)
    np.testing.assert_array_equal(table.labels, np.where(np.array(labels) == 1, 1.0, -1.0))
    oracle, _ = load_svmlight_file(io.BytesIO(text), n_features=40, zero_based=from_zero)
    np.testing.assert_array_equal(dense(table.features), oracle.toarray())


def test_the_first_bad_line_is_the_one_reported(tmp_path):
    path = tmp_path / "x.svm"
    path.write_bytes(b"+1 1:1e999\n-1 x:1\n")
    refused(path, None, 1, ["1:1e999"])
    path.write_bytes(b"+1 1:1\n1e999 2:1\n-1 99999999999:1e999\n")
    refused(path, None, 2, ["label", "1e999"])


def test_long_lines_and_long_tokens_stay_linear(tmp_path):
    start = time.perf_counter()
    wide = b"+1 " + b" ".join(b"%d:1" % i for i in range(1, 200_001)) + b"\n-1\n"
    assert parse(wide, "x").features.shape == (2, 200_000)
    for token in (
        b"1:" + b"1" * 200_000 + b"x",
        b"9" * 200_000 + b":1",
        b"0" * 200_000 + b"1:1",
        b"1" * 200_000 + b"_:1",
    ):
        with pytest.raises(LibsvmError) as caught:
            parse(b"+1 1:1\n-1 " + token, "x")
        assert caught.value.line == 2 and len(str(caught.value)) < 400
    long = parse(b"+1 0001:0." + b"1" * 50_000 + b"\n-1 1:2\n", "x")
    np.testing.assert_array_equal(long.features, [[1 / 9], [2]])
    assert time.perf_counter() - start < 5


def test_width_limit_and_label_lists():
    with pytest.raises(LibsvmError, match="10000001 wide"):
        parse(b"+1 10000001:1\n-1 1:1\n", "x")
    assert parse(b"+1 10000000:1\n-1 1:1\n", "x").features.shape == (2, 10_000_000)
    with pytest.raises(LibsvmError, match=r"line 3: '2':.* has 30: 0, 1, 2, 3, .*, 19, \.\.\.$"):
        parse(b"".join(b"%d 1:1\n" % i for i in range(30)), "x")


def test_fr23_indices_and_width(tmp_path):
    path = tmp_path / "fr23.svm"
    path.write_bytes(b"1 1:2 3:4\n-1 2:1\n")
    np.testing.assert_array_equal(dense(load(path=path).features), [[2, 0, 4], [0, 1, 0]])
    assert load(path=path, n_features=5).features.shape == (2, 5)
    with pytest.raises(LibsvmError, match=r"fr23\.svm, line 1: '3:4': index 3"):
        load(path=path, n_features=2)


# --- the registry ------------------------------------------------------------------------------------------------


def test_names():
    assert datasets()[:2] == ("breast_cancer", "digits")
    assert {"phishing", "a9a.t", "w6a", "w8a", "ijcnn1", "real-sim", "rcv1_train", "covtype"} < set(datasets())
    for wrong, near in [("phising", "phishing"), ("A9a", "a9a"), ("brest_cancer", "breast_cancer")]:
        with pytest.raises(ValueError, match=f"'{wrong}'; the nearest is '{near}'"):
            load(wrong)
        with pytest.raises(ValueError, match=near):
            load(wrong, path="x.svm")
    with pytest.raises(ValueError, match="name"):
        load()


@real_files
@pytest.mark.parametrize("name", AT_HAND)
def test_real_files(name, monkeypatch):
    from sklearn.datasets import load_svmlight_file

    path = SHARED / "data" / f"{name}.xz"
    monkeypatch.setenv("ADACGD_DATA", str(path.parent))
    start = time.perf_counter()
    data = load(name)
    assert time.perf_counter() - start < 2
    official = sets._FILES[name]
    assert data.features.shape == (official.rows, official.width)
    assert (data.name, data.source, data.sha256) == (name, str(path), official.sha256)
    assert data.verified == "sha256"
    raw = lzma.decompress(path.read_bytes())
    oracle, labels = load_svmlight_file(io.BytesIO(raw), n_features=official.width, zero_based=False)
    oracle.eliminate_zeros()
    assert abs(sp.csr_array(data.features) - oracle).nnz == 0
    assert (
        sp.issparse(data.features) == (oracle.nnz < 0.25 * official.rows * official.width) == (data.storage == "sparse")
    )
    np.testing.assert_array_equal(data.labels, np.where(labels == labels.max(), 1, -1))
    assert set(data.labels) == {-1, 1}


@real_files
def test_single_precision_and_forced_storage(monkeypatch):
    monkeypatch.setenv("ADACGD_DATA", str(SHARED / "data"))
    double, single = load("heart_scale"), load("heart_scale", dtype="float32", sparse=True)
    assert sp.issparse(single.features) and single.features.dtype == single.labels.dtype == np.float32
    np.testing.assert_array_equal(single.features.toarray(), double.features.astype(np.float32))
    assert isinstance(load("a1a", sparse=False).features, np.ndarray)


SMALL = b"+1 1:1 2:2\n-1 2:3\n"


@pytest.fixture
def small(monkeypatch):
    """A registered set of two rows, with its checksum."""
    official = sets._Official(2, 3, hashlib.sha256(SMALL).hexdigest(), also=("small.binary",))
    monkeypatch.setitem(sets._FILES, "small", official)
    return official


def test_search_path_and_its_order(small, tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("own", "first", "second", "cache/adacgd")]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.setenv("ADACGD_DATA", os.pathsep.join(["", str(folders[1]), str(folders[2])]))
    assert sets.search_path(folders[0]) == folders
    with pytest.raises(MissingFileError) as caught:
        load("small", data_dir=folders[0])
    assert all(str(folder) in str(caught.value) for folder in folders)
    assert "ADACGD_DATA" in str(caught.value) and "path=" in str(caught.value)
    for folder in reversed(folders):
        for suffix, module in ((".bz2", bz2), (".gz", gzip), (".xz", lzma), ("", None)):
            path = folder / f"small{suffix}"
            path.write_bytes(module.compress(SMALL) if module else SMALL)
            data = load("small", data_dir=folders[0])
            assert data.source == str(path) and data.verified == "sha256"
            assert data.features.shape == (2, 3) and data.name == "small"
    assert load("small").source == str(folders[1] / "small")
    for suffix in ("", ".xz", ".gz", ".bz2"):
        (folders[0] / f"small{suffix}").unlink()
    (folders[0] / "small.binary").write_bytes(SMALL)
    assert load("small.binary", data_dir=folders[0]).name == "small"
    with pytest.raises(MissingFileError, match="nowhere"):
        load("small", data_dir=tmp_path / "nowhere")


def test_a_file_that_is_not_the_official_one(small, tmp_path):
    path = tmp_path / "copy.svm"
    path.write_bytes(SMALL.replace(b"\n", b"\r\n"))
    with pytest.raises(LibsvmError, match="not the official small") as caught:
        load("small", path=path)
    assert small.sha256 in str(caught.value)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in str(caught.value)
    data = load("small", path=path, verify=False)
    assert (data.name, data.verified, data.features.shape) == ("small", "unchecked", (2, 3))
    assert load("small", path=path, verify=False, n_features=7).features.shape == (2, 7)
    with pytest.raises(ValueError, match="3 wide, not n_features=7"):
        load("small", path=path, n_features=7)
    assert load(path=path).features.shape == (2, 2)


def test_a_set_without_checksum_is_checked_by_shape(monkeypatch, tmp_path):
    monkeypatch.setitem(sets._FILES, "small", sets._Official(2, 3))
    path = tmp_path / "small.libsvm.xz"
    path.write_bytes(lzma.compress(SMALL))
    data = load("small", path=path)
    assert data.verified == "shape only" and data.sha256 == hashlib.sha256(SMALL).hexdigest()
    assert "shape only" in repr(data) and "2 x 3 dense float64" in repr(data)
    assert load(path=path).name == "small"
    path.write_bytes(lzma.compress(SMALL * 2))
    with pytest.raises(LibsvmError, match="small has 2 rows, this file has 4"):
        load("small", path=path)
    path.write_bytes(lzma.compress(b"+1 4:1\n-1 1:1\n"))
    with pytest.raises(LibsvmError, match="line 1: '4:1': index 4"):
        load("small", path=path)


@pytest.mark.parametrize(
    ("file", "name"),
    [("x.svm.xz", "x"), ("german.numer.xz", "german.numer"), ("a9a.t", "a9a.t"), ("d/p.txt", "p"), (".svm", ".svm")],
)
def test_the_name_of_a_file(file, name):
    assert sets._stem(file) == name


def test_embedded_sets():
    cancer, digits = load("breast_cancer"), load("digits")
    assert cancer.features.shape == (569, 30) and digits.features.shape == (1797, 64)
    assert cancer.labels.sum() == 357 - 212
    assert cancer.source == digits.source == "embedded" and cancer.verified == digits.verified == "sha256"
    np.testing.assert_allclose(cancer.features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(cancer.features.std(axis=0), 1, atol=1e-6)
    assert digits.features.min() == 0 and digits.features.max() == 1
    assert (digits.labels[:4] == [1, -1, 1, -1]).all()  # the first digits are 0, 1, 2, 3
    single = load("digits", dtype="float32", sparse=True)
    assert single.features.indices.dtype == np.int32
    assert single.features.dtype == single.labels.dtype == np.float32 and single.sha256 == digits.sha256
    np.testing.assert_array_equal(single.features.toarray(), digits.features)
    for wrong in ({"path": "x"}, {"index_base": 0}, {"n_features": 31}):
        with pytest.raises(ValueError, match="breast_cancer"):
            load("breast_cancer", **wrong)


def test_breast_cancer_is_that_of_the_reference_runs():
    file = SHARED / "reference" / "problem_breast_cancer.npz"
    if not file.is_file():
        pytest.skip("no reference problem: ../shared/reference is not here")
    data = load("breast_cancer")
    with np.load(file) as stored:
        np.testing.assert_array_equal(data.features, stored["A"])
        np.testing.assert_array_equal(data.labels, stored["y"])


# --- arrays ------------------------------------------------------------------------------------------------------

ROWS = np.array([[1.0, 0], [0, 2], [1, 1], [-1, 1]])


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], [1, 2, 2, 1], [-1, 1, 1, -1], [False, True, True, False]])
def test_fr22_label_coding(labels):
    data = as_data((ROWS, labels))
    np.testing.assert_array_equal(data.labels, [-1, 1, 1, -1])
    loss = np.mean(np.log1p(np.exp(-data.labels * (data.features @ np.ones(2)))))
    assert loss == pytest.approx(0.5650662, abs=5e-8)
    assert (data.name, data.source, data.sha256) == ("arrays", "arrays", None)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([1, 1, 1, 1], "found 1: 1"),
        ([0, 1, 2, 1], "found 3: 0, 1, 2"),
        ([0, 1, np.nan, 1], "nan"),
        ([0, 1, np.inf, 1], "inf"),
        ([0, 1, 1], r"shape \(4,\)"),
        ([[0], [1], [1], [0]], r"\(4, 1\)"),
        (["a", "b", "a", "b"], "real numbers"),
    ],
)
def test_bad_labels(labels, says):
    with pytest.raises(ValueError, match=says):
        as_data((ROWS, labels))


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (ROWS[:, 0], r"\(4,\)"),
        (ROWS[:, :0], r"\(4, 0\)"),
        (np.zeros((0, 2)), r"\(0, 2\)"),
        (np.where(ROWS == 2, np.nan, ROWS), "row 1 .* nan"),
        (sp.coo_array(np.where(ROWS == 2, -np.inf, ROWS)), "row 1 .* -inf"),
        (ROWS.astype(complex), "complex"),
        (sp.csr_array(ROWS.astype(complex)), "complex"),
        (ROWS.astype(object), "object"),
    ],
)
def test_bad_features(features, says):
    with pytest.raises(ValueError, match=says):
        as_data((features, [0, 1, 1, 0][: len(ROWS)]))


def test_arrays_are_taken_in_any_storage_and_never_changed():
    labels = np.array([0, 1, 1, 0])
    given = sp.csr_matrix((np.array([2, 1, 1], np.int8), np.array([1, 0, 0]), np.array([0, 3])), shape=(1, 2))
    given = sp.vstack([given] * 4, format="csr")
    before = given.copy()
    data = as_data((given, labels))
    np.testing.assert_array_equal(data.features.toarray(), [[2, 2]] * 4)
    assert data.features.dtype == np.float64 and data.features.has_canonical_format
    np.testing.assert_array_equal(given.indices, before.indices)
    assert as_data((ROWS.astype(np.float32), labels)).labels.dtype == np.float32
    assert as_data((ROWS.astype(int), labels)).features.dtype == np.float64
    whole = load("digits")
    again = as_data(whole)
    assert (again.name, again.sha256, again.features is whole.features) == ("digits", whole.sha256, True)
    assert as_data(dataclasses.replace(whole, labels=whole.labels + 3)).labels.tolist() == whole.labels.tolist()
    for wrong in (ROWS, None, (ROWS,), 3):
        with pytest.raises(ValueError, match="pair"):
            as_data(wrong)


def test_real_targets():
    targets = [0.37, 1.52, -0.9, 2.25]
    assert as_data((ROWS, targets), classes=False).labels.tolist() == targets
    with pytest.raises(ValueError, match="found 4"):
        as_data((ROWS, targets))
    with pytest.raises(ValueError, match="nan"):
        as_data((ROWS, [1, 2, 3, np.nan]), classes=False)
    with pytest.raises(ValueError, match="float32"):
        as_data((ROWS.astype(np.float32), [1, 2, 3, 1e300]), classes=False)


def test_data_cannot_be_reassigned():
    data = Data(ROWS, np.array([-1.0, 1, 1, -1]), "x", "arrays")
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "y"
