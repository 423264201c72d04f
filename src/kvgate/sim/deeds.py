"""What an engine did: as it says itself, and as it really was."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What a rank says it did, in prompt tokens unless named otherwise."""

    prompt: int = 0
    computed: int = 0
    local: int = 0
    external: int = 0
    local_queries: int = 0
    external_queries: int = 0
    external_hits: int = 0
    preemptions: int = 0
    requests: int = 0
    generated: int = 0
    transferred_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Deed:
    """What really happened to one request, whatever the counters say: prompt tokens by path, objects changed, where."""

    length: int
    computed: int
    local: int
    external: int
    transferred: int = 0
    spoilt: int = 0
    rank: int = 0
    batch: int = 1
