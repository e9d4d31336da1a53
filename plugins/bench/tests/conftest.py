"""What the tests of this distribution share."""

from __future__ import annotations

import os

# No test may reach a model host.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# No test writes into anybody's home.
os.environ["COMBEE_RECEIPTS"] = "off"
