"""Server that answers the programs of a workflow: a small application on any engine, or vLLM's own server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from explorers.conversations.model_app import ModelApp
from explorers.conversations.openai_client import RolloutClient
from explorers.conversations.rollout_app import RolloutApp
from explorers.workflows.recorded import RecordedWorkflow
from explorers.workflows.server_settings import SMALL, VLLM, server_settings
from rft_data.core.engine import Engine
from rft_data.core.workflow import RolloutContext

if TYPE_CHECKING:
    from explorers.capture.captured_app import CaptureServer


class ModelServer:
    """Makes the application of each rollout."""

    def __init__(
        self,
        workflow: RecordedWorkflow,
        server: str | Mapping[str, object] = SMALL,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """Check the arguments.

        Args:
            workflow: whose rollouts they are.
            server: a word of SERVERS, or for vLLM's `{"use": "vllm", "tool_parser", "reasoning_parser"}` with
                vLLM's names of them; without, it finds no tool calls, and thinking stays in the content.
            chat_template_kwargs: what the template takes where a request does not say it.

        Raises: RecipeError.
        """
        use, parsers = server_settings(server)
        self.is_vllm = use == VLLM
        """Whether it is vLLM's own, for which the engine needs the model's tokenizer."""
        self._workflow = workflow
        self._captured: CaptureServer | None = None
        if self.is_vllm:
            from explorers.capture.captured_app import CaptureServer  # its modules are of vLLM's engine

            told = {**parsers, "chat_template_kwargs": chat_template_kwargs}
            self._captured = CaptureServer(workflow.template, told)

    async def app(self, engine: Engine, ctx: RolloutContext) -> RolloutApp:
        """The application of one rollout, made in the rollout's own asyncio task.

        Raises: RecipeError for an engine that vLLM's server cannot use.
        """
        if self._captured is None:
            return ModelApp(RolloutClient(self._workflow.model(engine, ctx), ctx.sampling))
        made: RolloutApp = await self._captured.app(engine, self._workflow.trajectory(ctx))
        return made
