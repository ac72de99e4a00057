import numpy as np
import pandas as pd
import pytest

from sklearn_restf.datasets import load_sst2

TEXT = "0 one long string of cliches .\n1 a gem , crème brûlée .\n"
GLUE = "sentence\tlabel\none long string of cliches . \t0\na gem , crème brûlée . \t1\n"
TEST = "index\tsentence\n0\tone long string of cliches .\n1\ta gem , crème brûlée .\n"
SENTENCES = ["one long string of cliches .", "a gem , crème brûlée ."]


def put(folder, content, name="train.txt", encoding="utf-8"):
    path = folder / name
    path.write_bytes(content.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("subset", "n_samples", "n_positive"),
    [("train", 6920, 3610), ("validation", 872, 444), ("dev", 872, 444), ("test", 1821, 909)],
)
def test_sentence_level_files(real_data, subset, n_samples, n_positive):
    sentences, classes = load_sst2(real_data / "sst2", subset=subset, return_X_y=True)
    assert len(sentences) == len(classes) == n_samples
    assert int(np.sum(classes)) == n_positive
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)
    assert not any("\ufffd" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("content", "labels"),
    [(TEXT, [0, 1]), (TEXT.replace(" ", "\t", 1), [0, 1]), (GLUE, [0, 1]), (TEST, [-1, -1])],
    ids=["text", "text with a tab", "GLUE", "GLUE test"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_layouts(tmp_path, content, labels, newline, encoding):
    path = put(tmp_path, content.replace("\n", newline) + newline, encoding=encoding)
    bunch = load_sst2(path)
    assert bunch.data == SENTENCES
    assert bunch.target.dtype == np.int64
    assert bunch.target.tolist() == labels
    assert bunch.target_names == ["negative", "positive"]
    assert bunch.frame is None
    assert bunch.filename == str(path)
    assert "Licence" in bunch.DESCR


def test_as_frame(tmp_path):
    path = put(tmp_path, GLUE)
    bunch = load_sst2(path, as_frame=True)
    assert list(bunch.frame.columns) == ["sentence", "label"]
    sentences, classes = load_sst2(path, as_frame=True, return_X_y=True)
    pd.testing.assert_series_equal(sentences, bunch.frame["sentence"])
    assert classes.tolist() == [0, 1]


def test_quotes_and_odd_line_breaks_belong_to_the_sentence(tmp_path):
    sentence = '"quoted" text\u2028with a line\x85separator \'s'
    path = put(tmp_path, f"sentence\tlabel\n{sentence}\t1\n")
    assert load_sst2(path).data == [sentence]


def test_folder_and_subset(tmp_path):
    put(tmp_path, TEXT, "train.txt")
    put(tmp_path, GLUE, "dev.tsv")
    assert load_sst2(tmp_path).filename.endswith("train.txt")
    assert load_sst2(tmp_path, subset="validation").filename.endswith("dev.tsv")
    with pytest.raises(OSError, match=r"neither test\.tsv nor test\.txt.*fetch_sst2"):
        load_sst2(tmp_path, subset="test")
    put(tmp_path, GLUE, "train.tsv")
    with pytest.raises(ValueError, match=r"both train\.tsv and train\.txt"):
        load_sst2(tmp_path)


def test_missing_file_says_what_to_put_where(tmp_path):
    with pytest.raises(OSError, match=r"nothing\.txt.*Put a file of SST-2 there"):
        load_sst2(tmp_path / "nothing.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("0 good\n2 three stars\n", "line 2: expected a label 0 or 1"),
        ("0 good\n\n1\n", "line 3: expected a label"),
        ("sentence\tlabel\ngood\t1\nno label\n", "line 3: expected a sentence, a tab"),
        ("sentence\tlabel\n\t1\n", "line 2: expected a sentence"),
        ("index\tsentence\nno index\n", "line 2: expected an index"),
    ],
)
def test_unreadable_lines_are_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        load_sst2(put(tmp_path, content))


def test_other_encodings(tmp_path):
    path = put(tmp_path, TEXT, encoding="latin-1")
    with pytest.raises(ValueError, match="line 2: the bytes are not utf-8"):
        load_sst2(path)
    assert load_sst2(path, encoding="latin-1").data == SENTENCES


def test_unknown_subset(tmp_path):
    with pytest.raises(ValueError, match=r"'subset' parameter.* one of 'train', 'validation'"):
        load_sst2(tmp_path, subset="all")
