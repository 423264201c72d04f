"""A group of a run as a script of plain requests: what anyone can send who has bash and curl."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvgate.domain.plan import ArmStep, GroupPlan, PairPlan, Plan
from kvgate.domain.probe import Part


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the script takes beside the group: request fields without prompt and salt, where to post them and where to
    have a cache dropped, the endpoints that are made to forget, by name, and the environment variable of the key."""

    fields: Mapping[str, object]
    path: str
    reset_path: str
    forgets: Mapping[str, tuple[str, ...]]
    bearer_env: str | None
    settle_s: float


def curl_script(title: str, plan: Plan, pair: PairPlan, prompts: Mapping[Part, tuple[int, ...]], wiring: Wiring) -> str:
    """The script: every arm up to the pair's subject, then both answers held against each other."""
    group = plan.groups[0]
    lines = [*_head(title, wiring), ""]
    for part, ids in _sent(group, pair, prompts):
        lines += [f"cat > \"$work/{part.value}.json\" <<'IDS'", json.dumps(list(ids), separators=(",", ":")), "IDS"]
    lines += ["cat > \"$work/fields.json\" <<'FIELDS'", json.dumps(dict(wiring.fields))[:-1], "FIELDS", ""]
    for step in _until(group, pair):
        lines += _step(plan, step, wiring)
    return "\n".join([*lines, *_end(pair)]) + "\n"


def _until(group: GroupPlan, pair: PairPlan) -> Iterator[ArmStep]:
    """The arms that are sent before the subject, and it."""
    for step in group.steps:
        yield step
        if step.arm is pair.subject:
            return


def _sent(
    group: GroupPlan, pair: PairPlan, prompts: Mapping[Part, tuple[int, ...]]
) -> Iterator[tuple[Part, tuple[int, ...]]]:
    for part in dict.fromkeys(step.part for step in _until(group, pair)):
        size = group.size(part)
        if part in prompts:
            yield part, prompts[part]
        elif size is not None:
            yield part, prompts[Part.WHOLE][: size.length]


# What the script defines: one request posted, and one arm asked. The key is in a file, and not among the arguments,
# where everybody on the machine could read it.
_FUNCTIONS = r"""post() {  # where, body, answer; further arguments are curl's
  local code
  code=$(curl -sS --noproxy '*' -o "$3" -w '%{http_code}' -X POST -H 'Content-Type: application/json' \
    -H @"$work/headers" --data-binary @"$2" "${@:4}" "$1") || { echo "no answer from $1" >&2; exit 2; }
  case $code in 2??) ;; *) echo "HTTP $code from $1:" >&2; head -c 500 "$3" >&2; exit 2 ;; esac
}
ask() {  # arm, where, prompt, salt; further arguments are curl's
  { cat "$work/fields.json"; printf ',%s"prompt":' "$4"; cat "$work/$3.json"; printf '}'; } > "$work/body"
  post "$2" "$work/body" "$work/$1.answer" "${@:5}"
  grep -oE '"(token_ids|token_logprobs)": *\[[^]]*\]' "$work/$1.answer" | tr -d ' ' > "$work/$1.seen" \
    || { echo "no token IDs in the answer to $1" >&2; exit 2; }
  echo "$1: $(head -n 1 "$work/$1.seen")"
}
printf '{}' > "$work/empty"
"""


def _head(title: str, wiring: Wiring) -> Iterator[str]:
    yield "#!/usr/bin/env bash"
    yield from (f"# {line}" for line in title.splitlines())
    yield "# Exit 0: both answers are alike. Exit 1: they differ. Exit 2: a request failed."
    yield "# It proves no path: read the engine's counters beside it, or use `kvgate replay`, which does."
    yield "# Each time the salts are new; KVGATE_SALT sets them."
    yield "set -euo pipefail"
    yield "work=$(mktemp -d)"
    yield "trap 'rm -rf \"$work\"' EXIT"
    yield "salt=${KVGATE_SALT:-kvgate-curl-$(date +%s)-$$}"
    yield ': > "$work/headers"'
    name = wiring.bearer_env
    if name is not None:
        told = f'"${{{name}:?set {name} to the API key}}"'
        yield f"printf 'Authorization: Bearer %s\\n' {told} > \"$work/headers\""
    yield _FUNCTIONS


def _step(plan: Plan, step: ArmStep, wiring: Wiring) -> Iterator[str]:
    if step.settle and wiring.settle_s:
        yield f"sleep {wiring.settle_s:g}  # puts are asynchronous"
    if step.drop_local:
        urls = wiring.forgets.get(step.endpoint, ())
        for url in urls:
            yield f'post {shlex.quote(url + wiring.reset_path)} "$work/empty" "$work/reset.answer"'
        if not urls:
            yield f'read -rp "make {step.endpoint} forget what it has computed (restart it, say), then press Enter "'
    salt = f'"\\"cache_salt\\":\\"$salt-{step.salt}\\","' if step.salt is not None else '""'
    where = shlex.quote(plan.deployment.endpoint(step.endpoint).url + wiring.path)
    rank = f" -H 'X-data-parallel-rank: {step.rank}'" if step.rank is not None else ""
    yield f"ask {step.arm.value} {where} {step.part.value} {salt}{rank}"


def _end(pair: PairPlan) -> Iterator[str]:
    one, other = pair.baseline.value, pair.subject.value
    yield ""
    yield f'if cmp -s "$work/{one}.seen" "$work/{other}.seen"; then'
    yield f'  echo "alike: {one} and {other}"'
    yield "  exit 0"
    yield "fi"
    yield f'echo "DIFFERENT: {one} (<) and {other} (>)"'
    yield f'diff "$work/{one}.seen" "$work/{other}.seen" || true'
    yield "exit 1"
