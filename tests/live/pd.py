"""Prefill/decode deployments of the lab: the ways to reach them, and the switch for transfer faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.live.lab import Gated, Lab

PREFILL, DECODE, PROXY, WIRE, ROUTER = (f"http://127.0.0.1:{port}" for port in (8101, 8102, 8103, 8104, 8105))
# The way in: a gateway's address, or none where kvgate sends both legs, with prefill's address as kvgate sees it.
ROUTES: dict[str, tuple[str | None, str]] = {
    "two_leg": (None, PREFILL),
    "wire": (None, WIRE),
    "proxy": (PROXY, PREFILL),
    # Here what kvgate sends past the gateway goes wrong as well: the transfer is at fault, not the gateway.
    "proxy_and_wire": (PROXY, WIRE),
    "router": (ROUTER, PREFILL),
}


def endpoints(route: str) -> list[dict[str, str]]:
    gateway, prefill = ROUTES[route]
    found = [
        {"name": "prefill", "role": "prefill", "url": prefill},
        {"name": "decode", "role": "decode", "url": DECODE},
    ]
    return found if gateway is None else [{"name": "gateway", "role": "gateway", "url": gateway}, *found]


def config_of(lab: Lab, name: str, route: str, **changes: dict[str, Any]) -> Path:
    deployment = {**changes.pop("deployment", {}), "endpoints": endpoints(route)}
    return lab.config(name, deployment=deployment, **changes)


@contextmanager
def fault(kind: str, swallow: bool = False) -> Iterator[None]:
    """What the lab's proxy does to transfer parameters while the block runs."""
    _set(kind, swallow)
    try:
        yield
    finally:
        _set("none", False)


def _set(kind: str, swallow: bool) -> None:
    reply = httpx.post(f"{PROXY}/fault", json={"kind": kind, "swallow": swallow}, timeout=120, trust_env=False)
    assert reply.json().get("kind") == kind, reply.text


def proves_transfer(gated: Gated) -> None:
    """Every arm came by its path on prefill, and all but prefill's own answers by transfer to decode."""
    arms = [arm for group in gated.ruling["groups"] for arm in group["arms"]]
    assert arms
    assert all(arm["proven"] for arm in arms), arms


def transferred(gated: Gated) -> list[dict[str, Any]]:
    """The pairs of a transferred answer and prefill's own: with a gateway, those of the legs sent past it."""
    pairs = gated.pairs("local", "prefill_direct") + gated.pairs("two_leg", "prefill_direct")
    assert pairs
    return pairs


def blamed(gated: Gated) -> set[str]:
    """The parts that failing pairs speak against."""
    said = [pair["attribution"] for group in gated.ruling["groups"] for pair in group["pairs"] if pair["attribution"]]
    return {text.split(":")[0] for text in said}
