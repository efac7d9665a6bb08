"""The dashboard: an ASGI application that shows and operates what `app.ops` offers.

`dashboard(app, authorize=…)` makes it, `horsies web` serves it alone. Its parts:

- `dashboard.py` assembles it. `security.py` decides who a request is from, and refuses those without a user, and those that another site has caused.
- `view.py` has `View`, what every page and action gets: `ops` (acting as the user), `user` with its `role`, `url("/tasks", status="FAILED")` (a link
  under any prefix), `static("app.css")`, `render("tasks.html", tasks=…)`.
- `pages.py` and what it imports are the pages: `PAGES` (`Page("/tasks/{task_id}", show_task)`; a page is `async def show_task(view: View) ->
  Response`), `TOPICS` (what is sent to open pages, see `live.py`) and `FILTERS` (filters of templates by name).
- `actions.py` has everything that changes something: `ACTIONS`, each a POST to `url("/actions/cancel-tasks")`.
- `live.py` sends fragments of pages while they are open, as server-sent events.

**Templates** (`templates/`) extend `base.html`. All get `url`, `static`, `now()`, `payload` (shows arguments, results and data of errors as the option `payloads`
says; `payload(text, is_sensitive)`) and `app_name`. Pages also get `view`. A variable that is not defined is an error. Everything is escaped.

They import `macros.html` with context: `m.status`, `m.time`, `m.act` and links to each kind of thing. The filters are in `filters.py`; what is stored may
be hostile, so names and messages go through `visible`, and names in paths through `segment`: `view.name` is the name again. `app.css` is the
design: `.head`, `.card`, `table.list` in `.scroll`, `dl.facts`, `.badge`, `.empty`.

An element with `data-stream` (the URL of a stream) is live: `app.js` replaces what is in its elements with `data-event` by the event of that name, and
leaves alone what is the same. Rows that may move have a `data-key`. Nothing is in the page that needs scripts to be read.

**Actions** are forms with method POST and the fields `csrf` (`view.csrf_token`), `back` (the path to return to, as in `view.path`) and those of the action (the
docstring of each in `actions.py`). The answer is a redirect (303) to `back`, where `view.flash` is what happened: `Flash(kind, text)`, with kind "success", "error" or
"info"; or a page, if nothing was changed. A script may send the token as the header `X-CSRF-Token` instead. Buttons are only for operators: `view.is_operator`. The server refuses others in any case.

**Live fragments** are rendered once for all viewers, so they know no `view`: nothing of a user may be in them, such as a token, or a button that depends on the
role. `Topic("task", read_task, {"state": "live/task_state.html"})` in `TOPICS` makes `url("/live/task", id=task.id)` a stream; after `read_task(ops, {"id": …})` its
events named `state` have the rendered template, whenever that has changed. The event `outage` has a message while the database cannot be read, and an empty
one when it can again; `gone` says that there will be no more events, because `read` returned None: what is shown does not exist any more.
"""

from horsies.web.dashboard import dashboard
from horsies.web.security import Role, User

__all__ = ["Role", "User", "dashboard"]
