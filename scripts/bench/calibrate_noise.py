"""Benign noise by kind and level: what is odd about the engine, how lengths are chosen, and what runs beside."""

from dataclasses import dataclass, replace

from kvgate.sim.dials import QUIET as QUIET_DIALS
from kvgate.sim.dials import Dials

# Seconds on the loop's clock: what runs beside lasts longer than a group's request and the lead it has.
LONGEST_S, PER_TOKEN_S = 0.1, 0.001
SPAN = 20
SHAPES = 4
BATCH_NAT = 0.02
# A share of flips, in per cent, that is below those whose false alarms are bounded.
RARER = 1
BESIDE = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Level:
    """A level of one kind of noise. ``lengths`` '' leaves them as they are; ``beside`` is how many run beside."""

    name: str
    kind: str
    share: float
    dials: Dials = QUIET_DIALS
    lengths: str = ""
    beside: int = 0

    @property
    def sentence(self) -> str:
        """What the tables call it."""
        if self.beside:
            return f"{self.kind}, {self.share:g} nat, {self.beside} beside"
        return self.kind if self.kind == QUIET else f"{self.kind}, {100 * self.share:g} %"

    def on(self, dials: Dials, course: int) -> Dials:
        """The dials of a deployment, with this noise; coins are thrown anew on each course."""
        mine = self.dials
        return replace(
            dials,
            flip_share=mine.flip_share or dials.flip_share,
            run_flips=mine.run_flips,
            run_span=mine.run_span,
            spans_agree=mine.spans_agree,
            batch_noise=mine.batch_noise or dials.batch_noise,
            batch_shapes=mine.batch_shapes,
            near_ties=mine.near_ties or dials.near_ties,
            tie_nat=mine.tie_nat if mine.near_ties else dials.tie_nat,
            latency_per_token_s=mine.latency_per_token_s or dials.latency_per_token_s,
            course=course,
        )


QUIET, PROMPT, REQUEST, SPANS, STATES, BATCH = "quiet", "per prompt", "per request", "in spans", "in states", "batch"


def _prompt(percent: int) -> Level:
    # Which path a prompt took shows only where its last chunk is not the same on both.
    return Level(f"prompt-{percent}", PROMPT, percent / 100, Dials(flip_share=percent / 100), lengths="exact")


def _request(percent: int) -> Level:
    return Level(f"request-{percent}", REQUEST, percent / 100, Dials(run_flips=percent / 100))


def _span(percent: int, agree: bool = False) -> Level:
    dials = Dials(run_flips=percent / 100, run_span=SPAN, spans_agree=agree)
    name, kind = (f"state-{percent}", STATES) if agree else (f"span-{percent}", SPANS)
    return Level(name, kind, percent / 100, dials)


def _batch(nat: float, beside: int) -> Level:
    # Every prompt has a tie that is near enough to be decided by what runs beside.
    dials = Dials(
        batch_noise=nat, batch_shapes=SHAPES, near_ties=1.0, tie_nat=BATCH_NAT / 4, latency_per_token_s=PER_TOKEN_S
    )
    return Level(f"batch-{nat:g}x{beside}", BATCH, nat, dials, beside=beside)


LEVELS: tuple[Level, ...] = (
    Level("quiet", QUIET, 0.0),
    *map(_prompt, (0, 5, 15, 30, 45)),
    *map(_request, (RARER, 5, 15, 30, 45)),
    *map(_span, (5, 15, 30, 45)),
    *(_span(percent, agree=True) for percent in (5, 15, 30, 45)),
    *(_batch(BATCH_NAT, beside) for beside in BESIDE),
    *(_batch(0.0, beside) for beside in (1, 32)),
)
BY_LEVEL = {level.name: level for level in LEVELS}
# A quiet engine at aligned lengths is what the power bench measures.
ALARM_LEVELS = tuple(level for level in LEVELS if level.kind != QUIET)
CLASS_LEVELS = tuple(
    BY_LEVEL[name]
    for name in (
        "quiet",
        *(f"prompt-{percent}" for percent in (0, 5, 15, 30, 45)),
        *(f"request-{percent}" for percent in (5, 15, 45)),
        "span-15",
    )
)
