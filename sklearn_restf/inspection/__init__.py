"""Displays: why training converges, and what the attention looks at.

They follow scikit-learn's conventions: a class method computes and draws, the display stores
the arrays, :meth:`plot` draws them again. Drawing needs matplotlib (extra: ``plot``).
"""

from sklearn_restf.inspection._attention import AttentionDisplay
from sklearn_restf.inspection._beta_sweep import BetaSweepDisplay
from sklearn_restf.inspection._convergence import ConvergenceDisplay
from sklearn_restf.inspection._spectrum import SpectrumDisplay

__all__ = ["AttentionDisplay", "BetaSweepDisplay", "ConvergenceDisplay", "SpectrumDisplay"]
