"""The executor "ray" for combee_dspy."""

from combee_ray._errors import RayClusterError
from combee_ray._strategy import Ray

__all__ = ["Ray", "RayClusterError"]
