"""What decides about production: whether to search wide, how, whether a claim holds, and what is served.

| room | what it is |
| --- | --- |
| ``diagnosis`` | whether serial search has converged |
| ``planning`` | a specification, the plan of a wide search, what is refused, whether a claim survives |
| ``canary`` | publishing, serving with a shadow, promotion and rollback |
| ``commands`` | ``combee diagnose``, ``plan``, ``verify``, ``publish`` and ``canary`` |
"""
