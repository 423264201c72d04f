"""How long a prompt must be for its KV to be reusable, and which lengths make a hit comparable with a cold run."""

import math
from dataclasses import dataclass

# The computed suffix of an aligned prompt: long enough to be a real prefill, short enough to cost nothing.
SUFFIX_TOKENS = 19
# The other tail of a branch: it holds a whole question where half a granule does.
TAIL_TOKENS = 48


def branch_tail(granule: int) -> tuple[int, int]:
    """How far into a granule a branch goes on like the other prompt, and how many tokens follow that differ.

    What two prompts share ends in the middle of a block, so that a block is alike in part and must not be reused.
    """
    alike = granule // 2
    return alike, min(TAIL_TOKENS, max(1, granule - alike))


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes in prompt tokens.

    ``granule`` is the least common multiple of the KV groups' block sizes: hits come in whole granules.
    ``chunk`` is the effective prefill chunk (the smaller of ``max_num_batched_tokens`` and
    ``long_prefill_token_threshold``). ``retention_interval`` is 0 where states are not thinned out.
    ``speculation_granules`` is how many granules a hit loses to a draft model's look-back.
    ``prefill_drops`` is how many tokens a prefill engine leaves off a prompt's end for decode to compute (vLLM: one, on
    models with recurrent state).
    ``sources`` says where each figure came from, as (field, source) pairs.
    """

    block_size: int
    granule: int
    chunk: int
    max_model_len: int
    retention_interval: int = 0
    speculation_granules: int = 0
    prefill_drops: int = 0
    sources: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("block_size", "granule", "chunk", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    def local_hit(self, length: int) -> int:
        """Predicted tokens an engine's own prefix cache serves for a repeated prompt of ``length`` tokens.

        The last token is always computed, so a prompt of exactly k granules reuses k - 1.
        """
        whole = (length - self.prefill_drops - 1) // self.granule - self.speculation_granules
        return max(0, whole) * self.granule

    def external_hit(self, length: int) -> int:
        """Predicted tokens an external pool serves; 0 below twice the retention interval (vllm-ascend)."""
        if self.retention_interval and length < 2 * self.retention_interval:
            return 0
        return self.local_hit(length)

    @property
    def hit_floor(self) -> int:
        """The shortest prompt, in tokens, of which an external pool can serve anything."""
        return max((1 + self.speculation_granules) * self.granule + 1 + self.prefill_drops, 2 * self.retention_interval)

    def is_aligned(self, length: int) -> bool:
        """Whether the cold run's last chunk has the shape of the hit's computed suffix (design §3.1)."""
        hit = self.external_hit(length)
        return hit > 0 and hit % self.chunk == 0

    def aligned_length(self, tier: int, limit: int, suffix_tokens: int = SUFFIX_TOKENS) -> int | None:
        """The aligned length nearest to ``tier`` and not above ``limit``; None if all are off by more than half."""
        period = math.lcm(self.chunk, self.granule)
        suffix = self._suffix(suffix_tokens) + self.speculation_granules * self.granule
        below = max(0, tier - suffix) // period * period + suffix
        near = [
            length
            for length in (below, below + period)
            if self.hit_floor <= length <= limit and self.is_aligned(length) and abs(length - tier) <= tier / 2
        ]
        return min(near, key=lambda length: abs(length - tier)) if near else None

    def reusable_length(self, tier: int, suffix_tokens: int = SUFFIX_TOKENS) -> int:
        """The longest length not above ``tier`` that ends a short suffix after a whole granule (not aligned)."""
        suffix = self._suffix(suffix_tokens)
        length = (tier - suffix) // self.granule * self.granule + suffix
        return length if length >= self.hit_floor else tier

    def length_of_hit(self, granules: int, suffix_tokens: int = SUFFIX_TOKENS) -> int:
        """The length of a prompt of which so many granules are reusable, with a suffix that is not."""
        return (granules + self.speculation_granules) * self.granule + self._suffix(suffix_tokens)

    def _suffix(self, wanted: int) -> int:
        """Tokens after a whole granule: as many as wanted, at most a granule, and one that prefill computes."""
        return max(1, min(self.granule - 1, wanted)) + self.prefill_drops

    def middle_length(self, length: int, suffix: int) -> int | None:
        """The length of a prompt that shares about half of the reusable beginning of one of ``length`` tokens.

        It ends ``suffix`` tokens after a whole granule, or at the next one, and nothing past what it shares is
        reusable; None if there is no such length, so that both prompts would reuse the same.
        """
        whole = self.external_hit(length)
        lost = self.speculation_granules * self.granule
        tail = max(1, min(suffix, self.granule)) + self.prefill_drops
        for shared in range(whole // 2 // self.granule * self.granule, whole, self.granule):
            found = shared + lost + tail
            if shared > 0 and self.external_hit(found) == shared == self.local_hit(found):
                return found
        return None

    def boundary_lengths(self, above: int, limit: int) -> tuple[int, ...]:
        """k·g-1, k·g and k·g+1 for block, granule, retention and chunk, at the first k past ``above``.

        The last of each three leaves an uncomputed tail of exactly one token. Lengths above ``limit`` or
        below the hit floor are left out.
        """
        lengths: set[int] = set()
        for size in {self.block_size, self.granule, self.retention_interval, self.chunk} - {0}:
            edge = -(-max(above, self.hit_floor) // size) * size
            # Where prefill leaves off a token, its own edge is that much further on.
            lengths.update(edge + step for step in range(-1, 2 + self.prefill_drops))
        return tuple(sorted(length for length in lengths if self.hit_floor <= length <= limit))


def infer_granule(observed: tuple[tuple[int, int], ...]) -> int | None:
    """The smallest granule that explains (prompt length, tokens hit) pairs seen on a repeat; None if none does."""
    hits = [hit for _, hit in observed if hit > 0]
    if not hits:
        return None
    common = math.gcd(*hits)
    for granule in range(1, common + 1):
        if common % granule == 0 and all((length - 1) // granule * granule == hit for length, hit in observed):
            return granule
    return None
