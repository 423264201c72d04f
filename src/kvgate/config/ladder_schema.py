"""The ladder file: rungs, how each is brought up and taken down, and the configuration that gates it."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kvgate.config.values import Real, Section, Whole

Word = Annotated[str, Field(min_length=1, max_length=80)]
Argv = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
Values = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str | int | float | bool | list[str]]


class SpeculationConfig(Section):
    """The speculation of a rung, for the rules of validity."""

    method: Literal["mtp", "dspark", "ngram", "eagle", "suffix", "draft_model"] = Field(
        description="mtp, dspark, ngram, eagle, suffix or draft_model"
    )
    tokens: Annotated[Whole, Field(ge=1, le=64)] = Field(description="num_speculative_tokens (decode's), 1 to 64")
    prefill_tokens: Annotated[Whole, Field(ge=0, le=64)] | None = Field(
        None, description="num_speculative_tokens of prefill, if it has its own"
    )
    checkpoint: str = Field("", description="what this rung serves, if rungs serve different checkpoints")
    block: Annotated[Whole, Field(ge=1)] = Field(5, description="the checkpoint's dspark_block_size")
    layers: Annotated[Whole, Field(ge=1)] = Field(1, description="the checkpoint's MTP prediction layers")


class AcceptConfig(Section):
    """What a rung must show beside its verdict."""

    reading: Word = Field(description="name of the reading whose figure is meant")
    of: Literal["after", "change"] = Field(
        "after", description="after (what it is once the rung was gated) or change (how much it rose meanwhile)"
    )
    least: Real | None = Field(None, description="at least this, in the reading's unit")
    most: Real | None = Field(None, description="at most this")

    @model_validator(mode="after")
    def _bounded(self) -> "AcceptConfig":
        if self.least is None and self.most is None:
            raise ValueError("neither least nor most is given, so that anything would do; give one of them")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError(f"least {self.least:g} is above most {self.most:g}, so that nothing would do")
        return self


class RungConfig(Section):
    """One rung."""

    name: Word = Field(description="what reports call it")
    values: Values = Field(default_factory=dict, description="values of the variables, ${name} in the templates")
    gate: str | None = Field(None, description="the configuration that gates this rung, if not the ladder's")
    speculation: SpeculationConfig | None = Field(None, description="its speculation; checked before anything starts")
    accept: list[AcceptConfig] = Field(
        default_factory=list, description="figures without which a PASS of this rung is INCONCLUSIVE (NOT_ACCEPTED)"
    )


class FlagConfig(Section):
    """One feature of a set."""

    name: Word = Field(description="what reports call it")
    on: Values = Field(description="values of variables where it is on")
    off: Values = Field(description="the same variables where it is off")

    @model_validator(mode="after")
    def _same_variables(self) -> "FlagConfig":
        if set(self.on) != set(self.off):
            raise ValueError("on and off give values to different variables; name the same ones in both")
        return self


class ProcessConfig(Section):
    """A process that serves as long as its rung is tried."""

    name: Word = Field(description="what its log is called")
    argv: Argv = Field(description="the command as a list; no shell")
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables beside kvgate's own")


class ReadingConfig(Section):
    """A figure that a command tells while a rung is up: occupancy, collective times, port counters."""

    name: Word = Field(description="what reports call it")
    argv: Argv = Field(description="the command as a list; no shell")
    pattern: str = Field(
        r"(-?\d+(?:\.\d+)?)",
        description="regular expression whose first group is the figure; the first number, if left out",
    )
    unit: str = Field("", description="its unit, for reports")

    @field_validator("pattern")
    @classmethod
    def _has_a_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        if not groups:
            raise ValueError("has no group; put the figure's part into parentheses")
        return pattern


class LadderLimits(Section):
    """What bounds a rung, in seconds."""

    up_s: Annotated[Real, Field(gt=0, le=86_400)] = Field(1800.0, description="how long `up` may take")
    ready_s: Annotated[Real, Field(gt=0, le=86_400)] = Field(
        1800.0, description="how long the endpoints may take to answer, and `ready` to succeed"
    )
    down_s: Annotated[Real, Field(gt=0, le=3600)] = Field(120.0, description="how long `down` may take")
    grace_s: Annotated[Real, Field(ge=0, le=600)] = Field(
        20.0, description="how long a process may take to end before it is killed"
    )


class LadderConfig(Section):
    """A ladder: deployment states in order, or flags whose combination is looked for."""

    version: Literal[1] = Field(description="1")
    name: Word = Field(description="what the ladder is called")
    gate: str = Field(description="path of the configuration that gates each rung, from this file's folder")
    mode: Literal["binary", "climb", "flags"] = Field(
        "binary", description="binary (halve), climb (one by one from below) or flags (which of them, together)"
    )
    values: Values = Field(default_factory=dict, description="values of variables that all rungs share")
    rungs: Annotated[list[RungConfig], Field(min_length=2)] | None = Field(
        None, description="the rungs, lowest first (modes binary and climb)"
    )
    flags: Annotated[list[FlagConfig], Field(min_length=1)] | None = Field(
        None, description="the features (mode flags)"
    )
    up: Argv | None = Field(None, description="command that brings a rung up and returns (ssh, kubectl, docker, ...)")
    processes: list[ProcessConfig] = Field(
        default_factory=list, description="processes that kvgate starts after `up`, watches, and ends"
    )
    ready: Argv | None = Field(None, description="command that succeeds once the rung is ready; asked again and again")
    down: Argv | None = Field(None, description="command that takes a rung down; run whatever happened")
    readings: list[ReadingConfig] = Field(
        default_factory=list, description="figures that commands tell before and after each rung is gated"
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="environment variables of all commands and processes"
    )
    limits: LadderLimits = Field(default_factory=LadderLimits, description="what bounds a rung")

    @model_validator(mode="after")
    def _of_one_kind(self) -> "LadderConfig":
        if (self.mode == "flags") is (self.flags is None) or (self.mode == "flags") is not (self.rungs is None):
            raise ValueError("mode flags takes flags, modes binary and climb take rungs; give what the mode takes")
        names = [each.name for each in (self.rungs or self.flags or [])]
        if len(set(names)) < len(names):
            raise ValueError("two of them have one name; give each its own")
        told = {each.name for each in self.readings}
        for rung in self.rungs or []:
            for accept in rung.accept:
                if accept.reading not in told:
                    raise ValueError(f"rung {rung.name!r} accepts by {accept.reading!r}, which is none of readings")
        return self
