"""A replay file: one group of a run with all that sending it again takes, and what was heard of it then.

    kvgate.replay/1    endpoints by role, salts as they were sent, arms in order, token IDs by part, what differed; the
                       plan of that group, the configuration, and the recorded entries, so that it is judged the same

There is no secret in it: the configuration names the environment variable that holds the key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from kvgate.domain.history import Entry, ProbeSent
from kvgate.domain.plan import GroupPlan, Plan, length_of
from kvgate.domain.probe import Arm, Part
from kvgate.domain.probe import Path as ProbePath
from kvgate.domain.replay import Replay
from kvgate.errors import RecordError
from kvgate.store.records import read_document, unwritable, write_whole
from kvgate.store.run_directory import PROMPTS

FORMAT = "kvgate.replay/1"
REPLAYS = "replay"


@dataclass(frozen=True, slots=True)
class ReplayEndpoint:
    """One endpoint of the deployment."""

    name: str
    role: str
    url: str


@dataclass(frozen=True, slots=True)
class ReplayArm:
    """One arm in the order of sending. ``salt`` is the one that was sent; ``part`` is which of the prompts."""

    arm: Arm
    endpoint: str
    path: ProbePath
    salt: str | None
    part: Part
    length: int
    drop_local: bool
    settle: bool
    rank: int | None


_Entry = Annotated[Entry, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class ReplayFile:
    """What stands in the file."""

    run_id: str
    kvgate_version: str
    group: str
    differed: tuple[str, ...]
    endpoints: tuple[ReplayEndpoint, ...]
    arms: tuple[ReplayArm, ...]
    prompts: dict[Part, list[int]]
    plan: Plan
    config: dict[str, Any]
    entries: tuple[_Entry, ...]
    format: Literal["kvgate.replay/1"] = "kvgate.replay/1"

    def replay(self) -> Replay:
        """What it takes to send the group again."""
        prompts = tuple((part, tuple(ids)) for part, ids in self.prompts.items())
        return Replay(self.run_id, self.plan, prompts, self.entries, self.differed)


_FILE: TypeAdapter[ReplayFile] = TypeAdapter(ReplayFile)
_IDS: TypeAdapter[list[int]] = TypeAdapter(list[int])


def replay_schema() -> dict[str, Any]:
    """The JSON Schema of a replay file."""
    schema = _FILE.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def replay_file(replay: Replay, version: str, config: dict[str, Any]) -> ReplayFile:
    """The file of a replay."""
    return ReplayFile(
        run_id=replay.run_id,
        kvgate_version=version,
        group=replay.group.id,
        differed=replay.differed,
        endpoints=tuple(
            ReplayEndpoint(each.name, each.role.value, each.url) for each in replay.plan.deployment.endpoints
        ),
        arms=tuple(_arms(replay)),
        prompts={part: list(ids) for part, ids in replay.prompts},
        plan=replay.plan,
        config=config,
        entries=replay.entries,
    )


def _arms(replay: Replay) -> Iterator[ReplayArm]:
    sent = {entry.probe.arm: entry.probe.salt for entry in replay.entries if isinstance(entry, ProbeSent)}
    group = replay.group
    for step in group.steps:
        yield ReplayArm(
            arm=step.arm,
            endpoint=step.endpoint,
            path=step.path,
            salt=sent.get(step.arm),
            part=step.part,
            length=length_of(group, step),
            drop_local=step.drop_local,
            settle=step.settle,
            rank=step.rank,
        )


def write_replay(path: Path, content: ReplayFile) -> None:
    """Write a replay file. Raises RecordError."""
    write_text(path, _FILE.dump_json(content, indent=1).decode() + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file whole, with its folder. Raises RecordError."""
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise unwritable(path, error) from None


def read_replay(path: Path) -> ReplayFile:
    """The replay file at that place. Raises RecordError."""
    if not path.exists():
        raise RecordError(f"{path}: there is no such file; give a replay file, or a run directory that has a FAIL")
    return read_document(path, _FILE, FORMAT, ("replay file", "replay file", "kvgate run"))


def read_prompts(run: Path, group: GroupPlan) -> tuple[tuple[Part, tuple[int, ...]], ...]:
    """The token IDs of a group's prompts as they were kept: the whole one, and those that are no beginning of it.

    Raises RecordError.
    """
    found: list[tuple[Part, tuple[int, ...]]] = []
    parts = {step.part for step in group.steps}
    for part, name in (
        (Part.WHOLE, group.id),
        *((part, prompt_name(group.id, part)) for part in (Part.BRANCH, Part.CONTINUED) if part in parts),
    ):
        file = run / PROMPTS / f"{name}.json"
        try:
            found.append((part, tuple(_IDS.validate_json(file.read_bytes()))))
        except FileNotFoundError:
            if part is Part.WHOLE:
                raise RecordError(
                    f"{file}: there is no such file, and the group's prompt is in no other; replay a run that has it"
                ) from None
            # The group ended before that prompt was sent.
        except (OSError, ValidationError) as error:
            raise RecordError(f"{file}: no list of token IDs can be read from it ({type(error).__name__})") from None
    return tuple(found)


def prompt_name(group: str, part: Part) -> str:
    """What a part of a group's prompt is called among those that are kept."""
    return group if part is Part.WHOLE else f"{group}.{part.value}"
