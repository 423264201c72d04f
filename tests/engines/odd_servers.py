"""The whole gate on a scripted server whose answers are edited on their way out, into what the field has seen."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.driving import Driven, kvgate, write_config
from tests.engines.loopback import sse
from tests.scripted.server import ScriptedServer, framed

Events = list[dict[str, Any]]
# Edits the events of one streamed answer in place; the flag says whether the prompt was an external hit.
Edit = Callable[[Events, bool], None]

ONE_GROUP: dict[str, Any] = {"gate": {"tiers": [400], "groups_per_tier": 1, "boundaries": False}}


def run_gate(folder: Path, server: ScriptedServer, **changes: dict[str, Any]) -> Driven:
    """Run the gate on a server."""
    config = write_config(folder, [server], {**ONE_GROUP, **changes})
    return kvgate(folder, "run", "-c", str(config), "--format", "json", "-q")


def edit_answers(server: ScriptedServer, edit: Edit, done: bool = True) -> None:
    """Let ``edit`` at every streamed answer from now on; ``done`` is whether it still ends with [DONE]."""

    def answer(body: dict[str, Any]) -> bytes:
        server.script.completion = None
        hits = server.external_hits
        status, kind, content = server.completion(body)
        server.script.completion = answer
        if status == 200 and body.get("stream"):
            lines = content.decode().splitlines()
            events: Events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            edit(events, server.external_hits > hits)
            content = sse(*events, done=done)
        return framed(status, kind, content)

    server.script.completion = answer


def found(driven: Driven) -> set[str]:
    """Every reason that stands anywhere in a ruling."""
    return {
        str(value)
        for text in _problems(driven.ruling)
        for key, value in text.items()
        if key == "reason" and value is not None
    }


def _problems(value: object) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        own = [value] if "reason" in value else []
        return own + [each for inner in value.values() for each in _problems(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in _problems(inner)]
    return []
