"""The tests, in folders as the packages.

A number at the end of a name, ``case_d1`` or ``case_h1``, is that of a case which users of
neighbouring projects reported; those with an h were not known when the package was designed.
"""
