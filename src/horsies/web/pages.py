"""The pages, what is sent to open ones, and the filters of templates: put together from the modules that have them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies.web import filters, overview_pages
from horsies.web.live import Topic
from horsies.web.view import Page

PAGES: Sequence[Page] = (*overview_pages.PAGES,)
TOPICS: Sequence[Topic] = (*overview_pages.TOPICS,)
FILTERS: Mapping[str, Callable[..., Any]] = {**filters.FILTERS}
