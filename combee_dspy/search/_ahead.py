"""What a compile would load in its middle, loaded before it begins.

numpy loads once in a process. Where somebody puts another dict in the place of
``sys.modules`` during a compile, as tests do that mock a module, all that was
first imported meanwhile is forgotten afterwards, and the next compile would
have to load numpy again, which it refuses.
"""

import scipy.sparse  # noqa: F401 - for its being loaded
