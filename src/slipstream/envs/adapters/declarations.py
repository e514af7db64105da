"""The games of other libraries as the registry lists them: Atari, PettingZoo and EnvPool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.envs.game import Game, lazy


def _names(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


ATARI_GAMES = _names(
    """
    Pong Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling Boxing Breakout
    Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk Enduro FishingDerby Freeway Frostbite Gopher
    Gravitar Hero IceHockey Jamesbond Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix
    Pitfall PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Surround
    Tennis TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon
    """
)
"""The names that may follow `atari:`."""
ATARI = Game(
    summary="Atari games by ALE (needs the extra `atari`)",
    variants=ATARI_GAMES,
    make=lazy("slipstream.envs.adapters.atari:make"),
)


def _lookahead(height: int, width: int, need: int, falls: bool) -> Mapping[str, Any]:
    """The fields of a board game that has a lookahead player."""
    return {
        "choosers": {"lookahead": lazy("slipstream.envs.lookahead:best_moves", height, width, need, falls)},
        "reference": "scripted:lookahead",
        "opponents": ("scripted:lookahead",),
    }


PETTINGZOO = Game(
    summary="games of PettingZoo, turn-based or simultaneous (needs the extra `pettingzoo`)",
    variants=_names(
        """
        connect_four tictactoe rps chess go gin_rummy hanabi leduc_holdem texas_holdem texas_holdem_no_limit simple_tag
        simple simple_adversary simple_crypto simple_push simple_reference simple_speaker_listener simple_spread
        simple_world_comm cooperative_pong knights_archers_zombies pistonball multiwalker pursuit waterworld
        """
    ),
    make=lazy("slipstream.envs.adapters.pettingzoo:make"),
    recognise=lazy("slipstream.envs.adapters.pettingzoo:recognise"),
    reference="random",
    opponents=("random",),
    variant_fields={"connect_four": _lookahead(6, 7, 4, True), "tictactoe": _lookahead(3, 3, 3, False)},
)
ENVPOOL = Game(
    summary="games of EnvPool, stepped by its own threads (needs the extra `envpool`)",
    variants=_names(
        """
        CartPole-v1 Acrobot-v1 Pendulum-v1 LunarLander-v3 Pong-v5 Breakout-v5 HalfCheetah-v4 MiniGrid-Empty-5x5-v0
        ConnectFour-v1 Othello-v1 Go9x9-v1 Chess-v1 KuhnPoker-v1
        """
    ),
    make=lazy("slipstream.envs.adapters.envpool:make"),
    open_variants=True,
)
