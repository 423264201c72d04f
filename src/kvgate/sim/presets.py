"""Geometries the embedded engine can take: which KV groups it has, and the sizes that decide what can be a hit."""

import math
from dataclasses import dataclass, field, replace

SMALLEST_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Preset:
    """KV groups and sizes in prompt tokens.

    ``compressed`` are the ratios of the compressed groups, each of which holds one entry per so many tokens.
    ``window`` is the sliding window's length, 0 for none. ``retention`` is the distance at which side state is kept
    (0: at every granule). ``shards`` are context-parallel ranks that hold every other block; ``top_k`` is how many
    positions an indexer lets the attention see (0: no indexer). ``shared`` adds a layer that owns no KV and reads
    another's. ``speculation`` is how many tokens a draft model proposes.
    """

    name: str
    sentence: str
    block: int
    chunk: int
    max_model_len: int
    compressed: tuple[int, ...] = ()
    window: int = 0
    recurrent: bool = False
    ngram: bool = False
    shared: bool = False
    top_k: int = 0
    shards: int = 1
    retention: int = 0
    speculation: int = 0
    # Hits come in whole granules: the least common multiple of the groups' block sizes.
    granule: int = field(init=False)
    # Distance between lengths at which a hit can end: granules at which side state was kept.
    step: int = field(init=False)

    def __post_init__(self) -> None:
        granule = math.lcm(*(self.block * ratio for ratio in (1, *self.compressed)))
        object.__setattr__(self, "granule", granule)
        object.__setattr__(self, "step", math.lcm(granule, self.retention or granule))

    def groups(self) -> tuple[str, ...]:
        """The names of the KV groups, as they stand in object names."""
        named = ["full"]
        named += ["index"] if self.top_k else []
        named += ["window"] if self.window else []
        named += [f"c{ratio}" for ratio in self.compressed]
        named += [f"carry{ratio}" for ratio in self.compressed]
        named += ["recurrent"] if self.recurrent else []
        named += ["ngram"] if self.ngram else []
        return tuple(named)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("dense", "one group of full attention", block=128, chunk=8192, max_model_len=163840),
        Preset(
            "deepseek-v4-flash",
            "compressed groups 4 and 128 and a sliding window, block 128: hits from 16384 tokens on",
            block=128,
            chunk=8192,
            max_model_len=163840,
            compressed=(4, 128),
            window=128,
            retention=16384,
        ),
        Preset(
            "deepseek-v4-flash-32",
            "the same at block 32: hits from 4096 tokens on",
            block=32,
            chunk=8192,
            max_model_len=163840,
            compressed=(4, 128),
            window=128,
            retention=4096,
        ),
        Preset(
            "deepseek-v4.1",
            "compression ratios 1 and 2, a layer on another's KV, n-gram memory, an indexer, four shards",
            block=128,
            chunk=8192,
            max_model_len=163840,
            compressed=(2,),
            window=128,
            ngram=True,
            shared=True,
            top_k=512,
            shards=4,
        ),
        Preset(
            "gdn-hybrid",
            "full attention and a recurrent state, block 512",
            block=512,
            chunk=8192,
            max_model_len=163840,
            recurrent=True,
        ),
        Preset(
            "swa-hybrid",
            "full attention and a sliding window of 1024 tokens",
            block=128,
            chunk=8192,
            max_model_len=163840,
            window=1024,
        ),
    )
}


def scaled(preset: Preset, divisor: int, speculation: int = 0) -> Preset:
    """The same geometry with every length divided, and a draft model that proposes so many tokens.

    Raises ValueError where the block cannot be divided.
    """
    if preset.block % divisor:
        raise ValueError(f"{preset.name}: a block of {preset.block} tokens cannot be divided by {divisor}")
    return replace(
        preset,
        block=preset.block // divisor,
        chunk=preset.chunk // divisor,
        max_model_len=preset.max_model_len // divisor,
        window=max(SMALLEST_WINDOW, preset.window // divisor) if preset.window else 0,
        retention=preset.retention // divisor,
        top_k=max(SMALLEST_WINDOW, preset.top_k // divisor) if preset.top_k else 0,
        speculation=speculation,
    )
