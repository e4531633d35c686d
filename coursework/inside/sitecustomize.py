"""What every Python that works on a submission reads first."""

import sys

sys.modules["rfc3987_syntax"] = None  # jsonschema would spend a second on a kind of address that no notebook has
