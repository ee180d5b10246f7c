"""The Lightning modules: model + loss + metrics + optimizer + schedule."""

from labkit.tasks.base import Task
from labkit.tasks.images import ImageClassification

__all__ = ["ImageClassification", "Task"]
