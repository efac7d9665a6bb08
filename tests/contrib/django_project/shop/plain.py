# pyright: basic
"""A test of which Django does not know that it uses the database. Its module is found only if it is named."""

from unittest import TestCase

from horsies.contrib.django import app
from horsies.contrib.django.testing import SandboxError
from shop import tasks


class Plain(TestCase):
    def test_the_database_of_the_project_is_refused(self):
        for use in (lambda: tasks.confirm.send(1), app.ops.list_tasks):
            with self.assertRaisesRegex(SandboxError, "the database of the project"):
                use()
