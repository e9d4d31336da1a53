"""What decides about production: whether to search wide, what a claim is worth, what serves.

| room | what it is |
| --- | --- |
| ``diagnosis`` | whether serial search has converged |
| ``planning`` | a specification, a plan, what is refused, whether a claim survives |
| ``canary`` | publishing, serving with a shadow, promotion and rollback |
| ``live`` | an agent that improves while it serves |
| ``exceptions`` | errors about plans and versions |
| ``commands`` | ``combee diagnose``, ``plan``, ``verify``, ``publish``, ``canary`` and ``live`` |
"""
