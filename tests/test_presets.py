"""Presets: every row of the paper's tables, under the names that people type."""

from __future__ import annotations

import inspect
import re

import pytest

from framecast import presets
from framecast.errors import UserError

ROWS = {  # Table 1 (BAIR, Kinetics), Table 2 (Moving MNIST), Robotic Pushing, Table 3
    "bair-single-frame-base": "1.49 104±4 99±2 153±7",
    "bair-spatial-base": "1.57 111±4 108±1 134±4",
    "bair-spatiotemporal-base": "1.53 106±3 106±2 122±4",
    "bair-spatiotemporal-large": "1.35 94±2 96±2 1M",
    "kinetics-single-frame-base": "1.40 243±6 413±11",
    "kinetics-spatial-base": "1.47 263±6 450±15",
    "kinetics-spatiotemporal-base": "1.49 195±7 375±11",
    "kinetics-single-frame-large": "1.14 207±8 353±13 256",
    "kinetics-spatiotemporal-large": "1.19 170±5 316±12 256",
    "moving-mnist-single-frame-base": "86.2",
    "moving-mnist-spatial-base": "91.8",
    "moving-mnist-spatiotemporal-base": "90.0",
    "robotic-pushing-spatiotemporal-large": "0.51 0.47",
    "bair-ablation-layers-4": "1.63",
    "bair-ablation-layers-8": "1.55",
    "bair-ablation-layers-16": "1.48",
    "bair-ablation-layers-24": "1.45",
    "bair-ablation-heads-4": "1.59",
    "bair-ablation-heads-8": "1.55",
    "bair-ablation-heads-16": "1.51",
    "bair-ablation-heads-24": "1.47",
    "bair-ablation-hidden-256": "1.65",
    "bair-ablation-hidden-512": "1.55",
    "bair-ablation-hidden-1024": "1.47",
    "bair-ablation-hidden-2048": "1.40",
}


@pytest.mark.parametrize(("name", "figures"), ROWS.items(), ids=ROWS.keys())
def test_a_row_s_docstring_tells_its_figures(name, figures):
    text = inspect.getdoc(getattr(presets, name.replace("-", "_")))
    assert text is not None
    for figure in figures.split():
        assert figure in text
    run = presets.preset(name)
    assert run.name == name
    bits = run.paper.bits_per_dim or run.paper.nats_per_frame
    assert re.match(rf"Paper: {bits:.{1 if bits > 2 else 2}f}", text)


def test_training_is_the_paper_s():
    base, large = presets.preset("bair-spatiotemporal-base"), presets.preset("kinetics-spatiotemporal-large")
    assert (base.training.steps, base.training.batch_size) == (300_000, 64)
    assert (large.training.steps, large.training.batch_size) == (1_000_000, 256)
    assert base.training.recipe == "paper"
    assert base.training.learning_rate == 2e-5


def test_large_means_wide_with_more_heads_in_the_last_four_layers():
    model = presets.preset("bair-spatiotemporal-large").model
    assert model.hidden_size == 2048
    for layers in (model.encoder_layers, model.decoder_layers):
        assert [layer.num_heads for layer in layers] == [8, 8, 8, 8, 16, 16, 16, 16]


def test_findings_differ_in_what_they_try_and_nothing_else():
    base = presets.preset("bair-spatiotemporal-base").model
    names = [name for name in presets.names() if name.startswith("bair-finding")]
    assert len(names) == 9
    for name in names:
        run = presets.preset(name)
        if name == "bair-finding-adam":
            assert run.model == base
            assert run.training.recipe == "adam"
            continue
        changed = [field for field in vars(base) if getattr(run.model, field) != getattr(base, field)]
        assert changed in ([field] for field in ("gate", "inputs", "code_bits", "prime_frames", "masked_kernel")) or (
            changed == ["encoder_layers", "decoder_layers"]
        )
    shuffled = presets.preset("bair-finding-shuffled-blocks").model.decoder_layers
    assert shuffled != base.decoder_layers
    assert sorted(layer.block for layer in shuffled) == sorted(layer.block for layer in base.decoder_layers)


def test_priming_by_metric():
    def primes(name):
        evaluation = presets.preset(name).evaluation
        return evaluation.prime_frames_likelihood, evaluation.prime_frames_samples, evaluation.num_frames_likelihood

    assert primes("bair-spatiotemporal-base") == (1, 1, 16)
    assert primes("kinetics-spatiotemporal-base") == (1, 5, 16)
    assert primes("moving-mnist-single-frame-base") == (10, 10, 20)
    assert primes("robotic-pushing-spatiotemporal-large") == (2, 2, 20)


def test_a_typo_is_answered_with_what_is_close():
    with pytest.raises(UserError, match=r"no preset 'bair-spatiotemporal-bas'. Did you mean bair-spatiotemporal-base"):
        presets.preset("bair-spatiotemporal-bas")
