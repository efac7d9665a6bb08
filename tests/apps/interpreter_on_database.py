"""The tasks of `interpreter`, on an app with a database."""

from horsies import Horsies
from tests.apps import interpreter

app = Horsies()

for task in interpreter.app.tasks.values():
    app.task(task.name)(task.function)
