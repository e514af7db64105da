"""What can live on a GPU as a whole: game, policy and learner together; and if not, why."""

from __future__ import annotations

from slipstream.contracts import EnvSpec
from slipstream.policies.design import Design
from slipstream.settings import Settings


def off_device(settings: Settings, spec: EnvSpec, design: Design, *, game: bool, terms: bool, rivals: bool) -> str:
    """Why a run cannot be played and learned on one device; empty: it can.

    `game` says whether the env has a function for one env, `terms` whether there are reward terms of the user's own,
    `rivals` whether anybody but the policy plays.
    """
    ppo, policy = settings.ppo, settings.policy
    reasons = {
        "this game has no GPU version": not game,
        "SAC learns on the CPU": settings.algorithm != "ppo",
        "reward terms of your own are compiled for the CPU": terms,
        "opponents play on the CPU": rivals,
        "a curriculum follows games one by one": settings.curriculum.kind != "none",
        "masks of actions are not among what the GPU plays games by": spec.action.masked,
        "networks for images or tokens are not among what the GPU plays games by": not design.obs.plain,
        "layer norm is not among what the GPU plays games by": policy.layer_norm,
        "a GRU is not among what the GPU plays games by": policy.memory == "gru",
        "a burn-in is not among what the GPU plays games by": bool(policy.memory != "none" and policy.burn_in),
        "`ppo.optimiser` = muon needs the torch learner": ppo.optimiser == "muon",
        "the contrastive loss needs the torch learner": ppo.contrastive_coef > 0
        or "ppo.contrastive_coef" in settings.schedules,
        "V-trace is computed on the CPU": ppo.vtrace_rho > 0,
        "priorities of segments are computed on the CPU": ppo.priority_alpha > 0,
        "a tuned number of epochs is computed on the CPU": ppo.epochs_max > 0,
        "the policy to stay near is asked on the CPU": ppo.reference is not None,
        "a teacher is asked on the CPU": ppo.teacher is not None,
        "demos are imitated on the CPU": ppo.demos is not None,
    }
    return next((why for why, there in reasons.items() if there), "")
