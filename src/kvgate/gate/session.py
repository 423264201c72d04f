"""Carries out a plan: asks the domain what comes next, does it, and records every word before anything is judged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgate.domain.counters import Counter, Counters, difference
from kvgate.domain.evidence import counted
from kvgate.domain.history import (
    CacheDropped,
    CountersRead,
    DropOutcome,
    GroupStarted,
    HookRan,
    LogRead,
    Moment,
    RunCompleted,
    RunStopped,
)
from kvgate.domain.judge import judge
from kvgate.domain.log import read_lines
from kvgate.domain.observation import Outcome
from kvgate.domain.plan import ArmStep, Forcing, GroupPlan, Plan, length_of, warmup_name
from kvgate.domain.planning import Prompts, replacement_group
from kvgate.domain.policy import Source
from kvgate.domain.probe import FROM_OUTSIDE, Arm, Part, Path, Probe
from kvgate.domain.progress import GroupOutcome, Send, hopeless, is_void, next_send, outcome_of
from kvgate.domain.prompt import digest
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.sentinels import AFTER, BEFORE, asks_after
from kvgate.domain.sequel import further_groups, undecided
from kvgate.gate.beside import Sentinels, send_canaries
from kvgate.gate.churn import Churn
from kvgate.gate.course import AS_PLANNED, Course
from kvgate.gate.line import Line, Outside, Stop
from kvgate.gate.lookout import USUAL, Eye, Lookout
from kvgate.ports import Body, DropReply, Engine

DROP_TRIES = 6
# Tokens of a prompt that only fills a cache, at most.
LONGEST_FLOOD = 16_384
WARMUP_PROBES = 2
GROSS_GROUPS = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's hooks by arm, how long one may take, and how long counters may lag (seconds).

    ``restart`` is the command that restarts the engine under test, ``pool_down`` and ``pool_up`` take the pool away and
    bring it back; empty if there is none. ``eye`` is how the engines are kept an eye on.
    """

    before_arm: Mapping[Arm, tuple[str, ...]]
    after_arm: Mapping[Arm, tuple[str, ...]]
    hook_s: float
    evidence_s: float
    restart: tuple[str, ...] = ()
    pool_down: tuple[str, ...] = ()
    pool_up: tuple[str, ...] = ()
    eye: Eye = USUAL


class Session:
    """One run: ``run`` goes through the plan."""

    def __init__(
        self,
        plan: Plan,
        run_id: str,
        prompts: Prompts,
        outside: Outside,
        settings: Settings,
        course: Course = AS_PLANNED,
    ) -> None:
        self._line = Line(plan, course.salts_of or run_id, outside)
        self._course = course
        # Whoever looks whether the run is decided, or what to send next, looks at all of it.
        self._keeps_all = bool(plan.rounds) or course.further is not None or course.adapt is not None
        self._lookout = Lookout(self._line, plan, outside.clock, outside.watcher, settings.eye)
        self._churn = Churn(self._line, outside.clock, plan, prompts)
        self._plan = plan
        self._run_id = run_id
        self._prompts = prompts
        self._hooks = outside.hooks
        self._sink = outside.sink
        self._clock = outside.clock
        self._watcher = outside.watcher
        self._settings = settings
        self._replaced = 0
        self._done = 0
        self._prompt_path = ""
        self._flooded = 0
        self._outcomes: list[GroupOutcome] = []
        # The group for which the pool was taken away and is not yet back, and the step that brings it back.
        self._away: tuple[GroupPlan, Send] | None = None

    async def run(self) -> None:
        """Carry out the plan to its end, or to the point where going on shows nothing new."""
        try:
            if self._plan.obstacles:
                raise Stop(self._plan.obstacles[0])
            await self._warm_up()
            async with self._lookout.watching():
                await self._send_groups()
                await send_canaries(self._line, self._plan.canaries, self._prompts, self._watcher)
        except Stop as stop:
            self.stop(stop.problem)
        else:
            self._line.note(RunCompleted(self._line.now()))

    def stop(self, problem: Problem) -> None:
        """Record that the run ended early."""
        self._line.note(RunStopped(self._line.now(), problem))
        self._watcher.said(f"stopped: {problem.detail}")

    async def _send_groups(self) -> None:
        """Every group, and the sentinels before, between and after them."""
        sentinels = Sentinels(self._line, self._plan, self._prompts)
        await sentinels.ask(BEFORE)
        await self._send(self._plan.groups, sentinels)
        await self._send_further(sentinels)
        for number, count in enumerate(self._plan.rounds, start=1):
            why = undecided(judge(self._plan, self._line.record))
            if why is None:
                return
            self._watcher.said(f"undecided: {why.detail}; {count} more groups per tier")
            await self._send(further_groups(self._plan, number, self._prompts), sentinels)

    async def _send_further(self, sentinels: Sentinels) -> None:
        """Groups that are only known once the ones before them were judged."""
        while self._course.further is not None:
            group = self._course.further(judge(self._plan, self._line.record))
            if group is None:
                return
            await self._send((group,), sentinels)

    async def _send(self, groups: tuple[GroupPlan, ...], sentinels: Sentinels) -> None:
        for index, group in enumerate(groups, start=1):
            self._watcher.group_started(index, len(groups), group.id, group.length)
            adapt = self._course.adapt
            await self._run_with_replacements(adapt(self._line.record, group) if adapt is not None else group)
            self._done += 1
            stop = self._why_stop() if index < len(groups) else None
            # Whoever gives up early wants to know all the more whether it is the engine itself.
            await sentinels.ask(AFTER if stop is not None else asks_after(groups, index))
            if stop is not None:
                raise stop

    async def _warm_up(self) -> None:
        """Wake lazy parts up: a fresh server's first requests are never a baseline."""
        endpoints = dict.fromkeys(endpoint for group in self._plan.groups for endpoint in _endpoints(group))
        shortest = self._plan.warmup_group()
        if shortest is None:
            return
        for endpoint in endpoints:
            self._watcher.said(f"warming up {endpoint}")
            name = warmup_name(endpoint)
            prompt = self._prompts.make((shortest.family, shortest.language), name, shortest.length)
            engine = self._line.engines[endpoint]
            body = engine.encode(prompt.ids)
            # Every rank has lazy parts of its own.
            ranks = sorted({step.rank for step in _steps(self._plan, endpoint)}, key=lambda rank: rank or 0)
            for number in range(WARMUP_PROBES * len(ranks)):
                step = ArmStep(Arm.WARMUP, endpoint, Path.COLD, "a", rank=ranks[number % len(ranks)])
                probe = self._line.probe(name, step, number, shortest.length, prompt.sha256)
                await self._line.send(engine, probe, body)
                await engine.drop_local()

    async def _run_with_replacements(self, group: GroupPlan) -> None:
        current, replaces = group, None
        while True:
            await self._run_group(current, replaces)
            done = self._line.record.groups[current.id]
            replaceable = is_void(self._plan, done) and self._replaced < self._plan.budget.replacements
            outcome = outcome_of(self._plan, done)
            if not self._keeps_all:
                self._line.record.forget(current.id)
            if not replaceable:
                self._outcomes += [outcome] if outcome is not None else []
                return
            self._replaced += 1
            replaces = current.id
            current = replacement_group(group, self._replaced, self._prompts)
            self._watcher.said(f"{replaces} is void and is replaced by {current.id}")

    async def _run_group(self, group: GroupPlan, replaces: str | None) -> None:
        prompt = self._prompts.for_group(group)
        bodies: dict[tuple[str, Part], Body] = {}
        digests: dict[Part, str] = {}
        self._line.note(GroupStarted(self._line.now(), group, replaces))
        for entry in self._course.recalled.get(group.id, ()):
            self._line.note(replace(entry, at=self._line.now()))
        first = group.steps[0].endpoint
        bodies[first, Part.WHOLE] = body = self._line.engines[first].encode(prompt.ids)
        digests[Part.WHOLE] = digest(prompt.ids)
        self._prompt_path = self._sink.keep_prompt(group.id, body.encoded)
        while (send := next_send(self._plan, self._line.record.groups[group.id])) is not None:
            self._line.check_budget()
            self._watcher.arm_started(group.id, send.step.arm.value, send.attempt)
            engine, key = self._line.engines[send.step.endpoint], (send.step.endpoint, send.step.part)
            if key not in bodies:
                ids = self._prompts.part_of(group, prompt.ids, send.step.part, self._answered(group))
                if ids is None:
                    break
                bodies[key] = engine.encode(ids)
                digests[send.step.part] = digest(ids)
                if send.step.part in (Part.BRANCH, Part.CONTINUED):
                    # The others are beginnings of the whole.
                    self._sink.keep_prompt(f"{group.id}.{send.step.part.value}", bodies[key].encoded)
            await self._attempt(group, send, engine, (bodies[key], digests[send.step.part]))
        self._prompt_path = ""
        await self.undo()

    async def undo(self) -> None:
        """Bring the pool back if it is still away, however the run or the group ended."""
        if self._away is None:
            return
        group, send = self._away
        if await self._run_hook("pool_up", self._settings.pool_up, group, send) == 0:
            self._away = None
        else:
            self._watcher.said("hooks.pool_up failed: THE POOL MAY STILL BE AWAY; bring it back by hand")

    async def _switch(self, group: GroupPlan, send: Send) -> bool:
        """Take the pool away before the first request without it, bring it back before the next with it; whether so."""
        restore = group.step(Arm.RESTORE)
        if send.attempt or restore is None or send.step.arm not in (Arm.OUTAGE, Arm.RESTORE):
            return True
        if send.step.arm is Arm.RESTORE:
            await self.undo()
            return self._away is None
        # Also where the hook fails: half of it may have been done.
        self._away = (group, Send(restore, 0, False, 0.0, ""))
        return await self._run_hook("pool_down", self._settings.pool_down, group, send) == 0

    def _answered(self, group: GroupPlan) -> tuple[int, ...] | None:
        """The token IDs that answered the group's cold prompt."""
        answers = (attempt.observation for attempt in self._line.record.groups[group.id].of(Arm.COLD) if attempt.ok)
        return next((answer.token_ids for answer in answers if answer is not None), None)

    async def _attempt(self, group: GroupPlan, send: Send, engine: Engine, prompt: tuple[Body, str]) -> None:
        step, (body, sha256) = send.step, prompt
        if send.wait_s:
            await self._line.wait(send.wait_s, send.why_wait)
        await self._churn.stir(step)
        if not await self._switch(group, send):
            return
        if not await self._hook("before_arm", self._settings.before_arm, group, send):
            return
        if send.drop_local:
            await self._forget(group, send, engine)
        before = await self._read(engine, group, send, Moment.BEFORE, None, 0)
        probe = self._line.probe(group.id, step, send.attempt, body.length, sha256)
        async with self._churn.around(group, step):
            refused = (await self._line.send(engine, probe, body)).outcome is Outcome.REFUSED
        # A refused prompt is never counted: there is nothing to wait for.
        expected = 0 if refused else self._plan.counted_length(body.length, step.endpoint)
        after = await self._read(engine, group, send, Moment.AFTER, before, expected)
        await self._read_log(engine, group, send, probe)
        self._line.computed += self._cost(before, after, body.length)
        await self._hook("after_arm", self._settings.after_arm, group, send)

    async def _read(
        self, engine: Engine, group: GroupPlan, send: Send, moment: Moment, before: Counters | None, expected: int
    ) -> Counters | None:
        """Read counters; after a probe, wait until they account for its prompt tokens."""
        reading = await engine.read_counters()
        deadline = self._clock.now() + self._settings.evidence_s
        left_off = self._plan.geometry.prefill_drops if self._plan.transfers(send.step.endpoint) else 0
        expected += self._line.record.surely_beside(left_off)
        pause = 0.02
        while before is not None and reading.counters is not None and self._clock.now() < deadline:
            moved = counted(before, reading.counters)
            if moved is None or moved < 0 or moved >= expected:
                break
            await self._clock.sleep(pause)
            pause = min(0.25, pause * 1.5)
            reading = await engine.read_counters()
        arm, attempt = send.step.arm, send.attempt
        self._line.note(
            CountersRead(
                self._line.now(), engine.name, group.id, arm, attempt, moment, reading.counters, reading.detail
            )
        )
        return reading.counters

    async def _read_log(self, engine: Engine, group: GroupPlan, send: Send, probe: Probe) -> None:
        """Read what the engine's log got meanwhile, if there is one; where the log must confirm a hit, wait for it."""
        awaited = Source.LOG in self._plan.policy.required_sources and send.step.path in FROM_OUTSIDE
        deadline = self._clock.now() + (self._settings.evidence_s if awaited else 0.0)
        while (reading := await engine.read_log()) is not None:
            told = read_lines(reading.lines or (), probe.id, None).loads is not None
            if told or self._clock.now() >= deadline:
                arm, attempt = send.step.arm, send.attempt
                self._line.note(
                    LogRead(self._line.now(), engine.name, group.id, arm, attempt, reading.lines, reading.detail)
                )
                return
            await self._clock.sleep(0.1)

    async def _forget(self, group: GroupPlan, send: Send, engine: Engine) -> None:
        """Make the engine forget what it has computed, in the plan's way; whether it did, its counters tell."""
        if self._plan.forcing is Forcing.RESTART:
            reply = await self._restart(group, send, engine)
        elif self._plan.forcing is Forcing.EVICT:
            reply = await self._flood(group, send, engine)
        else:
            reply = await self._drop(engine)
        self._line.note(
            CacheDropped(
                self._line.now(), engine.name, group.id, send.step.arm, send.attempt, reply.outcome, reply.detail
            )
        )

    async def _drop(self, engine: Engine) -> DropReply:
        """Drop the local cache; a refusal usually means that blocks are still held, so it is asked again."""
        pause = 0.25
        for number in range(DROP_TRIES):
            reply = await engine.drop_local()
            if reply.outcome is not DropOutcome.REFUSED or number + 1 == DROP_TRIES:
                break
            await self._line.wait(pause, f"{engine.name} refused to drop its cache: {reply.detail}")
            pause *= 2
        return reply

    async def _restart(self, group: GroupPlan, send: Send, engine: Engine) -> DropReply:
        """Run the user's restart hook and wait until the engine answers again."""
        ended = await self._run_hook("restart", self._settings.restart, group, send)
        if ended != 0:
            return DropReply(DropOutcome.UNAVAILABLE, "the restart hook failed")
        deadline = self._clock.now() + self._settings.hook_s
        while not await engine.alive():
            if self._clock.now() >= deadline:
                raise Stop(Problem(Reason.ENDPOINT_LOST, f"{engine.name} does not answer after the restart hook"))
            await self._clock.sleep(0.5)
        return DropReply(DropOutcome.DROPPED, "restarted")

    async def _flood(self, group: GroupPlan, send: Send, engine: Engine) -> DropReply:
        """Send other prompts until as many tokens went through as drive everything else out."""
        geometry = self._plan.geometry
        # Few long prompts do it sooner than many short ones.
        room = min(geometry.max_model_len - self._plan.max_tokens, self._plan.flood_tokens, LONGEST_FLOOD)
        length = max(group.length, room)
        count = -(-self._plan.flood_tokens // length)
        for _ in range(count):
            self._flooded += 1
            name = f"flood-{self._flooded}"
            prompt = self._prompts.make((group.family, group.language), name, length)
            step = ArmStep(Arm.WARMUP, engine.name, Path.COLD, "a", rank=send.step.rank)
            probe = replace(self._line.probe(name, step, 0, length, prompt.sha256), max_tokens=1)
            await self._line.send(engine, probe, engine.encode(prompt.ids))
            self._line.computed += length
            self._line.check_budget()
        return DropReply(DropOutcome.DROPPED, f"flooded with {count} prompts of {length} tokens")

    async def _hook(self, when: str, hooks: Mapping[Arm, tuple[str, ...]], group: GroupPlan, send: Send) -> bool:
        """Run the arm's hook if it has one; False if it failed."""
        argv = hooks.get(send.step.arm)
        return argv is None or await self._run_hook(f"{when}.{send.step.arm.value}", argv, group, send) == 0

    async def _run_hook(self, name: str, argv: tuple[str, ...], group: GroupPlan, send: Send) -> int | None:
        arm = send.step.arm
        environment = {
            "KVGATE_RUN": self._run_id,
            "KVGATE_GROUP": group.id,
            "KVGATE_ARM": arm.value,
            "KVGATE_ATTEMPT": str(send.attempt),
            "KVGATE_ENDPOINT": send.step.endpoint,
            "KVGATE_LENGTH": str(length_of(group, send.step)),
            "KVGATE_PROMPT": self._prompt_path,
            "KVGATE_EXPECTED_EXTERNAL": str(group.expected_external),
        }
        result = await self._hooks.run(argv, environment, self._settings.hook_s)
        code, seconds = result.exit_code, round(result.seconds, 3)
        self._line.note(
            HookRan(self._line.now(), name, group.id, arm, send.attempt, argv, code, seconds, result.output)
        )
        if code != 0:
            self._watcher.said(f"hook {name} failed: {result.output.strip().splitlines()[-1:]}")
        return code

    @staticmethod
    def _cost(before: Counters | None, after: Counters | None, length: int) -> int:
        """Computed prompt tokens; the whole prompt where the counters do not say."""
        if before is None or after is None:
            return length
        computed = difference(before, after).total(Counter.COMPUTED)
        # Under foreign traffic the counters speak of everybody.
        return length if computed is None else min(length, max(0, computed))

    def _why_stop(self) -> Stop | None:
        """Why the rest would cost engine time and show nothing new, if it would."""
        why = hopeless(self._plan, self._outcomes)
        if why is not None:
            return Stop(Problem(why.reason, f"given up after {self._done} groups: {why.detail}"))
        if sum(outcome.gross for outcome in self._outcomes) >= GROSS_GROUPS:
            detail = f"stopped early after {self._done} groups: {GROSS_GROUPS} groups show gross differences"
            return Stop(Problem(Reason.DIVERGED, detail))
        return None


def _steps(plan: Plan, endpoint: str) -> list[ArmStep]:
    return [step for group in plan.groups for step in group.steps if step.endpoint == endpoint]


def _endpoints(group: GroupPlan) -> tuple[str, ...]:
    """The endpoints a group is sent to, each once."""
    return tuple(dict.fromkeys(step.endpoint for step in group.steps))
