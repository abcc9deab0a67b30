from __future__ import annotations

import gc

import pytest

from twostroke.cli.start import without_garbage_collection


@pytest.mark.parametrize("was_on", [True, False])
def test_collection_goes_on_after_a_start_as_it_was_before(was_on: bool) -> None:
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(KeyError), without_garbage_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
