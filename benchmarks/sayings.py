"""What five documents about training game-playing agents said about speed, and which comparisons answer them."""

from __future__ import annotations

from dataclasses import dataclass

DOCUMENTS = {
    "S0": "a guide to training a Minecraft agent faster",
    "S1": "the speed phase of a car soccer bot",
    "S2": "a guide to a 10 to 20 times faster trainer of grid worlds",
    "S3": "a summary of demos, cloning and off-policy training in parallel",
    "S4": "the plan of the car soccer bot, in six phases",
}


@dataclass(frozen=True)
class Saying:
    """One claim: its number, its words in short, the comparisons that answer it, or why there is none."""

    number: str
    said: str
    answers: tuple[str, ...] = ()
    why_not: str = ""


SAYINGS = (
    Saying("S0.4", "mixed precision: 2-3x, 40 % less GPU memory", ("bf16", "gpu-bf16", "gpu-fp16")),
    Saying("S0.5", "a dataset with a loader of 4 workers: 1.5-2x", ("loader", "loader-workers")),
    Saying("S0.6", "encode images once, train the heads only: 1.3x", ("features",)),
    Saying(
        "S0.7", "a smaller encoder: patches of 16 instead of 32, 2x; images of 128, 3x", ("patches", "small-images")
    ),
    Saying("S0.8", "torch.compile: 1.5-2x", ("compile", "gpu-compile")),
    Saying("S0.9", "smaller rollouts, minibatches and fewer epochs: faster, less stable", ("small-rollout",)),
    Saying("S0.10", "cuDNN tries its ways, not deterministic: 10-20 %", ("gpu-cudnn",)),
    Saying("S0.11", "several GPUs by DDP: near linear", why_not="training on several GPUs is not built yet"),
    Saying("S0.12", "gradient accumulation over 4 parts (no number; here its price)", ("micro-batch",)),
    Saying("S0.13", "Apex mixed precision, an alternative to S0.4", why_not="Apex is no longer kept up; torch has it"),
    Saying("S0.14", "a pre-processed, memory-mapped data set: 5-10x loading", ("mapped",)),
    Saying("S0.17", "images of 64 instead of 128 pixels: 3-4x", ("resolution",)),
    Saying("S0.19", "all quick fixes together: 3-5x", ("all-on", "gpu-all-on")),
    Saying("S0.21", "extreme speed mode: 2-5 minutes a run", why_not="a duration, not a ratio: `--preset smoke` is it"),
    Saying("S0.23", "TensorRT: 5-10x inference", why_not="export to TensorRT is not built yet"),
    Saying("S0.24", "the fastest setup: TF32, cuDNN, workers, compile, mixed precision", ("gpu-tf32", "gpu-all-on")),
    Saying("S0.25", "5x cloning, 5x PPO", why_not="numbers of one card and one game; the parts are rows of their own"),
    Saying("S1.1", "environments in processes: 2-3x", ("processes", "processes-slow", "workers", "workers-slow")),
    Saying("S1.2", "mixed precision: 1.5-2x", ("bf16", "gpu-bf16", "gpu-fp16")),
    Saying("S1.3", "torch.compile: 10-30 % faster inference", ("compile", "gpu-compile")),
    Saying("S1.4", "pinned memory: 5-15 %", ("gpu-pinned",)),
    Saying("S1.5", "batched inference: 1.5-2x", ("inference",)),
    Saying("S1.6", "action repeat: faster, at a price in control (no number)", ("action-repeat",)),
    Saying("S1.9", "before: 6-9 ticks/s", why_not="one machine's number, of a trainer that we do not have"),
    Saying("S1.10", "all of it together: 3-5x, at least 2x", ("all-on", "gpu-all-on")),
    Saying("S2.1", "batches of 262,144 instead of 16,384: 16x, minibatches 64x", ("batch", "gpu-batch")),
    Saying("S2.2", "16 workers instead of 4, more in flight", ("workers", "workers-many")),
    Saying("S2.3", "512 envs instead of 64", ("envs-8", "envs-64", "envs-512")),
    Saying("S2.4", "gradients back through 32 steps instead of 64: 2x", ("bptt",)),
    Saying("S2.5", "one epoch of updates", ("epochs",)),
    Saying("S2.6", "no offloading of observations to the host", ("gpu-storage",)),
    Saying("S2.7", "prioritised sampling off", ("extras-off",)),
    Saying("S2.8", "contrastive loss off", ("contrast-off",)),
    Saying("S2.9", "teacher off", ("teacher-off",)),
    Saying("S2.10", "weight analysis off", ("extras-off",)),
    Saying("S2.11", "profiler off", why_not="it is off unless asked for, and then traces single iterations"),
    Saying("S2.12", "buffers made once, few conversions", why_not="there is no way without: nothing to switch off"),
    Saying("S2.13", "gradient statistics and monitoring less often", ("extras-off",)),
    Saying("S2.14", "compile with reduce-overhead, zero copy", ("zero-copy", "compile", "gpu-compile")),
    Saying("S2.19", "10-20x in all", ("all-on", "gpu-all-on")),
    Saying("S3.1", "demos recorded by 4 processes: 3.3x, by 8: 5x", ("record",)),
    Saying("S3.2", "cloning with 2 to 4 loader workers: 2-3x", ("loader-workers", "index")),
    Saying("S3.3", "off-policy training with 8 envs instead of 1: 3-4x", ("sac-envs", "sac-as-said")),
    Saying("S3.4", "the whole pipeline: 3.7x on 8 cores, 7.4x with a GPU", why_not="hours; its parts are rows here"),
    Saying("S3.5", "hours by tier of hardware", why_not="machines that we do not have"),
    Saying("S3.8", "hours by machine", why_not="machines that we do not have"),
    Saying("S3.9", "shares of time by stage", why_not="not a comparison; every run and record tells its own shares"),
    Saying("S3.10", "expected speed-ups by the number of cores", why_not="expected, not measured, there"),
    Saying("S4.1", "from 6-9 to at least 25 ticks/s, 3x", ("all-on", "gpu-all-on")),
    Saying("S4.6", "the switches of S1", ("processes", "bf16", "compile")),
    Saying("S4.7", "pinned memory, batched inference, action repeat", ("gpu-pinned", "inference", "action-repeat")),
    Saying("S4.23", "the LSTM makes it 10-20 % faster", ("lstm",)),
)
