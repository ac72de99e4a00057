"""GPT-2's weights as initial weights, and models of several layers. No network is needed."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from sklearn_restf import (
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf.datasets import make_token_classification, make_token_regression
from sklearn_restf.preprocessing import TextTokenEmbedder
from sklearn_restf.pretrained import gpt2_parameters

WIDTH, HEADS, BLOCKS, HIDDEN = 8, 2, 3, 24
N, T = 10, 6


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="the extra 'text' is not installed")


def save(model, folder, transformers, **options):
    """Save without a progress bar."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder, **options)
    if shown:
        transformers.utils.logging.enable_progress_bar()
    return str(folder)


def make_gpt2(transformers, **options):
    """A GPT-2 with random weights, LayerNorm and biases included."""
    config = transformers.GPT2Config(
        n_layer=BLOCKS,
        n_head=HEADS,
        n_embd=WIDTH,
        n_inner=HIDDEN,
        n_positions=16,
        vocab_size=13,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()
        with torch.no_grad():
            for parameter in model.transformer.h.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return model


@pytest.fixture(scope="module")
def gpt2(transformers):
    return make_gpt2(transformers).transformer


@pytest.fixture(scope="module")
def folder(gpt2, transformers, tmp_path_factory):
    return save(gpt2, tmp_path_factory.mktemp("gpt2"), transformers)


@pytest.fixture
def broken(folder, tmp_path):
    """A copy of the model to be damaged."""
    return shutil.copytree(folder, tmp_path / "broken")


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).normal(size=(N, T, WIDTH)).astype("float32")


Y = np.random.default_rng(1).normal(size=N)


def regressor(folder, **parameters):
    options = {"standardize": False, "max_iter": 1, "tol": None, "random_state": 0}
    return ResidualTransformerRegressor(**{**gpt2_parameters(folder), **options, **parameters})


def module_at_start(model, X):
    """Return the module with its initial weights, in float32."""
    model = clone(model).set_params(learning_rate=1e-30, momentum=0.0)
    return model.fit(X, Y[: len(X)]).module_.float()


def hidden_states(gpt2, X):
    """GPT-2's hidden states for given features; its own position table is taken off first."""
    X = torch.from_numpy(X)
    with torch.no_grad():
        inputs = X - gpt2.wpe(torch.arange(X.shape[1]))
        return gpt2(inputs_embeds=inputs, output_hidden_states=True).hidden_states


@pytest.mark.parametrize("n_layers", [1, 2])
def test_hidden_states_are_those_of_gpt2(gpt2, folder, tokens, n_layers):
    model = regressor(folder, n_layers=n_layers)
    layers = module_at_start(model, tokens).layers(torch.from_numpy(tokens))
    assert len(layers) == n_layers
    for layer, expected in zip(layers, hidden_states(gpt2, tokens)[1:], strict=False):
        torch.testing.assert_close(layer.F, expected, rtol=0, atol=1e-5)


def test_the_last_blocks_output_before_the_final_layer_norm(gpt2, folder, tokens):
    found = module_at_start(regressor(folder), tokens).layers(torch.from_numpy(tokens))[-1].F
    captured = []
    handle = gpt2.h[-1].register_forward_hook(lambda _, __, output: captured.append(output))
    final = hidden_states(gpt2, tokens)[-1]
    handle.remove()
    expected = captured[0][0] if isinstance(captured[0], tuple) else captured[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(gpt2.ln_f(found), final, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["last", "mean", "flatten"])
def test_predictions_read_gpt2s_hidden_states(gpt2, folder, tokens, pooling):
    model = regressor(folder, n_layers=2, pooling=pooling)
    module = module_at_start(model, tokens)
    F = hidden_states(gpt2, tokens)[2]
    pooled = {"last": F[:, -1], "mean": F.mean(1), "flatten": F.flatten(1)}[pooling]
    predicted = clone(model).set_params(learning_rate=1e-30, momentum=0.0).fit(tokens, Y)
    raw = (pooled @ module.readout + module.readout_bias).detach().numpy()[:, 0]
    np.testing.assert_allclose(predicted.predict(tokens), raw * Y.std() + Y.mean(), atol=1e-5)


def test_residual_beta_scales_the_residuals_of_the_same_weights(folder, tokens):
    full = module_at_start(regressor(folder), tokens)
    half = module_at_start(regressor(folder, residual_beta=0.5), tokens)
    for name, parameter in full.named_parameters():
        torch.testing.assert_close(parameter, half.get_parameter(name))
    x = torch.from_numpy(tokens)
    first = half.layers(x)[0]
    torch.testing.assert_close(first.Z, 0.5 * x + full.layers(x)[0].attention_output)


def test_readout_and_input_map_start_as_with_gaussian(folder, tokens):
    wide = np.repeat(tokens, 2, axis=2)
    model = regressor(folder, d_model=WIDTH, positional_encoding="learned")
    loaded = module_at_start(model, wide)
    drawn = module_at_start(clone(model).set_params(init="gaussian"), wide)
    for name in ("readout", "embedding_weight", "position"):
        assert torch.equal(loaded.get_parameter(name), drawn.get_parameter(name))
    assert not torch.equal(loaded.blocks[0].query, drawn.blocks[0].query)


def test_training_goes_on_from_gpt2(folder, tokens):
    model = regressor(folder, max_iter=60, alpha=0.0).fit(tokens, Y)
    assert model.loss_curve_[-1] < 0.5 * model.loss_curve_[0]
    assert len(model.convergence_diagnostics_.to_frame()) == BLOCKS
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(tokens), model.predict(tokens))


def test_a_fitted_model_needs_the_folder_no_more(broken, tokens):
    model = regressor(str(broken)).fit(tokens, Y)
    before = model.predict(tokens)
    shutil.rmtree(broken)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(tokens), before)


def test_a_path_object_will_do(broken, tokens):
    model = regressor(broken)
    assert model.get_params()["init"] == broken
    clone(model).fit(tokens, Y)


def test_diagnosis_before_training(folder, tokens):
    assert len(diagnose(regressor(folder), tokens).to_frame()) == BLOCKS


@pytest.mark.parametrize(
    "options",
    [{"max_shard_size": "4KB"}, {}],
    ids=["several files", "one file, names with a prefix"],
)
def test_layouts_of_the_weights(transformers, folder, tokens, tmp_path, options):
    other = save(make_gpt2(transformers), tmp_path, transformers, **options)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == bool(options)
    expected = regressor(folder).fit(tokens, Y).predict(tokens)
    np.testing.assert_array_equal(regressor(other).fit(tokens, Y).predict(tokens), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision(transformers, tokens, tmp_path, dtype):
    model = make_gpt2(transformers).to(dtype)
    module = module_at_start(regressor(save(model, tmp_path, transformers)), tokens)
    expected = model.transformer.h[0].mlp.c_fc.weight.float()
    assert torch.equal(module.blocks[0].ffn_in, expected)


def test_a_model_with_another_activation(transformers, tokens, tmp_path):
    model = make_gpt2(transformers, activation_function="relu")
    folder = save(model, tmp_path, transformers)
    assert gpt2_parameters(folder)["activation"] == "relu"
    found = module_at_start(regressor(folder, n_layers=1), tokens)
    expected = hidden_states(model.transformer, tokens)[1]
    torch.testing.assert_close(
        found.layers(torch.from_numpy(tokens))[0].F, expected, rtol=0, atol=1e-5
    )


def test_sentences_through_gpt2(transformers, gpt2, tmp_path):
    """Embedder with layer=0 and the blocks: GPT-2's own hidden states, for unequal lengths."""
    import tokenizers

    words = {word: i for i, word in enumerate(["<eos>", "a", "fine", "dull", "film"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<eos>"
    ).save_pretrained(tmp_path)
    folder = save(gpt2, tmp_path, transformers)
    sentences = ["a fine film", "fine", "a dull dull film", "dull film"]
    pipeline = make_pipeline(
        TextTokenEmbedder(folder, layer=0, cache=None, device="cpu"),
        ResidualTransformerClassifier(
            **gpt2_parameters(folder, n_layers=2),
            standardize=False,
            pooling="last",
            learning_rate=1e-30,
            momentum=0.0,
            max_iter=1,
            random_state=0,
        ),
    ).fit(sentences, [1, 1, 0, 0])
    module = pipeline[-1].module_.double()
    for sentence, decision in zip(sentences, pipeline.decision_function(sentences), strict=True):
        ids = torch.tensor([[words[word] for word in sentence.split()]])
        with torch.no_grad():
            F = gpt2(ids, output_hidden_states=True).hidden_states[2][0, -1].double()
            logits = F @ module.readout + module.readout_bias
        expected = logits[-1] - (logits[0] if len(logits) > 1 else 0.0)
        assert decision == pytest.approx(float(expected), abs=1e-5)


# --- what cannot be loaded --------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "given", "expected"),
    [
        ("n_heads", 4, HEADS),
        ("d_ff", 32, HIDDEN),
        ("activation", "relu", "gelu_tanh"),
        ("layer_norm", False, True),
        ("causal", False, True),
        ("d_qk", 3, WIDTH // HEADS),
        ("n_layers", BLOCKS + 1, BLOCKS),
    ],
)
def test_a_parameter_that_does_not_fit(folder, tokens, parameter, given, expected):
    model = regressor(folder, **{parameter: given})
    with pytest.raises(ValueError, match=f"(?s){parameter}={given!r}") as caught:
        model.fit(tokens, Y)
    assert repr(expected) in str(caught.value)
    assert "GPT-2" in str(caught.value) or "blocks" in str(caught.value)


@pytest.mark.parametrize("d_model", [None, 12])
def test_a_token_width_that_does_not_fit(folder, tokens, d_model):
    wide = np.concatenate([tokens, tokens[:, :, :4]], axis=2)
    with pytest.raises(ValueError, match=f"token width={WIDTH}; got token width=12"):
        regressor(folder, d_model=d_model).fit(wide, Y)


def test_the_defaults_are_told_all_that_must_change(folder, tokens):
    with pytest.raises(ValueError, match=r"need n_heads=2, d_ff=24, .*gpt2_parameters"):
        ResidualTransformerRegressor(init=folder).fit(tokens, Y)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file(broken, tokens, file):
    model = regressor(str(broken))
    (broken / file).unlink()
    with pytest.raises(OSError, match=f"has no file {file}"):
        model.fit(tokens, Y)


def test_a_missing_folder(tokens, tmp_path):
    name = str(tmp_path / "nowhere")
    with pytest.raises(OSError, match="there is no such folder"):
        ResidualTransformerRegressor(init=name).fit(tokens, Y)
    with pytest.raises(OSError, match="there is no such folder"):
        gpt2_parameters(name)


def test_pickled_weights_are_refused_and_never_opened(gpt2, broken, tokens):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    (broken / "model.safetensors").unlink()
    (broken / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    model = regressor(str(broken))
    with pytest.raises(ValueError, match=r"only as pytorch_model.bin, a pickle.*save_pretrained"):
        model.fit(tokens, Y)
    with pytest.raises(ValueError, match="a pickle"):
        clone(model).set_params(init=str(broken / "pytorch_model.bin")).fit(tokens, Y)
    assert not hasattr(model, "loss_")


def test_a_file_instead_of_its_folder(folder, tokens):
    with pytest.raises(ValueError, match="pass the folder"):
        regressor(folder, init=f"{folder}/model.safetensors").fit(tokens, Y)


def test_damaged_weights(broken, tokens):
    model = regressor(str(broken))
    (broken / "model.safetensors").write_bytes(b"damaged beyond repair")
    with pytest.raises(OSError, match="not a sound safetensors file"):
        model.fit(tokens, Y)


def test_weights_of_another_shape_than_the_configuration_says(broken, tokens):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "n_inner": 20}))
    with pytest.raises(ValueError, match=r"c_fc.weight has shape \(8, 24\); expected \(8, 20\)"):
        regressor(str(broken)).fit(tokens, Y)


def test_weights_without_a_tensor(broken, tokens):
    from safetensors.torch import load_file, save_file

    path = broken / "model.safetensors"
    tensors = load_file(path)
    del tensors["h.1.ln_2.bias"]
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"lack 'h.1.ln_2.bias'"):
        regressor(str(broken)).fit(tokens, Y)
    regressor(str(broken), n_layers=1).fit(tokens, Y)


def test_weights_that_are_not_finite(broken, tokens):
    from safetensors.torch import load_file, save_file

    path = broken / "model.safetensors"
    tensors = load_file(path)
    tensors["h.0.ln_1.bias"][0] = torch.nan
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"ln_1.bias holds NaN"):
        regressor(str(broken)).fit(tokens, Y)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"model_type": "bert"}, "model_type='bert'"),
        ({"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon=0.001"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ({"activation_function": "swish"}, "'swish'"),
    ],
)
def test_a_model_our_block_cannot_compute(broken, entry, message):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, **entry}))
    with pytest.raises(ValueError, match=message):
        gpt2_parameters(str(broken))


def test_a_broken_configuration(broken):
    (broken / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not a JSON file"):
        gpt2_parameters(str(broken))


def test_more_blocks_than_there_are(folder):
    with pytest.raises(ValueError, match=r"n_layers=4: .* has 3 blocks"):
        gpt2_parameters(folder, n_layers=4)


@pytest.mark.parametrize("init", ["gausian", "", "he", None, 3])
def test_a_misspelt_init_is_no_models_name(tokens, init):
    with pytest.raises(ValueError, match=r"'init' parameter .* 'gaussian', 'xavier'"):
        ResidualTransformerRegressor(init=init).fit(tokens, Y)


def test_a_name_when_the_hub_cannot_be_reached(transformers, tokens, monkeypatch):
    import huggingface_hub
    from huggingface_hub.utils import LocalEntryNotFoundError

    def unreachable(*_, **__):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(OSError, match=r"some/gpt2.*hub.*no connection"):
        ResidualTransformerRegressor(init="some/gpt2").fit(tokens, Y)


def test_a_name_on_the_hub(transformers, folder, tokens, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, file):
        asked.append((name, file))
        return f"{folder}/{file}"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    found = regressor("some/gpt2").fit(tokens, Y).predict(tokens)
    assert set(asked) == {("some/gpt2", "config.json"), ("some/gpt2", "model.safetensors")}
    np.testing.assert_array_equal(found, regressor(folder).fit(tokens, Y).predict(tokens))


# --- several layers ---------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("n_layers", [2, 6, 10])
def test_deep_models_train_with_diagnostics_per_layer(n_layers, layer_norm):
    X, y = make_token_regression(60, 5, 4, random_state=0)
    model = ResidualTransformerRegressor(
        n_layers=n_layers,
        layer_norm=layer_norm,
        init_scale=0.5,
        alpha=0.0,
        max_iter=150,
        random_state=0,
    ).fit(X, y)
    losses = model.loss_curve_
    assert losses[-1] < 0.3 * losses[0]
    assert (np.diff(losses) <= 0).all()
    frame = model.convergence_diagnostics_.to_frame()
    assert list(frame.index) == list(range(1, n_layers + 1))
    for name in ("sigma_min", "norm", "condition_ratio", "rank1_residual", "effective_rank"):
        assert np.isfinite(frame[[name, f"final_{name}"]]).to_numpy().all(), name
    assert (frame["sigma_min"] > 0).all()
    assert frame["sigma_min"].iloc[-1] == model.convergence_diagnostics_.sigma_min


@pytest.mark.parametrize("n_layers", [2, 6, 10])
def test_deep_classifiers_train_on_ragged_sequences(n_layers):
    X, y = make_token_classification(80, (3, 7), 4, random_state=0)
    model = ResidualTransformerClassifier(
        n_layers=n_layers, n_heads=2, init_scale=0.5, max_iter=80, alpha=1e-3, random_state=0
    ).fit(X, y)
    assert model.score(X, y) > 0.75
    assert len(model.convergence_diagnostics_.to_frame()) == n_layers


def test_without_residual_connections_deep_tokens_collapse():
    X, y = make_token_regression(30, 6, 6, random_state=0)
    options = {"n_layers": 6, "max_iter": 2, "random_state": 0, "tol": None}
    kept = ResidualTransformerRegressor(**options).fit(X, y)
    with pytest.warns(match="rank-deficient"):
        lost = ResidualTransformerRegressor(residual_beta=0.0, **options).fit(X, y)
    residual = [m.convergence_diagnostics_.to_frame()["rank1_residual"] for m in (kept, lost)]
    assert residual[0].iloc[-1] > 0.3
    assert residual[1].iloc[-1] < 0.05


@pytest.mark.parametrize(
    ("name", "value"), [("n_layer", 10**9), ("n_head", "2"), ("n_embd", None), ("n_inner", -1)]
)
def test_odd_sizes_of_pretrained_models_are_named(tmp_path, name, value):
    config = {"model_type": "gpt2", name: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"config.json has {name}="):
        gpt2_parameters(tmp_path)
