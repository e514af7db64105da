"""Errors: what happened, what to do, and the exit code that scripts rely on."""

from __future__ import annotations

import pytest

from slipstream import errors

CODES = {
    "SlipstreamError": 1, "ConfigError": 2, "AgentFault": 2, "NonFinitePolicy": 2, "EnvError": 3, "EnvFault": 3,
    "EnvEnded": 3, "NonFiniteGame": 3, "DemoError": 4, "CheckpointError": 5, "MachineError": 6, "GateError": 7,
}  # fmt: skip


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_exit_codes(name: str, code: int) -> None:
    """Each kind of error has its own code, written in the drawing at the top of the file too."""
    kind = getattr(errors, name)
    assert issubclass(kind, errors.SlipstreamError)
    assert kind.code == code
    line = next(line for line in (errors.__doc__ or "").splitlines() if line.lstrip(" |`-").startswith(f"{name} "))
    assert line.split(name)[1].split()[0] == str(code)


def test_every_error_is_in_the_drawing() -> None:
    """No kind of error is missing from the table."""
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert kinds == set(CODES)


def test_the_hint_stands_on_its_own_line() -> None:
    """What happened first, then `hint:`; without a hint only what happened."""
    assert str(errors.ConfigError("It broke.", "mend it")) == "It broke.\nhint: mend it"
    assert str(errors.ConfigError("It broke.")) == "It broke."


def test_an_env_fault_can_be_replayed() -> None:
    """Index, seed, step and the env's own traceback are in the text and on the error."""
    fault = errors.EnvFault(3, 17, 880, "Traceback ...\nValueError: boom\n")
    assert str(fault) == (
        "Env 3 (seed 17, step 880) raised:\nTraceback ...\nValueError: boom\n"
        "hint: fix the environment; nothing else failed"
    )
    assert (fault.env, fault.seed, fault.step) == (3, 17, 880)


def test_did_you_mean() -> None:
    """A near word is offered, a far one is not."""
    assert errors.did_you_mean("learnig_rate", ["learning_rate", "clip"]) == " Did you mean `learning_rate`?"
    assert errors.did_you_mean("zzz", ["learning_rate", "clip"]) == ""
