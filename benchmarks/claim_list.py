"""Claims about speed in five documents about training game-playing agents, and the comparisons that measure them."""

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
class Claim:
    """One claim: its number, a short text, the comparisons that measure it, or the reason why there is none."""

    number: str
    text: str
    comparisons: tuple[str, ...] = ()
    reason: str = ""


CLAIMS = (
    Claim("S0.4", "mixed precision: 2-3x, 40 % less GPU memory", ("bf16", "gpu-bf16", "gpu-fp16")),
    Claim("S0.5", "a dataset with a loader of 4 workers: 1.5-2x", ("loader", "loader-workers")),
    Claim("S0.6", "encode images once, train the heads only: 1.3x", ("features",)),
    Claim("S0.7", "a smaller encoder: patches of 16 instead of 32, 2x; images of 128, 3x", ("patches", "small-images")),
    Claim("S0.8", "torch.compile: 1.5-2x", ("compile", "gpu-compile")),
    Claim("S0.9", "smaller rollouts, minibatches and fewer epochs: faster, less stable", ("small-rollout",)),
    Claim("S0.10", "cuDNN autotune, not deterministic: 10-20 %", ("gpu-cudnn",)),
    Claim("S0.11", "several GPUs by DDP: near linear", reason="training on several GPUs is not built yet"),
    Claim("S0.12", "gradient accumulation over 4 parts (no number; here its cost)", ("micro-batch",)),
    Claim("S0.13", "Apex mixed precision, an alternative to S0.4", reason="Apex is no longer maintained; torch has it"),
    Claim("S0.14", "a pre-processed, memory-mapped data set: 5-10x loading", ("mapped",)),
    Claim("S0.17", "images of 64 instead of 128 pixels: 3-4x", ("resolution",)),
    Claim("S0.19", "all quick fixes together: 3-5x", ("all-on", "gpu-all-on")),
    Claim("S0.21", "extreme speed mode: 2-5 minutes a run", reason="a duration, not a ratio: see `--preset smoke`"),
    Claim("S0.23", "TensorRT: 5-10x inference", reason="export to TensorRT is not built yet"),
    Claim("S0.24", "the fastest setup: TF32, cuDNN, workers, compile, mixed precision", ("gpu-tf32", "gpu-all-on")),
    Claim("S0.25", "5x cloning, 5x PPO", reason="numbers of one GPU and one game; the parts have their own rows"),
    Claim("S1.1", "environments in processes: 2-3x", ("processes", "processes-slow", "workers", "workers-slow")),
    Claim("S1.2", "mixed precision: 1.5-2x", ("bf16", "gpu-bf16", "gpu-fp16")),
    Claim("S1.3", "torch.compile: 10-30 % faster inference", ("compile", "gpu-compile")),
    Claim("S1.4", "pinned memory: 5-15 %", ("gpu-pinned",)),
    Claim("S1.5", "batched inference: 1.5-2x", ("inference",)),
    Claim("S1.6", "action repeat: faster, at a cost in control (no number)", ("action-repeat",)),
    Claim("S1.9", "before: 6-9 ticks/s", reason="a number of one machine and of a trainer that is not available"),
    Claim("S1.10", "all together: 3-5x, at least 2x", ("all-on", "gpu-all-on")),
    Claim("S2.1", "batches of 262,144 instead of 16,384: 16x, minibatches 64x", ("batch", "gpu-batch")),
    Claim("S2.2", "16 workers instead of 4, more batches in flight", ("workers", "workers-many")),
    Claim("S2.3", "512 envs instead of 64", ("envs-8", "envs-64", "envs-512")),
    Claim("S2.4", "BPTT of 32 steps instead of 64: 2x", ("bptt",)),
    Claim("S2.5", "one epoch of updates", ("epochs",)),
    Claim("S2.6", "no offloading of observations to the host", ("gpu-storage",)),
    Claim("S2.7", "prioritised sampling off", ("extras-off",)),
    Claim("S2.8", "contrastive loss off", ("contrast-off",)),
    Claim("S2.9", "teacher off", ("teacher-off",)),
    Claim("S2.10", "weight analysis off", ("extras-off",)),
    Claim("S2.11", "profiler off", reason="off by default; it traces single iterations"),
    Claim("S2.12", "preallocated buffers, few conversions", reason="always on: nothing to switch off"),
    Claim("S2.13", "gradient statistics and monitoring less often", ("extras-off",)),
    Claim("S2.14", "compile with reduce-overhead, zero copy", ("zero-copy", "compile", "gpu-compile")),
    Claim("S2.19", "10-20x in all", ("all-on", "gpu-all-on")),
    Claim("S3.1", "demos recorded by 4 processes: 3.3x, by 8: 5x", ("record",)),
    Claim("S3.2", "cloning with 2 to 4 loader workers: 2-3x", ("loader-workers", "index")),
    Claim("S3.3", "off-policy training with 8 envs instead of 1: 3-4x", ("sac-envs", "sac-as-said")),
    Claim(
        "S3.4", "the whole pipeline: 3.7x on 8 cores, 7.4x with a GPU", reason="takes hours; its parts are rows here"
    ),
    Claim("S3.5", "hours by tier of hardware", reason="machines that are not available"),
    Claim("S3.8", "hours by machine", reason="machines that are not available"),
    Claim("S3.9", "shares of time by stage", reason="not a comparison; every run logs its own shares"),
    Claim("S3.10", "expected speed-ups by the number of cores", reason="expected, not measured, there"),
    Claim("S4.1", "from 6-9 to at least 25 ticks/s, 3x", ("all-on", "gpu-all-on")),
    Claim("S4.6", "the switches of S1", ("processes", "bf16", "compile")),
    Claim("S4.7", "pinned memory, batched inference, action repeat", ("gpu-pinned", "inference", "action-repeat")),
    Claim("S4.23", "the LSTM makes it 10-20 % faster", ("lstm",)),
)
