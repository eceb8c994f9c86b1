"""What 001 defines, constructs, bounds or states that a computer can check, numbered.

Claims name the items that they cover; a test holds that none is left out.
"""

from __future__ import annotations

__all__ = ["ITEMS"]

ITEMS: dict[int, str] = {}
