"""Writing the minimal reproducer of a FAIL into its run directory: a replay file, and a script of plain requests."""

from pathlib import Path

from kvgate import __version__
from kvgate.config.schema import Config
from kvgate.domain.deployment import Role
from kvgate.domain.judge import judge
from kvgate.domain.parts import route_of
from kvgate.domain.plan import Forcing, PairKind, PairPlan, Plan, Route
from kvgate.domain.record import RunRecord
from kvgate.domain.replay import NothingToReplayError, Replay, alone, entries_of, group_to_replay, what_differed
from kvgate.domain.ruling import GroupVerdict, RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.engines.dialects import DIALECTS
from kvgate.errors import RecordError
from kvgate.report.curl_script import Wiring, curl_script
from kvgate.store.replay_file import REPLAYS, read_prompts, replay_file, write_replay, write_text
from kvgate.store.run_directory import Manifest, read_history


def replay_of(path: Path, manifest: Manifest, ruling: RunVerdict, wanted: str | None) -> tuple[Replay, GroupVerdict]:
    """One group of a run directory. Raises NothingToReplayError or RecordError."""
    verdict = group_to_replay(manifest.plan, ruling, wanted)
    entries = tuple(read_history(path))
    group = RunRecord(entries).groups[verdict.id].plan
    replay = Replay(
        run_id=manifest.run_id,
        plan=alone(manifest.plan, group),
        prompts=read_prompts(path, group),
        entries=entries_of(group.id, entries),
        differed=what_differed(verdict),
    )
    return replay, verdict


def write_reproducer(path: Path, manifest: Manifest, ruling: RunVerdict, config: Config) -> tuple[Path, ...]:
    """The files that reproduce the shortest failing group of a run, in its directory; none where no group fails."""
    try:
        replay, verdict = replay_of(path, manifest, ruling, None)
    except NothingToReplayError:
        return ()
    file = path / REPLAYS / f"{verdict.id}.json"
    write_replay(file, replay_file(replay, __version__, config.model_dump(mode="json", exclude_unset=True)))
    script = _script(replay, verdict, config)
    if script is None:
        return (file,)
    plain = file.with_suffix(".sh")
    write_text(plain, script)
    plain.chmod(0o755)
    return (file, plain)


def tell_reproducer(path: Path, manifest: Manifest, ruling: RunVerdict, config: Config) -> tuple[str, ...]:
    """Write it, and say where it is; the verdict stands also where it cannot be written."""
    if ruling.verdict is not Verdict.FAIL:
        return ()
    try:
        return tuple(f"to reproduce it: {file}" for file in write_reproducer(path, manifest, ruling, config))
    except RecordError as error:
        return (f"no reproducer: {error}",)


def judged(manifest: Manifest, path: Path) -> RunVerdict:
    """The ruling on a run directory."""
    return judge(manifest.plan, RunRecord(read_history(path)))


def _script(replay: Replay, verdict: GroupVerdict, config: Config) -> str | None:
    """The script; None where plain requests do not say it: two legs, chats, or prompts made of an answer."""
    plan, pair = replay.plan, _pair(replay, verdict)
    if pair is None or plan.route is Route.TWO_LEG or config.requests.endpoint == "chat" or plan.churn:
        return None
    if pair.kind in (PairKind.CONTINUATION_VS_COLD, PairKind.CONTINUATION_VS_LOCAL, PairKind.OUTAGE_VS_COLD):
        return None
    if pair.kind in (PairKind.RECOVERED_VS_COLD, PairKind.GATEWAY_VS_TWO_LEG):
        return None
    dialect, deployment = DIALECTS[plan.deployment.engine], plan.deployment
    auth = config.deployment.auth
    fields: dict[str, object] = {
        "model": deployment.model,
        **dict(dialect.fixed_fields),
        dialect.id_fields[0]: True,
        "max_tokens": plan.max_tokens,
        "logprobs": config.requests.logprobs,
        "ignore_eos": config.requests.ignore_eos,
        "stream": False,
    }
    title = "\n".join((f"group {verdict.id} of run {replay.run_id}: {verdict.length} tokens", *replay.differed))
    wiring = Wiring(
        fields=fields,
        path=dialect.completions_path,
        reset_path=dialect.reset_path,
        forgets=_forgets(plan),
        bearer_env=auth.bearer_env if auth is not None else None,
        settle_s=plan.limits.settle_s * replay.group.patience,
    )
    return curl_script(title, plan, pair, dict(replay.prompts), wiring)


def _pair(replay: Replay, verdict: GroupVerdict) -> PairPlan | None:
    """The planned pair that fails first, of two hits if there is one."""
    failing = [pair for pair in verdict.pairs if pair.verdict is Verdict.FAIL]
    if not failing:
        return None
    first = min(failing, key=lambda pair: not pair.kind.of_hits)
    named = (first.kind, first.baseline, first.subject)
    planned = ((each.kind, each.baseline, each.subject) for each in replay.group.pairs)
    place = next((place for place, each in enumerate(planned) if each == named), None)
    return replay.group.pairs[place] if place is not None else None


def _forgets(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The addresses whose caches are dropped where an endpoint is to forget: behind a gateway those of the engines."""
    if plan.forcing is not Forcing.RESET_LOCAL:
        return {}
    deployment = plan.deployment
    behind = tuple(
        each.url for role in (Role.COMBINED, Role.PREFILL, Role.DECODE) for each in deployment.with_role(role)
    )
    direct = route_of(deployment) is Route.DIRECT
    return {each.name: (each.url,) if direct else behind for each in deployment.endpoints}
