import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_child_starts_without_what_it_does_not_need() -> None:
    code = (
        "import sys, rft_data.core.decoding_trial;"
        "needless = {'rft_data.buffer', 'pandas', 'pyarrow', 'pydantic'} & set(sys.modules);"
        "assert not needless, needless"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
