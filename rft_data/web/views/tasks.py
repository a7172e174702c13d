"""Views of tasks: those that were played, and one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from rft_data.core.errors import RowError
from rft_data.core.rows import Feedback, TaskKey, now
from rft_data.core.words import FeedbackKey
from rft_data.exchange.feedback import storable
from rft_data.exchange.standing import retired_tasks
from rft_data.reading.lineage import find
from rft_data.web.conversation import conversation
from rft_data.web.page import Route, Text, View, Words
from rft_data.web.plot import Kind, download
from rft_data.web.selector_view import selector_view
from rft_data.web.statements import counts
from rft_data.web.task_map import task_map
from rft_data.web.task_plot import TaskPlot
from rft_data.web.task_view import task_view


class TaskViews(View):
    """Views of tasks: their pass rates, and those that are retired."""

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/tasks", self.tasks)
        yield Route("/s/{key}/tasks.{kind}", self.picture)
        yield Route("/s/{key}/task", self.task)
        yield Route("/s/{key}/task", self.retire, "POST")

    def tasks(self, key: str) -> HTMLResponse:
        """Tasks by the time they were played, how often they were solved, and the selector's beliefs."""
        buffer, subject = self._page.subjects.buffer(key), self._page.subjects[key]
        run_id = self._page.run_id(key)
        found = task_map(buffer, run_id)
        keys = [TaskKey(line.taskset, line.task_id) for line in found.lines]
        return self._page.shown(
            "tasks.html",
            subject=subject,
            map=found,
            selector=selector_view(buffer, subject.run_dir, run_id, keys),
            keys=keys,
            retired={task for task, retired in retired_tasks(buffer).items() if retired},
        )

    def picture(self, key: str, kind: Kind) -> Response:
        """The map of tasks."""
        return download(TaskPlot(task_map(self._page.subjects.buffer(key), self._page.run_id(key))), kind)

    def task(self, key: str, taskset: Text, task_id: Text) -> HTMLResponse:
        buffer, subject = self._page.subjects.buffer(key), self._page.subjects[key]
        named = TaskKey(taskset, task_id)
        found = task_view(buffer, named)
        run_id = self._page.own_run(key)
        asked = [] if found.task is None else found.task.messages
        return self._page.shown(
            "task.html",
            subject=subject,
            found=found,
            prompt=conversation(asked, len(asked)),
            selector=selector_view(buffer, subject.run_dir, run_id, [named]),
            counts=counts(subject, [FeedbackKey.RETIRE_TASK])[FeedbackKey.RETIRE_TASK],
        )

    def retire(
        self,
        key: str,
        taskset: Words,
        task_id: Words,
        act: Annotated[Literal["retire", "bring_back"], Form()],
        form_token: Words,
        text: Words = "",
    ) -> RedirectResponse:
        """Say that a task is not to be played, or that it may be again."""
        author = self._page.curator()
        self._page.check_form(form_token)
        storable(text, "the reason")
        buffer = self._page.subjects.buffer(key)
        found = task_view(buffer, TaskKey(taskset, task_id))
        if found.anchor is None:
            raise RowError("this task has no row yet; a task can be retired when it was played once.")
        row = find(buffer, found.anchor)["experience_id"]
        value = 1.0 if act == "retire" else 0.0
        word = Feedback(row, author, FeedbackKey.RETIRE_TASK, value, text.strip() or None, now())
        self._page.write(key, lambda writer: writer.say([word]))
        return RedirectResponse(f"/s/{key}/task?{urlencode({'taskset': taskset, 'task_id': task_id})}", 303)
