"""Data sets: files of a weather station, movie review sentences, generated tokens."""

from sklearn_restf.datasets._climate import make_climate_series
from sklearn_restf.datasets._generators import make_token_classification, make_token_regression
from sklearn_restf.datasets._jena import fetch_jena_climate
from sklearn_restf.datasets._mpi_roof import load_mpi_roof
from sklearn_restf.datasets._repair_report import RepairReport
from sklearn_restf.datasets._sst2 import fetch_sst2, load_sst2

__all__ = [
    "RepairReport",
    "fetch_jena_climate",
    "fetch_sst2",
    "load_mpi_roof",
    "load_sst2",
    "make_climate_series",
    "make_token_classification",
    "make_token_regression",
]
