"""Driving ``kvgate measure`` in this process: configurations for addresses, a trace, and the record it leaves."""

import json
from pathlib import Path
from typing import Any

import yaml

from kvgate.domain.measured import MeasureEntry, PartStarted, RequestSent
from kvgate.store.measure_directory import read_measure, read_requests
from tests.cli.driving import Ended, config_data, kvgate

ARRIVAL = {"rate": 50, "spread": "poisson"}
PART: dict[str, Any] = {"name": "p", "kind": "random", "count": 10, "prompt_tokens": 128, "arrival": ARRIVAL}


def config(folder: Path, name: str, *urls: str, **sections: Any) -> Path:
    """A configuration of that name for engines at these addresses."""
    data = config_data(folder, *urls, **sections)
    data["deployment"]["name"] = name
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    return file


def of_parts(urls: dict[str, str], *roles: str) -> dict[str, Any]:
    """The section of an embedded prefill/decode deployment, whose parts are called by their roles."""
    endpoints = [{"name": role, "role": role, "url": urls[role]} for role in roles]
    return {"name": "pd", "model": "sim", "endpoints": endpoints}


def trace(folder: Path, *parts: dict[str, Any], **keys: Any) -> Path:
    """A trace of these parts, each with what it does not say taken from ``PART``."""
    made = [{**PART, **each} for each in parts]
    content = {"version": 1, "seed": 7, "requests": {"max_tokens": 4}, **keys, "parts": made}
    file = folder / "trace.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


def measure(sent: Path, *configs: Path, form: str = "json") -> Ended:
    """Measure deployments and report in JSON."""
    chosen = [each for file in configs for each in ("-c", file)]
    return kvgate("measure", *chosen, "--trace", sent, "--format", form, "-q")


def report(ended: Ended) -> dict[str, Any]:
    """The JSON report."""
    found: dict[str, Any] = json.loads(ended.out)
    return found


def figures(ended: Ended, part: str = "p") -> dict[str, dict[str, Any]]:
    """The figures of one part by deployment."""
    return {each["deployment"]: each for each in report(ended)["figures"] if each["part"] == part}


def only_record(folder: Path) -> Path:
    """The one record made under ``folder``."""
    (run,) = (folder / "runs").glob("[0-9]*")
    return run


def entries(folder: Path) -> list[MeasureEntry]:
    """What was said and heard in the one measurement under ``folder``."""
    return list(read_requests(only_record(folder)))


def sent_by_leg(folder: Path, part: str = "p") -> list[list[RequestSent]]:
    """What was sent of one part, leg by leg, in the order of the trace."""
    order = [each.id for each in read_measure(only_record(folder)).plan.planned]
    found: dict[int, list[RequestSent]] = {}
    for entry in entries(folder):
        if isinstance(entry, RequestSent) and entry.part == part:
            found.setdefault(entry.leg, []).append(entry)
    return [sorted(each, key=lambda sent: order.index(sent.request)) for each in found.values()]


def starts(folder: Path) -> list[PartStarted]:
    """How each part of each leg began."""
    return [entry for entry in entries(folder) if isinstance(entry, PartStarted)]
