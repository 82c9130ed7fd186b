"""Blind spots (Appendix "Connectivity"): the fraction of (earlier, later) pairs of a slice that no path connects."""

from __future__ import annotations

import pytest

from framecast import presets
from framecast.sampling import dependencies


@pytest.mark.parametrize(
    ("name", "blind_spots"), [("bair-spatiotemporal-base", 0.2752), ("bair-single-frame-base", 0.0066)]
)
def test_blind_spots_are_those_that_the_layout_implies(name, blind_spots):
    config = presets.preset(name).model
    assert dependencies.blind_spots(config, config.decoder_layers) == pytest.approx(blind_spots, abs=5e-5)


def test_the_paper_s_own_example():
    """A frame's first pixel cannot see the last one of the frame before, unless a block holds both frames whole."""
    config = presets.preset("bair-spatiotemporal-base").model
    reached = dependencies.reach(config, config.decoder_layers)
    first_of_second_frame, last_of_first_frame = 32 * 32, 32 * 32 - 1
    assert not reached[first_of_second_frame] >> last_of_first_frame & 1
    assert reached[last_of_first_frame] >> (last_of_first_frame - 1) & 1


def test_a_larger_masked_kernel_and_dilated_layers_leave_fewer_blind_spots():
    base = presets.preset("bair-spatiotemporal-base").model
    wide = presets.preset("bair-finding-masked-kernel-5").model
    lines = presets.preset("bair-finding-line-blocks").model
    spots = [dependencies.blind_spots(config, config.decoder_layers) for config in (wide, base, lines)]
    assert spots == sorted(spots)
    assert spots[0] < spots[1] < spots[2]
