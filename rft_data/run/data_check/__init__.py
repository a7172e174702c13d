"""`rft data check`: what tasks a source gives, and whether a run can be fed with them."""

from rft_data.run.data_check.check import check_recipe_data, check_source
from rft_data.run.data_check.report import DataReport

__all__ = ["DataReport", "check_recipe_data", "check_source"]
