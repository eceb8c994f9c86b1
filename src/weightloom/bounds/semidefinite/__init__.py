"""2-norm bounds tighter than the product of the layers' norms, from semidefinite conditions.

How two outputs of a layer can differ is kept as an ellipsoid, and not only as its largest axis.
"""

from weightloom.bounds.semidefinite.recursion import closed_form
from weightloom.bounds.semidefinite.tuning import tuned

__all__ = ["closed_form", "tuned"]
