"""Symmetric positive definite systems: operators and solvers by structure, with certificates.

An `Operator` is a matrix A that may never be stored. `prepare` chooses a solver for A + shift I and
factorises once; every `Solution` carries its recomputed residual.

>>> import torch
>>> A = DenseOperator(torch.eye(2, dtype=torch.float64))
>>> prepare(A, shift=1.0).solve(torch.ones(2, dtype=torch.float64)).value
tensor([0.5000, 0.5000], dtype=torch.float64)
"""

from weightloom.linalg.blocked import Blocked
from weightloom.linalg.certificates import Solution, SolverFactor, SolverPlan, StochasticEstimate
from weightloom.linalg.cg import CGFactor, conjugate_gradients
from weightloom.linalg.direct import CholeskyFactor, LUFactor
from weightloom.linalg.kronecker import KroneckerSum, KroneckerTerms
from weightloom.linalg.operator import DenseOperator, MaskedOperator, Operator
from weightloom.linalg.preconditioners import (
    IdentityPreconditioner,
    Jacobi,
    LowRank,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
)
from weightloom.linalg.solvers import make_plan, prepare
from weightloom.linalg.spectral import SpectralBlocks
from weightloom.linalg.stochastic import (
    estimate_inverse_diagonal,
    estimate_logdet,
    smallest_eigenvalue,
)
from weightloom.linalg.torus import Torus, TorusFactor, cosine_transform, half_grid

__all__ = [
    # symmetric matrices, by structure
    "Operator",
    "DenseOperator",
    "Blocked",
    "MaskedOperator",
    "KroneckerSum",
    "KroneckerTerms",
    "Torus",
    "half_grid",
    "cosine_transform",
    # solving: plan, factorise once, solve often
    "make_plan",
    "SolverPlan",
    "prepare",
    "SolverFactor",
    "Solution",
    # the solvers
    "CholeskyFactor",
    "LUFactor",
    "TorusFactor",
    "CGFactor",
    "conjugate_gradients",
    # preconditioners of conjugate gradients
    "Preconditioner",
    "PivotedCholesky",
    "Nystrom",
    "LowRank",
    "SpectralBlocks",
    "Jacobi",
    "IdentityPreconditioner",
    # numbers that need only products with the matrix
    "estimate_logdet",
    "estimate_inverse_diagonal",
    "smallest_eigenvalue",
    "StochasticEstimate",
]
