"""The whole tool over the chat endpoint: the same prompts, the same proof, another door."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgate.domain.history import ProbeAnswered, ProbeSent
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Reason
from kvgate.domain.verdict import Verdict
from kvgate.engines.chat import ChatFrame, frame_between
from kvgate.sim.deployment import Deployment
from kvgate.sim.node import RefusedError
from kvgate.sim.topology import Topology
from kvgate.store.run_directory import read_history
from tests.gate.test_arms import LATER, USUAL, gated

# Texts that are made before the second group.
ENOUGH = 20


def as_chat(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
    content["requests"]["endpoint"] = "chat"


@pytest.mark.parametrize("topology", [Topology.COMBINED, Topology.PAIR, Topology.PD])
def test_a_healthy_deployment_passes_by_chat(tmp_path: Path, topology: Topology) -> None:
    plan, ruling = gated(tmp_path, arms=[*USUAL, "third", "isolation"], change=as_chat, topology=topology)
    assert ruling.verdict is Verdict.PASS
    assert any("prompts are sent as chats" in note for note in ruling.notes)
    # Every prompt is as long as planned, the template's tokens included, and came back as it was meant.
    (run,) = (tmp_path / "runs").glob("[0-9]*")
    entries = list(read_history(run))
    lengths = {entry.probe.length for entry in entries if isinstance(entry, ProbeSent) and entry.probe.arm is Arm.COLD}
    assert {group.length for group in plan.groups} == lengths
    lengths |= {group.length for group in plan.sentinels}
    answers = [entry.observation for entry in entries if isinstance(entry, ProbeAnswered)]
    assert all(answer.prompt_echoed for answer in answers)
    assert all(answer.usage is not None and answer.usage.prompt_tokens in lengths for answer in answers)


@pytest.mark.parametrize(("fault", "topology"), [("zero_block", Topology.COMBINED), ("transfer_reversed", Topology.PD)])
def test_a_fault_is_found_by_chat(tmp_path: Path, fault: str, topology: Topology) -> None:
    _, ruling = gated(tmp_path, fault, USUAL, as_chat, topology=topology)
    assert ruling.verdict is Verdict.FAIL


def test_arms_that_send_parts_of_a_prompt_are_left_out(tmp_path: Path) -> None:
    plan, ruling = gated(tmp_path, arms=[*USUAL, *LATER], change=as_chat)
    assert not {Arm.MIXED, Arm.BRANCH} & {step.arm for group in plan.groups for step in group.steps}
    assert ruling.verdict is Verdict.PASS


def test_c10_a_template_that_makes_another_prompt_of_it_compares_nothing(tmp_path: Path) -> None:
    """A message whose text is tokenised otherwise than it was meant is another prompt."""

    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        as_chat(deployment, content, urls)
        words = deployment.nodes["engine"].memory.words
        plain = words.text
        words.text = lambda ids: plain(ids) + " indeed"  # type: ignore[method-assign]

    _, ruling = gated(tmp_path, arms=USUAL, change=change)
    assert ruling.verdict is Verdict.INCONCLUSIVE
    assert Reason.PROMPT_CHANGED in {problem.reason for problem in ruling.reasons}


def test_a_server_that_no_longer_gives_the_text_is_no_crash_and_no_failure(tmp_path: Path) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        as_chat(deployment, content, urls)
        words, asked = deployment.nodes["engine"].memory.words, iter(range(10**6))
        plain = words.text
        # The first questions are answered; detokenising gives out once groups are under way.
        words.text = lambda ids: _plain_or_none(plain, list(ids), next(asked))  # type: ignore[method-assign]

    _, ruling = gated(tmp_path, arms=USUAL, change=change)
    assert (Verdict.INCONCLUSIVE, Reason.OBSERVATION_MISSING) == (ruling.verdict, ruling.reasons[0].reason)
    assert "/detokenize" in ruling.reasons[0].detail


def _plain_or_none(plain: Callable[[list[int]], str], ids: list[int], number: int) -> str:
    if len(ids) > 100 and number > ENOUGH:
        raise RefusedError(500, "no text any more")
    return plain(ids)


@pytest.mark.parametrize(("one", "other", "frame"), [
    ((1, 2, 9, 8), (1, 3, 4, 9, 8), ChatFrame((1,), (9, 8))),
    ((2, 2), (3, 4), ChatFrame((), ())),
    ((1, 5, 5, 8), (1, 5, 5, 5, 8), None),
    ((1, 2), (1, 2), None),
])  # fmt: skip
def test_the_frame_is_what_two_chats_have_in_common(
    one: tuple[int, ...], other: tuple[int, ...], frame: ChatFrame | None
) -> None:
    if frame is None:
        with pytest.raises(ValueError, match="the same chat"):
            frame_between(one, other)
    else:
        assert frame == frame_between(one, other)
