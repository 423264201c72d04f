"""Start-up logs of engines, read line by line: the figures of KV memory in the formats of vLLM 0.23 to 0.33."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvgate.domain.preflight.capacity import Told, Word
from kvgate.errors import ConfigError

# The name in brackets before a line: (Worker_DP0_TP1_EP1 pid=7), (EngineCore_DP1 pid=7), (Worker pid=7).
_WHO = re.compile(r"\((?P<kind>[A-Za-z]+)(?P<ranks>(?:_[A-Z]+\d+)*)(?: pid=\d+)?\)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"(\d[\d,]{0,17}(?:\.\d{1,9})?)"
# Sources: vllm-ascend worker.py (0.23 to main), vLLM kv_cache_utils.py 0.23, 0.26, 0.33, cpu_worker.py, interface.py,
# api_utils.py; facts (vllm-ascend §8) and the lab's own logs.
_PATTERNS = (
    (Word.MEMORY, re.compile(rf"Available KV cache memory: {_NUMBER} GiB")),
    (Word.MEMORY, re.compile(rf"Explicitly set \({_NUMBER}/[\d.]+\) GiB for KV cache")),
    (Word.TOKENS, re.compile(rf"\bKV cache size: {_NUMBER} tokens")),
    (Word.CONCURRENCY, re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x")),
    (Word.LONGEST, re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request")),
    (Word.GRANULE, re.compile(rf"\blcm_block_size: {_NUMBER}")),
    (Word.GRANULE, re.compile(rf"kv lcm block sizes {_NUMBER}")),
    (Word.BLOCK, re.compile(rf"Setting (?:attention )?block size to {_NUMBER}")),
    (Word.GROUPS, re.compile(rf"\bnum_(?:kv_cache_)?groups[=:] ?{_NUMBER}")),
    (Word.SCALED, re.compile(rf"scale logical KV budget by {_NUMBER}")),
    (Word.BATCH, re.compile(rf"'max_num_batched_tokens': {_NUMBER}")),
    (Word.BATCH, re.compile(rf"Chunked prefill is enabled with max_num_batched_tokens={_NUMBER}")),
)
_VERSION = re.compile(r"Initializing a V1 LLM engine \(v([^)\s]+)\)")
# What any of the patterns begins with, so that most lines of a log cost one search.
_ANY = re.compile(r"KV cache|concurrency|block size|block_size|groups|KV budget|max_num_batched_tokens|V1 LLM engine")


def told_by(lines: Iterable[str]) -> Iterator[Told]:
    """The figures in the lines of a log."""
    for number, text in enumerate(lines, 1):
        if _ANY.search(text) is None:
            continue
        plain = _ESCAPES.sub("", text)
        engine, rank = _who(plain)
        version = _VERSION.search(plain)
        if version is not None:
            yield Told(Word.VERSION, version[1], engine, rank, number)
        for word, pattern in _PATTERNS:
            found = pattern.search(plain)
            if found is not None:
                yield Told(word, float(found[1].replace(",", "")), engine, rank, number)


def _who(text: str) -> tuple[int, str]:
    """Which data-parallel engine a line is of (0 if it does not tell), and which of its ranks."""
    found = _WHO.search(text)
    if found is None:
        return 0, "rank 0"
    ranks = dict(re.findall(r"_([A-Z]+)(\d+)", found["ranks"]))
    engine = int(ranks.pop("DP", 0))
    return engine, " ".join(f"{name}{value}" for name, value in ranks.items()) or "rank 0"


def read_startup_log(path: Path) -> list[Told]:
    """The figures in a log file, read as a stream. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return list(told_by(file))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give the log of an engine's start") from None
