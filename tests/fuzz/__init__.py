"""Randomised search for calls that neither work nor say what is wrong."""
