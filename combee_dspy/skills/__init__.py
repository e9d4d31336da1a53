"""A book of lessons as a skill: a folder that coding agents and DSPy's ``skills`` read.

| module | what it is |
| --- | --- |
| ``_lines`` | a lesson as a line of Markdown, and back |
| ``_pages`` | which file holds which lessons: ``SKILL.md`` and the references, as texts |
| ``_folder`` | writing a folder, and reading it with the edits that people made |
"""

from combee_dspy.skills._folder import SkillFolder, read_skill, write_skill

__all__ = ["SkillFolder", "read_skill", "write_skill"]
