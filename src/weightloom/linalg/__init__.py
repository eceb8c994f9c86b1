"""Symmetric positive definite systems: operators and solvers by structure, with certificates."""

from weightloom.linalg.blocked import Blocked
from weightloom.linalg.cg import conjugate_gradients
from weightloom.linalg.direct import CholeskyFactor, LUFactor
from weightloom.linalg.factor import Factor
from weightloom.linalg.hutchinson import estimate_inverse_diagonal
from weightloom.linalg.iterative import CGFactor
from weightloom.linalg.kronecker import KroneckerSum, KroneckerTerms
from weightloom.linalg.lanczos import estimate_logdet, smallest_eigenvalue
from weightloom.linalg.operator import Dense, Masked, Operator
from weightloom.linalg.preconditioners import (
    IdentityPreconditioner,
    Jacobi,
    LowRank,
    Nystrom,
    PivotedCholesky,
    Preconditioner,
)
from weightloom.linalg.prepare import SOLVERS, make_plan, prepare
from weightloom.linalg.solution import Estimate, Plan, Solution
from weightloom.linalg.spectral import SpectralBlocks, common_basis
from weightloom.linalg.torus import (
    Torus,
    TorusFactor,
    cosine_transform,
    fourier_basis,
    half_grid,
)

__all__ = [
    # Matrices, by structure
    "Operator",
    "Dense",
    "Blocked",
    "Masked",
    "KroneckerSum",
    "KroneckerTerms",
    "Torus",
    "half_grid",
    "cosine_transform",
    "fourier_basis",
    # Solving: choose, factorise once, solve often
    "prepare",
    "make_plan",
    "SOLVERS",
    "Plan",
    "Factor",
    "Solution",
    "Estimate",
    # Solvers
    "CholeskyFactor",
    "LUFactor",
    "CGFactor",
    "TorusFactor",
    "conjugate_gradients",
    # Preconditioners
    "Preconditioner",
    "PivotedCholesky",
    "Nystrom",
    "LowRank",
    "SpectralBlocks",
    "common_basis",
    "Jacobi",
    "IdentityPreconditioner",
    # From products alone
    "estimate_logdet",
    "estimate_inverse_diagonal",
    "smallest_eigenvalue",
]
