"""The pages, what is sent to open ones, and the filters of templates: put together from the modules that have them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies.web.filters import FILTERS as COMMON_FILTERS
from horsies.web.live import Topic
from horsies.web.overview_pages import PAGES as OVERVIEW_PAGES
from horsies.web.overview_pages import TOPICS as OVERVIEW_TOPICS
from horsies.web.schedule_pages import FILTERS as SCHEDULE_FILTERS
from horsies.web.schedule_pages import PAGES as SCHEDULE_PAGES
from horsies.web.schedule_pages import TOPICS as SCHEDULE_TOPICS
from horsies.web.task_pages import FILTERS as TASK_FILTERS
from horsies.web.task_pages import PAGES as TASK_PAGES
from horsies.web.task_pages import TOPICS as TASK_TOPICS
from horsies.web.view import Page
from horsies.web.workflow_pages import PAGES as WORKFLOW_PAGES
from horsies.web.workflow_pages import TOPICS as WORKFLOW_TOPICS

PAGES: Sequence[Page] = (*OVERVIEW_PAGES, *TASK_PAGES, *WORKFLOW_PAGES, *SCHEDULE_PAGES)
TOPICS: Sequence[Topic] = (*OVERVIEW_TOPICS, *TASK_TOPICS, *WORKFLOW_TOPICS, *SCHEDULE_TOPICS)
FILTERS: Mapping[str, Callable[..., Any]] = {**COMMON_FILTERS, **TASK_FILTERS, **SCHEDULE_FILTERS}
