"""The pages, what is sent to open ones, and the filters of templates: put together from the modules that have them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies.web.filters import FILTERS as COMMON_FILTERS
from horsies.web.live import Topic
from horsies.web.overview_pages import PAGES as OVERVIEW_PAGES
from horsies.web.overview_pages import TOPICS as OVERVIEW_TOPICS
from horsies.web.task_pages import FILTERS as TASK_FILTERS
from horsies.web.task_pages import PAGES as TASK_PAGES
from horsies.web.task_pages import TOPICS as TASK_TOPICS
from horsies.web.view import Page

PAGES: Sequence[Page] = (*OVERVIEW_PAGES, *TASK_PAGES)
TOPICS: Sequence[Topic] = (*OVERVIEW_TOPICS, *TASK_TOPICS)
FILTERS: Mapping[str, Callable[..., Any]] = {**COMMON_FILTERS, **TASK_FILTERS}
