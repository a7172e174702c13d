import gc

from rft_data.core.collector import collector_paused


def test_garbage_is_collected_after_the_block_as_before_it() -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled(), "the inner block ended the pause of the outer one"
    assert gc.isenabled()
