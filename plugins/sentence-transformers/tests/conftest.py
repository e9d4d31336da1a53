import os

# The model lies in an installed package; nothing is asked of a hub.
os.environ["HF_HUB_OFFLINE"] = "1"
