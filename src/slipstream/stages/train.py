"""Train an agent, or resume a training run."""

from slipstream.training.runner import TrainingResult, resume
from slipstream.training.runner import begin as train

__all__ = ["TrainingResult", "resume", "train"]
