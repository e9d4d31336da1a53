"""What the tests of this distribution share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# No test may reach a model host.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# No test writes into anybody's home.
os.environ["COMBEE_RECEIPTS"] = "off"
# The studies are part of no wheel.
sys.path.append(str(Path(__file__).parents[1]))
