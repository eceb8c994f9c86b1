"""Same, different or undecided: the parts that `weightloom.symmetry.equivalent` is made of."""
