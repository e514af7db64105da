"""Whether a run can live on a GPU as a whole, with game, policy and learner, and if not, which setting prevents it."""

from __future__ import annotations

from slipstream.contracts import EnvSpec
from slipstream.policies.design import Design
from slipstream.settings import Settings


def off_device(settings: Settings, spec: EnvSpec, design: Design, *, game: bool, terms: bool, rivals: bool) -> str:
    """Why a run cannot be played and trained on one device; empty: it can.

    `game` is whether the env has a GPU version, `terms` whether there are user-defined reward terms, `rivals` whether
    any agent besides the policy plays.
    """
    ppo, policy = settings.ppo, settings.policy

    def used(name: str) -> bool:
        return bool(getattr(ppo, name)) or f"ppo.{name}" in settings.schedules

    reasons = {
        "this game has no GPU version": not game,
        "`algorithm` = sac runs on the CPU only": settings.algorithm != "ppo",
        "user-defined reward terms run on the CPU only": terms,
        "opponents play on the CPU": rivals,
        "`curriculum.kind` needs a collector on the CPU": settings.curriculum.kind != "none",
        "action masks are not supported on the device": spec.action.masked,
        "image and token observations are not supported on the device": not design.obs.plain,
        "`policy.layer_norm` is not supported on the device": policy.layer_norm,
        "`policy.memory` = gru is not supported on the device": policy.memory == "gru",
        "`policy.burn_in` is not supported on the device": bool(policy.memory != "none" and policy.burn_in),
        "`ppo.optimiser` = muon needs the torch learner": ppo.optimiser == "muon",
        "`ppo.contrastive_coef` needs the torch learner": used("contrastive_coef"),
        "`ppo.vtrace_rho` is not supported on the device": used("vtrace_rho"),
        "`ppo.priority_alpha` is not supported on the device": used("priority_alpha"),
        "`ppo.reference` is not supported on the device": ppo.reference is not None,
        "`ppo.teacher` is not supported on the device": ppo.teacher is not None,
        "`ppo.demos` is not supported on the device": ppo.demos is not None,
    }
    return next((why for why, applies in reasons.items() if applies), "")
