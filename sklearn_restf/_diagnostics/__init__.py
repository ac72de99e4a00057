"""Why training converges, or does not: conditioning, rates, bounds, and what to change."""

from sklearn_restf._diagnostics.convergence_diagnostics import ConvergenceDiagnostics
