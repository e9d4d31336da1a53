"""A book of lessons as a skill: a folder that coding agents and DSPy's ``skills`` read.

| module | what it is |
| --- | --- |
| ``_lines`` | a lesson as a line of Markdown, and back |
| ``_pages`` | which lessons stand where: ``SKILL.md`` and the references, as texts |
| ``_folder`` | what is written to a folder, and what a folder says, edits by hand included |
"""

from combee_dspy.skills._folder import SkillFolder, read_skill, write_skill

__all__ = ["SkillFolder", "read_skill", "write_skill"]
