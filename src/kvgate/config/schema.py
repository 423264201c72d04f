"""The configuration file's schema. Unknown keys are refused; every field says what it expects."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from kvgate.config.facts_schema import FactsConfig
from kvgate.config.values import Argv, EnvName, Name, Real, Section, Tokens, Url, Whole, no_null
from kvgate.domain.deployment import Role
from kvgate.domain.plan import Forcing
from kvgate.domain.policy import Grade, PolicyName, Source
from kvgate.domain.probe import TO_CHOOSE_FROM, Arm


class EndpointConfig(Section):
    """One base URL of the deployment."""

    name: Name = Field(description="short name used in plans and reports, for instance 'a'")
    role: Role = Field(Role.COMBINED, description="what the endpoint is: combined, prefill, decode, gateway, ...")
    rank: Annotated[Whole, Field(ge=0, le=1023)] | None = Field(
        None,
        description="data-parallel rank that every request kvgate itself sends here is pinned to by the header "
        "X-data-parallel-rank: each leg by its own endpoint's",
    )
    log: Annotated[str, Field(min_length=1), AfterValidator(no_null)] | None = Field(
        None, description="file on this machine that the engine's log is written to, read beside every request"
    )
    url: Url = Field(description="base URL without a path like /v1, for instance http://127.0.0.1:8000")

    @model_validator(mode="after")
    def _is_asked_by_the_gate(self) -> "EndpointConfig":
        if self.rank is not None and self.role in (Role.GATEWAY, Role.POOL):
            raise ValueError(
                f"rank: a {self.role.value} passes requests on as it likes; give the rank to the engine's own endpoint"
            )
        return self


class AuthConfig(Section):
    """Where secrets come from. Values never stand in a file."""

    bearer_env: EnvName = Field(description="name of the environment variable that holds the API key")


class GeometryConfig(Section):
    """Overrides of what the server says of itself; all sizes in tokens."""

    block_size: Tokens | None = Field(None, description="KV block size in tokens")
    granule: Tokens | None = Field(
        None, description="least common multiple of the KV groups' block sizes in tokens: hits come in whole granules"
    )
    chunk: Tokens | None = Field(None, description="max_num_batched_tokens of the engine, in tokens")
    max_model_len: Tokens | None = Field(None, description="longest prompt plus answer the engine takes, in tokens")
    retention_interval: Whole | None = Field(
        None, ge=0, description="VLLM_PREFIX_CACHE_RETENTION_INTERVAL in tokens, 0 if unset"
    )
    capacity: Tokens | None = Field(
        None, description="KV tokens that fit the engine's own cache (its start-up log names them), for forcing evict"
    )
    prefill_drops: Whole | None = Field(
        None,
        ge=0,
        le=1,
        description="tokens a prefill engine leaves off a prompt's end for decode: 1 on models with recurrent state",
    )
    speculation_granules: Whole | None = Field(
        None,
        ge=0,
        le=8,
        strict=True,
        description="granules a hit loses to speculative decoding (1 with MTP, EAGLE or DSpark)",
    )


class DeploymentConfig(Section):
    """The serving system under test."""

    name: Name = Field(description="name of the deployment in reports")
    engine: Literal["vllm", "vllm-ascend"] = Field("vllm", description="engine dialect: vllm or vllm-ascend")
    model: Annotated[str, Field(min_length=1)] = Field(description="model name as the server serves it")
    endpoints: Annotated[list[EndpointConfig], Field(min_length=1)] = Field(
        description="list of endpoints, each with name, role and url"
    )
    auth: AuthConfig | None = Field(None, description="bearer_env: the name of an environment variable")
    salts: Literal["honoured", "ignored"] = Field(
        "honoured", description="whether the store's keys contain the cache salt: honoured or ignored"
    )
    alike: bool | None = Field(
        None, description="true or false: whether prefill and decode engines run the same build in the same way"
    )
    ranks: Annotated[Whole, Field(ge=1, le=1024)] = Field(
        1, description="data-parallel ranks a request can be pinned to by the header X-data-parallel-rank"
    )
    geometry: GeometryConfig = Field(
        default_factory=GeometryConfig, description="overrides of block_size, granule, chunk, max_model_len, ..."
    )

    facts: FactsConfig = Field(
        default_factory=lambda: FactsConfig.model_validate({}),
        description="checkpoint, quantisation, device, topology, parallelism, backend, versions, features, if known",
    )

    @field_validator("endpoints")
    @classmethod
    def _names_differ(cls, endpoints: list[EndpointConfig]) -> list[EndpointConfig]:
        names = [endpoint.name for endpoint in endpoints]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two endpoints are named {twice[0]!r}; give each its own name")
        return endpoints

    @model_validator(mode="after")
    def _one_way_of_pinning(self) -> "DeploymentConfig":
        pinned = [each.name for each in self.endpoints if each.rank is not None and each.role is Role.COMBINED]
        if self.ranks > 1 and pinned:
            raise ValueError(
                f"ranks: writer and reader are pinned to ranks of their own; leave rank out of endpoint {pinned[0]!r}"
            )
        return self


class FamilyConfig(Section):
    """One prompt family in one language."""

    family: Literal["codebook", "prose", "chat", "agent", "code", "shared_prefix", "random"] = Field(
        "codebook",
        description="codebook (recall from every part), prose, chat, agent, code, shared_prefix (prompts that differ "
        "in their number alone) or random (token soup: noisy, for stress)",
    )
    language: Literal["en", "zh"] = Field("en", description="en or zh")


class PressureConfig(Section):
    """What is in flight beside every request of a group, and what is sent between two of them."""

    concurrency: (
        Annotated[Whole, Field(ge=0, le=256)]
        | Annotated[list[Annotated[Whole, Field(ge=0, le=256)]], Field(min_length=1, max_length=8)]
    ) = Field(
        description="requests in flight beside it, 0 to 256; or a list of levels, which a tier's groups take in turn"
    )
    tokens: Annotated[Whole, Field(ge=16, le=16_777_216)] | None = Field(
        None, description="prompt tokens of each of them; leave out for the shortest tier"
    )
    cancel_share: Annotated[Real, Field(ge=0.0, le=1.0)] = Field(
        0.0, description="share of them that kvgate breaks off as an impatient client does, 0 to 1"
    )
    pause_s: Annotated[Real, Field(ge=0.0, le=60.0)] = Field(
        0.0,
        description="seconds each of their clients waits before its next request, in the mean (exponential, by the "
        "seed), 0 to 60",
    )
    between: Annotated[Whole, Field(ge=0, le=256)] = Field(
        0,
        description="requests with a common beginning that are sent at once before every request of a group and have "
        "ended when it is sent, 0 to 256; what is broken off of them is tried again",
    )


class GateConfig(Section):
    """What is sent."""

    tiers: Annotated[list[Annotated[Whole, Field(ge=16, le=16_777_216)]], Field(min_length=1)] = Field(
        [4096, 8192, 16384, 32768, 65536, 131072],
        description="prompt lengths in tokens (16 or more), for instance [4096, 16384, 65536]",
    )
    lengths: Literal["aligned", "exact"] = Field(
        "aligned", description="aligned (snap each tier to an aligned length) or exact (use the numbers as they are)"
    )
    groups_per_tier: Annotated[Whole, Field(ge=1, le=1000)] = Field(3, description="groups per tier, 1 to 1000")
    more_groups: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        0,
        description="groups per tier that may be added, in doubling rounds, while the run is undecided (answers "
        "differ, or the groups together show something, which may be chance), 0 to 1000",
    )
    boundaries: bool = Field(True, description="true or false: also send lengths around block, granule and chunk edges")
    short_control: bool = Field(True, description="true or false: send one group below the hit floor as a control")
    arms: Annotated[list[Arm], Field(min_length=2)] = Field(
        [Arm.COLD, Arm.COLD_REPEAT, Arm.LOCAL, Arm.LOCAL_REPEAT, Arm.EXTERNAL, Arm.EXTERNAL_REPEAT],
        description="all, or a list out of cold, cold_repeat, local, local_repeat, external, external_repeat, third "
        "(local again after a load), mixed (local beginning, external rest), branch (same beginning, other tail), "
        "continuation (KV that decode wrote), isolation (another salt must miss), reference (an independent endpoint)",
    )
    families: Annotated[list[FamilyConfig], Field(min_length=1)] = Field(
        default_factory=lambda: [FamilyConfig(family="codebook", language="en")],
        description="list of {family: codebook|prose|chat|agent|code|shared_prefix|random, language: en|zh}; groups "
        "take them in turn",
    )
    forcing: Literal["auto"] | Forcing = Field(
        "auto",
        description="auto, reset_local (drop the local cache), other_instance or other_rank (two readers), no_local "
        "(the engine has no prefix cache of its own), evict (flood it) or restart (hooks.restart)",
    )
    canaries: Annotated[Whole, Field(ge=0, le=256)] = Field(
        0,
        description="prompts sent all at once at the end, twice, to see whether requests get into each other; 0 to 256",
    )
    pressure: PressureConfig | None = Field(
        None,
        description="leave out for quiet groups; or {concurrency, tokens, cancel_share} of other requests, new to the "
        "engine each time, that are in flight beside every request of a group",
    )
    sentinel: bool = Field(
        True,
        description="true or false: ask one short prompt before, between and after the groups, computed afresh each "
        "time, to see whether the engine itself goes wrong in mid-run",
    )
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = Field(
        None, description="seed of prompts and nonces, a whole number; leave out for a new one each run"
    )

    @field_validator("arms", mode="before")
    @classmethod
    def _all_arms(cls, arms: object) -> object:
        return [arm.value for arm in TO_CHOOSE_FROM] if arms == "all" else arms

    @field_validator("arms")
    @classmethod
    def _arms_make_a_pair(cls, arms: list[Arm]) -> list[Arm]:
        added = [arm.value for arm in arms if arm not in TO_CHOOSE_FROM]
        if added:
            raise ValueError(f"{added[0]} is sent by the gate itself where it is needed; leave it out")
        if Arm.COLD not in arms:
            raise ValueError("every group needs the cold arm, which fills the pool; add cold")
        if Arm.EXTERNAL not in arms and Arm.LOCAL not in arms:
            raise ValueError("nothing is left to compare; add external or local")
        for repeat, arm in ((Arm.EXTERNAL_REPEAT, Arm.EXTERNAL), (Arm.LOCAL_REPEAT, Arm.LOCAL)):
            if repeat in arms and arm not in arms:
                raise ValueError(f"{repeat.value} repeats {arm.value}, which is missing; add it")
        for later in (Arm.THIRD, Arm.MIXED, Arm.BRANCH):
            if later in arms and not {Arm.EXTERNAL, Arm.LOCAL} <= set(arms):
                raise ValueError(f"{later.value} is compared with local after external; add both")
        return arms


class PolicyConfig(Section):
    """How answers are judged; differences in nats."""

    name: PolicyName = Field(PolicyName.CALIBRATED, description="calibrated or strict")
    evidence: Grade = Field(Grade.ARRIVED, description="arrived (tokens counted after the load) or scheduled")
    exercised_share: Annotated[Real, Field(gt=0.5, le=1.0)] = Field(
        0.95, description="share of the expected reusable tokens that must come by the path, above 0.5 to 1"
    )
    envelope_floor_nat: Annotated[Real, Field(ge=0.0, le=5.0)] = Field(
        0.1, description="smallest tolerance of tolerant pairs, in nats"
    )
    envelope_cap_nat: Annotated[Real, Field(gt=0.0, le=5.0)] = Field(
        0.5, description="largest tolerance of tolerant pairs, in nats"
    )
    lossy_bound_nat: Annotated[Real, Field(gt=0.0, le=5.0)] | None = Field(
        None, description="largest drift in nats a store declared lossy may show; leave out for exact stores"
    )
    accept_ids_only: bool = Field(False, description="true to allow a PASS without logprobs")
    accept_text_only: bool = Field(False, description="true to allow a PASS on text alone")
    accept_unproven_alignment: bool = Field(
        False, description="true to allow a PASS where hits differ from cold runs at lengths at which they must not"
    )
    alpha: Annotated[Real, Field(gt=0.0, lt=0.5)] = Field(
        0.01,
        description="how often a healthy run may fail by what its groups show together; four tests and every look "
        "share it, for instance 0.01",
    )

    required_sources: list[Source] = Field(
        [],
        description="sources beside the counters that must confirm every hit from outside, out of reply, log and "
        "first_token; the others can only contradict",
    )
    first_token_ratio: Annotated[Real, Field(gt=0.0, le=1.0)] = Field(
        0.9, description="largest share of the cold time to the first token that confirms a hit, above 0 to 1"
    )

    max_fault_rate: Annotated[Real, Field(ge=0.003, lt=1.0)] | None = Field(
        None,
        description="largest share of requests in which a PASS may leave random faults open at 95 %, for instance 0.1 "
        "(29 groups per tier); leave out to take what gate.groups_per_tier gives",
    )

    @model_validator(mode="after")
    def _floor_below_cap(self) -> "PolicyConfig":
        if self.envelope_floor_nat > self.envelope_cap_nat:
            raise ValueError(
                f"envelope_floor_nat ({self.envelope_floor_nat}) is above envelope_cap_nat ({self.envelope_cap_nat})"
            )
        return self


class RequestsConfig(Section):
    """How requests are sent; times in seconds."""

    endpoint: Literal["completions", "chat"] = Field(
        "completions", description="completions (prompts as token IDs) or chat (prompts as one user message)"
    )
    max_tokens: Annotated[Whole, Field(ge=8, le=4096)] = Field(32, description="output tokens, 8 or more")
    logprobs: Annotated[Whole, Field(ge=2, le=20)] = Field(5, description="top-k logprobs to ask for, 2 to 20")
    stream: bool = Field(True, description="true to stream answers")
    ignore_eos: bool = Field(True, description="true to go on past the end-of-text token")
    connect_s: Annotated[Real, Field(gt=0, le=600)] = Field(10.0, description="seconds to wait for a connection")
    first_token_s: Annotated[Real, Field(gt=0, le=86400)] = Field(
        120.0, description="seconds to wait for the first token, before the share that grows with the prompt"
    )
    first_token_s_per_1k: Annotated[Real, Field(ge=0, le=3600)] = Field(
        5.0, description="further seconds to wait for the first token per 1000 prompt tokens"
    )
    inactivity_s: Annotated[Real, Field(gt=0, le=3600)] = Field(
        60.0, description="seconds without a byte after which a stream counts as lost"
    )


class LimitsConfig(Section):
    """What bounds one arm."""

    settle_s: Annotated[Real, Field(ge=0, le=600)] = Field(
        1.0, description="seconds to wait for asynchronous puts before the first external arm"
    )
    put_deadline_s: Annotated[Real, Field(ge=0, le=3600)] = Field(
        30.0, description="seconds after which a put that has not shown up is given up"
    )
    evidence_s: Annotated[Real, Field(gt=0, le=600)] = Field(
        5.0, description="seconds to wait until the counters account for a request"
    )
    watch_s: Annotated[Real, Field(ge=0, le=3600)] = Field(
        2.0,
        description="seconds between two looks at what engines tell of themselves (requests running and waiting, KV "
        "cache in use, preemptions, failed loads) while the run lasts; 0 for none",
    )
    release_s: Annotated[Real, Field(ge=0, le=3600)] = Field(
        30.0, description="seconds that engines may take after the last request to let go of what it held"
    )
    external_attempts: Annotated[Whole, Field(ge=1, le=20)] = Field(4, description="attempts at one external arm")
    hopeless_groups: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        2, description="groups that fail to show the path before the run gives up"
    )


class BudgetConfig(Section):
    """What bounds the whole run."""

    computed_tokens: Annotated[Whole, Field(ge=1)] = Field(
        2_500_000, description="prompt tokens the engine may be made to compute"
    )
    minutes: Annotated[Real, Field(gt=0, le=100_000)] = Field(120.0, description="minutes the run may take")
    replacements: Annotated[Whole, Field(ge=0, le=1000)] = Field(3, description="groups that may replace void ones")
    requests: Annotated[Whole, Field(ge=1)] | None = Field(
        None, description="requests that may be sent, all told; leave out for as many as the plan has"
    )


class HooksConfig(Section):
    """Commands run beside the arms: argv lists, no shell; told run, group, arm and attempt by environment."""

    before_arm: dict[Arm, Argv] = Field(
        default_factory=dict, description="arm name to argv list, run before each attempt at that arm"
    )
    after_arm: dict[Arm, Argv] = Field(
        default_factory=dict, description="arm name to argv list, run after each attempt at that arm"
    )
    restart: Argv | None = Field(None, description="argv list that restarts the engine under test (forcing restart)")
    pool_down: Argv | None = Field(
        None, description="argv list that takes the pool away and returns when it is gone; for one group, at the end"
    )
    pool_up: Argv | None = Field(
        None, description="argv list that brings it back and returns when it serves; also run when the run ends before"
    )
    timeout_s: Annotated[Real, Field(gt=0, le=3600)] = Field(120.0, description="seconds a hook may take")

    @field_validator("before_arm", "after_arm")
    @classmethod
    def _arms_are_sent(cls, hooks: dict[Arm, list[str]]) -> dict[Arm, list[str]]:
        alone = [arm.value for arm in hooks if arm in (Arm.WARMUP, Arm.CANARY, Arm.SENTINEL, Arm.CHURN)]
        if alone:
            raise ValueError(f"no hook runs beside {alone[0]} requests; name an arm of gate.arms")
        return hooks

    @model_validator(mode="after")
    def _down_and_up(self) -> "HooksConfig":
        if (self.pool_down is None) != (self.pool_up is None):
            given, lacking = ("pool_down", "pool_up") if self.pool_up is None else ("pool_up", "pool_down")
            raise ValueError(f"{given} stands without {lacking}; give both, so that what is taken away comes back")
        return self


class OutputConfig(Section):
    """Where runs are kept."""

    directory: Annotated[str, Field(min_length=1), AfterValidator(no_null)] = Field(
        "kvgate-runs", description="folder that run directories are made in"
    )


class Config(Section):
    """A kvgate configuration: the deployment under test and how to gate it."""

    version: Literal[1] = Field(description="version of this format: 1")
    deployment: DeploymentConfig = Field(description="the serving system under test")
    gate: GateConfig = Field(default_factory=lambda: GateConfig.model_validate({}), description="what is sent")
    policy: PolicyConfig = Field(
        default_factory=lambda: PolicyConfig.model_validate({}), description="how it is judged"
    )
    requests: RequestsConfig = Field(
        default_factory=lambda: RequestsConfig.model_validate({}), description="how requests are sent"
    )
    limits: LimitsConfig = Field(
        default_factory=lambda: LimitsConfig.model_validate({}), description="what bounds one arm"
    )
    budget: BudgetConfig = Field(
        default_factory=lambda: BudgetConfig.model_validate({}), description="what bounds the run"
    )
    hooks: HooksConfig = Field(
        default_factory=lambda: HooksConfig.model_validate({}), description="commands run beside the arms"
    )
    output: OutputConfig = Field(
        default_factory=lambda: OutputConfig.model_validate({}), description="where runs are kept"
    )
