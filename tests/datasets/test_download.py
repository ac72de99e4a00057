"""The fetching functions against a server on the loopback interface."""

import hashlib
import http.server
import io
import os
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sklearn_restf.datasets import fetch_jena_climate, fetch_sst2, make_climate_series
from tests.conftest import REPOSITORY

N_ROWS = 500
WAIT = 60  # seconds, never reached unless something hangs


def packed(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in members.items():
            bundle.writestr(name, content)
    return stream.getvalue()


def station_text():
    frame = make_climate_series(N_ROWS, start="2009-01-01 00:10", random_state=0).round(2)
    return frame.to_csv(date_format="%d.%m.%Y %H:%M:%S", index_label="Date Time")


JENA = packed(**{"jena_climate_2009_2016.csv": station_text()})
SST2 = packed(
    **{
        "SST-2/original/train.tsv": "not this one",
        "SST-2/train.tsv": "sentence\tlabel\nhide new secretions \t0\na gem \t1\nwit \t1\n",
        "SST-2/dev.tsv": "sentence\tlabel\na fine film .\t1\n",
        "SST-2/test.tsv": "index\tsentence\n0\tuneasy mishmash .\n1\ta film .\n",
    }
)
JENA_CHECKS = {"size": len(JENA), "n_rows": N_ROWS}
SST2_CHECKS = {
    "digest": "md5:" + hashlib.md5(SST2).hexdigest(),
    "n_rows": {"train": 3, "validation": 1, "test": 2},
}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []
        self.pages = {}
        self.both = threading.Barrier(2, timeout=WAIT)
        self.half_sent = threading.Event()
        self.release = threading.Event()

    @property
    def root(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # clients are killed on purpose


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.requests.append(self.path)
        kind, name = urllib.parse.urlparse(self.path).path.strip("/").split("/")
        body = {"jena": JENA, "sst2": SST2, **self.server.pages}[name]
        if kind == "missing":
            self.send_error(404)
            return
        if kind == "overloaded" or (kind == "flaky" and len(self.server.requests) < 3):
            self.send_error(503)
            return
        if kind == "together":
            self.server.both.wait()
        if kind == "flipped":
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind in ("cut", "stalled"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if kind == "stalled":
                self.server.half_sent.set()
                self.server.release.wait(WAIT)
            return  # closes the connection before the announced end
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


def fetch_jena(server, home, kind="whole", name="jena", **parameters):
    parameters = {"checks": JENA_CHECKS, "delay": 0.0, "n_retries": 1} | parameters
    return fetch_jena_climate(data_home=home, url=f"{server.root}/{kind}/{name}", **parameters)


def files_in(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


CACHED = "jena_climate/jena_climate_2009_2016.csv.zip"


# --- what comes back ------------------------------------------------------------------


def test_jena_bunch(server, tmp_path):
    bunch = fetch_jena(server, tmp_path)
    assert bunch.data.shape == (N_ROWS, 14)
    assert bunch.frame is bunch.data
    assert bunch.feature_names == list(bunch.frame.columns)
    assert bunch.target_names == ["T (degC)"]
    assert bunch.target.equals(bunch.frame["T (degC)"])
    assert bunch.report.n_rows_read == N_ROWS
    assert bunch.filename == str(tmp_path / CACHED)
    assert "Max Planck" in bunch.DESCR
    assert "Licence" in bunch.DESCR
    assert bunch.time[0].isoformat() == "2009-01-01T00:10:00"


def test_jena_arrays(server, tmp_path):
    frame = fetch_jena(server, tmp_path).frame
    bunch = fetch_jena(server, tmp_path, as_frame=False)
    assert bunch.frame is None
    X, y = fetch_jena(server, tmp_path, as_frame=False, return_X_y=True)
    for array, expected in ((X, frame), (y, frame["T (degC)"])):
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, expected)
    X, y = fetch_jena(server, tmp_path, return_X_y=True)
    assert X.equals(frame)
    assert y.name == "T (degC)"


def test_sst2_subsets(server, tmp_path):
    def fetch(**parameters):
        return fetch_sst2(
            data_home=tmp_path, url=f"{server.root}/whole/sst2", checks=SST2_CHECKS, **parameters
        )

    bunch = fetch()
    assert bunch.data == ["hide new secretions", "a gem", "wit"]
    assert bunch.target.tolist() == [0, 1, 1]
    assert bunch.target_names == ["negative", "positive"]
    assert "GLUE" in bunch.DESCR
    assert "Licence" in bunch.DESCR
    assert fetch(subset="validation").data == fetch(subset="dev").data == ["a fine film ."]
    sentences, classes = fetch(subset="test", return_X_y=True)
    assert sentences == ["uneasy mishmash .", "a film ."]
    assert classes.tolist() == [-1, -1]
    assert fetch(as_frame=True).frame.columns.tolist() == ["sentence", "label"]
    assert len(server.requests) == 1
    with pytest.raises(ValueError, match="'subset' parameter"):
        fetch(subset="all")


# --- the cache ------------------------------------------------------------------------


def test_second_call_uses_the_cache(server, tmp_path):
    first = fetch_jena(server, tmp_path)
    second = fetch_jena(server, tmp_path, download_if_missing=False)
    assert len(server.requests) == 1
    assert first.frame.equals(second.frame)
    assert files_in(tmp_path) == ["jena_climate_2009_2016.csv.zip"]


def test_default_cache_is_that_of_scikit_learn(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    fetch_jena(server, None)
    assert (tmp_path / CACHED).is_file()


def test_offline_without_cache_says_what_to_put_where(tmp_path):
    with pytest.raises(OSError, match=r"13,568,290 bytes.*storage\.googleapis") as caught:
        fetch_jena_climate(data_home=tmp_path, download_if_missing=False)
    assert str(tmp_path / CACHED) in str(caught.value)
    with pytest.raises(OSError, match=r"SST-2\.zip there .*dl\.fbaipublicfiles") as caught:
        fetch_sst2(data_home=tmp_path, download_if_missing=False)
    assert str(tmp_path / "sst2" / "SST-2.zip") in str(caught.value)


def test_file_put_there_by_hand(tmp_path):
    path = tmp_path / CACHED
    path.parent.mkdir()
    path.write_bytes(JENA)
    bunch = fetch_jena_climate(data_home=tmp_path, checks=JENA_CHECKS, download_if_missing=False)
    assert bunch.data.shape == (N_ROWS, 14)


def test_damaged_cache_is_noticed_and_replaced(server, tmp_path):
    fetch_jena(server, tmp_path)
    path = tmp_path / CACHED
    path.write_bytes(JENA[:-100])
    with pytest.raises(OSError, match="bytes instead of"):
        fetch_jena(server, tmp_path, download_if_missing=False)
    fetch_jena(server, tmp_path)
    assert path.read_bytes() == JENA


def test_published_checks_hold_without_the_checks_parameter(server, tmp_path):
    with pytest.raises(OSError, match="bytes instead of 13,568,290"):
        fetch_jena(server, tmp_path, checks=None)
    with pytest.raises(OSError, match="instead of 9f81648d4199384278b86e315dac217c"):
        fetch_sst2(data_home=tmp_path, url=f"{server.root}/whole/sst2", n_retries=0)
    assert files_in(tmp_path) == []


# --- bad transfers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "checks", "message"),
    [
        ("cut", {}, "IncompleteRead|Connection"),
        ("flipped", {}, "not a sound zip"),
        ("flipped", {"digest": "sha256:" + hashlib.sha256(JENA).hexdigest()}, "checksum"),
        ("whole", {"size": len(JENA) + 1}, "bytes instead of"),
        ("whole", {"n_rows": N_ROWS + 1}, "500 rows instead of 501"),
        ("overloaded", {}, "503"),
    ],
)
def test_bad_transfers_are_retried_and_never_kept(server, tmp_path, kind, checks, message):
    with pytest.raises(OSError, match=message) as caught:
        fetch_jena(server, tmp_path, kind, checks=JENA_CHECKS | checks, n_retries=2)
    assert len(server.requests) == 3
    assert files_in(tmp_path) == []
    assert str(tmp_path / CACHED) in str(caught.value)


def test_checks_can_be_turned_off(server, tmp_path):
    checks = {"size": None, "n_rows": None}
    assert fetch_jena(server, tmp_path, checks=checks).data.shape == (N_ROWS, 14)


def test_passing_trouble_is_overcome(server, tmp_path):
    assert fetch_jena(server, tmp_path, "flaky", n_retries=3).data.shape == (N_ROWS, 14)
    assert len(server.requests) == 3


def test_mirrors_are_tried_in_order(server, tmp_path):
    mirrors = [f"{server.root}/cut/jena", f"{server.root}/whole/jena", f"{server.root}/never/jena"]
    fetch_jena(server, tmp_path, "missing", mirrors=mirrors)
    # A page that is not there is asked for once, a broken transfer again.
    assert server.requests == ["/missing/jena", "/cut/jena", "/cut/jena", "/whole/jena"]


def test_dead_and_malformed_addresses(server, tmp_path):
    dead = server.root
    mirrors = ["nonsense", f"{dead}/whole/jena"]
    bunch = fetch_jena_climate(
        data_home=tmp_path,
        url="http://127.0.0.1:1/jena",
        mirrors=mirrors,
        checks=JENA_CHECKS,
        n_retries=0,
    )
    assert bunch.data.shape == (N_ROWS, 14)


def test_timeout(server, tmp_path):
    with pytest.raises(OSError, match="timed out"):
        fetch_jena(server, tmp_path, "stalled", timeout=0.2, n_retries=0)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"../evil.csv": "x"}, "unsafe name"),
        ({"/evil.csv": "x"}, "unsafe name"),
        ({"a/../../evil.csv": "x"}, "unsafe name"),
        ({"..\\evil.csv": "x"}, "unsafe name"),
        ({"C:\\evil.csv": "x"}, "unsafe name"),
        ({"other.csv": "x"}, r"does not hold jena_climate_2009_2016\.csv"),
        ({"jena_climate_2009_2016.csv": ""}, "-1 rows instead of"),
    ],
)
def test_wrong_archives(server, tmp_path, members, message):
    home = tmp_path / "home"
    if len(members) == 1 and "evil" in next(iter(members)):
        members = members | {"jena_climate_2009_2016.csv": station_text()}
    server.pages["wrong"] = packed(**members)
    with pytest.raises(OSError, match=message):
        fetch_jena(server, home, name="wrong", checks=JENA_CHECKS | {"size": None})
    assert files_in(tmp_path) == []


def test_page_instead_of_the_archive(server, tmp_path):
    server.pages["login"] = b"<html>Please log in</html>"
    with pytest.raises(OSError, match="26 bytes instead of"):
        fetch_jena(server, tmp_path, name="login")
    with pytest.raises(OSError, match="not a sound zip"):
        fetch_jena(server, tmp_path, name="login", checks={"size": None})


def test_proxy_of_the_environment(server, tmp_path, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.root)
    fetch_jena_climate(
        data_home=tmp_path, url="http://station.invalid/whole/jena", checks=JENA_CHECKS
    )
    assert server.requests == ["http://station.invalid/whole/jena"]


def test_progress_bar(server, tmp_path, capsys):
    fetch_jena(server, tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    fetch_jena(server, tmp_path / "loud", progressbar=True)
    assert "100%" in capsys.readouterr().err


# --- several processes ----------------------------------------------------------------


def start_process(server, home, kind):
    code = f"""
        from sklearn_restf.datasets import fetch_jena_climate
        url = "{server.root}/{kind}/jena"
        bunch = fetch_jena_climate(data_home={str(home)!r}, url=url, checks={JENA_CHECKS!r})
        print(bunch.data.shape)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def test_two_processes_at_once(server, tmp_path):
    # Neither answer starts before both have asked: the downloads overlap.
    processes = [start_process(server, tmp_path, "together") for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=WAIT)
        assert process.returncode == 0, errors
        assert output.strip() == f"({N_ROWS}, 14)"
    assert len(server.requests) == 2
    assert files_in(tmp_path) == ["jena_climate_2009_2016.csv.zip"]
    assert (tmp_path / CACHED).read_bytes() == JENA


def test_process_killed_half_way(server, tmp_path):
    process = start_process(server, tmp_path, "stalled")
    assert server.half_sent.wait(WAIT)
    process.kill()
    process.communicate(timeout=WAIT)
    server.release.set()
    assert files_in(tmp_path) == []  # neither under the name of the archive nor beside it
    assert fetch_jena(server, tmp_path).data.shape == (N_ROWS, 14)


def test_what_a_process_killed_while_writing_leaves_is_removed(server, tmp_path):
    folder = tmp_path / "jena_climate"
    folder.mkdir()
    young, old = (folder / f".{Path(CACHED).name}.{name}.part" for name in ("young", "old"))
    for part in (young, old):
        part.write_bytes(JENA[:100])
    yesterday = time.time() - 24 * 3600
    os.utime(old, (yesterday, yesterday))
    assert fetch_jena(server, tmp_path).data.shape == (N_ROWS, 14)
    # A part of now may belong to a process that is writing.
    assert files_in(tmp_path) == [young.name, Path(CACHED).name]


# --- parameters -----------------------------------------------------------------------


def test_pooch_is_needed_only_to_download(server, tmp_path, without):
    fetch_jena(server, tmp_path)
    without("pooch")
    fetch_jena(server, tmp_path)
    with pytest.raises(ImportError, match=r"pip install 'sklearn-restf\[datasets\]'"):
        fetch_jena(server, tmp_path / "empty")


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"checks": {"sha": "x"}}, ValueError, r"unknown keys \['sha'\]"),
        ({"checks": {"n_rows": {"train": 1}}}, ValueError, "unknown keys"),
        ({"mirrors": "http://127.0.0.1"}, TypeError, "mirrors must be a list"),
        ({"n_retries": -1}, ValueError, "n_retries must be at least 0"),
    ],
)
def test_bad_parameters(tmp_path, parameters, error, message):
    with pytest.raises(error, match=message):
        fetch_jena_climate(data_home=tmp_path, download_if_missing=False, **parameters)


def test_archive_without_the_temperature(server, tmp_path):
    server.pages["other"] = packed(
        **{"jena_climate_2009_2016.csv": "Date Time,x\n01.01.2009 00:10:00,1\n"}
    )
    with pytest.raises(OSError, match=r"without the column 'T \(degC\)'"):
        fetch_jena(server, tmp_path, name="other", checks={"size": None, "n_rows": 1})


def test_published_figures():
    """What the documentation promises is what is checked."""
    for fetch, figures in (
        (fetch_jena_climate, ["420,551", "13,568,290", "14"]),
        (fetch_sst2, ["67,349", "872", "1,821"]),
    ):
        for figure in figures:
            assert figure in fetch.__doc__
