"""What is printed of a fit."""

import io
import sys

import pytest

from tests.builders import X2D, YR, both, make_regressor


@both
@pytest.mark.parametrize("max_iter", [1, 30, 200])
def test_verbose_prints_some_plain_lines(make, y, max_iter, capsys):
    make(verbose=1, max_iter=max_iter).fit(X2D, y)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert printed.err == ""
    assert 1 <= len(lines) <= 35
    name = type(make()).__name__
    assert all(name in line and "loss" in line and f"/{max_iter}" in line for line in lines)
    assert f" {max_iter}/{max_iter}" in lines[-1]


def test_verbose_draws_a_bar_on_a_terminal(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    make_regressor(verbose=1).fit(X2D, YR)
    assert "20/20" in terminal.getvalue()
    assert capsys.readouterr().out == ""
