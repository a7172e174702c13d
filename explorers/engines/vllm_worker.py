"""The part of `VllmEngine` that runs in vLLM's worker: it replaces the weights in one call.

vLLM mixes this class into its worker (`worker_extension_cls`); nothing else imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from explorers.engines.guarding import end_with
from explorers.transports import gloo
from explorers.transports.arrival import Source
from explorers.transports.tensor_sources import open_source
from explorers.transports.transfer_calls import receive
from rft_data.core.errors import IntegrityError

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

gloo.register_engine()


class WeightExtension:
    """Adds `rft_load_weights` to vLLM's worker."""

    model_runner: GPUModelRunner
    vllm_config: VllmConfig

    def rft_load_weights(self, source: Source) -> None:
        """Load the tensors of `source` into the model.

        After an error the model can run, but its weights are mixed: it must not serve before a good load.
        """
        from vllm.platforms import current_platform

        model = self.model_runner.get_model()
        try:
            if source["use"] == "transfer":
                receive(self, source)
            else:
                tensors = _counted(open_source(source), source["n_tensors"])
                self.model_runner.reload_weights(weights_iterator=tensors)
        except BaseException:
            _abandon_reload(model, self.model_runner.model_config)
            raise
        if current_platform.is_cpu():
            _repack_tied_head(model)

    def rft_try_weights(self, source: Source) -> str:
        """The same; returns the error, or nothing.

        vLLM reads the answers of its workers up to the first that raises, and would take those of the others
        for answers to the next call.
        """
        try:
            self.rft_load_weights(source)
        except Exception as err:  # noqa: BLE001 - as above
            return f"{type(err).__name__}: {err}"
        return ""

    def rft_end_with(self, owner: int, others: list[int]) -> None:
        """See `guarding.end_with`."""
        end_with(owner, others)

    def rft_join_stages(self) -> None:
        """Make what a pipeline stage receives the stage before it into.

        vLLM 0.31 makes it in a trial run, which it leaves out on a CPU where nothing is compiled.
        """
        from vllm.distributed import get_pp_group

        if not get_pp_group().is_first_rank and self.model_runner.intermediate_tensors is None:
            self.model_runner.profile_run()

    def rft_seed(self, seed: int) -> None:
        """Seed sampling: in the same way in all workers of one copy of the model, differently in each copy.

        vLLM gives all copies one seed, so that they would sample the same completions of one prompt.
        """
        import torch

        copy = self.vllm_config.parallel_config.data_parallel_index
        torch.manual_seed(int(np.random.SeedSequence([seed, copy]).generate_state(1, np.uint64)[0]))


def _counted(tensors: Iterable[tuple[str, torch.Tensor]], wanted: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Pass tensors on and count them: vLLM would silently keep old values of missing ones.

    Raises: IntegrityError when fewer came than were checked.
    """
    found = 0
    for pair in tensors:
        found += 1
        yield pair
    if found != wanted:
        raise IntegrityError(
            f"{found} tensors came where the manifest lists {wanted}; the files changed during the load."
        )


def _abandon_reload(model: torch.nn.Module, model_config: object) -> None:
    """End an unfinished reload: it left layers on the meta device, which can neither run nor load."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    for layer in model.modules():
        info = get_layerwise_info(layer)
        info.loaded_weights.clear()
        info.load_numel = 0
    finalize_layerwise_reload(model, model_config)


def _repack_tied_head(model: torch.nn.Module) -> None:
    """Pack the tied output head again: vLLM 0.31 reloads the embedding but keeps the packed copy of it.

    Measured on a CPU without this: logprobs off by 2.6 nats, and no error.
    """
    for module in model.modules():
        head: Any = module  # vLLM gives its layers attributes that torch's type does not know
        if type(head).__name__ == "ParallelLMHead" and head.weight.numel():
            head.quant_method.process_weights_after_loading(head)
