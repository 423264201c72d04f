"""The recorded histories hold the judge in place: each is judged as it must be, and no important change goes unnoticed.

The short form of ``scripts/bench/mutation``, which tries every change; what it measures is in
``docs/explanation/mutation.md``.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.domain.recorded import every
from tests.domain.recorded_case import told

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "mutation.py"

# What must never go unnoticed, as patterns of mutants' names (``scripts/bench/mutation --list`` prints all of them).
IMPORTANT = (
    # the decision table: each row taken away, each FAIL made milder, each protocol fault forgotten
    r"^rows:ROWS: .* without ",
    r"^rows:\w+: _fail\(.* -> _inconclusive\(",
    r"^rows:_PROTOCOL: .* without ",
    r"^rows:_contaminated: .* without Reason",
    r"^verdict:merge: .* -> (True|False)$",
    # the evidence: each guard taken away, each problem forgotten, each list of reasons without one of them
    r"^evidence:(VOIDING|WEAKENING): .* without ",
    r"^evidence:\w+: problems\.append\(.* -> pass",
    r"^evidence:\w+: .* -> False$",
    r"^evidence:read_evidence: .* without \*",
    r"^counters:difference: .* -> (False|pass)$",
    r"^standing:_(weigh|cut_short|void|timed): .* -> False$",
    r"^(log|canaries|sentinels):\w+: .* -> (True|False)$",
    # the part that is blamed
    r"^attribution:laid_at_one_door(\.laid)?: .* -> (True|False)$",
    r"^attribution:_DOORS: .* without ",
    # the drift comparison
    r"^rows:exact_drift: .* -> (True|False)$",
    r"^rows:exact_drift: drift is None or drift == 0.0 without",
    r"^divergence:Comparison\.(exact|within): .* (-> (True|False|pass)|<= 1e-06|without .*)$",
    r"^divergence:_drift: .* -> (True|False)$",
    r"^divergence:_apart: ",
    # what makes a pair exact, and what its controls are
    r"^pairing:_(why_not_exact|why_another_shape): .* -> False$",
    r"^group_view:proven_comparison: .* -> False$",
    # when chance explains a small difference
    r"^chance:shown: .* -> (True|False)$",
    r"^pairing:_backed: .* -> (True|False)$",
    r"^pairing:proves_alignment: ",
    r"^pairing:NOISY_SHARE: ",
    r"^noise:envelope_for: .* -> (True|False)$",
)


def tried(*patterns: str) -> list[dict[str, str]]:
    """The fate of every mutant that a pattern matches, and of an unchanged copy of each module.

    Those whose survival is explained are left to the long form: each has to be judged by every case there is.
    """
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--written", "--unexplained", "--format", "json", "--only", "|".join(patterns)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def test_every_recorded_history_is_judged_as_it_must_be() -> None:
    cases = every()
    assert len({case.name for case in cases}) == len(cases)
    assert [] == [(case.name, case.required, said) for case in cases if (said := told(case.judged())) != case.required]


def test_no_important_change_goes_unnoticed_and_no_change_is_noticed_where_there_is_none() -> None:
    results = tried(*IMPORTANT)
    controls = [each for each in results if each["scope"] == "control"]
    assert controls
    assert {"survived"} == {each["fate"] for each in controls}
    mutants = [each for each in results if each["scope"] != "control"]
    assert len(mutants) > 200
    idle = [pattern for pattern in IMPORTANT if not any(re.search(pattern, each["name"]) for each in mutants)]
    assert [] == idle, "what a pattern names has another name now"
    assert [] == [each["name"] for each in mutants if each["fate"] == "survived"]


def test_the_list_of_important_changes_is_about_something() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--list"], capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()
    assert [] == [pattern for pattern in IMPORTANT if not any(re.search(pattern, name) for name in names)]
