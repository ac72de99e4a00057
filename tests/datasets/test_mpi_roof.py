import bz2
import gzip
import io
import lzma
import pickle
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sklearn_restf.datasets import load_mpi_roof, make_climate_series

UNITS = {"SWDR (W/m²)": 1.5, "PAR (µmol/m²/s)": 2.5, "max. PAR (µmol/m²/s)": 3.5}
DOTTED = "%d.%m.%Y %H:%M:%S"


@pytest.fixture(scope="module")
def series():
    frame = make_climate_series(300, start="2020-12-31 20:00", random_state=0).round(2)
    return frame.assign(**UNITS)


def write(
    frame,
    *,
    delimiter=",",
    decimal=".",
    stamp=DOTTED,
    newline="\n",
    header="Date Time",
    quoted=False,
    trailing="",
):
    """Return the text of a station file that holds `frame`."""
    text = frame.to_csv(
        sep=delimiter,
        decimal=decimal,
        date_format=stamp,
        index_label=header,
        na_rep="-9999",
        lineterminator="\n",
        quoting=2 if quoted else 0,
    )
    head, rows = text.split("\n", 1)
    rows = rows.replace("\n", trailing + "\n")  # not in the header, as loggers write it
    return f"{head}\n{rows}".replace("\n", newline)


def load(text, **parameters):
    return load_mpi_roof(io.BytesIO(text.encode("utf-8")), **parameters)


def assert_same(frame, expected):
    pd.testing.assert_frame_equal(frame, expected, check_freq=False, check_names=False)
    assert frame.index.freq is not None
    assert (frame.dtypes == np.float64).all()


# --- the real files -----------------------------------------------------------------


def test_canonical_head(real_data):
    station = load_mpi_roof(real_data / "jena_2009_head.csv")
    assert station.frame.shape == (4000, 11)
    assert station.frame.index[0] == pd.Timestamp("2009-01-01 00:10")
    assert station.frame.index.freq == pd.Timedelta("10min")
    assert station.frame["T (degC)"].iloc[:3].tolist() == [-8.02, -8.41, -8.51]
    assert station.report.is_clean


def test_benchmark_year_2020(real_data):
    station = load_mpi_roof(real_data / "jena_2020.csv.gz")
    frame, report = station.frame, station.report
    assert frame.shape == (52704, 21)
    assert report.n_rows_read == 52696
    assert report.missing_codes == {"wv (m/s)": 1, "max. PAR (µmol/m²/s)": 30, "OT": 50}
    assert report.counts["identical_duplicates"] == 1
    assert report.counts["conflicting_duplicates"] == 0
    assert report.gaps == ((pd.Timestamp("2020-05-29 09:40"), pd.Timestamp("2020-05-29 11:00")),)
    assert set(report.renamed_columns.values()) == set(UNITS)
    assert frame["wv (m/s)"].min() >= 0
    assert frame.loc["2020-05-29 09:40":"2020-05-29 11:00"].isna().all(axis=None)
    assert frame.isna().sum().sum() == 9 * 21 + 81


def test_station_file_2024(real_data):
    station = load_mpi_roof(real_data / "mpi_roof_2024.csv.gz")
    assert station.frame.shape == (19132, 21)
    assert station.report.encoding == "cp1252"
    assert set(UNITS) < set(station.frame.columns)
    assert station.report.counts["missing_codes"] == 18
    assert station.report.counts["renamed_columns"] == 0


def test_files_of_different_years_join(real_data):
    paths = [real_data / "mpi_roof_2024.csv.gz", real_data / "jena_2020.csv.gz"]
    station = load_mpi_roof(paths)
    # The broken units are repaired first, so that the years share their columns.
    assert station.frame.shape[1] == 22
    assert station.frame.index.is_monotonic_increasing
    assert station.report.encoding == "cp1252/utf-8"
    assert station.report.n_rows_read == 52696 + 19132
    assert len(station.report.gaps) == 2


# --- spellings ------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize(
    "stamp",
    [DOTTED, "%d.%m.%Y %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S"],
)
def test_delimiters_and_dates(series, delimiter, stamp):
    station = load(write(series, delimiter=delimiter, stamp=stamp))
    assert_same(station.frame, series)
    assert station.report.delimiter == delimiter


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "latin-1", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(series, encoding, newline):
    content = write(series, newline=newline).encode(encoding)
    assert_same(load_mpi_roof(io.BytesIO(content)).frame, series)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_comma(series, delimiter):
    station = load(write(series, delimiter=delimiter, decimal=","))
    assert_same(station.frame, series)
    assert station.report.decimal == ","


def test_decimal_comma_next_to_an_unreadable_cell(series):
    text = write(series, delimiter=";", decimal=",")
    lines = text.split("\n")
    lines[3] = lines[3].rsplit(";", 1)[0] + ";broken"
    expected = series.copy()
    expected.iloc[2, -1] = np.nan
    assert_same(load("\n".join(lines)).frame, expected)


def test_half_year_file_with_quoted_names_and_spaces(series):
    text = write(series, quoted=True).replace(",", ", ")
    assert_same(load(text).frame, series)


def test_delimiter_at_the_end_of_every_row(series):
    assert_same(load(write(series, delimiter=";", trailing=";")).frame, series)


@pytest.mark.parametrize(
    "broken",
    [
        lambda text: text.replace("²", "\ufffd").replace("µ", "\ufffd"),
        lambda text: text.replace("²", "?").replace("µ", "?"),
        lambda text: text.encode("utf-8").decode("latin-1"),
        lambda text: text.replace("µ", "μ"),  # the Greek letter
    ],
    ids=["replacement", "question mark", "twice encoded", "Greek mu"],
)
def test_broken_unit_bytes(series, broken):
    station = load(broken(write(series)))
    assert_same(station.frame, series)
    assert set(station.report.renamed_columns.values()) <= set(UNITS)
    assert station.report.counts["renamed_columns"] >= 2


def test_units_that_differ_are_not_called_broken(series):
    frame = series.rename(columns={"SWDR (W/m²)": "SWDR (kW/m²)", "T (degC)": "T (K)"})
    assert list(load(write(frame)).frame.columns) == list(frame.columns)


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"]
)
def test_packed_files(series, pack, tmp_path):
    path = tmp_path / "mpi_roof_2020b.bin"
    path.write_bytes(pack(write(series).encode("cp1252")))
    assert_same(load_mpi_roof(path).frame, series)


def test_zip_file(series, tmp_path):
    path = tmp_path / "mpi_roof_2020b.zip"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("mpi_roof_2020b.csv", write(series).encode("latin-1"))
        bundle.writestr("__MACOSX/._mpi_roof_2020b.csv", b"resource fork")
    assert_same(load_mpi_roof(str(path)).frame, series)


def test_text_file_objects(series):
    assert_same(load_mpi_roof(io.StringIO(write(series))).frame, series)


# --- repairs --------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["-9999", "-9999.0", "-9999.00", "-999"])
def test_missing_codes(series, code):
    frame = series.copy()
    frame.iloc[5, 3] = frame.iloc[6, 3] = np.nan
    station = load(write(frame).replace("-9999", code))
    assert_same(station.frame, frame)
    assert station.report.missing_codes == {frame.columns[3]: 2}


def test_other_missing_codes_can_be_named(series):
    frame = series.copy()
    frame.iloc[5, 3] = np.nan
    station = load(write(frame).replace("-9999", "-99.9"), missing_codes=[-99.9])
    assert_same(station.frame, frame)


def test_values_near_a_code_stay():
    text = "date,x\n2020-01-01 00:00:00,-9998.9\n2020-01-01 00:10:00,-999.9\n"
    assert load(text).frame["x"].tolist() == [-9998.9, -999.9]


def test_out_of_order_rows(series):
    station = load(write(series.iloc[[*range(100), *range(200, 300), *range(100, 200)]]))
    assert_same(station.frame, series)
    assert station.report.counts["out_of_order_rows"] == 100


def test_gaps_become_rows_of_nan(series):
    kept = series.drop(series.index[[10, 50, 51, 52]])
    station = load(write(kept))
    assert_same(station.frame, kept.reindex(series.index))
    assert station.report.gaps == (
        (series.index[10], series.index[10]),
        (series.index[50], series.index[52]),
    )
    assert station.report.counts["added_rows"] == 4


def test_repeated_rows(series):
    station = load(write(pd.concat([series, series.iloc[7:9]])))
    assert_same(station.frame, series)
    assert station.report.counts["identical_duplicates"] == 2
    assert station.report.counts["conflicting_duplicates"] == 0


@pytest.mark.parametrize(("how", "value"), [("first", 1.0), ("last", 3.0), ("mean", 2.0)])
def test_repeated_stamps_with_other_values(how, value):
    text = (
        "date,x,y\n2020-01-01 00:00:00,1,-9999\n2020-01-01 00:00:00,3,5\n2020-01-01 00:10:00,7,7\n"
    )
    station = load(text, duplicates=how)
    # A missing value never wins over one that is there.
    assert station.frame.to_numpy().tolist() == [[value, 5.0], [7.0, 7.0]]
    assert station.report.counts["conflicting_duplicates"] == 1


def test_stamps_off_the_grid_move_to_the_nearest_point(series):
    lines = write(series).split("\n")
    assert lines[5].startswith("31.12.2020 20:40:00")
    lines[5] = lines[5].replace("20:40:00", "20:40:07")
    lines[6] = lines[6].replace("20:50:00", "20:49:58")
    station = load("\n".join(lines))
    assert_same(station.frame, series)
    assert station.report.counts["moved_stamps"] == 2


@pytest.mark.parametrize("how", ["first", "last"])
def test_exact_stamps_outweigh_moved_ones(how):
    rows = ["00:00:00,0", "00:10:04,1", "00:10:00,2", "00:09:58,3", "00:20:00,4"]
    text = "\n".join(["date,x", *(f"2020-01-01 {row}" for row in rows)])
    assert load(text, duplicates=how, freq="10min").frame["x"].tolist() == [0, 2, 4]


def test_the_grid_need_not_start_on_the_hour(series):
    shifted = series.set_axis(series.index + pd.Timedelta("3min"), axis=0)
    station = load(write(shifted))
    assert_same(station.frame, shifted)
    assert station.report.counts["moved_stamps"] == 0


def test_unreadable_stamps_and_cells(series):
    lines = write(series).split("\n")
    lines[4] = lines[4].replace("31.12.2020 20:30:00", "31.13.2020 20:30:00")
    lines[9] = lines[9].rsplit(",", 1)[0] + ",n/v"
    lines[12] = lines[12].rsplit(",", 2)[0] + ",,"
    expected = series.copy()
    expected.iloc[3] = np.nan
    expected.iloc[8, -1] = np.nan
    expected.iloc[11, -2:] = np.nan
    station = load("\n".join(lines))
    assert_same(station.frame, expected)
    assert station.report.counts["unreadable_stamps"] == 1
    assert station.report.unreadable_cells == {series.columns[-1]: 1}
    assert station.report.empty_cells == {series.columns[-2]: 1, series.columns[-1]: 1}


def test_last_line_cut_short(series):
    text = write(series)
    station = load(text[: text.rindex(",")])
    assert station.frame.shape == series.shape
    assert np.isnan(station.frame.iloc[-1, -1])


def test_words_and_wild_years_are_no_stamps(series):
    lines = write(series).split("\n")
    lines[2] = "today" + lines[2][lines[2].index(",") :]
    lines[3] = lines[3].replace("2020", "0202")
    station = load("\n".join(lines))
    assert station.report.counts["unreadable_stamps"] == 2
    assert station.frame.shape == series.shape


def test_two_date_spellings_in_one_file(series):
    text = (
        write(series.iloc[:100])
        + write(series.iloc[100:], stamp="%Y-%m-%d %H:%M").split("\n", 1)[1]
    )
    assert_same(load(text).frame, series)


def test_columns_of_text_are_dropped(series):
    station = load(write(series.assign(station="Beutenberg")))
    assert_same(station.frame, series)
    assert station.report.dropped_columns == ("station",)


@pytest.mark.parametrize("word", ["inf", "1e999", "True"])
def test_infinite_and_odd_cells_are_not_numbers(word):
    text = f"date,x,y\n2020-01-01 00:00:00,{word},1\n2020-01-01 00:10:00,2,2\n"
    assert np.isnan(load(text).frame["x"].iloc[0])


def test_hourly_series():
    frame = make_climate_series(100, freq="1h", random_state=0)
    station = load(write(frame.drop(frame.index[40:60])))
    assert station.frame.index.freq == pd.Timedelta("1h")
    assert len(station.frame) == 100


def test_single_row():
    station = load("Date Time,x\n01.01.2020 00:10:00,1.5\n")
    assert station.frame["x"].tolist() == [1.5]
    assert station.report.step == pd.Timedelta("10min")


@settings(max_examples=25)
@given(data=st.data())
def test_any_damage_is_undone(data):
    frame = make_climate_series(60, start="2021-02-28", random_state=1).round(2)
    removed = data.draw(st.sets(st.integers(1, 58), max_size=15))
    kept = [i for i in range(60) if i not in removed]
    repeated = data.draw(st.lists(st.sampled_from(kept), max_size=10))
    rows = data.draw(st.permutations(kept + repeated))
    delimiter = data.draw(st.sampled_from([",", ";", "\t"]))
    stamp = data.draw(st.sampled_from([DOTTED, "%Y-%m-%d %H:%M"]))
    station = load(write(frame.iloc[rows], delimiter=delimiter, stamp=stamp), freq="10min")
    expected = frame.iloc[kept].reindex(frame.index)
    assert_same(station.frame, expected)
    assert station.report.counts["identical_duplicates"] == len(repeated)
    assert station.report.counts["added_rows"] == len(removed)
    assert station.report.n_rows_read == len(rows)


# --- the report -----------------------------------------------------------------------


def test_report_prints_what_was_repaired(series):
    frame = series.drop(series.index[5]).copy()
    frame.iloc[0, 0] = np.nan
    text = str(load(write(frame)).report)
    assert "missing-value codes" in text
    assert "p (mbar): 1" in text
    assert "gaps in time" in text
    assert "out of order" not in text
    assert "nothing to repair" in str(load(write(series)).report)


def test_result_pickles(series):
    station = load(write(series))
    copy = pickle.loads(pickle.dumps(station))
    pd.testing.assert_frame_equal(copy.frame, station.frame)
    assert copy.report == station.report
    assert "Licence" in station.DESCR


def test_input_is_read_only_and_quiet(series, tmp_path, capsys):
    path = tmp_path / "station.csv"
    path.write_text(write(series), encoding="utf-8")
    before = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_mpi_roof(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr() == ("", "")


# --- bad input ------------------------------------------------------------------------


def test_missing_file_says_what_to_put_where(tmp_path):
    path = tmp_path / "mpi_roof_2024.csv"
    with pytest.raises(OSError, match=r"mpi_roof_2024\.csv.*weather_data"):
        load_mpi_roof(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("Date Time,x\n", "no rows"),
        ("just words\nmore words\n", "delimiter"),
        ("01.01.2020 00:10:00,1\n01.01.2020 00:20:00,2\n", "no header"),
        ("Date Time,x\nyesterday,1\ntoday,2\n", "no stamp can be read.*yesterday"),
        ("Date Time,x,x\n01.01.2020 00:10:00,1,2\n", "several columns"),
        ("Date Time,x\n01.01.2020 00:10:00,1,2\n", "3 fields, the header 2"),
        ("Date Time,x\n01.01.2020 00:10:00,1\n01.01.2020 00:20:00,1,2,3\n", "line 3"),
        ("Date Time,x\n01.01.2020 00:10:00,one\n", "no column of numbers"),
        ("x,Date Time\n1,01.01.2020 00:10:00\n", "first column must hold the stamps"),
    ],
)
def test_files_that_are_none(text, message):
    with pytest.raises(ValueError, match=message):
        load(text)


def test_damaged_gzip(series):
    content = gzip.compress(write(series).encode())
    with pytest.raises(ValueError, match="damaged or cut short"):
        load_mpi_roof(io.BytesIO(content[: len(content) // 2]))


def test_zip_with_two_files(series, tmp_path):
    path = tmp_path / "two.zip"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("a.csv", write(series))
        bundle.writestr("b.csv", write(series))
    with pytest.raises(ValueError, match="2 text files"):
        load_mpi_roof(path)


@pytest.mark.parametrize("year", [1700, 1750])
def test_one_wild_stamp_does_not_fill_the_memory(year):
    rows = [f"2020-01-01 {h:02d}:{m:02d}:00,1" for h in range(24) for m in range(0, 60, 10)]
    text = "\n".join(["date,x", f"{year}-01-01 00:00:00,1", *rows])
    with pytest.raises(ValueError, match="Check the first and the last stamps"):
        load(text)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"duplicates": "median"}, ValueError, "'duplicates' parameter"),
        (
            {"freq": "fortnight"},
            ValueError,
            r"must be (one of )?'infer' or a fixed, positive interval",
        ),
        ({"freq": "-10min"}, ValueError, "a fixed, positive interval"),
        ({"freq": "1h"}, ValueError, "not the interval of the file"),
        ({"encoding": "ascii"}, ValueError, "is not ascii"),
    ],
)
def test_bad_parameters(series, parameters, error, message):
    with pytest.raises(error, match=message):
        load(write(series), **parameters)


def test_bad_paths():
    with pytest.raises(TypeError, match="path must be a path"):
        load_mpi_roof(3)
    with pytest.raises(ValueError, match="empty sequence"):
        load_mpi_roof([])


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoding", "nope"), ("encoding", "base64"), ("delimiter", ",,"), ("missing_codes", 3),
     ("freq", 5)],
)  # fmt: skip
def test_unusable_arguments_of_a_station_file_are_named(name, value):
    text = b"Date Time,T\n01.01.2009 00:10:00,-8.02\n"
    with pytest.raises((ValueError, TypeError), match=name):
        load_mpi_roof(io.BytesIO(text), **{name: value})


def test_a_packed_file_cut_short_is_named():
    file = io.BytesIO(bz2.compress(b"Date Time,T\n01.01.2009 00:10:00,-8.02\n")[:-6])
    file.name = "roof.csv.bz2"
    with pytest.raises(ValueError, match=r"roof\.csv\.bz2 is compressed and damaged"):
        load_mpi_roof(file)
