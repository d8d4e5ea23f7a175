"""The court on trial, compressors: the guilty convicted, the honest acquitted, whatever the key.

`python -m benchmarks.trials` does the same with 20 keys.
"""

import pytest

import adacgd as ac
from benchmarks.court import cases, trial

DIM, KEYS = 12, 2
CASES = [case for case in cases(DIM) if not isinstance(case.target, ac.ThreePoint)]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_court_judges_right(case):
    done = trial(case, DIM, KEYS)
    assert done.right == KEYS, str(done.certificate)
