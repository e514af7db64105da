"""The verb `clone`: from demos to a policy that does as they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slipstream.cli.app import Bar, exit_with, main, preset_option, print_result, shared


@main.command()
@click.argument("demos", type=click.Path(path_type=Path))
@click.option("--epochs", type=int, help="Passes over the demos, at most.")
@click.option("--batch", type=int, help="Samples per gradient step.")
@click.option("--max-samples", type=int, help="Use whole episodes up to this many steps.")
@click.option("--dagger", type=int, metavar="ROUNDS", help="Then play, ask the expert, and learn, so many times.")
@click.option("--expert", metavar="AGENT", help="Whom DAgger asks [the scripted agent that recorded].")
@click.option("--start", metavar="AGENT", help="Begin with the weights of run:DIR.")
@click.option("--seed", type=int, help="Everything random follows from it.")
@click.option("--run", "place", type=click.Path(path_type=Path), help="The run directory [runs/ENV-clone-TIME].")
@preset_option
@click.option("--config", type=click.Path(path_type=Path), help="A YAML file of settings.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="One setting; may be repeated.")
@shared
def clone(demos: Path, place: Path | None, as_json: bool, modules: tuple[str, ...], **flags: Any) -> None:
    """Teach a policy to do as the DEMOS do; `train --start run:DIR` goes on from it."""
    from slipstream.api import configure
    from slipstream.config import flag_layer
    from slipstream.demos.format import read_schema
    from slipstream.envs.registry import import_modules, known
    from slipstream.stages.clone import clone as do

    import_modules(modules)
    env = read_schema(demos).env
    words = flag_layer(list(flags.pop("words"))).values | {"clone.demos": str(demos)}
    preset, config = flags.pop("preset"), flags.pop("config")
    words |= {key: value for key in ("seed", "start") if (value := flags.pop(key)) is not None}
    words |= {f"clone.{key}": value for key, value in flags.items() if value is not None}
    resolved = configure(env if known(env) else "", preset=preset, config=config, flags=words)
    with Bar("samples") as bar:
        facts = do(resolved, demos, place, lambda line: click.echo(line, err=True), bar.show).facts()
    print_result(facts, as_json, cloned(facts))
    exit_with(facts)


def resume_clone(run: Path, as_json: bool) -> None:
    """Go on with a clone after its last whole epoch."""
    from slipstream.runs.layout import RunDir
    from slipstream.runs.provenance import read_config
    from slipstream.stages.clone import resume

    with Bar("samples") as bar:
        settings = read_config(RunDir.open(run))[0]
        facts = resume(run, settings, lambda line: click.echo(line, err=True), bar.show).facts()
    print_result(facts, as_json, cloned(facts))
    exit_with(facts)


def cloned(facts: dict[str, Any]) -> str:
    """The end of a cloning in words."""
    like = f"accuracy {facts['accuracy']:.1%}" if "accuracy" in facts else f"error {facts.get('error', 0):.4f}"
    split = ", ".join(f"{name} {share:.0%}" for name, share in facts["time"].items())
    return "\n".join(
        [
            f"{facts['epochs']} epochs in {facts['seconds']:.1f} s ({split})",
            f"best: epoch {facts['best_epoch']}, held-out loss {facts.get('held_out_loss', 0):.4f}, {like}",
            f"go on: slipstream train {facts['env']} --start run:{facts['run']}",
        ]
    )
