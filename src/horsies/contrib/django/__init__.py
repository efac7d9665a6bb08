"""horsies in a Django project: add `"horsies.contrib.django"` to INSTALLED_APPS, and configure it with `settings.HORSIES`.

    # shop/tasks.py
    from horsies import TaskError, TaskResult
    from horsies.contrib.django import task

    @task("resize")
    def resize(image_id: int) -> TaskResult[str, TaskError]: ...

`app` is made from the settings when it is first used. Models may import tasks, and tasks may import models.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["app", "task"]

if TYPE_CHECKING:
    from horsies.contrib.django.application import the_app as _the_app

    app = _the_app()
    task = app.task


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not above: Django imports this package while it loads the settings of the project.
    from horsies.contrib.django.application import the_app  # noqa: PLC0415 - see above

    return the_app() if name == "app" else the_app().task
